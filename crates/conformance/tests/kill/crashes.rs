//! Crash points: the process ends at every one of them, alone and in seeded pairs, and is started again.
//! Afterwards every job has ended as it must, and no invariant is broken.

use std::collections::BTreeSet;
use std::path::Path;

use sprag_engine::store::{JobFilter, Store};
use sprag_kernel::JobState;
use sprag_stores::sqlite::SqliteStore;

use super::killer::{Random, victim};
use super::victim::{JOBS, is_cancelled};

/// Every crash point of the engine and of the SQLite store.
const POINTS: [&str; 20] = [
    "amend.after_attempt",
    "amend.after_job",
    "claim.after_entry",
    "dispatch.after_attempt",
    "dispatch.after_job",
    "end.after_attempt",
    "finish.after_statement",
    "heart.after_handler",
    "heart.before_handler",
    "heart.before_reply",
    "sqlite.after_answer",
    "sqlite.after_commit",
    "sqlite.before_begin",
    "sqlite.before_commit",
    "sqlite.between_calls",
    "submit.after_attempts",
    "submit.after_job",
    "take_over.after_death",
    "take_over.after_hand_over",
    "take_over.after_release",
];

/// How many seeded pairs are tried. The long run tries more.
fn pairs() -> u32 {
    std::env::var("SPRAG_PAIRS").map_or(500, |pairs| pairs.parse().unwrap())
}

pub(crate) fn run() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let mut random = Random(0xc4a5);
    let mut crashes = 0;
    for point in POINTS {
        for pass in [1, 2, 7] {
            crashes += scenario(&[format!("{point}:{pass}")], log.path());
        }
    }
    for _ in 0..pairs() {
        let mut pick = || {
            let at = usize::try_from(random.below(POINTS.len() as u64)).unwrap();
            format!("{}:{}", POINTS[at], 1 + random.below(12))
        };
        crashes += scenario(&[pick(), pick()], log.path());
    }
    let passed = std::fs::read_to_string(log.path()).unwrap();
    let passed: BTreeSet<&str> = passed.lines().collect();
    assert_eq!(passed, BTreeSet::from(POINTS), "every crash point is listed and was passed");
    println!("{} crash points, {} pairs: {crashes} crashes, all recovered", POINTS.len(), pairs());
}

/// One store: a life for each point, then one that ends by itself. Returns how many lives crashed.
fn scenario(points: &[String], log: &Path) -> u32 {
    let folder = tempfile::tempdir().unwrap();
    let mut crashes = 0;
    for point in points {
        let mut child = victim(folder.path());
        child.env("SPRAG_SCRIPT", "1").env("SPRAG_CRASH", point).env("SPRAG_CRASH_LOG", log);
        let status = child.stderr(std::process::Stdio::null()).status().unwrap();
        crashes += u32::from(!status.success());
    }
    let mut child = victim(folder.path());
    child.env("SPRAG_SCRIPT", "1").env("SPRAG_CRASH_LOG", log);
    assert!(child.status().unwrap().success(), "the last life ends by itself: {points:?}");
    look(folder.path(), points);
    crashes
}

fn look(folder: &Path, points: &[String]) {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let store = SqliteStore::look(&folder.join("store.db")).unwrap();
    runtime.block_on(async {
        let filter = JobFilter { limit: 1_000, ..JobFilter::default() };
        let jobs = store.jobs(filter).await.unwrap();
        assert_eq!(jobs.len(), JOBS, "{points:?}");
        for job in jobs {
            let n: usize = job.facts.idempotency_key.as_ref().unwrap().parse().unwrap();
            let expected = job.row.state == JobState::Succeeded
                || (is_cancelled(n) && job.row.state == JobState::Cancelled);
            assert!(expected, "{points:?}: job {n} is {}", job.row.state);
        }
        for check in store.audit().await.unwrap() {
            assert_eq!(check.violations, [], "{points:?}: {}", check.name);
        }
    });
}
