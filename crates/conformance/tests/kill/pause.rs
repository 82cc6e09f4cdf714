//! An engine is stopped in the middle of its work until another one has taken over, and then goes on as if
//! nothing had happened. Triggers note every row that is written and by whose connection: after the death
//! of an engine there is none by its.

use std::collections::BTreeSet;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use sprag_conformance::cluster::Cluster;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use tokio_postgres::Client;

use super::effects;
use super::killer::{Life, Place, Random, kills, look, runtime};
use super::victim::{GONE, LOAD, NO_GRAPHS, SERVE};

/// How long a takeover may take, with the ten seconds that the server gives a transaction of a stopped
/// client.
const PATIENCE: Duration = Duration::from_secs(40);

/// Every so many pauses the load has graphs. Those have transactions of several statements, in which a stopped client
/// is waited for.
const GRAPHS_EVERY: u32 = 4;

/// `who` is set by the URL of each victim. The death of an engine is noted in the transaction that
/// declares it, which has waited for every write of the dead.
const NOTE: &str = "
    CREATE SCHEMA proof;
    CREATE TABLE proof.written (who text, what text, at timestamptz);
    CREATE TABLE proof.death (name text, at timestamptz);
    CREATE FUNCTION proof.note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO proof.written
            VALUES (current_setting('proof.who', true), TG_TABLE_NAME, clock_timestamp());
        RETURN NULL;
    END $$;
    CREATE FUNCTION proof.note_death() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        INSERT INTO proof.death VALUES (NEW.name, clock_timestamp());
        RETURN NULL;
    END $$;
    CREATE TRIGGER death AFTER UPDATE ON sprag.engine FOR EACH ROW
        WHEN (NEW.dead = 1 AND OLD.dead = 0) EXECUTE FUNCTION proof.note_death();";

/// The engine that takes over. It would serve for ever, so it is killed however the test ends.
struct Heir(Child);

impl Drop for Heir {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

pub(crate) fn of_an_engine() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, runtime) = (Cluster::start(), runtime());
    let url = runtime.block_on(cluster.database());
    let store = runtime.block_on(PostgresStore::open(&PostgresOptions::new(&url))).unwrap();
    let client = runtime.block_on(watch(&url));
    let pauses = kills("SPRAG_PAUSES", 20);
    let mut random = Random(0x5109);
    let mut accepted = BTreeSet::new();
    let heir_url = format!("{url} options='-c proof.who=heir'");
    let heir = Place { folder: folder.path(), url: Some(&heir_url) };
    let mut heir_life = Heir(heir.victim(SERVE).env("SPRAG_ROUND", "heir").spawn().unwrap());
    for pause in 0..pauses {
        let who = format!("paused{pause}");
        let url = format!("{url} options='-c proof.who={who}'");
        let place = Place { folder: folder.path(), url: Some(&url) };
        let mut victim = place.victim(LOAD);
        if pause % GRAPHS_EVERY != 0 {
            victim.env(NO_GRAPHS, "");
        }
        let life = Life::start(victim.env("SPRAG_ROUND", &who));
        std::thread::sleep(Duration::from_millis(50 + random.below(100)));
        signal("-STOP", &life);
        runtime
            .block_on(expect(&client, &format!("SELECT 1 FROM proof.death WHERE name = '{who}'")));
        signal("-CONT", &life);
        let ended = life.end();
        let fenced = ended.complaint.contains("declared dead and is fenced off");
        assert!(fenced && ended.status.code() == Some(GONE), "{who}: {}", ended.complaint);
        assert!(!ended.accepted.is_empty(), "{who} got to work");
        accepted.extend(ended.accepted);
        runtime.block_on(expect_silence(&client, &who));
    }
    let heir_status = heir_life.0.try_wait().unwrap();
    assert!(heir_status.is_none(), "the heir lives on, instead: {heir_status:?}");
    drop(heir_life);
    heir.drain();
    print!("{pauses} pauses until the takeover, ");
    runtime.block_on(async {
        let due = look(&store, folder.path(), &accepted).await;
        due.expect(effects::count_postgres(&url).await);
    });
}

fn signal(signal: &str, life: &Life) {
    let sent = Command::new("kill").arg(signal).arg(life.child.id().to_string()).status();
    assert!(sent.unwrap().success());
}

/// Lets triggers note who writes what.
async fn watch(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(NOTE).await.unwrap();
    let tables = "SELECT tablename::text FROM pg_tables WHERE schemaname = 'sprag'";
    for row in client.query(tables, &[]).await.unwrap() {
        let table: &str = row.get(0);
        let trigger = format!(
            "CREATE TRIGGER note AFTER INSERT OR UPDATE OR DELETE ON sprag.{table}
             FOR EACH ROW EXECUTE FUNCTION proof.note()"
        );
        client.batch_execute(&trigger).await.unwrap();
    }
    client
}

/// Waits until a query finds something.
async fn expect(client: &Client, sql: &str) {
    let deadline = Instant::now() + PATIENCE;
    while client.query(sql, &[]).await.unwrap().is_empty() {
        assert!(Instant::now() < deadline, "nothing came of {sql}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The dead engine has written before its death, and nothing after it.
async fn expect_silence(client: &Client, who: &str) {
    let sql = "SELECT count(*) FILTER (WHERE w.at <= d.at), string_agg(what, ' ') FILTER (WHERE w.at > d.at)
        FROM proof.written w JOIN proof.death d ON d.name = w.who WHERE w.who = $1";
    let row = client.query_one(sql, &[&who]).await.unwrap();
    let (before, after): (i64, Option<String>) = (row.get(0), row.get(1));
    assert!(before > 0, "{who} has written");
    assert_eq!(after, None, "{who} has written after it was declared dead");
}
