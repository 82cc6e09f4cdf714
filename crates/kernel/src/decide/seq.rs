//! One seq: dispatch, start, outcome, retry, reclaim, cancel, commit.
//!
//! A [`Slot`] is all that a ledger holds of a seq but its heartbeat. Every function takes the slot as
//! it is and returns the slot as it must become; the ledger writes it in one atomic exchange. A lease
//! (owner and generation) that no longer holds the slot gets [`Code::SeqStaleOwner`], which drops a
//! late result and harms nobody; a move that the table does not have is fatal to the batch.
//!
//! The moves of the hot path come in pairs: `try_start` decides and fits in registers, `start` asks it
//! and says why not. The rule stands in the first alone.

use crate::error::{Code, Refusal};
use crate::machine::State;
use crate::machines::{SeqState, SeqTrigger};
use crate::retry::{Budget, ErrorClass, Millis};

/// Who may touch a slot: an owner, and the generation of its lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The worker.
    pub owner: u16,
    /// Which of the slot's leases.
    pub generation: u32,
}

/// Owner 0 is nobody.
pub const NOBODY: u16 = 0;

/// One seq's row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot {
    /// Where the seq is.
    pub state: SeqState,
    /// Retries so far; 0 at the first dispatch.
    pub attempts: u16,
    /// The present lease; the owner is [`NOBODY`] while no one holds it.
    pub lease: Lease,
}

/// Names the seq and the time in a refusal.
#[derive(Clone, Copy, Debug)]
pub struct At {
    /// The seq.
    pub seq: u64,
    /// Wall-clock time, for the diagnostics only.
    pub wall_ms: Millis,
}

/// What a finished attempt says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// There is a payload.
    Success,
    /// There is a reason to leave the item out.
    Skip,
}

impl Outcome {
    #[inline]
    fn trigger(self) -> SeqTrigger {
        match self {
            Self::Success => SeqTrigger::Succeed,
            Self::Skip => SeqTrigger::Skip,
        }
    }
}

/// What policy and run say about a failed attempt.
#[derive(Clone, Copy, Debug)]
pub struct FailRules {
    /// The retries that are left.
    pub budget: Budget,
    /// Whether the run is being cancelled.
    pub cancelled: bool,
}

/// What becomes of a failed attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterFailure {
    /// The seq waits for another dispatch. No event, never visible to the commit lane.
    Retry(Slot),
    /// The failure is the outcome. One event.
    Final(Slot),
}

/// What becomes of a slot whose lease is looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reclaim {
    /// The lease holds, or there is none.
    Keep,
    /// It was dispatched and never started: free for another owner, no retry counted.
    Freed(Slot),
    /// It was in flight: a failed attempt of class `LEASE_EXPIRED`.
    Failed(AfterFailure),
}

impl Slot {
    /// A seq that nobody has seen.
    pub const UNSEEN: Self = Self {
        state: SeqState::Unseen,
        attempts: 0,
        lease: Lease { owner: NOBODY, generation: 0 },
    };

    /// Gives the seq to `owner`: the first dispatch, or another one after a retry or a reclaim.
    pub fn dispatch(self, owner: u16, at: At) -> Result<Self, Refusal> {
        match self.try_dispatch(owner) {
            Some(next) => Ok(next),
            None => self.moved(SeqTrigger::Dispatch, owner, at),
        }
    }

    /// What [`Slot::dispatch`] makes of the slot, if it may.
    #[inline]
    pub fn try_dispatch(self, owner: u16) -> Option<Self> {
        debug_assert!(owner != NOBODY, "owner 0 is nobody");
        let lease = Lease { owner, generation: self.lease.generation.wrapping_add(1) };
        if self.state == SeqState::Dispatched && self.lease.owner == NOBODY {
            return Some(Self { lease, ..self });
        }
        Some(Self { lease, ..self.stepped(SeqTrigger::Dispatch)? })
    }

    /// The owner begins.
    pub fn start(self, lease: Lease, at: At) -> Result<Self, Refusal> {
        match self.try_start(lease) {
            Some(next) => Ok(next),
            None => self.held_by(lease, at)?.moved(SeqTrigger::Start, lease.owner, at),
        }
    }

    /// What [`Slot::start`] makes of the slot, if it may.
    #[inline]
    pub fn try_start(self, lease: Lease) -> Option<Self> {
        if self.is_held_by(lease) { self.stepped(SeqTrigger::Start) } else { None }
    }

    /// The owner has an outcome other than a failure.
    pub fn finish(self, lease: Lease, outcome: Outcome, at: At) -> Result<Self, Refusal> {
        match self.try_finish(lease, outcome) {
            Some(next) => Ok(next),
            None => self.held_by(lease, at)?.moved(outcome.trigger(), lease.owner, at),
        }
    }

    /// What [`Slot::finish`] makes of the slot, if it may.
    #[inline]
    pub fn try_finish(self, lease: Lease, outcome: Outcome) -> Option<Self> {
        if !self.is_held_by(lease) {
            return None;
        }
        Some(self.stepped(outcome.trigger())?.released())
    }

    /// The owner's attempt failed: another dispatch if class, budget and latch allow it.
    pub fn fail(
        self,
        lease: Lease,
        class: ErrorClass,
        rules: FailRules,
        at: At,
    ) -> Result<AfterFailure, Refusal> {
        self.held_by(lease, at)?.failed(class, rules, lease.owner, at)
    }

    /// Whether a heartbeat under this lease counts. It is not a transition.
    #[inline]
    pub fn beats(self, lease: Lease) -> bool {
        self.state == SeqState::InFlight && self.lease == lease
    }

    /// Looks at a lease whose last sign of life was at `heartbeat`: expired once `timeout` has passed.
    pub fn reclaim(
        self,
        now: Millis,
        heartbeat: Millis,
        timeout: Millis,
        rules: FailRules,
        at: At,
    ) -> Result<Reclaim, Refusal> {
        let expired = now.saturating_sub(heartbeat) >= timeout && self.lease.owner != NOBODY;
        match self.state {
            SeqState::Dispatched if expired => Ok(Reclaim::Freed(self.freed())),
            SeqState::InFlight if expired => {
                let after = self.failed(ErrorClass::LeaseExpired, rules, self.lease.owner, at)?;
                Ok(Reclaim::Failed(match after {
                    AfterFailure::Retry(slot) => AfterFailure::Retry(slot),
                    // The silent owner may yet return; its late result is dropped, not a second event.
                    AfterFailure::Final(slot) => AfterFailure::Final(slot.freed()),
                }))
            }
            SeqState::Unseen
            | SeqState::Dispatched
            | SeqState::InFlight
            | SeqState::TerminalSuccess
            | SeqState::TerminalSkip
            | SeqState::TerminalFail
            | SeqState::TerminalCancel
            | SeqState::Committed => Ok(Reclaim::Keep),
        }
    }

    /// Cancels what has not ended. An unseen seq is dispatched to the canceller first, so that it
    /// walks the table; no worker ever sees it.
    pub fn cancel(self, canceller: u16, at: At) -> Result<Self, Refusal> {
        let seen =
            if self.state == SeqState::Unseen { self.dispatch(canceller, at)? } else { self };
        Ok(seen.moved(SeqTrigger::Cancel, canceller, at)?.freed())
    }

    /// The commit lane passes the seq. Again is a no-op; any other seq than the cursor is refused.
    pub fn commit(self, cursor: u64, at: At) -> Result<Self, Refusal> {
        match self.try_commit(at.seq, cursor) {
            Some(next) => Ok(next),
            None if at.seq != cursor => Err(refuse(Code::SeqNotCursor, at).with("cursor", cursor)),
            None => self.moved(SeqTrigger::Commit, self.lease.owner, at),
        }
    }

    /// What [`Slot::commit`] makes of the slot of `seq`, if it may.
    #[inline]
    pub fn try_commit(self, seq: u64, cursor: u64) -> Option<Self> {
        if self.state == SeqState::Committed {
            return Some(self);
        }
        if seq == cursor { self.stepped(SeqTrigger::Commit) } else { None }
    }

    #[inline]
    fn is_held_by(self, lease: Lease) -> bool {
        // An outcome has released its owner; the generation alone still tells who had it.
        let released = self.lease.owner == NOBODY && self.has_outcome();
        let owner_holds = self.lease.owner == lease.owner || released;
        lease.owner != NOBODY && owner_holds && self.lease.generation == lease.generation
    }

    fn held_by(self, lease: Lease, at: At) -> Result<Self, Refusal> {
        if self.is_held_by(lease) {
            return Ok(self);
        }
        Err(refuse(Code::SeqStaleOwner, at)
            .with("owner", u32::from(lease.owner))
            .with("generation", lease.generation)
            .with("holder", u32::from(self.lease.owner))
            .with("holder_generation", self.lease.generation))
    }

    /// Whether an attempt of the seq has come to an end that is final.
    #[inline]
    fn has_outcome(self) -> bool {
        match self.state {
            SeqState::Unseen | SeqState::Dispatched | SeqState::InFlight => false,
            SeqState::TerminalSuccess
            | SeqState::TerminalSkip
            | SeqState::TerminalFail
            | SeqState::TerminalCancel
            | SeqState::Committed => true,
        }
    }

    fn failed(
        self,
        class: ErrorClass,
        rules: FailRules,
        owner: u16,
        at: At,
    ) -> Result<AfterFailure, Refusal> {
        let ended = self.moved(SeqTrigger::Fail, owner, at)?;
        let may_retry = class.is_retryable()
            && !rules.cancelled
            && rules.budget.remains(u32::from(self.attempts));
        // A count that is full ends the seq: if it stood still the budget would never be used up.
        let Some(attempts) = self.attempts.checked_add(1).filter(|_| may_retry) else {
            return Ok(AfterFailure::Final(ended.released()));
        };
        let waiting = ended.moved(SeqTrigger::Retry, owner, at)?.freed();
        Ok(AfterFailure::Retry(Self { attempts, ..waiting }))
    }

    /// The lease is over, and whoever held it is recognised if it comes back with a second outcome.
    #[inline]
    fn released(self) -> Self {
        Self { lease: Lease { owner: NOBODY, ..self.lease }, ..self }
    }

    /// The lease is over, and whoever held it is a stranger from now on.
    fn freed(self) -> Self {
        let generation = self.lease.generation.wrapping_add(1);
        Self { lease: Lease { owner: NOBODY, generation }, ..self }
    }

    #[inline]
    fn stepped(self, trigger: SeqTrigger) -> Option<Self> {
        Some(Self { state: self.state.next(trigger)?, ..self })
    }

    /// The table's move. `owner` is who makes it: a released slot has forgotten its own.
    fn moved(self, trigger: SeqTrigger, owner: u16, at: At) -> Result<Self, Refusal> {
        match self.state.on(trigger) {
            Ok(change) => Ok(Self { state: change.to(), ..self }),
            Err(illegal) => Err(illegal
                .with("seq", at.seq)
                .with("owner", u32::from(owner))
                .with("wall_ms", at.wall_ms)),
        }
    }
}

#[cold]
fn refuse(code: Code, at: At) -> Refusal {
    Refusal::new(code).with("seq", at.seq).with("wall_ms", at.wall_ms)
}
