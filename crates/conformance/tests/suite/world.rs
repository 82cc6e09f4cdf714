//! A fresh store of either kind with a clock that the test owns, and a second way in: plain SQL, to see
//! rows as they are stored and to put rows there that no primitive would write.

use std::sync::Arc;

use sprag_engine::ids::JobId;
use sprag_engine::inbox::InboxId;
use sprag_engine::requests::RequestStore;
use sprag_engine::store::{Answer, StoreError};
use sprag_engine::tokens::TokenStore;
use sprag_stores::TestClock;
use sprag_stores::postgres::{PostgresOptions, PostgresStore, PostgresWork};
use sprag_stores::sqlite::{SqliteStore, SqliteWork};
use tempfile::TempDir;

use crate::deeds::{self, Then};

use sprag_conformance::cluster::Cluster;

/// Rows as text.
pub type Rows = Vec<Vec<Option<String>>>;

/// A store and the way around it.
pub trait World: Send + Sync + Sized + 'static {
    /// The store.
    type Store: RequestStore + TokenStore;

    /// A fresh one.
    fn open(clock: &TestClock) -> impl Future<Output = Self> + Send;
    /// The store.
    fn store(&self) -> &Self::Store;
    /// Opens the same books once more, as another process would.
    fn reopen(&self) -> impl Future<Output = Answer<Self::Store>> + Send;
    /// Runs a query past the store; every column must be text.
    fn query(&self, sql: &str) -> impl Future<Output = Result<Rows, String>> + Send;
    /// Runs a statement past the store.
    fn execute(&self, sql: &str) -> impl Future<Output = Result<(), String>> + Send;
    /// Leaves an envelope in the inbox, as a user's own transaction does.
    fn lay(&self, envelope: &str) -> impl Future<Output = InboxId> + Send;
    /// An expression for bytes as lower-case hexadecimal digits.
    fn hex(column: &str) -> String;
    /// A literal for the bytes of an id.
    fn id(id: JobId) -> String;
    /// A query for every column of every table, as `table.column`.
    const COLUMNS: &'static str;
    /// Makes the tables that deeds write to.
    const TABLES: &'static str;
    /// The table of effects, as the way around the store sees it.
    const EFFECTS: &'static str;
    /// Work that writes an effect and then does something.
    fn work(effect: &str, then: Then) -> <Self::Store as sprag_engine::store::Store>::Work;
    /// What a query costs, in pages or in steps of the machine, and the plan that it has.
    fn cost(&self, sql: &str) -> impl Future<Output = (u64, String)> + Send;
    /// What stands before statements that go past the CHECKs and references of the tables.
    fn past_checks() -> &'static str;
    /// The checks of the audit that only this store has.
    const OWN_CHECKS: &'static [&'static str];
    /// What stands behind statements that write events past the store; nothing where an index finds those of a job.
    const CHAINED: &'static str;
    /// Has every event that is written refused.
    const NO_EVENTS: &'static str;
    /// Has every row of this job that is written to a table refused, as late as the store can.
    fn refusing(table: &str, job_id: JobId) -> String;
    /// Takes that back.
    fn admitting(table: &str) -> String;
}

/// A SQLite file.
pub struct Sqlite {
    folder: TempDir,
    clock: TestClock,
    store: SqliteStore,
}

impl Sqlite {
    /// A connection of one's own.
    pub fn connect(&self) -> rusqlite::Connection {
        let connection = rusqlite::Connection::open(self.folder.path().join("s.db")).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
        connection
    }
}

impl World for Sqlite {
    type Store = SqliteStore;

    async fn open(clock: &TestClock) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store =
            SqliteStore::open_with_clock(&folder.path().join("s.db"), clock.clone()).unwrap();
        Self { folder, clock: clock.clone(), store }
    }

    fn store(&self) -> &SqliteStore {
        &self.store
    }

    async fn reopen(&self) -> Answer<SqliteStore> {
        SqliteStore::look_with_clock(&self.folder.path().join("s.db"), self.clock.clone())
    }

    async fn query(&self, sql: &str) -> Result<Rows, String> {
        let read = || -> rusqlite::Result<Rows> {
            let connection = rusqlite::Connection::open(self.folder.path().join("s.db"))?;
            connection.busy_timeout(std::time::Duration::from_secs(10))?;
            let mut statement = connection.prepare(sql)?;
            let width = statement.column_count();
            statement
                .query_map([], |row| (0..width).map(|column| row.get(column)).collect())?
                .collect()
        };
        read().map_err(|error| error.to_string())
    }

    async fn execute(&self, sql: &str) -> Result<(), String> {
        let connection = rusqlite::Connection::open(self.folder.path().join("s.db")).unwrap();
        connection.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
        connection.execute_batch(sql).map_err(|error| error.to_string())
    }

    async fn lay(&self, envelope: &str) -> InboxId {
        sprag_stores::sqlite::submit_in(&self.connect(), envelope).unwrap()
    }

    async fn cost(&self, sql: &str) -> (u64, String) {
        let connection = rusqlite::Connection::open(self.folder.path().join("s.db")).unwrap();
        let mut explained = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let plan = explained.query_row([], |row| row.get(3)).unwrap();
        let mut statement = connection.prepare(sql).unwrap();
        let mut rows = statement.query([]).unwrap();
        while rows.next().unwrap().is_some() {}
        drop(rows);
        let steps = statement.get_status(rusqlite::StatementStatus::VmStep);
        (u64::try_from(steps).unwrap(), plan)
    }

    fn hex(column: &str) -> String {
        format!("CASE WHEN {column} IS NOT NULL THEN lower(hex({column})) END")
    }

    fn id(id: JobId) -> String {
        format!("x'{}'", id.uuid().simple())
    }

    fn past_checks() -> &'static str {
        "PRAGMA ignore_check_constraints = ON; PRAGMA foreign_keys = OFF;"
    }

    const CHAINED: &'static str = concat!(
        ";",
        include_str!("../../../stores/sql/sqlite/chain_events.sql"),
        ";",
        include_str!("../../../stores/sql/sqlite/name_last_events.sql")
    );
    const NO_EVENTS: &'static str =
        "CREATE TRIGGER refuse BEFORE INSERT ON event BEGIN SELECT RAISE(ABORT, 'refused'); END";

    const COLUMNS: &'static str =
        "SELECT t.name || '.' || c.name FROM sqlite_schema t, pragma_table_info(t.name) c
        WHERE t.type = 'table' AND t.name NOT LIKE 'sqlite_%'";
    const TABLES: &'static str = deeds::SQLITE_TABLES;
    const OWN_CHECKS: &'static [&'static str] =
        &["38_events_are_not_a_chain", "39_key_of_no_era", "40_key_that_its_filter_denies"];
    const EFFECTS: &'static str = "effect";

    fn refusing(table: &str, job_id: JobId) -> String {
        let trigger = |on: &str| {
            format!(
                "CREATE TRIGGER refuse_{on} AFTER {on} ON {table} WHEN new.job_id = {}
                 BEGIN SELECT RAISE(ABORT, 'refused'); END;",
                Self::id(job_id)
            )
        };
        trigger("INSERT") + &trigger("UPDATE")
    }

    fn admitting(_table: &str) -> String {
        "DROP TRIGGER refuse_INSERT; DROP TRIGGER refuse_UPDATE".to_owned()
    }

    fn work(effect: &str, then: Then) -> SqliteWork {
        deeds::on_sqlite(effect, then)
    }
}

/// A database of the server that the tests share.
pub struct Postgres {
    store: PostgresStore,
    options: PostgresOptions,
    clock: TestClock,
    client: tokio_postgres::Client,
    /// The last one to let go stops the server.
    _cluster: Arc<Cluster>,
}

impl World for Postgres {
    type Store = PostgresStore;

    async fn open(clock: &TestClock) -> Self {
        let cluster = Cluster::shared();
        let options = PostgresOptions::new(&cluster.database().await);
        let store = PostgresStore::open_with_clock(&options, clock.clone()).await.unwrap();
        let (client, connection) =
            tokio_postgres::connect(&options.url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute("SET search_path = sprag").await.unwrap();
        Self { store, options, clock: clock.clone(), client, _cluster: cluster }
    }

    fn store(&self) -> &PostgresStore {
        &self.store
    }

    async fn reopen(&self) -> Answer<PostgresStore> {
        PostgresStore::open_with_clock(&self.options, self.clock.clone()).await
    }

    async fn query(&self, sql: &str) -> Result<Rows, String> {
        let rows = self.client.query(sql, &[]).await.map_err(|error| told(&error))?;
        Ok(rows.iter().map(|row| (0..row.len()).map(|column| row.get(column)).collect()).collect())
    }

    async fn execute(&self, sql: &str) -> Result<(), String> {
        self.client.batch_execute(sql).await.map_err(|error| told(&error))
    }

    async fn lay(&self, envelope: &str) -> InboxId {
        let (mut user, connection) =
            tokio_postgres::connect(&self.options.url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let tx = user.transaction().await.unwrap();
        let inbox_id = sprag_stores::postgres::submit_in(&tx, envelope).await.unwrap();
        tx.commit().await.unwrap();
        inbox_id
    }

    async fn cost(&self, sql: &str) -> (u64, String) {
        self.client.batch_execute("SET enable_seqscan = off; SET enable_sort = off").await.unwrap();
        let sql = format!("EXPLAIN (ANALYZE, BUFFERS, COSTS OFF, TIMING OFF) {sql}");
        let plan = self.query(&sql).await.unwrap().concat();
        let plan: Vec<String> = plan.into_iter().flatten().collect();
        let buffers =
            plan.iter().find(|line| line.contains("Buffers")).cloned().unwrap_or_default();
        let pages = buffers.split(['=', ' ']).filter_map(|word| word.parse::<u64>().ok());
        (pages.sum(), plan.join("; "))
    }

    fn hex(column: &str) -> String {
        // Both a uuid and a bytea, as text, are their digits with something around them.
        format!("replace(ltrim({column}::text, '\\x'), '-', '')")
    }

    fn id(id: JobId) -> String {
        format!("'{id}'")
    }

    /// They are gone for good; nobody can go past them here.
    fn past_checks() -> &'static str {
        "DO $$ DECLARE guard record; BEGIN
            FOR guard IN SELECT conname, CASE contypid WHEN 0 THEN 'TABLE ' || conrelid::regclass
                    ELSE 'DOMAIN ' || contypid::regtype END AS place FROM pg_constraint
                WHERE contype = 'c' AND connamespace = 'sprag'::regnamespace
            LOOP
                EXECUTE format('ALTER %s DROP CONSTRAINT %I', guard.place, guard.conname);
            END LOOP;
        END $$;"
    }

    const CHAINED: &'static str = "";
    const NO_EVENTS: &'static str =
        "ALTER TABLE event ADD CONSTRAINT refuse CHECK (false) NOT VALID";

    const COLUMNS: &'static str =
        "SELECT c.table_name || '.' || c.column_name FROM information_schema.columns c
        JOIN information_schema.tables t USING (table_schema, table_name)
        WHERE table_schema = 'sprag' AND t.table_type = 'BASE TABLE'";
    const TABLES: &'static str = deeds::POSTGRES_TABLES;
    const OWN_CHECKS: &'static [&'static str] = &[];
    const EFFECTS: &'static str = "public.effect";

    /// When the transaction commits.
    fn refusing(table: &str, job_id: JobId) -> String {
        format!(
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
                 $$ BEGIN RAISE EXCEPTION 'refused'; END $$;
             CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON {table}
                 DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (new.job_id = '{job_id}')
                 EXECUTE FUNCTION refuse()"
        )
    }

    fn admitting(table: &str) -> String {
        format!("DROP TRIGGER refuse ON {table}; DROP FUNCTION refuse()")
    }

    fn work(effect: &str, then: Then) -> PostgresWork {
        deeds::on_postgres(effect, then)
    }
}

fn told(error: &tokio_postgres::Error) -> String {
    error.as_db_error().map_or_else(|| error.to_string(), |error| error.message().to_owned())
}

/// Whether a call was fenced.
pub fn is_fenced<T>(answer: &Answer<T>) -> bool {
    matches!(answer, Err(StoreError::Fenced))
}
