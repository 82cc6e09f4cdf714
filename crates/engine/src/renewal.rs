//! What the seam knows of attempts that a worker outside holds: they are found by their place, moved along
//! by what the worker says, and live by their timer instead of an engine.

use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, JobState, StepState};

use crate::callback::Fence;
use crate::ids::{AttemptKey, JobId};

/// Where a callback says that its attempt is.
#[derive(Clone, Debug)]
pub struct StepPlace {
    /// The job.
    pub job_id: JobId,
    /// The step's name.
    pub step_id: String,
    /// The step's index, if it is known.
    pub step_index: Option<u32>,
    /// The branch.
    pub branch: u64,
    /// The turn.
    pub turn: u32,
}

impl From<&Fence> for StepPlace {
    fn from(fence: &Fence) -> Self {
        Self {
            job_id: fence.job_id,
            step_id: fence.step_id.clone(),
            step_index: fence.step_index,
            branch: fence.branch,
            turn: fence.turn,
        }
    }
}

/// What moved an attempt along, and with it the timer that it lives by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Its directive was published by this engine; the ACK is due.
    Sent,
    /// A worker acknowledged; the lease begins.
    Acked,
    /// The worker is alive; the lease begins anew.
    Alive,
}

/// An open attempt moves along.
#[derive(Clone, Debug)]
pub struct RenewWrite {
    /// Which attempt.
    pub key: AttemptKey,
    /// The version the row must have.
    pub version: u64,
    /// The lease it must have.
    pub lease_id: LeaseId,
    /// What happened.
    pub renewal: Renewal,
    /// The step's state afterwards.
    pub step_to: StepState,
    /// The job's move, if it makes one: the state it must be in, and the one afterwards.
    pub job: Option<(JobState, JobState)>,
    /// From now to the next deadline.
    pub timer_ms: Millis,
    /// No deadline is later than this, if there is a limit.
    pub ends_at: Option<Millis>,
    /// JSON text of how far the worker is.
    pub progress: Option<String>,
    /// What the event row says; nothing is told, and the job's row is not written, if it is empty.
    pub changes: String,
}

/// What became of a renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// Committed.
    Done {
        /// The version afterwards.
        version: u64,
        /// When the attempt is due now.
        deadline: Millis,
    },
    /// The row or its job has moved on; nothing was written.
    Gone,
}

/// A callback that changed nothing, for the record. A step keeps the last one of each kind and how many
/// there were, so that whoever repeats nonsense fills no table.
#[derive(Clone, Debug)]
pub struct StaleCallback {
    /// The step, and the attempt that the callback named.
    pub key: AttemptKey,
    /// The lease that it named.
    pub lease_id: LeaseId,
    /// Which callback.
    pub callback: &'static str,
    /// Why it was refused.
    pub code: Code,
}
