//! Opening a file: settings, schema, version.

use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::{Code, Refusal};

use super::clock::Clock;
use super::rows::failed;
use crate::versions::{Migration, Schema, version_of};

/// The schema this binary knows.
pub(super) fn schema() -> Schema {
    let first = concat!(
        include_str!("../../sql/sqlite/schema_1.sql"),
        include_str!("../../sql/sqlite/views.sql")
    );
    Schema::new(vec![Migration { version: 1, oldest_compatible: 1, sql: first }])
}

/// What a commit promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It survives a power cut.
    Full,
    /// It survives a crash of the process, perhaps not of the machine.
    Process,
}

/// Refuses a path at which no file is: SQLite would make one.
pub(crate) fn expect_file(path: &Path) -> Answer<()> {
    if path.is_file() {
        return Ok(());
    }
    Err(StoreError::Refused(
        Refusal::new(Code::InputUnreadable)
            .with("what", path.display().to_string())
            .with("reason", "there is no such file"),
    ))
}

pub(super) fn open(
    path: &Path,
    durability: Durability,
    schema: &Schema,
) -> Answer<(Connection, Clock)> {
    let mut connection = sprag_wal::open(path).map_err(|error| failed(&error))?;
    let is_there = has_meta(&connection).map_err(|error| failed(&error))?;
    schema.expect_store(is_there, &path.display().to_string())?;
    configure(&connection, durability).map_err(|error| failed(&error))?;
    migrate(&mut connection, schema)?;
    let latest: Option<i64> = connection
        .query_row("SELECT max(beat_at) FROM engine", [], |row| row.get(0))
        .map_err(|error| failed(&error))?;
    Ok((connection, Clock::start(latest.unwrap_or(0))))
}

/// From here on commits of this connection do not wait for the disk, if they did. What is returned brings to disk all
/// that has been committed. SQLite itself syncs only where the order of what is on disk depends on it.
pub(super) fn unsynced(
    connection: &Connection,
    durability: Durability,
) -> Answer<impl Fn() -> io::Result<()> + Send + Sync + 'static> {
    let log = match durability {
        Durability::Process => None,
        Durability::Full => {
            let path = format!("{}-wal", connection.path().unwrap_or_default());
            let log = File::options().write(true).open(&path);
            let unavailable = |error| StoreError::Unavailable(format!("{path}: {error}"));
            connection
                .pragma_update(None, "synchronous", "NORMAL")
                .map_err(|error| failed(&error))?;
            Some(log.map_err(unavailable)?)
        }
    };
    Ok(move || log.as_ref().map_or(Ok(()), File::sync_data))
}

/// How often the lock is tried, and how long to wait in between. A process that is just being started by the one
/// that had the lock has it too until it runs its own program.
const LOCK_TRIES: u32 = 20;
const LOCK_WAIT: Duration = Duration::from_millis(10);

/// The lock that makes this process the only engine on the file. Held as long as the store is open; the
/// operating system lets go of it when the process dies, however it dies.
pub(crate) fn own(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let unavailable = |error: std::io::Error| StoreError::Unavailable(error.to_string());
    let lock = File::create(&name).map_err(unavailable)?;
    for _ in 0..LOCK_TRIES {
        match lock.try_lock() {
            Ok(()) => return Ok(lock),
            Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_WAIT),
            Err(TryLockError::Error(error)) => return Err(unavailable(error)),
        }
    }
    let in_use = Refusal::new(Code::StoreInUse).with("store", path.display().to_string());
    Err(StoreError::Refused(in_use))
}

fn configure(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    synchronous(connection, durability)?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    // So many KiB; it is the largest part of what an engine holds.
    connection.pragma_update(None, "cache_size", -24_576)?;
    // Savepoints copy the pages they may have to bring back: to memory, not to a file.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    keep_plans(connection)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(())
}

/// Whether SQLite waits for the disk.
pub(super) fn synchronous(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Process => "OFF",
    };
    connection.pragma_update(None, "synchronous", synchronous)
}

/// A plan holds, whatever is bound to it. Else SQLite plans anew what has a limit or a condition whose worth depends on what
/// is bound, each time that something else is, and that takes longer than to run it. So it is the text of a statement that
/// must meet the condition of a partial index, never a value.
pub(super) fn keep_plans(connection: &Connection) -> rusqlite::Result<()> {
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).map(|_| ())
}

/// Brings the schema to this binary's version. The write lock is taken first, so two processes that start
/// at once do it once. A store that is newer is left as it is, if it admits this binary.
fn migrate(connection: &mut Connection, schema: &Schema) -> Answer<()> {
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| failed(&error))?;
    let (present, mut oldest) = if has_meta(&tx).map_err(|error| failed(&error))? {
        (version(&tx, "schema_version")?, version(&tx, "oldest_compatible")?)
    } else {
        (0, 1)
    };
    for step in schema.missing(present) {
        oldest = oldest.max(step.oldest_compatible);
        apply(&tx, step, oldest).map_err(|error| failed(&error))?;
    }
    schema.admit(oldest)?;
    tx.commit().map_err(|error| failed(&error))
}

/// Whether there is a store in the file.
fn has_meta(connection: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'table' AND name = 'meta')";
    connection.query_row(sql, [], |row| row.get(0))
}

fn version(tx: &Transaction<'_>, key: &str) -> Answer<i64> {
    let text: Option<String> = tx
        .query_row("SELECT value FROM meta WHERE key = ?1", [key], |row| row.get(0))
        .optional()
        .map_err(|error| failed(&error))?;
    version_of(&text.unwrap_or_default())
}

fn apply(tx: &Transaction<'_>, step: &Migration, oldest: i64) -> rusqlite::Result<()> {
    tx.execute_batch(step.sql)?;
    let sql =
        "INSERT OR REPLACE INTO meta VALUES ('schema_version', ?1), ('oldest_compatible', ?2)";
    tx.execute(sql, [step.version.to_string(), oldest.to_string()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The log lies beside the file itself, not beside a link to it.
    #[cfg(unix)]
    #[test]
    fn what_is_synced_is_the_log_of_the_file() {
        let folder = tempfile::tempdir().unwrap();
        let (link, file) = (folder.path().join("link.db"), folder.path().join("far/books.db"));
        std::fs::create_dir(folder.path().join("far")).unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        let (connection, _) = open(&link, Durability::Full, &schema()).unwrap();
        let sync = unsynced(&connection, Durability::Full).unwrap();
        connection.execute_batch("INSERT INTO meta VALUES ('test', '1')").unwrap();
        assert!(folder.path().join("far/books.db-wal").exists());
        sync().unwrap();
        let level = connection.query_row("PRAGMA synchronous", [], |row| row.get::<_, i64>(0));
        assert_eq!(level, Ok(1), "SQLite still syncs where it must");
    }
}
