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
use std::time::Duration;

use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use crate::batch::store::{BatchWorked, BatchWrite, Batches};
use crate::gate::Gates;
use crate::hints::Hint;
use crate::ids::{AttemptKey, EngineNo, JobId, Place};
use crate::inbox::{InboxFilter, InboxView, TakeIn, Waiting};
use crate::pairs::{Beginning, Begun, Over};
use crate::schedules::Schedules;
use crate::signals::Signals;
use crate::upkeep::Upkeep;

pub use crate::endings::{ending_code, ending_kind};
pub use crate::feed::{Cursor, FeedEvent};
pub use crate::held::{AttemptError, Due, Ended, Held, Pick, Signs, Wish};
pub use crate::new_job::{Begins, JobFacts, NewJob, NewStep, Submitted};
pub use crate::renewal::{RenewOutcome, RenewWrite, Renewal, StaleCallback, StepPlace};
pub use crate::running::{Pulse, Worked};
pub use crate::views::{
    AttemptFilter, AttemptView, Check, EventView, JobFilter, JobView, Violation,
};
pub use crate::writes::{
    Amendment, ChildEnd, Decide, DispatchOutcome, DispatchWrite, Duties, EndOutcome, EndWrite,
    FinishOutcome, FinishPlan, FinishWrite, FollowWrite, GraphFinish, HandOff, NewChild, NewRow,
    Tells, Timer,
};

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
pub trait Store: Upkeep + Batches + Signals + Gates + Schedules {
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
    /// once. No beat of it counts any more.
    fn leave(&self, engine: EngineNo) -> impl Future<Output = Answer<()>> + Send;

    /// Creates jobs; a known one is answered, not created.
    fn submit(
        &self,
        engine: EngineNo,
        jobs: Vec<NewJob>,
    ) -> impl Future<Output = Answer<Vec<Result<Submitted, Refusal>>>> + Send;

    /// Creates jobs as [`Self::submit`] does, and does the work of Leg1 for those that are new, as [`Self::dispatch`]
    /// does: two commits one after the other, without the caller in between. If either fails, nobody
    /// knows of the first.
    fn submit_and_dispatch(
        &self,
        engine: EngineNo,
        beginnings: Vec<Beginning>,
    ) -> impl Future<Output = Answer<Vec<Begun>>> + Send;

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

    /// Messages enter Leg2 as with [`Self::end`], and those that have entered walk Steps 1 to 3 as with
    /// [`Self::finish`]: two commits one after the other, without the caller in between. If either fails,
    /// nobody knows of the first.
    fn end_and_finish(
        &self,
        engine: EngineNo,
        messages: Vec<(EndWrite, FinishWrite)>,
    ) -> impl Future<Output = Answer<Vec<Over>>> + Send;

    /// Envelopes that users have written inside of their own transactions and that no engine has taken,
    /// the oldest first: so many rows at the most, and about [`INBOX_SLICE_BYTES`] of text. An envelope of more than
    /// `max_bytes` stays where it is.
    ///
    /// [`INBOX_SLICE_BYTES`]: crate::inbox::INBOX_SLICE_BYTES
    fn inbox_waiting(
        &self,
        limit: u32,
        max_bytes: usize,
    ) -> impl Future<Output = Answer<Vec<Waiting>>> + Send;

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
    fn attempts(&self, job_id: JobId) -> impl Future<Output = Answer<Vec<AttemptView>>> + Send {
        self.attempts_by(job_id, AttemptFilter::default())
    }

    /// Some attempts of a job: a large one has more than anybody wants at a time.
    fn attempts_by(
        &self,
        job_id: JobId,
        filter: AttemptFilter,
    ) -> impl Future<Output = Answer<Vec<AttemptView>>> + Send;

    /// The history of a job.
    fn events(&self, job_id: JobId) -> impl Future<Output = Answer<Vec<EventView>>> + Send {
        self.events_after(job_id, 0, u32::MAX)
    }

    /// The history of a job behind an event, at most so many of them.
    fn events_after(
        &self,
        job_id: JobId,
        n: u64,
        limit: u32,
    ) -> impl Future<Output = Answer<Vec<EventView>>> + Send;

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
