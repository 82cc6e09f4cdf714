//! The killer: starts the victim, kills it at a random moment, and starts it again; then looks at what
//! is left.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_engine::ids::JobId;
use sprag_engine::store::Store;
use sprag_kernel::{JobState, StepState};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::SqliteStore;

use super::effects::{self, Due};
use super::victim::{DRAIN, ITEMS, LAST_STEP, LOAD, WORK};

/// How many steps with a handler a graph has in all its branches and turns, with those of its child.
const STEPS_OF_GRAPH: usize = 6 + 6 + 1 + 4 + 1;
/// Items of the batch of its child.
pub(crate) const ITEMS_OF_CHILD: u64 = 3;
const SIGKILL: i32 = 9;
/// A life is killed so soon after its first job, but for one of so many that gets as far as beats, sweeps and the steps
/// that come late.
const SHORT_MS: u64 = 25;
const LONG_EVERY: u32 = 20;
const LONG_MS: u64 = 500;
const LONGEST_MS: u64 = 1_500;
/// There are at most so many kills for each log that was copied: most copies are met by one, for they take as long as a
/// short life.
const KILLS_OF_A_LOG: u32 = 25;

/// How often the victim is killed, unless `variable` says otherwise. The long run sets more.
pub(crate) fn kills(variable: &str, default: u32) -> u32 {
    std::env::var(variable).map_or(default, |kills| kills.parse().unwrap())
}

/// On a SQLite file.
pub(crate) fn on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("store.db");
    let place = Place { folder: folder.path(), url: None };
    let kills = kills("SPRAG_KILLS", 500);
    let accepted = lives(place, kills);
    let logs = logs(&file);
    assert!(logs >= kills / KILLS_OF_A_LOG, "only {logs} logs were copied and begun anew");
    place.drain();
    print!("{logs} logs, ");
    let store = SqliteStore::look(&file).unwrap();
    let due = runtime().block_on(look(&store, folder.path(), &accepted));
    due.expect(effects::count_sqlite(&file));
}

/// On a Postgres server of its own.
pub(crate) fn on_postgres() {
    let folder = tempfile::tempdir().unwrap();
    let (cluster, runtime) = (Cluster::start(), runtime());
    let url = runtime.block_on(cluster.database());
    let place = Place { folder: folder.path(), url: Some(&url) };
    let accepted = lives(place, kills("SPRAG_PG_KILLS", 100));
    place.drain();
    runtime.block_on(async {
        let store = PostgresStore::open(&PostgresOptions::new(&url)).await.unwrap();
        let due = look(&store, folder.path(), &accepted).await;
        due.expect(effects::count_postgres(&url).await);
    });
}

pub(crate) fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Where the books are that all victims of a test share.
#[derive(Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) folder: &'a Path,
    pub(crate) url: Option<&'a str>,
}

impl Place<'_> {
    /// A victim with a role on these books.
    pub(crate) fn victim(&self, role: &str) -> Command {
        let mut command = victim(role);
        command.env("SPRAG_VICTIM", self.folder);
        if let Some(url) = self.url {
            command.env("SPRAG_PG", url);
        }
        command
    }

    /// A last life that finishes what is open and ends by itself.
    pub(crate) fn drain(&self) {
        let status = self.victim(DRAIN).status().unwrap();
        assert!(status.success(), "the last engine ends by itself, not with {status}");
    }
}

/// How often the log of this file has begun anew, after all of it was copied into the file: it says so at its front.
fn logs(file: &Path) -> u32 {
    let log = std::fs::read(file.with_extension("db-wal")).unwrap();
    u32::from_be_bytes(log[12..16].try_into().unwrap())
}

/// Life after life, each killed. Returns what was accepted.
fn lives(place: Place<'_>, kills: u32) -> BTreeSet<String> {
    let mut accepted = BTreeSet::new();
    let mut random = Random(0x5eed);
    for round in 0..kills {
        let mut life = Life::start(place.victim(LOAD).env("SPRAG_ROUND", round.to_string()));
        let is_long = round % LONG_EVERY == LONG_EVERY - 1;
        let (least, most) = if is_long { (LONG_MS, LONGEST_MS) } else { (0, SHORT_MS) };
        std::thread::sleep(Duration::from_millis(least + random.below(most - least)));
        life.child.kill().unwrap();
        accepted.extend(life.end_by_kill(&format!("life {round}")));
    }
    assert!(accepted.len() > kills as usize, "the engine got to work between the kills");
    print!("{kills} kills, ");
    accepted
}

/// This program again; `SPRAG_VICTIM` in its environment makes it the victim.
pub(crate) fn victim(role: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env("SPRAG_ROLE", role);
    command
}

/// A victim that runs, and what it says.
pub(crate) struct Life {
    pub(crate) child: Child,
    said: Arc<AtomicUsize>,
    accepted: JoinHandle<BTreeSet<String>>,
    complaint: JoinHandle<String>,
}

/// How a life has ended.
pub(crate) struct Ended {
    pub(crate) status: ExitStatus,
    pub(crate) accepted: BTreeSet<String>,
    /// What it said on stderr.
    pub(crate) complaint: String,
}

impl Life {
    /// Starts a victim under load; returns when its first job is accepted.
    pub(crate) fn start(command: &mut Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap());
        let mut errors = child.stderr.take().unwrap();
        let (started, first) = channel();
        let said = Arc::<AtomicUsize>::default();
        let counted = said.clone();
        // Read as it is written: a victim must not stand still because a pipe is full.
        let accepted = std::thread::spawn(move || {
            let mut accepted = BTreeSet::new();
            let mut line = String::new();
            while lines.read_line(&mut line).unwrap() > 0 {
                // The last line may be torn by a kill.
                if line.ends_with('\n') {
                    accepted.insert(line.trim_end().to_owned());
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                // Nobody waits any more after the first.
                let _ = started.send(());
                line.clear();
            }
            accepted
        });
        let complaint = std::thread::spawn(move || {
            let mut complaint = String::new();
            errors.read_to_string(&mut complaint).unwrap();
            complaint
        });
        // If it ended before that, `end` tells.
        let _ = first.recv();
        Self { child, said, accepted, complaint }
    }

    /// How many jobs it has said were accepted, so far.
    pub(crate) fn said(&self) -> usize {
        self.said.load(Ordering::Relaxed)
    }

    /// Waits for its end.
    pub(crate) fn end(mut self) -> Ended {
        let status = self.child.wait().unwrap();
        let (accepted, complaint) = (self.accepted.join().unwrap(), self.complaint.join().unwrap());
        Ended { status, accepted, complaint }
    }

    /// The same, for one that was killed: it lived until then, got to work and had nothing to complain of. Says what it
    /// accepted.
    pub(crate) fn end_by_kill(self, who: &str) -> BTreeSet<String> {
        let Ended { status, accepted, complaint } = self.end();
        assert_eq!(
            status.signal(),
            Some(SIGKILL),
            "{who} ended before, with {status}: {complaint}"
        );
        assert_eq!(complaint, "", "{who} complained");
        assert!(!accepted.is_empty(), "{who} got to work");
        accepted
    }
}

/// Every accepted job has succeeded, no invariant is broken, every step has had its effect. Returns what must stand
/// of those whose handler is transactional.
pub(crate) async fn look<S: Store>(store: &S, folder: &Path, accepted: &BTreeSet<String>) -> Due {
    let mut due = Due { items: ITEMS_OF_CHILD, ..Due::default() };
    let (mut others, mut graphs) = (Vec::new(), 0);
    for job_id in accepted {
        let job_id: JobId = job_id.parse().unwrap();
        let job = store.job(job_id).await.unwrap();
        let job = job.unwrap_or_else(|| panic!("accepted and lost: {job_id}"));
        if job.row.state != JobState::Succeeded {
            let attempts = store.attempts(job_id).await.unwrap();
            panic!("{job_id} is {:?}, {:?}: {attempts:#?}", job.row.state, job.error);
        }
        if job.row.is_graph {
            expect_graph(store, job_id, &mut due).await;
            graphs += 1;
        } else {
            others.extend((0..LAST_STEP).map(|step| format!("{job_id}/{step}/0/0")));
            due.steps.push(format!("{job_id}/{LAST_STEP}/0/0"));
        }
    }
    assert!(graphs > 0, "the load has graphs");
    for check in store.audit().await.unwrap() {
        assert_eq!(check.violations, [], "{}", check.name);
    }
    let log = std::fs::read_to_string(folder.join("effects.log")).unwrap();
    let mut effects: BTreeMap<&str, usize> = BTreeMap::new();
    for line in log.lines() {
        *effects.entry(line.split_once(' ').unwrap().0).or_default() += 1;
    }
    for step in others.iter().chain(&due.steps) {
        assert!(effects.contains_key(step.as_str()), "{step}");
    }
    let repeated = effects.values().filter(|count| **count > 1).count();
    println!(
        "{} jobs accepted and succeeded, {graphs} of them graphs, {} steps, {repeated} of them run more than once",
        accepted.len(),
        effects.len(),
    );
    due
}

/// A graph has done all there is to do in it, its child included.
async fn expect_graph<S: Store>(store: &S, job_id: JobId, due: &mut Due) {
    let mut attempts = store.attempts(job_id).await.unwrap();
    let child = attempts.iter().find_map(|attempt| attempt.child).unwrap();
    attempts.extend(store.attempts(child).await.unwrap());
    let succeeded = |service: &str| -> Vec<String> {
        let of_service = attempts.iter().filter(|attempt| attempt.service == service);
        let succeeded = of_service.filter(|attempt| attempt.row.state == StepState::Succeeded);
        succeeded.map(|attempt| attempt.key.effect_key(&attempt.key.job_id.to_string())).collect()
    };
    let (steps, batches) = (succeeded(WORK), succeeded(ITEMS));
    assert_eq!((steps.len(), batches.len()), (STEPS_OF_GRAPH, 1), "{job_id}");
    due.steps.extend(steps);
    due.batches.extend(batches);
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
