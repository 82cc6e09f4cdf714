//! Effects of transactional handlers: rows in a table of the user's own, in the books of the engine. The
//! table takes any row any number of times, so that one which was written twice, or not at all, is seen.

use std::collections::BTreeMap;
use std::path::Path;

use sprag_engine::batch::OutputRun;
use sprag_engine::requests::RequestStore;
use sprag_engine::tokens::TokenStore;
use sprag_stores::postgres::{PostgresStore, PostgresWork};
use sprag_stores::sqlite::{SqliteStore, SqliteWork};
use tokio_postgres::NoTls;

use super::seam::Seam;

const TABLE: &str = "CREATE TABLE IF NOT EXISTS effect (name text)";
const COUNTS: &str = "SELECT name, count(*) FROM effect GROUP BY name";

/// A store with work that writes an effect.
pub(crate) trait Effects: RequestStore + TokenStore {
    fn effect(name: String) -> Self::Work;
}

impl Effects for SqliteStore {
    fn effect(name: String) -> SqliteWork {
        SqliteWork::new(move |connection| {
            connection.execute("INSERT INTO effect VALUES (?1)", [&name])?;
            Ok(())
        })
    }
}

impl Effects for PostgresStore {
    fn effect(name: String) -> PostgresWork {
        PostgresWork::new(move |tx| {
            let name = name.clone();
            Box::pin(async move {
                tx.execute("INSERT INTO effect VALUES ($1)", &[&name]).await?;
                Ok(())
            })
        })
    }
}

impl<S: Effects> Effects for Seam<S> {
    fn effect(name: String) -> S::Work {
        S::effect(name)
    }
}

/// What is written for a run of outcomes of a batch: the key of its step, and which seqs.
pub(crate) fn of_run(run: &OutputRun) -> String {
    let (first, end) = (run.items[0].seq, run.items[0].seq + run.items.len() as u64);
    format!("{} {first}..{end}", run.effect_key)
}

/// Of effects of runs: those of each step follow one another from 0 to so many, each once.
pub(crate) fn expect_runs(runs: &Counts, steps: impl Iterator<Item = String>, items: u64) {
    let mut found: BTreeMap<&str, BTreeMap<u64, u64>> = BTreeMap::new();
    for (name, count) in runs {
        assert_eq!(*count, 1, "{name}");
        let (key, range) = name.split_once(' ').unwrap();
        let (first, end) = range.split_once("..").unwrap();
        let runs = found.entry(key).or_default();
        assert_eq!(runs.insert(first.parse().unwrap(), end.parse().unwrap()), None, "{name}");
    }
    let steps: Vec<String> = steps.collect();
    for step in &steps {
        let runs = found.remove(step.as_str()).unwrap_or_else(|| panic!("{step} has no output"));
        let end = runs.iter().fold(0, |next, (first, end)| {
            assert_eq!(*first, next, "{step}: what comes next");
            *end
        });
        assert_eq!(end, items, "{step}");
    }
    // A batch that was cancelled may have put out something before.
    for (step, runs) in found {
        let is_prefix =
            runs.iter().try_fold(0, |next, (first, end)| (*first == next).then_some(*end));
        assert!(is_prefix.is_some(), "{step}: {runs:?}");
    }
}

/// How often each effect stands.
pub(crate) type Counts = BTreeMap<String, i64>;

/// Makes the table in a new file. The first life does that before anything ends it. Later ones leave the file alone: this
/// connection would copy the log into it as it closes, and the engine would never meet the log of the life before.
pub(crate) fn prepare_sqlite(file: &Path) {
    if file.exists() {
        return;
    }
    rusqlite::Connection::open(file).unwrap().execute_batch(TABLE).unwrap();
}

pub(crate) fn count_sqlite(file: &Path) -> Counts {
    let connection = rusqlite::Connection::open(file).unwrap();
    let mut statement = connection.prepare(COUNTS).unwrap();
    let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

/// Makes the table in the database, if it is not there.
pub(crate) async fn prepare_postgres(url: &str) {
    // Two that start at once may both try; the one that comes second finds it there.
    if let Ok((client, connection)) = tokio_postgres::connect(url, NoTls).await {
        tokio::spawn(connection);
        let _ = client.batch_execute(TABLE).await;
    }
}

pub(crate) async fn count_postgres(url: &str) -> Counts {
    let rows = connect(url).await.query(COUNTS, &[]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

async fn connect(url: &str) -> tokio_postgres::Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Effects that must stand: those of steps, and those of the runs of batches with so many items.
#[derive(Default)]
pub(crate) struct Due {
    pub(crate) steps: Vec<String>,
    pub(crate) batches: Vec<String>,
    pub(crate) items: u64,
}

impl Due {
    /// They do, each once, and no other more than once.
    pub(crate) fn expect(self, counts: Counts) {
        let (runs, steps): (Counts, Counts) =
            counts.into_iter().partition(|(name, _)| name.contains(".."));
        expect_once(&steps, self.steps.into_iter());
        expect_runs(&runs, self.batches.into_iter(), self.items);
    }
}

/// Each of these effects stands exactly once, and no other more than once.
pub(crate) fn expect_once(counts: &Counts, names: impl Iterator<Item = String>) {
    for name in names {
        assert_eq!(counts.get(&name), Some(&1), "the effect {name}");
    }
    assert!(counts.values().all(|count| *count == 1), "an effect stands twice: {counts:?}");
}
