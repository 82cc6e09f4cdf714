//! Opening a database: pools, schema, version.

use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Pool, QueueMode, RecyclingMethod, Runtime, Timeouts,
};
use sprag_engine::store::{Answer, StoreError};
use tokio_postgres::{Client, Transaction};

use super::failure::failed;
use super::pools::Pools;
use super::tls;
use crate::TestClock;
use crate::versions::{Migration, Schema, version_of};

/// The schema this binary knows.
pub(super) fn schema() -> Schema {
    let first = concat!(
        include_str!("../../sql/postgres/schema_1.sql"),
        include_str!("../../sql/postgres/views.sql")
    );
    Schema::new(vec![Migration { version: 1, oldest_compatible: 1, sql: first }])
}
/// What two processes that open a database at the same time wait for: `sprag` in ASCII.
const MIGRATION_LOCK: i64 = 0x73_70_72_61_67;
/// A migration that waits for a table makes everybody else wait behind it; it rather fails, and is tried
/// again with the next start.
const PATIENCE: &str = "SET LOCAL lock_timeout = '5s'";
/// Beside engines at work it may also be the victim of a deadlock; so it is made again a few times.
const MIGRATION_TRIES: u32 = 5;
/// The oldest server whose SQL this store speaks, as `server_version_num`.
const OLDEST_SERVER: i32 = 150_000;
/// How long a call waits for a connection before the store counts as unavailable.
const WAIT: Duration = Duration::from_secs(10);

/// For every connection. A transaction that its client left open (a paused engine in the middle of an
/// amendment) must not hold its locks for ever.
const EVERY: &str = "SET default_transaction_isolation = 'read committed'; \
    SET idle_in_transaction_session_timeout = '10s'; SET application_name = 'sprag'";
/// For the store's own statements. The user's work finds the tables it would find anyway.
const OWN: &str = "SET search_path = sprag";
/// For slices: `unnest` is estimated at a few rows and every other plan than index lookups from it is
/// wrong. A generic plan saves planning, which costs more than some of the statements.
const BY_INDEX: &str = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; \
    SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_bitmapscan = off; SET jit = off";

/// Where the database is and how many connections it gets.
#[derive(Clone, Debug)]
pub struct PostgresOptions {
    /// A `postgres://` URL or a list of `key=value`.
    pub url: String,
    /// Connections for slices. More than a few gain nothing: calls of one kind follow each other.
    pub engine_connections: usize,
    /// Connections for lists and the audit.
    pub plain_connections: usize,
    /// Connections for the work of transactional handlers: as many run at a time.
    pub work_connections: usize,
}

impl PostgresOptions {
    /// The database at this URL.
    pub fn new(url: &str) -> Self {
        let url = url.to_owned();
        Self { url, engine_connections: 8, plain_connections: 4, work_connections: 4 }
    }
}

pub(super) async fn open(
    options: &PostgresOptions,
    clock: Option<TestClock>,
    schema: Schema,
) -> Answer<Pools> {
    let engine = pool(options, options.engine_connections, &format!("{EVERY}; {OWN}; {BY_INDEX}"))?;
    let plain = pool(options, options.plain_connections, &format!("{EVERY}; {OWN}"))?;
    let work = pool(options, options.work_connections, EVERY)?;
    let pools = Pools::new([engine, plain, work], (clock, schema.version()), options.url.clone());
    let mut client = pools.plain().await?;
    for tries_left in (0..MIGRATION_TRIES).rev() {
        match migrate(&mut client, &schema).await {
            Err(StoreError::Unavailable(_)) if tries_left > 0 => {}
            migrated => {
                migrated?;
                break;
            }
        }
    }
    drop(client);
    Ok(pools)
}

fn pool(options: &PostgresOptions, size: usize, settings: &str) -> Answer<Pool> {
    let (config, tls) = tls::configure(&options.url)?;
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let settings = settings.to_owned();
    let configure = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
        let settings = settings.clone();
        Box::pin(async move { client.batch_execute(&settings).await.map_err(HookError::Backend) })
    });
    Pool::builder(Manager::from_config(config, tls, recycling))
        .max_size(size)
        // The connection that was used last has its plans and its caches warm; the others come in when it is busy.
        .queue_mode(QueueMode::Lifo)
        .runtime(Runtime::Tokio1)
        .timeouts(Timeouts { wait: Some(WAIT), create: Some(WAIT), recycle: Some(WAIT) })
        .post_create(configure)
        .build()
        .map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// Brings the schema to this binary's version, under a lock, so that two processes that start at once do it
/// once. A store that is newer is left as it is, if it admits this binary.
async fn migrate(client: &mut Client, schema: &Schema) -> Answer<()> {
    let tx = client.transaction().await.map_err(|error| failed(&error))?;
    let oldest = migrate_in(&tx, schema).await?;
    schema.admit(oldest)?;
    tx.commit().await.map_err(|error| failed(&error))
}

/// Applies what is missing; returns the oldest version that is compatible afterwards.
async fn migrate_in(tx: &Transaction<'_>, schema: &Schema) -> Answer<i64> {
    let run = async {
        tx.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        tx.batch_execute(PATIENCE).await?;
        let server = tx.query_one("SELECT current_setting('server_version_num')::integer", &[]);
        let server: i32 = server.await?.try_get(0)?;
        let sql = "SELECT to_regclass('sprag.meta') IS NOT NULL, current_database()::text";
        let found = tx.query_one(sql, &[]).await?;
        Ok((server, found.try_get::<_, bool>(0)?, found.try_get::<_, String>(1)?))
    };
    let (server, has_meta, database) =
        run.await.map_err(|error: tokio_postgres::Error| failed(&error))?;
    if server < OLDEST_SERVER {
        let reason = format!("the server is {server}, at least {OLDEST_SERVER} is needed");
        return Err(StoreError::Unavailable(reason));
    }
    schema.expect_store(has_meta, &format!("database {database}"))?;
    let (present, mut oldest) = if has_meta { versions(tx).await? } else { (0, 1) };
    for step in schema.missing(present) {
        oldest = oldest.max(step.oldest_compatible);
        apply(tx, step, oldest).await.map_err(|error| failed(&error))?;
    }
    Ok(oldest)
}

/// The store's version, and the oldest that it admits.
async fn versions(tx: &Transaction<'_>) -> Answer<(i64, i64)> {
    let sql = "SELECT (SELECT value FROM sprag.meta WHERE key = 'schema_version'),
        (SELECT value FROM sprag.meta WHERE key = 'oldest_compatible')";
    let row = tx.query_one(sql, &[]).await.map_err(|error| failed(&error))?;
    let value = |column| -> Answer<i64> {
        let text: Option<&str> = row.try_get(column).map_err(|error| failed(&error))?;
        version_of(text.unwrap_or_default())
    };
    Ok((value(0)?, value(1)?))
}

async fn apply(
    tx: &Transaction<'_>,
    step: &Migration,
    oldest: i64,
) -> Result<(), tokio_postgres::Error> {
    if step.version == 1 {
        tx.batch_execute("CREATE SCHEMA IF NOT EXISTS sprag").await?;
    }
    tx.batch_execute(step.sql).await?;
    let sql = "INSERT INTO sprag.meta VALUES ('schema_version', $1), ('oldest_compatible', $2)
        ON CONFLICT (key) DO UPDATE SET value = excluded.value";
    tx.execute(sql, &[&step.version.to_string(), &oldest.to_string()]).await?;
    Ok(())
}
