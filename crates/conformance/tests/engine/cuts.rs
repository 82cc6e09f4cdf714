//! An engine whose connections break, at any request and on either side of it: it goes on, nothing that it was told
//! or had done is lost, and nothing is taken up twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_conformance::cutter::{Cutter, Side};
use sprag_engine::directive::Failure;
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::ids::JobId;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_kernel::{JobState, State};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};

use super::world::{assert_clean, envelope, protocol};

/// More than an engine asks for the jobs of one round.
const REQUESTS: u32 = 18;
const JOBS: usize = 6;

/// How a job ends, looked at by a way that nobody cuts.
async fn ended(store: &PostgresStore, job_id: JobId) -> JobState {
    for _ in 0..4_000 {
        let state = store.job(job_id).await.unwrap().unwrap().row.state;
        if state.is_terminal() {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the job does not close: {:?}", store.attempts(job_id).await);
}

/// A handler that is done at once, so that a job may be over before a lost answer is asked for again: the heart
/// then met its own job as one that had ended, and ended itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_lives_on_whichever_answer_gets_lost() {
    let cluster = Cluster::shared();
    let database = cluster.database().await;
    let name = database.rsplit_once('=').unwrap().1;
    let cutter = Cutter::before(&cluster);
    let straight = PostgresStore::open(&PostgresOptions::new(&database)).await.unwrap();
    let store = PostgresStore::open(&PostgresOptions::new(&cutter.url(name))).await.unwrap();
    let config = EngineConfig { poll: Duration::from_millis(20), ..EngineConfig::default() };
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    let work = Handler::new(move |_: serde_json::Value, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Failure>(1) }
    });
    let engine = EngineBuilder::new(store).config(config).protocol(protocol(&["a", "b"]));
    let engine = engine.service("a", 4, work.clone()).service("b", 4, work).start().await.unwrap();
    let engine = Arc::new(engine);
    let (mut n, mut cuts) = (0, 0);
    for request in 1..=REQUESTS {
        for side in [Side::There, Side::Back] {
            cutter.arm(request, side);
            let submits = (0..JOBS).map(|i| {
                let (engine, envelope) = (engine.clone(), envelope(n + i));
                tokio::spawn(async move { engine.submit(&envelope).await.unwrap().job_id })
            });
            for submitted in submits.collect::<Vec<_>>() {
                let state = ended(&straight, submitted.await.unwrap()).await;
                assert_eq!(state, JobState::Succeeded, "cut at {request}, {side:?}");
            }
            n += JOBS;
            cuts += u32::from(cutter.disarm());
        }
    }
    assert!(cuts > REQUESTS, "most of them were cut: {cuts}");
    let ran = usize::try_from(ran.load(Ordering::SeqCst)).unwrap();
    assert!(ran >= 2 * n, "every step has run: {ran} of {}", 2 * n);
    assert_clean(&straight).await;
    let engine = Arc::into_inner(engine).unwrap();
    engine.shutdown(Duration::from_secs(5)).await.expect("it has lived to the end");
}

/// What makes a directive and its job wait for the test.
const GATES: &str = "
    CREATE FUNCTION sprag.wait_for() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN PERFORM pg_advisory_xact_lock(TG_ARGV[0]::bigint); RETURN NEW; END $$;
    CREATE TRIGGER waits BEFORE INSERT ON sprag.job FOR EACH ROW EXECUTE FUNCTION sprag.wait_for(1);
    CREATE TRIGGER waits BEFORE UPDATE ON sprag.attempt FOR EACH ROW EXECUTE FUNCTION sprag.wait_for(2)";

/// Waits until so many statements of this database wait for a lock.
async fn waiting(client: &tokio_postgres::Client, count: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock'";
    for _ in 0..4_000 {
        if client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0) == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{count} statements do not wait for a lock");
}

/// A job and its directive are sent together. Of a connection that breaks the server may hear much later, when both are
/// asked for again: the engine then took the job up with another lease, lost against its own first directive, and
/// forgot the job.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directive_that_the_server_still_has_to_come_to_is_not_lost() {
    let cluster = Cluster::shared();
    let database = cluster.database().await;
    let name = database.rsplit_once('=').unwrap().1;
    let cutter = Cutter::before(&cluster);
    let straight = PostgresStore::open(&PostgresOptions::new(&database)).await.unwrap();
    let store = PostgresStore::open(&PostgresOptions::new(&cutter.url(name))).await.unwrap();
    let (client, connection) =
        tokio_postgres::connect(&database, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let config = EngineConfig { poll: Duration::from_millis(20), ..EngineConfig::default() };
    let work = Handler::new(|_: serde_json::Value, _, _| async { Ok::<_, Failure>(1) });
    let engine = EngineBuilder::new(store).config(config).protocol(protocol(&["a"]));
    let engine = Arc::new(engine.service("a", 4, work).start().await.unwrap());

    client.batch_execute(GATES).await.unwrap();
    let mut n = 0;
    // While a claim of the engine is under way a job is submitted without its directive.
    let submitted = loop {
        n += 1;
        assert!(n < 100, "no directive goes along");
        client.batch_execute("SELECT pg_advisory_lock(1), pg_advisory_lock(2)").await.unwrap();
        cutter.arm_at("J0>1 S0>1", Side::Late);
        let (submitting, envelope) = (engine.clone(), envelope(n));
        let submitted = tokio::spawn(async move { submitting.submit(&envelope).await });
        waiting(&client, 1).await;
        // Both are sent at once.
        tokio::time::sleep(Duration::from_millis(20)).await;
        if cutter.disarm() {
            break submitted;
        }
        client.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
        let job_id = submitted.await.unwrap().unwrap().job_id;
        assert_eq!(ended(&straight, job_id).await, JobState::Succeeded);
    };
    // The first insert, and that of an engine that has lost its connection.
    waiting(&client, 2).await;
    client.batch_execute("SELECT pg_advisory_unlock(1)").await.unwrap();
    let job_id = submitted.await.unwrap().unwrap().job_id;
    // The first directive, and what the engine makes of the job.
    waiting(&client, 2).await;
    client.batch_execute("SELECT pg_advisory_unlock(2)").await.unwrap();
    assert_eq!(ended(&straight, job_id).await, JobState::Succeeded);
    let attempts = straight.attempts(job_id).await.unwrap();
    assert_eq!(attempts.len(), 1, "and it was not run twice: {attempts:?}");
    assert_clean(&straight).await;
    Arc::into_inner(engine).unwrap().shutdown(Duration::from_secs(5)).await.unwrap();
}
