//! SQLite's log, written in long pieces.
//!
//! At a commit SQLite writes each page to its log with two calls to the system, though the pages lie one behind the
//! other. On a connection from [`open`], a commit inside of [`in_long_pieces`] gathers them and writes many at once.
//! What is in the files, and when others see it, is the same.
//!
//! What may wait, and why nothing else does: in a commit SQLite holds the lock of the log, writes frames to its end, and
//! tells others of them when the last one is written. Up to there nobody else looks at that part of the log, and with
//! the last one nothing waits any more (`gathered`). A commit that fails leaves nothing behind that could be written
//! later, over what somebody else has committed meanwhile: what waits belongs to the call of [`in_long_pieces`].
//!
//! This is the only crate with unsafe code (`vfs`): it stands between SQLite and the file system that SQLite was built
//! with. That still does everything; only the methods of a log pass through here.

mod gathered;
mod vfs;

use std::cell::RefCell;
use std::path::Path;

use rusqlite::{Connection, OpenFlags};

use gathered::Gathered;

/// Opens a file as `Connection::open` does, so that its log can be written in long pieces.
pub fn open(path: &Path) -> rusqlite::Result<Connection> {
    Connection::open_with_flags_and_vfs(path, OpenFlags::default(), vfs::registered()?)
}

/// Runs a COMMIT, and nothing that reads or writes in other ways before it or after it.
pub fn in_long_pieces<T>(commit: impl FnOnce() -> T) -> T {
    let _committing = Committing::begin();
    commit()
}

/// A commit of this thread: the log it writes to, known by where its file lies in memory, and what waits.
#[derive(Default)]
struct Commit {
    log: Option<usize>,
    gathered: Gathered,
}

thread_local! {
    static COMMIT: RefCell<Option<Commit>> = const { RefCell::new(None) };
}

/// As long as it is there this thread is in a commit.
struct Committing;

impl Committing {
    fn begin() -> Self {
        COMMIT.set(Some(Commit::default()));
        Self
    }
}

impl Drop for Committing {
    fn drop(&mut self) {
        COMMIT.set(None);
    }
}

/// Writes to a log, or lets it wait. `file` writes to the file itself.
fn write<E>(
    log: usize,
    bytes: &[u8],
    at: i64,
    mut file: impl FnMut(&[u8], i64) -> Result<(), E>,
) -> Result<(), E> {
    COMMIT.with_borrow_mut(|commit| {
        let Some(commit) = commit else { return file(bytes, at) };
        // A commit may go to several files; those behind the first one are written as SQLite does it.
        if *commit.log.get_or_insert(log) == log {
            commit.gathered.write(bytes, at, file)
        } else {
            file(bytes, at)
        }
    })
}

/// Whoever does anything else with a log finds in it what has been written to it.
fn flush<E>(log: usize, file: impl FnMut(&[u8], i64) -> Result<(), E>) -> Result<(), E> {
    COMMIT.with_borrow_mut(|commit| match commit {
        Some(commit) if commit.log == Some(log) => commit.gathered.flush(file),
        _ => Ok(()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRONT: [u8; 24] =
        [7, 0, 0, 0, 0, 0, 0, 0, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7];

    /// Writes a front and a page that commit nothing, and says how often the file was written to.
    fn frames(log: usize, at: i64) -> usize {
        let mut writes = 0;
        let mut file = |_: &[u8], _: i64| {
            writes += 1;
            Ok::<_, ()>(())
        };
        write(log, &FRONT, at, &mut file).unwrap();
        write(log, &[7; 512], at + 24, &mut file).unwrap();
        writes
    }

    /// A page that had to leave the cache is rolled back with its transaction, and SQLite tells nobody.
    #[test]
    fn nothing_waits_outside_of_a_commit() {
        assert_eq!((frames(1, 32), frames(1, 568)), (2, 2));
        assert_eq!(in_long_pieces(|| (frames(1, 32), frames(1, 568))), (1, 0));
        assert_eq!(frames(1, 1_104), 2);
    }

    #[test]
    fn what_a_failed_commit_leaves_is_written_by_nobody() {
        let nothing =
            |_: &[u8], _: i64| -> Result<(), ()> { panic!("somebody else's frames are there") };
        in_long_pieces(|| frames(1, 32) + frames(1, 568));
        flush(1, nothing).unwrap();
        in_long_pieces(|| flush(1, nothing).unwrap());
        let panicked = std::panic::catch_unwind(|| in_long_pieces(|| panic!("{}", frames(1, 32))));
        assert!(panicked.is_err());
        assert_eq!(frames(1, 568), 2);
    }

    #[test]
    fn a_second_log_in_one_commit_does_not_wait() {
        in_long_pieces(|| {
            assert_eq!(
                (frames(1, 32), frames(2, 32), frames(2, 568), frames(1, 568)),
                (1, 2, 2, 0)
            );
            let mut written = Vec::new();
            flush(2, |_, _| -> Result<(), ()> { panic!("nothing of it waits") }).unwrap();
            flush(1, |bytes, at| {
                written.push((at, bytes.len()));
                Ok::<_, ()>(())
            })
            .unwrap();
            assert_eq!(written, [(56, 512 + 536)]);
        });
    }
}
