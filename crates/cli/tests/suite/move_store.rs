//! `sprag move`: there and back, killed on the way.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rusqlite::types::Value;
use sprag_conformance::cluster::Cluster;
use sprag_engine::directive::Failure;
use sprag_engine::engine::EngineBuilder;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_stores::sqlite::{Durability, SqliteStore};

use super::sprag;

const JOBS: usize = 600;

/// A store with jobs that have ended and jobs that nobody serves.
async fn fill(path: &Path) {
    let handler = Handler::new(|input: serde_json::Value, _, _| async move {
        if input["n"] == 1 { Err(Failure::fatal("BAD", "never")) } else { Ok(input) }
    });
    let engine = EngineBuilder::new(SqliteStore::open(path, Durability::Process).unwrap())
        .protocol(Protocol::new("pages.v1", "PAGES").step("read", "reader").step("keep", "keeper"))
        .service("reader", 8, handler)
        .start()
        .await
        .unwrap();
    let envelopes: Vec<_> = (0..JOBS)
        .map(|n| {
            serde_json::json!({
                "tenant_id": "t\u{e9}1", "request_type": "PAGES", "schema_version": "1",
                "input_ref": "in", "output_ref": {"uri": "out"}, "payload": {"n": n, "text": "\u{1f980}"},
            })
            .to_string()
        })
        .collect();
    for envelope in &envelopes {
        engine.submit(envelope.as_bytes()).await.unwrap();
    }
    let user = rusqlite::Connection::open(path).unwrap();
    user.busy_timeout(Duration::from_secs(5)).unwrap();
    sprag_stores::sqlite::submit_in(&user, "no envelope").unwrap();
    own_table(&user);
    while !engine.store().inbox_waiting(1).await.unwrap().is_empty() {
        tokio::time::sleep(Duration::from_millis(5)).await;
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
        .filter(|name| !["meta", "job_count", "payment"].contains(&name.as_str()))
        .map(|name| {
            let mut all = file.prepare(&format!("SELECT * FROM {name}")).unwrap();
            let width = all.column_count();
            let row = |row: &rusqlite::Row<'_>| {
                (0..width).map(|n| Ok(format!("{:?}", row.get::<_, Value>(n)?))).collect()
            };
            let mut rows: Vec<Vec<String>> =
                all.query_map([], row).unwrap().map(Result::unwrap).collect();
            rows.sort();
            (name, rows)
        })
        .collect()
}

/// Moves, killed after each of these slices and started again.
fn move_with_kills(from: &str, to: &str, kills: &[&str]) -> serde_json::Value {
    for point in kills {
        let status = Command::new(env!("CARGO_BIN_EXE_sprag"))
            .args(["move", "--from", from, "--to", to])
            .env("SPRAG_CRASH", point)
            .output()
            .unwrap()
            .status;
        assert!(!status.success(), "it was killed at {point}");
        // Half a store is nobody's: an engine would run its jobs while the source still has them.
        sprag(&["move", "--from", to, "--to", from], "").refused("MOVE_REFUSED");
    }
    let said = sprag(&["move", "--from", from, "--to", to, "--json"], "");
    assert_eq!(said.code, 0, "{}", said.stderr);
    said.json()
}

#[test]
fn a_store_moves_to_postgres_and_back_through_kills_and_every_row_is_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let (first, last) = (folder.path().join("first.db"), folder.path().join("last.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(fill(&first));
    let cluster = Cluster::start();
    let database = runtime.block_on(cluster.database());
    let name = database.rsplit_once("dbname=").unwrap().1;
    let host = cluster.folder().display().to_string().replace('/', "%2F");
    let postgres = format!("postgres://sprag@{host}/{name}");
    let (here, back) =
        (format!("sqlite:{}", first.display()), format!("sqlite:{}", last.display()));
    let before = rows(&first);

    let kills =
        ["move.after_slice:1", "move.after_slice:3", "move.after_slice:2", "move.before_opening:1"];
    let moved = move_with_kills(&here, &postgres, &kills);
    assert_eq!(moved["moved"]["job"], JOBS);
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
    assert_eq!((payments(&first), payments(&last)), (Some(1), None));
    runtime.block_on(async {
        let store = SqliteStore::open(&last, Durability::Process).unwrap();
        store.join("an engine").await.unwrap();
    });
}

#[test]
fn a_store_in_use_a_full_target_and_a_missing_source_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let (first, other) = (folder.path().join("first.db"), folder.path().join("other.db"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(fill(&first));
    runtime.block_on(fill(&other));
    let url = |path: &Path| format!("sqlite:{}", path.display());
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
    let moved = to(&first, &folder.path().join("new.db"));
    assert_eq!(moved.code, 0, "{}", moved.stderr);
}
