//! Every error code of Sprag, in one registry, and the refusal that carries one.
//!
//! A code is stable: programs match on it, `docs/errors.md` explains it, HTTP maps it. A
//! [`Refusal`] is a code and the fields that say which row, which value, which place.

use std::borrow::Cow;
use std::fmt::{self, Write as _};

use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

/// What the caller can make of an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Class {
    /// Your request is wrong; repeating it changes nothing.
    Rejected,
    /// Something else was first; nothing happened, look again.
    Conflict,
    /// Try again later; the outcome may be unknown.
    Unavailable,
    /// Stop: what is stored contradicts itself.
    Corrupt,
}

impl Class {
    /// The name in documents and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rejected => "rejected",
            Self::Conflict => "conflict",
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
        }
    }
}

macro_rules! codes {
    ($( $Code:ident = $name:literal, $Class:ident, $http:literal, $what:literal, $todo:literal; )+) => {
        /// A stable error code.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Code { $( #[doc = $what] $Code ),+ }

        impl Code {
            /// Every code, in the registry's order.
            pub const ALL: &'static [Self] = &[$(Self::$Code),+];

            /// The stable spelling.
            pub fn name(self) -> &'static str {
                match self { $( Self::$Code => $name ),+ }
            }
            /// What the caller can make of it.
            pub fn class(self) -> Class {
                match self { $( Self::$Code => Class::$Class ),+ }
            }
            /// The HTTP status it maps to.
            pub fn http_status(self) -> u16 {
                match self { $( Self::$Code => $http ),+ }
            }
            /// What happened.
            pub fn what(self) -> &'static str {
                match self { $( Self::$Code => $what ),+ }
            }
            /// What to do about it.
            pub fn todo(self) -> &'static str {
                match self { $( Self::$Code => $todo ),+ }
            }
        }
    };
}

codes! {
    // Machines.
    JobIllegalTransition = "JOB_ILLEGAL_TRANSITION", Rejected, 409,
        "the job or request cannot make this move from the state it is in",
        "read the present state; `sprag machines` lists the legal moves";
    StepIllegalTransition = "STEP_ILLEGAL_TRANSITION", Rejected, 409,
        "the step cannot make this move from the state it is in",
        "read the present state; `sprag machines step` lists the legal moves";
    OutboxIllegalTransition = "OUTBOX_ILLEGAL_TRANSITION", Conflict, 409,
        "the outbox row cannot make this move, it is published or closed already",
        "nothing; another publisher was first";
    SeqIllegalTransition = "SEQ_ILLEGAL_TRANSITION", Corrupt, 500,
        "the owner of a seq, or the engine itself, made a move that the table does not have",
        "stop the batch and read the snapshot; this is a bug in a worker or in the engine";
    // Fences, versions, order.
    StaleFence = "STALE_FENCE", Conflict, 409,
        "the attempt and lease named are not the step's present ones, or the attempt already has another result",
        "drop the work: a newer attempt owns the step";
    NotYet = "NOT_YET", Conflict, 409,
        "the callback came before the state it answers to",
        "send the same callback again after a short wait";
    JobVersionConflict = "JOB_VERSION_CONFLICT", Conflict, 409,
        "the row has another version than the one you read",
        "read it again and decide anew";
    StepNotCurrent = "STEP_NOT_CURRENT", Rejected, 409,
        "the step named is not the one whose turn it is",
        "wait until the steps before it have ended";
    RunMismatch = "RUN_MISMATCH", Conflict, 409,
        "the run named is not the request's current run",
        "read the request; if you still want a retry, name its current run";
    DraftFrozen = "DRAFT_FROZEN", Rejected, 409,
        "the plan of this request is frozen and cannot be edited",
        "make a new request";
    DraftBlocked = "DRAFT_BLOCKED", Rejected, 422,
        "a check of the draft does not pass, so the plan cannot be frozen",
        "mend what the named check says, draft again, then confirm";
    // Seqs.
    SeqUnknown = "SEQ_UNKNOWN", Corrupt, 500,
        "the seq is outside of what was discovered",
        "stop the batch; this is a bug in the caller";
    SeqNotCursor = "SEQ_NOT_CURSOR", Corrupt, 500,
        "a commit named a seq that is not the commit cursor",
        "stop the batch; nothing was written past the cursor";
    SeqStaleOwner = "SEQ_STALE_OWNER", Conflict, 409,
        "the owner or generation named no longer holds the seq",
        "drop the result: the seq was given to someone else";
    // Ledgers.
    LedgerDigits = "LEDGER_DIGITS", Rejected, 400,
        "a ledger is exactly fifteen decimal digits",
        "give all fifteen digits, with leading zeros";
    LedgerImpossible = "LEDGER_IMPOSSIBLE", Corrupt, 422,
        "no legal history leads to these digits",
        "check the digits; if they come from a store, audit it";
    Leg1AttemptsExhausted = "LEG1_ATTEMPTS_EXHAUSTED", Rejected, 409,
        "Leg1 of this activity was entered 999 times",
        "find out why the work before dispatch never commits, then rerun the job";
    Leg2EntriesExhausted = "LEG2_ENTRIES_EXHAUSTED", Rejected, 409,
        "Leg2 of this activity was entered 99,999,999 times",
        "split the cycle over several jobs";
    Leg1Incomplete = "LEG1_INCOMPLETE", Conflict, 409,
        "an ending message came before the work it ends was committed",
        "deliver the message again later";
    StepOutOfOrder = "LEDGER_STEP_OUT_OF_ORDER", Corrupt, 500,
        "a marker was to be set before the marker it builds on",
        "stop; this is a bug in the engine";
    SemaphoreRange = "SEMAPHORE_RANGE", Corrupt, 500,
        "the job does not have the open obligations that this message closes",
        "audit the store; the job was closed already or its rows were edited";
    // Submit and keys.
    IdempotencyKeyReused = "IDEMPOTENCY_KEY_REUSED", Conflict, 409,
        "the idempotency key belongs to a job or request with other content",
        "use a new key for new content, or send the first content again";
    EnvelopeInvalid = "ENVELOPE_INVALID", Rejected, 400,
        "the envelope is not a JSON object or a field of it has the wrong form",
        "correct the named field";
    RequestKeyInvalid = "REQUEST_KEY_INVALID", Rejected, 400,
        "fingerprint and requirement are text, plan_revision is text or a number, each optional",
        "correct the named field";
    DocIdMissing = "DOC_ID_MISSING", Rejected, 400,
        "mode BURST routes by document, and the envelope has no doc_id",
        "add doc_id or use mode DEFAULT";
    ResultInvalid = "RESULT_INVALID", Rejected, 400,
        "a RESULT is SUCCEEDED, or FAILED with failure_class RETRYABLE or NON_RETRYABLE",
        "correct the named field and send it again";
    // JSON.
    JsonInvalid = "JSON_INVALID", Rejected, 400,
        "the input is not one JSON document",
        "correct it at the byte named";
    JsonTooDeep = "JSON_TOO_DEEP", Rejected, 400,
        "the input nests more than 128 arrays and objects",
        "flatten it";
    JsonLoneSurrogate = "JSON_LONE_SURROGATE", Rejected, 400,
        "a \\u escape is half of a surrogate pair, which no text can hold",
        "write the character as UTF-8 or as a whole pair";
    NumberRange = "NUMBER_RANGE", Rejected, 400,
        "the number is outside of what is accepted",
        "use a number within the limit named, or send it as text";
    InputTooLarge = "INPUT_TOO_LARGE", Rejected, 413,
        "the input is larger than the limit",
        "send less, or raise the limit named";
    InputUnreadable = "INPUT_UNREADABLE", Unavailable, 500,
        "the input could not be read, or the output could not be written",
        "check that the file exists, may be read, and that there is room to write";
    Usage = "USAGE", Rejected, 400,
        "the command line is not one that this command takes",
        "see --help";
    // Engine and stores.
    JobUnknown = "JOB_UNKNOWN", Rejected, 404,
        "there is no such job",
        "check the id";
    RequestUnknown = "REQUEST_UNKNOWN", Rejected, 404,
        "there is no such request",
        "check the id";
    RequestInvalid = "REQUEST_INVALID", Rejected, 400,
        "the request is not a JSON object or a field of it has the wrong form",
        "correct the named field";
    PublishFailed = "PUBLISH_FAILED", Unavailable, 503,
        "the transport refused the directive as often as it was tried",
        "mend the transport, then run the job again";
    StepUnknown = "STEP_UNKNOWN", Rejected, 404,
        "there is no such job, or it has no such step, branch and turn",
        "check the ids; what the callback said is not recorded";
    ClaimInvalid = "CLAIM_INVALID", Rejected, 400,
        "a claim names at least one service and asks for at least one directive, within limits",
        "correct the named field";
    TenantLimit = "TENANT_LIMIT", Unavailable, 429,
        "the tenant has as many open jobs as it may have; nothing was created",
        "submit again when one of its jobs has ended, or raise its limit";
    JobNotFailed = "JOB_NOT_FAILED", Rejected, 409,
        "only a job that ended FAILED_FINAL or CANCELLED is run again",
        "wait until it has ended; a job that succeeded needs no rerun";
    JobNotPlain = "JOB_NOT_PLAIN", Rejected, 409,
        "the job belongs to a request or to another job, which decides about its runs",
        "retry the request, or rerun the job it belongs to";
    JobEnding = "JOB_ENDING", Rejected, 409,
        "the job is over, or is being cancelled, or has failed and only drains",
        "nothing; no step will take what was sent";
    SignalUnknown = "SIGNAL_UNKNOWN", Rejected, 422,
        "no step of the job's protocol waits for a signal of this name",
        "use a name that the protocol waits for";
    SignalIdReused = "SIGNAL_ID_REUSED", Conflict, 409,
        "the job has had a signal with this id and other content",
        "use a new id for a new signal, or send the first content again";
    SignalInvalid = "SIGNAL_INVALID", Rejected, 400,
        "a signal has an id, and may have a payload, a decision (approve or reject), who and why",
        "correct the named field";
    SignalLimit = "SIGNAL_LIMIT", Rejected, 409,
        "the job has as many signals as it may have",
        "find out who sends them; each id counts once, so a repeat is free";
    SignalRejected = "SIGNAL_REJECTED", Rejected, 422,
        "somebody has rejected what the step waited for",
        "read who and why; run the job again once that is settled";
    WaitTimedOut = "WAIT_TIMED_OUT", Rejected, 422,
        "no signal came within the time of the wait",
        "send it earlier, give the wait more time, or let it succeed with `on_timeout`";
    NameInvalid = "NAME_INVALID", Rejected, 400,
        "a name is empty, too long or has a control character",
        "correct the named field";
    CursorInvalid = "CURSOR_INVALID", Rejected, 400,
        "the cursor is not one that a feed of this store has given out",
        "go on from a cursor that you were given, or from the beginning";
    NulCharacter = "NUL_CHARACTER", Rejected, 400,
        "text holds a NUL character, which not every store can keep",
        "take it out, or send the text encoded";
    ProtocolInvalid = "PROTOCOL_INVALID", Rejected, 400,
        "the protocol cannot be followed",
        "correct it at the place named";
    ProtocolChanged = "PROTOCOL_CHANGED", Conflict, 409,
        "the protocol is known under this id with other content, and jobs may be pinned to it",
        "give the new content a new protocol_id";
    ProtocolUnknown = "PROTOCOL_UNKNOWN", Rejected, 422,
        "no registered protocol serves this request type",
        "register a protocol that names the request type";
    ProtocolNotFound = "PROTOCOL_NOT_FOUND", Rejected, 404,
        "there is no protocol with this id",
        "list the protocols, or register it";
    StepKindRefused = "STEP_KIND_REFUSED", Rejected, 403,
        "the configuration of this engine does not allow steps of this kind",
        "allow it (`sprag serve --allow-exec` for exec), or have an engine run it that may";
    HookUnknown = "HOOK_UNKNOWN", Rejected, 422,
        "the protocol names a hook in `on_end` that this engine does not have, so nobody would be told",
        "take it out (`sprag serve` has no hooks), or register it with the program that has the hook";
    PayloadInvalid = "PAYLOAD_INVALID", Rejected, 422,
        "the payload does not fit the schema that the protocol has for it",
        "correct it at the pointer named";
    MessagePoison = "MESSAGE_POISON", Rejected, 422,
        "the store refused this one row; others were not affected",
        "read the reason; the content cannot be stored as it is";
    ExpressionFailed = "EXPRESSION_FAILED", Rejected, 422,
        "an expression of the protocol has no value, or not one of the kind that is needed",
        "read the reason; has() tells whether a member is there, and a limit may have been reached";
    ChildTooDeep = "CHILD_TOO_DEEP", Rejected, 422,
        "a child job would have more jobs above it than may be",
        "let one of the protocols do the work itself; perhaps one is its own child";
    StoreUrlInvalid = "STORE_URL_INVALID", Rejected, 400,
        "the store's URL is not one that this binary knows",
        "use sqlite:PATH, or a postgres:// address";
    AuditBroken = "AUDIT_BROKEN", Corrupt, 500,
        "the audit has found invariants that do not hold",
        "stop the engines and read the violations; this is a bug or an edited store";
    SchemaTooNew = "SCHEMA_TOO_NEW", Unavailable, 503,
        "the store was written by a newer version that this binary does not understand",
        "use the newer binary";
    StoreUnavailable = "STORE_UNAVAILABLE", Unavailable, 503,
        "the store cannot be reached, or the outcome of a write is unknown",
        "try the same call again: a repeat is safe";
    StoreInUse = "STORE_IN_USE", Conflict, 409,
        "another engine process owns this file",
        "stop it first, or use Postgres for several engines";
    StoreClosed = "STORE_CLOSED", Conflict, 409,
        "the store is being moved, or was moved to another one, and no engine may work on it",
        "start the engine on the store that it was moved to, end the move first, or abandon it (`sprag move --abandon`)";
    MoveRefused = "MOVE_REFUSED", Rejected, 409,
        "the store cannot be moved as it is",
        "read the reason; give a target that holds nothing, or the one that this source was filling, or abandon the move (`sprag move --abandon`)";
    EngineFenced = "ENGINE_FENCED", Conflict, 409,
        "this engine was silent for so long that another one has taken over its work",
        "start it again";
    // The server.
    Unauthenticated = "UNAUTHENTICATED", Rejected, 401,
        "the call has no token, or one that is unknown, expired or revoked",
        "send `Authorization: Bearer TOKEN` with a token that is accepted";
    ScopeMissing = "SCOPE_MISSING", Rejected, 403,
        "the token does not allow this",
        "use a token with the scope named";
    TenantMismatch = "TENANT_MISMATCH", Rejected, 403,
        "the token belongs to another tenant than the one named",
        "name the token's tenant, or use another token";
    TokenInvalid = "TOKEN_INVALID", Rejected, 400,
        "no such token can be made",
        "correct what the fields name";
    TokenUnknown = "TOKEN_UNKNOWN", Rejected, 404,
        "there is no such token",
        "list the tokens, and name one by its id";
    ScheduleInvalid = "SCHEDULE_INVALID", Rejected, 400,
        "no such schedule can be kept",
        "correct what the fields name: five cron fields (six with seconds first), and a time zone such as Europe/Berlin";
    ScheduleExists = "SCHEDULE_EXISTS", Conflict, 409,
        "there is another schedule of this name",
        "remove it first, or choose another name";
    ScheduleUnknown = "SCHEDULE_UNKNOWN", Rejected, 404,
        "there is no such schedule",
        "list the schedules, and name one with its tenant";
    LeaseTokenInvalid = "LEASE_TOKEN_INVALID", Rejected, 403,
        "the lease token was not made for this attempt",
        "send the lease token of the directive as it is, with all that the directive names";
    OriginRefused = "ORIGIN_REFUSED", Rejected, 403,
        "the Host or Origin of the call is not one that this server answers to",
        "call it by its own address, or add the name to `hosts`";
    RouteUnknown = "ROUTE_UNKNOWN", Rejected, 404,
        "there is nothing at this path",
        "see /openapi.json";
    MethodRefused = "METHOD_REFUSED", Rejected, 405,
        "the path does not take this method",
        "see /openapi.json";
    CallInvalid = "CALL_INVALID", Rejected, 400,
        "a header, a parameter or a field of the body has the wrong form",
        "correct the named field";
    RateLimited = "RATE_LIMITED", Unavailable, 429,
        "the tenant calls more often than it may",
        "wait as long as Retry-After says, then go on";
    TooSlow = "TOO_SLOW", Rejected, 408,
        "the body of the call did not arrive in time",
        "send it faster, or in smaller pieces";
    ListenUnsafe = "LISTEN_UNSAFE", Rejected, 400,
        "the address can be reached from other machines, and there is neither TLS nor a proxy before it",
        "give a certificate and its key, say --behind-proxy, or listen on a loopback address";
    ConfigInvalid = "CONFIG_INVALID", Rejected, 400,
        "the configuration cannot be used",
        "correct what the fields name";
    // Calling a server.
    ServerUnreachable = "SERVER_UNREACHABLE", Unavailable, 503,
        "no server was found, or it did not answer",
        "start it with `sprag serve`, or say where it is with --server and --token, or --data";
    JobFailed = "JOB_FAILED", Rejected, 422,
        "the job that was waited for has ended without success",
        "see `error` and the job's history";
    WaitTimeout = "WAIT_TIMEOUT", Unavailable, 504,
        "the job that was waited for was not over in time",
        "it goes on; wait for it again, or ask `sprag job explain` what it waits for";
    SubmitsRefused = "SUBMITS_REFUSED", Rejected, 422,
        "some of the lines were refused; all others were submitted",
        "read the answers of the refused lines, correct them and submit the file again";
    DemoFailed = "DEMO_FAILED", Rejected, 422,
        "the demo did not go as its script says",
        "run it again with --keep and look at the logs in its folder; this may be a bug";
    WorkerUnfit = "WORKER_UNFIT", Rejected, 422,
        "the worker does not do what a worker must",
        "read what each failed check has seen, and what a worker does instead";
    // Planner.
    PlanConfigInvalid = "PLAN_CONFIG_INVALID", Rejected, 400,
        "the plan's configuration is incomplete or contradicts itself",
        "correct the named field";
    PlanEntryInvalid = "PLAN_ENTRY_INVALID", Rejected, 400,
        "an entry is not an object with whole numbers cost and bytes",
        "correct the line named";
    // Lanes.
    PlanChanged = "PLAN_CHANGED", Rejected, 409,
        "the input or its configuration differs from what the finished part of this run was made of",
        "resume with the same input and configuration, or start a new run";
    RunConfigInvalid = "RUN_CONFIG_INVALID", Rejected, 400,
        "the configuration of the run is outside of its limits",
        "correct the named field";
    SourceFailed = "SOURCE_FAILED", Unavailable, 500,
        "the source of entries failed, panicked, or ended before its own total",
        "mend the source, then resume: everything before the cursor is committed";
    SinkFailed = "SINK_FAILED", Unavailable, 500,
        "the sink refused or panicked while it wrote the batch that begins at the seq named",
        "mend the sink, then resume at the cursor; the batch may be written in part";
    ProgressFailed = "PROGRESS_FAILED", Unavailable, 500,
        "the callback that is told how far the run is panicked",
        "mend the callback, then resume: everything before the cursor is committed";
    BatchItemsFailed = "BATCH_ITEMS_FAILED", Rejected, 422,
        "more items of the batch failed than its policy bears; the outcomes of all of them are kept",
        "read the reasons in the journal of the batch, mend the items, then run the job again";
    SeqStall = "STALL", Corrupt, 500,
        "nothing is in flight or can be dispatched, yet the seq at the cursor has no outcome",
        "stop and read the snapshot; this is a bug in the runtime";
    InvariantBroken = "INVARIANT_BROKEN", Corrupt, 500,
        "the runtime found its own books in contradiction",
        "stop and read the snapshot; this is a bug in the runtime";
    // The journal of a run on lanes.
    JournalDamaged = "JOURNAL_DAMAGED", Corrupt, 500,
        "the journal is damaged before its tail, or contradicts itself",
        "keep the file and restore a copy; nothing was changed";
    JournalInUse = "JOURNAL_IN_USE", Conflict, 409,
        "another live process holds this journal",
        "wait until it has ended, or use another journal";
    JournalOtherRun = "JOURNAL_OTHER_RUN", Rejected, 409,
        "the journal belongs to another run",
        "give the run its own journal, or repeat the command that this one belongs to";
    JournalVersion = "JOURNAL_VERSION", Rejected, 422,
        "the journal was written in a format that this version does not know",
        "use the version that wrote it";
    JournalForeign = "JOURNAL_FOREIGN", Rejected, 422,
        "the file is not a journal",
        "check the path; nothing was changed";
    JournalUnavailable = "JOURNAL_UNAVAILABLE", Unavailable, 503,
        "the journal could not be read or written",
        "check that the path is right, may be written, and that there is room";
    ItemsFailed = "ITEMS_FAILED", Rejected, 422,
        "some items failed or were cancelled; the results of the others are committed",
        "see what they wrote to stderr, then run them alone with --retry-failed";
    RunStopped = "RUN_STOPPED", Unavailable, 503,
        "the run was stopped before its end; what came out is committed",
        "repeat the same command to go on, if it has a journal";
    OutputShort = "OUTPUT_SHORT", Corrupt, 500,
        "the output file holds less than the journal says was written to it",
        "restore the file, or begin again without this journal";
    SeqOutcomeConflict = "SEQ_OUTCOME_CONFLICT", Corrupt, 500,
        "one seq has two different outcomes",
        "stop; keep the journal as it is, nothing was changed";
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

/// The value of a refusal's field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Field {
    /// Words.
    Text(Cow<'static, str>),
    /// A count, a seq, a time, a place.
    Number(i64),
}

impl From<&'static str> for Field {
    fn from(text: &'static str) -> Self {
        Self::Text(Cow::Borrowed(text))
    }
}

impl From<String> for Field {
    fn from(text: String) -> Self {
        Self::Text(Cow::Owned(text))
    }
}

impl From<u64> for Field {
    fn from(number: u64) -> Self {
        Self::Number(i64::try_from(number).unwrap_or(i64::MAX))
    }
}

impl From<usize> for Field {
    fn from(number: usize) -> Self {
        Self::from(number as u64)
    }
}

impl From<u32> for Field {
    fn from(number: u32) -> Self {
        Self::Number(i64::from(number))
    }
}

impl From<i64> for Field {
    fn from(number: i64) -> Self {
        Self::Number(number)
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Number(number) => number.fmt(f),
        }
    }
}

/// A structured no: a code and the fields that make it concrete. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Refusal {
    code: Code,
    fields: Vec<(Cow<'static, str>, Field)>,
}

impl Refusal {
    /// A refusal with no fields yet.
    #[cold]
    pub fn new(code: Code) -> Self {
        Self { code, fields: Vec::new() }
    }

    /// The same refusal with one more field.
    pub fn with(mut self, name: impl Into<Cow<'static, str>>, value: impl Into<Field>) -> Self {
        self.fields.push((name.into(), value.into()));
        self
    }

    /// The code.
    pub fn code(&self) -> Code {
        self.code
    }

    /// The fields in the order they were added.
    pub fn fields(&self) -> &[(Cow<'static, str>, Field)] {
        &self.fields
    }

    /// One field by name.
    pub fn field(&self, name: &str) -> Option<&Field> {
        self.fields.iter().find(|(field, _)| *field == name).map(|(_, value)| value)
    }

    /// What happened, with the fields, without the code.
    pub fn message(&self) -> String {
        let mut message = String::from(self.code.what());
        for (position, (name, value)) in self.fields.iter().enumerate() {
            message.push_str(if position == 0 { " (" } else { ", " });
            write!(message, "{name}: {value}").expect("writing to a string does not fail");
        }
        if !self.fields.is_empty() {
            message.push(')');
        }
        message
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}; {}", self.code, self.message(), self.code.todo())
    }
}

impl std::error::Error for Refusal {}

/// `{"error_code", "message", "fields"}`, the same on every surface.
impl Serialize for Refusal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        struct Fields<'a>(&'a [(Cow<'static, str>, Field)]);
        impl Serialize for Fields<'_> {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
            }
        }
        let mut map = serializer.serialize_map(Some(3))?;
        map.serialize_entry("error_code", &self.code)?;
        map.serialize_entry("message", &self.message())?;
        map.serialize_entry("fields", &Fields(&self.fields))?;
        map.end()
    }
}
