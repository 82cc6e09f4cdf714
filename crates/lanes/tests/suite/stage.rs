//! What the tests of whole runs share: gates that hold items back, a sink that remembers, and waiting
//! for a condition instead of for a time.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use sprag_lanes::{Batch, Config, SinkError, Verdict};

/// Holds items back until they are let go, and knows which ones stand in front of it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<Doors>, Condvar)>);

#[derive(Default)]
struct Doors {
    closed: BTreeSet<u64>,
    waiting: BTreeSet<u64>,
}

impl Gate {
    /// A gate that is closed for these seqs.
    pub(crate) fn closed_for(seqs: impl IntoIterator<Item = u64>) -> Self {
        let gate = Self::default();
        gate.0.0.lock().unwrap().closed.extend(seqs);
        gate
    }

    pub(crate) fn open(&self, seq: u64) {
        self.0.0.lock().unwrap().closed.remove(&seq);
        self.0.1.notify_all();
    }

    /// Called by compute: returns once the gate is open for this seq.
    pub(crate) fn pass(&self, seq: u64) {
        let mut doors = self.0.0.lock().unwrap();
        doors.waiting.insert(seq);
        while doors.closed.contains(&seq) {
            doors = self.0.1.wait(doors).unwrap();
        }
        doors.waiting.remove(&seq);
    }

    pub(crate) fn is_closed(&self, seq: u64) -> bool {
        self.0.0.lock().unwrap().closed.contains(&seq)
    }

    pub(crate) fn holds(&self, seq: u64) -> bool {
        self.0.0.lock().unwrap().waiting.contains(&seq)
    }
}

/// What a sink was given.
#[derive(Clone, Default)]
pub(crate) struct Written(Arc<Mutex<Pages>>);

#[derive(Clone, Default)]
pub(crate) struct Pages {
    /// (seq, payload) of every success.
    pub(crate) writes: Vec<(u64, u64)>,
    /// (first, last) of every batch.
    pub(crate) runs: Vec<(u64, u64)>,
    /// Names of the outcomes, by seq.
    pub(crate) outcomes: Vec<&'static str>,
    /// Retries before the outcome, by seq.
    pub(crate) attempts: Vec<u16>,
}

impl Written {
    pub(crate) fn pages(&self) -> Pages {
        self.0.lock().unwrap().clone()
    }

    pub(crate) fn take(&self, batch: &Batch<u64>) {
        let mut pages = self.0.lock().unwrap();
        assert_eq!(batch.first(), pages.outcomes.len() as u64, "no gap, nothing twice");
        pages.runs.push((batch.first(), batch.last()));
        for (seq, envelope) in batch.iter() {
            pages.attempts.push(envelope.attempts);
            pages.outcomes.push(match &envelope.verdict {
                Verdict::Success(_) => "success",
                Verdict::Skip(_) => "skip",
                Verdict::Fail(..) => "fail",
                Verdict::Cancel => "cancel",
            });
            if let Verdict::Success(payload) = envelope.verdict {
                pages.writes.push((seq, *payload));
            }
        }
        assert_eq!(batch.resume().cursor, pages.outcomes.len() as u64);
    }

    pub(crate) fn sink(&self) -> impl FnMut(&mut Batch<u64>) -> Result<(), SinkError> + use<> {
        let written = self.clone();
        move |batch: &mut Batch<u64>| {
            written.take(batch);
            Ok(())
        }
    }
}

/// Claims of one, windows of `window`, this many threads.
pub(crate) fn config(threads: usize, window: u64) -> Config {
    let mut config = Config { threads, max_claim: 1, ..Config::default() };
    config.plan.max_entries = window;
    config
}

/// Waits for a condition that other threads bring about.
pub(crate) fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(30), "waited in vain until {what}");
        std::thread::yield_now();
    }
}
