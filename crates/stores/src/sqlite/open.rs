//! Opening a file: settings, schema, version.

use std::fs::{File, TryLockError};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior};
use sprag_engine::store::StoreError;
use sprag_kernel::{Code, Refusal};

use super::clock::Clock;
use super::rows::failed;

/// The schema this binary knows.
const SCHEMA_VERSION: i64 = 1;
const SCHEMA: &str = include_str!("../../sql/sqlite/schema_1.sql");

/// What a commit promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// It survives a power cut.
    Full,
    /// It survives a crash of the process, perhaps not of the machine.
    Process,
}

pub(super) fn open(path: &Path, durability: Durability) -> Result<(Connection, Clock), StoreError> {
    let mut connection = Connection::open(path).map_err(|error| failed(&error))?;
    configure(&connection, durability).map_err(|error| failed(&error))?;
    migrate(&mut connection)?;
    let latest: Option<i64> = connection
        .query_row("SELECT max(beat_at) FROM engine", [], |row| row.get(0))
        .map_err(|error| failed(&error))?;
    Ok((connection, Clock::start(latest.unwrap_or(0))))
}

/// The lock that makes this process the only engine on the file. Held as long as the store is open; the
/// operating system lets go of it when the process dies, however it dies.
pub(super) fn own(path: &Path) -> Result<File, StoreError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    let unavailable = |error: std::io::Error| StoreError::Unavailable(error.to_string());
    let lock = File::create(&name).map_err(unavailable)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(StoreError::Refused(
            Refusal::new(Code::StoreInUse).with("store", path.display().to_string()),
        )),
        Err(TryLockError::Error(error)) => Err(unavailable(error)),
    }
}

fn configure(connection: &Connection, durability: Durability) -> rusqlite::Result<()> {
    connection.pragma_update(None, "journal_mode", "WAL")?;
    let synchronous = match durability {
        Durability::Full => "FULL",
        Durability::Process => "OFF",
    };
    connection.pragma_update(None, "synchronous", synchronous)?;
    connection.pragma_update(None, "foreign_keys", "ON")?;
    connection.pragma_update(None, "cache_size", -32_768)?;
    // Savepoints copy the pages they may have to bring back: to memory, not to a file.
    connection.pragma_update(None, "temp_store", "MEMORY")?;
    connection.pragma_update(None, "wal_autocheckpoint", 4_000)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(128);
    Ok(())
}

/// Creates the schema. The write lock is taken first, so two processes that start at once do it once.
fn migrate(connection: &mut Connection) -> Result<(), StoreError> {
    let tx = connection
        .transaction_with_behavior(TransactionBehavior::Immediate)
        .map_err(|error| failed(&error))?;
    let has_meta: Option<i64> = tx
        .query_row("SELECT 1 FROM sqlite_master WHERE name = 'meta'", [], |row| row.get(0))
        .optional()
        .map_err(|error| failed(&error))?;
    if has_meta.is_none() {
        tx.execute_batch(SCHEMA).map_err(|error| failed(&error))?;
        tx.execute(
            "INSERT INTO meta VALUES ('schema_version', ?1), ('oldest_compatible', ?1)",
            [SCHEMA_VERSION.to_string()],
        )
        .map_err(|error| failed(&error))?;
    }
    let oldest: String = tx
        .query_row("SELECT value FROM meta WHERE key = 'oldest_compatible'", [], |row| row.get(0))
        .map_err(|error| failed(&error))?;
    if oldest.parse::<i64>().map_or(true, |oldest| oldest > SCHEMA_VERSION) {
        return Err(StoreError::Refused(
            Refusal::new(Code::SchemaTooNew)
                .with("store", oldest)
                .with("binary", SCHEMA_VERSION.to_string()),
        ));
    }
    tx.commit().map_err(|error| failed(&error))
}
