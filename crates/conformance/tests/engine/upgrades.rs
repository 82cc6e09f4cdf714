//! Upgrades: engines of an old and a new version of the schema on the same books, under load.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_engine::directive::Failure;
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::store::{JobFilter, Store, StoreError};
use sprag_engine::worker::Handler;
use sprag_kernel::{Code, JobState};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};
use sprag_stores::versions::{Migration, Schema};

use super::world::{World, assert_clean, echo, protocol};

const GRACE: Duration = Duration::from_secs(10);
const JOBS: usize = 400;
/// How many are submitted at a time.
const AT_A_TIME: usize = 20;

/// Adds, and takes nothing away.
const EXPAND: Migration = Migration {
    version: 2,
    oldest_compatible: 1,
    sql: "ALTER TABLE sprag.job ADD COLUMN colour text NOT NULL DEFAULT 'grey';
        ALTER TABLE sprag.attempt ADD COLUMN shade bigint;
        CREATE TABLE sprag.paint (colour text PRIMARY KEY)",
};
/// Takes away what engines of version 1 could still have known.
const CONTRACT: Migration =
    Migration { version: 3, oldest_compatible: 2, sql: "DROP TABLE sprag.paint" };

fn steps(first: &'static str, more: &[Migration]) -> Schema {
    let first = Migration { version: 1, oldest_compatible: 1, sql: first };
    Schema::new(std::iter::once(first).chain(more.iter().copied()).collect())
}

fn schema(more: &[Migration]) -> Schema {
    steps(include_str!("../../../stores/sql/postgres/schema_1.sql"), more)
}

/// An engine that counts the steps that it has run.
struct Counting {
    engine: Arc<Engine<PostgresStore>>,
    ran: Arc<AtomicUsize>,
}

impl Counting {
    async fn start(url: &str, schema: Schema) -> Self {
        let options = PostgresOptions::new(url);
        let store = PostgresStore::open_as(&options, None, schema).await.unwrap();
        let config = EngineConfig {
            beat: Duration::from_millis(50),
            takeover: Duration::from_secs(2),
            poll: Duration::from_millis(5),
            ..EngineConfig::default()
        };
        let ran = Arc::<AtomicUsize>::default();
        let counted = ran.clone();
        let work = Handler::new(move |_: serde_json::Value, _, _| {
            counted.fetch_add(1, Ordering::SeqCst);
            async { Ok::<_, Failure>(1) }
        });
        let builder = EngineBuilder::new(store).config(config).protocol(protocol(&["a", "b"]));
        let builder = builder.service("a", 4, work.clone()).service("b", 4, work);
        Self { engine: Arc::new(builder.start().await.unwrap()), ran }
    }

    /// How many steps it has run since it was asked the last time.
    fn ran(&self) -> usize {
        self.ran.swap(0, Ordering::SeqCst)
    }

    async fn shutdown(self) {
        Arc::into_inner(self.engine).unwrap().shutdown(GRACE).await.unwrap();
    }
}

fn envelope(n: usize) -> Vec<u8> {
    format!(
        r#"{{"tenant_id":"t1","request_type":"TEST","input_ref":"in","output_ref":"out",
            "payload":{{"n":{n}}},"schema_version":"1","idempotency_key":"{n}"}}"#
    )
    .into_bytes()
}

/// Submits to both engines in turn, many at a time, and what one refuses because it stops to the last one.
async fn submit(jobs: Range<usize>, [one, two]: [&Counting; 2]) {
    for first in jobs.clone().step_by(AT_A_TIME) {
        let at_a_time = (first..jobs.end.min(first + AT_A_TIME)).map(|n| {
            let asked = if n % 2 == 0 { &one.engine } else { &two.engine };
            let (asked, last) = (asked.clone(), two.engine.clone());
            tokio::spawn(async move {
                if asked.submit(&envelope(n)).await.is_err() {
                    last.submit(&envelope(n)).await.unwrap();
                }
            })
        });
        for submitted in at_a_time.collect::<Vec<_>>() {
            submitted.await.unwrap();
        }
    }
}

/// Waits until nothing is left to do.
async fn done(engine: &Engine<PostgresStore>) {
    while engine.store().open_jobs().await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_engine_works_beside_a_new_one_until_its_version_is_not_admitted_any_more() {
    let cluster = Cluster::start();
    let url = cluster.database().await;
    let old = Counting::start(&url, schema(&[])).await;
    submit(0..JOBS / 4, [&old, &old]).await;
    // The migration is applied while the old engine works; both go on.
    let ((), new) = tokio::join!(
        submit(JOBS / 4..JOBS / 2, [&old, &old]),
        Counting::start(&url, schema(&[EXPAND]))
    );
    done(&new.engine).await;
    assert!(old.ran() + new.ran() >= JOBS, "two steps each");
    submit(JOBS / 2..JOBS * 3 / 4, [&old, &new]).await;
    done(&new.engine).await;
    let ran = (old.ran(), new.ran());
    assert!(ran.0 > 0 && ran.1 > 0, "both have run steps since the migration: {ran:?}");
    assert!(old.engine.submit(&envelope(0)).await.is_ok(), "the old one is admitted");
    // Now version 1 is not: the old engine notices, drains and ends.
    let newest = Counting::start(&url, schema(&[EXPAND, CONTRACT])).await;
    submit(JOBS * 3 / 4..JOBS, [&old, &newest]).await;
    let old = Arc::into_inner(old.engine).unwrap();
    let ended = tokio::time::timeout(GRACE, old.ended()).await;
    let Ok(Err(StoreError::Refused(refusal))) = ended else { panic!("{ended:?}") };
    assert_eq!(refusal.code(), Code::SchemaTooNew);
    let options = PostgresOptions::new(&url);
    let Err(StoreError::Refused(refusal)) =
        PostgresStore::open_as(&options, None, schema(&[])).await
    else {
        panic!("a binary that is too old does not open the store")
    };
    assert_eq!(refusal.code(), Code::SchemaTooNew);

    done(&new.engine).await;
    assert!(newest.ran() > 0, "the newest one has run steps too");
    let filter = JobFilter { limit: 10_000, ..JobFilter::default() };
    let jobs = new.engine.store().jobs(filter).await.unwrap();
    assert_eq!(jobs.len(), JOBS, "no job is lost or doubled");
    assert!(jobs.iter().all(|job| job.row.state == JobState::Succeeded));
    assert_clean(new.engine.store()).await;
    new.shutdown().await;
    newest.shutdown().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn eight_processes_that_migrate_at_once_do_it_once() {
    let cluster = Cluster::start();
    let url = cluster.database().await;
    Counting::start(&url, schema(&[])).await.shutdown().await;
    let opening = (0..8).map(|_| {
        let options = PostgresOptions::new(&url);
        tokio::spawn(async move { PostgresStore::open_as(&options, None, schema(&[EXPAND])).await })
    });
    for opened in opening.collect::<Vec<_>>() {
        opened.await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn an_engine_on_a_file_notices_too_and_a_newer_file_is_refused() {
    let world = World::new();
    let engine =
        world.builder().protocol(protocol(&["a"])).service("a", 1, echo()).start().await.unwrap();
    let file = rusqlite::Connection::open(world.path()).unwrap();
    file.execute("UPDATE meta SET value = '2'", []).unwrap();
    let ended = tokio::time::timeout(GRACE, engine.ended()).await;
    let Ok(Err(StoreError::Refused(refusal))) = ended else { panic!("{ended:?}") };
    assert_eq!(refusal.code(), Code::SchemaTooNew);
    let refused = SqliteStore::open(&world.path(), Durability::Process).err().unwrap();
    assert!(refused.to_string().contains("SCHEMA_TOO_NEW"), "{refused}");

    let first = include_str!("../../../stores/sql/sqlite/schema_1.sql");
    let newer = Migration {
        version: 3,
        oldest_compatible: 2,
        sql: "ALTER TABLE job ADD COLUMN colour TEXT NOT NULL DEFAULT 'grey'",
    };
    let two = Migration { version: 2, oldest_compatible: 1, sql: "" };
    let schema = steps(first, &[two, newer]);
    let store = SqliteStore::open_as(&world.path(), Durability::Process, None, &schema).unwrap();
    assert_eq!(store.open_jobs().await.unwrap(), 0);
    let colours: i64 =
        file.query_row("SELECT count(colour) FROM job", [], |row| row.get(0)).unwrap();
    assert_eq!(colours, 0, "the column is there");
}
