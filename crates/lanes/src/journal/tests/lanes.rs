//! Lanes over a journal: a run that breaks off anywhere goes on and ends as if it never had.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;

use crate::journal::{Ending, Identity, Journal, JournalSink, MarkedSink, Settings};
use crate::{
    Backoff, Batch, Config, ErrorClass, Failure, Items, Lanes, Outcome, Report, SinkError, Summary,
    Verdict,
};

use super::Dice;

const ITEMS: u64 = 3_000;

/// A file that breaks after some batches, as a full disk would: in the middle of a batch.
struct Lines {
    file: File,
    length: u64,
    batches_left: u64,
}

impl Lines {
    fn open(path: &Path, mark: u64, batches_left: u64) -> Self {
        let mut options = OpenOptions::new();
        let mut file = options.create(true).truncate(false).write(true).open(path).unwrap();
        file.set_len(mark).unwrap();
        std::io::Seek::seek(&mut file, std::io::SeekFrom::Start(mark)).unwrap();
        Self { file, length: mark, batches_left }
    }
}

impl MarkedSink<String> for Lines {
    fn write(&mut self, batch: &mut Batch<String>) -> Result<u64, SinkError> {
        for (_, envelope) in batch.drain() {
            if let Verdict::Success(line) = envelope.verdict {
                self.file.write_all(line.as_bytes())?;
                self.length += line.len() as u64;
            }
        }
        if self.batches_left == 0 {
            return Err(SinkError::transient("broken"));
        }
        self.batches_left -= 1;
        Ok(self.length)
    }
}

fn attempt(item: u64, attempts: u16) -> Outcome<String> {
    match item % 11 {
        3 => Outcome::Skip("not this one".into()),
        5 => Outcome::Fail(ErrorClass::NonRetryableInput, "bad".into()),
        7 if attempts == 0 => Outcome::Fail(ErrorClass::RetryableTransient, "once".into()),
        _ => Outcome::Success(format!("line {item}\n")),
    }
}

/// One process of the run: opens, goes on, ends or breaks.
fn go_on(folder: &Path, threads: usize, batches: u64) -> Result<Summary, Box<Failure>> {
    let identity = Identity::of(b"lines");
    let settings = Settings { checkpoint_every: 5, compact_bytes: 3_000, ..Settings::default() };
    let path = folder.join("run.journal");
    let (journal, found) = Journal::open_or_create(&path, &identity, settings).unwrap();
    let lines = Lines::open(&folder.join("lines"), found.state.last.mark, batches);
    let config = Config {
        threads,
        backoff: Backoff::new(vec![1]).unwrap(),
        max_claim: 8,
        max_batch_bytes: 400,
        ..Config::default()
    };
    let Report { summary, sink } = Lanes::new(config).resume_journal(&found.state).run(
        Items::of(0..ITEMS),
        |item, context| attempt(*item, context.attempts()),
        JournalSink::new(lines, journal).unwrap(),
    )?;
    sink.close(Ending::Complete).unwrap();
    Ok(summary)
}

#[test]
fn a_run_that_breaks_again_and_again_ends_like_one_that_never_did() {
    let whole = tempfile::tempdir().unwrap();
    let undisturbed = go_on(whole.path(), 2, u64::MAX).unwrap();
    for seed in 0..6 {
        let mut dice = Dice(seed);
        let folder = tempfile::tempdir().unwrap();
        let mut breaks = 0;
        let summary = loop {
            match go_on(folder.path(), 1 + dice.roll(4) as usize, dice.roll(25)) {
                Ok(summary) => break summary,
                Err(failure) => assert!(failure.to_string().contains("broken"), "{failure}"),
            }
            breaks += 1;
        };
        assert!(breaks > 3, "it broke {breaks} times");
        let read = |folder: &Path| std::fs::read_to_string(folder.join("lines")).unwrap();
        assert_eq!(read(folder.path()), read(whole.path()));
        assert_eq!(summary.counts, undisturbed.counts);
        assert_eq!(summary.plan_hash, undisturbed.plan_hash);
        assert_eq!(summary.outcome_hash, undisturbed.outcome_hash);
        let (found, _) = crate::journal::inspect(&folder.path().join("run.journal")).unwrap();
        assert_eq!((found.state.cursor(), found.state.ending), (ITEMS, Ending::Complete));
        assert_eq!(found.state.retries, (0..ITEMS).filter(|item| item % 11 == 7).count() as u64);
    }
}
