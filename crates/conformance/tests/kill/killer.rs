//! The killer: starts the victim, kills it at a random moment, and starts it again; then looks at what
//! is left.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_engine::ids::JobId;
use sprag_engine::store::Store;
use sprag_kernel::JobState;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::SqliteStore;

/// How often the victim is killed, unless `variable` says otherwise. The long run sets more.
fn kills(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |kills| kills.parse().unwrap())
}

/// On a SQLite file.
pub(crate) fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let accepted = lives(folder.path(), None, kills("SPRAG_KILLS", 500));
    let store = SqliteStore::look(&folder.path().join("store.db")).unwrap();
    runtime().block_on(look(&store, folder.path(), &accepted));
}

/// On a Postgres server of its own.
pub(crate) fn on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, runtime) = (Cluster::start(), runtime());
    let url = runtime.block_on(cluster.database());
    let accepted = lives(folder.path(), Some(&url), kills("SPRAG_PG_KILLS", 100));
    runtime.block_on(async {
        let store = PostgresStore::open(&PostgresOptions::new(&url)).await.unwrap();
        look(&store, folder.path(), &accepted).await;
    });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Life after life, each killed, and a last one that ends by itself. Returns what was accepted.
fn lives(folder: &Path, url: Option<&str>, kills: u32) -> BTreeSet<String> {
    let start = || {
        let mut command = victim();
        command.env("SPRAG_VICTIM", folder);
        if let Some(url) = url {
            command.env("SPRAG_PG", url);
        }
        command
    };
    let mut accepted = BTreeSet::new();
    let mut random = Random(0x5eed);
    for round in 0..kills {
        let child = start().env("SPRAG_ROUND", round.to_string()).spawn().unwrap();
        accepted.extend(one_life(child, random.below(25)));
    }
    let mut last = start().env("SPRAG_DRAIN", "1").spawn().unwrap();
    assert!(last.wait().unwrap().success(), "the last engine ends by itself");
    assert!(accepted.len() > kills as usize, "the engine got to work between the kills");
    print!("{kills} kills, ");
    accepted
}

/// This program again; `SPRAG_VICTIM` in its environment makes it the victim.
pub(crate) fn victim() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.stdout(Stdio::piped());
    command
}

/// Lets a victim live for a while after its first accepted job, kills it, and returns what it accepted.
fn one_life(mut child: Child, millis: u64) -> BTreeSet<String> {
    let mut lines = BufReader::new(child.stdout.take().unwrap());
    let mut first = String::new();
    lines.read_line(&mut first).unwrap();
    std::thread::sleep(Duration::from_millis(millis));
    child.kill().unwrap();
    child.wait().unwrap();
    let mut rest = String::new();
    lines.read_to_string(&mut rest).unwrap();
    // The last line may be torn by the kill.
    let whole = rest.rsplit_once('\n').map_or("", |(whole, _)| whole);
    let all = std::iter::once(first.trim_end()).chain(whole.lines());
    all.filter(|line| !line.is_empty()).map(ToOwned::to_owned).collect()
}

/// Every accepted job has succeeded, no invariant is broken, every step has had its effect.
async fn look<S: Store>(store: &S, folder: &Path, accepted: &BTreeSet<String>) {
    for job_id in accepted {
        let job_id: JobId = job_id.parse().unwrap();
        let job = store.job(job_id).await.unwrap();
        let job = job.unwrap_or_else(|| panic!("accepted and lost: {job_id}"));
        assert_eq!(job.row.state, JobState::Succeeded, "{job_id}: {:?}", job.error);
    }
    for check in store.audit().await.unwrap() {
        assert_eq!(check.violations, [], "{}", check.name);
    }
    let log = std::fs::read_to_string(folder.join("effects.log")).unwrap();
    let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
    for line in log.lines() {
        *effects.entry(line.split_once(' ').unwrap().0).or_default() += 1;
    }
    for job_id in accepted {
        for step in 0..3 {
            assert!(effects.contains_key(format!("{job_id}/{step}/0/0").as_str()), "{job_id}");
        }
    }
    let repeated = effects.values().filter(|count| **count > 1).count();
    println!(
        "{} jobs accepted and succeeded, {} steps, {repeated} of them run more than once",
        accepted.len(),
        effects.len(),
    );
}

/// A small seeded generator, so that a run can be repeated.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}
