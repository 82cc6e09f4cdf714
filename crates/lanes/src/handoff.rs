//! The hand-off: many threads finish, one at a time commits.
//!
//! There is no commit thread. Whoever finishes a claim puts its envelopes in the inbox, and then
//! commits for everybody if nobody else is at it. No envelope is left behind: a thread that finds the
//! commit lock taken has put its envelopes in before it looked, and the holder looks at the inbox once
//! more after it has let the lock go.

use sprag_kernel::error::Refusal;

use crate::batch::{Batch, Chunk};
use crate::commit::CommitLane;
use crate::fault::{Fault, planted};
use crate::ledger::Ledger;
use crate::outcome::Payload;
use crate::sink::Sink;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock, try_lock};
use crate::tally::{Event, Tally};
use crate::trail::Trail;

/// What a commit touches besides the lane itself.
#[derive(Clone, Copy)]
pub(crate) struct Books<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) trail: &'a Trail,
    pub(crate) tally: &'a Tally,
}

/// Inbox and commit lane.
pub(crate) struct HandOff<P, K> {
    inbox: Mutex<Vec<Chunk<P>>>,
    lane: Mutex<CommitLane<P, K>>,
    /// Threads that have envelopes in their hands, or commit.
    carriers: AtomicU64,
    cursor: AtomicU64,
    buffered_bytes: AtomicU64,
    batches: AtomicU64,
    largest_batch: AtomicU64,
    last_batch: AtomicU64,
}

/// Batches so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct BatchFigures {
    /// How many.
    pub count: u64,
    /// Seqs in the largest one.
    pub largest: u64,
    /// Seqs in the last one.
    pub last: u64,
}

impl<P: Payload, K: Sink<P>> HandOff<P, K> {
    pub(crate) fn new(lane: CommitLane<P, K>) -> Self {
        let cursor = AtomicU64::new(lane.point().cursor);
        Self {
            inbox: Mutex::default(),
            lane: Mutex::new(lane),
            carriers: AtomicU64::new(0),
            cursor,
            buffered_bytes: AtomicU64::new(0),
            batches: AtomicU64::new(0),
            largest_batch: AtomicU64::new(0),
            last_batch: AtomicU64::new(0),
        }
    }

    /// The next seq to commit.
    #[inline]
    pub(crate) fn cursor(&self) -> u64 {
        self.cursor.load(Ordering::SeqCst)
    }

    /// Bytes of results that wait for their turn.
    pub(crate) fn buffered_bytes(&self) -> u64 {
        self.buffered_bytes.load(Ordering::Relaxed)
    }

    pub(crate) fn figures(&self) -> BatchFigures {
        BatchFigures {
            count: self.batches.load(Ordering::Relaxed),
            largest: self.largest_batch.load(Ordering::Relaxed),
            last: self.last_batch.load(Ordering::Relaxed),
        }
    }

    /// Says that this thread is about to take envelopes from where others see them. Until it has
    /// [laid them down](Self::lay_down) the cursor may still move.
    pub(crate) fn pick_up(&self) {
        self.carriers.fetch_add(1, Ordering::SeqCst);
    }

    /// What was picked up is committed, or with somebody who commits.
    pub(crate) fn lay_down(&self) {
        self.carriers.fetch_sub(1, Ordering::SeqCst);
    }

    /// Whether nobody has anything in hand. Whoever asks looks at the cursor afterwards.
    pub(crate) fn is_quiet(&self) -> bool {
        self.carriers.load(Ordering::SeqCst) == 0
    }

    /// The lane, for the thread that ends the run.
    pub(crate) fn lane(&self) -> &Mutex<CommitLane<P, K>> {
        &self.lane
    }

    /// Hands envelopes over and commits what can be committed, unless somebody else does.
    pub(crate) fn publish(&self, chunks: Vec<Chunk<P>>, books: Books) -> Result<(), Refusal> {
        self.put(chunks);
        self.combine(books)
    }

    fn put(&self, mut chunks: Vec<Chunk<P>>) {
        let mut bytes = 0;
        for near in chunks.chunk_by(|one, next| Arc::ptr_eq(&one.window, &next.window)) {
            let weighs = near.iter().map(|chunk| chunk.sealed.bytes).sum();
            let ended = near.iter().map(|chunk| chunk.sealed.len() as u64).sum();
            bytes += weighs;
            near[0].window.bytes.fetch_add(weighs, Ordering::Relaxed);
            near[0].window.terminal.fetch_add(ended, Ordering::Relaxed);
        }
        self.buffered_bytes.fetch_add(bytes, Ordering::Relaxed);
        lock(&self.inbox).append(&mut chunks);
    }

    fn combine(&self, books: Books) -> Result<(), Refusal> {
        loop {
            let Some(mut lane) = try_lock(&self.lane) else { return Ok(()) };
            loop {
                for chunk in std::mem::take(&mut *lock(&self.inbox)) {
                    lane.accept(chunk);
                }
                let Some(run) = lane.next_run() else { break };
                if planted(Fault::AppendOutsideLock) {
                    drop(lane);
                    lane = lock(&self.lane);
                }
                let batch = lane.deliver(run, books.ledger, books.trail)?;
                self.record(&batch, books.tally);
            }
            drop(lane);
            if planted(Fault::LostHandOff) || lock(&self.inbox).is_empty() {
                return Ok(());
            }
        }
    }

    fn record(&self, batch: &Batch<P>, tally: &Tally) {
        for near in batch.chunks.chunk_by(|one, next| Arc::ptr_eq(&one.window, &next.window)) {
            let weighed = near.iter().map(|chunk| chunk.sealed.bytes).sum();
            near[0].window.bytes.fetch_sub(weighed, Ordering::Relaxed);
        }
        self.buffered_bytes.fetch_sub(batch.bytes, Ordering::Relaxed);
        tally.add(Event::Committed, batch.seqs());
        self.batches.fetch_add(1, Ordering::Relaxed);
        self.largest_batch.fetch_max(batch.seqs(), Ordering::Relaxed);
        self.last_batch.store(batch.seqs(), Ordering::Relaxed);
        tracing::trace!(first = batch.first, last = batch.last(), "batch committed");
        // Last, and in one order with the waiters' marks: whoever sees the cursor may take the cells.
        self.cursor.store(batch.resume.cursor, Ordering::SeqCst);
    }
}
