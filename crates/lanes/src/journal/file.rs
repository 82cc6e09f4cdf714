//! A journal as a file: created, opened, compacted, closed, by one process at a time.
//!
//! The name always belongs to a whole journal: a new one is written beside it, locked, synced, and
//! only then given the name; the folder is synced so that the name survives too. A reader therefore
//! never meets a journal that is being born or rewritten.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use super::header::MAX_NOTE;
use super::lock::{self, unavailable};
use super::log::{self, Log};
use super::medium::{DiskFile, Medium};
use super::replay::{Replay, replay};
use super::state::{Ending, RunState};
use super::{CommitRun, Identity, Settings, SyncPolicy, fault};

/// How often, and how far apart, a journal that looks damaged while it is written to is read again.
const INSPECT_AGAIN: u32 = 5;
const INSPECT_PAUSE: Duration = Duration::from_millis(3);

/// A journal that this process holds and writes.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    identity: Identity,
    settings: Settings,
    log: Log<DiskFile>,
    /// The length after the last compaction.
    compacted_length: u64,
}

impl Journal {
    /// Opens the journal of this run, or begins it if there is none. The replay says where to go on.
    pub fn open_or_create(
        path: &Path,
        identity: &Identity,
        settings: Settings,
    ) -> Result<(Self, Replay), Refusal> {
        if identity.note.len() > MAX_NOTE {
            return Err(Refusal::new(Code::InputTooLarge).with("limit", MAX_NOTE));
        }
        if !path.exists() {
            create(path, identity)?;
        }
        Self::open(path, identity, settings)
    }

    /// Opens an existing journal of this run: locks, replays, cuts a torn tail, begins an epoch.
    pub fn open(
        path: &Path,
        identity: &Identity,
        settings: Settings,
    ) -> Result<(Self, Replay), Refusal> {
        let file = lock::open_locked(path, OpenOptions::new().read(true).write(true))?;
        let found = read(path, &file)?;
        check_identity(path, &found, identity)?;
        let log = Log::taken_over(DiskFile(file), &found, std::process::id(), settings)?;
        let compacted_length = log.at.offset;
        let journal =
            Self { path: path.into(), identity: identity.clone(), settings, log, compacted_length };
        Ok((journal, found))
    }

    /// The next seq to commit.
    pub fn cursor(&self) -> u64 {
        self.log.totals.last.end_seq
    }

    /// What the sink holds of the committed seqs.
    pub fn mark(&self) -> u64 {
        self.log.totals.last.mark
    }

    /// How it is written.
    pub fn settings(&self) -> Settings {
        self.settings
    }

    /// Appends a committed run. The sink holds it durably already. Seqs that the journal knows with
    /// the same outcome are passed over; another outcome, or a gap, is refused.
    pub fn append(&mut self, run: &CommitRun<'_>, now: Millis) -> Result<(), Refusal> {
        if run.ends.is_empty() {
            return Ok(());
        }
        if run.first_seq > self.cursor() {
            return Err(Refusal::new(Code::SeqNotCursor)
                .with("seq", run.first_seq)
                .with("cursor", self.cursor()));
        }
        let known = self.known_part(run)?;
        if known == run.ends.len() {
            return Ok(());
        }
        let first_seq = run.first_seq + known as u64;
        self.log.append(&CommitRun { first_seq, ends: &run.ends[known..], ..*run }, now)?;
        if self.log.checkpoint_due() { self.checkpoint(Ending::Open, now) } else { Ok(()) }
    }

    /// Marks a checkpoint; compacts if the journal has grown enough since the last time.
    pub fn checkpoint(&mut self, ending: Ending, now: Millis) -> Result<(), Refusal> {
        self.log.checkpoint(ending, now)?;
        let grown = self.log.at.offset - self.compacted_length;
        if grown >= self.settings.compact_bytes { self.rewrite() } else { Ok(()) }
    }

    /// Syncs if the policy wants it by now; for the idle moments of the commit lane.
    pub fn sync_if_due(&mut self, now: Millis) -> Result<(), Refusal> {
        self.log.sync_if_due(now)
    }

    /// When [`Journal::sync_if_due`] has something to do.
    pub fn sync_due_at(&self) -> Option<Millis> {
        self.log.sync_due_at()
    }

    /// Syncs everything appended so far, whatever the policy.
    pub fn sync(&mut self) -> Result<(), Refusal> {
        self.log.sync()
    }

    /// Rewrites the journal with the fewest records that replay to the same state.
    pub fn compact(&mut self, now: Millis) -> Result<(), Refusal> {
        self.log.checkpoint(Ending::Open, now)?;
        self.rewrite()
    }

    /// Ends the epoch in good order and gives back the room taken ahead.
    pub fn close(mut self, ending: Ending, now: Millis) -> Result<(), Refusal> {
        self.log.checkpoint(ending, now)?;
        let length = self.log.at.offset;
        let cut = self.log.medium.cut(length).and_then(|()| match self.settings.sync {
            SyncPolicy::None => Ok(()),
            SyncPolicy::Batch | SyncPolicy::Always => self.log.medium.sync(),
        });
        cut.map_err(|error| unavailable(&self.path, "close", &error))
    }

    /// How many seqs at the front of `run` the journal holds already. Rare, so it looks at the file.
    fn known_part(&self, run: &CommitRun<'_>) -> Result<usize, Refusal> {
        if run.first_seq == self.cursor() {
            return Ok(0);
        }
        let found = read(&self.path, &self.log.medium.0)?;
        log::cut_known(run, self.cursor(), &found.state.outcomes)
    }

    /// Only called right behind a checkpoint.
    fn rewrite(&mut self) -> Result<(), Refusal> {
        let found = read(&self.path, &self.log.medium.0)?;
        debug_assert!(found.torn.is_none(), "nobody else writes");
        let new = beside(&self.path, "compact");
        let log = write_new(&new, &self.identity, &found.state, self.settings)?;
        let rename = fault::rename(&new, &self.path).and_then(|()| fault::sync_folder(&self.path));
        rename.map_err(|error| unavailable(&self.path, "rename", &error))?;
        self.compacted_length = log.at.offset;
        self.log = log;
        Ok(())
    }
}

/// Reads the journal at `path` without taking it: what it says, and whether a live process holds it.
/// Of a journal in use the end may look torn.
pub fn inspect(path: &Path) -> Result<(Replay, bool), Refusal> {
    let file = File::open(path).map_err(|error| unavailable(path, "open", &error))?;
    let in_use = lock::is_locked(&file).map_err(|error| unavailable(path, "lock", &error))?;
    let mut found = read(path, &file);
    for _ in 0..INSPECT_AGAIN {
        // The writer was in the middle of a record when the reader came by, and further than that when
        // it read on. Real damage is still there the next time.
        if !in_use || found.is_ok() {
            break;
        }
        std::thread::sleep(INSPECT_PAUSE);
        found = read(path, &file);
    }
    Ok((found?, in_use))
}

fn create(path: &Path, identity: &Identity) -> Result<(), Refusal> {
    let new = beside(path, "new");
    let settings = Settings { sync: SyncPolicy::Always, ..Settings::default() };
    let state = RunState::new(0);
    let _locked = write_new(&new, identity, &state, settings)?;
    // A link refuses a name that is taken, where a rename would replace another process's journal.
    match fault::link(&new, path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    }
    .and_then(|()| fault::remove(&new))
    .and_then(|()| fault::sync_folder(path))
    .map_err(|error| unavailable(path, "create", &error))
}

/// Writes a journal of `state` under a name of its own, synced and locked.
fn write_new(
    new: &Path,
    identity: &Identity,
    state: &RunState,
    settings: Settings,
) -> Result<Log<DiskFile>, Refusal> {
    let options = OpenOptions::new().read(true).write(true).create(true).truncate(false).clone();
    let mut file = lock::open_locked(new, &options)?;
    // A file of this name is what a killed process left of the same attempt. If that came to give it its
    // name, it is a journal with two names by now: this one is taken away, and nothing is cut.
    while std::os::unix::fs::MetadataExt::nlink(&metadata(new, &file)?) > 1 {
        fault::remove(new).map_err(|error| unavailable(new, "remove", &error))?;
        file = lock::open_locked(new, &options)?;
    }
    fault::set_len(&file, 0).map_err(|error| unavailable(new, "cut", &error))?;
    Log::written(DiskFile(file), identity, state, settings)
}

fn metadata(path: &Path, file: &File) -> Result<std::fs::Metadata, Refusal> {
    file.metadata().map_err(|error| unavailable(path, "look at", &error))
}

fn check_identity(path: &Path, found: &Replay, identity: &Identity) -> Result<(), Refusal> {
    let place = |code: Code| {
        Refusal::new(code)
            .with("path", path.display().to_string())
            .with("belongs_to", String::from_utf8_lossy(&found.identity.note).into_owned())
    };
    if found.identity.run_id != identity.run_id {
        return Err(place(Code::JournalOtherRun));
    }
    if found.identity.plan_hash != identity.plan_hash {
        return Err(place(Code::PlanChanged).with("changed", "configuration"));
    }
    Ok(())
}

fn read(path: &Path, mut file: &File) -> Result<Replay, Refusal> {
    let mut bytes = Vec::new();
    std::io::Seek::rewind(&mut file)
        .and_then(|()| file.read_to_end(&mut bytes))
        .map_err(|error| unavailable(path, "read", &error))?;
    replay(&bytes).map_err(|refusal| refusal.with("path", path.display().to_string()))
}

/// `run.journal` becomes `run.journal.new`.
fn beside(path: &Path, extension: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(extension);
    name.into()
}
