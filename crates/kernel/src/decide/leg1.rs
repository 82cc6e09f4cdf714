//! Leg1: an activation becomes a directive, and the directive gets out.
//!
//! Entry commits on its own. The work of Leg1 (fence, outbox row, states) commits with digit 4.

use super::leg2::{self, Entered};
use super::rows::{AttemptRow, EndingKind, JobRow, NewLease, Terms, expect_version};
use crate::error::{Code, Refusal};
use crate::ledger::ActivityLedger;
use crate::machine::{Change, State};
use crate::machines::{JobState, JobTrigger, OutboxState, OutboxTrigger, StepState, StepTrigger};
use crate::retry::Millis;

/// What a claimed activation must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// Entered: do the work of Leg1.
    Work(ActivityLedger),
    /// A replay; Leg1 is done. Entered and acknowledged, nothing else.
    Replay(ActivityLedger),
}

/// A claimed activation enters Leg1. At the ceiling the caller ends the step with [`fail`]; a replay
/// has nothing left to fail, so there it is acknowledged without being counted.
#[inline]
pub fn enter(attempt: &AttemptRow) -> Result<Entry, Refusal> {
    let entered = attempt.ledger.enter_leg1();
    if attempt.ledger.leg1_complete() {
        return Ok(Entry::Replay(entered.unwrap_or(attempt.ledger)));
    }
    entered.map(Entry::Work)
}

/// The work of Leg1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg1 {
    /// Write the directive.
    Dispatch(Dispatch),
    /// The job is ending: no directive; this `cancel` message ends the attempt.
    Cancelled(Entered),
    /// The step can never run: the directive is written and closed, and a message ends the attempt.
    Failed(Leg1Failure),
}

/// A directive is written: fence, outbox row and states, in one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dispatch {
    /// QUEUED > DISPATCHING, for the job's first directive.
    pub job: Option<Change<JobState>>,
    /// PENDING or FAILED_RETRY > DISPATCHING.
    pub step: Change<StepState>,
    /// The new fence's lease.
    pub lease: NewLease,
    /// With digit 4.
    pub ledger: ActivityLedger,
    /// The state the outbox row is born with.
    pub outbox: OutboxState,
}

/// Does the work of Leg1 for an attempt that has entered.
#[inline]
pub fn dispatch(job: &JobRow, attempt: &AttemptRow, lease: NewLease) -> Result<Leg1, Refusal> {
    job.expect_current(attempt)?;
    // Only an attempt that waits for its directive: one that has it ends by its own message.
    let step = attempt.state.on(dispatch_trigger(attempt))?;
    let ledger = attempt.ledger.complete_leg1()?;
    if job.is_ending() {
        let done = AttemptRow { ledger, ..*attempt };
        return leg2::enter(&done, EndingKind::Cancel, None).map(Leg1::Cancelled);
    }
    let outbox = OutboxState::machine().initial;
    Ok(Leg1::Dispatch(Dispatch { job: first_dispatch(job)?, step, lease, ledger, outbox }))
}

/// A failure that Leg1 found, walked through legal states in one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg1Failure {
    /// The directive that is written and never published.
    pub dispatch: Dispatch,
    /// PENDING > FAILED_FINAL, with the code as its reason.
    pub outbox: Change<OutboxState>,
    /// The message that ends the attempt.
    pub entered: Entered,
}

/// Ends an attempt whose Leg1 can never succeed: a ceiling, an expression, a schema. At the ceiling of
/// entries the ledger is taken as it is, since no further entry fits. A cancel comes before a failure.
pub fn fail(
    job: &JobRow,
    attempt: &AttemptRow,
    lease: NewLease,
    code: Code,
) -> Result<Leg1, Refusal> {
    let dispatch = match dispatch(job, attempt, lease)? {
        Leg1::Dispatch(dispatch) => dispatch,
        other @ (Leg1::Cancelled(_) | Leg1::Failed(_)) => return Ok(other),
    };
    let outbox = dispatch.outbox.on(OutboxTrigger::Leg1Failed)?;
    let done = AttemptRow { ledger: dispatch.ledger, ..*attempt };
    let entered = leg2::enter(&done, EndingKind::Leg1Failed(code), None)?;
    Ok(Leg1::Failed(Leg1Failure { dispatch, outbox, entered }))
}

/// A step whose condition is false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Skip {
    /// The job is ending: this `cancel` message ends the attempt.
    Cancelled(Entered),
    /// No directive; this `skip` message ends the attempt.
    Skipped {
        /// QUEUED > DISPATCHING > IN_PROGRESS, if nobody has taken the job up before: it is under way now.
        job: [Option<Change<JobState>>; 2],
        /// The message.
        entered: Entered,
    },
}

/// Leg1 finds the step's condition false. Only a first attempt asks for it: a retry has been let in.
pub fn skip(job: &JobRow, attempt: &AttemptRow) -> Result<Skip, Refusal> {
    job.expect_current(attempt)?;
    // Asked of the table now: what has begun cannot be skipped.
    let _ = attempt.state.on(StepTrigger::ConditionFalse)?;
    let done = AttemptRow { ledger: attempt.ledger.complete_leg1()?, ..*attempt };
    if job.is_ending() {
        return leg2::enter(&done, EndingKind::Cancel, None).map(Skip::Cancelled);
    }
    let entered = leg2::enter(&done, EndingKind::Skip, None)?;
    let job = match job.state {
        JobState::Queued => {
            let taken_up = job.state.on(JobTrigger::FirstDispatch)?;
            [Some(taken_up), Some(taken_up.to().on(JobTrigger::FirstAck)?)]
        }
        JobState::Dispatching
        | JobState::InProgress
        | JobState::Cancelling
        | JobState::Succeeded
        | JobState::FailedFinal
        | JobState::Cancelled => [None, None],
    };
    Ok(Skip::Skipped { job, entered })
}

fn first_dispatch(job: &JobRow) -> Result<Option<Change<JobState>>, Refusal> {
    match job.state {
        JobState::Queued => job.state.on(JobTrigger::FirstDispatch).map(Some),
        // A later step, or another attempt of the first one.
        JobState::Dispatching | JobState::InProgress | JobState::Cancelling => Ok(None),
        JobState::Succeeded | JobState::FailedFinal | JobState::Cancelled => {
            unreachable!("a closed job has no current step")
        }
    }
}

fn dispatch_trigger(attempt: &AttemptRow) -> StepTrigger {
    if attempt.attempt_no == 1 { StepTrigger::OutboxCreated } else { StepTrigger::RetryDispatch }
}

/// What a publisher must write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Publish {
    /// The directive is out.
    Sent {
        /// PENDING > SENT.
        outbox: Change<OutboxState>,
        /// DISPATCHING > AWAITING_ACK.
        step: Change<StepState>,
        /// When the ACK is due.
        ack_deadline: Millis,
    },
    /// Try again then.
    Again {
        /// Failed tries, this one included.
        publish_attempts: u32,
        /// Not before.
        not_before: Millis,
    },
    /// It will never get out; this message ends the attempt.
    Failed {
        /// PENDING > FAILED_FINAL.
        outbox: Change<OutboxState>,
        /// The `publish failed` message.
        entered: Entered,
    },
    /// The step has moved on: close the row, publish nothing.
    Superseded(Change<OutboxState>),
}

/// The transport took the directive.
#[inline]
pub fn published(
    attempt: &AttemptRow,
    expected_version: u64,
    terms: Terms<'_>,
) -> Result<Publish, Refusal> {
    let outbox = open_outbox(attempt, expected_version)?;
    Ok(Publish::Sent {
        outbox: outbox.on(OutboxTrigger::Published)?,
        step: attempt.state.on(StepTrigger::OutboxSent)?,
        ack_deadline: terms.now + terms.policy.ack_timeout_ms,
    })
}

/// The transport refused the directive.
pub fn publish_failed(
    attempt: &AttemptRow,
    expected_version: u64,
    terms: Terms<'_>,
) -> Result<Publish, Refusal> {
    // Asked of the table even if the row stays PENDING: a closed row takes no further failures.
    let outbox = open_outbox(attempt, expected_version)?.on(OutboxTrigger::PublishFailedLast)?;
    let publish_attempts = attempt.publish_attempts + 1;
    if publish_attempts < terms.policy.max_publish_attempts {
        let not_before = terms.now + terms.policy.dispatch.after(publish_attempts);
        return Ok(Publish::Again { publish_attempts, not_before });
    }
    let entered = leg2::enter(attempt, EndingKind::PublishFailed, None)?;
    Ok(Publish::Failed { outbox, entered })
}

/// What to do with a row that waits to be published while `newest` is the step's newest attempt:
/// nothing if it is that attempt, or if it is published or closed already.
pub fn superseded(row: &AttemptRow, newest: &AttemptRow) -> Result<Option<Publish>, Refusal> {
    match row.outbox {
        Some(outbox) if row.attempt_no != newest.attempt_no && !outbox.is_terminal() => {
            outbox.on(OutboxTrigger::Superseded).map(Publish::Superseded).map(Some)
        }
        Some(_) | None => Ok(None),
    }
}

fn open_outbox(attempt: &AttemptRow, expected_version: u64) -> Result<OutboxState, Refusal> {
    expect_version(Some(expected_version), attempt.version)?;
    attempt.outbox.ok_or_else(|| attempt.not_yet())
}
