//! What is handed to a store to be written, decided by the kernel, and what became of it. Each write names the version
//! that its row must have, and says whether the outcome of this very write was lost before.

use std::sync::Arc;

use sprag_kernel::decide::rows::{AttemptRow, Ending, LeaseId};
use sprag_kernel::retry::Millis;
use sprag_kernel::{ActivityLedger, GuidLedger, JobState, OutboxState, Refusal, StepState};

use crate::held::{AttemptError, Ended, Held};
use crate::ids::{AttemptKey, JobId, Place};
use crate::new_job::{Begins, NewJob, NewStep};

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
    /// How large that may be.
    pub max_bytes: usize,
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
    /// How large they may be as an output of the parent.
    pub max_bytes: usize,
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
    /// And of their directives, of which none is published.
    pub closes_outbox_to: OutboxState,
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
