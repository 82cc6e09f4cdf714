//! The three pools, and the one way a statement of a slice is run.

use deadpool_postgres::{Object, Pool, Timeouts, Transaction};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::EngineNo;
use sprag_engine::store::{Answer, StoreError};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Error, Row};

use super::failure::{Repeats, failed, unreachable};
use super::hints::Bell;
use crate::TestClock;

/// The parameters of a statement.
pub(super) type Params<'a> = &'a [&'a (dyn ToSql + Sync)];

/// A statement over a slice, with the columns of the slice.
pub(super) struct Asked<'a> {
    pub(super) sql: &'static str,
    columns: Vec<Column<'a>>,
}

pub(super) type Column<'a> = Box<dyn ToSql + Sync + Send + 'a>;

impl<'a> Asked<'a> {
    pub(super) fn new(sql: &'static str, columns: Vec<Column<'a>>) -> Self {
        Self { sql, columns }
    }

    pub(super) fn params(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.columns.iter().map(|column| -> &(dyn ToSql + Sync) { &**column }).collect()
    }
}

/// The columns of a slice, in the order in which the statement numbers them.
macro_rules! columns {
    ($($column:expr),* $(,)?) => {
        vec![$(Box::new($column) as super::pools::Column<'_>),*]
    };
}
pub(super) use columns;

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

    /// Runs two statements, each as its own transaction, the second on its way before the first is answered. So the
    /// second must change nothing if the first has come to nothing. If either fails, nobody knows of the first; if the
    /// second has lost a race, or the first and was run again, the second has no rows.
    pub(super) async fn run_both(&self, [first, second]: [&Asked<'_>; 2]) -> Answer<[Vec<Row>; 2]> {
        let client = self.engine().await?;
        let prepare = async |asked: &Asked<'_>| {
            client.prepare_cached(asked.sql).await.map_err(|error| failed(&error))
        };
        let statements = [prepare(first).await?, prepare(second).await?];
        let params = [first.params(), second.params()];
        crash_point("postgres.before_statement");
        // Both are sent when they are first looked at, in this order.
        let answers = tokio::join!(
            client.query(&statements[0], &params[0]),
            client.query(&statements[1], &params[1])
        );
        crash_point("postgres.after_statement");
        // Who waits for a second connection while holding one could starve the pool.
        drop(client);
        let has_lost = |error: &Error| Repeats::default().again(error);
        match answers {
            (Ok(first), Ok(second)) => Ok([first, second]),
            (Ok(first), Err(error)) if has_lost(&error) => Ok([first, Vec::new()]),
            (Err(error), _) if has_lost(&error) => {
                Ok([self.run(first.sql, &params[0]).await?, Vec::new()])
            }
            (Err(error), _) | (_, Err(error)) => Err(failed(&error)),
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
