//! Work of transactional handlers: an async closure over a transaction, the one that stores the RESULT, on a
//! connection with the user's own settings. Each message has a transaction of its own, so its failure takes
//! nothing else with it; the savepoint around the work tells whether the work has left the transaction as it
//! found it, for a COMMIT after a failed statement is no error to Postgres but a rollback.
//!
//! A deadlock or a serialisation failure repeats the whole, work included. The limit holds for the work as
//! a whole and for each statement, so a statement that is still running when the work is given up ends, too.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use sprag_engine::crash::crash_point;
use sprag_engine::directive::Failure;
use sprag_engine::ids::EngineNo;
use sprag_engine::store::{Answer, EndOutcome, EndWrite, StoreError, Worked};
use sprag_engine::worker::{caught, panicked};
use sprag_kernel::Cause;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Error, Transaction};

use super::failure::{Repeats, failed};
use super::legs::{attempts_now, ending};
use super::pools::{Pools, begin, commit};
use crate::repeat;

/// Why work failed: by its own judgement, or because a statement did.
#[derive(Debug)]
pub enum WorkError {
    /// It says so itself.
    Failed(Failure),
    /// A statement failed.
    Sql(Error),
}

impl From<Failure> for WorkError {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Error> for WorkError {
    fn from(error: Error) -> Self {
        Self::Sql(error)
    }
}

/// What work returns.
pub type WorkFuture<'a> = Pin<Box<dyn Future<Output = Result<(), WorkError>> + Send + 'a>>;

/// What a transactional handler hands over to a Postgres store: writes that are committed with the RESULT or
/// not at all. It may run more than once, of which at most one run is committed; it must not end the
/// transaction itself.
#[derive(Clone)]
pub struct PostgresWork(Arc<Run>);

type Run = dyn for<'a> Fn(&'a Transaction<'a>) -> WorkFuture<'a> + Send + Sync;

impl PostgresWork {
    /// Work to be done: `PostgresWork::new(|tx| Box::pin(async move { ... }))`.
    pub fn new(
        run: impl for<'a> Fn(&'a Transaction<'a>) -> WorkFuture<'a> + Send + Sync + 'static,
    ) -> Self {
        Self(Arc::new(run))
    }
}

/// Stores a message and runs its work.
pub(super) async fn end_with(
    pools: &Pools,
    engine: EngineNo,
    write: &EndWrite,
    (work, limit): (&PostgresWork, Duration),
) -> Answer<Worked> {
    let mut repeats = Repeats::default();
    let mut client = pools.work().await?;
    loop {
        let tx = begin(&mut client).await?;
        let tried = match enter(pools, engine, write, &tx, limit).await {
            Ok(Entry::Dead) => return Err(StoreError::Fenced),
            Ok(Entry::Refused) => break,
            Ok(Entry::Entered { version }) => {
                crash_point("postgres.work.after_message");
                match run(work, &tx, limit).await {
                    Ok(()) => {
                        crash_point("postgres.work.after_closure");
                        commit(tx).await.map(|()| Worked::Entered { version })
                    }
                    Err(Fault::Lost(error)) => Err(error),
                    Err(Fault::Failed(failure)) => return Ok(Worked::Failed(failure)),
                    Err(Fault::Ended) => {
                        drop(tx);
                        return ended_itself(pools, write).await;
                    }
                }
            }
            Err(error) => Err(error),
        };
        match tried {
            Ok(worked) => return Ok(worked),
            // The transaction was rolled back as it was dropped.
            Err(error) if repeats.again(&error) => repeats.pause().await,
            Err(error) => return Err(failed(&error)),
        }
    }
    // The guard did not hold. If this very message is committed already, so is its work.
    if !write.repeats {
        return Ok(Worked::Stale);
    }
    drop(client);
    told(pools, write).await.map(Worked::from)
}

async fn told(pools: &Pools, write: &EndWrite) -> Answer<EndOutcome> {
    let now = attempts_now(pools, std::iter::once(&write.key)).await?;
    Ok(repeat::ended(now.get(&write.key).copied(), write))
}

/// What the message met.
enum Entry {
    /// This engine is dead.
    Dead,
    /// The guard did not hold.
    Refused,
    /// The row is locked and written.
    Entered { version: u64 },
}

/// Locks the row and stores the message, if the guard holds.
async fn enter(
    pools: &Pools,
    engine: EngineNo,
    write: &EndWrite,
    tx: &deadpool_postgres::Transaction<'_>,
    limit: Duration,
) -> Result<Entry, Error> {
    let alive = "SELECT 1 FROM sprag.engine WHERE engine_no = $1 AND dead = 0 FOR KEY SHARE";
    let alive = tx.prepare_cached(alive).await?;
    if tx.query_opt(&alive, &[&engine.0]).await?.is_none() {
        return Ok(Entry::Dead);
    }
    let end = ending((engine, pools.test_now()), &[(0, write)], None);
    let statement = tx.prepare_cached(end.sql).await?;
    let Some(row) = tx.query_opt(&statement, &end.params()).await? else {
        return Ok(Entry::Refused);
    };
    let version = row.try_get::<_, i64>(1)?.cast_unsigned();
    prepare(tx, limit).await?;
    Ok(Entry::Entered { version })
}

/// Limits what comes from here on, and sets the savepoint that tells how it went.
pub(super) async fn prepare(tx: &Transaction<'_>, limit: Duration) -> Result<(), Error> {
    // Idle for twice the limit: the work may rest as long as it may run, and then we are still to commit.
    let (statement, idle) = (limit.as_millis().max(1), limit.as_millis().max(1) * 2);
    let settings = format!(
        "SET LOCAL statement_timeout = {statement}; \
         SET LOCAL idle_in_transaction_session_timeout = {idle}; SAVEPOINT sprag_work"
    );
    tx.batch_execute(&settings).await
}

/// Why the work is not to be committed.
pub(super) enum Fault {
    /// It lost a race, or the connection is gone: the outcome is not its own.
    Lost(Error),
    /// It failed.
    Failed(Failure),
    /// It has ended the transaction.
    Ended,
}

/// Runs work behind what is written already.
pub(super) async fn run(
    work: &PostgresWork,
    tx: &Transaction<'_>,
    limit: Duration,
) -> Result<(), Fault> {
    let started = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| (work.0)(tx)));
    let answer = match started {
        Ok(answer) => answer,
        Err(panic) => return Err(Fault::Failed(panicked(Cause::WorkPanic.name(), panic.as_ref()))),
    };
    // The failure of a statement is looked at from outside of what catches panics.
    let answer = caught(Cause::WorkPanic.name(), Box::pin(async move { Ok(answer.await) }));
    match tokio::time::timeout(limit, answer).await {
        Err(_) => return Err(Fault::Failed(too_late(limit))),
        Ok(Err(failure)) => return Err(Fault::Failed(failure)),
        Ok(Ok(Err(error))) => return Err(classified(error, limit)),
        Ok(Ok(Ok(()))) => {}
    }
    // Deferred constraints belong to this message, not to whoever is asked to commit it.
    let release = "SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT sprag_work";
    match tx.batch_execute(release).await {
        Ok(()) => Ok(()),
        Err(error) => match error.code() {
            Some(&(SqlState::NO_ACTIVE_SQL_TRANSACTION | SqlState::S_E_INVALID_SPECIFICATION)) => {
                Err(Fault::Ended)
            }
            Some(&SqlState::IN_FAILED_SQL_TRANSACTION) => Err(Fault::Failed(Failure::retryable(
                Cause::WorkFailed.name(),
                "a statement of the work failed and the work went on",
            ))),
            Some(_) | None => Err(classified(WorkError::Sql(error), limit)),
        },
    }
}

/// Data, constraints, and statements that cannot be run are no better the next time; a lost race is repeated
/// whole; the rest may pass.
fn classified(error: WorkError, limit: Duration) -> Fault {
    let error = match error {
        WorkError::Failed(failure) => return Fault::Failed(failure),
        WorkError::Sql(error) => error,
    };
    let Some(database) = error.as_db_error() else {
        let source = std::error::Error::source(&error);
        let io = source.and_then(|source| source.downcast_ref::<std::io::Error>());
        let is_lost = error.is_closed() || io.is_some();
        let failure = Failure::fatal(Cause::WorkFailed.name(), &error);
        return if is_lost { Fault::Lost(error) } else { Fault::Failed(failure) };
    };
    let message = format!("{} (SQLSTATE {})", database.message(), database.code().code());
    match &database.code().code()[..2] {
        "40" => Fault::Lost(error),
        "57" if *database.code() == SqlState::QUERY_CANCELED => Fault::Failed(too_late(limit)),
        "22" | "23" | "42" | "54" => {
            Fault::Failed(Failure::fatal(Cause::WorkFailed.name(), message))
        }
        _ => Fault::Failed(Failure::retryable(Cause::WorkFailed.name(), message)),
    }
}

/// The work has ended the transaction, one way or the other; the row tells which.
async fn ended_itself(pools: &Pools, write: &EndWrite) -> Answer<Worked> {
    match told(pools, write).await? {
        entered @ EndOutcome::Entered { .. } => Ok(entered.into()),
        EndOutcome::Stale => Ok(Worked::Failed(rolled_back())),
    }
}

/// What is said of work that has rolled back what it was to be committed with.
pub(super) fn rolled_back() -> Failure {
    Failure::fatal(Cause::WorkFailed.name(), "the work has ended the transaction it was run in")
}

fn too_late(limit: Duration) -> Failure {
    let message = format!("the work took longer than {} ms", limit.as_millis());
    Failure::retryable(Cause::WorkTimeout.name(), message)
}
