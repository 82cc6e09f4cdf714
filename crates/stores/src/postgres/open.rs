//! Opening a database: pools, schema, version.

use std::time::Duration;

use deadpool_postgres::{
    Hook, HookError, Manager, ManagerConfig, Pool, RecyclingMethod, Runtime, Timeouts,
};
use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::{Code, Refusal};
use tokio_postgres::{Client, NoTls};

use super::failure::failed;
use super::pools::Pools;
use crate::TestClock;

/// The schema this binary knows.
const SCHEMA_VERSION: i64 = 1;
const SCHEMA: &str = include_str!("../../sql/postgres/schema_1.sql");
/// What two processes that open a database at the same time wait for: `sprag` in ASCII.
const MIGRATION_LOCK: i64 = 0x73_70_72_61_67;
/// The oldest server whose SQL this store speaks, as `server_version_num`.
const OLDEST_SERVER: i32 = 150_000;
/// How long a call waits for a connection before the store counts as unavailable.
const WAIT: Duration = Duration::from_secs(10);

/// For every connection. A transaction that its client left open (a paused engine in the middle of an
/// amendment) must not hold its locks for ever.
const EVERY: &str = "SET search_path = sprag; SET default_transaction_isolation = 'read committed'; \
    SET idle_in_transaction_session_timeout = '10s'; SET application_name = 'sprag'";
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
    /// Connections for lists, the audit and takeovers.
    pub plain_connections: usize,
}

impl PostgresOptions {
    /// The database at this URL.
    pub fn new(url: &str) -> Self {
        Self { url: url.to_owned(), engine_connections: 8, plain_connections: 4 }
    }
}

pub(super) async fn open(options: &PostgresOptions, clock: Option<TestClock>) -> Answer<Pools> {
    let engine = pool(options, options.engine_connections, &format!("{EVERY}; {BY_INDEX}"))?;
    let plain = pool(options, options.plain_connections, EVERY)?;
    let pools = Pools::new(engine, plain, clock);
    let mut client = pools.plain().await?;
    migrate(&mut client).await?;
    drop(client);
    Ok(pools)
}

fn pool(options: &PostgresOptions, size: usize, settings: &str) -> Answer<Pool> {
    let config = options.url.parse::<tokio_postgres::Config>().map_err(|error| failed(&error))?;
    let recycling = ManagerConfig { recycling_method: RecyclingMethod::Fast };
    let settings = settings.to_owned();
    let configure = Hook::async_fn(move |client: &mut deadpool_postgres::ClientWrapper, _| {
        let settings = settings.clone();
        Box::pin(async move { client.batch_execute(&settings).await.map_err(HookError::Backend) })
    });
    Pool::builder(Manager::from_config(config, NoTls, recycling))
        .max_size(size)
        .runtime(Runtime::Tokio1)
        .timeouts(Timeouts { wait: Some(WAIT), create: Some(WAIT), recycle: Some(WAIT) })
        .post_create(configure)
        .build()
        .map_err(|error| StoreError::Unavailable(error.to_string()))
}

/// Creates the schema under a lock, so two processes that start at once do it once.
async fn migrate(client: &mut Client) -> Answer<()> {
    let tx = client.transaction().await.map_err(|error| failed(&error))?;
    let run = async {
        tx.execute("SELECT pg_advisory_xact_lock($1)", &[&MIGRATION_LOCK]).await?;
        let server = tx.query_one("SELECT current_setting('server_version_num')::integer", &[]);
        let server: i32 = server.await?.try_get(0)?;
        let has_meta = tx.query_one("SELECT to_regclass('sprag.meta') IS NOT NULL", &[]).await?;
        if server >= OLDEST_SERVER && !has_meta.try_get::<_, bool>(0)? {
            tx.batch_execute("CREATE SCHEMA IF NOT EXISTS sprag").await?;
            tx.batch_execute(SCHEMA).await?;
            tx.execute(
                "INSERT INTO sprag.meta VALUES ('schema_version', $1), ('oldest_compatible', $1)",
                &[&SCHEMA_VERSION.to_string()],
            )
            .await?;
        }
        Ok(server)
    };
    let server: i32 = run.await.map_err(|error: tokio_postgres::Error| failed(&error))?;
    if server < OLDEST_SERVER {
        let reason = format!("the server is {server}, at least {OLDEST_SERVER} is needed");
        return Err(StoreError::Unavailable(reason));
    }
    let oldest: String = tx
        .query_one("SELECT value FROM sprag.meta WHERE key = 'oldest_compatible'", &[])
        .await
        .and_then(|row| row.try_get(0))
        .map_err(|error| failed(&error))?;
    if oldest.parse::<i64>().map_or(true, |oldest| oldest > SCHEMA_VERSION) {
        return Err(StoreError::Refused(
            Refusal::new(Code::SchemaTooNew)
                .with("store", oldest)
                .with("binary", SCHEMA_VERSION.to_string()),
        ));
    }
    tx.commit().await.map_err(|error| failed(&error))
}
