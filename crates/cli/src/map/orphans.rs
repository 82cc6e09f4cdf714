//! Commands that a killed run left behind.
//!
//! Every command inherits a descriptor of the file `JOURNAL.commands`, locked by the run. The lock
//! belongs to the open file, so it lasts until the run and the last of its commands have ended. A
//! resume takes the lock before it starts anything: so an item never runs twice at the same time.
//! What closes its inherited descriptors and lives on is not seen.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::process::{Pid, Signal, getpgid, kill_process, kill_process_group};

use super::groups::KILL_AFTER;

const LOOK_AGAIN: Duration = Duration::from_millis(20);
/// How long waiting is not worth a word.
const SILENT: Duration = Duration::from_millis(500);

/// The lock that commands inherit. Held by the one process that holds the journal.
#[derive(Debug)]
pub struct CommandsLock {
    path: PathBuf,
    file: File,
}

/// What to do about commands that are still alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Orphans {
    /// Wait until they have ended.
    Wait,
    /// End them.
    End,
}

impl CommandsLock {
    /// Takes the lock of this journal once no command of an earlier run is left. The caller holds
    /// the journal. `waits` is told once if that takes a while; `None` if `stop` says so first.
    pub fn take(
        journal: &Path,
        orphans: Orphans,
        mut waits: impl FnMut(&[Pid]),
        stop: impl Fn() -> bool,
    ) -> io::Result<Option<Self>> {
        let path = path_of(journal);
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path)?;
        let begun = Instant::now();
        let (mut told, mut asked) = (false, None);
        while !try_lock(&file)? {
            match orphans {
                Orphans::End => end_holders(&file, &mut asked)?,
                Orphans::Wait if !told && begun.elapsed() >= SILENT => {
                    waits(&holders(&file)?);
                    told = true;
                }
                Orphans::Wait => {}
            }
            if stop() {
                return Ok(None);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        // Only now, so that nothing inherits a descriptor without its lock.
        fcntl_setfd(&file, FdFlags::empty())?;
        Ok(Some(Self { path, file }))
    }

    /// Removes the file once every command has ended. The journal is still held.
    pub fn remove(self) -> io::Result<()> {
        fcntl_setfd(&self.file, FdFlags::CLOEXEC)?;
        fs::remove_file(&self.path)
    }
}

/// Processes that still hold the lock of this journal's commands.
pub fn left_behind(journal: &Path) -> io::Result<Vec<Pid>> {
    match File::open(path_of(journal)) {
        Ok(file) if !try_lock(&file)? => holders(&file),
        Ok(_) => Ok(Vec::new()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn path_of(journal: &Path) -> PathBuf {
    let mut name = journal.as_os_str().to_owned();
    name.push(".commands");
    name.into()
}

fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Asks the holders to end, and kills them if they do not.
fn end_holders(file: &File, asked: &mut Option<Instant>) -> io::Result<()> {
    let signal = match asked {
        None => Signal::TERM,
        Some(then) if then.elapsed() >= KILL_AFTER => Signal::KILL,
        Some(_) => return Ok(()),
    };
    asked.get_or_insert_with(Instant::now);
    for pid in holders(file)? {
        // Commands lead groups of their own; a holder in the group of something else is ended alone.
        if getpgid(Some(pid)) == Ok(pid) {
            let _ = kill_process_group(pid, signal);
        } else {
            let _ = kill_process(pid, signal);
        }
    }
    Ok(())
}

/// Processes that have this file open, besides this one.
fn holders(file: &File) -> io::Result<Vec<Pid>> {
    let wanted = file.metadata()?;
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        if pid == std::process::id() as i32 {
            continue;
        }
        // A process that ended meanwhile, or belongs to someone else, has nothing to show.
        let Ok(open) = fs::read_dir(process.path().join("fd")) else { continue };
        let holds = open.flatten().filter_map(|fd| fs::metadata(fd.path()).ok());
        if holds.into_iter().any(|at| (at.dev(), at.ino()) == (wanted.dev(), wanted.ino())) {
            found.extend(Pid::from_raw(pid));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn take(journal: &Path, orphans: Orphans) -> Option<CommandsLock> {
        let begun = Instant::now();
        let stop = || begun.elapsed() > Duration::from_millis(300);
        CommandsLock::take(journal, orphans, |_| {}, stop).unwrap()
    }

    #[test]
    fn a_command_keeps_the_lock_until_it_ends_or_is_ended() {
        let folder = tempfile::tempdir().unwrap();
        let journal = folder.path().join("run.journal");
        let lock = take(&journal, Orphans::Wait).unwrap();
        let mut left = Command::new("sleep").arg("61").spawn().unwrap();
        drop(lock);
        assert_eq!(left_behind(&journal).unwrap(), [Pid::from_child(&left)]);
        assert!(take(&journal, Orphans::Wait).is_none(), "it waits");
        // Reaped in the background, as init would.
        let reaper = std::thread::spawn(move || left.wait().unwrap());
        let lock = take(&journal, Orphans::End).unwrap();
        assert!(!reaper.join().unwrap().success());
        lock.remove().unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
