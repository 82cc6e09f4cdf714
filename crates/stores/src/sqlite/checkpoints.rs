//! Keeping the log short: what is in it is copied into the file, and a next transaction begins at its front again.
//!
//! Nearly all is copied beside the writer. That never comes to the end of the log while the writer goes on, so the
//! writer copies the little that is left, in between two transactions.

use std::path::{Path, PathBuf};
use std::thread::JoinHandle;

use rusqlite::Connection;
use rusqlite::hooks::Wal;

use super::open::{Durability, synchronous};

/// How many pages a long log has. In a full store a job touches pages that no other one near it does: in a long log
/// they meet again, and are copied once for many.
pub(super) const LONG: i32 = 16_000;

/// What is done about the log after each commit, instead of what SQLite would do.
struct Checkpoints {
    path: PathBuf,
    durability: Durability,
    long: i32,
    /// How long the log is when it is copied next.
    next: i32,
    copying: Option<JoinHandle<()>>,
}

/// Copies the log of this connection whenever it is `long`.
pub(super) fn keep(
    connection: &mut Connection,
    path: &Path,
    durability: Durability,
    long: i32,
) -> rusqlite::Result<()> {
    let path = path.to_owned();
    let mut checkpoints = Checkpoints { path, durability, long, next: long, copying: None };
    connection.wal_hook(Some(move |log: &mut Wal, pages| {
        checkpoints.committed(log, pages);
        Ok(())
    }))
}

impl Checkpoints {
    fn committed(&mut self, log: &mut Wal, pages: i32) {
        if pages < self.long {
            self.next = self.long;
        }
        if let Some(copied) = self.copying.take_if(|copying| copying.is_finished()) {
            let _ = copied.join();
            // A log that cannot be copied grows until it can. If that is for want of room, commits fail and say so.
            let _ = log.checkpoint();
            // If it does not get shorter now, somebody reads what is in it.
            self.next = pages + self.long / 4;
        } else if pages >= self.next && self.copying.is_none() {
            let (path, durability) = (self.path.clone(), self.durability);
            let copying = std::thread::Builder::new().name("sprag-copy".into());
            // What this one leaves, be it all, is the writer's.
            self.copying = copying.spawn(move || drop(copy(&path, durability))).ok();
        }
    }
}

impl Drop for Checkpoints {
    fn drop(&mut self) {
        if let Some(copying) = self.copying.take() {
            let _ = copying.join();
        }
    }
}

fn copy(path: &Path, durability: Durability) -> rusqlite::Result<()> {
    let connection = Connection::open(path)?;
    synchronous(&connection, durability)?;
    connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGES: i32 = 100;
    const ROW: &str = "INSERT INTO rows VALUES (randomblob(9000))";

    fn open(path: &Path) -> Connection {
        let mut connection = Connection::open(path).unwrap();
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        synchronous(&connection, Durability::Process).unwrap();
        connection.execute_batch("CREATE TABLE rows (content BLOB)").unwrap();
        keep(&mut connection, path, Durability::Process, PAGES).unwrap();
        connection
    }

    /// How long the log of this file has become, in pages: it does not shrink when it begins anew.
    fn longest(path: &Path) -> u64 {
        let log = path.with_extension("db-wal");
        std::fs::metadata(log).unwrap().len() / 4_096
    }

    #[test]
    fn the_log_stays_short_however_much_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("books.db");
        let connection = open(&path);
        let written: i32 = 5_000;
        for _ in 0..written {
            connection.execute_batch(ROW).unwrap();
        }
        // Each row is three pages or more. How far the writer comes while the log is copied is up to the machine.
        let (pages, longest) = (u64::try_from(written * 3).unwrap(), longest(&path));
        assert!(longest < pages / 4, "the log had {longest} of {pages} pages");
    }

    #[test]
    fn a_log_that_somebody_reads_is_shortened_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("books.db");
        let connection = open(&path);
        let reader = Connection::open(&path).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM rows").unwrap();
        let count = |sql| reader.query_row(sql, [], |row| row.get::<_, i32>(0)).unwrap();
        assert_eq!(count("SELECT count(*) FROM rows"), 0);
        for _ in 0..500 {
            connection.execute_batch(ROW).unwrap();
        }
        let held_up = longest(&path);
        assert!(held_up >= 1_500, "the log was shortened under a reader: {held_up}");
        assert_eq!(count("SELECT count(*) FROM rows"), 0);
        reader.execute_batch("COMMIT").unwrap();
        for _ in 0..5_000 {
            connection.execute_batch(ROW).unwrap();
        }
        let longest = longest(&path);
        assert!(longest < held_up + 15_000 / 4, "the log had {longest} pages, {held_up} before");
    }
}
