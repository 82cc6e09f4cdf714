//! A claim: contiguous seqs of one window, taken by one worker at a time.
//!
//! Its desk holds the envelopes that are not handed over yet. An outcome reaches the ledger and the
//! desk under the desk's lock, so a terminal seq always has its envelope where others can find it,
//! even if its worker never returns from the next item.

use sprag_kernel::decide::seq::Lease;

use crate::batch::Chunk;
use crate::outcome::{Envelope, Payload};
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

    #[inline]
    pub(crate) fn item(&self, place: usize) -> &T {
        &self.shelf[self.offset + place]
    }

    #[inline]
    pub(crate) fn lease(&self, place: usize) -> Lease {
        Lease { owner: self.owner, generation: self.generations[place] }
    }

    /// What was finished and not handed over yet.
    pub(crate) fn clear_desk(&self) -> Vec<Chunk<P>> {
        let runs = std::mem::take(&mut lock(&self.desk).runs);
        runs.into_iter().map(|run| run.chunk(&self.window)).collect()
    }

    pub(crate) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    pub(crate) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }
}

/// Finished envelopes of a claim, in runs without gaps.
pub(crate) struct Desk<P> {
    runs: Vec<Run<P>>,
    /// How many envelopes the first run makes room for.
    expected: usize,
}

struct Run<P> {
    first: u64,
    envelopes: Vec<Envelope<P>>,
    bytes: u64,
}

impl<P: Payload> Desk<P> {
    pub(crate) fn new(expected: usize) -> Self {
        Self { runs: Vec::new(), expected }
    }

    /// Lays an envelope down.
    pub(crate) fn lay(&mut self, seq: u64, envelope: Envelope<P>) {
        let bytes = envelope.weight();
        self.lay_run(seq, &mut vec![envelope], bytes);
    }

    /// Lays some envelopes down that follow each other, and so many bytes.
    pub(crate) fn lay_run(&mut self, first: u64, envelopes: &mut Vec<Envelope<P>>, bytes: u64) {
        if let Some(run) = self.runs.last_mut()
            && run.first + run.envelopes.len() as u64 == first
        {
            run.bytes += bytes;
            run.envelopes.append(envelopes);
            return;
        }
        let mut run = Run { first, envelopes: Vec::with_capacity(self.expected), bytes };
        run.envelopes.append(envelopes);
        self.runs.push(run);
    }
}

impl<P> Run<P> {
    fn chunk(self, window: &Arc<WindowGauge>) -> Chunk<P> {
        let Self { first, envelopes, bytes } = self;
        Chunk { first, envelopes, bytes, window: Arc::clone(window) }
    }
}
