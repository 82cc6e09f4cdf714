//! The activity ledger: one per attempt of a step.

use std::fmt;

use super::digits::{
    CHILDREN_SPAWNED, COMPLETION_DONE, COUNTER, DIGIT_4, LEDGER_MAX, TRILLION, WORK_DONE, digit,
    impossible, parse, refuse_any,
};
use crate::error::{Code, Refusal};

/// How often Leg1 may be entered.
pub const LEG1_MAX: u64 = 999;
/// How often Leg2 may be entered.
pub const LEG2_MAX: u64 = COUNTER - 1;

/// What an attempt has done, in fifteen digits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ActivityLedger(u64);

impl ActivityLedger {
    /// An attempt that nobody has touched.
    pub const FRESH: Self = Self(0);

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
                (marker(DIGIT_4) > 1, "digit 4, Leg1 done, is above 1"),
                (marker(WORK_DONE) > 1, "digit 5, work done, is above 1"),
                (marker(CHILDREN_SPAWNED) > 1, "digit 6, children spawned, is above 1"),
                (marker(COMPLETION_DONE) > 1, "digit 7, completion tasks done, is above 1"),
                (
                    this.leg1_complete() && this.leg1_entries() == 0,
                    "Leg1 is done but was never entered",
                ),
                (
                    this.leg2_entries() > 0 && !this.leg1_complete(),
                    "Leg2 was entered before Leg1 was done",
                ),
                (
                    this.work_done() && this.leg2_entries() == 0,
                    "the work of Leg2 is done but Leg2 was never entered",
                ),
                (
                    this.children_spawned() && !this.work_done(),
                    "children were spawned before the work was done",
                ),
                (
                    this.completion_tasks_done() && !this.children_spawned(),
                    "completion tasks are done before children were spawned",
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

    /// How often Leg1 was entered.
    #[inline]
    pub fn leg1_entries(self) -> u64 {
        self.0 / TRILLION
    }

    /// Whether the work of Leg1 is committed.
    #[inline]
    pub fn leg1_complete(self) -> bool {
        digit(self.0, DIGIT_4) == 1
    }

    /// Whether a message's work is committed.
    pub fn work_done(self) -> bool {
        digit(self.0, WORK_DONE) == 1
    }

    /// Whether a message's children are committed.
    pub fn children_spawned(self) -> bool {
        digit(self.0, CHILDREN_SPAWNED) == 1
    }

    /// Whether the job's completion tasks were committed by this attempt.
    pub fn completion_tasks_done(self) -> bool {
        digit(self.0, COMPLETION_DONE) == 1
    }

    /// How often Leg2 was entered.
    #[inline]
    pub fn leg2_entries(self) -> u64 {
        self.0 % COUNTER
    }

    /// The index of the latest Leg2 entry, `None` before the first.
    pub fn dimension(self) -> Option<u64> {
        self.leg2_entries().checked_sub(1)
    }

    /// Leg1 is entered once more. Commits on its own, before any work.
    #[inline]
    pub fn enter_leg1(self) -> Result<Self, Refusal> {
        if self.leg1_entries() == LEG1_MAX {
            return Err(Refusal::new(Code::Leg1AttemptsExhausted).with("ledger", self.to_string()));
        }
        Ok(Self(self.0 + TRILLION))
    }

    /// The work of Leg1 is done. Commits with that work. Set once.
    #[inline]
    pub fn complete_leg1(self) -> Result<Self, Refusal> {
        self.mark(DIGIT_4, self.leg1_entries() > 0, "Leg1 was never entered")
    }

    /// Leg2 is entered once more.
    #[inline]
    pub fn enter_leg2(self) -> Result<Self, Refusal> {
        if !self.leg1_complete() {
            return Err(Refusal::new(Code::Leg1Incomplete).with("ledger", self.to_string()));
        }
        if self.leg2_entries() == LEG2_MAX {
            return Err(Refusal::new(Code::Leg2EntriesExhausted).with("ledger", self.to_string()));
        }
        Ok(Self(self.0 + 1))
    }

    /// The Leg2 entries of the turns before this one, for the activity that closes a turn of a cycle: its
    /// message is the next entry of the loop, so that ordinals, and dimensions, rise from turn to turn
    /// whatever became of single attempts. Once, when Leg1 is done and no message has entered.
    pub fn after_turns(self, turns: u32) -> Result<Self, Refusal> {
        if !self.leg1_complete() || self.leg2_entries() > 0 {
            return Err(Refusal::new(Code::StepOutOfOrder)
                .with("ledger", self.to_string())
                .with("reason", "turns are counted between Leg1 and Leg2"));
        }
        if u64::from(turns) > LEG2_MAX {
            return Err(Refusal::new(Code::Leg2EntriesExhausted).with("ledger", self.to_string()));
        }
        Ok(Self(self.0 + u64::from(turns)))
    }

    /// Step 1. Commits with its work. Set once.
    #[inline]
    pub fn complete_work(self) -> Result<Self, Refusal> {
        self.mark(WORK_DONE, self.leg2_entries() > 0, "Leg2 was never entered")
    }

    /// Step 2. Commits with the children and the semaphore. Set once.
    #[inline]
    pub fn complete_children(self) -> Result<Self, Refusal> {
        self.mark(CHILDREN_SPAWNED, self.work_done(), "the work is not done")
    }

    /// Step 3. Commits with the completion tasks. Set once.
    #[inline]
    pub fn complete_completion(self) -> Result<Self, Refusal> {
        self.mark(COMPLETION_DONE, self.children_spawned(), "children are not spawned")
    }

    #[inline]
    fn mark(self, weight: u64, ready: bool, missing: &'static str) -> Result<Self, Refusal> {
        if digit(self.0, weight) == 1 {
            return Ok(self);
        }
        if !ready {
            return Err(Refusal::new(Code::StepOutOfOrder)
                .with("ledger", self.to_string())
                .with("reason", missing));
        }
        Ok(Self(self.0 + weight))
    }

    /// What happens next to an attempt with these digits, in a sentence.
    pub fn next(self) -> &'static str {
        if self.leg1_entries() == 0 {
            "Nobody has taken it up: the next claim enters Leg1."
        } else if !self.leg1_complete() && self.leg1_entries() == LEG1_MAX {
            "Leg1 was entered 999 times without success: the next claim ends it as failed."
        } else if !self.leg1_complete() {
            "Leg1 is entered but its work is not committed: the work runs, or a replay enters again."
        } else if self.leg2_entries() == 0 {
            "The directive is committed: the message that ends the attempt will enter Leg2."
        } else if !self.work_done() {
            "Leg2 is entered but its work is not committed: Step 1 runs next."
        } else if !self.children_spawned() {
            "The outcome is committed: Step 2 spawns what follows and moves the semaphore."
        } else if !self.completion_tasks_done() {
            "This attempt is finished. If it closed the job, its message still runs Step 3."
        } else {
            "This attempt closed its job and ran the completion tasks: nothing happens any more."
        }
    }
}

impl fmt::Display for ActivityLedger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:015}", self.0)
    }
}
