//! Leg1: an activation becomes a directive, and the directive gets out.
//!
//! Entry commits on its own. The work of Leg1 (fence, outbox row, states) commits with digit 4.

use super::rows::{AttemptRow, Ending, EndingKind, JobRow, NewLease, Terms, expect_version};
use crate::error::{Code, Refusal};
use crate::ledger::{ActivityLedger, GuidLedger};
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

/// A claimed activation enters Leg1. At the ceiling the caller ends the step with [`fail`].
#[inline]
pub fn enter(attempt: &AttemptRow) -> Result<Entry, Refusal> {
    let done = attempt.ledger.leg1_complete();
    let entered = attempt.ledger.enter_leg1()?;
    Ok(if done { Entry::Replay(entered) } else { Entry::Work(entered) })
}

/// The work of Leg1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leg1 {
    /// Write the directive.
    Dispatch(Dispatch),
    /// The job is being cancelled: no directive; this message ends the attempt.
    Cancelled {
        /// With digit 4 and the message's Leg2 entry.
        ledger: ActivityLedger,
        /// The `cancel` message.
        ending: Ending,
    },
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
    expect_current(job, attempt)?;
    if job.state == JobState::Cancelling {
        let ledger = attempt.ledger.complete_leg1()?.enter_leg2()?;
        let ending =
            Ending { kind: EndingKind::Cancel, guid: GuidLedger::seeded(ledger), content: None };
        return Ok(Leg1::Cancelled { ledger, ending });
    }
    Ok(Leg1::Dispatch(Dispatch {
        job: first_dispatch(job)?,
        step: attempt.state.on(dispatch_trigger(attempt))?,
        lease,
        ledger: attempt.ledger.complete_leg1()?,
        outbox: OutboxState::machine().initial,
    }))
}

/// A failure that Leg1 found, walked through legal states in one commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Leg1Failure {
    /// The directive that is written and never published.
    pub dispatch: Dispatch,
    /// PENDING > FAILED_FINAL, with the code as its reason.
    pub outbox: Change<OutboxState>,
    /// With digit 4 and the message's Leg2 entry.
    pub ledger: ActivityLedger,
    /// The message that ends the attempt.
    pub ending: Ending,
}

/// Ends an attempt whose Leg1 can never succeed: a ceiling, an expression, a schema. At the ceiling of
/// entries the ledger is taken as it is, since no further entry fits.
pub fn fail(
    job: &JobRow,
    attempt: &AttemptRow,
    lease: NewLease,
    code: Code,
) -> Result<Leg1Failure, Refusal> {
    expect_current(job, attempt)?;
    let ledger = attempt.ledger.complete_leg1()?;
    let dispatch = Dispatch {
        job: first_dispatch(job)?,
        step: attempt.state.on(dispatch_trigger(attempt))?,
        lease,
        ledger,
        outbox: OutboxState::machine().initial,
    };
    let ledger = ledger.enter_leg2()?;
    let kind = EndingKind::Leg1Failed(code);
    let ending = Ending { kind, guid: GuidLedger::seeded(ledger), content: None };
    let outbox = dispatch.outbox.on(OutboxTrigger::Leg1Failed)?;
    Ok(Leg1Failure { dispatch, outbox, ledger, ending })
}

/// The step named must be the one whose turn it is; a closed job has none.
fn expect_current(job: &JobRow, attempt: &AttemptRow) -> Result<(), Refusal> {
    if attempt.step_index == job.current_step && !job.state.is_terminal() {
        return Ok(());
    }
    Err(Refusal::new(Code::StepNotCurrent)
        .with("step_index", attempt.step_index)
        .with("current_step_index", job.current_step)
        .with("job_state", job.state.name()))
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
        /// With the message's Leg2 entry.
        ledger: ActivityLedger,
        /// The `publish failed` message.
        ending: Ending,
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
    let outbox = open_outbox(attempt, expected_version)?;
    let publish_attempts = attempt.publish_attempts + 1;
    if publish_attempts < terms.policy.max_publish_attempts {
        let not_before = terms.now + terms.policy.dispatch.after(publish_attempts);
        return Ok(Publish::Again { publish_attempts, not_before });
    }
    let ledger = attempt.ledger.enter_leg2()?;
    let kind = EndingKind::PublishFailed;
    let ending = Ending { kind, guid: GuidLedger::seeded(ledger), content: None };
    Ok(Publish::Failed { outbox: outbox.on(OutboxTrigger::PublishFailedLast)?, ledger, ending })
}

/// A row that waits to be published while `newest`, a later attempt of its step, exists already.
pub fn superseded(row: &AttemptRow, newest: &AttemptRow) -> Result<Option<Publish>, Refusal> {
    let is_newest = row.attempt_no == newest.attempt_no;
    match row.outbox {
        Some(outbox) if !is_newest => {
            outbox.on(OutboxTrigger::Superseded).map(Publish::Superseded).map(Some)
        }
        Some(_) | None => Ok(None),
    }
}

fn open_outbox(attempt: &AttemptRow, expected_version: u64) -> Result<OutboxState, Refusal> {
    expect_version(Some(expected_version), attempt.version)?;
    attempt.outbox.ok_or_else(|| attempt.not_yet())
}
