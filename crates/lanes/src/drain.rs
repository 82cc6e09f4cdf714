//! The commit lane alone: for callers that compute elsewhere and need the order only.
//!
//! Outcomes arrive in any order; [`Drain::drain`] commits what follows the cursor without a gap. It is
//! single-threaded and deterministic: the same arrivals give the same runs.

use sprag_kernel::decide::seq::Outcome as Kept;
use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::planner::{Entry, PlanHasher};
use sprag_kernel::retry::{Budget, ErrorClass};

use crate::batch::Chunk;
use crate::commit::CommitLane;
use crate::config::Config;
use crate::ledger::Ledger;
use crate::outcome::{Envelope, Payload, Verdict};
use crate::seq_ledger::CANCELLER;
use crate::sink::Sink;
use crate::summary::Resume;
use crate::sync::Arc;
use crate::trail::{Steps, Trail};
use crate::windows::WindowGauge;

/// Whoever brings outcomes here owns their seqs under this name.
const BRINGER: u16 = 1;

/// A cursor over `total` seqs and the sink behind it.
pub struct Drain<P, K> {
    ledger: Ledger,
    trail: Trail,
    lane: CommitLane<P, K>,
    window: Arc<WindowGauge>,
    total: u64,
}

impl<P: Payload, K: Sink<P>> Drain<P, K> {
    /// A cursor at 0. Batches are cut at so many bytes.
    pub fn new(total: u64, sink: K, max_batch_bytes: u64) -> Self {
        let (trail, mut steps) = (Trail::default(), Steps::default());
        for _ in 0..total {
            steps.note(Entry { cost: 1, bytes: 0 }, None);
        }
        trail.append(&mut steps);
        let hasher = PlanHasher::new(&Config::default().plan);
        Self {
            ledger: Ledger::with_room_for(total).with_heartbeats(),
            trail,
            lane: CommitLane::new(sink, Resume::default(), hasher, max_batch_bytes)
                .of_total(Some(total)),
            window: Arc::default(),
            total,
        }
    }

    /// Takes the outcome of a seq. A second one is refused.
    pub fn arrive(&mut self, seq: u64, verdict: Verdict<P>) -> Result<(), Refusal> {
        if seq >= self.total {
            return Err(Refusal::new(Code::SeqUnknown).with("seq", seq).with("total", self.total));
        }
        self.walk(seq, &verdict)?;
        let envelope = Envelope::new(verdict, 0);
        self.lane.accept(Chunk::single(seq, envelope, Arc::clone(&self.window)));
        Ok(())
    }

    /// Commits everything that follows the cursor without a gap. Returns the first and last seq of
    /// each batch.
    pub fn drain(&mut self) -> Result<Vec<(u64, u64)>, Refusal> {
        let mut runs = Vec::new();
        while let Some(run) = self.lane.next_run() {
            let batch = self.lane.deliver(run, &self.ledger, &self.trail)?;
            runs.push((batch.first(), batch.last()));
        }
        Ok(runs)
    }

    /// Commits the run that begins at `first`. Refused, with nothing written, unless that is the cursor.
    pub fn commit_from(&mut self, first: u64) -> Result<(), Refusal> {
        let run = self.lane.run_at(first);
        if run.is_empty() {
            return Err(Refusal::new(Code::SeqUnknown).with("seq", first));
        }
        self.lane.deliver(run, &self.ledger, &self.trail).map(|_| ())
    }

    /// The committed prefix.
    pub fn resume(&self) -> Resume {
        self.lane.point()
    }

    /// Whether every seq is committed.
    pub fn is_complete(&self) -> bool {
        self.lane.point().cursor == self.total
    }

    fn walk(&self, seq: u64, verdict: &Verdict<P>) -> Result<(), Refusal> {
        if matches!(verdict, Verdict::Cancel) {
            return self.ledger.cancel(seq, CANCELLER).map(|_| ());
        }
        let lease = self.ledger.dispatch(seq, BRINGER, 0)?;
        self.ledger.start(seq, lease, 0)?;
        match verdict {
            Verdict::Success(_) => self.ledger.finish(seq, lease, Kept::Success).map(|_| ()),
            Verdict::Skip(_) => self.ledger.finish(seq, lease, Kept::Skip).map(|_| ()),
            Verdict::Fail(..) | Verdict::Cancel => {
                // Whoever computed has spent its retries; what arrives here is final.
                let budget = Budget { max_retries: 0, window_left: None };
                let rules = sprag_kernel::decide::seq::FailRules { budget, cancelled: false };
                let class = ErrorClass::NonRetryableInput;
                self.ledger.fail(seq, lease, class, rules).map(|_| ())
            }
        }
    }
}
