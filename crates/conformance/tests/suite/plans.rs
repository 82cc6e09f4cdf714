//! How the stores go about their statements: a plan that looks at more than it must is as right as any, and only slow.
//!
//! Postgres first, and its slices. Connections plan a statement once, often while the tables are
//! still empty, and keep that plan for long. Whatever the tables hold later, each must find its attempts by their
//! whole keys: going from a job to all its attempts looks as cheap in an empty store, and made the claims of a job of
//! 10,000 branches take fifty times as long as those of 1,000.

use std::fs;
use std::path::Path;

use rusqlite::config::DbConfig;
use sprag_conformance::cluster::Cluster;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};
use tokio_postgres::SimpleQueryMessage;

/// What the store tells the planner on connections for slices.
const SETTINGS: &str = "SET search_path = sprag; SET plan_cache_mode = force_generic_plan; \
    SET enable_seqscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; \
    SET enable_bitmapscan = off; SET jit = off";
/// Statements that are to look at more than one attempt of a job or of a step, and how often: the newest attempt at
/// a place, and whatever is left of a job that is ending or goes.
const BY_PART_OF_THE_KEY: [(&str, usize); 7] = [
    ("any_obligation", 1),
    ("ends", 1),
    ("find", 1),
    ("finish", 1),
    ("finish_graph", 1),
    ("parked_wait", 1),
    ("retire", 1),
];

#[tokio::test]
async fn in_an_empty_store_slices_are_planned_to_find_attempts_by_their_whole_keys() {
    let cluster = Cluster::shared();
    let url = cluster.database().await;
    let _store = PostgresStore::open(&PostgresOptions::new(&url)).await.unwrap();
    let (client, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(SETTINGS).await.unwrap();
    let mut seen = 0;
    for (name, sql) in statements("postgres") {
        let plan = plan_of(&client, &name, &sql).await;
        let by_part = plan.windows(2).filter(|two| is_by_part(&two[0], &two[1])).count();
        let allowed = BY_PART_OF_THE_KEY.iter().find(|(allowed, _)| *allowed == name);
        assert_eq!(by_part, allowed.map_or(0, |(_, times)| *times), "{name}:\n{}", plan.join("\n"));
        seen += usize::from(plan.iter().any(|line| line.contains("attempt_pkey")));
    }
    assert!(seen > 15, "the statements are where they were: {seen}");
}

/// The statements in a folder of the stores, by name.
fn statements(folder: &str) -> Vec<(String, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../stores/sql").join(folder);
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = paths.map(|path| {
        let sql = fs::read_to_string(&path).unwrap().replace("{held}", "a.*, j.*");
        (path.file_stem().unwrap().to_str().unwrap().to_owned(), sql)
    });
    named.filter(|(name, _)| !name.starts_with("schema_") && name != "views").collect()
}

/// The plan that holds for all parameters.
async fn plan_of(client: &tokio_postgres::Client, name: &str, sql: &str) -> Vec<String> {
    let parameters = (1..100).rev().find(|n| sql.contains(&format!("${n}"))).unwrap_or(0);
    let nothing = vec!["NULL"; parameters].join(", ");
    let given = if parameters == 0 { String::new() } else { format!("({nothing})") };
    client.batch_execute(&format!("PREPARE slice_{name} AS {sql}")).await.unwrap();
    let explain = format!("EXPLAIN (COSTS OFF) EXECUTE slice_{name}{given}");
    let explained = client.simple_query(&explain).await.unwrap();
    let line = |message: &SimpleQueryMessage| match message {
        SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap().to_owned()),
        _ => None,
    };
    explained.iter().filter_map(line).collect()
}

/// Whether a scan of attempts, and the condition that stands below it, go by less than a whole key.
fn is_by_part(scan: &str, condition: &str) -> bool {
    let whole = ["job_id = ", "step_index = ", "branch = ", "turn = ", "attempt_no)::integer = "];
    let by_key = scan.contains("attempt_pkey") && !whole.iter().all(|key| condition.contains(key));
    by_key || (scan.contains(" on attempt") && scan.contains("Seq Scan"))
}

/// The statements of SQLite in an empty store: name, text and plan.
fn sqlite_plans() -> Vec<(String, String, Vec<String>)> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    drop(SqliteStore::open(&file, Durability::Process).unwrap());
    let connection = rusqlite::Connection::open(&file).unwrap();
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true).unwrap();
    let planned = |(name, sql): (String, String)| {
        let mut explain = connection.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
        let mut rows = explain.raw_query();
        let mut plan: Vec<String> = Vec::new();
        while let Some(row) = rows.next().unwrap() {
            plan.push(row.get(3).unwrap());
        }
        (name, sql, plan)
    };
    statements("sqlite").into_iter().chain(statements("upkeep")).map(planned).collect()
}

/// There is no index of events by job: who went by it would look at all events there are.
#[test]
fn on_sqlite_the_events_of_a_job_are_found_by_their_positions() {
    let mut plans = sqlite_plans();
    plans.retain(|(name, _, _)| ["events_after", "delete_events"].contains(&name.as_str()));
    assert_eq!(plans.len(), 2);
    for (name, _, plan) in plans {
        let shown = plan.join("\n");
        assert!(!plan.iter().any(|line| line.starts_with("SCAN e")), "{name}:\n{shown}");
        assert!(shown.contains("SEARCH e USING INTEGER PRIMARY KEY"), "{name}:\n{shown}");
        let milestone = "COVERING INDEX event_milestone (job_id=? AND n>?)";
        assert_eq!(shown.contains(milestone), name == "events_after", "{shown}");
    }
}

/// On SQLite the end of every step once went to its row by way of the index of owners, and a look at the metrics through
/// every attempt that there ever was.
#[test]
fn on_sqlite_attempts_are_found_by_their_whole_keys_and_none_that_is_over_is_looked_at() {
    let mut seen = 0;
    for (name, sql, plan) in sqlite_plans() {
        let shown = plan.join("\n");
        assert!(
            !plan.iter().any(|line| ["SCAN attempt", "SCAN a"].contains(&&**line)),
            "{name}:\n{shown}"
        );
        // A range of one key spares an update the second search for its row.
        let whole = [("= ?5", "=?"), ("BETWEEN ?5 AND ?5", ">? AND attempt_no<?")];
        for (_, found) in
            whole.iter().filter(|(asked, _)| sql.contains(&format!("attempt_no {asked}")))
        {
            let by_key = format!(
                "PRIMARY KEY (job_id=? AND step_index=? AND branch=? AND turn=? AND attempt_no{found})"
            );
            assert!(shown.contains(&by_key), "{name}:\n{shown}");
            seen += 1;
        }
    }
    assert!(seen > 8, "the statements are where they were: {seen}");
}

/// The end of every step once had SQLite copy each page before it was written, in case that a function should fail: the
/// guard of its trigger was `changes() = 1`.
#[test]
fn on_sqlite_the_end_of_a_step_calls_no_function() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    drop(SqliteStore::open(&file, Durability::Process).unwrap());
    let connection = rusqlite::Connection::open(&file).unwrap();
    let calls = |sql: &str| {
        let mut explain = connection.prepare(&format!("EXPLAIN {sql}")).unwrap();
        let mut rows = explain.raw_query();
        let (mut updates, mut calls) = (0, 0);
        while let Some(row) = rows.next().unwrap() {
            let code: String = row.get(1).unwrap();
            updates += usize::from(code == "Program");
            calls += usize::from(code.ends_with("Function") || code.ends_with("Func"));
        }
        assert_eq!(updates, 1, "it is one of a trigger: {sql}");
        calls
    };
    let named = statements("sqlite");
    let sql = |name| &named.iter().find(|(known, _)| *known == name).unwrap().1;
    for name in ["finish", "advance", "finish_more"] {
        assert_eq!(calls(sql(name)), 0, "{name}");
    }
    assert!(calls(sql("finish_graph")) > 0, "functions are seen");
}
