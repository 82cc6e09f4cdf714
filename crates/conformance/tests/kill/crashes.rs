//! Crash points: the process ends at every one of them, alone and in seeded pairs, and is started again.
//! Afterwards every job has ended as it must, and no invariant is broken. So no marker is seen without its
//! work, nor work without its marker (L39), completion tasks included (L34), and no message is left
//! unfinished (L44).

use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};

use sprag_conformance::cluster::Cluster;
use sprag_engine::requests::RequestStore;
use sprag_engine::store::{JobFilter, JobView};
use sprag_kernel::{JobState, State, StepState};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::SqliteStore;
use tempfile::TempDir;

use super::effects::{self, Counts, Due};
use super::killer::{ITEMS_OF_CHILD, runtime, victim};
use super::left;
use super::old;
use super::points;
use super::requests;
use super::scenarios::{BEFORE, Passes, Scenario, Scenarios};
use super::victim::{ITEMS, JOBS, SCRIPT, WORK, is_cancelled};

/// How many scenarios run at a time, each in books of its own. A process that starts, and one that waits
/// for a takeover, leave the processor to others.
const LANES: usize = 4;
const SIGABRT: i32 = 6;

/// On SQLite files.
pub(crate) fn on_sqlite() {
    run(points::SQLITE, Folder::new);
}

/// On databases of a server.
pub(crate) fn on_postgres() {
    // Processes end here, never the server: nothing of it has to reach the disk.
    let cluster = Cluster::start_with(5432, vec!["fsync=off".to_owned()], &[]);
    run(points::POSTGRES, || Database::new(&cluster));
}

/// Books that a scenario begins with empty.
trait Books {
    fn clear(&mut self);
    /// How a victim is told where they are.
    fn place(&self, victim: &mut Command);
    /// Looks at what is left.
    fn look(&self, points: &[String]);
}

fn run<B: Books>(own: &[&str], books: impl Fn() -> B + Sync) {
    let scenarios = Scenarios::chosen(points::all(own), || passes(&mut books()));
    std::thread::scope(|scope| {
        for _ in 0..LANES {
            scope.spawn(|| {
                let mut books = books();
                while let Some(turn) = scenarios.next() {
                    let crashes = play(&mut books, &turn.scenario);
                    scenarios.over(turn, crashes);
                }
            });
        }
    });
    scenarios.expect_complete();
}

/// How often each point is passed by a life that nothing ends, after one that was ended.
fn passes(books: &mut impl Books) -> Passes {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("passes");
    books.clear();
    assert_eq!(live(books, 0, |life| life.env("SPRAG_CRASH", BEFORE)).signal(), Some(SIGABRT));
    assert!(live(books, 1, |life| life.env("SPRAG_CRASH_LOG", &log)).success());
    let mut passes = Passes::new();
    for point in std::fs::read_to_string(log).unwrap().lines() {
        *passes.entry(point.to_owned()).or_default() += 1;
    }
    passes
}

/// A life for each point, then one that ends by itself. Says how many of its crashes came about.
fn play(books: &mut impl Books, scenario: &Scenario) -> usize {
    books.clear();
    let mut crashes = 0;
    for (life, point) in scenario.iter().enumerate() {
        let status = live(books, life, |life| life.env("SPRAG_CRASH", point).stderr(Stdio::null()));
        match (status.success(), status.signal()) {
            (true, _) => {}
            (false, Some(SIGABRT)) => crashes += 1,
            (false, _) => panic!("{scenario:?}: life {life} ended with {status}"),
        }
    }
    let status = live(books, scenario.len(), |life| life);
    assert!(status.success(), "{scenario:?}: the last life ended with {status}");
    books.look(scenario);
    crashes
}

/// One life of the script, as `set` has it, and how it ended.
fn live(
    books: &impl Books,
    life: usize,
    set: impl FnOnce(&mut Command) -> &mut Command,
) -> ExitStatus {
    let mut child = victim(SCRIPT);
    books.place(&mut child);
    set(child.env("SPRAG_LIFE", life.to_string())).status().unwrap()
}

/// Every job has ended as the script says, each step that succeeded has had its effect once and no other
/// step has had one, and the audit is empty.
async fn look<S: RequestStore>(store: &S, effects: Counts, points: &[String]) {
    let filter = JobFilter { limit: 1_000, ..JobFilter::default() };
    let jobs = store.jobs(filter).await.unwrap();
    let (left, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(old::is_old);
    old::look(&left, points);
    let (left, jobs): (Vec<_>, Vec<_>) = jobs.into_iter().partition(left::is_left);
    left::look(&left, points);
    let (children, jobs): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(|job| job.facts.parent().is_some());
    let (runs, jobs): (Vec<_>, Vec<_>) =
        jobs.into_iter().partition(|job| job.facts.request_id().is_some());
    requests::look(store, &runs, points).await;
    let schedules = store.schedules(None).await.unwrap();
    let ticks = schedules.iter().filter(|view| view.last_tick.is_some()).count();
    assert_eq!(jobs.len(), JOBS + ticks, "{points:?}: each schedule has had its one tick");
    expect_one_child_each(&jobs, &children, points);
    let mut due = Due { items: ITEMS_OF_CHILD, ..Due::default() };
    for job in jobs.into_iter().chain(children) {
        for attempt in store.attempts(job.facts.job_id).await.unwrap() {
            let is_child = job.facts.parent().is_some();
            if attempt.row.state == StepState::Succeeded && attempt.service == ITEMS && is_child {
                due.batches.push(attempt.key.effect_key(&attempt.key.job_id.to_string()));
            }
            // The worker outside has no transaction to write in.
            if attempt.row.state == StepState::Succeeded && attempt.service == WORK {
                due.steps.push(attempt.key.effect_key(&attempt.key.job_id.to_string()));
            }
        }
        if job.facts.parent().is_some() {
            continue;
        }
        let n: usize = job.facts.idempotency_key.as_ref().unwrap().parse().unwrap();
        let expected = job.row.state == JobState::Succeeded
            || (is_cancelled(n) && job.row.state == JobState::Cancelled);
        assert!(expected, "{points:?}: job {n} is {}: {:?}", job.row.state, job.error);
    }
    assert_eq!(store.undelivered().await.unwrap(), 0, "{points:?}: every end was told");
    let of_steps = effects.keys().filter(|name| !name.contains("..")).count();
    assert_eq!(of_steps, due.steps.len(), "{points:?}");
    due.expect(effects);
    for check in store.audit().await.unwrap() {
        assert_eq!(check.violations, [], "{points:?}: {}", check.name);
    }
}

/// Every graph that succeeded has had one child, which succeeded; no other job has one that is open.
fn expect_one_child_each(jobs: &[JobView], children: &[JobView], points: &[String]) {
    for child in children {
        assert!(child.row.state.is_terminal(), "{points:?}: a child is {}", child.row.state);
    }
    let is_graph = |job: &&JobView| job.row.is_graph && job.row.state == JobState::Succeeded;
    for job in jobs.iter().filter(is_graph) {
        let is_own = |child: &&JobView| {
            let parent = child.facts.parent().map(|(parent, _)| parent.job_id);
            parent == Some(job.facts.job_id)
        };
        let own: Vec<_> = children.iter().filter(is_own).map(|child| child.row.state).collect();
        assert_eq!(own, [JobState::Succeeded], "{points:?}");
    }
}

/// A SQLite file in a folder.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }
}

impl Books for Folder {
    fn clear(&mut self) {
        *self = Self::new();
    }

    fn place(&self, victim: &mut Command) {
        victim.env("SPRAG_VICTIM", self.0.path());
    }

    fn look(&self, points: &[String]) {
        let file = self.0.path().join("store.db");
        let store = SqliteStore::look(&file).unwrap();
        runtime().block_on(look(&store, effects::count_sqlite(&file), points));
    }
}

/// A database whose rows are deleted between scenarios: a new one would cost a second.
struct Database {
    folder: TempDir,
    url: String,
    runtime: tokio::runtime::Runtime,
    store: PostgresStore,
    client: tokio_postgres::Client,
}

impl Database {
    fn new(cluster: &Cluster) -> Self {
        let runtime = runtime();
        let url = runtime.block_on(cluster.database());
        let options = PostgresOptions::new(&url);
        let store = runtime.block_on(PostgresStore::open(&options)).unwrap();
        let connect = tokio_postgres::connect(&url, tokio_postgres::NoTls);
        let (client, connection) = runtime.block_on(connect).unwrap();
        runtime.spawn(connection);
        Self { folder: tempfile::tempdir().unwrap(), url, runtime, store, client }
    }
}

impl Books for Database {
    fn clear(&mut self) {
        let tables = "SELECT tablename::text FROM pg_tables
            WHERE schemaname = 'sprag' AND tablename <> 'meta'
            ORDER BY tablename = 'job_count'";
        requests::forget(self.folder.path());
        self.runtime.block_on(async {
            for row in self.client.query(tables, &[]).await.unwrap() {
                let delete = format!("DELETE FROM sprag.{}", row.get::<_, &str>(0));
                self.client.batch_execute(&delete).await.unwrap();
            }
            self.client.batch_execute("DROP TABLE IF EXISTS effect").await.unwrap();
        });
    }

    fn place(&self, victim: &mut Command) {
        victim.env("SPRAG_VICTIM", self.folder.path()).env("SPRAG_PG", &self.url);
    }

    fn look(&self, points: &[String]) {
        self.runtime.block_on(async {
            let effects = effects::count_postgres(&self.url).await;
            look(&self.store, effects, points).await;
        });
    }
}
