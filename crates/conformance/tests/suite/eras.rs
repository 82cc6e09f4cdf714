//! Keys on SQLite, where they are unique by eras: whatever is rolled back, deleted, forgotten or added by somebody else,
//! a job is written if there is none with its key, and not if there is one.

use std::collections::BTreeMap;
use std::path::Path;

use rusqlite::Connection;
use sprag_engine::ids::EngineNo;
use sprag_engine::store::Store;
use sprag_engine::upkeep::Upkeep;
use sprag_stores::TestClock;
use sprag_stores::sqlite::SqliteStore;

use crate::play::{BEGIN_MS, facts, new_job};
use crate::random::Random;

const SEEDS: u64 = 20;
const DEEDS: u64 = 400;
/// How many keys there are to choose from, and how many jobs a slice has at the most.
const KEYS: u64 = 300;
const SLICE: u64 = 6;
/// A job with this key is refused by the file, and with it all that its transaction has written.
const REFUSED: &str = "refused";
/// As many as are deleted together.
const SIDE: i64 = 64;

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

    /// Submits a slice, and compares what came of it with what was there before.
    async fn submit(&self, file: &Connection, keys: &[String], seed: u64) {
        let mut known = known(file);
        let jobs: Vec<_> = keys.iter().map(|key| new_job(facts("t1", Some(key), key), 1)).collect();
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
    file.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
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
            _ => {
                let mut keys: Vec<String> = (0..=random.below(SLICE))
                    .map(|_| format!("key-{}", random.below(KEYS)))
                    .collect();
                if random.one_in(8) {
                    keys.push(REFUSED.to_owned());
                }
                writers[n].submit(&file, &keys, seed).await;
            }
        }
    }
    // All keys are known to everybody, and some are new.
    for writer in &writers {
        let keys: Vec<String> = (0..KEYS).map(|key| format!("key-{key}")).collect();
        writer.submit(&file, &keys, seed).await;
    }
    let checks = writers[0].store.audit().await.unwrap();
    for check in checks.iter().filter(|check| check.name.contains("_key_of_")) {
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
