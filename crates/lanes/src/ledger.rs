//! The dense ledger: one atomic word per seq, in a ring, and a heartbeat where leases can expire.
//!
//! A word packs the kernel's [`Slot`]: state, attempts, owner, generation. Every change is decided by
//! the kernel and written with one exchange, so a seq is atomic by itself and nothing is ever
//! scanned. The ring covers the active windows only: a seq takes the cell of one that was committed
//! a whole ring ago and keeps its generation, so a lease from that time is a stranger.
//!
//! Start and outcome race with reclaim and cancel: compare and exchange. Some moves are made under a
//! lock that everybody takes who could move the slot: the first dispatch under the dispatch lock, a
//! claim's start and outcome under its desk (reclaim and cancel take it too), the commit under the
//! commit lock. Those are a plain release store, with the legality still asked of the kernel.

use sprag_kernel::decide::seq::{AfterFailure, At, FailRules, Lease, Outcome, Reclaim, Slot};
use sprag_kernel::error::Refusal;
use sprag_kernel::machines::SeqState;
use sprag_kernel::retry::{ErrorClass, Millis};
use sprag_kernel::{Code, State};

use crate::clock::wall_ms;
use crate::fault::{Fault, planted};
use crate::sync::{AtomicU64, Ordering};

/// The most retries a seq can count: the attempts share a word with state, owner and generation.
pub const MAX_RETRIES: u32 = (1 << ATTEMPT_BITS) - 1;

const STATE_BITS: u32 = 3;
const ATTEMPT_BITS: u32 = 13;
const OWNER_SHIFT: u32 = STATE_BITS + ATTEMPT_BITS;
pub(crate) const GENERATION_SHIFT: u32 = OWNER_SHIFT + u16::BITS;
const _: () = assert!(GENERATION_SHIFT + u32::BITS == u64::BITS, "a slot fills its word");

/// A lease that is to be looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Expiry {
    pub(crate) now: Millis,
    pub(crate) timeout: Millis,
}

/// The ring of slots.
pub(crate) struct Ledger {
    words: Box<[AtomicU64]>,
    /// Apart from the words, which travel between cores all the time. None if no lease expires.
    heartbeats: Option<Box<[AtomicU64]>>,
    mask: u64,
}

impl Ledger {
    /// A ring with room for at least `seqs` at a time, whose leases never expire.
    pub(crate) fn with_room_for(seqs: u64) -> Self {
        let size = seqs.max(1).next_power_of_two();
        let unseen = |_| AtomicU64::new(pack(Slot::UNSEEN));
        Self { words: (0..size).map(unseen).collect(), heartbeats: None, mask: size - 1 }
    }

    /// The same for leases that expire without a sign of life.
    pub(crate) fn with_heartbeats(self) -> Self {
        let cells = self.words.iter().map(|_| AtomicU64::new(0)).collect();
        Self { heartbeats: Some(cells), ..self }
    }

    /// The slot as it is now.
    #[inline]
    pub(crate) fn slot(&self, seq: u64) -> Slot {
        unpack(self.word(seq).load(Ordering::Acquire))
    }

    /// The last sign of life of whoever holds the seq.
    pub(crate) fn heartbeat_of(&self, seq: u64) -> Millis {
        let heartbeats =
            self.heartbeats.as_ref().expect("only a lease that can expire is asked for");
        heartbeats[self.index(seq)].load(Ordering::Relaxed)
    }

    /// The first dispatch of a seq, in the cell of one committed a ring ago. The caller holds the
    /// dispatch lock and has seen the cursor pass the former tenant.
    #[inline]
    pub(crate) fn enter(&self, seq: u64, owner: u16, now: Millis) -> Result<Lease, Refusal> {
        let fresh = self.fresh(seq);
        let Some(next) = fresh.try_dispatch(owner) else {
            return fresh.dispatch(owner, now_at(seq)).map(|next| next.lease);
        };
        self.beat(seq, now);
        self.put(seq, next);
        Ok(next.lease)
    }

    /// Cancels a seq that nobody has seen, under the dispatch lock like [`Self::enter`].
    pub(crate) fn enter_cancelled(&self, seq: u64, canceller: u16) -> Result<(), Refusal> {
        let next = self.fresh(seq).cancel(canceller, now_at(seq))?;
        self.put(seq, next);
        Ok(())
    }

    /// Gives a seq to an owner, or to another one after a retry or a reclaim.
    pub(crate) fn dispatch(&self, seq: u64, owner: u16, now: Millis) -> Result<Lease, Refusal> {
        let lease = self.exchange(seq, |slot, at| {
            let next = slot.dispatch(owner, at)?;
            Ok((next, next.lease))
        })?;
        self.beat(seq, now);
        Ok(lease)
    }

    /// The owner begins.
    pub(crate) fn start(&self, seq: u64, lease: Lease, now: Millis) -> Result<(), Refusal> {
        // The beat goes first: a reclaim that sees the seq in flight sees a beat that belongs to it.
        // A stranger's beat can at worst keep another's lease alive until the next look.
        self.beat(seq, now);
        self.exchange(seq, |slot, at| Ok((slot.start(lease, at)?, ())))
    }

    /// As [`Self::start`], by whoever holds the desk of the claim.
    pub(crate) fn start_held(&self, seq: u64, lease: Lease, now: Millis) -> Result<(), Refusal> {
        let slot = self.slot(seq);
        let Some(next) = slot.try_start(lease) else {
            return slot.start(lease, now_at(seq)).map(|_| ());
        };
        self.beat(seq, now);
        self.put(seq, next);
        Ok(())
    }

    /// The owner has a payload, or a reason to leave the item out. Returns the retries so far.
    pub(crate) fn finish(&self, seq: u64, lease: Lease, outcome: Outcome) -> Result<u16, Refusal> {
        self.exchange(seq, |slot, at| {
            let lease = if planted(Fault::MissingGeneration) { slot.lease } else { lease };
            let next = slot.finish(lease, outcome, at)?;
            Ok((next, next.attempts))
        })
    }

    /// As [`Self::finish`], by whoever holds the desk of the claim.
    pub(crate) fn finish_held(
        &self,
        seq: u64,
        lease: Lease,
        outcome: Outcome,
    ) -> Result<(), Refusal> {
        let slot = self.slot(seq);
        let lease = if planted(Fault::MissingGeneration) { slot.lease } else { lease };
        let Some(next) = slot.try_finish(lease, outcome) else {
            return slot.finish(lease, outcome, now_at(seq)).map(|_| ());
        };
        self.put(seq, next);
        Ok(())
    }

    /// The owner's attempt failed.
    pub(crate) fn fail(
        &self,
        seq: u64,
        lease: Lease,
        class: ErrorClass,
        rules: FailRules,
    ) -> Result<AfterFailure, Refusal> {
        self.exchange(seq, |slot, at| {
            let after = slot.fail(lease, class, rules, at)?;
            Ok((slot_after(after), after))
        })
    }

    /// Takes the seq from an owner who has been silent for too long.
    pub(crate) fn reclaim(
        &self,
        seq: u64,
        expiry: Expiry,
        rules: FailRules,
    ) -> Result<Reclaim, Refusal> {
        self.exchange(seq, |slot, at| {
            let heartbeat = self.heartbeat_of(seq);
            let answer = slot.reclaim(expiry.now, heartbeat, expiry.timeout, rules, at)?;
            let next = match answer {
                Reclaim::Keep => slot,
                Reclaim::Freed(next) => next,
                Reclaim::Failed(after) => slot_after(after),
            };
            Ok((next, answer))
        })
    }

    /// Cancels what has not ended. Returns the slot as it was before.
    pub(crate) fn cancel(&self, seq: u64, canceller: u16) -> Result<Slot, Refusal> {
        self.exchange(seq, |slot, at| Ok((slot.cancel(canceller, at)?, slot)))
    }

    /// A sign of life. False if this lease does not hold a running seq.
    pub(crate) fn heartbeat(&self, seq: u64, lease: Lease, now: Millis) -> bool {
        let counts = self.slot(seq).beats(lease);
        if counts {
            self.beat(seq, now);
        }
        counts
    }

    /// The state of a seq that the commit lane may pass at `cursor`; changes nothing.
    #[inline]
    pub(crate) fn may_commit(&self, seq: u64, cursor: u64) -> Result<SeqState, Refusal> {
        let slot = self.slot(seq);
        match slot.try_commit(seq, cursor) {
            Some(_) => Ok(slot.state),
            None => slot.commit(cursor, now_at(seq)).map(|next| next.state),
        }
    }

    /// The commit lane passes the seq. The caller holds the commit lock.
    #[inline]
    pub(crate) fn commit(&self, seq: u64, cursor: u64) -> Result<(), Refusal> {
        let slot = self.slot(seq);
        match slot.try_commit(seq, cursor) {
            Some(next) => self.put(seq, next),
            None => return slot.commit(cursor, now_at(seq)).map(|_| ()),
        }
        Ok(())
    }

    /// Asks the kernel and writes its answer in one exchange.
    fn exchange<A>(
        &self,
        seq: u64,
        decide: impl Fn(Slot, At) -> Result<(Slot, A), Refusal>,
    ) -> Result<A, Refusal> {
        let word = self.word(seq);
        let mut seen = word.load(Ordering::Acquire);
        loop {
            let slot = unpack(seen);
            let (next, answer) = decide(slot, now_at(seq))?;
            match word.compare_exchange(seen, pack(next), Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return Ok(answer),
                Err(now) => seen = now,
            }
        }
    }

    #[inline]
    fn fresh(&self, seq: u64) -> Slot {
        let former = self.slot(seq);
        debug_assert!(
            matches!(former.state, SeqState::Unseen | SeqState::Committed),
            "the cell of seq {seq} is still taken: {former:?}"
        );
        let lease = Lease { generation: former.lease.generation, ..Slot::UNSEEN.lease };
        Slot { lease, ..Slot::UNSEEN }
    }

    #[inline]
    fn beat(&self, seq: u64, now: Millis) {
        if let Some(heartbeats) = &self.heartbeats {
            heartbeats[self.index(seq)].store(now, Ordering::Relaxed);
        }
    }

    #[inline]
    fn put(&self, seq: u64, slot: Slot) {
        self.word(seq).store(pack(slot), Ordering::Release);
    }

    pub(crate) fn keeps_heartbeats(&self) -> bool {
        self.heartbeats.is_some()
    }

    /// The words of at most `seqs` seqs from `first` on, up to the end of the ring.
    pub(crate) fn stretch(&self, first: u64, seqs: usize) -> &[AtomicU64] {
        let words = &self.words[self.index(first)..];
        &words[..seqs.min(words.len())]
    }

    #[inline]
    fn word(&self, seq: u64) -> &AtomicU64 {
        &self.words[self.index(seq)]
    }

    #[inline]
    #[allow(clippy::cast_possible_truncation)] // the mask is the length of a slice, less one
    fn index(&self, seq: u64) -> usize {
        (seq & self.mask) as usize
    }
}

/// Names the seq and the time, for a refusal.
#[cold]
fn now_at(seq: u64) -> At {
    At { seq, wall_ms: wall_ms() }
}

/// Whether a refusal only says that somebody else holds the seq now: drop the result, go on.
pub(crate) fn is_stale(refusal: &Refusal) -> bool {
    refusal.code() == Code::SeqStaleOwner
}

fn slot_after(after: AfterFailure) -> Slot {
    match after {
        AfterFailure::Retry(slot) | AfterFailure::Final(slot) => slot,
    }
}

#[inline]
pub(crate) fn pack(slot: Slot) -> u64 {
    debug_assert!(u32::from(slot.attempts) <= MAX_RETRIES, "the budget is checked at the start");
    u64::from(slot.state.code())
        | u64::from(slot.attempts) << STATE_BITS
        | u64::from(slot.lease.owner) << OWNER_SHIFT
        | u64::from(slot.lease.generation) << GENERATION_SHIFT
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // each field is cut out with exactly its own bits
fn unpack(word: u64) -> Slot {
    let state = SeqState::from_code((word & ((1 << STATE_BITS) - 1)) as u8);
    Slot {
        state: state.expect("three bits name eight states"),
        attempts: (word >> STATE_BITS & ((1 << ATTEMPT_BITS) - 1)) as u16,
        lease: Lease {
            owner: (word >> OWNER_SHIFT) as u16,
            generation: (word >> GENERATION_SHIFT) as u32,
        },
    }
}
