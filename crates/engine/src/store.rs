//! The store seam: a small set of durable primitives, each over a slice.
//!
//! Every primitive is one transaction (or shares one with its neighbours) and every element of a slice
//! is guarded in the statement itself by the version and the digits of its row. An element whose guard
//! does not hold any more changes nothing and says so; that is how races end. Which state comes next is
//! never chosen by a store: it is handed in, decided by the kernel, for a job that goes on and for one
//! that is being cancelled, and the statement picks by the job's present state.
//!
//! Times that are handed in are durations; the store adds its own clock.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use sprag_kernel::decide::gate::Limit;
use sprag_kernel::decide::rows::{AttemptRow, Ending, JobRow, LeaseId};
use sprag_kernel::keys::{Hash, Mode, Route};
use sprag_kernel::retry::Millis;
use sprag_kernel::{ActivityLedger, Code, GuidLedger, JobState, Refusal, StepState};

use crate::batch::store::{BatchWorked, BatchWrite, Batches};
use crate::gate::Gates;
use crate::hints::Hint;
use crate::ids::{AttemptKey, EngineNo, JobId, Place};
use crate::inbox::{InboxFilter, InboxView, TakeIn, Waiting};
use crate::signals::Signals;
use crate::upkeep::Upkeep;

pub use crate::endings::{ending_code, ending_kind};
pub use crate::feed::{Cursor, FeedEvent};
pub use crate::renewal::{RenewOutcome, RenewWrite, Renewal, StaleCallback, StepPlace};
pub use crate::running::{Pulse, Worked};
pub use crate::views::{AttemptView, Check, EventView, JobFilter, JobView, Violation};

/// What never changes about a job.
#[derive(Clone, Debug)]
pub struct JobFacts {
    /// The job.
    pub job_id: JobId,
    /// Whose it is.
    pub tenant_id: String,
    /// What was asked for.
    pub request_type: String,
    /// The protocol it is pinned to.
    pub protocol_id: String,
    /// JSON text.
    pub input_ref: String,
    /// JSON text.
    pub output_ref: String,
    /// JSON text.
    pub payload: String,
    /// The version of the payload's schema.
    pub schema_version: String,
    /// The caller's key, if it gave one.
    pub idempotency_key: Option<String>,
    /// Unique in the tenant.
    pub dedup_key: String,
    /// The hash of the content.
    pub hash: Hash,
    /// Which document.
    pub doc_id: Option<String>,
    /// How it was routed.
    pub mode: Mode,
    /// The lane and the key it comes from.
    pub route: Route,
    /// Handed through.
    pub correlation_id: Option<String>,
    /// Handed through.
    pub traceparent: Option<String>,
    /// Higher goes first.
    pub priority: i32,
    /// The job this one runs again.
    pub rerun_of: Option<JobId>,
}

impl JobFacts {
    /// The request that this job is a run of.
    pub fn request_id(&self) -> Option<&str> {
        self.dedup_key.strip_prefix("r:")?.rsplit_once(':').map(|(request_id, _)| request_id)
    }

    /// The attempt that waits for this job, and how many jobs are above this one, if it is a child.
    pub fn parent(&self) -> Option<(AttemptKey, u32)> {
        let mut parts = self.dedup_key.strip_prefix("c:")?.split(':');
        let job_id = parts.next()?.parse().ok()?;
        let step_index = parts.next()?.parse().ok()?;
        let branch = parts.next()?.parse().ok()?;
        let turn = parts.next()?.parse().ok()?;
        let attempt_no = parts.next()?.parse().ok()?;
        let depth = parts.next()?.parse().ok()?;
        Some((AttemptKey { job_id, step_index, branch, turn, attempt_no }, depth))
    }

    /// Who owns the effects of its steps: the request, so that another run has the same, else the job.
    pub fn effect_owner(&self) -> String {
        self.request_id().map_or_else(|| self.job_id.to_string(), str::to_owned)
    }
}

/// A job to create.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// What never changes.
    pub facts: Arc<JobFacts>,
    /// Its steps, by their index.
    pub steps: Arc<[NewStep]>,
    /// The gates of its steps, by their index; empty if no step has one.
    pub gates: Vec<Option<String>>,
    /// Whether they are a graph.
    pub is_graph: bool,
    /// Not to start before this time.
    pub not_before: Option<Millis>,
    /// Whether the submitting engine has a free slot for the first step and enters Leg1 at once.
    pub enter: bool,
}

/// A step to create.
#[derive(Clone, Debug)]
pub struct NewStep {
    /// Its name in the protocol.
    pub step_id: String,
    /// The kind of work.
    pub step_type: String,
    /// Who does it.
    pub service: String,
    /// Higher goes first.
    pub priority: i32,
    /// From its activation to the time it is due.
    pub delay_ms: Millis,
    /// The limit that it brings to its gate, if it has one.
    pub limit: Option<Limit>,
    /// How it begins with the job.
    pub begins: Begins,
}

impl NewJob {
    /// The obligations that it is born with.
    pub fn initial(&self) -> u32 {
        let open = self.steps.iter().filter(|step| step.begins.is_open()).count();
        u32::try_from(open).expect("steps are limited")
    }

    /// Where a step waits until it may start.
    pub fn gate(&self, step_index: usize) -> Option<&str> {
        self.gates.get(step_index)?.as_deref()
    }
}

/// How the first attempt at a place begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// Activated: it can be claimed, or waits for its delay.
    Ready,
    /// Parked until so many others are over.
    Parked(u32),
    /// There, to be activated by the one it follows.
    Dormant,
    /// Not there yet: whoever opens its scope inserts it.
    Unborn,
}

impl Begins {
    /// Whether it is an obligation of the job.
    pub fn is_open(self) -> bool {
        match self {
            Self::Ready | Self::Parked(_) => true,
            Self::Dormant | Self::Unborn => false,
        }
    }

    /// How many others it is parked for.
    pub fn countdown(self) -> u32 {
        match self {
            Self::Parked(count) => count,
            Self::Ready | Self::Dormant | Self::Unborn => 0,
        }
    }
}

/// The answer to one submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The new job, or the one that was there.
    pub job_id: JobId,
    /// Its present state.
    pub state: JobState,
    /// Whether this call created it.
    pub created: bool,
}

/// An attempt with all that is needed to decide on it and to run it.
#[derive(Clone, Debug)]
pub struct Held {
    /// Which attempt.
    pub key: AttemptKey,
    /// Its row.
    pub attempt: AttemptRow,
    /// Its job's row.
    pub job: JobRow,
    /// What never changes about the job.
    pub facts: Arc<JobFacts>,
    /// Outputs of earlier steps: (step_index, JSON text). In a graph they are asked for by name.
    pub inputs: Vec<(u32, String)>,
    /// JSON text of the item of its branch.
    pub item: Option<String>,
    /// JSON text of what it produced, once its message has entered.
    pub output: Option<String>,
    /// Until when it waits, if it has waited for a signal, or waits for a child, with a time limit.
    pub waits_until: Option<Millis>,
    /// Why some of the facts cannot be read, if so; they are empty then. Such a job is not run: it ends.
    pub damage: Option<String>,
    /// Whether a claim found Leg1 at the ceiling of its entries, and did not enter it once more.
    pub exhausted: bool,
}

/// How an activity of a graph has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its state.
    pub state: StepState,
    /// JSON text of what it produced.
    pub output: Option<String>,
    /// Why it failed.
    pub error: Option<AttemptError>,
}

/// What a look at the timers found.
#[derive(Clone, Debug, Default)]
pub struct Due {
    /// How many activations became claimable.
    pub promoted: usize,
    /// Attempts whose ACK, lease or publication is due.
    pub held: Vec<Held>,
    /// The store's time.
    pub now: Millis,
    /// When the next timer ends that has not ended yet.
    pub next: Option<Millis>,
}

/// What an engine learns with its sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Engines that have shown none for so long, and dead ones that have left something behind.
    pub silent: Vec<EngineNo>,
    /// Whether an envelope waits in the inbox.
    pub has_mail: bool,
}

/// How many activations of a service an engine can take now.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The service.
    pub service: String,
    /// Free slots.
    pub max: u32,
    /// Which of those that are due.
    pub pick: Pick,
    /// Only those of this tenant; of every tenant if absent.
    pub tenant_id: Option<String>,
}

/// Which activations a claim takes, by how often each was delivered before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// All: whoever takes them does not die with this process.
    Any,
    /// Those that may run beside others in this process.
    Fresh,
    /// Those that must run alone.
    Lone,
}

impl Pick {
    /// The stable small integer of this choice.
    pub fn code(self) -> i16 {
        match self {
            Self::Any => 0,
            Self::Fresh => 1,
            Self::Lone => 2,
        }
    }
}

/// How far the commit of Leg1's work goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandOff {
    /// To a slot of this engine: written, sent and acknowledged in one commit.
    InProcess,
    /// To a pulling worker that has the claim as its ACK.
    Pulled,
    /// To a pulling worker that will acknowledge.
    PulledUnacked,
    /// To the outbox, where this engine publishes it from.
    Outbox,
}

/// The work of Leg1 for one attempt.
#[derive(Clone, Debug)]
pub struct DispatchWrite {
    /// Which attempt.
    pub key: AttemptKey,
    /// The version the row must have.
    pub version: u64,
    /// The new fence.
    pub lease_id: LeaseId,
    /// How long the lease is.
    pub lease_ms: Millis,
    /// From SENT to the ACK deadline.
    pub ack_timeout_ms: Millis,
    /// To whom it goes.
    pub hand_off: HandOff,
    /// The claim of the worker that pulled it.
    pub claim_id: Option<String>,
    /// The child job that does the work: created in the same transaction.
    pub child: Option<Arc<NewChild>>,
    /// The step's state afterwards.
    pub step_to: StepState,
    /// The job's state before: the statement requires it.
    pub job_from: JobState,
    /// The job's state afterwards.
    pub job_to: JobState,
    /// The ledger afterwards.
    pub ledger: ActivityLedger,
    /// What the event row says.
    pub changes: String,
    /// Whether the outcome of this very write was lost: then it may be committed already, and is
    /// answered as the first time.
    pub repeats: bool,
}

/// A child job to create.
#[derive(Clone, Debug)]
pub struct NewChild {
    /// The job.
    pub job: NewJob,
    /// How long the attempt waits for it; as long as it takes if absent.
    pub timeout_ms: Option<Millis>,
}

/// What became of the work of Leg1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DispatchOutcome {
    /// Committed; the attempt has this version, and may run.
    Done {
        /// The version afterwards.
        version: u64,
        /// The end of its lease.
        lease_expires_at: Millis,
    },
    /// The job is being cancelled or has failed elsewhere; nothing was written.
    Ending,
    /// Another step has moved the job to this state meanwhile; nothing was written.
    Moved(JobState),
    /// The row has moved on; nothing was written.
    Gone,
}

/// A message that ends an attempt.
#[derive(Clone, Debug)]
pub struct EndWrite {
    /// Which attempt.
    pub key: AttemptKey,
    /// The version the row must have.
    pub version: u64,
    /// The lease it must have.
    pub lease_id: Option<LeaseId>,
    /// What it says.
    pub ending: Ending,
    /// The ledger afterwards.
    pub ledger: ActivityLedger,
    /// JSON text of what the attempt produced.
    pub output: Option<String>,
    /// JSON text of where its output is, if not where the job said.
    pub output_ref: Option<String>,
    /// Why it failed.
    pub error: Option<AttemptError>,
    /// Whether the outcome of this very write was lost.
    pub repeats: bool,
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptError {
    /// A stable code.
    pub code: String,
    /// What happened.
    pub message: String,
}

/// What became of an ending.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndOutcome {
    /// It has entered; the attempt has this version.
    Entered {
        /// The version afterwards.
        version: u64,
    },
    /// Another message was first, or the row has moved on; recorded nowhere, changed nothing.
    Stale,
}

/// Steps 1 to 3 of a message.
#[derive(Clone, Debug)]
pub struct FinishWrite {
    /// Which attempt.
    pub key: AttemptKey,
    /// The version the row must have.
    pub version: u64,
    /// If the job goes on.
    pub open: FinishPlan,
    /// If the job is being cancelled.
    pub cancelling: FinishPlan,
    /// If the job is a graph.
    pub graph: Option<GraphFinish>,
    /// Whether this engine has a slot for the next step and enters its Leg1 in the same commit.
    pub enter_next: bool,
    /// What the commit records besides, if it closes the job.
    pub tasks: Arc<[String]>,
    /// Who is told in the same transaction, if it closes the job.
    pub tells: Option<Tells>,
    /// Whether the outcome of this very write was lost.
    pub repeats: bool,
}

/// The attempt of a parent that waits for a child job. How the child has ended is the message that ends the
/// attempt, as [`plan::child_ended`](crate::plan::child_ended) has it.
#[derive(Clone, Debug)]
pub struct Tells {
    /// The attempt.
    pub parent: AttemptKey,
    /// Where the result of the child is: its last steps, by name.
    pub results: Arc<[(String, Place)]>,
}

/// How a child job has ended.
#[derive(Clone, Debug)]
pub struct ChildEnd {
    /// The child.
    pub job_id: JobId,
    /// Its state.
    pub state: JobState,
    /// Why it failed.
    pub error: Option<AttemptError>,
    /// The ends of its last steps, by name.
    pub results: Vec<(String, Option<Ended>)>,
}

/// What Steps 1 to 3 write besides, in a graph.
#[derive(Clone, Debug)]
pub struct GraphFinish {
    /// If the job has failed elsewhere and only drains.
    pub failing: FinishPlan,
    /// How the job will end, if this message makes it certain; its error is the job's then.
    pub pins: Option<JobState>,
    /// What becomes of obligations that nobody has begun, once the job is ending.
    pub closes_to: StepState,
    /// What the end of the attempt opens and counts down, if the job goes on.
    pub duties: Duties,
}

/// What the end of a node opens and counts down.
#[derive(Clone, Debug, Default)]
pub struct Duties {
    /// Rows that are there and wait for this end alone.
    pub activates: Vec<Place>,
    /// Parked rows that wait for this end among others.
    pub counts_down: Vec<Place>,
    /// Parked rows that wait for this end to have room, if there are any.
    pub lets_in: Vec<Place>,
    /// New rows.
    pub inserts: Vec<NewRow>,
    /// What the new rows are made of, by their index.
    pub steps: Arc<[NewStep]>,
}

impl Duties {
    /// The obligations that this opens.
    pub fn children(&self) -> u32 {
        let inserted = self.inserts.iter().filter(|row| row.begins.is_open()).count();
        u32::try_from(self.activates.len() + inserted).expect("items are limited")
    }
}

/// The first attempt of a place in a scope that is being opened.
#[derive(Clone, Debug)]
pub struct NewRow {
    /// Where.
    pub place: Place,
    /// JSON text of the item of its branch.
    pub item: Option<String>,
    /// Where it waits until it may start, under the limit of its step.
    pub gate: Option<String>,
    /// How it begins.
    pub begins: Begins,
    /// Higher goes first.
    pub priority: i32,
    /// From its activation to the time it is due.
    pub delay_ms: Millis,
}

/// What Steps 1 to 3 write, for one state of the job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FinishPlan {
    /// The step's state.
    pub step_to: StepState,
    /// The attempt's ledger, if the message does not close the job.
    pub ledger: ActivityLedger,
    /// The attempt's ledger, if it does.
    pub ledger_closing: ActivityLedger,
    /// The message's ledger, if it does not close the job.
    pub guid: GuidLedger,
    /// The message's ledger, if it does.
    pub guid_closing: GuidLedger,
    /// What follows.
    pub follows: FollowWrite,
    /// What every step that still waits becomes, if the job is being cancelled.
    pub waiting_to: Option<StepState>,
    /// The job's state if it closes; if it does not, it stays where the statement finds it.
    pub job_closed: JobState,
    /// What the event row says of the step and of an open job. If the job closes, the statement adds from
    /// which state.
    pub changes: String,
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FollowWrite {
    /// The next step is activated.
    NextStep,
    /// The duties of a node of a graph.
    Duty,
    /// Another attempt is activated.
    NextAttempt {
        /// After this wait.
        delay_ms: Millis,
        /// Lost engines since one of the attempts got ahead.
        losses: u32,
        /// Those before.
        excused: u32,
    },
    /// Nothing.
    Nothing,
}

/// What became of Steps 1 to 3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishOutcome {
    /// Committed.
    Done {
        /// The job's state now.
        job: JobState,
        /// The job's version now.
        job_version: u64,
        /// Whether the next step was entered for this engine.
        entered_next: bool,
    },
    /// The message has done it before, or the row has moved on; nothing was written.
    Gone,
}

/// What a decision under the rows' locks makes of a job and its current attempt.
#[derive(Clone, Debug)]
pub struct Amendment {
    /// The job's state afterwards.
    pub job_to: JobState,
    /// How the job will end, once that is certain.
    pub verdict: Option<JobState>,
    /// The attempt afterwards; its version is the store's business. If nothing about it changes, its
    /// row is not written and keeps its version: a cancel must not fence off the engine that runs it.
    pub attempt: AttemptRow,
    /// What becomes of the attempt's timer.
    pub timer: Timer,
    /// JSON text of what the attempt produced.
    pub output: Option<String>,
    /// Why it failed.
    pub error: Option<AttemptError>,
    /// What the event row says; nothing is written if it is empty.
    pub changes: String,
}

impl Amendment {
    /// Whether the attempt's row, as it was read, is to be written at all.
    pub fn writes_attempt(&self, before: &AttemptRow) -> bool {
        self.attempt != *before
            || self.timer != Timer::Keep
            || self.output.is_some()
            || self.error.is_some()
    }
}

/// What becomes of an attempt's timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timer {
    /// As it was.
    Keep,
    /// None any more.
    Clear,
    /// At this time.
    At(Millis),
    /// None any more: any engine may claim the activation now, to end it, unless one has it already.
    Ready,
}

/// A decision that is made under the rows' locks: from the rows and the store's time to a change, or to
/// none, or to a refusal. It may run more than once, if a transaction has to be repeated.
pub type Decide<T> =
    Box<dyn FnMut(&Held, Millis) -> Result<(Option<Amendment>, T), Refusal> + Send>;

/// Why a primitive failed as a whole.
#[derive(Debug)]
pub enum StoreError {
    /// The store cannot be reached or is busy; the outcome may be unknown. Guards make a repeat safe.
    Unavailable(String),
    /// This engine was declared dead: it must stop, none of its writes counts any more.
    Fenced,
    /// A constraint or an undecodable row: one element of the slice is poison.
    Poison(String),
    /// A structured refusal.
    Refused(Refusal),
}

impl std::fmt::Display for StoreError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unavailable(reason) => write!(f, "the store is unavailable: {reason}"),
            Self::Fenced => f.write_str("this engine was declared dead and is fenced off"),
            Self::Poison(reason) => write!(f, "the store refused a row: {reason}"),
            Self::Refused(refusal) => refusal.fmt(f),
        }
    }
}

impl std::error::Error for StoreError {}

impl From<Refusal> for StoreError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// What a caller outside of the engine is told.
impl From<StoreError> for Refusal {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refusal) => refusal,
            StoreError::Fenced => Self::new(Code::EngineFenced),
            StoreError::Unavailable(reason) | StoreError::Poison(reason) => {
                Self::new(Code::StoreUnavailable).with("reason", reason)
            }
        }
    }
}

/// The answer of a primitive.
pub type Answer<T> = Result<T, StoreError>;

/// Where jobs are kept.
pub trait Store: Upkeep + Batches + Signals + Gates {
    /// What a transactional handler hands over: a closure over what this store's transaction is. It may
    /// run more than once, if a transaction has to be repeated; at most one of those runs is committed.
    type Work: Clone + Send + Sync + 'static;

    /// Whether this process alone can write, so that every other engine it knows of is dead.
    fn is_exclusive(&self) -> bool {
        false
    }

    /// Calls `hint` when somebody else may have left work, and once when it begins to listen, until it cannot
    /// tell any more. A store that cannot tell at all never calls it.
    fn listen(&self, hint: Hint) -> impl Future<Output = StoreError> + Send {
        drop(hint);
        std::future::pending()
    }

    /// A new life of an engine.
    fn join(&self, name: &str) -> impl Future<Output = Answer<EngineNo>> + Send;

    /// A sign of life, and a look at what others show: who has shown no such sign for `silent_ms`, if that is
    /// asked for.
    fn beat(
        &self,
        engine: EngineNo,
        silent_ms: Option<Millis>,
    ) -> impl Future<Output = Answer<Signs>> + Send;

    /// Declares an engine dead and takes over what it held. From here on none of its writes counts.
    /// Activations are free again; what it ran, and messages it had not finished, are returned.
    fn take_over(
        &self,
        dead: EngineNo,
        heir: EngineNo,
    ) -> impl Future<Output = Answer<Vec<Held>>> + Send;

    /// Looks at attempts whose time has come, the oldest first. Activations become claimable at once;
    /// what else is due is returned for a decision.
    fn due(&self, engine: EngineNo, limit: u32) -> impl Future<Output = Answer<Due>> + Send;

    /// Keeps a protocol under its id. The same content again is a no-op, other content is refused.
    fn put_protocol(
        &self,
        protocol_id: &str,
        definition: &str,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// The definition of a protocol.
    fn protocol(&self, protocol_id: &str) -> impl Future<Output = Answer<Option<String>>> + Send;

    /// The definitions of all protocols, the newest first.
    fn protocols(&self) -> impl Future<Output = Answer<Vec<String>>> + Send;

    /// The store's time.
    fn now(&self) -> impl Future<Output = Answer<Millis>> + Send;

    /// The last act of an engine that stops: it is dead, and what it still holds can be taken over at
    /// once.
    fn leave(&self, engine: EngineNo) -> impl Future<Output = Answer<()>> + Send;

    /// Creates jobs; a known one is answered, not created.
    fn submit(
        &self,
        engine: EngineNo,
        jobs: Vec<NewJob>,
    ) -> impl Future<Output = Answer<Vec<Result<Submitted, Refusal>>>> + Send;

    /// Takes due activations, the most urgent first, and enters their Leg1. What stands at a gate is not
    /// among them.
    fn claim(
        &self,
        engine: EngineNo,
        wishes: Vec<Wish>,
    ) -> impl Future<Output = Answer<Vec<Held>>> + Send;

    /// The work of Leg1.
    fn dispatch(
        &self,
        engine: EngineNo,
        writes: Vec<DispatchWrite>,
    ) -> impl Future<Output = Answer<Vec<DispatchOutcome>>> + Send;

    /// What was handed out under these claims and is still under its lease, with the claim.
    fn claimed(
        &self,
        claim_ids: Vec<String>,
    ) -> impl Future<Output = Answer<Vec<(String, Held)>>> + Send;

    /// The attempts that callbacks are answered from: at each place the newest that has a lease, or the
    /// one that waits for it.
    fn find(
        &self,
        places: Vec<StepPlace>,
    ) -> impl Future<Output = Answer<Vec<Option<Held>>>> + Send;

    /// Attempts that workers outside hold move along.
    fn renew(
        &self,
        engine: EngineNo,
        writes: Vec<RenewWrite>,
    ) -> impl Future<Output = Answer<Vec<RenewOutcome>>> + Send;

    /// Keeps a record of callbacks that changed nothing.
    fn record_stale(
        &self,
        engine: EngineNo,
        callbacks: Vec<StaleCallback>,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Gives activations that this engine has claimed and cannot use back to the queue. Each is named with
    /// its version.
    fn release(
        &self,
        engine: EngineNo,
        activations: Vec<(AttemptKey, u64)>,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Takes directives of these services whose time to be published has come from the outbox, for this
    /// engine to publish.
    fn unpublished(
        &self,
        engine: EngineNo,
        services: Vec<String>,
        limit: u32,
    ) -> impl Future<Output = Answer<Vec<Held>>> + Send;

    /// Everything that this engine holds. It reads all attempts, and is for when an answer was lost.
    fn held_by(&self, engine: EngineNo) -> impl Future<Output = Answer<Vec<Held>>> + Send;

    /// Messages that end attempts enter Leg2.
    fn end(
        &self,
        engine: EngineNo,
        writes: Vec<EndWrite>,
    ) -> impl Future<Output = Answer<Vec<EndOutcome>>> + Send;

    /// Stores a message as [`Self::end`] does, and runs `work` in the same transaction, once the row is
    /// locked and the guard has held. A repeat that is recognised does not run it again. After `limit` the
    /// work is ended and counts as failed.
    fn end_with(
        &self,
        engine: EngineNo,
        write: EndWrite,
        work: Self::Work,
        limit: Duration,
    ) -> impl Future<Output = Answer<Worked>> + Send;

    /// Commits a run of outcomes as [`commit_batch`](Batches::commit_batch) does, and runs `work` in the same
    /// transaction, once the guard has held. A repeat that is recognised does not run it again.
    fn commit_batch_with(
        &self,
        engine: EngineNo,
        write: BatchWrite,
        work: Self::Work,
        limit: Duration,
    ) -> impl Future<Output = Answer<BatchWorked>> + Send;

    /// Renews leases of attempts that this engine runs and keeps what they say of their progress. One that
    /// is over, or another's, is left alone.
    fn pulse(
        &self,
        engine: EngineNo,
        pulses: Vec<Pulse>,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Which of these jobs are being cancelled.
    fn cancelling(&self, jobs: Vec<JobId>) -> impl Future<Output = Answer<Vec<JobId>>> + Send;

    /// Steps 1 to 3.
    fn finish(
        &self,
        engine: EngineNo,
        writes: Vec<FinishWrite>,
    ) -> impl Future<Output = Answer<Vec<FinishOutcome>>> + Send;

    /// Envelopes that users have written inside of their own transactions and that no engine has taken,
    /// the oldest first.
    fn inbox_waiting(&self, limit: u32) -> impl Future<Output = Answer<Vec<Waiting>>> + Send;

    /// Creates the jobs of envelopes from the inbox and marks their rows, or notes why there is none, in one
    /// transaction. What somebody else has taken is left alone. Says how many this call took.
    fn take_in(
        &self,
        engine: EngineNo,
        entries: Vec<TakeIn>,
    ) -> impl Future<Output = Answer<usize>> + Send;

    /// Rows of the inbox, the newest first.
    fn inbox(&self, filter: InboxFilter) -> impl Future<Output = Answer<Vec<InboxView>>> + Send;

    /// Decides about a job and the newest attempt of its current step (or at the place named) under
    /// their locks, and writes what was decided in the same transaction. If that enters a message,
    /// `engine` owns it. In a graph nobody is current: without a place it is an open obligation, one that
    /// waits if there is one. `None` if there is no such job.
    fn amend<T: Send + 'static>(
        &self,
        engine: EngineNo,
        job_id: JobId,
        place: Option<Place>,
        decide: Decide<T>,
    ) -> impl Future<Output = Answer<Option<Result<T, Refusal>>>> + Send;

    /// The children of a job, or of the step at a place of it, that nobody has asked to stop yet.
    fn children(
        &self,
        job_id: JobId,
        place: Option<Place>,
    ) -> impl Future<Output = Answer<Vec<JobId>>> + Send;

    /// How activities have ended: of each place its newest attempt if that is over, in the order asked for.
    /// A place that has no row of its turn is answered from the last turn before it.
    fn ends(
        &self,
        places: Vec<(JobId, Place)>,
    ) -> impl Future<Output = Answer<Vec<Option<Ended>>>> + Send;

    /// One job.
    fn job(&self, job_id: JobId) -> impl Future<Output = Answer<Option<JobView>>> + Send;

    /// All attempts of a job, in the order of their keys.
    fn attempts(&self, job_id: JobId) -> impl Future<Output = Answer<Vec<AttemptView>>> + Send;

    /// The history of a job.
    fn events(&self, job_id: JobId) -> impl Future<Output = Answer<Vec<EventView>>> + Send;

    /// The events of all jobs after a place in the feed, at most `limit` of them. Whoever goes on after
    /// the last one misses nothing and sees nothing twice.
    fn feed(
        &self,
        after: Cursor,
        limit: u32,
    ) -> impl Future<Output = Answer<Vec<FeedEvent>>> + Send;

    /// Jobs, the newest first.
    fn jobs(&self, filter: JobFilter) -> impl Future<Output = Answer<Vec<JobView>>> + Send;

    /// How many jobs are open.
    fn open_jobs(&self) -> impl Future<Output = Answer<u64>> + Send;

    /// Every invariant, in one snapshot.
    fn audit(&self) -> impl Future<Output = Answer<Vec<Check>>> + Send;
}
