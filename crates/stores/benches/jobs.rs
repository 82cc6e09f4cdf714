//! Jobs per second on both stores, submit to closed, beside what the same disk and database do in the same run;
//! the time of a lone job; the same rate in a store that is full of finished jobs, beside that in an empty one; and
//! the memory of an engine with many jobs queued. Prints Markdown.
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
use load::{Keys, Load};
use sprag_engine::store::Store;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Rounds of which the best counts: other work on the machine only ever makes a round slower. Each has the ceiling
/// beside it, since the disk and the processor move within minutes by more than what is compared.
const ROUNDS: usize = 3;
/// How often an empty and a full store are measured, one after the other; the middle ratio counts.
const PAIRS: usize = 7;
/// Commits that a lone job of one step waits for, one after the other.
const LONE_COMMITS: f64 = 4.0;
/// How the program that measures its own memory is told so.
const RESIDENT: &str = "--resident";

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let Some(at) = args.iter().position(|arg| arg == RESIDENT) {
        return print_resident(&args[at + 1], finished()).await;
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

/// The load of all figures but one.
fn load(steps: usize, jobs: usize) -> Load {
    Load { steps, jobs, keys: Keys::Content }
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
    let mut ceiling = Ceiling::default();
    for steps in [1, 3] {
        let mut best = Round::default();
        for round in 0..ROUNDS {
            let bare = path(&format!("{steps}-{round}-bare.db"));
            ceiling = ceiling.better(&ceiling::of_sqlite(&bare));
            let file = path(&format!("{steps}-{round}.db"));
            let count = async |store: &SqliteStore| counted(store, &file).await;
            let (rate, written) = load::run(open(&file), load(steps, jobs), count).await;
            best = best.better(Round { rate, written });
        }
        let own_of = |round| {
            let done = path(&format!("{steps}-{round}.db"));
            ceiling::of_own_sqlite(&done, &path(&format!("{steps}-{round}-copy.db")))
        };
        let own = (0..ROUNDS).map(own_of).fold(0.0, f64::max);
        best.print("SQLite, FULL", (steps, jobs), (&ceiling, own));
    }
    let lone = load::lone(open(&path("lone.db"))).await;
    let mut notes = vec![lone_note("SQLite", lone, &ceiling)];
    for keys in [Keys::Content, Keys::Given] {
        let full = path(&format!("full of {keys}.db"));
        fill(open(&full), keys).await;
        let mut pairs = Pairs::default();
        for n in 0..PAIRS {
            let (load, new) = (Load { steps: 1, jobs, keys }, path(&format!("{n} of {keys}.db")));
            let empty = load::run(open(&new), load, async |_| ()).await.0;
            pairs.push(empty, load::run(open(&full), load, async |_| ()).await.0);
        }
        let lone = (load::lone(open(&path("lone.db"))).await, load::lone(open(&full)).await);
        notes.push(pairs.note("SQLite", keys, lone));
    }
    let resident = resident_of(&format!("sqlite:{}", path("resident.db").display()));
    notes.push(resident_note("SQLite", &resident));
    notes
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
    for steps in [1, 3] {
        let (mut best, mut own) = (Round::default(), 0.0_f64);
        for _ in 0..ROUNDS {
            ceiling = ceiling.better(&ceiling::of_postgres(&cluster.database().await).await);
            let url = cluster.database().await;
            let (rate, ()) = load::run(open(&url).await, load(steps, jobs), async |_| ()).await;
            best = best.better(Round { rate, written: statistics(&url).await });
            own = own.max(ceiling::of_own_postgres(&url).await);
        }
        best.print("Postgres", (steps, jobs), (&ceiling, own));
    }
    let lone = load::lone(open(&cluster.database().await).await).await;
    let mut notes = vec![lone_note("Postgres", lone, &ceiling)];
    for keys in [Keys::Content, Keys::Given] {
        let full = cluster.database().await;
        fill(open(&full).await, keys).await;
        settle(&full).await;
        let mut pairs = Pairs::default();
        for _ in 0..PAIRS {
            let (load, new) = (Load { steps: 1, jobs, keys }, cluster.database().await);
            let empty = load::run(open(&new).await, load, async |_| ()).await.0;
            pairs.push(empty, load::run(open(&full).await, load, async |_| ()).await.0);
        }
        let new = cluster.database().await;
        let lone = (load::lone(open(&new).await).await, load::lone(open(&full).await).await);
        notes.push(pairs.note("Postgres", keys, lone));
    }
    let resident = resident_of(&cluster.database().await);
    notes.push(resident_note("Postgres", &resident));
    notes
}

/// How many finished jobs a full store has.
fn finished() -> usize {
    number("SPRAG_FINISHED", 100_000)
}

async fn fill<S: Store>(store: S, keys: Keys) {
    load::run(store, Load { steps: 1, jobs: finished(), keys }, async |_| ()).await;
}

/// Jobs per second in an empty store and in a full one, measured one after the other.
#[derive(Default)]
struct Pairs(Vec<(f64, f64)>);

impl Pairs {
    fn push(&mut self, empty: f64, full: f64) {
        self.0.push((empty, full));
    }

    fn middle(&self, of: impl Fn(&(f64, f64)) -> f64) -> f64 {
        let mut all: Vec<f64> = self.0.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        all[all.len() / 2]
    }

    fn note(&self, store: &str, keys: Keys, (lone, lone_in_full): (Duration, Duration)) -> String {
        let (empty, full) = (self.middle(|pair| pair.0), self.middle(|pair| pair.1));
        let share = self.middle(|(empty, full)| full / empty);
        let lone_share = lone.as_secs_f64() / lone_in_full.as_secs_f64();
        format!(
            "- {store}, with {} finished jobs in it, known by {keys}: {full:.0} jobs/s beside {empty:.0} in an empty one, {share:.2} in the middle of {PAIRS} pairs; a lone job {lone_share:.2}",
            finished()
        )
    }
}

fn lone_note(store: &str, lone: Duration, ceiling: &Ceiling) -> String {
    let (lone, bare) = (lone.as_secs_f64() * 1e3, LONE_COMMITS / ceiling.commits * 1e3);
    format!(
        "- {store}, a lone job, submit to closed: p50 {lone:.2} ms; {LONE_COMMITS} commits of one row: {bare:.2} ms"
    )
}

fn resident_note(store: &str, resident: &str) -> String {
    format!("- {store}, resident memory with {} jobs queued: {resident} MiB", finished())
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
