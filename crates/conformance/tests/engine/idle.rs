//! Engines with nothing to do: they ask seldom, and are told of work. Where looks are an hour apart, whatever is
//! taken up was told of.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sprag_conformance::cluster::Cluster;
use sprag_conformance::cutter::Cutter;
use sprag_engine::directive::Failure;
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_kernel::JobState;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::submit_in;
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use crate::world::{World, closed, echo, envelope, protocol};

const GRACE: Duration = Duration::from_secs(5);
const HOUR: Duration = Duration::from_secs(3_600);

/// Looks by itself once, at the start.
fn trusting() -> EngineConfig {
    EngineConfig { poll: HOUR, idle: HOUR, ..EngineConfig::default() }
}

async fn postgres(url: &str) -> EngineBuilder<PostgresStore> {
    EngineBuilder::new(PostgresStore::open(&PostgresOptions::new(url)).await.unwrap())
}

/// An engine that serves one service and looks by itself once.
async fn serving(url: &str, protocol: Protocol, service: &str) -> Engine<PostgresStore> {
    let builder = postgres(url).await.config(trusting()).protocol(protocol);
    builder.service(service, 2, echo()).start().await.unwrap()
}

async fn client(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Waits until so many engines listen.
async fn listening(client: &tokio_postgres::Client, engines: i64) {
    let sql = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = 'sprag listener' AND query LIKE '%pg_%' AND state = 'idle'";
    let count = async || client.query_one(sql, &[]).await.unwrap().get::<_, i64>(0);
    while count().await != engines {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// Jobs for an engine that is not there yet.
async fn left(url: &str, jobs: usize) {
    let engine = postgres(url).await.protocol(protocol(&["a"])).start().await.unwrap();
    let engine = Arc::new(engine);
    let mut submits = JoinSet::new();
    for n in 0..jobs {
        let engine = engine.clone();
        submits.spawn(async move { engine.submit(&envelope(n)).await.unwrap() });
    }
    submits.join_all().await;
    Arc::into_inner(engine).unwrap().shutdown(GRACE).await.unwrap();
}

/// Waits until every job is over.
async fn all_closed<S: Store>(engine: &Engine<S>) {
    let closing = async {
        while engine.store().open_jobs().await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(Duration::from_secs(20), closing).await;
    assert!(ended.is_ok(), "{:?} jobs are open", engine.store().open_jobs().await);
}

/// A claim asks for 500 of a service at most. Whether those came was decided over all services, so that a service
/// without work, as there always is one, hid that another had more.
#[tokio::test]
async fn what_one_claim_could_not_hold_is_claimed_without_another_look() {
    // More than the looks at the start come to.
    const JOBS: usize = 4_000;
    let cluster = Cluster::shared();
    let url = cluster.database().await;
    left(&url, JOBS).await;
    let all = Arc::new(Barrier::new(JOBS));
    let handler = Handler::new(move |_: Value, _, _| {
        let all = all.clone();
        async move { Ok::<_, Failure>(all.wait().await.is_leader()) }
    });
    let builder = postgres(&url).await.config(trusting()).protocol(protocol(&["a"]));
    let engine = builder.service("a", JOBS, handler).start().await.unwrap();
    // All of them run at a time.
    all_closed(&engine).await;
    engine.shutdown(GRACE).await.unwrap();
}

/// Every time is a twentieth of what it is by default, so that three seconds are a minute.
#[tokio::test]
async fn an_idle_engine_asks_less_than_once_a_second() {
    const MINUTE: Duration = Duration::from_secs(3);
    let cluster = Cluster::shared();
    let database = cluster.database().await;
    let cutter = Cutter::before(&cluster);
    let name = database.rsplit('=').next().unwrap();
    let usual = EngineConfig::default();
    let config = EngineConfig {
        beat: usual.beat / 20,
        takeover: usual.takeover / 20,
        poll: usual.poll / 20,
        idle: usual.idle / 20,
        ..usual
    };
    let builder = postgres(&cutter.url(name)).await.config(config);
    let builder = builder.protocol(protocol(&["a", "b"])).service("a", 4, echo());
    let engine = builder.service("b", 4, echo()).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    closed(&engine, job_id).await;
    // Until it has calmed down.
    tokio::time::sleep(MINUTE).await;
    let before = cutter.requests();
    tokio::time::sleep(MINUTE).await;
    let asked = cutter.requests() - before;
    assert!(asked < 60, "{asked} statements in a minute");
    assert!(asked > 10, "{asked} statements: it does not even beat");
    engine.shutdown(GRACE).await.unwrap();
}

/// Submit, Leg1, the entry of Leg2, and its end. An engine that had room all the while knows that nothing waits.
#[tokio::test]
async fn a_lone_job_takes_four_commits_and_no_claim() {
    const JOBS: usize = 40;
    let world = World::new();
    let builder = world.builder().config(trusting()).protocol(protocol(&["a"]));
    let engine = builder.service("a", 2, echo()).start().await.unwrap();
    let first = engine.submit(&envelope(0)).await.unwrap().job_id;
    engine.closed(first).await.unwrap();
    let (_, before) = engine.store().written().await.unwrap();
    for n in 1..=JOBS {
        let job_id = engine.submit(&envelope(n)).await.unwrap().job_id;
        engine.closed(job_id).await.unwrap();
    }
    let (_, after) = engine.store().written().await.unwrap();
    let commits = usize::try_from(after - before).unwrap();
    // Beside them it beats.
    assert!((JOBS * 4..JOBS * 4 + 10).contains(&commits), "{commits}");
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_slot_that_is_free_again_is_filled_without_another_look() {
    let world = World::new();
    let builder = world.builder().config(trusting()).protocol(protocol(&["a", "b"]));
    let builder = builder.service("a", 1, echo()).service("b", 1, echo());
    let engine = Arc::new(builder.start().await.unwrap());
    let mut submits = JoinSet::new();
    for n in 0..200 {
        let engine = engine.clone();
        submits.spawn(async move { engine.submit(&envelope(n)).await.unwrap() });
    }
    submits.join_all().await;
    all_closed(&engine).await;
    Arc::into_inner(engine).unwrap().shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_job_for_the_service_of_another_engine_is_taken_up_when_that_is_told() {
    let cluster = Cluster::shared();
    let url = cluster.database().await;
    let second = serving(&url, protocol(&["a", "b"]), "b").await;
    let first = serving(&url, protocol(&["a", "b"]), "a").await;
    listening(&client(&url).await, 2).await;
    for n in 0..20 {
        let job_id = first.submit(&envelope(n)).await.unwrap().job_id;
        assert_eq!(closed(&second, job_id).await.row.state, JobState::Succeeded);
    }
    let waits = second.submit(&envelope(20)).await.unwrap().job_id;
    assert_eq!(closed(&second, waits).await.row.state, JobState::Succeeded, "there and back");
    first.shutdown(GRACE).await.unwrap();
    second.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn an_engine_whose_listener_was_cut_off_finds_what_it_was_not_told_of() {
    let cluster = Cluster::shared();
    let url = cluster.database().await;
    let second = serving(&url, protocol(&["a", "b"]), "b").await;
    let first = serving(&url, protocol(&["a", "b"]), "a").await;
    let client = client(&url).await;
    listening(&client, 2).await;
    let cut = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'sprag listener'";
    client.execute(cut, &[]).await.unwrap();
    let job_id = first.submit(&envelope(1)).await.unwrap().job_id;
    assert_eq!(closed(&second, job_id).await.row.state, JobState::Succeeded);
    listening(&client, 2).await;
    let job_id = first.submit(&envelope(2)).await.unwrap().job_id;
    assert_eq!(closed(&second, job_id).await.row.state, JobState::Succeeded);
    first.shutdown(GRACE).await.unwrap();
    second.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_submit_in_the_users_transaction_can_be_prepared_and_is_found_by_the_next_beat() {
    let settings = vec!["max_prepared_transactions=2".to_owned()];
    let cluster = Cluster::start_with(5432, settings, &[]);
    let url = cluster.database().await;
    let engine = serving(&url, protocol(&["a"]), "a").await;
    let client = client(&url).await;
    let text = String::from_utf8(envelope(1)).unwrap();
    client.batch_execute("BEGIN").await.unwrap();
    client.execute("SELECT sprag.submit($1::text)", &[&text]).await.unwrap();
    client.batch_execute("PREPARE TRANSACTION 'mine'").await.unwrap();
    client.batch_execute("COMMIT PREPARED 'mine'").await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    assert_eq!(closed(&engine, job_id).await.row.state, JobState::Succeeded);
    let taken = "SELECT count(*) FROM sprag.inbox WHERE job_id IS NOT NULL";
    while client.query_one(taken, &[]).await.unwrap().get::<_, i64>(0) == 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn on_a_file_what_another_process_writes_is_noticed() {
    let world = World::new();
    let builder = world.builder().config(trusting()).protocol(protocol(&["a"]));
    let engine = builder.service("a", 1, echo()).start().await.unwrap();
    engine.pause("a").await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    // As `sprag service resume` does it.
    let other = rusqlite::Connection::open(world.path()).unwrap();
    other.busy_timeout(GRACE).unwrap();
    other.execute("DELETE FROM service", []).unwrap();
    assert_eq!(closed(&engine, job_id).await.row.state, JobState::Succeeded);
    let mut user = rusqlite::Connection::open(world.path()).unwrap();
    user.busy_timeout(GRACE).unwrap();
    let tx = user.transaction().unwrap();
    let text = String::from_utf8(envelope(2)).unwrap();
    submit_in(&tx, &text).unwrap();
    tx.commit().unwrap();
    while engine.store().inbox_waiting(1, usize::MAX).await.unwrap().len() == 1 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let job_id = engine.submit(&envelope(2)).await.unwrap();
    assert!(!job_id.created, "it is the one of the inbox");
    closed(&engine, job_id.job_id).await;
    engine.shutdown(GRACE).await.unwrap();
}
