//! A claim: contiguous seqs of one window, taken by one worker at a time.
//!
//! Its desk holds the envelopes that are not handed over yet. An outcome reaches the ledger and the
//! desk under the desk's lock, so a terminal seq always has its envelope where others can find it,
//! even if its worker never returns from the next item.

use std::ops::Range;

use sprag_kernel::decide::seq::Lease;

use crate::batch::Chunk;
use crate::outcome::{Envelope, Payload};
use crate::runs::Hold;
use crate::sealed::Sealed;
use crate::sync::{Arc, AtomicBool, Mutex, Ordering, lock};
use crate::windows::WindowGauge;

/// Items of a claim, shared with the retries that come of it.
pub(crate) type Shelf<T> = Arc<Vec<T>>;

/// A claim that its worker and dispatch both hold.
pub(crate) type Held<T, P> = Arc<Claim<T, P>>;

/// Seqs that one worker computes.
pub(crate) struct Claim<T, P> {
    pub(crate) first: u64,
    pub(crate) owner: u16,
    pub(crate) window: Arc<WindowGauge>,
    pub(crate) shelf: Shelf<T>,
    /// Where on the shelf the item of `first` lies.
    pub(crate) offset: usize,
    /// Retries so far, the same for all: fresh seqs have none, a retried one is alone.
    pub(crate) attempts: u16,
    /// One lease per seq.
    pub(crate) generations: Vec<u32>,
    pub(crate) desk: Mutex<Desk<P>>,
    /// Every seq of it was settled by somebody else; its worker is not waited for.
    pub(crate) abandoned: AtomicBool,
}

impl<T, P> Claim<T, P> {
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.generations.len()
    }

    #[inline]
    pub(crate) fn seq(&self, place: usize) -> u64 {
        self.first + place as u64
    }

    /// Items and leases of these places, in order.
    #[inline]
    pub(crate) fn items(&self, places: Range<usize>) -> impl Iterator<Item = (&T, Lease)> {
        let items = &self.shelf[self.offset + places.start..self.offset + places.end];
        let lease = |generation: &u32| Lease { owner: self.owner, generation: *generation };
        items.iter().zip(self.generations[places].iter().map(lease))
    }

    #[inline]
    pub(crate) fn lease(&self, place: usize) -> Lease {
        Lease { owner: self.owner, generation: self.generations[place] }
    }

    /// What the ledger must know to move these places.
    #[inline]
    pub(crate) fn hold(&self, places: Range<usize>) -> Hold<'_> {
        Hold {
            first: self.seq(places.start),
            owner: self.owner,
            attempts: self.attempts,
            generations: &self.generations[places],
        }
    }

    /// What was finished and not handed over yet.
    pub(crate) fn clear_desk(&self) -> Vec<Chunk<P>> {
        let runs = std::mem::take(&mut lock(&self.desk).runs);
        let chunk = |sealed| Chunk { sealed, window: Arc::clone(&self.window) };
        runs.into_iter().map(chunk).collect()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

/// From this length on a run is laid down as it is; shorter ones are copied to their neighbours.
const WHOLE: usize = 32;

/// Finished envelopes of a claim, in runs without gaps.
pub(crate) struct Desk<P> {
    runs: Vec<Sealed<P>>,
}

impl<P: Payload> Desk<P> {
    pub(crate) fn empty() -> Self {
        Self { runs: Vec::new() }
    }

    /// Lays an envelope down.
    pub(crate) fn lay(&mut self, seq: u64, envelope: Envelope<P>) {
        self.lay_run(&mut Sealed::single(seq, envelope));
    }

    /// Lays some envelopes down. What is left is empty and goes on behind them.
    pub(crate) fn lay_run(&mut self, sealed: &mut Sealed<P>) {
        match self.runs.last_mut() {
            Some(last) if sealed.len() < WHOLE && last.end() == sealed.first => {
                last.append(sealed);
            }
            Some(_) | None => self.runs.push(sealed.take()),
        }
    }
}
