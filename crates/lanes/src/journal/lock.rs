//! One live process per journal.
//!
//! The lock is on the open file (flock), so it ends with the process, however that ends. A name may
//! move to another file while someone waits for the old one, so after locking the name is looked up
//! again.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use sprag_kernel::{Code, Refusal};

/// A killed process's lock lives on in a child that was forked and has not yet executed its
/// program, which is a matter of microseconds; this is how long to look past that.
const LOCK_PATIENCE: Duration = Duration::from_millis(250);
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Opens the file at `path` and locks it.
pub(super) fn open_locked(path: &Path, options: &OpenOptions) -> Result<File, Refusal> {
    let begun = Instant::now();
    loop {
        let file = options.open(path).map_err(|error| unavailable(path, "open", &error))?;
        if try_lock(&file).map_err(|error| unavailable(path, "lock", &error))? {
            if has_name(&file, path) {
                return Ok(file);
            }
        } else if begun.elapsed() >= LOCK_PATIENCE {
            return Err(Refusal::new(Code::JournalInUse).with("path", path.display().to_string()));
        } else {
            std::thread::sleep(LOCK_PAUSE);
        }
    }
}

/// Whether someone else holds the lock on this file.
pub(super) fn is_locked(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => flock(file, FlockOperation::Unlock).map(|()| false).map_err(io::Error::from),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

fn try_lock(file: &File) -> io::Result<bool> {
    match flock(file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

fn has_name(file: &File, path: &Path) -> bool {
    let (Ok(open), Ok(named)) = (file.metadata(), std::fs::metadata(path)) else { return false };
    (open.dev(), open.ino()) == (named.dev(), named.ino())
}

/// An input or output error with the file and what was tried.
pub(super) fn unavailable(path: &Path, operation: &'static str, error: &io::Error) -> Refusal {
    Refusal::new(Code::JournalUnavailable)
        .with("path", path.display().to_string())
        .with("operation", operation)
        .with("reason", error.to_string())
}
