//! Jobs per second on both stores, submit to closed, beside what the same disk and database do in the same run;
//! the time of a lone job; the same rate in a store that is full of finished jobs; and the memory of an engine with
//! many jobs queued. Prints Markdown.
//! `cargo bench -p sprag-stores --profile dev --bench jobs -- postgres` runs one store only; `SPRAG_JOBS` sets the
//! number of jobs per round, `SPRAG_FINISHED` how many fill a store.

#![allow(clippy::unwrap_used)]

#[path = "jobs/ceiling.rs"]
mod ceiling;
#[path = "jobs/load.rs"]
mod load;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use ceiling::Ceiling;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rounds of which the best counts: other work on the machine only ever makes a round slower. Each has the ceiling
/// beside it, since the disk and the processor move within minutes by more than what is compared.
const ROUNDS: usize = 3;
/// Commits that a lone job of one step waits for, one after the other.
const LONE_COMMITS: f64 = 4.0;
/// How the program that measures its own memory is told so.
const RESIDENT: &str = "--resident";

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = args.iter().position(|arg| arg == RESIDENT) {
        return print_resident(&args[at + 1], number("SPRAG_FINISHED", 100_000)).await;
    }
    let wanted: Vec<&String> = args.iter().filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|arg| *arg == name);
    println!(
        "| store | single-row commits/s | bulk rows/s | steps | jobs/s | row writes per job | of these events | commits per job | of the ceiling | its own rows in bulk/s | of these |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut notes = Vec::new();
    if is_wanted("sqlite") {
        notes.extend(sqlite().await);
    }
    if is_wanted("postgres") {
        notes.extend(postgres().await);
    }
    println!("\n{}", notes.join("\n"));
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What one round showed.
#[derive(Clone, Copy, Default)]
struct Round {
    rate: f64,
    written: Written,
}

/// What the database counted while all jobs of a round ran.
#[derive(Clone, Copy, Default)]
struct Written {
    rows: f64,
    events: f64,
    commits: f64,
}

impl Round {
    fn better(self, other: Self) -> Self {
        if other.rate > self.rate { other } else { self }
    }

    fn print(&self, store: &str, (steps, jobs): (usize, usize), (ceiling, own): (&Ceiling, f64)) {
        let per_job = |count: f64| count / jobs as f64;
        let (rows, events) = (per_job(self.written.rows), per_job(self.written.events));
        let (rate, commits) = (self.rate, per_job(self.written.commits));
        let (share, own_share) = (rate * rows / ceiling.rows, rate * rows / own);
        print!("| {store} | {:.0} | {:.0} | {steps} ", ceiling.commits, ceiling.rows);
        print!("| {rate:.0} | {rows:.1} | {events:.1} | {commits:.3} | {share:.2} ");
        println!("| {own:.0} | {own_share:.2} |");
    }
}

async fn sqlite() -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let jobs = number("SPRAG_JOBS", 20_000);
    let path = |name: &str| folder.path().join(name);
    let open = |path: &PathBuf| SqliteStore::open(path, Durability::Full).unwrap();
    let mut empty = Round::default();
    let mut ceiling = Ceiling::default();
    for steps in [1, 3] {
        let mut best = Round::default();
        for round in 0..ROUNDS {
            let bare = path(&format!("{steps}-{round}-bare.db"));
            ceiling = ceiling.better(&ceiling::of_sqlite(&bare));
            let file = path(&format!("{steps}-{round}.db"));
            let count = async |store: &SqliteStore| counted(store, &file).await;
            let (rate, written) = load::run(open(&file), (steps, jobs), count).await;
            best = best.better(Round { rate, written });
        }
        let own_of = |round| {
            let done = path(&format!("{steps}-{round}.db"));
            ceiling::of_own_sqlite(&done, &path(&format!("{steps}-{round}-copy.db")))
        };
        let own = (0..ROUNDS).map(own_of).fold(0.0, f64::max);
        best.print("SQLite, FULL", (steps, jobs), (&ceiling, own));
        if steps == 1 {
            empty = best;
        }
    }
    let lone = load::lone(open(&path("lone.db"))).await;
    let (full, finished) = (path("full.db"), number("SPRAG_FINISHED", 100_000));
    load::run(open(&full), (1, finished), async |_| ()).await;
    let mut filled = 0.0_f64;
    for _ in 0..ROUNDS {
        filled = filled.max(load::run(open(&full), (1, jobs), async |_| ()).await.0);
    }
    let lone = (lone, load::lone(open(&full)).await);
    let resident = resident_of(&format!("sqlite:{}", path("resident.db").display()));
    notes("SQLite", (lone, &ceiling), (filled, empty.rate, finished), &resident)
}

/// Counted by SQLite; every event is an insert of its own, and nothing has deleted any.
async fn counted(store: &SqliteStore, file: &Path) -> Written {
    let (rows, commits) = store.written().await.unwrap();
    let reader = rusqlite::Connection::open(file).unwrap();
    let count = "SELECT count(*) FROM event";
    let events: f64 = reader.query_row(count, [], |row| row.get::<_, u32>(0)).unwrap().into();
    Written { rows: rows as f64, events, commits: commits as f64 }
}

async fn postgres() -> Vec<String> {
    let cluster = sprag_conformance::cluster::Cluster::start();
    let jobs = number("SPRAG_JOBS", 20_000);
    let mut ceiling = Ceiling::default();
    let open = async |url: &str| PostgresStore::open(&PostgresOptions::new(url)).await.unwrap();
    let mut empty = Round::default();
    for steps in [1, 3] {
        let (mut best, mut own) = (Round::default(), 0.0_f64);
        for _ in 0..ROUNDS {
            ceiling = ceiling.better(&ceiling::of_postgres(&cluster.database().await).await);
            let url = cluster.database().await;
            let (rate, ()) = load::run(open(&url).await, (steps, jobs), async |_| ()).await;
            best = best.better(Round { rate, written: statistics(&url).await });
            own = own.max(ceiling::of_own_postgres(&url).await);
        }
        best.print("Postgres", (steps, jobs), (&ceiling, own));
        if steps == 1 {
            empty = best;
        }
    }
    let lone = load::lone(open(&cluster.database().await).await).await;
    let (full, finished) = (cluster.database().await, number("SPRAG_FINISHED", 100_000));
    load::run(open(&full).await, (1, finished), async |_| ()).await;
    settle(&full).await;
    let mut filled = 0.0_f64;
    for _ in 0..ROUNDS {
        filled = filled.max(load::run(open(&full).await, (1, jobs), async |_| ()).await.0);
    }
    let lone = (lone, load::lone(open(&full).await).await);
    let resident = resident_of(&cluster.database().await);
    notes("Postgres", (lone, &ceiling), (filled, empty.rate, finished), &resident)
}

fn notes(
    store: &str,
    ((lone, lone_in_full), ceiling): ((Duration, Duration), &Ceiling),
    (filled, empty, finished): (f64, f64, usize),
    resident: &str,
) -> Vec<String> {
    let full_share = lone.as_secs_f64() / lone_in_full.as_secs_f64();
    let (lone, bare) = (lone.as_secs_f64() * 1e3, LONE_COMMITS / ceiling.commits * 1e3);
    vec![
        format!(
            "- {store}, a lone job, submit to closed: p50 {lone:.2} ms; {LONE_COMMITS} commits of one row: {bare:.2} ms"
        ),
        format!(
            "- {store}, with {finished} finished jobs in it: {filled:.0} jobs/s, {:.2} of an empty one; a lone job {full_share:.2}",
            filled / empty
        ),
        format!("- {store}, resident memory with {finished} jobs queued: {resident} MiB"),
    ]
}

/// Rows written in the books and transactions committed, as the server has counted them.
async fn statistics(url: &str) -> Written {
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
        (SELECT n_tup_ins::float8 FROM pg_stat_user_tables
            WHERE schemaname = 'sprag' AND relname = 'event'),
        (SELECT xact_commit::float8 FROM pg_stat_database WHERE datname = current_database())";
    let row = client.query_one(sql, &[]).await.unwrap();
    Written { rows: row.get(0), events: row.get(1), commits: row.get(2) }
}

/// Does what the server would do beside the next jobs: it has only just been filled.
async fn settle(url: &str) {
    let (client, connection) = tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    for sql in ["VACUUM (ANALYZE)", "CHECKPOINT"] {
        client.batch_execute(sql).await.unwrap();
    }
}

/// What a process of its own holds.
fn resident_of(store: &str) -> String {
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args([RESIDENT, store]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).trim().to_owned()
}

async fn print_resident(store: &str, jobs: usize) {
    let mib = if let Some(path) = store.strip_prefix("sqlite:") {
        load::resident(SqliteStore::open(path.as_ref(), Durability::Full).unwrap(), jobs).await
    } else {
        load::resident(PostgresStore::open(&PostgresOptions::new(store)).await.unwrap(), jobs).await
    };
    println!("{mib:.1}");
}
