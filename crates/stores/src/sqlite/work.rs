//! Work of transactional handlers: a closure over the writer's connection, in the transaction that stores
//! the RESULT, under a savepoint of its own. The writer waits for it, so it should do nothing but write:
//! its statements are ended after the limit.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};
use sprag_engine::crash::crash_point;
use sprag_engine::directive::Failure;
use sprag_engine::ids::EngineNo;
use sprag_engine::store::{Answer, EndOutcome, EndWrite, Worked};
use sprag_engine::worker::panicked;
use sprag_kernel::Cause;

use super::engines::expect_alive;
use super::legs::{attempt_now, end_one};
use super::rows::failed;
use super::writer::Tx;
use crate::repeat;

/// Why work failed: by its own judgement, or because a statement did.
#[derive(Debug)]
pub enum WorkError {
    /// It says so itself.
    Failed(Failure),
    /// A statement failed.
    Sql(rusqlite::Error),
}

impl From<Failure> for WorkError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<rusqlite::Error> for WorkError {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

impl WorkError {
    /// A row that cannot be written, or a statement that cannot be run, is no better the next time.
    fn classified(self) -> Failure {
        let error = match self {
            Self::Failed(failure) => return failure,
            Self::Sql(error) => error,
        };
        match error.sqlite_error_code() {
            None
            | Some(
                ErrorCode::ConstraintViolation
                | ErrorCode::TypeMismatch
                | ErrorCode::TooBig
                | ErrorCode::ParameterOutOfRange
                | ErrorCode::Unknown,
            ) => Failure::fatal(Cause::WorkFailed.name(), error),
            Some(_) => Failure::retryable(Cause::WorkFailed.name(), error),
        }
    }
}

/// What a transactional handler hands over to a SQLite store: writes to tables in the same file, which are
/// committed with the RESULT or not at all. It may run more than once, of which at most one run is committed;
/// it must not end the transaction itself. Its statements keep their plan whatever is bound to them: an index that holds
/// only some rows serves those that name them by a literal.
#[derive(Clone)]
pub struct SqliteWork(Arc<Run>);

type Run = dyn Fn(&Connection) -> Result<(), WorkError> + Send + Sync;

impl SqliteWork {
    /// Work to be done.
    pub fn new(run: impl Fn(&Connection) -> Result<(), WorkError> + Send + Sync + 'static) -> Self {
        Self(Arc::new(run))
    }
}

/// Stores a message and runs its work.
pub(super) fn end_with(
    tx: &Tx<'_>,
    engine: EngineNo,
    write: &EndWrite,
    (work, limit): (&SqliteWork, Duration),
) -> Answer<Worked> {
    expect_alive(tx, engine)?;
    // A repeat is recognised before anything is written: then the work is committed, too.
    if write.repeats
        && let entered @ EndOutcome::Entered { .. } =
            repeat::ended(attempt_now(tx, &write.key)?, write)
    {
        return Ok(entered.into());
    }
    let outcome = end_one(tx, engine, write)?;
    if outcome == EndOutcome::Stale {
        return Ok(Worked::Stale);
    }
    match within(tx, work, limit)? {
        Done::Well => Ok(outcome.into()),
        Done::Badly(failure) => Ok(Worked::Failed(failure)),
        Done::Ended => match repeat::ended(attempt_now(tx, &write.key)?, write) {
            entered @ EndOutcome::Entered { .. } => Ok(entered.into()),
            EndOutcome::Stale => Ok(Worked::Failed(ended_itself())),
        },
    }
}

/// How work has gone.
pub(super) enum Done {
    /// It is done.
    Well,
    /// It failed, and nothing of it may stand.
    Badly(Failure),
    /// It has ended the transaction, one way or the other; the rows tell which.
    Ended,
}

/// Runs work behind what is written already.
pub(super) fn within(tx: &Tx<'_>, work: &SqliteWork, limit: Duration) -> Answer<Done> {
    let sql = |text| tx.connection.execute_batch(text);
    sql("SAVEPOINT work").map_err(|error| failed(&error))?;
    let (result, is_late) = tx.limited(limit, || run(work, tx.connection));
    crash_point("work.after_closure");
    Ok(match result {
        _ if is_late => Done::Badly(too_late(limit)),
        Err(failure) => Done::Badly(failure),
        Ok(()) if sql("RELEASE work").is_ok() => Done::Well,
        Ok(()) => Done::Ended,
    })
}

/// What is said of work that has rolled back what it was to be committed with.
pub(super) fn ended_itself() -> Failure {
    Failure::fatal(Cause::WorkFailed.name(), "the work has ended the transaction it was run in")
}

fn run(work: &SqliteWork, connection: &Connection) -> Result<(), Failure> {
    match catch_unwind(AssertUnwindSafe(|| (work.0)(connection))) {
        Ok(result) => result.map_err(WorkError::classified),
        Err(panic) => Err(panicked(Cause::WorkPanic.name(), panic.as_ref())),
    }
}

fn too_late(limit: Duration) -> Failure {
    let message = format!("the work took longer than {} ms", limit.as_millis());
    Failure::retryable(Cause::WorkTimeout.name(), message)
}
