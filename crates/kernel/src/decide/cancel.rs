//! Cancel: from now on nothing may start; what runs may finish under its normal timers.

use super::leg2::{Entered, enter};
use super::rows::{AttemptRow, EndingKind, JobRow};
use crate::error::Refusal;
use crate::machine::{Change, State};
use crate::machines::{JobState, JobTrigger, OutboxState, OutboxTrigger, StepState, StepTrigger};

/// What a cancel does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cancel {
    /// The job is CANCELLING or over already; nothing changes.
    NoOp(JobState),
    /// The job becomes CANCELLING.
    Begin {
        /// To CANCELLING.
        job: Change<JobState>,
        /// What becomes of the current attempt.
        attempt: Begin,
    },
}

/// What a cancel does to the current attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begin {
    /// It waits for its activation: make that due now. Leg1 will find CANCELLING and end it.
    MakeDue,
    /// Its directive is written but not published: close the row and end the attempt here.
    CloseUnpublished {
        /// PENDING > FAILED_FINAL.
        outbox: Change<OutboxState>,
        /// The `cancel` message.
        entered: Entered,
    },
    /// A worker has it, or a message is ending it: wait for that.
    Wait,
}

/// Somebody asks to stop the job. `attempt` is the newest attempt of its current step; in a graph any open
/// obligation, one that waits if there is one: its end closes the others that wait.
pub fn cancel(
    job: &JobRow,
    attempt: &AttemptRow,
    expected_version: Option<u64>,
) -> Result<Cancel, Refusal> {
    if job.state == JobState::Cancelling || job.state.is_terminal() {
        return Ok(Cancel::NoOp(job.state));
    }
    job.expect_version(expected_version)?;
    let change = job.state.on(JobTrigger::CancelAsked)?;
    Ok(Cancel::Begin { job: change, attempt: begin(attempt)? })
}

fn begin(attempt: &AttemptRow) -> Result<Begin, Refusal> {
    if attempt.ending.is_some() {
        return Ok(Begin::Wait);
    }
    match (attempt.state, attempt.outbox) {
        (StepState::Pending | StepState::FailedRetry, _) => Ok(Begin::MakeDue),
        (StepState::Dispatching, Some(outbox)) => Ok(Begin::CloseUnpublished {
            outbox: outbox.on(OutboxTrigger::Cancelled)?,
            entered: enter(attempt, EndingKind::Cancel, None)?,
        }),
        (
            StepState::Dispatching
            | StepState::AwaitingAck
            | StepState::InProgress
            | StepState::Succeeded
            | StepState::FailedFinal
            | StepState::Cancelled
            | StepState::Skipped,
            _,
        ) => Ok(Begin::Wait),
    }
}

/// What becomes of a step when Step 2 says that all waiting steps are cancelled.
pub fn cancel_waiting(step: StepState) -> Option<Change<StepState>> {
    match step {
        StepState::Pending | StepState::FailedRetry => {
            Some(step.on(StepTrigger::CancelDrained).expect("the table cancels what waits"))
        }
        StepState::Dispatching
        | StepState::AwaitingAck
        | StepState::InProgress
        | StepState::Succeeded
        | StepState::FailedFinal
        | StepState::Cancelled
        | StepState::Skipped => None,
    }
}
