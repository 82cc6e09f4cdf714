//! Why attempts fail, in one registry: the codes that the engine, its stores and its own workers give to an attempt, and
//! that a job's `error_code` shows. A worker may send a code of its own; a code of [`Code`](crate::Code) may be one, too.

use std::fmt;

/// Whether a step that failed so is worth another attempt, if it has any left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Again {
    /// Another attempt may go better.
    Yes,
    /// It would fail in the same way.
    No,
    /// What happened tells.
    Depends,
}

impl Again {
    /// The word in documents.
    pub fn name(self) -> &'static str {
        match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::Depends => "depends",
        }
    }
}

macro_rules! causes {
    ($( $Cause:ident = $name:literal, $Again:ident, $what:literal, $todo:literal; )+) => {
        /// A stable code of a failed attempt.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Cause { $( #[doc = $what] $Cause ),+ }

        impl Cause {
            /// Every cause, in the registry's order.
            pub const ALL: &'static [Self] = &[$(Self::$Cause),+];

            /// The stable spelling. One that ends with `_N` stands for many, see [`Self::numbered`].
            pub fn name(self) -> &'static str {
                match self { $( Self::$Cause => $name ),+ }
            }
            /// Whether it is worth another attempt.
            pub fn again(self) -> Again {
                match self { $( Self::$Cause => Again::$Again ),+ }
            }
            /// What happened.
            pub fn what(self) -> &'static str {
                match self { $( Self::$Cause => $what ),+ }
            }
            /// What to do about it.
            pub fn todo(self) -> &'static str {
                match self { $( Self::$Cause => $todo ),+ }
            }
        }
    };
}

causes! {
    // Nobody said how it went.
    AckTimeout = "ACK_TIMEOUT", Yes,
        "nobody acknowledged the directive in time",
        "see that workers of the service run and take directives, or give `timeouts.ack` more";
    LeaseExpired = "LEASE_EXPIRED", Yes,
        "the worker fell silent: its lease ended without a heartbeat or a RESULT",
        "see whether the worker died; one that works for long sends heartbeats, or gets a longer `timeouts.lease`";
    OwnerLost = "OWNER_LOST", Yes,
        "the engine that ran the attempt has died; this counts as a loss and not as an attempt",
        "nothing, unless it goes on: then see whether the step brings its engine down";
    EngineStopped = "ENGINE_STOPPED", Yes,
        "the engine was stopped; the batch goes on behind what is committed",
        "nothing";
    StepTimeout = "STEP_TIMEOUT", Yes,
        "the attempt took longer than `timeouts.step` allows",
        "find out what it waits for, or give it more time";
    Cancelled = "CANCELLED", No,
        "its work was stopped because its job is being cancelled, which lets nothing be tried again; of a request, its run was cancelled",
        "nothing";
    // Handlers in an engine.
    HandlerPanic = "HANDLER_PANIC", Yes,
        "the handler panicked; the message is the panic's",
        "mend the handler";
    HandlerEnded = "HANDLER_ENDED", Yes,
        "the thread of the handler was ended before the handler returned",
        "nothing if the engine was stopping; else look into its log";
    ProgressInvalid = "PROGRESS_INVALID", No,
        "the handler said something of its progress that is too large or cannot be kept",
        "say less";
    OutputInvalid = "OUTPUT_INVALID", No,
        "what the handler or command returned is not JSON",
        "have it return one JSON document, or nothing";
    InputInvalid = "INPUT_INVALID", No,
        "the output of an earlier step does not have the form that the handler reads",
        "bring the two steps together";
    ServiceMismatch = "SERVICE_MISMATCH", No,
        "the service has no handler of the kind that the step needs: one of items for a batch, one of outputs, or none",
        "give the service the handler that the protocol asks for, or change the protocol";
    // Work in the transaction of the RESULT.
    WorkFailed = "WORK_FAILED", Depends,
        "the work that commits with the RESULT failed, and nothing of it was kept; data and statements that are refused are final",
        "read the message, which is the database's";
    WorkPanic = "WORK_PANIC", Yes,
        "the work that commits with the RESULT panicked, and nothing of it was kept",
        "mend the work";
    WorkTimeout = "WORK_TIMEOUT", Yes,
        "the work that commits with the RESULT took too long, and nothing of it was kept",
        "make it shorter: a transaction holds others up";
    // Steps that the engine does itself.
    TooManyItems = "TOO_MANY_ITEMS", No,
        "the list of a `for_each` has more items than `max_items` allows",
        "raise `max_items`, or use a batch";
    TooManyTurns = "TOO_MANY_TURNS", No,
        "a `repeat` has run `max` turns and its condition still holds",
        "raise `max`, or find out why the condition does not change";
    BranchesFailed = "BRANCHES_FAILED", No,
        "more branches of a `for_each` failed than `on_failure` allows",
        "look at the branches that the message names";
    BranchesUnreadable = "BRANCHES_UNREADABLE", Yes,
        "the outputs of the branches could not be read from the store",
        "see why the store is away";
    ItemsUnreadable = "ITEMS_UNREADABLE", Yes,
        "the items of a `for_each` could not be read",
        "look at the output of its opener";
    SignalUnreadable = "SIGNAL_UNREADABLE", Yes,
        "the signal that a step has waited for could not be read from the store",
        "see why the store is away";
    ExpressionLost = "EXPRESSION_LOST", Yes,
        "the evaluation of an expression was ended before it had a value",
        "nothing if the engine was stopping; else look into its log";
    ControlUnknown = "CONTROL_UNKNOWN", No,
        "the engine was handed a step that it does not do itself",
        "report it: this is a bug in the engine";
    PredecessorFailed = "PREDECESSOR_FAILED", No,
        "the step was skipped because one that it needs has failed",
        "look at the step that failed";
    // Commands.
    ExecFailed = "EXEC_FAILED", Depends,
        "the command could not be started; without a command at all it is final",
        "see that the program is there and may be run, where the engine or worker runs";
    Exit = "EXIT_N", Depends,
        "the command ended with this exit code; 64 and 65 are final; the message is what it wrote to stderr",
        "read the message";
    Signal = "SIGNAL_N", Yes,
        "the command was ended by this signal of the system",
        "see who sent it; 9 is often a lack of memory";
    WorkerStopped = "WORKER_STOPPED", Yes,
        "the engine or worker was told to end, and the command with it",
        "nothing";
    OutputRefused = "OUTPUT_REFUSED", No,
        "the command succeeded, but the server refused what it wrote",
        "read the message; often the output is too large";
    // HTTP requests.
    HttpStatus = "HTTP_N", Depends,
        "the answer has this status; 408, 425, 429 and 5xx may pass, the rest is final; the message is its body",
        "read the message";
    HttpInvalid = "HTTP_INVALID", No,
        "the request cannot be made as it is",
        "correct the URL or the header that the message names";
    HttpAddressRefused = "HTTP_ADDRESS_REFUSED", No,
        "the name resolves to an address inside of this network",
        "allow it for this server, or use an address outside";
    HttpAnswerTooLarge = "HTTP_ANSWER_TOO_LARGE", No,
        "the answer is larger than an output may be",
        "ask for less, or raise the limit of outputs";
    HttpTimeout = "HTTP_TIMEOUT", Yes,
        "no answer came within the step's timeout",
        "give `timeouts.step` more, or find out why the other side is slow";
    HttpUnreachable = "HTTP_UNREACHABLE", Yes,
        "the other side could not be reached, or the connection broke",
        "see whether it is there";
    // Child jobs.
    ChildFailed = "CHILD_FAILED", Yes,
        "the child job failed; another attempt has another child",
        "look at the child that the message names";
    ChildCancelled = "CHILD_CANCELLED", Depends,
        "the child job was cancelled; if that was for its own sake, it is final",
        "see who cancelled it";
    ChildResultTooLarge = "CHILD_RESULT_TOO_LARGE", No,
        "the results of the child job are larger than an output may be",
        "have the child return less, or a reference";
    // Batches.
    OutputFile = "OUTPUT_FILE", Depends,
        "the output file of a batch could not be opened or written; if its content is not what was committed, it is final",
        "see that it may be written and that there is room";
}

impl Cause {
    /// The code of one of the many that this stands for: `EXIT_3`.
    pub fn numbered(self, n: impl fmt::Display) -> String {
        let family = self.name().strip_suffix('N').expect("only a family is numbered");
        format!("{family}{n}")
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
