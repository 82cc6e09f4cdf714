//! Reading beside the writer: connections that cannot write, off the writer's thread, so that a long list
//! or the audit holds nobody up. A read sees one snapshot, everything that was committed when it began;
//! whoever was answered by the writer finds what it wrote. What must see the writer's own transaction, or
//! decides what is written, is not read here.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rusqlite::{Connection, OpenFlags};
use sprag_engine::store::{Answer, StoreError};
use tokio::sync::Semaphore;

use super::clock::Clock;
use super::log::Durable;
use super::open::keep_plans;
use super::rows::failed;
use super::writer::Tx;

/// How many reads run at a time. Each may hold a snapshot, which keeps the log from being shortened.
const READERS: usize = 4;

pub(super) struct Readers(Arc<Shared>);

struct Shared {
    path: PathBuf,
    clock: Clock,
    turns: Arc<Semaphore>,
    idle: Mutex<Vec<Connection>>,
    durable: Durable,
}

impl Readers {
    /// Readers of the file that a writer has open.
    pub(super) fn of(path: &Path, clock: Clock, durable: Durable) -> Self {
        let (path, turns) = (path.to_owned(), Arc::new(Semaphore::new(READERS)));
        Self(Arc::new(Shared { path, clock, turns, idle: Mutex::default(), durable }))
    }

    /// The time by the store's clock.
    pub(super) fn now(&self) -> i64 {
        self.0.clock.now()
    }

    /// Whether that is a test's.
    pub(super) fn is_tested(&self) -> bool {
        matches!(self.0.clock, Clock::Test(_))
    }

    /// Runs a read in a snapshot of its own. Its answer waits until what it has seen is durable.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Tx<'_>) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let closed = |error: &dyn std::fmt::Display| StoreError::Unavailable(error.to_string());
        let shared = self.0.clone();
        let turn = shared.turns.clone().acquire_owned().await.map_err(|error| closed(&error))?;
        let reading = tokio::task::spawn_blocking(move || {
            // Kept until the read has ended, also if nobody waits for it any more.
            let _turn = turn;
            let connection = shared.take()?;
            let answer = snapshot(&connection, shared.clock.now(), read);
            shared.give_back(connection);
            answer
        });
        let answer = reading.await.map_err(|error| closed(&error))?;
        self.0.durable.reached().await?;
        answer
    }
}

impl Shared {
    fn take(&self) -> Answer<Connection> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        idle.map_or_else(|| open(&self.path).map_err(|error| failed(&error)), Ok)
    }

    fn give_back(&self, connection: Connection) {
        // One whose transaction could not be ended is thrown away.
        if connection.is_autocommit() {
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
        }
    }
}

fn open(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags)?;
    keep_plans(&connection)?;
    connection.busy_timeout(std::time::Duration::from_secs(10))?;
    connection.set_prepared_statement_cache_capacity(32);
    Ok(connection)
}

fn snapshot<T>(
    connection: &Connection,
    now: i64,
    read: impl FnOnce(&Tx<'_>) -> Answer<T>,
) -> Answer<T> {
    connection.execute_batch("BEGIN").map_err(|error| failed(&error))?;
    let answer = read(&Tx::reading(connection, now));
    // Nothing was written; whether this succeeds is seen from the connection.
    let _ = connection.execute_batch("ROLLBACK");
    answer
}
