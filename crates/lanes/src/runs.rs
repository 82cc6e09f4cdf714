//! Moves of neighbours: one pass over a run of the ledger's words.
//!
//! Nearly all seqs of a claim are in the same slot but for their generation. So the kernel is asked once
//! what becomes of that slot, and its answer is written to every word that is exactly so. Any other
//! word is asked about by itself. Each word is still read and written atomically and alone; who may do
//! that without an exchange is said in `ledger`.

use sprag_kernel::decide::seq::{Lease, NOBODY, Outcome, Slot};
use sprag_kernel::error::Refusal;
use sprag_kernel::machines::SeqState;
use sprag_kernel::retry::Millis;

use crate::ledger::{GENERATION_SHIFT, Ledger, is_stale, pack};
use crate::summary::Counts;
use crate::sync::{AtomicU64, Ordering};

/// Some neighbours of a claim, and the leases under which it holds them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold<'a> {
    pub(crate) first: u64,
    pub(crate) owner: u16,
    pub(crate) attempts: u16,
    pub(crate) generations: &'a [u32],
}

impl Hold<'_> {
    #[inline]
    fn lease(&self, place: usize) -> Lease {
        Lease { owner: self.owner, generation: self.generations[place] }
    }

    #[inline]
    fn seq(&self, place: usize) -> u64 {
        self.first + place as u64
    }

    /// What a slot of it looks like in this state, generations left out.
    fn slot(&self, state: SeqState) -> Slot {
        let lease = Lease { owner: self.owner, generation: 0 };
        Slot { state, attempts: self.attempts, lease }
    }
}

/// What the kernel makes of a slot of any generation.
#[derive(Clone, Copy)]
struct Move {
    from: u64,
    flip: u64,
}

impl Move {
    /// The move of this slot, whose generation is 0, if the kernel has one.
    fn of(slot: Slot, decide: impl Fn(Slot) -> Option<Slot>) -> Option<Self> {
        let next = decide(slot)?;
        debug_assert_eq!(slot.lease.generation, 0, "the generation is not looked at");
        debug_assert_eq!(next.lease.generation, 0, "the move keeps the generation");
        Some(Self { from: pack(slot), flip: pack(slot) ^ pack(next) })
    }

    /// Moves words up to the first that is not the slot with its generation. How many that were.
    fn sweep_held(self, words: &[AtomicU64], generations: &[u32]) -> usize {
        let mut pairs = words.iter().zip(generations);
        let other = pairs.position(|(word, generation)| {
            let from = self.from | u64::from(*generation) << GENERATION_SHIFT;
            let applies = word.load(Ordering::Acquire) == from;
            if applies {
                word.store(from ^ self.flip, Ordering::Release);
            }
            !applies
        });
        other.unwrap_or(words.len())
    }

    /// Moves words up to the first that is not the slot, whatever its generation.
    fn sweep(self, words: &[AtomicU64]) -> usize {
        let other = words.iter().position(|word| {
            let now = word.load(Ordering::Acquire);
            let applies = now & LOW == self.from;
            if applies {
                word.store(now ^ self.flip, Ordering::Release);
            }
            !applies
        });
        other.unwrap_or(words.len())
    }

    /// How many words [`Move::sweep`] would move.
    fn count(self, words: &[AtomicU64]) -> usize {
        let fits = |word: &&AtomicU64| word.load(Ordering::Acquire) & LOW == self.from;
        words.iter().take_while(fits).count()
    }
}

/// Lets new seqs into words up to the first whose tenant was not committed at its first try. Notes
/// their generations.
fn sweep_in(words: &[AtomicU64], generations: &mut [u32], (past, fresh): (u64, u64)) -> usize {
    let other = words.iter().zip(generations).position(|(word, generation)| {
        let now = word.load(Ordering::Acquire);
        let applies = now & LOW == past;
        if applies {
            *generation = generation_of(now).wrapping_add(1);
            word.store(fresh | u64::from(*generation) << GENERATION_SHIFT, Ordering::Release);
        }
        !applies
    });
    other.unwrap_or(words.len())
}

/// All of a word but its generation.
const LOW: u64 = (1 << GENERATION_SHIFT) - 1;

impl Ledger {
    /// The first dispatch of seqs from `first` on, as [`Ledger::enter`]; returns their generations.
    pub(crate) fn enter_run(
        &self,
        (first, seqs): (u64, usize),
        owner: u16,
        now: Millis,
    ) -> Result<Vec<u32>, Refusal> {
        let fresh = Slot::UNSEEN.try_dispatch(owner).expect("the first dispatch is a move");
        let past = Slot { state: SeqState::Committed, ..Slot::UNSEEN };
        let typical = (pack(past), pack(fresh) & LOW);
        let mut generations = vec![0; seqs];
        let mut place = 0;
        while place < seqs {
            let seq = first + place as u64;
            let words = self.stretch(seq, seqs - place);
            let entered = if self.keeps_heartbeats() {
                0
            } else {
                sweep_in(words, &mut generations[place..], typical)
            };
            place += entered;
            if entered < words.len() {
                let seq = seq + entered as u64;
                generations[place] = self.enter(seq, owner, now)?.generation;
                place += 1;
            }
        }
        Ok(generations)
    }

    /// The owner begins with these; it has the desk of the claim. Returns the places that were taken
    /// from it, ascending.
    pub(crate) fn start_run(&self, hold: Hold, now: Millis) -> Result<Vec<usize>, Refusal> {
        let typical = hold.slot(SeqState::Dispatched);
        let start = Move::of(typical, |slot| slot.try_start(slot.lease));
        let start = start.filter(|_| !self.keeps_heartbeats());
        self.walk(hold, start, |seq, lease| self.start_held(seq, lease, now))
    }

    /// These succeeded; as [`Ledger::start_run`].
    pub(crate) fn succeed_run(&self, hold: Hold) -> Result<Vec<usize>, Refusal> {
        let typical = hold.slot(SeqState::InFlight);
        let succeed = Move::of(typical, |slot| slot.try_finish(slot.lease, Outcome::Success));
        self.walk(hold, succeed, |seq, lease| self.finish_held(seq, lease, Outcome::Success))
    }

    /// These have outcomes; as [`Ledger::start_run`].
    pub(crate) fn finish_run(
        &self,
        hold: Hold,
        outcomes: impl Iterator<Item = Outcome>,
    ) -> Result<Vec<usize>, Refusal> {
        let mut strays = Vec::new();
        for (place, outcome) in outcomes.enumerate() {
            let finished = self.finish_held(hold.seq(place), hold.lease(place), outcome);
            keep_stray(finished, place, &mut strays)?;
        }
        Ok(strays)
    }

    /// How the seqs from `first` on ended, if the commit lane may pass them at this cursor; changes
    /// nothing.
    pub(crate) fn may_commit_run(
        &self,
        (first, seqs): (u64, u64),
        cursor: u64,
    ) -> Result<Counts, Refusal> {
        let (pass, mut counts) = (pass_success(), Counts::default());
        let mut done = 0;
        while done < seqs {
            let words = self.stretch(first + done, as_length(seqs - done));
            let passed = if first == cursor { pass.count(words) } else { 0 };
            done += passed as u64;
            counts.success += passed as u64;
            if passed < words.len() {
                counts.count(self.may_commit(first + done, cursor + done)?);
                done += 1;
            }
        }
        Ok(counts)
    }

    /// The commit lane passes these, as [`Ledger::commit`].
    pub(crate) fn commit_run(&self, (first, seqs): (u64, u64)) -> Result<(), Refusal> {
        let pass = pass_success();
        let mut done = 0;
        while done < seqs {
            let words = self.stretch(first + done, as_length(seqs - done));
            let passed = pass.sweep(words);
            done += passed as u64;
            if passed < words.len() {
                self.commit(first + done, first + done)?;
                done += 1;
            }
        }
        Ok(())
    }

    /// Makes the typical move wherever it applies, and asks about every other seq by itself. Returns
    /// the places of those whose lease is over.
    fn walk(
        &self,
        hold: Hold,
        typical: Option<Move>,
        one: impl Fn(u64, Lease) -> Result<(), Refusal>,
    ) -> Result<Vec<usize>, Refusal> {
        let (mut strays, mut place) = (Vec::new(), 0);
        while place < hold.generations.len() {
            let generations = &hold.generations[place..];
            let words = self.stretch(hold.seq(place), generations.len());
            let moved = typical.map_or(0, |typical| typical.sweep_held(words, generations));
            place += moved;
            if moved < words.len() {
                keep_stray(one(hold.seq(place), hold.lease(place)), place, &mut strays)?;
                place += 1;
            }
        }
        Ok(strays)
    }
}

/// The commit of a seq that succeeded at the first try.
fn pass_success() -> Move {
    let lease = Lease { owner: NOBODY, generation: 0 };
    let slot = Slot { state: SeqState::TerminalSuccess, attempts: 0, lease };
    Move::of(slot, |slot| slot.try_commit(0, 0)).expect("the cursor may pass a success")
}

fn keep_stray(
    moved: Result<(), Refusal>,
    place: usize,
    strays: &mut Vec<usize>,
) -> Result<(), Refusal> {
    match moved {
        Err(refusal) if is_stale(&refusal) => strays.push(place),
        Err(refusal) => return Err(refusal),
        Ok(()) => {}
    }
    Ok(())
}

#[inline]
#[allow(clippy::cast_possible_truncation)] // the upper half of a word
fn generation_of(word: u64) -> u32 {
    (word >> GENERATION_SHIFT) as u32
}

fn as_length(seqs: u64) -> usize {
    usize::try_from(seqs).expect("a run is in memory")
}
