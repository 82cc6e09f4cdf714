//! Callbacks: what a worker says about the attempt it holds. Every one names its fence.

use super::leg2::{Entered, enter};
use super::rows::{AttemptRow, Ending, EndingKind, Fence, JobRow, Terms};
use crate::error::Refusal;
use crate::keys::Hash;
use crate::machine::{Change, State};
use crate::machines::{JobState, JobTrigger, StepState, StepTrigger};
use crate::retry::Millis;

/// The answer to an ACK.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ack {
    /// The worker has the lease.
    Accepted {
        /// DISPATCHING > IN_PROGRESS, for the job's first ACK.
        job: Option<Change<JobState>>,
        /// AWAITING_ACK > IN_PROGRESS.
        step: Change<StepState>,
        /// The lease starts now; the ACK timer is gone.
        lease_expires_at: Millis,
    },
    /// Said before; nothing changes, the lease is not extended.
    Duplicate,
}

/// A worker acknowledges a directive.
#[inline]
pub fn ack(
    job: &JobRow,
    attempt: &AttemptRow,
    fence: Fence,
    terms: Terms<'_>,
) -> Result<Ack, Refusal> {
    attempt.expect_fence(fence)?;
    if attempt.acked {
        return Ok(Ack::Duplicate);
    }
    // Step 2 of another message may have closed it, without one of its own.
    if matches!(phase(attempt), Phase::Over) {
        return Err(attempt.stale(fence));
    }
    if attempt.state == StepState::Dispatching {
        return Err(attempt.not_yet());
    }
    job.expect_current(attempt)?;
    let job = match job.state {
        JobState::Dispatching => Some(job.state.on(JobTrigger::FirstAck)?),
        // A later step, or a cancel that lets the attempt finish; a closed job has no open attempt.
        JobState::Queued
        | JobState::InProgress
        | JobState::Cancelling
        | JobState::Succeeded
        | JobState::FailedFinal
        | JobState::Cancelled => None,
    };
    let step = attempt.state.on(StepTrigger::Ack)?;
    Ok(Ack::Accepted { job, step, lease_expires_at: terms.now + terms.policy.first_lease_ms() })
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// The new end of the lease.
    pub lease_expires_at: Millis,
    /// Whether the worker should stop.
    pub cancel: bool,
}

/// A worker says that it is alive. Not a transition.
#[inline]
pub fn heartbeat(
    job: &JobRow,
    attempt: &AttemptRow,
    fence: Fence,
    terms: Terms<'_>,
) -> Result<Heartbeat, Refusal> {
    attempt.expect_fence(fence)?;
    match phase(attempt) {
        Phase::Early => Err(attempt.not_yet()),
        Phase::Over => Err(attempt.stale(fence)),
        Phase::Running => Ok(Heartbeat {
            lease_expires_at: terms.now + terms.policy.lease_ms,
            cancel: job.state == JobState::Cancelling,
        }),
    }
}

/// The answer to a RESULT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stored {
    /// Store it: it ends the attempt, and the lease is closed in the same commit.
    Accepted(Entered),
    /// Said before with the same content; nothing changes.
    Duplicate,
}

/// What a worker reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// Done.
    Succeeded,
    /// Failed; another attempt may help.
    Retryable,
    /// Failed for good.
    NonRetryable,
}

impl Report {
    /// Reads the two fields of a RESULT.
    pub fn read(status: &str, failure_class: Option<&str>) -> Result<Self, Refusal> {
        use crate::error::Code::ResultInvalid;
        match (status, failure_class) {
            ("SUCCEEDED", None) => Ok(Self::Succeeded),
            ("FAILED", Some("RETRYABLE")) => Ok(Self::Retryable),
            ("FAILED", Some("NON_RETRYABLE")) => Ok(Self::NonRetryable),
            ("SUCCEEDED" | "FAILED", _) => Err(Refusal::new(ResultInvalid)
                .with("field", "failure_class")
                .with("given", failure_class.unwrap_or("").to_owned())),
            (_, _) => Err(Refusal::new(ResultInvalid)
                .with("field", "status")
                .with("given", status.to_owned())),
        }
    }

    fn ending(self) -> EndingKind {
        match self {
            Self::Succeeded => EndingKind::Success,
            Self::Retryable => EndingKind::Retryable,
            Self::NonRetryable => EndingKind::NonRetryable,
        }
    }
}

/// A worker reports how the attempt went. `content` is the hash of all it says.
#[inline]
pub fn result(
    attempt: &AttemptRow,
    fence: Fence,
    report: Report,
    content: Hash,
) -> Result<Stored, Refusal> {
    attempt.expect_fence(fence)?;
    match attempt.ending {
        Some(Ending { content: Some(stored), .. }) if stored == content => {
            return Ok(Stored::Duplicate);
        }
        Some(_) | None => {}
    }
    match phase(attempt) {
        Phase::Early => Err(attempt.not_yet()),
        Phase::Over => Err(attempt.stale(fence)),
        Phase::Running => enter(attempt, report.ending(), Some(content)).map(Stored::Accepted),
    }
}

/// Where an attempt is, as its worker sees it.
enum Phase {
    Early,
    Running,
    Over,
}

fn phase(attempt: &AttemptRow) -> Phase {
    if attempt.ending.is_some() {
        return Phase::Over;
    }
    match attempt.state {
        StepState::Pending | StepState::Dispatching | StepState::AwaitingAck => Phase::Early,
        StepState::InProgress => Phase::Running,
        StepState::Succeeded
        | StepState::FailedRetry
        | StepState::FailedFinal
        | StepState::Cancelled
        | StepState::Skipped => Phase::Over,
    }
}
