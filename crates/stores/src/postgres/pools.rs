//! The three pools, and the one way a statement of a slice is run.

use deadpool_postgres::{Object, Pool, Timeouts, Transaction};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::EngineNo;
use sprag_engine::store::{Answer, StoreError};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;

use super::failure::{Repeats, failed, unreachable};
use super::hints::Bell;
use crate::TestClock;

/// The parameters of a statement.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// The connections of one store, and a test's clock if it has one.
pub(super) struct Pools {
    engine: Pool,
    plain: Pool,
    work: Pool,
    clock: Option<TestClock>,
    /// The schema that this binary knows.
    pub(super) version: i64,
    /// Where the database is.
    pub(super) url: String,
    pub(super) bell: Box<Bell>,
}

impl Pools {
    pub(super) fn new(
        [engine, plain, work]: [Pool; 3],
        (clock, version): (Option<TestClock>, i64),
        url: String,
    ) -> Self {
        Self { engine, plain, work, clock, version, url, bell: Box::default() }
    }

    /// The time by a test's clock; statements take the server's if there is none.
    pub(super) fn test_now(&self) -> Option<i64> {
        self.clock.as_ref().map(TestClock::now)
    }

    /// A connection whose planner goes by index, for slices.
    pub(super) async fn engine(&self) -> Answer<Object> {
        self.engine.get().await.map_err(|error| unreachable(&error))
    }

    /// A connection with the planner's defaults.
    pub(super) async fn plain(&self) -> Answer<Object> {
        self.plain.get().await.map_err(|error| unreachable(&error))
    }

    /// A connection as the user's own would be. Whoever holds one does so for a limited time, so this waits
    /// for one for as long as it takes.
    pub(super) async fn work(&self) -> Answer<Object> {
        let timeouts = Timeouts { wait: None, ..self.work.timeouts() };
        self.work.timeout_get(&timeouts).await.map_err(|error| unreachable(&error))
    }

    /// Runs a statement of the engine as its own transaction, again if it lost a race.
    pub(super) async fn run(&self, sql: &str, params: Params<'_>) -> Answer<Vec<Row>> {
        let client = self.engine().await?;
        let mut repeats = Repeats::default();
        loop {
            crash_point("postgres.before_statement");
            let answer = query(&client, sql, params).await;
            crash_point("postgres.after_statement");
            match answer {
                Ok(rows) => return Ok(rows),
                Err(error) if repeats.again(&error) => repeats.pause().await,
                Err(error) => return Err(failed(&error)),
            }
        }
    }

    /// Runs a query on a plain connection.
    pub(super) async fn read(&self, sql: &str, params: Params<'_>) -> Answer<Vec<Row>> {
        let client = self.plain().await?;
        query(&client, sql, params).await.map_err(|error| failed(&error))
    }

    /// Asked when a write of this engine has changed nothing: a dead engine's writes never do, and the
    /// dead stay dead, so the later look tells the truth about the earlier statement.
    pub(super) async fn expect_alive(&self, engine: EngineNo) -> Answer<()> {
        let sql = "SELECT 1 FROM sprag.engine WHERE engine_no = $1 AND dead = 0";
        let alive = self.run(sql, &[&engine.0]).await?;
        if alive.is_empty() { Err(StoreError::Fenced) } else { Ok(()) }
    }
}

/// Begins a transaction of several statements.
pub(super) async fn begin(client: &mut Object) -> Answer<Transaction<'_>> {
    crash_point("postgres.before_begin");
    client.transaction().await.map_err(|error| failed(&error))
}

/// Ends it.
pub(super) async fn commit(tx: Transaction<'_>) -> Result<(), tokio_postgres::Error> {
    crash_point("postgres.before_commit");
    let committed = tx.commit().await;
    crash_point("postgres.after_commit");
    committed
}

async fn query(
    client: &Object,
    sql: &str,
    params: Params<'_>,
) -> Result<Vec<Row>, tokio_postgres::Error> {
    let statement = client.prepare_cached(sql).await?;
    client.query(&statement, params).await
}
