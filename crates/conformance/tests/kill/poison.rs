//! A hundred poisoned jobs among ten thousand: rows that a constraint refuses in each leg, rows that
//! cannot be read, handlers that panic, handlers that end the process. Every other job succeeds, and was
//! hardly ever delivered twice; each poisoned one ends for good and says why.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::time::Duration;

use serde_json::Value;
use sprag_conformance::cluster::Cluster;
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{JobFilter, Store};
use sprag_engine::worker::Handler;
use sprag_kernel::JobState;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::SqliteStore;

use super::killer::{Place, runtime};

/// The role of a victim that submits all jobs and ends.
pub(crate) const SUBMIT: &str = "submit";
/// The role of one that works until all have ended.
pub(crate) const WORK: &str = "work";

/// What is wrong with a job, how many there are of it, and the code that it ends with.
const POISON: [(&str, usize, &str); 6] = [
    ("dispatch", 15, "MESSAGE_POISON"),
    ("end", 15, "MESSAGE_POISON"),
    ("child", 15, "MESSAGE_POISON"),
    ("damaged", 15, "MESSAGE_POISON"),
    ("panic", 20, "HANDLER_PANIC"),
    ("abort", 20, "OWNER_LOST"),
];
const JOBS: usize = 10_000;
/// Engines that may be lost with a step here. The default is more, which only takes longer.
const MAX_LOSSES: u32 = 4;
/// The most entries that a ledger of a healthy job may show.
const ENTRIES: i64 = 3;
const SIGABRT: i32 = 6;

/// Refuses the directive of one kind of job, the output of another, and the second attempt of a third, as
/// a constraint would. The names of the kinds are the beginnings of their idempotency keys.
const SQLITE_TRAPS: &str = "
    CREATE TRIGGER trap_update BEFORE UPDATE ON attempt
    WHEN (NEW.state = 3 AND OLD.state <> 3 AND (SELECT idempotency_key LIKE 'dispatch-%' FROM job j
            WHERE j.job_id = NEW.job_id)) OR (OLD.output IS NULL AND NEW.output = '\"trap\"')
    BEGIN SELECT RAISE(ABORT, 'a trap'); END;
    CREATE TRIGGER trap_insert BEFORE INSERT ON attempt
    WHEN NEW.attempt_no = 2 AND (SELECT idempotency_key LIKE 'child-%' FROM job j
            WHERE j.job_id = NEW.job_id)
    BEGIN SELECT RAISE(ABORT, 'a trap'); END;
    UPDATE job SET idempotency_hash = x'00' WHERE idempotency_key LIKE 'damaged-%';";
const POSTGRES_TRAPS: &str = "
    CREATE FUNCTION trap() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE kind text := (SELECT idempotency_key FROM sprag.job WHERE job_id = NEW.job_id);
    BEGIN
        IF (TG_OP = 'UPDATE' AND NEW.state = 3 AND OLD.state <> 3 AND kind LIKE 'dispatch-%')
            OR (TG_OP = 'UPDATE' AND OLD.output IS NULL AND NEW.output = '\"trap\"')
            OR (TG_OP = 'INSERT' AND NEW.attempt_no = 2 AND kind LIKE 'child-%')
        THEN RAISE EXCEPTION 'a trap' USING ERRCODE = 'check_violation'; END IF;
        RETURN NEW;
    END $$;
    CREATE TRIGGER trap BEFORE INSERT OR UPDATE ON sprag.attempt
        FOR EACH ROW EXECUTE FUNCTION trap();
    UPDATE sprag.job SET idempotency_hash = '\\x00' WHERE idempotency_key LIKE 'damaged-%';";
/// Of healthy jobs: the most entries of either leg that a ledger shows, the most attempts, and how many were repeated.
const SIDE_EFFECTS: &str = "SELECT
        max(a.ledger / 1000000000000), max(a.ledger % 100000000), max(a.attempt_no), count(*) - count(DISTINCT a.job_id)
    FROM attempt a JOIN job j ON j.job_id = a.job_id WHERE j.idempotency_key LIKE 'ok-%'";

/// On a SQLite file.
pub(crate) fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("store.db");
    let place = Place { folder: folder.path(), url: None };
    assert!(place.victim(SUBMIT).status().unwrap().success());
    rusqlite::Connection::open(&path).unwrap().execute_batch(SQLITE_TRAPS).unwrap();
    let deaths = run(place);
    let store = SqliteStore::look(&path).unwrap();
    runtime().block_on(look(&store));
    let connection = rusqlite::Connection::open(&path).unwrap();
    let read = |row: &rusqlite::Row<'_>| {
        Ok(Most {
            entries: [row.get(0)?, row.get(1)?],
            attempts: row.get(2)?,
            repeated: row.get(3)?,
        })
    };
    expect_few(deaths, &connection.query_row(SIDE_EFFECTS, [], read).unwrap());
}

/// On a Postgres server.
pub(crate) fn on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, runtime) = (Cluster::start(), runtime());
    let url = runtime.block_on(cluster.database());
    let place = Place { folder: folder.path(), url: Some(&url) };
    assert!(place.victim(SUBMIT).status().unwrap().success());
    let client = runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.batch_execute(POSTGRES_TRAPS).await.unwrap();
        client
    });
    let deaths = run(place);
    let found = runtime.block_on(async {
        look(&PostgresStore::open(&PostgresOptions::new(&url)).await.unwrap()).await;
        client.batch_execute("SET search_path = sprag").await.unwrap();
        let row = client.query_one(SIDE_EFFECTS, &[]).await.unwrap();
        let attempts = row.get::<_, i32>(2).into();
        Most { entries: [row.get(0), row.get(1)], attempts, repeated: row.get(3) }
    });
    expect_few(deaths, &found);
}

/// Starts engines until all jobs have ended. Returns how many were ended by a handler.
fn run(place: Place<'_>) -> u32 {
    let mut deaths = 0;
    loop {
        let status = place.victim(WORK).stderr(std::process::Stdio::null()).status().unwrap();
        if status.success() {
            return deaths;
        }
        assert_eq!(status.signal(), Some(SIGABRT), "an engine ends by a handler only: {status}");
        deaths += 1;
        assert!(deaths < 1_000, "the poison never ends");
    }
}

/// What [`SIDE_EFFECTS`] finds.
struct Most {
    /// Of Leg1 and of Leg2.
    entries: [i64; 2],
    attempts: i64,
    repeated: i64,
}

fn expect_few(deaths: u32, Most { entries, attempts, repeated }: &Most) {
    let aborting = u32::try_from(POISON[5].1).unwrap();
    assert!(deaths >= aborting, "each of {aborting} handlers has ended its process, not {deaths}");
    assert!(entries.iter().all(|most| *most <= ENTRIES), "{entries:?} entries of a healthy job");
    println!(
        "{JOBS} jobs, {} poisoned: {deaths} engines ended by a handler; of the healthy jobs {repeated} \
         more attempts, {attempts} and {entries:?} entries of the legs at most",
        POISON.iter().map(|(_, count, _)| count).sum::<usize>(),
    );
}

/// Every job has ended as its kind says, and the audit is empty.
async fn look<S: Store>(store: &S) {
    let mut before = None;
    let mut ended: BTreeMap<String, usize> = BTreeMap::new();
    loop {
        let filter = JobFilter { before, limit: 1_000, ..JobFilter::default() };
        let jobs = store.jobs(filter).await.unwrap();
        for job in &jobs {
            let key = job.facts.idempotency_key.as_ref().unwrap();
            let (kind, _) = key.split_once('-').unwrap();
            let code = job.error.as_ref().map(|error| error.code.as_str());
            let expected = POISON.iter().find(|(poison, ..)| *poison == kind);
            let state = expected.map_or(JobState::Succeeded, |_| JobState::FailedFinal);
            assert_eq!((job.row.state, code), (state, expected.map(|(_, _, code)| *code)), "{key}");
            *ended.entry(kind.to_owned()).or_default() += 1;
        }
        match jobs.last() {
            Some(last) => before = Some(last.facts.job_id),
            None => break,
        }
    }
    for (kind, count, _) in POISON {
        assert_eq!(ended[kind], count, "{kind}");
    }
    assert_eq!(ended.values().sum::<usize>(), JOBS);
    for check in store.audit().await.unwrap() {
        assert_eq!(check.violations, [], "{}", check.name);
    }
}

// What the victims do.

fn builder<S: Store>(store: S) -> EngineBuilder<S> {
    let mut protocol = Protocol::new("poison.v1", "POISON").step("only", "work");
    protocol.steps[0].retry.backoff = Some(vec![1]);
    protocol.steps[0].retry.max_losses = Some(MAX_LOSSES);
    let config = EngineConfig {
        poll: Duration::from_millis(5),
        beat: Duration::from_millis(20),
        takeover: Duration::from_millis(100),
        ..EngineConfig::default()
    };
    EngineBuilder::new(store).config(config).protocol(protocol)
}

/// The poison is spread evenly among the others.
pub(crate) async fn submit<S: Store>(store: S) {
    let mut keys: Vec<String> = POISON
        .iter()
        .flat_map(|(kind, count, _)| (0..*count).map(move |n| format!("{kind}-{n}")))
        .collect();
    let apart = JOBS / keys.len();
    keys = (0..JOBS)
        .map(|n| if n % apart == 0 { keys[n / apart].clone() } else { format!("ok-{n}") })
        .collect();
    let engine = builder(store).start().await.unwrap();
    for slice in keys.chunks(500) {
        let envelopes = slice.iter().map(|key| {
            let kind = key.split('-').next().unwrap();
            format!(
                r#"{{"tenant_id":"t","request_type":"POISON","input_ref":"i","output_ref":"o",
                    "payload":"{kind}","schema_version":"1","idempotency_key":"{key}"}}"#
            )
        });
        let submits = envelopes.map(|envelope| {
            let engine = &engine;
            async move { engine.submit(envelope.as_bytes()).await.unwrap() }
        });
        join_all(submits).await;
    }
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
}

/// Runs all at the same time.
async fn join_all<F: Future>(futures: impl Iterator<Item = F>) {
    let mut running: Vec<_> = futures.map(Box::pin).collect();
    std::future::poll_fn(|context| {
        running.retain_mut(|future| future.as_mut().poll(context).is_pending());
        if running.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

pub(crate) async fn work<S: Store>(store: S) {
    let handler = Handler::new(|kind: String, directive: Directive, _| async move {
        tokio::task::yield_now().await;
        match kind.as_str() {
            "end" => Ok(Value::from("trap")),
            "child" => Err(Failure::retryable("AGAIN", "which the trap forbids")),
            "panic" => panic!("as it was told to"),
            "abort" => std::process::abort(),
            _ => Ok(Value::from(directive.attempt_no)),
        }
    });
    let engine = builder(store).service("work", 8, handler).start().await.unwrap();
    while engine.store().open_jobs().await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
}
