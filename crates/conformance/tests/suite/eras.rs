//! Keys on SQLite, where they are unique by eras: whatever is rolled back, deleted, forgotten or added by somebody else,
//! a job is written if there is none with its key, and not if there is one.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Mutex;
use std::sync::mpsc::channel;
use std::time::Duration;

use rusqlite::Connection;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::plan;
use sprag_engine::store::{Answer, DispatchOutcome, EndWrite, NewJob, Store, Submitted};
use sprag_engine::upkeep::Upkeep;
use sprag_kernel::Refusal;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::RetryPolicy;
use sprag_stores::TestClock;
use sprag_stores::sqlite::{SqliteStore, SqliteWork};

use crate::deeds::{self, Then};
use crate::play::{BEGIN_MS, Play, facts, join_all, new_job};
use crate::random::Random;
use crate::world::Sqlite;

const SEEDS: u64 = 20;
const DEEDS: u64 = 400;
/// How many keys there are to choose from, and how many jobs a slice has at the most.
const KEYS: u64 = 300;
const SLICE: u64 = 6;
/// A job with this key is refused by the file, and with it all that its transaction has written.
const REFUSED: &str = "refused";
/// As many as are deleted together.
const SIDE: i64 = 64;
/// How long somebody waits for the file, or works on it.
const LIMIT: Duration = Duration::from_secs(10);

/// Somebody who has the file open and writes jobs to it.
struct Writer {
    store: SqliteStore,
    engine: EngineNo,
}

impl Writer {
    /// One has short eras and owns the file, one has them too, and one has eras that are never full here.
    async fn open(n: usize, path: &Path) -> Self {
        let clock = || TestClock::at(BEGIN_MS);
        let opened = match n {
            0 => SqliteStore::open_with_clock(path, clock()),
            1 => SqliteStore::look_with_clock(path, clock()),
            _ => SqliteStore::look(path),
        };
        let store = opened.unwrap();
        store.put_protocol("test.v1", "{}").await.unwrap();
        let engine = store.join("writer").await.unwrap();
        Self { store, engine }
    }

    /// An attempt of this engine that runs, as the RESULT that it will have.
    async fn running(&self) -> EndWrite {
        let key = JobId::new().to_string();
        let job = NewJob { enter: true, ..job(&key) };
        let mut held = plan::born(&job);
        self.store.submit(self.engine, vec![job]).await.unwrap();
        let write = plan::dispatch(&mut held, LeaseId(1), &RetryPolicy::default()).unwrap();
        let outcome = self.store.dispatch(self.engine, vec![write]).await.unwrap()[0];
        let DispatchOutcome::Done { version, .. } = outcome else { panic!("{outcome:?}") };
        held.attempt.version = version;
        Play::<Sqlite>::result_write(&held, Report::Succeeded)
    }

    async fn call(&self, call: Call<'_>) -> Option<Slice> {
        let Self { store, engine } = self;
        match call {
            Call::Submit(jobs) => return Some(store.submit(*engine, jobs).await),
            Call::Forget(most) => drop(store.forget(*engine, 0, most).await),
            Call::End(write, work) => drop(store.end_with(*engine, *write, work, LIMIT).await),
            Call::Beside(run) => run(),
        }
        None
    }

    /// Makes these calls, one queued after the other; answers what became of the slices among them.
    async fn call_all(&self, calls: Vec<Call<'_>>) -> Vec<Slice> {
        // Each is queued when it is polled first.
        let answers = join_all(calls.into_iter().map(|call| self.call(call))).await;
        answers.into_iter().flatten().collect()
    }

    /// Submits several slices together, beside other calls, and compares what came of them with what was there.
    async fn submit_together(&self, file: &Connection, slices: &[Vec<String>], beside: Beside) {
        let (before, mut free) = (known(file), BTreeSet::new());
        let jobs: Vec<Vec<NewJob>> =
            slices.iter().map(|keys| keys.iter().map(|key| job(key)).collect()).collect();
        let ids: Vec<Vec<JobId>> =
            jobs.iter().map(|jobs| jobs.iter().map(|job| job.facts.job_id).collect()).collect();
        let mut calls: Vec<_> = jobs.into_iter().map(Call::Submit).collect();
        if let Some(most) = beside.forgets {
            free = retired(file);
            calls.insert(1, Call::Forget(most));
        }
        if let Some(then) = beside.work {
            let work = deeds::on_sqlite(&JobId::new().to_string(), then);
            calls.push(Call::End(Box::new(self.running().await), work));
        }
        let ends_it = matches!(beside.work, Some(Then::Commits | Then::RollsBack));
        // They wait for the file, and so are one transaction, or two if the first one was taken at once.
        calls.push(Call::Beside(Box::new(|| file.execute_batch("COMMIT").unwrap())));
        file.execute_batch("BEGIN IMMEDIATE").unwrap();
        let answers = self.call_all(calls).await;
        let after = known(file);
        // The jobs that a key may have got, and those that it was said to have got.
        let (mut may, mut made) = (BTreeMap::new(), BTreeMap::new());
        for ((keys, ids), answer) in slices.iter().zip(ids).zip(answers) {
            let is_refused = keys.iter().any(|key| key == REFUSED);
            assert!(!is_refused || answer.is_err(), "{beside:?}");
            assert!(is_refused || ends_it || answer.is_ok(), "{beside:?}: {answer:?}");
            for (n, (key, id)) in keys.iter().zip(ids).enumerate().filter(|_| !is_refused) {
                let may: &mut Vec<_> = may.entry(key).or_default();
                let id = id.as_bytes().to_vec();
                match &answer {
                    Ok(submitted) if submitted[n].as_ref().unwrap().created => {
                        may.push(id.clone());
                        assert_eq!(made.insert(key, id), None, "{beside:?}: two jobs of {key}");
                    }
                    Ok(_) => {}
                    Err(_) => may.push(id),
                }
            }
        }
        for (key, may) in &may {
            let (was, is) = (before.get(*key), after.get(*key));
            let is_kept = was.is_some() && !free.contains(*key);
            assert!(is == was || !is_kept, "{beside:?}: {key} was another's");
            assert!(is.is_none_or(|id| may.contains(id) || Some(id) == was), "{beside:?}: {key}");
            let is_said = made.get(*key).is_none_or(|id| is == Some(id));
            assert!(is_said, "{beside:?}: {key} is not whose it was said to be");
        }
    }

    /// Submits a slice, and compares what came of it with what was there before.
    async fn submit(&self, file: &Connection, keys: &[String], seed: u64) {
        let mut known = known(file);
        let jobs: Vec<_> = keys.iter().map(|key| job(key)).collect();
        let ids: Vec<_> = jobs.iter().map(|job| job.facts.job_id).collect();
        let submitted = self.store.submit(self.engine, jobs).await;
        if keys.iter().any(|key| key == REFUSED) {
            assert!(submitted.is_err(), "seed {seed}");
            return;
        }
        for ((key, id), submitted) in keys.iter().zip(ids).zip(submitted.unwrap()) {
            let submitted = submitted.unwrap();
            let is_new = !known.contains_key(key);
            let expected = known.entry(key.clone()).or_insert(id.as_bytes().to_vec());
            let found = (submitted.created, submitted.job_id.as_bytes().to_vec());
            assert_eq!(found, (is_new, expected.clone()), "seed {seed}, key {key}");
        }
    }
}

/// What became of a slice.
type Slice = Answer<Vec<Result<Submitted, Refusal>>>;

/// One of several calls.
enum Call<'a> {
    Submit(Vec<NewJob>),
    Forget(u32),
    End(Box<EndWrite>, SqliteWork),
    /// What is done when those before it are queued, and those behind it are not.
    Beside(Box<dyn FnOnce() + 'a>),
}

/// What is done beside slices.
#[derive(Debug)]
struct Beside {
    forgets: Option<u32>,
    work: Option<Then>,
}

fn job(key: &str) -> NewJob {
    new_job(facts("t1", Some(key), key), 1)
}

/// Some keys, and now and then one that takes all others of its slice along.
fn some_keys(random: &mut Random) -> Vec<String> {
    let mut keys: Vec<String> =
        (0..=random.below(SLICE)).map(|_| format!("key-{}", random.below(KEYS))).collect();
    if random.one_in(8) {
        keys.push(REFUSED.to_owned());
    }
    keys
}

/// The keys of which only the name is left.
fn retired(file: &Connection) -> BTreeSet<String> {
    let mut statement = file.prepare_cached("SELECT substr(dedup_key, 3) FROM retired").unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The job of each key, read past the store.
fn known(file: &Connection) -> BTreeMap<String, Vec<u8>> {
    let sql = "SELECT substr(dedup_key, 3), job_id FROM job
        UNION ALL SELECT substr(dedup_key, 3), job_id FROM retired";
    let mut statement = file.prepare_cached(sql).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    let rows: Vec<(String, Vec<u8>)> = rows.collect::<Result<_, _>>().unwrap();
    let count = rows.len();
    let known: BTreeMap<_, _> = rows.into_iter().collect();
    assert_eq!(known.len(), count, "no key is there twice");
    known
}

/// The oldest era and the newest.
fn eras(file: &Connection) -> (i64, i64) {
    let sql = "SELECT min(era), max(era) FROM era";
    file.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?))).unwrap()
}

/// Ends all jobs, as far as retention looks.
fn end_all(file: &Connection) {
    let sql = "UPDATE job SET state = 4, completed_at = 1, created_at = 1 WHERE state < 4";
    file.execute(sql, []).unwrap();
}

async fn play(seed: u64) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let mut random = Random::new(seed);
    let mut writers = Vec::new();
    for n in 0..3 {
        writers.push(Writer::open(n, &path).await);
    }
    let file = Connection::open(&path).unwrap();
    file.busy_timeout(LIMIT).unwrap();
    file.execute_batch(deeds::SQLITE_TABLES).unwrap();
    let refuse = format!(
        "CREATE TRIGGER refuse BEFORE INSERT ON job WHEN NEW.dedup_key = 'k:{REFUSED}'
         BEGIN SELECT RAISE(ABORT, 'refused'); END"
    );
    file.execute_batch(&refuse).unwrap();
    for _ in 0..DEEDS {
        // Mostly the first one, as in life.
        let n = if random.one_in(4) { random.below(3) } else { 0 };
        let n = usize::try_from(n).unwrap();
        match random.below(24) {
            0 => {
                // The owner of the file lets go of it first.
                let old = writers.remove(n);
                drop(old);
                writers.insert(n, Writer::open(n, &path).await);
            }
            1 => {
                end_all(&file);
                let Writer { store, engine } = &writers[n];
                let most = u32::try_from(random.below(60)).unwrap();
                store.retire(*engine, 0, None, 1 + most).await.unwrap();
            }
            2 => {
                let Writer { store, engine } = &writers[n];
                let most = u32::try_from(random.below(40)).unwrap();
                store.forget(*engine, 0, 1 + most).await.unwrap();
            }
            3 => {
                let mut slices: Vec<_> =
                    (0..2 + random.below(2)).map(|_| some_keys(&mut random)).collect();
                if random.one_in(2) {
                    slices[0].push(REFUSED.to_owned());
                }
                let forgets = random.one_in(3).then_some(20);
                let works = [Then::Ends, Then::Fails, Then::Commits, Then::RollsBack];
                let work = works.get(usize::try_from(random.below(8)).unwrap()).copied();
                writers[n].submit_together(&file, &slices, Beside { forgets, work }).await;
            }
            _ => writers[n].submit(&file, &some_keys(&mut random), seed).await,
        }
    }
    // All keys are known to everybody, and some are new.
    for writer in &writers {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("key-{key}")).collect();
        writer.submit(&file, &keys, seed).await;
    }
    let checks = writers[0].store.audit().await.unwrap();
    for check in checks.iter().filter(|check| check.name.contains("_key_")) {
        assert_eq!(check.violations, [], "seed {seed}: {}", check.name);
    }
    // When nothing is left, nor are eras, but for those whose filters lie beside that of the newest.
    end_all(&file);
    // The clock of this one is ahead of the others.
    let Writer { store, engine } = &writers[2];
    store.retire(*engine, 0, None, u32::MAX).await.unwrap();
    let newest = eras(&file).1;
    assert!(newest >= SIDE, "seed {seed}: only {newest} eras");
    store.forget(*engine, 0, u32::MAX).await.unwrap();
    let left = known(&file).len();
    // The job of the newest event stays, whatever it is.
    assert!(left <= 1, "seed {seed}: {left} keys are left");
    assert_eq!(eras(&file), (newest - newest % SIDE, newest), "seed {seed}");
    for writer in &writers {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("key-{key}")).collect();
        writer.submit(&file, &keys, seed).await;
    }
}

#[tokio::test]
async fn a_key_is_one_job_s_whoever_writes_and_whatever_is_lost() {
    for seed in 0..SEEDS {
        play(seed).await;
    }
}

/// A file with these many writers.
async fn writers<const N: usize>(path: &Path, kinds: [usize; N]) -> ([Writer; N], Connection) {
    let mut all = Vec::new();
    for n in kinds {
        all.push(Writer::open(n, path).await);
    }
    let file = Connection::open(path).unwrap();
    file.busy_timeout(LIMIT).unwrap();
    (all.try_into().unwrap_or_else(|_| unreachable!("one for each")), file)
}

fn keys(range: std::ops::Range<u32>) -> Vec<String> {
    range.map(|n| format!("key-{n}")).collect()
}

/// A user's work once rolled back the transaction that had begun an era, and had another one committed in its place; the
/// writer took the era before it for settled, and did not read what others added to that.
#[tokio::test]
async fn an_era_that_was_not_begun_after_all_settles_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let ([one, other], file) = writers(&folder.path().join("s.db"), [0, 2]).await;
    let (first, second) = (one.running().await, one.running().await);
    one.submit(&file, &keys(0..2), 0).await;
    assert_eq!(eras(&file), (0, 0), "it is full, and the next one not begun");
    // While the first work goes on the others are queued, so that they are one transaction.
    let ((begun, has_begun), (go_on, may_go_on)) = (channel(), channel());
    let may_go_on = Mutex::new(may_go_on);
    let holds = SqliteWork::new(move |_| {
        begun.send(()).unwrap();
        may_go_on.lock().unwrap().recv().unwrap();
        Ok(())
    });
    let work = SqliteWork::new(|connection| {
        let sql = "ROLLBACK; BEGIN IMMEDIATE; SAVEPOINT call; SAVEPOINT work";
        Ok(connection.execute_batch(sql)?)
    });
    one.call_all(vec![
        Call::End(Box::new(first), holds),
        Call::Beside(Box::new(|| has_begun.recv().unwrap())),
        Call::Submit(vec![job("lost")]),
        Call::End(Box::new(second), work),
        Call::Beside(Box::new(|| go_on.send(()).unwrap())),
    ])
    .await;
    assert_eq!(eras(&file), (0, 0), "what began it is rolled back");
    other.submit(&file, &keys(3..9), 0).await;
    one.submit(&file, &keys(0..12), 0).await;
}

/// Nothing writes such a key, but whoever can write to the file can.
#[tokio::test]
async fn a_key_that_is_no_text_stops_nobody() {
    let folder = tempfile::tempdir().unwrap();
    let ([one, other], file) = writers(&folder.path().join("s.db"), [0, 2]).await;
    one.submit(&file, &keys(0..3), 0).await;
    let sql = "UPDATE job SET dedup_key = CAST(x'6bff' AS text) WHERE dedup_key = 'k:key-2'";
    assert_eq!(file.execute(sql, []).unwrap(), 1);
    let submit = async |writer: &Writer, key: &str| {
        let submitted = writer.store.submit(writer.engine, vec![job(key)]).await.unwrap();
        submitted[0].as_ref().unwrap().created
    };
    for n in 0..12 {
        let is_new = ![0, 1].contains(&n);
        assert_eq!(submit(&other, &format!("key-{n}")).await, is_new, "key {n}");
        assert!(!submit(&one, &format!("key-{n}")).await, "key {n}");
    }
}
