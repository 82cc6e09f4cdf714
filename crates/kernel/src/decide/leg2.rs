//! Leg2: the message that ends an attempt. It enters once, then walks three steps, each proved by a
//! digit of its GUID ledger: the outcome; what follows and the semaphore; the completion tasks.
//!
//! The GUID is looked at before the job, so a message that closed the job and died before its
//! completion tasks still runs them, although the job is closed.

use super::rows::{AttemptRow, Ending, EndingKind, JobRow, LONE_DELIVERY, Terms};
use crate::error::{Code, Refusal};
use crate::keys::Hash;
use crate::ledger::{ActivityLedger, GuidLedger, Settled};
use crate::machine::{Change, State};
use crate::machines::{JobState, JobTrigger, StepState, StepTrigger};
use crate::retry::{Millis, RetryPolicy};

/// A message has entered: it is the one that ends the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entered {
    /// The attempt's ledger after the entry.
    pub ledger: ActivityLedger,
    /// The message with its seeded GUID ledger.
    pub ending: Ending,
}

/// The first entry of a message. At the ceiling the attempt's ledger stays as it is and the message
/// ends the step for good.
#[inline]
pub fn enter(
    attempt: &AttemptRow,
    kind: EndingKind,
    content: Option<Hash>,
) -> Result<Entered, Refusal> {
    match attempt.ledger.enter_leg2() {
        Ok(ledger) => Ok(Entered {
            ledger,
            ending: Ending { kind, guid: GuidLedger::seeded(ledger), content },
        }),
        Err(refusal) if refusal.code() == Code::Leg2EntriesExhausted => {
            let guid = GuidLedger::at_ceiling();
            let kind = EndingKind::Leg2Exhausted;
            Ok(Entered { ledger: attempt.ledger, ending: Ending { kind, guid, content } })
        }
        Err(refusal) => Err(refusal),
    }
}

/// A redelivery of the message: counted on the attempt, never on the GUID.
pub fn enter_again(attempt: &AttemptRow) -> ActivityLedger {
    attempt.ledger.enter_leg2().unwrap_or(attempt.ledger)
}

/// The message passes to another engine: a redelivery, unless it is one that runs alone. That is entered when its
/// turn comes.
pub fn enter_with_takeover(attempt: &AttemptRow) -> Option<ActivityLedger> {
    let runs_alone = attempt.message_deliveries()? + 1 >= u64::from(LONE_DELIVERY);
    (!runs_alone).then(|| enter_again(attempt))
}

/// What a message does in Steps 1, 2 and 3. What it did before is absent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finish {
    /// Step 1: the outcome.
    pub step: Option<Change<StepState>>,
    /// Step 2: what follows.
    pub spawn: Option<Spawn>,
    /// Step 3: run the completion tasks.
    pub completes: bool,
    /// The attempt's ledger after all of it.
    pub ledger: ActivityLedger,
    /// The GUID ledger after all of it.
    pub guid: GuidLedger,
}

/// Step 2: children, semaphore and the job's state, in one statement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spawn {
    /// What follows this attempt.
    pub follows: Follows,
    /// The semaphore's move.
    pub settled: Settled,
    /// The job's move, if it makes one.
    pub job: Option<Change<JobState>>,
    /// Whether all steps that wait become CANCELLED, each by
    /// [`cancel_waiting`](super::cancel::cancel_waiting).
    pub cancels_waiting: bool,
    /// How the job will end, if this message makes it certain.
    pub pins: Option<JobState>,
    /// Whether every obligation that nobody has begun is closed by this message: what is parked, waits for
    /// its time, for a worker or to be published becomes CANCELLED, as by
    /// [`close_unbegun`](super::cancel::close_unbegun), and the semaphore loses one for each.
    pub closes_parked: bool,
}

/// What a node of a graph owes when it is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Duty {
    /// How many obligations it opens: rows it activates or inserts. A parked row that it counts down is
    /// one already.
    pub children: u32,
    /// Whether its failure is counted by the fan-out around it instead of failing the job.
    pub is_tolerated: bool,
}

/// What follows an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follows {
    /// The activation of the next step, due at once.
    NextStep(u32),
    /// What the node owes: its followers, a scope, a count in a parked row.
    Duty {
        /// Obligations that this opens.
        children: u32,
    },
    /// The activation of the next attempt.
    NextAttempt {
        /// Its number.
        attempt_no: u32,
        /// When it is due.
        due: Millis,
    },
    /// Nothing.
    Nothing,
}

impl Follows {
    /// N of the semaphore rule.
    pub fn children(self) -> u32 {
        match self {
            Self::NextStep(_) | Self::NextAttempt { .. } => 1,
            Self::Duty { children } => children,
            Self::Nothing => 0,
        }
    }
}

/// Walks the steps that the message has not done yet. A closed job turns away a message without
/// Step 2: it is acknowledged and nothing changes.
#[inline]
pub fn finish(job: &JobRow, attempt: &AttemptRow, terms: Terms<'_>) -> Result<Finish, Refusal> {
    walk(job, attempt, terms, |attempt, kind| spawn(job, attempt, kind, terms))
}

/// As [`finish`], for a node of a graph, of which others may run beside it.
pub fn finish_in_graph(
    job: &JobRow,
    attempt: &AttemptRow,
    terms: Terms<'_>,
    duty: Duty,
) -> Result<Finish, Refusal> {
    walk(job, attempt, terms, |attempt, kind| spawn_in_graph(job, attempt, (kind, duty), terms))
}

#[inline]
fn walk(
    job: &JobRow,
    attempt: &AttemptRow,
    terms: Terms<'_>,
    spawn: impl FnOnce(&AttemptRow, EndingKind) -> Result<Spawn, Refusal>,
) -> Result<Finish, Refusal> {
    let Some(ending) = attempt.ending else { return Err(attempt.not_yet()) };
    let mut this = Finish {
        step: None,
        spawn: None,
        completes: false,
        ledger: attempt.ledger,
        guid: ending.guid,
    };
    if job.state.is_terminal() && !this.guid.children_spawned() {
        return Ok(this);
    }
    let mut state = attempt.state;
    if !this.guid.work_done() {
        let change = state.on(outcome(job, attempt, ending.kind, terms.policy))?;
        state = change.to();
        this.step = Some(change);
        this.guid = this.guid.complete_work()?;
        this.ledger = this.ledger.complete_work()?;
    }
    if !this.guid.children_spawned() {
        let spawn = spawn(&AttemptRow { state, ..*attempt }, ending.kind)?;
        this.guid = this.guid.complete_children(spawn.settled.hit)?;
        this.ledger = this.ledger.complete_children()?;
        this.spawn = Some(spawn);
    }
    if this.guid.job_closed() && !this.guid.completion_tasks_done() {
        this.completes = true;
        this.guid = this.guid.complete_completion()?;
        this.ledger = this.ledger.complete_completion()?;
    }
    if ending.kind == EndingKind::Leg2Exhausted {
        this.ledger = attempt.ledger;
    }
    Ok(this)
}

/// Step 1: how the step moves. In CANCELLING nothing may start again, so what could be retried is
/// cancelled; a success or a final failure stays what it is. In a job that has failed elsewhere what could
/// be retried has failed for good.
fn outcome(
    job: &JobRow,
    attempt: &AttemptRow,
    kind: EndingKind,
    policy: &RetryPolicy,
) -> StepTrigger {
    let cancelling = job.state == JobState::Cancelling;
    let attempts_left = attempt.counted_attempts() < policy.max_attempts;
    let again = |left: bool, retry: StepTrigger, last: StepTrigger| match (
        cancelling,
        left && job.verdict.is_none(),
    ) {
        (true, _) => StepTrigger::CancelDrained,
        (false, true) => retry,
        (false, false) => last,
    };
    match kind {
        EndingKind::Success => StepTrigger::ResultSuccess,
        EndingKind::NonRetryable => StepTrigger::ResultNonRetryable,
        EndingKind::Leg2Exhausted => exhausted(attempt.state),
        EndingKind::Retryable => {
            again(attempts_left, StepTrigger::ResultRetryable, StepTrigger::ResultRetryableLast)
        }
        EndingKind::LeaseExpired => {
            again(attempts_left, StepTrigger::LeaseExpired, StepTrigger::LeaseExpiredLast)
        }
        EndingKind::AckTimeout => {
            again(attempts_left, StepTrigger::AckTimeout, StepTrigger::AckTimeoutLast)
        }
        EndingKind::OwnerLost => again(
            attempt.got_ahead || attempt.losses < policy.max_losses,
            StepTrigger::OwnerLost,
            StepTrigger::OwnerLostLast,
        ),
        EndingKind::PublishFailed | EndingKind::Leg1Failed(_) => StepTrigger::OutboxFailed,
        EndingKind::Cancel => StepTrigger::CancelDrained,
        EndingKind::Skip => StepTrigger::ConditionFalse,
    }
}

/// How a step fails for good from where it is, when no further entry fits.
fn exhausted(state: StepState) -> StepTrigger {
    match state {
        StepState::Dispatching => StepTrigger::OutboxFailed,
        StepState::AwaitingAck => StepTrigger::AckTimeoutLast,
        StepState::Pending
        | StepState::InProgress
        | StepState::Succeeded
        | StepState::FailedRetry
        | StepState::FailedFinal
        | StepState::Cancelled
        | StepState::Skipped => StepTrigger::ResultNonRetryable,
    }
}

/// Step 2: what follows from the attempt as Step 1 left it.
fn spawn(
    job: &JobRow,
    attempt: &AttemptRow,
    kind: EndingKind,
    terms: Terms<'_>,
) -> Result<Spawn, Refusal> {
    let is_last = attempt.step_index + 1 == job.steps;
    if job.state == JobState::Cancelling {
        let settled = job.semaphore.settle(0)?;
        let job = Some(job.state.on(JobTrigger::Drained)?);
        let follows = Follows::Nothing;
        let (cancels_waiting, closes_parked) = (true, false);
        return Ok(Spawn { follows, settled, job, cancels_waiting, pins: None, closes_parked });
    }
    let (follows, trigger) = match attempt.state {
        StepState::FailedRetry => {
            let due = terms.now + backoff(attempt, kind, terms.policy);
            (Follows::NextAttempt { attempt_no: attempt.attempt_no + 1, due }, None)
        }
        StepState::Succeeded if !is_last => {
            (Follows::NextStep(attempt.step_index + 1), Some(JobTrigger::NextStep))
        }
        StepState::Succeeded => (Follows::Nothing, Some(JobTrigger::LastStepSucceeded)),
        StepState::FailedFinal => (Follows::Nothing, Some(JobTrigger::StepFailed)),
        StepState::Pending
        | StepState::Dispatching
        | StepState::AwaitingAck
        | StepState::InProgress
        | StepState::Cancelled
        | StepState::Skipped => {
            return Err(Refusal::new(Code::StepOutOfOrder)
                .with("state", attempt.state.name())
                .with("reason", "Step 1 leaves no step in this state outside of a cancel"));
        }
    };
    let settled = job.semaphore.settle(follows.children())?;
    let job = trigger.map(|trigger| job.state.on(trigger)).transpose()?;
    let (cancels_waiting, closes_parked) = (false, false);
    Ok(Spawn { follows, settled, job, cancels_waiting, pins: None, closes_parked })
}

/// Step 2 in a graph. Once the verdict is pinned, or the job is being cancelled, nothing is spawned and
/// what nobody has begun is closed; what runs drains, and whoever reaches 0 writes the job's state.
fn spawn_in_graph(
    job: &JobRow,
    attempt: &AttemptRow,
    (kind, duty): (EndingKind, Duty),
    terms: Terms<'_>,
) -> Result<Spawn, Refusal> {
    let duties = Follows::Duty { children: duty.children };
    let (follows, pins) = match (job.is_ending(), attempt.state) {
        (true, _) => (Follows::Nothing, None),
        (false, StepState::FailedRetry) => {
            let due = terms.now + backoff(attempt, kind, terms.policy);
            (Follows::NextAttempt { attempt_no: attempt.attempt_no + 1, due }, None)
        }
        (false, StepState::Succeeded | StepState::Skipped) => (duties, None),
        (false, StepState::FailedFinal) if duty.is_tolerated => (duties, None),
        (false, StepState::FailedFinal) => (Follows::Nothing, Some(JobState::FailedFinal)),
        (
            false,
            StepState::Pending
            | StepState::Dispatching
            | StepState::AwaitingAck
            | StepState::InProgress
            | StepState::Cancelled,
        ) => {
            return Err(Refusal::new(Code::StepOutOfOrder)
                .with("state", attempt.state.name())
                .with("reason", "Step 1 leaves no step in this state outside of a cancel"));
        }
    };
    let settled = job.semaphore.settle(follows.children())?;
    let trigger = match (job.state, job.verdict.or(pins)) {
        (JobState::Cancelling, _) => JobTrigger::Drained,
        (_, Some(_)) => JobTrigger::StepFailed,
        (_, None) => JobTrigger::LastStepSucceeded,
    };
    let closing = if settled.hit { Some(job.state.on(trigger)?) } else { None };
    Ok(Spawn {
        follows,
        settled,
        job: closing,
        cancels_waiting: job.state == JobState::Cancelling,
        pins,
        closes_parked: job.is_ending() || pins.is_some(),
    })
}

/// How long the next attempt waits: by its own table after a missing ACK, at once after a lost owner.
fn backoff(attempt: &AttemptRow, kind: EndingKind, policy: &RetryPolicy) -> Millis {
    match kind {
        EndingKind::AckTimeout => policy.ack.after(attempt.counted_attempts()),
        EndingKind::OwnerLost => 0,
        EndingKind::Success
        | EndingKind::Retryable
        | EndingKind::NonRetryable
        | EndingKind::LeaseExpired
        | EndingKind::PublishFailed
        | EndingKind::Leg1Failed(_)
        | EndingKind::Leg2Exhausted
        | EndingKind::Cancel
        | EndingKind::Skip => policy.dispatch.after(attempt.counted_attempts()),
    }
}
