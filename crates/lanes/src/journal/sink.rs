//! A sink with a journal behind it: what the lanes hand over is written, made durable, then committed.

use std::time::Instant;

use sprag_kernel::Refusal;
use sprag_kernel::retry::Millis;

use super::{CommitRun, Ended, Ending, Journal, Outcome, RunState};
use crate::batch::Batch;
use crate::outcome::Verdict;
use crate::sink::{Sink, SinkError};
use crate::summary::{Counts, Resume};

/// A sink that can say how much it holds.
pub trait MarkedSink<P>: Send + 'static {
    /// Writes the successes of a batch and returns the mark behind them, for a file its length. What
    /// the mark covers survives whatever the journal's sync policy is to survive; the journal is
    /// appended to only after this returns. A run that resumes cuts the sink back to the last mark.
    fn write(&mut self, batch: &mut Batch<P>) -> Result<u64, SinkError>;
}

/// Writes to a sink, then commits to a journal.
#[derive(Debug)]
pub struct JournalSink<K> {
    inner: K,
    journal: Journal,
    begun: Instant,
    ends: Vec<Ended>,
}

impl<K> JournalSink<K> {
    /// A sink that is at the journal's last mark.
    pub fn new(inner: K, journal: Journal) -> Self {
        Self { inner, journal, begun: Instant::now(), ends: Vec::new() }
    }

    /// Ends the journal in good order and gives the sink back.
    pub fn close(self, ending: Ending) -> Result<K, Refusal> {
        let now = self.now();
        self.journal.close(ending, now)?;
        Ok(self.inner)
    }

    fn now(&self) -> Millis {
        Millis::try_from(self.begun.elapsed().as_millis()).unwrap_or(Millis::MAX)
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
        let now = self.now();
        let resume = batch.resume();
        let run = CommitRun {
            first_seq: batch.first(),
            ends: &self.ends,
            mark,
            input_hash: resume.input_hash,
            outcome_hash: resume.outcome_hash,
        };
        self.journal.append(&run, now).map_err(SinkError::transient)
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

fn outcome<P, T>(verdict: &Verdict<P, T>) -> Outcome {
    match verdict {
        Verdict::Success(_) => Outcome::Success,
        Verdict::Skip(_) => Outcome::Skip,
        Verdict::Fail(..) => Outcome::Fail,
        Verdict::Cancel => Outcome::Cancel,
    }
}
