//! Eras: what makes a key unique, however many there are.
//!
//! Keys without an order would be written all over an index of all keys, a page for each job. So the index begins with an
//! era, which is over when it has some thousand keys: new keys share the few pages of the newest one, however many
//! eras there were. Within an era the index refuses a second job with a key; whether an older one has the key is
//! told by [`Filters`], which are in memory and nearly always say no. Where one says perhaps, the era is looked up.
//!
//! The filter of an era is stored when the next one begins, and filters are read again when the file is opened, with
//! the keys of the newest era, which has none yet. Whoever adds keys to that has put its own number there: if it finds
//! another one, somebody else may have added some, and it reads what it does not know before it goes on. All of this
//! is in the transaction that writes the jobs. A key that is rolled back was noted too much, which does no harm; an era
//! that is rolled back was not begun, and may get keys from somebody else.

use std::cell::RefCell;

use rusqlite::{Connection, Row, params};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::JobId;
use sprag_engine::store::{Answer, Check, StoreError, Violation};

use super::filters::{Filters, Mark, is_of_kind, may_have};
use super::rows::failed;
use super::writer::Tx;

/// How many keys an era has.
pub(super) const KEYS: usize = 8_192;
/// The same in a test that is to see many eras.
pub(super) const FEW: usize = 4;

/// What one writer knows of the eras of its file.
pub(super) struct Eras {
    /// How many keys one has, if a slice does not bring more.
    keys: usize,
    /// What this writer puts in the newest one.
    writer: i64,
    known: RefCell<Known>,
}

struct Known {
    filters: Filters,
    /// Nothing if not all keys are known.
    newest: Option<Newest>,
    /// All keys of eras before this one are known, and they get no more.
    settled: i64,
}

/// The newest era, which has this writer's number.
#[derive(Clone, Copy)]
struct Newest {
    era: i64,
    /// How many keys were added to it.
    added: usize,
    /// Whether the transaction that began it, or took it over, is committed.
    is_committed: bool,
}

impl Eras {
    pub(super) fn of(keys: usize) -> Self {
        // The half of an id that is by chance.
        let writer = uuid::Uuid::now_v7().as_u64_pair().1.cast_signed();
        let known = Known { filters: Filters::of(keys), newest: None, settled: 0 };
        Self { keys, writer, known: RefCell::new(known) }
    }

    /// Learns what others have added, and returns the era that the keys of a slice go to: the newest one, or the next if
    /// that is full.
    pub(super) fn catch_up(&self, tx: &Tx<'_>) -> Answer<i64> {
        let known = &mut *self.known.borrow_mut();
        let sql = "SELECT era, writer FROM era ORDER BY era DESC LIMIT 1";
        let found = tx.find(sql, [], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (era, writer): (i64, i64) =
            found.ok_or_else(|| StoreError::Poison("the file has no era".to_owned()))?;
        // It stays unknown if something fails half-way.
        let mut newest = match known.newest.take() {
            Some(newest) if newest.era == era && writer == self.writer => newest,
            _ => self.learn(tx, known, era)?,
        };
        if newest.added >= self.keys {
            seal(tx, known, era)?;
            newest = Newest { era: era + 1, added: 0, is_committed: false };
            let row = params![newest.era, self.writer];
            tx.execute("INSERT INTO era (era, writer) VALUES (?1, ?2)", row)?;
            crash_point("eras.after_begin");
        }
        known.newest = Some(newest);
        Ok(newest.era)
    }

    /// The eras that may have a key.
    pub(super) fn may_have(&self, mark: Mark) -> Vec<i64> {
        self.known.borrow().filters.may_have(mark)
    }

    /// A key was added to the newest era.
    pub(super) fn added(&self, era: i64, mark: Mark) {
        let known = &mut *self.known.borrow_mut();
        known.filters.add(era, mark);
        if let Some(newest) = &mut known.newest {
            debug_assert_eq!(newest.era, era, "keys are added to the newest era");
            newest.added += 1;
        }
    }

    /// The transaction is committed.
    pub(super) fn committed(&self) {
        let known = &mut *self.known.borrow_mut();
        if let Some(newest) = &mut known.newest {
            newest.is_committed = true;
            known.settled = newest.era;
        }
    }

    /// The transaction, or a part of it, is rolled back.
    pub(super) fn rolled_back(&self) {
        let known = &mut *self.known.borrow_mut();
        known.newest = known.newest.filter(|newest| newest.is_committed);
    }

    /// Eras without a key are no more. They are deleted many at a time, since all filters are read again then.
    pub(super) fn forget_empty(&self, tx: &Tx<'_>) -> Answer<()> {
        if tx.execute(include_str!("../../sql/sqlite/forget_eras.sql"), [])? > 0 {
            let known = &mut *self.known.borrow_mut();
            known.filters.clear();
            (known.newest, known.settled) = (None, 0);
        }
        Ok(())
    }

    /// Reads what may have changed, and takes the newest era over.
    fn learn(&self, tx: &Tx<'_>, known: &mut Known, newest: i64) -> Answer<Newest> {
        // A user's work can roll back the transaction that began an era and commit another one in its place: what
        // was settled then is beyond what there is.
        let first = known.settled.min(newest);
        let eras = tx.all("SELECT era FROM era WHERE era >= ?1 ORDER BY era", [first], |row| {
            row.get(0).map_err(|error| failed(&error))
        })?;
        let mut added = 0;
        for era in eras {
            let filter =
                tx.find("SELECT filter FROM era WHERE era = ?1", [era], |row| row.get(0))?;
            let filter: Option<Vec<u8>> = filter.flatten();
            if filter.is_some_and(|packed| known.filters.unpack(era, &packed)) {
                continue;
            }
            let marks = marks(tx.connection, era).map_err(|error| failed(&error))?;
            for mark in &marks {
                known.filters.add(era, *mark);
            }
            added = marks.len();
            if era < newest {
                // It has none, or one of a binary with another kind of filter.
                seal(tx, known, era)?;
            }
        }
        tx.execute("UPDATE era SET writer = ?2 WHERE era = ?1", params![newest, self.writer])?;
        crash_point("eras.after_writer");
        Ok(Newest { era: newest, added, is_committed: false })
    }
}

/// Keys that the filter of their era denies: a second job with such a key would be written. A filter of a kind that this
/// binary does not know is not asked by it, but made anew.
pub(super) fn denied(tx: &Tx<'_>) -> Answer<Check> {
    let read = || -> rusqlite::Result<Vec<Violation>> {
        let mut eras =
            tx.connection.prepare("SELECT era, filter FROM era WHERE filter IS NOT NULL")?;
        let mut eras = eras.query([])?;
        let mut violations = Vec::new();
        while let Some(row) = eras.next()? {
            let (era, filter) = (row.get(0)?, row.get_ref(1)?.as_bytes()?);
            if [KEYS, FEW].into_iter().any(|keys| is_of_kind(filter, keys)) {
                violations.extend(denied_by(tx.connection, era, filter)?);
            }
        }
        Ok(violations)
    };
    let violations = read().map_err(|error| failed(&error))?;
    Ok(Check { name: DENIED.0.to_owned(), violations })
}

/// The name of the check, and the query for the keys of an era with their jobs.
const DENIED: (&str, &str) = (
    "40_key_that_its_filter_denies",
    include_str!("../../sql/audit/40_key_that_its_filter_denies.sql"),
);

fn denied_by(connection: &Connection, era: i64, filter: &[u8]) -> rusqlite::Result<Vec<Violation>> {
    let mut keys = connection.prepare_cached(DENIED.1)?;
    let mut rows = keys.query([era])?;
    let mut denied = Vec::new();
    while let Some(row) = rows.next()? {
        if may_have(filter, mark(row)?) {
            continue;
        }
        let key = String::from_utf8_lossy(row.get_ref(1)?.as_bytes()?).into_owned();
        let detail = format!("era {era}, key {key}");
        denied.push(Violation::of_job(JobId::from_bytes(row.get(2)?), detail));
    }
    Ok(denied)
}

/// Divides the keys of a store that came from somewhere else into eras.
pub(crate) fn divide(connection: &Connection) -> rusqlite::Result<()> {
    divide_by(connection, KEYS)
}

fn divide_by(connection: &Connection, keys: usize) -> rusqlite::Result<()> {
    for sql in [
        include_str!("../../sql/sqlite/begin_eras_of_jobs.sql"),
        include_str!("../../sql/sqlite/begin_eras_of_retired.sql"),
    ] {
        connection.execute(sql, [keys])?;
    }
    connection.execute_batch(
        "DELETE FROM era;
         INSERT INTO era (era, writer) SELECT era, 0
            FROM (SELECT 0 AS era UNION SELECT era FROM job UNION SELECT era FROM retired)",
    )?;
    // Here, where nobody waits, and not in the first transaction of an engine.
    let mut older =
        connection.prepare("SELECT era FROM era WHERE era < (SELECT max(era) FROM era)")?;
    let older: Vec<i64> =
        older.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    for era in older {
        let mut filters = Filters::of(keys);
        for mark in marks(connection, era)? {
            filters.add(era, mark);
        }
        let row = params![era, filters.packed(era)];
        connection.execute("UPDATE era SET filter = ?2 WHERE era = ?1", row)?;
    }
    Ok(())
}

/// The keys of an era.
fn marks(connection: &Connection, era: i64) -> rusqlite::Result<Vec<Mark>> {
    let mut keys = connection.prepare_cached(include_str!("../../sql/sqlite/keys_of_era.sql"))?;
    keys.query_map([era], mark)?.collect()
}

/// The mark of a tenant and a key, the first two columns. Bytes are enough: a key that is no text stops nobody.
fn mark(row: &Row<'_>) -> rusqlite::Result<Mark> {
    Ok(Mark::of(row.get_ref(0)?.as_bytes()?, row.get_ref(1)?.as_bytes()?))
}

/// Stores the filter of an era that gets no more keys.
fn seal(tx: &Tx<'_>, known: &mut Known, era: i64) -> Answer<()> {
    let filter = known.filters.packed(era);
    tx.execute("UPDATE era SET filter = ?2 WHERE era = ?1", params![era, filter])?;
    crash_point("eras.after_filter");
    Ok(())
}

#[cfg(test)]
mod tests {
    use sprag_kernel::{JobState, State as _};

    use super::*;
    use crate::sqlite::{Durability, open_file};

    #[test]
    fn keys_that_came_together_are_divided_into_eras() {
        let folder = tempfile::tempdir().unwrap();
        let file = open_file(&folder.path().join("s.db"), Durability::Process).unwrap();
        let (queued, succeeded) = (JobState::Queued.code(), JobState::Succeeded.code());
        let rows = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 11)";
        file.execute_batch(&format!(
            "INSERT INTO protocol VALUES ('p', '', 0);
             INSERT INTO job (job_id, state, version, semaphore, initial, current_step, steps, created_at,
                updated_at, tenant_id, request_type, protocol_id, dedup_key, idempotency_hash, mode, lane,
                routing_key, schema_version, input_ref, output_ref, payload)
             {rows} SELECT CAST(n + 50 AS blob), {queued}, 1, 1, 1, 0, 1, 0, 0, 't', 'T', 'p', 'k:' || n, x'', 0, 0,
                'r', '1', '', '', '' FROM n;
             INSERT INTO retired (tenant_id, dedup_key, idempotency_hash, job_id, state, retired_at)
             {rows} SELECT 't', 'r:' || n, x'', CAST(n + 20 AS blob), {succeeded}, 0 FROM n WHERE n < 4",
        ))
        .unwrap();
        let count = |table| -> Vec<(i64, i64)> {
            let sql = format!("SELECT era, count(*) FROM {table} GROUP BY era ORDER BY era");
            let mut statement = file.prepare(&sql).unwrap();
            let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
            rows.collect::<Result<_, _>>().unwrap()
        };
        // Twice, as by a move that was interrupted at its end.
        for _ in 0..2 {
            divide_by(&file, 4).unwrap();
            assert_eq!(count("job"), [(0, 4), (1, 4), (2, 3)]);
            assert_eq!(count("retired"), [(3, 3)]);
            assert_eq!(count("era"), [(0, 1), (1, 1), (2, 1), (3, 1)]);
            assert_eq!(count("era WHERE filter IS NULL"), [(3, 1)], "the newest has none yet");
            assert_eq!(denied(&Tx::reading(&file, 0)).unwrap().violations, []);
        }
        file.execute_batch("DELETE FROM job; DELETE FROM retired").unwrap();
        divide_by(&file, 4).unwrap();
        assert_eq!(count("era"), [(0, 1)], "a store has one from the first");
    }
}
