//! Submit inside of a user's own transaction: all of it or nothing, and one job however often.

use std::sync::Arc;
use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::inbox::{InboxFilter, InboxId, InboxView};
use sprag_engine::store::{JobFilter, Store};
use sprag_stores::postgres::{self, PostgresOptions, PostgresStore};
use sprag_stores::sqlite;

use super::world::{World, assert_clean, closed, echo, envelope, protocol};

const GRACE: Duration = Duration::from_secs(5);

/// Waits until an engine has taken the row.
async fn taken<S: Store>(engine: &Engine<S>, inbox_id: InboxId) -> InboxView {
    for _ in 0..2_000 {
        let filter = InboxFilter { limit: 10_000, ..InboxFilter::default() };
        let rows = engine.store().inbox(filter).await.unwrap();
        let row = rows.into_iter().find(|row| row.inbox_id == inbox_id);
        if let Some(row) = row.filter(|row| row.taken_at.is_some()) {
            return row;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("nobody takes row {inbox_id}")
}

async fn job_count<S: Store>(engine: &Engine<S>) -> usize {
    let filter = JobFilter { limit: 10_000, ..JobFilter::default() };
    engine.store().jobs(filter).await.unwrap().len()
}

fn text(n: usize) -> String {
    String::from_utf8(envelope(n)).unwrap()
}

#[tokio::test]
async fn on_a_file_a_submit_commits_and_rolls_back_with_the_users_transaction() {
    let world = World::new();
    let engine =
        world.builder().protocol(protocol(&["a"])).service("a", 2, echo()).start().await.unwrap();
    let mut user = rusqlite::Connection::open(world.path()).unwrap();
    user.busy_timeout(GRACE).unwrap();
    user.execute("CREATE TABLE page (n INTEGER PRIMARY KEY)", []).unwrap();

    let tx = user.transaction().unwrap();
    tx.execute("INSERT INTO page VALUES (1)", []).unwrap();
    sqlite::submit_in(&tx, &text(1)).unwrap();
    tx.rollback().unwrap();

    let tx = user.transaction().unwrap();
    tx.execute("INSERT INTO page VALUES (2)", []).unwrap();
    let two = sqlite::submit_in(&tx, &text(2)).unwrap();
    let again = sqlite::submit_in(&tx, &text(2)).unwrap();
    let bad = sqlite::submit_in(&tx, "{\"tenant_id\":7}").unwrap();
    let stranger = sqlite::submit_in(&tx, &text(3).replace("TEST", "OTHER")).unwrap();
    tx.commit().unwrap();

    let (two, again) = (taken(&engine, two).await, taken(&engine, again).await);
    assert_eq!(two.job_id, again.job_id, "the same envelope is the same job");
    closed(&engine, two.job_id.unwrap()).await;
    assert_eq!(job_count(&engine).await, 1, "what was rolled back was never there");
    let refused = [taken(&engine, bad).await, taken(&engine, stranger).await];
    let codes: Vec<_> =
        refused.iter().map(|row| row.error.as_ref().unwrap().code.as_str()).collect();
    assert_eq!(codes, ["ENVELOPE_INVALID", "PROTOCOL_UNKNOWN"]);
    let filter = InboxFilter { refused: true, limit: 10, ..InboxFilter::default() };
    assert_eq!(engine.store().inbox(filter).await.unwrap().len(), 2);
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

struct Server {
    cluster: Arc<Cluster>,
    url: String,
}

impl Server {
    async fn start() -> Self {
        let cluster = Cluster::shared();
        let url = cluster.database().await;
        Self { cluster, url }
    }

    async fn engine(&self) -> Engine<PostgresStore> {
        let store = PostgresStore::open(&PostgresOptions::new(&self.url)).await.unwrap();
        let config = EngineConfig { poll: Duration::from_millis(5), ..EngineConfig::default() };
        let builder = EngineBuilder::new(store).config(config).protocol(protocol(&["a"]));
        builder.service("a", 4, echo()).start().await.unwrap()
    }

    async fn client(&self, user: &str) -> tokio_postgres::Client {
        let url = self.url.replace("user=sprag", &format!("user={user}"));
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres_a_role_with_execute_only_submits_in_its_own_transaction() {
    let server = Server::start().await;
    let engine = server.engine().await;
    let owner = server.client("sprag").await;
    owner
        .batch_execute(
            "CREATE ROLE writer LOGIN; CREATE ROLE nobody_else LOGIN;
             GRANT EXECUTE ON FUNCTION sprag.submit(text), sprag.submit(jsonb) TO writer;
             CREATE TABLE public.page (n integer PRIMARY KEY); GRANT INSERT ON public.page TO writer",
        )
        .await
        .unwrap();
    let mut user = server.client("writer").await;

    let tx = user.transaction().await.unwrap();
    tx.execute("INSERT INTO public.page VALUES (1)", &[]).await.unwrap();
    postgres::submit_in(&tx, &text(1)).await.unwrap();
    tx.rollback().await.unwrap();

    let tx = user.transaction().await.unwrap();
    tx.execute("INSERT INTO public.page VALUES (2)", &[]).await.unwrap();
    let two = postgres::submit_in(&tx, &text(2)).await.unwrap();
    let sql = format!("SELECT sprag.submit('{}'::jsonb)", text(2));
    let again = InboxId(tx.query_one(&sql, &[]).await.unwrap().get(0));
    let sql = format!("SELECT sprag.submit('{}')", text(2));
    let thrice = InboxId(tx.query_one(&sql, &[]).await.unwrap().get(0));
    let bad = postgres::submit_in(&tx, "{").await.unwrap();
    tx.commit().await.unwrap();

    let job_id = taken(&engine, two).await.job_id;
    assert_eq!(taken(&engine, again).await.job_id, job_id, "the same content is the same job");
    assert_eq!(taken(&engine, thrice).await.job_id, job_id);
    closed(&engine, job_id.unwrap()).await;
    assert_eq!(job_count(&engine).await, 1, "what was rolled back was never there");
    let bad = taken(&engine, bad).await;
    assert_eq!(bad.error.unwrap().code, "JSON_INVALID");

    for forbidden in ["SELECT envelope FROM sprag.inbox", "DELETE FROM sprag.job"] {
        let error = user.query(forbidden, &[]).await.unwrap_err();
        assert_eq!(error.code().unwrap().code(), "42501", "{forbidden}: no right to it");
    }
    let stranger = server.client("nobody_else").await;
    let error = stranger.query("SELECT sprag.submit('{}')", &[]).await.unwrap_err();
    assert_eq!(error.code().unwrap().code(), "42501", "not granted to everybody");
    owner.batch_execute("DROP OWNED BY writer; DROP ROLE writer, nobody_else").await.unwrap();
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
    drop(server.cluster);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_engines_make_one_job_of_each_row() {
    let server = Server::start().await;
    let (one, two) = (server.engine().await, server.engine().await);
    let mut user = server.client("sprag").await;
    let tx = user.transaction().await.unwrap();
    let mut last = InboxId(0);
    for n in 0..500 {
        last = postgres::submit_in(&tx, &text(n / 2)).await.unwrap();
    }
    tx.commit().await.unwrap();
    taken(&one, last).await;
    while !one.store().inbox_waiting(1, usize::MAX).await.unwrap().is_empty()
        || one.store().open_jobs().await.unwrap() > 0
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(job_count(&one).await, 250, "two rows have the same envelope each");
    let filter = InboxFilter { limit: 1_000, ..InboxFilter::default() };
    let rows = one.store().inbox(filter).await.unwrap();
    assert!(rows.len() == 500 && rows.iter().all(|row| row.job_id.is_some()));
    assert_clean(one.store()).await;
    one.shutdown(GRACE).await.unwrap();
    two.shutdown(GRACE).await.unwrap();
}
