//! The GUID ledger: one per message that ends an attempt. It alone decides what a redelivered
//! message still has to do.

use std::fmt;

use super::activity::{ActivityLedger, LEG2_MAX};
use super::digits::{
    CHILDREN_SPAWNED, COMPLETION_DONE, COUNTER, DIGIT_4, LEDGER_MAX, TRILLION, WORK_DONE, digit,
    impossible, parse, refuse_any,
};
use crate::error::{Code, Refusal};

/// What a message has done, in fifteen digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuidLedger(u64);

impl GuidLedger {
    /// A message that was never delivered.
    pub const FRESH: Self = Self(0);

    /// The ledger of a message whose first delivery made this activity ledger. The ordinal is
    /// frozen: a redelivery counts on the activity, never here.
    #[inline]
    pub fn seeded(entered: ActivityLedger) -> Self {
        Self(entered.leg2_entries())
    }

    /// The ledger of a message that came when Leg2 was at its ceiling.
    pub fn at_ceiling() -> Self {
        Self(LEG2_MAX)
    }

    /// Digits from a store; refused if no legal history leads to them.
    pub fn from_stored(ledger: u64) -> Result<Self, Refusal> {
        if ledger > LEDGER_MAX {
            return Err(impossible(ledger, "more than fifteen digits"));
        }
        let this = Self(ledger);
        let marker = |weight| digit(ledger, weight);
        refuse_any(
            ledger,
            &[
                (ledger / TRILLION > 0, "digits 1 to 3 are reserved and must be 0"),
                (marker(DIGIT_4) > 1, "digit 4, closed the job, is above 1"),
                (marker(WORK_DONE) > 1, "digit 5, work done, is above 1"),
                (marker(CHILDREN_SPAWNED) > 1, "digit 6, children spawned, is above 1"),
                (marker(COMPLETION_DONE) > 1, "digit 7, completion tasks done, is above 1"),
                (
                    this.work_done() && this.ordinal() == 0,
                    "work is done but it was never delivered",
                ),
                (
                    this.children_spawned() && !this.work_done(),
                    "children were spawned before the work was done",
                ),
                (
                    this.job_closed() && !this.children_spawned(),
                    "it closed the job without spawning, which is one commit",
                ),
                (
                    this.completion_tasks_done() && !this.job_closed(),
                    "completion tasks are done by a message that did not close the job",
                ),
            ],
        )?;
        Ok(this)
    }

    /// Fifteen digits as text.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        Self::from_stored(parse(text)?)
    }

    /// The integer a store keeps.
    #[inline]
    pub fn get(self) -> u64 {
        self.0
    }

    /// Whether this message closed its job.
    #[inline]
    pub fn job_closed(self) -> bool {
        digit(self.0, DIGIT_4) == 1
    }

    /// Step 1 is committed.
    #[inline]
    pub fn work_done(self) -> bool {
        digit(self.0, WORK_DONE) == 1
    }

    /// Step 2 is committed.
    #[inline]
    pub fn children_spawned(self) -> bool {
        digit(self.0, CHILDREN_SPAWNED) == 1
    }

    /// Step 3 is committed.
    #[inline]
    pub fn completion_tasks_done(self) -> bool {
        digit(self.0, COMPLETION_DONE) == 1
    }

    /// Which Leg2 entry of its activity this message was, from 1; 0 if never delivered.
    #[inline]
    pub fn ordinal(self) -> u64 {
        self.0 % COUNTER
    }

    /// The dimension of what this message spawns.
    pub fn dimension(self) -> Option<u64> {
        self.ordinal().checked_sub(1)
    }

    /// Step 1. Set once.
    #[inline]
    pub fn complete_work(self) -> Result<Self, Refusal> {
        if self.work_done() {
            return Ok(self);
        }
        self.require(self.ordinal() > 0, "the message was never delivered")?;
        Ok(Self(self.0 + WORK_DONE))
    }

    /// Step 2, with the snapshot of whether this very commit closed the job. Set once.
    #[inline]
    pub fn complete_children(self, closed_the_job: bool) -> Result<Self, Refusal> {
        if self.children_spawned() {
            return Ok(self);
        }
        self.require(self.work_done(), "the work is not done")?;
        Ok(Self(self.0 + CHILDREN_SPAWNED + u64::from(closed_the_job) * DIGIT_4))
    }

    /// Step 3. Only the message that closed the job has one. Set once.
    #[inline]
    pub fn complete_completion(self) -> Result<Self, Refusal> {
        if self.completion_tasks_done() {
            return Ok(self);
        }
        self.require(self.children_spawned(), "children are not spawned")?;
        self.require(self.job_closed(), "the message did not close the job")?;
        Ok(Self(self.0 + COMPLETION_DONE))
    }

    /// Whether nothing is left to do and the message may be acknowledged.
    #[inline]
    pub fn is_finished(self) -> bool {
        self.children_spawned() && (self.completion_tasks_done() || !self.job_closed())
    }

    fn require(self, ready: bool, missing: &'static str) -> Result<(), Refusal> {
        if ready {
            return Ok(());
        }
        Err(Refusal::new(Code::StepOutOfOrder)
            .with("ledger", self.to_string())
            .with("reason", missing))
    }

    /// What happens next to a message with these digits, in a sentence.
    pub fn next(self) -> &'static str {
        if self.ordinal() == 0 {
            "Never delivered: its first delivery enters Leg2 and gives it an ordinal."
        } else if !self.work_done() {
            "Delivered: Step 1 commits the outcome."
        } else if !self.children_spawned() {
            "The outcome is committed: Step 2 spawns what follows and moves the semaphore."
        } else if self.is_finished() && self.job_closed() {
            "It closed the job and ran the completion tasks: a replay is acknowledged, nothing runs."
        } else if self.is_finished() {
            "It is finished and did not close the job: a replay is acknowledged, nothing runs."
        } else {
            "It closed the job: Step 3 runs the completion tasks, even if the process died in between."
        }
    }
}

impl fmt::Display for GuidLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:015}", self.0)
    }
}
