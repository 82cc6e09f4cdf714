//! Jobs per second on both stores, submit to closed, beside what the same disk and database do in the
//! same run: single-row commits, and rows by bulk statements. Prints Markdown. `cargo bench -- postgres`
//! runs one store only; `SPRAG_JOBS` sets the number of jobs per round.

#![allow(clippy::unwrap_used, unreachable_pub)]

#[allow(dead_code)] // a benchmark neither kills nor shares its server
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sprag_engine::engine::EngineBuilder;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};

/// Rows of a bulk statement, as many as a slice of the engine.
const SLICE: usize = 500;
/// Rounds of which the best counts: other work on the machine only ever makes a round slower.
const ROUNDS: usize = 3;

#[tokio::main]
async fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|arg| arg == name);
    println!(
        "| store | single-row commits/s | bulk rows/s | steps | jobs/s | row writes per job | commits per job | jobs/s to the ceiling |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    if is_wanted("sqlite") {
        sqlite().await;
    }
    if is_wanted("postgres") {
        postgres().await;
    }
}

fn jobs_per_round() -> usize {
    std::env::var("SPRAG_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(20_000)
}

async fn sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let open =
        |name: String| SqliteStore::open(&folder.path().join(name), Durability::Full).unwrap();
    let ceiling = sqlite_ceiling(&folder.path().join("ceiling.db"));
    for steps in [1, 3] {
        let mut best = Round::default();
        for round in 0..ROUNDS {
            let store = open(format!("{steps}-{round}.db"));
            let jobs_per_second = run(store, steps, jobs_per_round()).await;
            best.keep(Round { jobs_per_second, ..Round::default() });
        }
        best.print("SQLite, FULL", steps, &ceiling);
    }
    let p50 = lone(open("lone.db".to_owned())).await;
    println!("\nSQLite, a lone job, submit to handler: p50 {p50:?}\n");
}

async fn postgres() {
    let cluster = sprag_conformance::cluster::Cluster::start();
    let ceiling = postgres_ceiling(&cluster.database().await).await;
    for steps in [1, 3] {
        let mut best = Round::default();
        for _ in 0..ROUNDS {
            let url = cluster.database().await;
            let store = PostgresStore::open(&PostgresOptions::new(&url)).await.unwrap();
            let jobs = jobs_per_round();
            let jobs_per_second = run(store, steps, jobs).await;
            let (rows, commits) = statistics(&url).await;
            let per_job = |count: f64| Some(count / jobs as f64);
            best.keep(Round { jobs_per_second, rows: per_job(rows), commits: per_job(commits) });
        }
        best.print("Postgres", steps, &ceiling);
    }
    let store = PostgresStore::open(&PostgresOptions::new(&cluster.database().await)).await;
    let p50 = lone(store.unwrap()).await;
    println!("\nPostgres, a lone job, submit to handler: p50 {p50:?}\n");
}

/// What one round showed.
#[derive(Default)]
struct Round {
    jobs_per_second: f64,
    rows: Option<f64>,
    commits: Option<f64>,
}

/// What the database does without an engine.
struct Ceiling {
    commits: f64,
    rows: f64,
}

impl Round {
    fn keep(&mut self, other: Self) {
        if other.jobs_per_second > self.jobs_per_second {
            *self = other;
        }
    }

    fn print(&self, store: &str, steps: usize, ceiling: &Ceiling) {
        // Counted by the server; the file does not count. By construction it is the same there.
        let rows = self.rows.map_or("-".to_owned(), |rows| format!("{rows:.1}"));
        let commits = self.commits.map_or("-".to_owned(), |commits| format!("{commits:.3}"));
        let writes = self.rows.unwrap_or(if steps == 1 { 10.0 } else { 28.0 });
        println!(
            "| {store} | {:.0} | {:.0} | {steps} | {:.0} | {rows} | {commits} | {:.2} |",
            ceiling.commits,
            ceiling.rows,
            self.jobs_per_second,
            self.jobs_per_second * writes / ceiling.rows
        );
    }
}

const CEILING: &str =
    "CREATE TABLE ceiling (a bigint PRIMARY KEY, b bigint NOT NULL, c bigint NOT NULL,
    d text NOT NULL, e text NOT NULL)";
const TEXT: &str = "sixty-four characters, about what the texts of one attempt's row are";

fn sqlite_ceiling(path: &Path) -> Ceiling {
    let connection = rusqlite::Connection::open(path).unwrap();
    connection.pragma_update(None, "journal_mode", "WAL").unwrap();
    connection.pragma_update(None, "synchronous", "FULL").unwrap();
    connection.execute_batch(CEILING).unwrap();
    let mut insert = connection.prepare("INSERT INTO ceiling VALUES (?1, ?1, ?1, ?2, ?2)").unwrap();
    let mut n = 0_i64;
    let mut rate = |rows: usize, total: usize| {
        let start = Instant::now();
        for _ in 0..total / rows {
            connection.execute_batch("BEGIN IMMEDIATE").unwrap();
            for _ in 0..rows {
                n += 1;
                insert.execute(rusqlite::params![n, TEXT]).unwrap();
            }
            connection.execute_batch("COMMIT").unwrap();
        }
        total as f64 / start.elapsed().as_secs_f64()
    };
    Ceiling { commits: rate(1, 1_000), rows: rate(SLICE, 200_000) }
}

async fn postgres_ceiling(url: &str) -> Ceiling {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    client.batch_execute(CEILING).await.unwrap();
    let insert = client
        .prepare("INSERT INTO ceiling SELECT a, a, a, b, b FROM unnest($1::bigint[], $2::text[]) AS i (a, b)")
        .await
        .unwrap();
    let mut n = 0_i64;
    let mut rates = [0.0; 2];
    for (rate, (rows, total)) in rates.iter_mut().zip([(1, 1_000), (SLICE, 200_000)]) {
        let start = Instant::now();
        for _ in 0..total / rows {
            let keys: Vec<i64> = (0..rows as i64).map(|i| n + i).collect();
            n += rows as i64;
            client.execute(&insert, &[&keys, &vec![TEXT; rows]]).await.unwrap();
        }
        *rate = total as f64 / start.elapsed().as_secs_f64();
    }
    Ceiling { commits: rates[0], rows: rates[1] }
}

/// Rows written in the books and transactions committed, as the server has counted them.
async fn statistics(url: &str) -> (f64, f64) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    // Sessions hand in their counts when they end or are idle for a moment.
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    if std::env::var_os("SPRAG_STATS").is_some() {
        let sql =
            "SELECT relname::text, n_tup_ins, n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables";
        for row in client.query(sql, &[]).await.unwrap() {
            let counts: (String, i64, i64, i64) = (row.get(0), row.get(1), row.get(2), row.get(3));
            eprintln!("{counts:?}");
        }
    }
    let sql = "SELECT (SELECT sum(n_tup_ins + n_tup_upd)::float8 FROM pg_stat_user_tables
            WHERE schemaname = 'sprag' AND relname <> 'engine'),
        (SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database())";
    let row = client.query_one(sql, &[]).await.unwrap();
    (row.get(0), row.get(1))
}

fn envelope(n: usize) -> String {
    format!(
        r#"{{"tenant_id":"t","request_type":"BENCH","input_ref":"in","output_ref":"out","payload":{{"n":{n}}},"schema_version":"1"}}"#
    )
}

async fn run<S: Store>(store: S, steps: usize, jobs: usize) -> f64 {
    let done = Arc::new(AtomicUsize::new(0));
    let counter = done.clone();
    let handler = Handler::new(move |_: serde_json::Value, _, _| {
        let counter = counter.clone();
        async move {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, sprag_engine::directive::Failure>(serde_json::json!({"ok": true}))
        }
    });
    let mut protocol = Protocol::new("bench.v1", "BENCH");
    for n in 0..steps {
        protocol = protocol.step(&format!("s{n}"), "work");
    }
    let builder = EngineBuilder::new(store).protocol(protocol).service("work", 2_000, handler);
    let engine = Arc::new(builder.start().await.unwrap());
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for part in 0..20 {
        let engine = engine.clone();
        tasks.spawn(async move {
            let mut inner = tokio::task::JoinSet::new();
            for n in 0..jobs / 20 {
                let engine = engine.clone();
                inner.spawn(async move {
                    engine.submit(envelope(part * jobs + n).as_bytes()).await.unwrap()
                });
                if inner.len() > 200 {
                    inner.join_next().await;
                }
            }
            inner.join_all().await.len()
        });
    }
    tasks.join_all().await;
    while done.load(Ordering::Relaxed) < jobs * steps {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let engine = Arc::into_inner(engine).unwrap();
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    jobs as f64 / start.elapsed().as_secs_f64()
}

async fn lone<S: Store>(store: S) -> Duration {
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let handler = Handler::new(move |_: serde_json::Value, _, _| {
        let sender = sender.clone();
        async move {
            sender.send(()).unwrap();
            Ok::<_, sprag_engine::directive::Failure>(1)
        }
    });
    let engine = EngineBuilder::new(store)
        .protocol(Protocol::new("bench.v1", "BENCH").step("s", "work"))
        .service("work", 10, handler)
        .start()
        .await
        .unwrap();
    let mut times = Vec::new();
    for n in 0..300 {
        let start = Instant::now();
        engine.submit(envelope(n).as_bytes()).await.unwrap();
        receiver.recv().await.unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    engine.shutdown(Duration::from_secs(1)).await.unwrap();
    times[times.len() / 2]
}
