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
        (StepState::Dispatching, Some(outbox)) => {
            let (outbox, entered) = close(attempt, outbox)?;
            Ok(Begin::CloseUnpublished { outbox, entered })
        }
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

/// A publisher has a directive that is not out, or has it back: if its job is ending it is never published, and a
/// `cancel` message ends its attempt.
pub fn close_unpublished(
    job: &JobRow,
    attempt: &AttemptRow,
) -> Result<Option<(Change<OutboxState>, Entered)>, Refusal> {
    let is_unsent = attempt.state == StepState::Dispatching && attempt.ending.is_none();
    let outbox = attempt.outbox.filter(|_| is_unsent && job.is_ending());
    outbox.map(|outbox| close(attempt, outbox)).transpose()
}

fn close(
    attempt: &AttemptRow,
    outbox: OutboxState,
) -> Result<(Change<OutboxState>, Entered), Refusal> {
    let closed = outbox.on(OutboxTrigger::Cancelled)?;
    Ok((closed, enter(attempt, EndingKind::Cancel, None)?))
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

/// What becomes of a step of a graph that nobody has begun, and of its directive if it has one, when Step 2 closes
/// what is parked. A directive that is not published has not begun as far as anybody knows: the fence turns away
/// whoever got it all the same.
pub fn close_unbegun(step: StepState) -> Option<(Change<StepState>, Option<Change<OutboxState>>)> {
    if step != StepState::Dispatching {
        return cancel_waiting(step).map(|change| (change, None));
    }
    let unsent = OutboxState::machine().initial;
    let change = step.on(StepTrigger::CancelDrained).expect("the table cancels what is not out");
    let outbox = unsent.on(OutboxTrigger::Cancelled).expect("the table closes what is not out");
    Some((change, Some(outbox)))
}
