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
/// The same in a test that is to see many logs.
pub(super) const SHORT: i32 = 1_000;

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
    use std::time::{Duration, Instant};

    use sprag_engine::store::Store as _;
    use sprag_engine::upkeep::Upkeep as _;

    use super::super::SqliteStore;
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

    /// How often the log of this file has begun anew: it says so at its front.
    fn begun_anew(path: &Path) -> u32 {
        let log = std::fs::read(path.with_extension("db-wal")).unwrap();
        u32::from_be_bytes(log[12..16].try_into().unwrap())
    }

    /// Writes until the log has begun anew so often.
    fn write_until(connection: &Connection, path: &Path, times: u32) {
        let start = Instant::now();
        while begun_anew(path) < times {
            assert!(start.elapsed() < Duration::from_secs(60), "the log only grows");
            for _ in 0..100 {
                connection.execute_batch(ROW).unwrap();
            }
        }
    }

    #[test]
    fn the_log_begins_anew_while_the_writer_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("books.db");
        let connection = open(&path);
        write_until(&connection, &path, begun_anew(&path) + 3);
    }

    #[test]
    fn a_log_that_somebody_reads_begins_anew_later() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("books.db");
        let connection = open(&path);
        let reader = Connection::open(&path).unwrap();
        let seen = || {
            let sql = "SELECT count(*) FROM rows";
            reader.query_row(sql, [], |row| row.get::<_, i32>(0)).unwrap()
        };
        reader.execute_batch("BEGIN").unwrap();
        assert_eq!(seen(), 0);
        let before = begun_anew(&path);
        for _ in 0..500 {
            connection.execute_batch(ROW).unwrap();
        }
        assert_eq!((begun_anew(&path), seen()), (before, 0));
        reader.execute_batch("COMMIT").unwrap();
        write_until(&connection, &path, before + 1);
    }

    #[test]
    fn a_store_that_was_closed_is_one_file() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("books.db");
        let store = SqliteStore::open(&path, Durability::Full).unwrap();
        let runtime = tokio::runtime::Builder::new_multi_thread().build().unwrap();
        runtime.block_on(async {
            store.join("an engine").await.unwrap();
            // A reader that is idle has the file open.
            store.counts().await.unwrap();
        });
        assert!(path.with_extension("db-wal").exists());
        drop(store);
        let mut left: Vec<_> = std::fs::read_dir(folder.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name())
            .collect();
        left.sort();
        assert_eq!(left, ["books.db", "books.db.lock"]);
    }
}
