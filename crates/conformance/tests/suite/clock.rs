//! Clocks: only the store's counts. That of an engine's host may be an hour off, or jump.

use std::fs;
use std::path::Path;
use std::time::Duration;

use sprag_engine::directive::Failure;
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{JobView, Store};
use sprag_engine::worker::Handler;
use sprag_kernel::{JobState, State};
use sprag_stores::TestClock;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};

use sprag_conformance::cluster::Cluster;

const HOUR_MS: u64 = 3_600_000;

fn wall_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    u64::try_from(since.as_millis()).unwrap()
}

/// An engine whose only step fails once, so that a lease, a backoff and a takeover time are at work.
async fn engine<S: Store>(store: S) -> Engine<S> {
    let mut protocol = Protocol::new("clock.v1", "CLOCK").step("only", "work");
    protocol.steps[0].retry.backoff = Some(vec![50]);
    let config = EngineConfig {
        poll: Duration::from_millis(5),
        beat: Duration::from_millis(20),
        ..EngineConfig::default()
    };
    let handler = Handler::new(|_: serde_json::Value, directive, _| async move {
        if directive.attempt_no == 1 {
            return Err(Failure::retryable("ONCE", "the first attempt fails"));
        }
        Ok(directive.attempt_no)
    });
    let builder = EngineBuilder::new(store).config(config).protocol(protocol);
    builder.service("work", 1, handler).start().await.unwrap()
}

async fn run<S: Store>(engine: &Engine<S>) -> JobView {
    let envelope = br#"{"tenant_id":"t","request_type":"CLOCK","input_ref":"i","output_ref":"o",
        "payload":{},"schema_version":"1"}"#;
    let job_id: JobId = engine.submit(envelope).await.unwrap().job_id;
    loop {
        let job = engine.store().job(job_id).await.unwrap().unwrap();
        if job.row.state.is_terminal() {
            return job;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The server's clock is an hour ahead of this host's: as if the host's were an hour behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn t28_and_e10_on_postgres_the_clock_of_the_host_has_no_effect() {
    let cluster = Cluster::shared();
    let url = cluster.database().await;
    let store = PostgresStore::open(&PostgresOptions::new(&url)).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let ahead =
        "CREATE OR REPLACE FUNCTION sprag.now_ms(test bigint) RETURNS bigint LANGUAGE sql VOLATILE
        PARALLEL RESTRICTED RETURN coalesce(test, 3600000
            + floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint)";
    client.batch_execute(ahead).await.unwrap();
    let engine = engine(store).await;
    let job = run(&engine).await;
    assert_eq!((job.row.state, job.row.attempts_total), (JobState::Succeeded, 2));
    let times = [job.created_at, job.updated_at, job.completed_at.unwrap()];
    for at in times {
        assert!(at.abs_diff(wall_ms() + HOUR_MS) < HOUR_MS / 2, "{at} is of the server's clock");
    }
    assert!(job.completed_at.unwrap() - job.created_at >= 50, "the backoff was waited for");
    let attempts = engine.store().attempts(job.facts.job_id).await.unwrap();
    assert!(attempts.iter().all(|attempt| attempt.row.losses == 0), "nobody was declared dead");
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
}

/// The file has seen an hour that this host has not: its clock was set back since.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn e10_on_sqlite_time_goes_on_from_the_latest_that_the_file_has_seen() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let then = wall_ms() + HOUR_MS;
    let before = TestClock::at(i64::try_from(then).unwrap());
    let store = SqliteStore::open_with_clock(&path, before).unwrap();
    store.join("before").await.unwrap();
    drop(store);
    let engine = engine(SqliteStore::open(&path, Durability::Process).unwrap()).await;
    assert!(engine.store().now().await.unwrap() >= then, "never backwards");
    let job = run(&engine).await;
    assert_eq!((job.row.state, job.row.attempts_total), (JobState::Succeeded, 2));
    assert!(job.created_at >= then && job.completed_at.unwrap() - job.created_at >= 50);
    assert!(job.completed_at.unwrap() < then + HOUR_MS / 2, "and no jump");
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
}

/// A jump of the wall clock can only matter where the wall clock is read: once, when a file is opened.
#[test]
fn e10_nobody_reads_the_wall_clock_but_the_one_who_opens_a_file() {
    fn readers(folder: &Path, found: &mut Vec<String>) {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                readers(&path, found);
            } else {
                let text = fs::read_to_string(&path).unwrap();
                let reads = text.matches("SystemTime::now()").count();
                found
                    .extend((0..reads).map(|_| path.file_name().unwrap().to_string_lossy().into()));
            }
        }
    }
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let mut found = Vec::new();
    for name in ["kernel", "engine", "stores"] {
        readers(&crates.join(name).join("src"), &mut found);
    }
    assert_eq!(found, ["clock.rs"]);
}
