//! Jobs per second on both stores, submit to closed, beside what the same disk and database do in the same run;
//! the time of a lone job; the same rate in a store that is full of finished jobs, beside that in an empty one; and
//! the memory of an engine with many jobs queued. Prints Markdown.
//!
//! The disk and the processor of a shared machine move within minutes by more than what is compared. So every round has
//! its ceilings beside it, and what is printed is the middle of the rounds, of rates and of shares alike.
//!
//! `cargo bench -p sprag-stores --profile dev --bench jobs -- postgres lone` runs one store and one part only, of
//! `rounds`, `lone`, `full` and `memory`; `SPRAG_JOBS` sets the number of jobs per round, `SPRAG_FINISHED` how many fill a
//! store; with `SPRAG_STATS` each round says more.

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

/// Jobs of so many steps.
const STEPS: [usize; 2] = [1, 3];
const KEYS: [Keys; 2] = [Keys::Content, Keys::Given];
/// How often jobs are measured beside their ceilings.
const ROUNDS: usize = 5;
/// How often an empty and a full store are measured, one after the other.
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
    let wanted = Wanted::of(&args);
    println!(
        "| store | single-row commits/s | bulk rows/s | steps | jobs/s | row writes per job | of these events | commits per job | of the ceiling | its own rows in bulk/s | of these |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|---|");
    let mut notes = Vec::new();
    if wanted.store("sqlite") {
        notes.extend(sqlite(&wanted).await);
    }
    if wanted.store("postgres") {
        notes.extend(postgres(&wanted).await);
    }
    println!("\n{}", notes.join("\n"));
}

const STORES: [&str; 2] = ["sqlite", "postgres"];

/// Which stores and which parts are to be measured: those that are named, or all.
struct Wanted {
    stores: Vec<String>,
    parts: Vec<String>,
}

impl Wanted {
    fn of(args: &[String]) -> Self {
        let named = args.iter().filter(|arg| !arg.starts_with('-')).cloned();
        let (stores, parts) = named.partition(|name| STORES.contains(&name.as_str()));
        Self { stores, parts }
    }

    fn store(&self, name: &str) -> bool {
        self.stores.is_empty() || self.stores.iter().any(|wanted| wanted == name)
    }

    fn part(&self, name: &str) -> bool {
        self.parts.is_empty() || self.parts.iter().any(|wanted| wanted == name)
    }
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// The load of all figures but one.
fn load(steps: usize, jobs: usize) -> Load {
    Load { steps, jobs, keys: Keys::Content }
}

/// What one round showed.
struct Round {
    rate: f64,
    written: Written,
    ceiling: Ceiling,
    /// The rows that the round has left, written again by bulk statements, per second.
    own: f64,
}

/// What the database counted while all jobs of a round ran.
#[derive(Clone, Copy)]
struct Written {
    rows: f64,
    events: f64,
    commits: f64,
}

/// All rounds of a store with jobs of so many steps.
struct Rounds {
    steps: usize,
    jobs: usize,
    all: Vec<Round>,
}

impl Rounds {
    fn middle(&self, of: impl Fn(&Round) -> f64) -> f64 {
        middle(self.all.iter().map(of).collect())
    }

    fn print(&self, store: &str) {
        let jobs = self.jobs as f64;
        let commits = self.middle(|round| round.ceiling.commits);
        let bulk = self.middle(|round| round.ceiling.rows);
        print!("| {store} | {commits:.0} | {bulk:.0} | {} ", self.steps);
        let rows = self.middle(|round| round.written.rows / jobs);
        let events = self.middle(|round| round.written.events / jobs);
        let commits = self.middle(|round| round.written.commits / jobs);
        print!(
            "| {:.0} | {rows:.1} | {events:.1} | {commits:.3} ",
            self.middle(|round| round.rate)
        );
        let per_second = |round: &Round| round.rate * round.written.rows / jobs;
        let share = self.middle(|round| per_second(round) / round.ceiling.rows);
        let own_share = self.middle(|round| per_second(round) / round.own);
        println!("| {share:.2} | {:.0} | {own_share:.2} |", self.middle(|round| round.own));
    }
}

fn middle(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

async fn sqlite(wanted: &Wanted) -> Vec<String> {
    let folder = tempfile::tempdir().unwrap();
    let jobs = number("SPRAG_JOBS", 20_000);
    let path = |name: &str| folder.path().join(name);
    let open = |path: &PathBuf| SqliteStore::open(path, Durability::Full).unwrap();
    let mut notes = Vec::new();
    for steps in STEPS.into_iter().filter(|_| wanted.part("rounds")) {
        let mut rounds = Rounds { steps, jobs, all: Vec::new() };
        for round in 0..ROUNDS {
            let of_round = |name: &str| path(&format!("{steps}-{round}{name}.db"));
            let ceiling = ceiling::of_sqlite(&of_round("-bare"));
            let file = of_round("");
            let count = async |store: &SqliteStore| counted(store, &file).await;
            let (rate, written) = load::run(open(&file), load(steps, jobs), count).await;
            let own = ceiling::of_own_sqlite(&file, &of_round("-copy"));
            rounds.all.push(Round { rate, written, ceiling, own });
        }
        rounds.print("SQLite, FULL");
    }
    if wanted.part("lone") {
        let commits = ceiling::of_sqlite(&path("lone-bare.db")).commits;
        let lone = load::lone(open(&path("lone.db"))).await;
        notes.push(lone_note("SQLite", lone, commits));
    }
    for keys in KEYS.into_iter().filter(|_| wanted.part("full")) {
        let full = path(&format!("full of {keys}.db"));
        fill(open(&full), keys).await;
        let mut pairs = Pairs::default();
        for n in 0..PAIRS {
            let (load, new) = (Load { steps: 1, jobs, keys }, path(&format!("{n} of {keys}.db")));
            let empty = load::run(open(&new), load, async |_| ()).await.0;
            let again = copied(&full, &path(&format!("{n} beside {keys}.db")));
            pairs.push(empty, load::run(open(&again), load, async |_| ()).await.0);
        }
        let lone = (load::lone(open(&path("lone.db"))).await, load::lone(open(&full)).await);
        notes.push(pairs.note("SQLite", keys, lone));
    }
    if wanted.part("memory") {
        let resident = resident_of(&format!("sqlite:{}", path("resident.db").display()));
        notes.push(resident_note("SQLite", &resident));
    }
    notes
}

/// The same store once more, on disk.
fn copied(store: &Path, copy: &Path) -> PathBuf {
    std::fs::copy(store, copy).unwrap();
    std::fs::File::open(copy).unwrap().sync_all().unwrap();
    copy.to_owned()
}

/// Counted by SQLite; every event is an insert of its own, and nothing has deleted any.
async fn counted(store: &SqliteStore, file: &Path) -> Written {
    let (rows, commits) = store.written().await.unwrap();
    let reader = rusqlite::Connection::open(file).unwrap();
    let count = "SELECT count(*) FROM event";
    let events: f64 = reader.query_row(count, [], |row| row.get::<_, u32>(0)).unwrap().into();
    Written { rows: rows as f64, events, commits: commits as f64 }
}

async fn postgres(wanted: &Wanted) -> Vec<String> {
    let cluster = sprag_conformance::cluster::Cluster::start();
    let jobs = number("SPRAG_JOBS", 20_000);
    let open = async |url: &str| PostgresStore::open(&PostgresOptions::new(url)).await.unwrap();
    let mut notes = Vec::new();
    for steps in STEPS.into_iter().filter(|_| wanted.part("rounds")) {
        let mut rounds = Rounds { steps, jobs, all: Vec::new() };
        for _ in 0..ROUNDS {
            let ceiling = ceiling::of_postgres(&cluster.database().await).await;
            let url = cluster.database().await;
            let (rate, ()) = load::run(open(&url).await, load(steps, jobs), async |_| ()).await;
            let (written, own) = (statistics(&url).await, ceiling::of_own_postgres(&url).await);
            rounds.all.push(Round { rate, written, ceiling, own });
        }
        rounds.print("Postgres");
    }
    if wanted.part("lone") {
        let commits = ceiling::of_postgres(&cluster.database().await).await.commits;
        let lone = load::lone(open(&cluster.database().await).await).await;
        notes.push(lone_note("Postgres", lone, commits));
    }
    for keys in KEYS.into_iter().filter(|_| wanted.part("full")) {
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
    if wanted.part("memory") {
        let resident = resident_of(&cluster.database().await);
        notes.push(resident_note("Postgres", &resident));
    }
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
        middle(self.0.iter().map(of).collect())
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

fn lone_note(store: &str, lone: Duration, commits: f64) -> String {
    let (lone, bare) = (lone.as_secs_f64() * 1e3, LONE_COMMITS / commits * 1e3);
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
