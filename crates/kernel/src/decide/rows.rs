//! The rows that decisions look at: a job, and an attempt of one of its steps. A callback is answered from
//! the newest attempt that has a lease: while a retry waits, that is still the one before it.

use crate::error::{Code, Refusal};
use crate::keys::Hash;
use crate::ledger::{ActivityLedger, GuidLedger, Semaphore};
use crate::machine::State;
use crate::machines::{JobState, OutboxState, StepState};
use crate::retry::{Millis, RetryPolicy};

/// The time by the store's clock, and the step's rules.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// Now.
    pub now: Millis,
    /// The step's rules.
    pub policy: &'a RetryPolicy,
}

/// The id of a lease; a new one for every attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LeaseId(pub u64);

/// The lease that a directive is written with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewLease {
    /// Its id.
    pub id: LeaseId,
    /// Its end, informative until the ACK.
    pub expires_at: Millis,
}

/// What a callback must name to be heard: the attempt and its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Fence {
    /// The attempt, from 1.
    pub attempt_no: u32,
    /// Its lease.
    pub lease_id: LeaseId,
}

/// What the rules look at in a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobRow {
    /// Where the job is.
    pub state: JobState,
    /// The ETag.
    pub version: u64,
    /// Open obligations.
    pub semaphore: Semaphore,
    /// The step whose turn it is.
    pub current_step: u32,
    /// How many steps the protocol has.
    pub steps: u32,
    /// Directives written so far, over all steps.
    pub attempts_total: u32,
    /// Whether its steps are a graph: several may be open, and the semaphore alone says when it is over.
    pub is_graph: bool,
    /// How it will end, once that is certain although something still runs. Nothing starts any more.
    pub verdict: Option<JobState>,
}

/// What the rules look at in an attempt: activation, fence, outbox entry and ending message in one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AttemptRow {
    /// The step.
    pub step_index: u32,
    /// The number this attempt has or will have, from 1.
    pub attempt_no: u32,
    /// The step's state as this attempt shows it; a waiting retry is born FAILED_RETRY.
    pub state: StepState,
    /// The ETag.
    pub version: u64,
    /// Set when the directive is written.
    pub lease_id: Option<LeaseId>,
    /// What this attempt has done.
    pub ledger: ActivityLedger,
    /// The outbox entry, once the directive is written.
    pub outbox: Option<OutboxState>,
    /// Failed tries to publish it.
    pub publish_attempts: u32,
    /// Whether a worker has acknowledged.
    pub acked: bool,
    /// The ACK deadline, or after the ACK the end of the lease.
    pub deadline: Option<Millis>,
    /// How many attempts before this one lost their engine, without one among them that got ahead.
    pub losses: u32,
    /// How many lost their engine before the last of those that got ahead. They are held against nobody.
    pub excused: u32,
    /// Whether this attempt has got ahead: of what it is for, something is done that stays done if its engine is
    /// lost. Only a batch can, and whoever ends its attempt looks it up.
    pub got_ahead: bool,
    /// The message that ends the attempt, once one has entered.
    pub ending: Option<Ending>,
}

/// The message that ends an attempt. The first to enter is the only one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// What it says.
    pub kind: EndingKind,
    /// What it has done.
    pub guid: GuidLedger,
    /// The hash of a RESULT's content, to know a repeat.
    pub content: Option<Hash>,
}

/// What can end an attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum EndingKind {
    /// RESULT: done.
    Success,
    /// RESULT: failed, another attempt may help.
    Retryable,
    /// RESULT: failed for good.
    NonRetryable,
    /// Nobody acknowledged in time.
    AckTimeout,
    /// The worker fell silent.
    LeaseExpired,
    /// The engine that ran it is gone.
    OwnerLost,
    /// The directive could not be published.
    PublishFailed,
    /// Leg1 found that the step can never run.
    Leg1Failed(Code),
    /// Leg2 was entered too often.
    Leg2Exhausted,
    /// The job is cancelled, or has failed elsewhere, and the attempt never ran.
    Cancel,
    /// The step's condition is false.
    Skip,
}

impl JobRow {
    /// Refuses a caller that has read another version.
    pub fn expect_version(&self, expected: Option<u64>) -> Result<(), Refusal> {
        expect_version(expected, self.version)
    }

    /// Whether nothing may start any more: it is being cancelled, or something has failed for good.
    #[inline]
    pub fn is_ending(&self) -> bool {
        self.state == JobState::Cancelling || self.verdict.is_some()
    }

    /// Refuses a step that is not the one whose turn it is; in a closed job it is nobody's. In a graph an
    /// activation is proof enough: only Step 2 of what it waits for makes one.
    #[inline]
    pub fn expect_current(&self, attempt: &AttemptRow) -> Result<(), Refusal> {
        let is_current = self.is_graph || attempt.step_index == self.current_step;
        if is_current && !self.state.is_terminal() {
            return Ok(());
        }
        Err(Refusal::new(Code::StepNotCurrent)
            .with("step_index", attempt.step_index)
            .with("current_step_index", self.current_step)
            .with("job_state", self.state.name()))
    }
}

/// Refuses a caller that has read another version than `actual`.
pub fn expect_version(expected: Option<u64>, actual: u64) -> Result<(), Refusal> {
    match expected {
        Some(expected) if expected != actual => Err(Refusal::new(Code::JobVersionConflict)
            .with("expected", expected)
            .with("actual", actual)),
        Some(_) | None => Ok(()),
    }
}

/// From this delivery on, an attempt or a message has an engine for itself: whatever has brought down the
/// engines before, it brings down nothing but this one more.
pub const LONE_DELIVERY: u32 = 3;

impl AttemptRow {
    /// Attempt 1 of a step, as the job is born with it.
    pub fn first(step_index: u32) -> Self {
        Self {
            step_index,
            attempt_no: 1,
            state: StepState::Pending,
            version: 1,
            lease_id: None,
            ledger: ActivityLedger::FRESH,
            outbox: None,
            publish_attempts: 0,
            acked: false,
            deadline: None,
            losses: 0,
            excused: 0,
            got_ahead: false,
            ending: None,
        }
    }

    /// The attempt after this one, as a retry inserts it: same step, waiting, nothing done. What gets ahead is
    /// no poison, and comes to its end however often its engine is lost: the count begins anew.
    #[must_use]
    pub fn successor(&self) -> Self {
        let lost = matches!(self.ending, Some(Ending { kind: EndingKind::OwnerLost, .. }));
        let losses = self.losses + u32::from(lost);
        let begins_anew = lost && self.got_ahead;
        let (losses, excused) =
            if begins_anew { (0, self.excused + losses) } else { (losses, self.excused) };
        Self {
            attempt_no: self.attempt_no + 1,
            state: StepState::FailedRetry,
            losses,
            excused,
            ..Self::first(self.step_index)
        }
    }

    /// What the step shows as its attempt: 0 until the first directive is written.
    pub fn shown_attempt_no(&self) -> u32 {
        if self.lease_id.is_some() { self.attempt_no } else { self.attempt_no - 1 }
    }

    /// Attempts that count against the step's budget: a lost engine is not the step's fault.
    pub fn counted_attempts(&self) -> u32 {
        self.attempt_no - self.losses - self.excused
    }

    /// How often this work was given to an engine: those that were lost with it, and entries of Leg1.
    pub fn deliveries(&self) -> u64 {
        u64::from(self.losses) + self.ledger.leg1_entries()
    }

    /// Whether its present delivery, or that of the message that ends it, is one that runs alone.
    pub fn runs_alone(&self) -> bool {
        let deliveries = self.message_deliveries().unwrap_or_else(|| self.deliveries());
        deliveries >= u64::from(LONE_DELIVERY)
    }

    /// How often the message that ends it was given to an engine: the entry that seeded its ordinal, and
    /// those since.
    pub fn message_deliveries(&self) -> Option<u64> {
        let before = self.ending?.guid.ordinal().saturating_sub(1);
        Some(self.ledger.leg2_entries().saturating_sub(before))
    }

    /// Whether the message that ends it has been given to more engines than may be lost with a step. An attempt
    /// that never ran has no failure of its own to come to: its message is given out however often that was.
    pub fn is_worn_out(&self, policy: &RetryPolicy) -> bool {
        let ran = self.state == StepState::InProgress;
        ran && self.message_deliveries().is_some_and(|count| count > u64::from(policy.max_losses))
    }

    /// Refuses a callback that does not name this attempt's present fence.
    pub fn expect_fence(&self, fence: Fence) -> Result<(), Refusal> {
        if self.attempt_no == fence.attempt_no && self.lease_id == Some(fence.lease_id) {
            return Ok(());
        }
        Err(self.stale(fence))
    }

    #[cold]
    pub(super) fn stale(&self, fence: Fence) -> Refusal {
        Refusal::new(Code::StaleFence)
            .with("attempt_no", fence.attempt_no)
            .with("current_attempt_no", self.shown_attempt_no())
            .with("state", self.state.name())
    }

    #[cold]
    pub(super) fn not_yet(&self) -> Refusal {
        Refusal::new(Code::NotYet).with("state", self.state.name())
    }
}
