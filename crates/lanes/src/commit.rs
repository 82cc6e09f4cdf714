//! The commit lane: one cursor, one sink, no gaps.
//!
//! It looks at the cursor first; only if that seq's envelope is there does it extend the run, as far
//! as envelopes follow without a gap. A byte cap may cut a run into several batches, never reorder or
//! skip. A batch is checked against the ledger, written by the sink, and only then marked committed;
//! a batch that does not begin at the cursor is refused before anything is written.

use std::any::Any;
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::planner::PlanHasher;

use crate::batch::{Batch, Chunk};
use crate::fault::{Fault, planted};
use crate::ledger::Ledger;
use crate::outcome::Payload;
use crate::sink::{Sink, SinkError};
use crate::summary::Resume;
use crate::trail::Trail;

/// The state of the commit lane; whoever holds its lock is the committer.
pub(crate) struct CommitLane<P, K> {
    sink: Option<K>,
    point: Resume,
    hasher: PlanHasher,
    /// Envelopes ahead of the cursor, by their first seq.
    ahead: BTreeMap<u64, Chunk<P>>,
    /// Where the next run begins: the cursor, unless a run is being written.
    next: u64,
    max_batch_bytes: u64,
    /// Seqs in all, if the source knew before it was read.
    total: Option<u64>,
    broken: bool,
}

impl<P: Payload, K: Sink<P>> CommitLane<P, K> {
    /// A lane at this point, whose hasher has seen the entries before it.
    pub(crate) fn new(sink: K, point: Resume, hasher: PlanHasher, max_batch_bytes: u64) -> Self {
        let input_hash = hasher.digest();
        Self {
            sink: Some(sink),
            next: point.cursor,
            point: Resume { input_hash, ..point },
            hasher,
            ahead: BTreeMap::new(),
            max_batch_bytes,
            total: None,
            broken: false,
        }
    }

    /// The same lane over so many seqs.
    pub(crate) fn of_total(self, total: Option<u64>) -> Self {
        Self { total, ..self }
    }

    /// Takes envelopes in, in any order.
    #[inline]
    pub(crate) fn accept(&mut self, chunk: Chunk<P>) {
        let first = chunk.sealed.first;
        debug_assert!(first >= self.next, "seq {first} ended twice");
        let twice = self.ahead.insert(first, chunk);
        debug_assert!(twice.is_none(), "a seq has one envelope");
    }

    /// The longest run that begins at the cursor, up to the byte cap. None while the cursor's own
    /// envelope is missing, or after a failure.
    pub(crate) fn next_run(&mut self) -> Option<Vec<Chunk<P>>> {
        if self.broken {
            return None;
        }
        if planted(Fault::CommitPastGap)
            && let Some(first) = self.ahead.keys().next()
        {
            self.next = *first;
        }
        let run = self.run_at(self.next);
        (!run.is_empty()).then_some(run)
    }

    /// The longest run from `first` on, wherever the cursor is.
    pub(crate) fn run_at(&mut self, first: u64) -> Vec<Chunk<P>> {
        self.next = first;
        let mut run = Vec::new();
        let mut room = self.max_batch_bytes;
        while let Some(mut chunk) = self.ahead.remove(&self.next) {
            if chunk.sealed.bytes > room {
                if !run.is_empty() {
                    self.ahead.insert(chunk.sealed.first, chunk);
                    break;
                }
                if let Some(rest) = chunk.cut(room) {
                    self.ahead.insert(rest.sealed.first, rest);
                }
            }
            room = room.saturating_sub(chunk.sealed.bytes);
            self.next = chunk.sealed.end();
            run.push(chunk);
        }
        run
    }

    /// Writes a run and moves the cursor behind it.
    pub(crate) fn deliver(
        &mut self,
        run: Vec<Chunk<P>>,
        ledger: &Ledger,
        trail: &Trail,
    ) -> Result<Batch<P>, Refusal> {
        let delivered = self.write(run, ledger, trail);
        self.broken |= delivered.is_err();
        delivered
    }

    /// The committed prefix.
    pub(crate) fn point(&self) -> Resume {
        self.point
    }

    /// Ends the lane and gives the sink back.
    pub(crate) fn close(&mut self) -> Option<K> {
        self.broken = true;
        self.sink.take()
    }

    fn write(
        &mut self,
        run: Vec<Chunk<P>>,
        ledger: &Ledger,
        trail: &Trail,
    ) -> Result<Batch<P>, Refusal> {
        let mut batch = self.assemble(run, ledger)?;
        trail.follow(&mut self.hasher, batch.seqs());
        batch.resume.input_hash = self.hasher.digest();
        let sink = self.sink.as_mut().expect("an open lane has its sink");
        match catch_unwind(AssertUnwindSafe(|| sink.commit(&mut batch))) {
            Ok(Ok(())) => {}
            Ok(Err(error)) => return Err(sink_refusal(&batch, error)),
            Err(panic) => {
                return Err(sink_refusal(&batch, SinkError::permanent(panic_text(&*panic))));
            }
        }
        ledger.commit_run((batch.first, batch.seqs()))?;
        self.point = batch.resume;
        Ok(batch)
    }

    /// Checks every seq of the run against the ledger and sums the run up. Nothing is written yet.
    fn assemble(&self, chunks: Vec<Chunk<P>>, ledger: &Ledger) -> Result<Batch<P>, Refusal> {
        let first = chunks.first().map_or(self.point.cursor, |chunk| chunk.sealed.first);
        let mut resume = self.point;
        let (mut bytes, before) = (0, resume.counts.success);
        for Chunk { sealed, .. } in &chunks {
            let seqs = sealed.len() as u64;
            let counts = ledger.may_commit_run((sealed.first, seqs), resume.cursor)?;
            debug_assert_eq!(counts, sealed.counts(), "two stories of a run");
            bytes += sealed.bytes;
            resume.counts.add(counts);
            resume.outcome_hash = resume.outcome_hash.wrapping_add(sealed.marks);
            resume.cursor += seqs;
        }
        let writes = resume.counts.success - before;
        let is_last = self.total == Some(resume.cursor);
        Ok(Batch { chunks, first, bytes, writes, resume, is_last })
    }
}

fn sink_refusal<P>(batch: &Batch<P>, error: SinkError) -> Refusal {
    Refusal::new(Code::SinkFailed)
        .with("seq", error.seq.unwrap_or(batch.first))
        .with("class", error.class.name())
        .with("reason", error.message)
}

/// The words of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied();
    let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    format!("panicked: {}", text.unwrap_or("without a message"))
}
