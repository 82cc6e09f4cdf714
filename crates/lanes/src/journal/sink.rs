//! A sink with a journal behind it: what the lanes hand over is written, made durable, then committed.

use std::fmt;
use std::time::Instant;

use sprag_kernel::Refusal;

use super::thread::{self, JournalThread, Syncer};
use super::{CommitRun, Ended, Ending, Journal, Outcome, RunState};
use crate::batch::Batch;
use crate::lanes::Lanes;
use crate::outcome::Verdict;
use crate::sink::{Sink, SinkError};
use crate::summary::{Counts, Resume};

/// A sink that can say how much it holds.
pub trait MarkedSink<P>: Send + 'static {
    /// Writes the successes of a batch and returns the mark behind them, for a file its length. The
    /// journal hears of them only after this returns. A run that resumes cuts the sink back to the
    /// last mark of its journal.
    fn write(&mut self, batch: &mut Batch<P>) -> Result<u64, SinkError>;

    /// What makes the writes so far durable, if they are not when `write` returns. Asked for once;
    /// called on the journal's thread, once for each group of commits and before they are appended,
    /// unless the policy is to sync nothing.
    fn syncer(&self) -> std::io::Result<Option<Syncer>> {
        Ok(None)
    }
}

/// Writes to a sink, then commits to a journal.
///
/// The journal is written by a thread of its own, [`Settings::gather_ms`](super::Settings::gather_ms)
/// at a time. The seqs of that time are not committed yet: after a kill they run again, and what the
/// sink holds of them is behind the mark to which it is cut back. With
/// [`SyncPolicy::Always`](super::SyncPolicy::Always) each batch is in the journal, and synced, before the
/// next one comes. A sink that is dropped has its commits written too.
pub struct JournalSink<K> {
    inner: K,
    thread: JournalThread,
    begun: Instant,
    mark: u64,
    ends: Vec<Ended>,
}

impl<K> JournalSink<K> {
    /// A sink that is at the journal's last mark.
    pub fn new<P>(inner: K, journal: Journal) -> Result<Self, Refusal>
    where
        K: MarkedSink<P>,
    {
        let (begun, mark) = (Instant::now(), journal.mark());
        let syncer = inner.syncer().map_err(|error| thread::unsynced(&error))?;
        let thread = JournalThread::start(journal, syncer, begun)?;
        Ok(Self { inner, thread, begun, mark, ends: Vec::new() })
    }

    /// Ends the journal in good order and gives the sink back.
    pub fn close(self, ending: Ending) -> Result<K, Refusal> {
        self.thread.finish()?.close(ending, thread::now(self.begun))?;
        Ok(self.inner)
    }
}

impl<P: 'static, K: MarkedSink<P>> Sink<P> for JournalSink<K> {
    fn commit(&mut self, batch: &mut Batch<P>) -> Result<(), SinkError> {
        self.ends.clear();
        self.ends.extend(batch.iter().map(|(_, envelope)| Ended {
            outcome: outcome(&envelope.verdict),
            attempts: u32::from(envelope.attempts),
        }));
        let mark = self.inner.write(batch)?;
        if mark < self.mark {
            let (before, now) = (self.mark, mark);
            return Err(SinkError::permanent(format!("the mark went back from {before} to {now}")));
        }
        self.mark = mark;
        let resume = batch.resume();
        let run = CommitRun {
            first_seq: batch.first(),
            ends: &self.ends,
            mark,
            input_hash: resume.input_hash,
            outcome_hash: resume.outcome_hash,
        };
        self.thread.commit(&run).map_err(SinkError::transient)
    }
}

// By hand, since sinks are often without Debug.
impl<K> fmt::Debug for JournalSink<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("JournalSink").field("mark", &self.mark).finish_non_exhaustive()
    }
}

impl RunState {
    /// The point from which the lanes go on.
    pub fn resume(&self) -> Resume {
        let super::Counts { success, skip, fail, cancel } = self.counts;
        Resume {
            cursor: self.cursor(),
            counts: Counts { success, skip, fail, cancel },
            outcome_hash: self.last.outcome_hash,
            input_hash: self.last.input_hash,
        }
    }
}

impl Lanes {
    /// Goes on behind what a journal holds. The source is read again from its start; one that is not
    /// the same up to there is refused with the range of seqs in which it first differs.
    #[must_use]
    pub fn resume_journal(self, state: &RunState) -> Self {
        let mut check = state.input_check();
        self.resume(state.resume()).reread(move |entries, hash| check.at(entries, hash))
    }
}

fn outcome<P, T>(verdict: &Verdict<P, T>) -> Outcome {
    match verdict {
        Verdict::Success(_) => Outcome::Success,
        Verdict::Skip(_) => Outcome::Skip,
        Verdict::Fail(..) => Outcome::Fail,
        Verdict::Cancel => Outcome::Cancel,
    }
}
