//! The journal beside the lane: in groups, behind the results, never in the way, never lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sprag_kernel::Code;

use crate::journal::thread::{JournalThread, Syncer};
use crate::journal::{
    CommitRun, Ended, Ending, Identity, Journal, JournalSink, MarkedSink, Outcome, Replay,
    Settings, SyncPolicy, inspect,
};
use crate::{Batch, Config, Items, Lanes, SinkError, Verdict};

const SUCCESS: Ended = Ended { outcome: Outcome::Success, attempts: 0 };
/// Longer than any test: a group then ends because it must, not because time passed.
const NEVER_MS: u64 = 3_600_000;

fn open(path: &Path, sync: SyncPolicy, gather_ms: u64) -> (Journal, Replay) {
    let settings = Settings { sync, gather_ms, ..Settings::default() };
    Journal::open_or_create(path, &Identity::of(b"beside"), settings).unwrap()
}

fn start(path: &Path, sync: SyncPolicy, gather_ms: u64, syncer: Option<Syncer>) -> JournalThread {
    JournalThread::start(open(path, sync, gather_ms).0, syncer, Instant::now()).unwrap()
}

fn run(first_seq: u64, ends: &[Ended]) -> CommitRun<'_> {
    let mark = first_seq + ends.len() as u64;
    CommitRun { first_seq, ends, mark, input_hash: [0; 32], outcome_hash: 0 }
}

fn cursor(path: &Path) -> u64 {
    inspect(path).unwrap().0.state.cursor()
}

#[test]
fn commits_are_gathered_and_a_dropped_thread_has_written_them_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let thread = start(&path, SyncPolicy::Batch, NEVER_MS, None);
    for first in 0..1_000 {
        thread.commit(&run(first, &[SUCCESS])).unwrap();
    }
    assert_eq!(cursor(&path), 0, "they wait for each other");
    drop(thread);
    let found = inspect(&path).unwrap().0;
    assert_eq!(found.state.cursor(), 1_000);
    // Two checkpoints, of the creation and of the opening, and one group of two records.
    assert_eq!(found.records, 4);
}

#[test]
fn a_commit_that_nobody_follows_is_written_all_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let thread = start(&path, SyncPolicy::None, 1, None);
    thread.commit(&run(0, &[SUCCESS])).unwrap();
    let begun = Instant::now();
    while cursor(&path) == 0 {
        assert!(begun.elapsed() < Duration::from_secs(30), "it waits for ever");
        std::thread::yield_now();
    }
    drop(thread);
}

#[test]
fn with_sync_always_each_commit_is_in_the_journal_when_it_returns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let thread = start(&path, SyncPolicy::Always, NEVER_MS, None);
    for first in 0..20 {
        thread.commit(&run(first, &[SUCCESS])).unwrap();
        assert_eq!(cursor(&path), first + 1);
    }
    assert_eq!(thread.finish().unwrap().cursor(), 20);
}

#[test]
fn results_are_durable_before_the_journal_speaks_of_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let (held, durable) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (from, to, looked) = (Arc::clone(&held), Arc::clone(&durable), path.clone());
    let syncer: Syncer = Box::new(move || {
        assert!(cursor(&looked) <= to.load(Ordering::SeqCst), "it spoke too early");
        to.store(from.load(Ordering::SeqCst), Ordering::SeqCst);
        Ok(())
    });
    let thread = start(&path, SyncPolicy::Batch, 0, Some(syncer));
    for first in 0..300 {
        held.store(first + 1, Ordering::SeqCst);
        thread.commit(&run(first, &[SUCCESS])).unwrap();
    }
    thread.finish().unwrap();
    assert_eq!((cursor(&path), durable.load(Ordering::SeqCst)), (300, 300));
}

#[test]
fn results_that_cannot_be_made_durable_are_not_committed_and_the_lane_hears_of_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let syncer: Syncer = Box::new(|| Err(std::io::Error::other("the disk is gone")));
    let thread = start(&path, SyncPolicy::Always, 0, Some(syncer));
    let refusal = thread.commit(&run(0, &[SUCCESS])).unwrap_err();
    assert_eq!(refusal.code(), Code::JournalUnavailable);
    assert!(refusal.to_string().contains("the disk is gone"), "{refusal}");
    assert_eq!(thread.commit(&run(0, &[SUCCESS])).unwrap_err().code(), Code::JournalUnavailable);
    assert_eq!(thread.finish().unwrap_err().code(), Code::JournalUnavailable);
    assert_eq!(cursor(&path), 0);
}

#[test]
fn a_thread_that_panics_is_an_error_and_not_a_hang() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let syncer: Syncer = Box::new(|| panic!("planted"));
    let thread = start(&path, SyncPolicy::Always, 0, Some(syncer));
    assert_eq!(thread.commit(&run(0, &[SUCCESS])).unwrap_err().code(), Code::InvariantBroken);
    assert_eq!(thread.finish().unwrap_err().code(), Code::InvariantBroken);
}

#[test]
fn while_the_disk_is_stuck_only_so_many_seqs_wait() {
    const MOST: u64 = 64 << 10;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let (release, stuck) = mpsc::channel::<()>();
    let syncer: Syncer = Box::new(move || {
        // Each group waits to be let through; once nobody holds it back the rest goes freely.
        let _ = stuck.recv();
        Ok(())
    });
    let thread = start(&path, SyncPolicy::Batch, 0, Some(syncer));
    let lane = std::thread::spawn(move || {
        let ends = [SUCCESS; 1_000];
        for first in (0..400_000).step_by(1_000) {
            thread.commit(&run(first, &ends)).unwrap();
        }
        thread.finish().unwrap();
    });
    for _ in 0..3 {
        release.send(()).unwrap();
    }
    drop(release);
    lane.join().unwrap();
    let state = inspect(&path).unwrap().0.state;
    assert_eq!(state.cursor(), 400_000);
    let ends: Vec<u64> = state.points().map(|point| point.end_seq).collect();
    assert!(ends.windows(2).all(|pair| pair[1] - pair[0] <= MOST), "{ends:?}");
}

/// Lines in a file. At each write and each sync it keeps a picture of both files, as a kill at that
/// moment would leave them.
struct Filmed {
    folder: PathBuf,
    lines: fs::File,
    length: u64,
    pictures: Arc<AtomicU64>,
    most_pictures: u64,
    back: bool,
}

fn picture(folder: &Path, pictures: &AtomicU64) {
    let taken = folder.join(pictures.fetch_add(1, Ordering::SeqCst).to_string());
    fs::create_dir(&taken).unwrap();
    // The journal first: lines that come in between are lines that it does not know.
    for name in ["run.journal", "lines"] {
        fs::copy(folder.join(name), taken.join(name)).unwrap();
    }
}

impl Filmed {
    fn open(folder: &Path, mark: u64) -> Self {
        let path = folder.join("lines");
        let mut options = fs::OpenOptions::new();
        let mut lines = options.create(true).truncate(false).write(true).open(path).unwrap();
        lines.set_len(mark).unwrap();
        std::io::Seek::seek(&mut lines, std::io::SeekFrom::Start(mark)).unwrap();
        Self {
            folder: folder.into(),
            lines,
            length: mark,
            pictures: Arc::default(),
            most_pictures: 0,
            back: false,
        }
    }
}

impl MarkedSink<String> for Filmed {
    fn write(&mut self, batch: &mut Batch<String>) -> Result<u64, SinkError> {
        use std::io::Write;
        for (_, envelope) in batch.drain() {
            if let Verdict::Success(line) = envelope.verdict {
                self.lines.write_all(line.as_bytes())?;
                self.length += line.len() as u64;
            }
        }
        if self.pictures.load(Ordering::SeqCst) < self.most_pictures {
            picture(&self.folder, &self.pictures);
        }
        Ok(if self.back && self.length > 5_000 { 1 } else { self.length })
    }

    fn syncer(&self) -> std::io::Result<Option<Syncer>> {
        let (file, folder) = (self.lines.try_clone()?, self.folder.clone());
        let (pictures, once) =
            (Arc::clone(&self.pictures), AtomicBool::new(self.most_pictures > 0));
        Ok(Some(Box::new(move || {
            if once.swap(false, Ordering::SeqCst) {
                picture(&folder, &pictures);
            }
            file.sync_data()
        })))
    }
}

fn film(folder: &Path, most_pictures: u64, back: bool) -> Result<u64, Box<crate::Failure>> {
    let (journal, found) = open(&folder.join("run.journal"), SyncPolicy::Batch, 0);
    let sink = Filmed { most_pictures, back, ..Filmed::open(folder, found.state.last.mark) };
    let config = Config { threads: 2, max_claim: 8, max_batch_bytes: 400, ..Config::default() };
    let report = Lanes::new(config).resume_journal(&found.state).run(
        Items::of(0..2_000_u64),
        |item, _| crate::Outcome::Success(format!("line {item}\n")),
        JournalSink::new(sink, journal).unwrap(),
    )?;
    report.sink.close(Ending::Complete).unwrap();
    Ok(report.summary.outcome_hash)
}

#[test]
fn a_run_killed_at_any_write_ends_like_one_that_was_not() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = film(folder.path(), 40, false).unwrap();
    let whole = fs::read(folder.path().join("lines")).unwrap();
    let mut killed = 0;
    while folder.path().join(killed.to_string()).exists() {
        let left = folder.path().join(killed.to_string());
        assert_eq!(film(&left, 0, false).unwrap(), undisturbed);
        assert_eq!(fs::read(left.join("lines")).unwrap(), whole);
        killed += 1;
    }
    assert!(killed > 20, "{killed} pictures");
}

#[test]
fn a_mark_that_goes_back_ends_the_run_and_keeps_what_was_committed() {
    let folder = tempfile::tempdir().unwrap();
    let failure = film(folder.path(), 0, true).unwrap_err();
    assert_eq!(failure.code(), Code::SinkFailed);
    assert!(failure.to_string().contains("the mark went back"), "{failure}");
    assert_eq!(cursor(&folder.path().join("run.journal")), failure.resume.cursor);
}
