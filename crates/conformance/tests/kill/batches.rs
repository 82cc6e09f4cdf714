//! A batch of 100,000 items whose process is killed twenty times on the way: the ordered output is byte for byte
//! what it would have been, each item is committed once, and the step is not given up, for it gets ahead in each
//! life. And one with an item that ends the process: that stands still, and is given up.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sprag_engine::batch::output::{self, SeqOutcome};
use sprag_engine::batch::store::{BatchPlace, Batches};
use sprag_engine::batch::{Item, ItemOutcome};
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{JobFilter, JobView, Store};
use sprag_kernel::JobState;
use sprag_stores::sqlite::SqliteStore;

use super::killer::{Place, kills, runtime};

/// The role of a victim that runs the batch to its end.
pub(crate) const BATCH: &str = "batch";

const ITEMS: u64 = 100_000;
/// What an item takes.
const WORK: Duration = Duration::from_micros(10);
/// How often the engine may die under a step, as by default.
const MAX_LOSSES: u32 = 10;
const SIGABRT: i32 = 6;

/// What is put out for an item.
fn made(n: u64) -> Value {
    json!({"n": n, "squared": n * n})
}

/// Killed whenever it has put out another twentieth or so.
pub(crate) fn killed_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let kills = kills("SPRAG_BATCH_KILLS", 20);
    let items: Vec<String> = (0..ITEMS).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let expected: Vec<String> = (0..ITEMS).map(|n| format!("{}\n", made(n))).collect();
    let expected = expected.concat();
    fs::write(folder.path().join("in.jsonl"), items.concat()).unwrap();
    let place = Place { folder: folder.path(), url: None };
    let out = folder.path().join("out.jsonl");
    for kill in 1..=u64::from(kills) {
        let target = expected.len() as u64 * kill / u64::from(kills + 1);
        let mut victim = place.victim(BATCH).stdout(Stdio::null()).spawn().unwrap();
        until_longer(&mut victim, &out, target);
        victim.kill().unwrap();
        victim.wait().unwrap();
    }
    assert!(place.victim(BATCH).status().unwrap().success(), "the last life ends by itself");
    assert!(fs::read_to_string(&out).unwrap() == expected, "the file is what it would have been");
    let store = SqliteStore::look(&folder.path().join("store.db")).unwrap();
    runtime().block_on(async {
        let job = the_job(&store).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        let attempts = store.attempts(job.facts.job_id).await.unwrap();
        let last = attempts.last().unwrap();
        assert_eq!(last.key.attempt_no, kills + 1, "every kill has cost an attempt");
        assert_eq!((last.row.losses, last.row.excused), (0, kills), "each of them had got ahead");
        expect_once(&store, &job).await;
        expect_sound(&store).await;
    });
    println!("{ITEMS} items, {kills} kills, {} bytes of ordered output", expected.len());
}

/// Waits until the file is longer than it was, and than so many bytes.
fn until_longer(victim: &mut Child, out: &Path, target: u64) {
    let length = || fs::metadata(out).map_or(0, |found| found.len());
    let (before, begun) = (length(), Instant::now());
    while length() <= target.max(before) {
        assert!(victim.try_wait().unwrap().is_none(), "it came to its end before it was killed");
        assert!(begun.elapsed() < Duration::from_secs(60), "the batch stands still");
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// Every seq is in the books once, in order, with its own output.
async fn expect_once(store: &SqliteStore, job: &JobView) {
    let place = BatchPlace { job_id: job.facts.job_id, step_index: 0, branch: 0, turn: 0 };
    let mut next = 0;
    while next < ITEMS {
        let page = output::page(store, place, next, 10_000).await.unwrap();
        assert!(!page.is_empty(), "seq {next} is missing");
        for item in page {
            assert_eq!((item.seq, item.outcome), (next, SeqOutcome::Success));
            assert_eq!(item.output, Some(made(next).to_string()));
            next += 1;
        }
    }
    assert_eq!(store.batch(place).await.unwrap().unwrap().point.resume.cursor, ITEMS);
}

/// One item in the middle ends the process each time it is computed.
pub(crate) fn poisoned_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    let (items, poison) = (2_000, 1_000);
    let item = |n| json!({"n": n, "abort": n == poison}).to_string() + "\n";
    fs::write(folder.path().join("in.jsonl"), (0..items).map(item).collect::<String>()).unwrap();
    let place = Place { folder: folder.path(), url: None };
    let mut deaths = 0;
    loop {
        let status = place.victim(BATCH).stderr(Stdio::null()).status().unwrap();
        if status.success() {
            break;
        }
        assert_eq!(status.signal(), Some(SIGABRT), "it ends by its item only: {status}");
        deaths += 1;
        assert!(deaths < 100, "the poison never ends");
    }
    let store = SqliteStore::look(&folder.path().join("store.db")).unwrap();
    runtime().block_on(async {
        let job = the_job(&store).await;
        let code = job.error.as_ref().map(|error| error.code.as_str());
        assert_eq!((job.row.state, code), (JobState::FailedFinal, Some("OWNER_LOST")));
        let attempts = store.attempts(job.facts.job_id).await.unwrap();
        assert_eq!(attempts.last().unwrap().row.losses, MAX_LOSSES, "the last of them is one more");
        expect_sound(&store).await;
    });
    println!("a batch with one item of poison: given up after {deaths} engines");
}

async fn the_job(store: &SqliteStore) -> JobView {
    let filter = JobFilter { limit: 10, ..JobFilter::default() };
    let mut jobs = store.jobs(filter).await.unwrap();
    assert_eq!(jobs.len(), 1);
    jobs.remove(0)
}

async fn expect_sound(store: &SqliteStore) {
    for check in store.audit().await.unwrap() {
        assert_eq!(check.violations, [], "{}", check.name);
    }
}

/// The victim.
pub(crate) async fn work<S: Store>(store: S, folder: &Path) {
    let steps = "[{step_id: items, service: items,
        batch: {file: \"'in.jsonl'\", out: {file: \"'out.jsonl'\"}, threads: 2}}]";
    let text = format!("protocol_id: batch.v1\nrequest_types: [BATCH]\nsteps: {steps}");
    let config = EngineConfig {
        poll: Duration::from_millis(5),
        beat: Duration::from_millis(20),
        takeover: Duration::from_millis(100),
        files: Some(folder.to_owned()),
        ..EngineConfig::default()
    };
    let engine = EngineBuilder::new(store)
        .config(config)
        .protocol(Protocol::read(&text).unwrap())
        .batch_service("items", 2, |item, _| Ok(computed(&item)))
        .start()
        .await
        .unwrap();
    let envelope = json!({"tenant_id": "t", "request_type": "BATCH", "input_ref": "in",
        "output_ref": "out", "payload": {}, "schema_version": "1"});
    let job_id = engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id;
    engine.closed(job_id).await.unwrap();
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
}

fn computed(item: &Item) -> ItemOutcome {
    if item.value["abort"] == true {
        std::process::abort();
    }
    let begun = Instant::now();
    while begun.elapsed() < WORK {
        std::hint::spin_loop();
    }
    ItemOutcome::Success(made(item.value["n"].as_u64().unwrap()))
}
