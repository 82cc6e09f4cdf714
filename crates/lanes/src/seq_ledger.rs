//! A ledger of its own: for callers that drive every seq themselves.
//!
//! The same slots, rules and counters as in the runtime, over a fixed number of seqs, with a cursor,
//! a cancel latch and retry budgets. Every operation touches one slot. A refusal with class corrupt
//! is fatal to the batch; [`Code::SeqStaleOwner`] drops a late result and harms nobody.

use std::collections::BTreeMap;

use sprag_kernel::decide::seq::{AfterFailure, FailRules, Lease, Outcome, Reclaim, Slot};
use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::machines::SeqState;
use sprag_kernel::retry::{Budget, ErrorClass, Millis};

use crate::clock::wall_ms;
use crate::ledger::{Expiry, Ledger, MAX_RETRIES};
use crate::sync::{AtomicBool, AtomicU64, Mutex, Ordering, lock};
use crate::tally::{Event, LedgerCounts, Tally};

/// Whoever cancels owns what it cancels under this name.
pub(crate) const CANCELLER: u16 = u16::MAX;

/// One seq reached its end. Emitted once per seq.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TerminalEvent {
    /// The seq.
    pub seq: u64,
    /// Its terminal state.
    pub state: SeqState,
    /// Why, if it failed.
    pub reason: Option<ErrorClass>,
}

/// What became of a failed attempt or a lost lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// The seq waits for another dispatch; so many retries so far. No event.
    Retry(u16),
    /// It was dispatched and never started: it waits for another owner, no retry counted.
    Freed,
    /// The failure is the outcome.
    Final(TerminalEvent),
}

/// Seqs `0..total`, their states, leases and counters.
pub struct SeqLedger {
    ledger: Ledger,
    total: u64,
    max_retries: u32,
    cursor: AtomicU64,
    latch: AtomicBool,
    tally: Tally,
    /// Reasons of the last attempt, only of seqs that failed; never touched by a success at first try.
    reasons: Mutex<BTreeMap<u64, ErrorClass>>,
    /// First seq of a window to its last one and the retries it has left.
    windows: Mutex<BTreeMap<u64, (u64, u32)>>,
}

impl SeqLedger {
    /// A ledger of `total` unseen seqs, each with so many retries.
    pub fn new(total: u64, max_retries: u32) -> Self {
        assert!(max_retries <= MAX_RETRIES, "a seq counts at most {MAX_RETRIES} retries");
        Self {
            ledger: Ledger::with_room_for(total).with_heartbeats(),
            total,
            max_retries,
            cursor: AtomicU64::new(0),
            latch: AtomicBool::new(false),
            tally: Tally::default(),
            reasons: Mutex::default(),
            windows: Mutex::default(),
        }
    }

    /// Gives the seqs `start` to `end` a common budget of retries.
    pub fn limit_window(&self, start: u64, end: u64, retries: u32) {
        lock(&self.windows).insert(start, (end, retries));
    }

    /// The next seq to commit.
    pub fn cursor(&self) -> u64 {
        self.cursor.load(Ordering::Acquire)
    }

    /// How many seqs are where.
    pub fn counts(&self) -> LedgerCounts {
        LedgerCounts::of(std::slice::from_ref(&self.tally))
    }

    /// Everything known of a seq but its heartbeat.
    pub fn slot(&self, seq: u64) -> Result<Slot, Refusal> {
        self.known(seq)?;
        Ok(self.ledger.slot(seq))
    }

    /// When the owner last gave a sign of life.
    pub fn heartbeat_of(&self, seq: u64) -> Result<Millis, Refusal> {
        self.known(seq)?;
        Ok(self.ledger.heartbeat_of(seq))
    }

    /// Why the last attempt of the seq failed, if it did.
    pub fn reason(&self, seq: u64) -> Option<ErrorClass> {
        lock(&self.reasons).get(&seq).copied()
    }

    /// From now on nothing is retried.
    pub fn latch_cancel(&self) {
        self.latch.store(true, Ordering::SeqCst);
    }

    /// Gives the seq to an owner.
    pub fn dispatch(&self, seq: u64, owner: u16, now: Millis) -> Result<Lease, Refusal> {
        self.known(seq)?;
        let lease = self.ledger.dispatch(seq, owner, now)?;
        // A generation of 1 is the first lease of the seq; later ones find it counted already.
        if lease.generation == 1 {
            self.tally.add_shared(Event::Dispatched);
        }
        Ok(lease)
    }

    /// The owner begins.
    pub fn start(&self, seq: u64, lease: Lease, now: Millis) -> Result<(), Refusal> {
        self.known(seq)?;
        self.ledger.start(seq, lease, now)?;
        self.tally.add_shared(Event::Started);
        Ok(())
    }

    /// A sign of life; false if it does not count.
    pub fn heartbeat(&self, seq: u64, lease: Lease, now: Millis) -> Result<bool, Refusal> {
        self.known(seq)?;
        Ok(self.ledger.heartbeat(seq, lease, now))
    }

    /// The owner has a payload.
    pub fn succeed(&self, seq: u64, lease: Lease) -> Result<TerminalEvent, Refusal> {
        self.finish(seq, lease, Outcome::Success)
    }

    /// The owner has a reason to leave the item out.
    pub fn skip(&self, seq: u64, lease: Lease) -> Result<TerminalEvent, Refusal> {
        self.finish(seq, lease, Outcome::Skip)
    }

    /// The owner's attempt failed.
    pub fn fail(&self, seq: u64, lease: Lease, class: ErrorClass) -> Result<Attempt, Refusal> {
        self.known(seq)?;
        self.budgeted(seq, class, |rules| self.ledger.fail(seq, lease, class, rules).map(Some))
            .map(|after| after.expect("a failed attempt has a consequence"))
    }

    /// Looks at the leases from the cursor on, in ascending order, and takes the expired ones.
    pub fn reclaim(&self, now: Millis, timeout: Millis) -> Result<Vec<(u64, Attempt)>, Refusal> {
        let mut taken = Vec::new();
        for seq in self.cursor()..self.total {
            if let Some(attempt) = self.reclaim_one(seq, Expiry { now, timeout })? {
                taken.push((seq, attempt));
            }
        }
        Ok(taken)
    }

    /// Cancels the seq, seen or unseen, started or not.
    pub fn cancel(&self, seq: u64) -> Result<TerminalEvent, Refusal> {
        self.known(seq)?;
        let before = self.ledger.cancel(seq, CANCELLER)?;
        if before.state == SeqState::Unseen {
            self.tally.add_shared(Event::Dispatched);
        }
        self.tally.add_shared(match before.state {
            SeqState::InFlight => Event::CancelledRunning,
            SeqState::Unseen
            | SeqState::Dispatched
            | SeqState::TerminalSuccess
            | SeqState::TerminalSkip
            | SeqState::TerminalFail
            | SeqState::TerminalCancel
            | SeqState::Committed => Event::CancelledWaiting,
        });
        Ok(TerminalEvent { seq, state: SeqState::TerminalCancel, reason: None })
    }

    /// The commit lane passes the seq. The committed one again is a no-op. One caller at a time: the
    /// commit lane.
    pub fn commit(&self, seq: u64) -> Result<(), Refusal> {
        self.known(seq)?;
        let cursor = self.cursor();
        let was = self.ledger.slot(seq).state;
        self.ledger.commit(seq, cursor)?;
        if was != SeqState::Committed {
            self.tally.add_shared(Event::Committed);
            self.cursor.store(cursor + 1, Ordering::Release);
        }
        Ok(())
    }

    fn finish(&self, seq: u64, lease: Lease, outcome: Outcome) -> Result<TerminalEvent, Refusal> {
        self.known(seq)?;
        let attempts = self.ledger.finish(seq, lease, outcome)?;
        if attempts > 0 {
            lock(&self.reasons).remove(&seq);
        }
        let (event, state) = match outcome {
            Outcome::Success => (Event::Succeeded, SeqState::TerminalSuccess),
            Outcome::Skip => (Event::Skipped, SeqState::TerminalSkip),
        };
        self.tally.add_shared(event);
        Ok(TerminalEvent { seq, state, reason: None })
    }

    fn reclaim_one(&self, seq: u64, expiry: Expiry) -> Result<Option<Attempt>, Refusal> {
        let mut freed = false;
        let failed = self.budgeted(seq, ErrorClass::LeaseExpired, |rules| {
            Ok(match self.ledger.reclaim(seq, expiry, rules)? {
                Reclaim::Keep => None,
                Reclaim::Freed(_) => {
                    freed = true;
                    None
                }
                Reclaim::Failed(after) => Some(after),
            })
        })?;
        Ok(failed.or(freed.then_some(Attempt::Freed)))
    }

    /// Runs a failure under the window's budget, so that two failures never share its last retry.
    fn budgeted(
        &self,
        seq: u64,
        class: ErrorClass,
        fail: impl FnOnce(FailRules) -> Result<Option<AfterFailure>, Refusal>,
    ) -> Result<Option<Attempt>, Refusal> {
        let mut windows = lock(&self.windows);
        let window = windows.range_mut(..=seq).next_back().filter(|(_, (end, _))| seq <= *end);
        let left = window.map(|(_, (_, left))| left);
        let budget =
            Budget { max_retries: self.max_retries, window_left: left.as_deref().copied() };
        let cancelled = self.latch.load(Ordering::SeqCst);
        let Some(after) = fail(FailRules { budget, cancelled })? else { return Ok(None) };
        lock(&self.reasons).insert(seq, class);
        Ok(Some(match after {
            AfterFailure::Retry(slot) => {
                if let Some(left) = left {
                    *left -= 1;
                }
                self.tally.add_shared(Event::retried(class));
                Attempt::Retry(slot.attempts)
            }
            AfterFailure::Final(slot) => {
                self.tally.add_shared(Event::Failed);
                Attempt::Final(TerminalEvent { seq, state: slot.state, reason: Some(class) })
            }
        }))
    }

    fn known(&self, seq: u64) -> Result<(), Refusal> {
        if seq < self.total {
            return Ok(());
        }
        Err(Refusal::new(Code::SeqUnknown)
            .with("seq", seq)
            .with("total", self.total)
            .with("wall_ms", wall_ms()))
    }
}
