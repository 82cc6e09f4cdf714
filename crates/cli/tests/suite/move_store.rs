//! `sprag move`: there and back, killed on the way.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::types::Value;
use sprag_conformance::cluster::Cluster;
use sprag_engine::directive::Failure;
use sprag_engine::engine::EngineBuilder;
use sprag_engine::ids::{JobId, RequestId};
use sprag_engine::protocol::Protocol;
use sprag_engine::requests::{NewRequest, RequestFacts, RequestStore as _};
use sprag_engine::signals::{Signal, Signals as _};
use sprag_engine::store::{EventView, JobFilter, Store, StoreError};
use sprag_engine::upkeep::Upkeep as _;
use sprag_engine::worker::Handler;
use sprag_kernel::keys::Hash;
use sprag_stores::AnyStore;
use sprag_stores::sqlite::{Durability, SqliteStore};
use tokio::runtime::Runtime;

use super::sprag;

const JOBS: usize = 600;
/// So many signals has one of them, so that its history takes some pages.
const SIGNALS: usize = 200;

/// A job of the store.
fn envelope(n: usize) -> String {
    serde_json::json!({
        "tenant_id": "t\u{e9}1", "request_type": "PAGES", "schema_version": "1",
        "input_ref": "in", "output_ref": {"uri": "out"}, "payload": {"n": n, "text": "\u{1f980}"},
    })
    .to_string()
}

/// A store with jobs that have ended, one of which is deleted, and jobs that nobody serves.
async fn fill(path: &Path) {
    let handler = Handler::new(|input: serde_json::Value, _, _| async move {
        if input["n"] == 1 { Err(Failure::fatal("BAD", "never")) } else { Ok(input) }
    });
    let engine =
        EngineBuilder::new(SqliteStore::open_in_short_eras(path, Durability::Process).unwrap())
            .protocol(pages())
            .service("reader", 8, handler)
            .start()
            .await
            .unwrap();
    for n in 0..JOBS {
        engine.submit(envelope(n).as_bytes()).await.unwrap();
    }
    let told = engine.submit(envelope(2).as_bytes()).await.unwrap().job_id;
    let user = rusqlite::Connection::open(path).unwrap();
    user.busy_timeout(Duration::from_secs(5)).unwrap();
    sprag_stores::sqlite::submit_in(&user, "no envelope").unwrap();
    own_table(&user);
    while !engine.store().inbox_waiting(1, usize::MAX).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.shutdown(Duration::from_secs(5)).await.unwrap();

    let store = SqliteStore::open(path, Durability::Process).unwrap();
    let teller = store.join("an engine that tells").await.unwrap();
    for n in 0..SIGNALS {
        let signal = Signal::new(&n.to_string(), "go", &serde_json::json!(n));
        store.signal(teller, told, signal).await.unwrap().unwrap().unwrap();
    }
    let retired = store.retire(teller, 0, None, u32::MAX).await.unwrap();
    assert_eq!(retired.deleted, 1, "the one that has failed");
    store.leave(teller).await.unwrap();
}

fn pages() -> Protocol {
    Protocol::new("pages.v1", "PAGES").step("read", "reader").step("keep", "keeper")
}

/// Every job that was ever submitted is known.
async fn expect_known(path: &Path) {
    let store = SqliteStore::open(path, Durability::Process).unwrap();
    let engine = EngineBuilder::new(store).protocol(pages()).start().await.unwrap();
    for n in 0..=JOBS {
        let created = engine.submit(envelope(n).as_bytes()).await.unwrap().created;
        assert_eq!(created, n == JOBS, "job {n}");
    }
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
}

/// A table of the user's own in the same file, with a type that no table of the schema has.
fn own_table(file: &rusqlite::Connection) {
    file.execute_batch(
        "CREATE TABLE payment (id INTEGER, euros REAL); INSERT INTO payment VALUES (1, 2.5)",
    )
    .unwrap();
}

fn payments(path: &Path) -> Option<i64> {
    let file = rusqlite::Connection::open(path).unwrap();
    file.query_row("SELECT count(*) FROM payment", [], |row| row.get(0)).ok()
}

/// Places in the feed and eras of keys, which are given anew.
const PLACES: [&str; 4] = ["pos", "before", "last_event", "era"];

/// All rows of all tables but the user's and the store's own notes and counts, as text, in the order of their keys.
fn rows(path: &Path) -> Vec<(String, Vec<Vec<String>>)> {
    let file = rusqlite::Connection::open(path).unwrap();
    let mut names = file
        .prepare("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
        .unwrap();
    let names: Vec<String> =
        names.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    names
        .into_iter()
        .filter(|name| !["meta", "job_count", "era", "payment"].contains(&name.as_str()))
        .map(|name| {
            let mut all = file.prepare(&format!("SELECT * FROM {name}")).unwrap();
            let is_place = |n: &usize| PLACES.contains(&all.column_name(*n).unwrap());
            let columns: Vec<usize> = (0..all.column_count()).filter(|n| !is_place(n)).collect();
            let row = |row: &rusqlite::Row<'_>| {
                columns.iter().map(|n| Ok(format!("{:?}", row.get::<_, Value>(*n)?))).collect()
            };
            let mut rows: Vec<Vec<String>> =
                all.query_map([], row).unwrap().map(Result::unwrap).collect();
            rows.sort();
            (name, rows)
        })
        .collect()
}

/// The history of every job, read by the page.
fn histories(path: &Path, runtime: &Runtime) -> Vec<(JobId, Vec<EventView>)> {
    runtime.block_on(async {
        let store = SqliteStore::look(path).unwrap();
        let jobs = store.jobs(JobFilter { limit: u32::MAX, ..JobFilter::default() }).await.unwrap();
        let mut all = Vec::new();
        for job_id in jobs.iter().map(|job| job.facts.job_id) {
            let mut events: Vec<EventView> = Vec::new();
            loop {
                let after = events.last().map_or(0, |event| event.n);
                let page = store.events_after(job_id, after, 50).await.unwrap();
                if page.is_empty() {
                    break;
                }
                events.extend(page);
            }
            all.push((job_id, events));
        }
        all
    })
}

/// Runs a command that ends at a crash point.
#[track_caller]
fn kill(args: &[&str], point: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sprag"));
    let status = command.args(args).env("SPRAG_CRASH", point).output().unwrap().status;
    assert_eq!(status.code(), None, "it was killed at {point}");
}

/// Moves, killed at each of these points and started again.
fn move_with_kills(from: &str, to: &str, kills: &[&str]) -> serde_json::Value {
    for point in kills {
        kill(&["move", "--from", from, "--to", to], point);
        // Half a store is nobody's: an engine would run its jobs while the source still has them.
        sprag(&["move", "--from", to, "--to", from], "").refused("MOVE_REFUSED");
    }
    let said = sprag(&["move", "--from", from, "--to", to, "--json"], "");
    assert_eq!(said.code, 0, "{}", said.stderr);
    said.json()
}

fn url(path: &Path) -> String {
    format!("sqlite:{}", path.display())
}

/// A new database.
fn database(runtime: &Runtime, cluster: &Cluster) -> String {
    url_of(&runtime.block_on(cluster.database()), cluster)
}

/// The same database, as a URL.
fn url_of(database: &str, cluster: &Cluster) -> String {
    let name = database.rsplit_once("dbname=").unwrap().1;
    let host = cluster.folder().display().to_string().replace('/', "%2F");
    format!("postgres://sprag@{host}/{name}")
}

/// Whether an engine may work on a store, and why not.
fn joined(runtime: &Runtime, url: &str) -> Result<(), String> {
    runtime.block_on(async {
        let store = AnyStore::open(url).await.unwrap();
        let engine = store.join("an engine").await.map_err(|error| error.to_string())?;
        store.leave(engine).await.map_err(|error| error.to_string())
    })
}

/// Asserts that a command is refused with this reason.
#[track_caller]
fn refused(args: &[&str], reason: &str) {
    let said = sprag(args, "");
    said.refused("MOVE_REFUSED");
    assert!(said.stderr.contains(reason), "{}", said.stderr);
}

/// A source whose move is interrupted, another source, another target, and the target, which has only the user's
/// own table if it is a file.
fn expect_tied([from, other, elsewhere, to]: [&str; 4], runtime: &Runtime) {
    kill(&["move", "--from", from, "--to", to], "move.after_slice:2");
    refused(&["move", "--from", other, "--to", to], "filled from another store");
    refused(&["move", "--from", other, "--to", to, "--abandon"], "filled from another store");
    joined(runtime, other).expect("it was not closed");
    refused(&["move", "--from", from, "--to", elsewhere], "moved to another store");
    sprag(&["move", "--from", elsewhere, "--to", from], "").refused("MOVE_REFUSED");
    refused(&["move", "--from", from, "--to", elsewhere, "--abandon"], "not the one of this move");
    joined(runtime, elsewhere).expect("it was not closed");
    assert!(joined(runtime, from).unwrap_err().contains("STORE_CLOSED"));
    assert!(joined(runtime, to).unwrap_err().contains("STORE_CLOSED"));
}

/// Abandons a move that was interrupted, through kills, and moves after all.
fn expect_abandoned(from: &str, to: &str, runtime: &Runtime) {
    let abandon = ["move", "--from", from, "--to", to, "--abandon"];
    for point in ["move.after_emptying:1", "move.after_reopening:1"] {
        kill(&abandon, point);
        assert!(joined(runtime, to).unwrap_err().contains("STORE_CLOSED"));
    }
    assert_eq!(sprag(&abandon, "").code, 0);
    joined(runtime, from).expect("it is open again");
    refused(&abandon, "no move between these two stores");
    kill(&["move", "--from", from, "--to", to], "move.before_opening:1");
    assert_eq!(sprag(&abandon, "").code, 0);

    kill(&["move", "--from", from, "--to", to], "move.after_slice:1");
    let moved = sprag(&["move", "--from", from, "--to", to], "");
    assert_eq!(moved.code, 0, "{}", moved.stderr);
    refused(&abandon, "the move is complete");
    refused(&["move", "--from", from, "--abandon"], "was moved");
    joined(runtime, to).expect("it is open");
}

#[test]
fn an_interrupted_move_goes_on_between_the_same_two_stores_or_is_abandoned() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(fill(&path("first.db")));
    runtime.block_on(fill(&path("other.db")));
    let before = rows(&path("first.db"));
    let cluster = Cluster::start();
    let (postgres, spare) = (database(&runtime, &cluster), database(&runtime, &cluster));
    let [first, other, elsewhere, last] =
        ["first.db", "other.db", "elsewhere.db", "last.db"].map(|name| url(&path(name)));

    expect_tied([&first, &other, &elsewhere, &postgres], &runtime);
    expect_abandoned(&first, &postgres, &runtime);

    own_table(&rusqlite::Connection::open(path("last.db")).unwrap());
    expect_tied([&postgres, &other, &spare, &last], &runtime);
    expect_abandoned(&postgres, &last, &runtime);
    assert_eq!(payments(&path("last.db")), Some(1));
    let jobs = |rows: Vec<(String, Vec<Vec<String>>)>| {
        rows.into_iter().filter(|(name, _)| name != "engine").collect::<Vec<_>>()
    };
    assert_eq!(jobs(rows(&path("last.db"))), jobs(before));

    // The target is lost: the source alone is opened.
    kill(&["move", "--from", &other, "--to", &url(&path("lost.db"))], "move.after_slice:1");
    assert_eq!(sprag(&["move", "--from", &other, "--abandon"], "").code, 0);
    joined(&runtime, &other).expect("it is open again");
}

#[test]
fn a_store_moves_to_postgres_and_back_through_kills_and_every_row_is_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (first, last) = (folder.path().join("first.db"), folder.path().join("last.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(fill(&first));
    let cluster = Cluster::start();
    let postgres = database(&runtime, &cluster);
    let (here, back) = (url(&first), url(&last));
    let (before, told) = (rows(&first), histories(&first, &runtime));
    let longest = told.iter().map(|(_, events)| events.len()).max();
    assert!(longest > Some(SIGNALS), "{longest:?}");

    let kills = [
        "move.before_closing_source:1",
        "move.after_slice:1",
        "move.after_slice:3",
        "move.after_slice:2",
        "move.before_opening:1",
    ];
    let moved = move_with_kills(&here, &postgres, &kills);
    assert_eq!(moved["moved"]["job"], JOBS - 1);
    assert_eq!(moved["moved"]["retired"], 1);
    let again = sprag(&["move", "--from", &here, "--to", &postgres], "");
    again.refused("MOVE_REFUSED");
    let Err(closed) = runtime.block_on(async {
        let store = SqliteStore::open(&first, Durability::Process).unwrap();
        store.join("an engine that starts on what was moved").await
    }) else {
        panic!("the source is closed")
    };
    assert!(closed.to_string().contains("STORE_CLOSED"), "{closed}");
    let verified = sprag(&["verify", "--store", &postgres, "--json"], "");
    assert_eq!(verified.json()["ok"], true);

    move_with_kills(&postgres, &back, &kills);
    assert_eq!(rows(&last), before);
    assert_eq!(histories(&last, &runtime), told);
    let verified = sprag(&["verify", "--store", &back, "--json"], "");
    assert_eq!(verified.json()["ok"], true);
    assert_eq!((payments(&first), payments(&last)), (Some(1), None));
    runtime.block_on(expect_known(&last));
}

#[test]
fn a_store_in_use_a_full_target_and_a_missing_or_unsound_source_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (first, other) = (folder.path().join("first.db"), folder.path().join("other.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(fill(&first));
    runtime.block_on(fill(&other));
    let to = |from: &Path, to: &Path| sprag(&["move", "--from", &url(from), "--to", &url(to)], "");
    to(&first, &other).refused("MOVE_REFUSED");
    to(&folder.path().join("none.db"), &other).refused("INPUT_UNREADABLE");
    let in_use = SqliteStore::open(&first, Durability::Process).unwrap();
    to(&first, &folder.path().join("new.db")).refused("STORE_IN_USE");
    drop(in_use);
    let file = rusqlite::Connection::open(&first).unwrap();
    let version = "UPDATE meta SET value = value + ?1 WHERE key = 'schema_version'";
    file.execute(version, [1]).unwrap();
    to(&first, &folder.path().join("new.db")).refused("MOVE_REFUSED");
    file.execute(version, [-1]).unwrap();
    let edit = "UPDATE job SET attempts_total = attempts_total + ?1";
    file.execute(edit, [1]).unwrap();
    to(&first, &folder.path().join("new.db")).refused("AUDIT_BROKEN");
    file.execute(edit, [-1]).unwrap();
    let moved = to(&first, &folder.path().join("new.db"));
    assert_eq!(moved.code, 0, "{}", moved.stderr);
}

/// A session of a user's program.
async fn session(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

fn state(outcome: Result<Vec<tokio_postgres::Row>, tokio_postgres::Error>) -> String {
    let error = outcome.expect_err("it is refused");
    error.code().expect("by the server").code().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_writes_to_a_store_on_postgres_that_is_being_moved() {
    const SUBMIT: &str = "SELECT sprag.submit('{}')";
    let (folder, cluster) = (tempfile::tempdir().unwrap(), Cluster::start());
    let postgres = cluster.database().await;
    let here = url_of(&postgres, &cluster);
    let there = url(&folder.path().join("there.db"));
    let moving = ["move", "--from", &here, "--to", &there];
    let store = AnyStore::open(&here).await.unwrap();
    let engine = store.join("an engine that is stopped for a while").await.unwrap();
    let (user, old) = (session(&postgres).await, session(&postgres).await);

    sprag(&moving, "").refused("STORE_IN_USE");
    user.batch_execute("UPDATE sprag.engine SET beat_at = 1").await.unwrap();
    user.batch_execute("BEGIN; SELECT sprag.submit('{}')").await.unwrap();
    let said = sprag(&moving, "");
    assert!(said.stderr.contains("is not over"), "{}", said.stderr);
    user.batch_execute("COMMIT").await.unwrap();
    let snapshot = "BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM sprag.inbox";
    old.batch_execute(snapshot).await.unwrap();

    kill(&moving, "move.after_slice:1");
    assert!(matches!(store.beat(engine, None).await, Err(StoreError::Fenced)));
    assert_eq!(state(user.query(SUBMIT, &[]).await), "SP001");
    assert_eq!(state(old.query(SUBMIT, &[]).await), "40001", "it has not seen that it is closed");
    old.batch_execute("ROLLBACK").await.unwrap();
    let closed = store.create_request(request()).await.unwrap_err();
    assert!(closed.to_string().contains("STORE_CLOSED"), "{closed}");

    let abandoned = sprag(&[moving.as_slice(), &["--abandon"]].concat(), "");
    assert_eq!(abandoned.code, 0, "{}", abandoned.stderr);
    old.query(SUBMIT, &[]).await.unwrap();
    store.create_request(request()).await.unwrap();
    let moved = sprag(&[moving.as_slice(), &["--json"]].concat(), "");
    assert_eq!((moved.code, &moved.json()["moved"]["inbox"]), (0, &2.into()), "{}", moved.stderr);
    assert_eq!(state(user.query(SUBMIT, &[]).await), "SP001");
}

fn request() -> NewRequest {
    let facts = RequestFacts {
        request_id: RequestId::new(),
        tenant_id: "t1".to_owned(),
        request_type: "PAGES".to_owned(),
        key: Hash::of(b"key"),
        content: Hash::of(b"content"),
        inputs: "{}".to_owned(),
        requirement: String::new(),
        plan_revision: String::new(),
    };
    NewRequest { facts, envelope: envelope(0) }
}

#[test]
fn nobody_submits_to_a_file_that_is_being_moved() {
    let folder = tempfile::tempdir().unwrap();
    let (first, last) = (folder.path().join("first.db"), folder.path().join("last.db"));
    drop(SqliteStore::open(&first, Durability::Process).unwrap());
    let user = rusqlite::Connection::open(&first).unwrap();
    let submit = || sprag_stores::sqlite::submit_in(&user, "{}");
    submit().unwrap();
    kill(&["move", "--from", &url(&first), "--to", &url(&last)], "move.after_slice:1");
    let closed = submit().unwrap_err().to_string();
    assert!(closed.contains("STORE_CLOSED"), "{closed}");
    let moved = sprag(&["move", "--from", &url(&first), "--to", &url(&last), "--json"], "");
    assert_eq!((moved.code, &moved.json()["moved"]["inbox"]), (0, &1.into()), "{}", moved.stderr);
    submit().unwrap_err();
}

#[test]
fn a_file_or_database_without_a_store_is_left_as_it_is_by_whoever_looks() {
    let folder = tempfile::tempdir().unwrap();
    let (foreign, none) = (folder.path().join("foreign.db"), folder.path().join("none.db"));
    let own = rusqlite::Connection::open(&foreign).unwrap();
    own_table(&own);
    drop(own);
    let bytes = std::fs::read(&foreign).unwrap();
    std::fs::write(&none, "").unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let cluster = Cluster::start();
    let postgres = database(&runtime, &cluster);
    for place in [url(&foreign), url(&none), postgres.clone()] {
        sprag(&["verify", "--store", &place], "").refused("INPUT_UNREADABLE");
        sprag(&["job", "list", "--store", &place], "").refused("INPUT_UNREADABLE");
        let target = url(&folder.path().join("new.db"));
        sprag(&["move", "--from", &place, "--to", &target], "").refused("INPUT_UNREADABLE");
    }
    assert_eq!(std::fs::read(&foreign).unwrap(), bytes);
    assert_eq!(std::fs::read(&none).unwrap(), b"");
    let tables = runtime.block_on(async {
        let sql = "SELECT count(*) FROM pg_namespace WHERE nspname = 'sprag'";
        let row = session(&postgres).await.query_one(sql, &[]).await.unwrap();
        row.get::<_, i64>(0)
    });
    assert_eq!(tables, 0);
}
