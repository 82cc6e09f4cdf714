//! Batch steps: taken up, committed run by run, and read.

use std::time::Duration;

use rusqlite::{Row, params};
use sprag_engine::batch::store::{
    BatchOutcome, BatchPlace, BatchPoint, BatchProgress, BatchView, BatchWorked, BatchWrite,
    Batches, JournalRow,
};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId};
use sprag_engine::store::{Answer, EndOutcome, ending_code};
use sprag_kernel::JobState;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::keys::Hash;
use sprag_lanes::{Counts, Resume};

use super::SqliteStore;
use super::engines::expect_alive;
use super::legs::{attempt_now, job_state};
use super::rows::{failed, key};
use super::work::{Done, SqliteWork, ended_itself, within};
use super::writer::Tx;
use crate::{MAX_BATCHES, repeat};

impl Batches for SqliteStore {
    async fn open_batch(
        &self,
        engine: EngineNo,
        key: AttemptKey,
        lease_id: LeaseId,
    ) -> Answer<Option<BatchPoint>> {
        self.writer.run(move |tx| open(tx, engine, &key, lease_id)).await
    }

    async fn commit_batch(&self, engine: EngineNo, write: BatchWrite) -> Answer<BatchOutcome> {
        self.writer.run(move |tx| commit(tx, engine, &write)).await
    }

    async fn batch(&self, place: BatchPlace) -> Answer<Option<BatchView>> {
        self.readers.run(move |tx| batch(tx, place)).await
    }

    async fn batch_journal(
        &self,
        place: BatchPlace,
        from_seq: u64,
        limit: u32,
    ) -> Answer<Vec<JournalRow>> {
        self.readers.run(move |tx| journal(tx, place, from_seq, limit)).await
    }
}

/// The columns of a [`BatchPoint`], in the order in which they are read.
const POINT: &str =
    "cursor, success, skip, fail, cancel, outcome_hash, input_hash, first_failed, out_bytes";

fn point(row: &Row<'_>) -> rusqlite::Result<BatchPoint> {
    let counts =
        Counts { success: row.get(1)?, skip: row.get(2)?, fail: row.get(3)?, cancel: row.get(4)? };
    let outcome_hash = row.get::<_, i64>(5)?.cast_unsigned();
    let resume = Resume { cursor: row.get(0)?, counts, outcome_hash, input_hash: row.get(6)? };
    Ok(BatchPoint { resume, first_failed: row.get(7)?, out_bytes: row.get(8)? })
}

fn open(
    tx: &Tx<'_>,
    engine: EngineNo,
    key: &AttemptKey,
    lease_id: LeaseId,
) -> Answer<Option<BatchPoint>> {
    expect_alive(tx, engine)?;
    let opened = tx.find(
        include_str!("../../sql/sqlite/open_batch.sql"),
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            lease_id.0.cast_signed(),
            tx.now,
        ],
        point,
    );
    crash_point("open_batch.after_row");
    opened
}

fn commit(tx: &Tx<'_>, engine: EngineNo, write: &BatchWrite) -> Answer<BatchOutcome> {
    expect_alive(tx, engine)?;
    if is_written(tx, engine, write)? || (write.repeats && is_committed(tx, write)?) {
        return committed(tx, write);
    }
    Ok(BatchOutcome::Stale)
}

/// Commits, and runs work behind it.
pub(super) fn commit_with(
    tx: &Tx<'_>,
    engine: EngineNo,
    write: &BatchWrite,
    (work, limit): (&SqliteWork, Duration),
) -> Answer<BatchWorked> {
    expect_alive(tx, engine)?;
    // A repeat is recognised before anything is written: then the work is committed, too.
    if write.repeats && is_committed(tx, write)? {
        return committed(tx, write).map(BatchWorked::from);
    }
    if !is_written(tx, engine, write)? {
        return Ok(BatchWorked::Stale);
    }
    match within(tx, work, limit)? {
        Done::Badly(failure) => Ok(BatchWorked::Failed(failure)),
        Done::Ended if !is_committed(tx, write)? => Ok(BatchWorked::Failed(ended_itself())),
        Done::Well | Done::Ended => committed(tx, write).map(BatchWorked::from),
    }
}

/// Runs the statement; says whether its guard held.
fn is_written(tx: &Tx<'_>, engine: EngineNo, write: &BatchWrite) -> Answer<bool> {
    let before = tx.connection.total_changes();
    insert_batch_op(tx, engine, write)?;
    crash_point("commit_batch.after_statement");
    Ok(tx.connection.total_changes() != before)
}

fn committed(tx: &Tx<'_>, write: &BatchWrite) -> Answer<BatchOutcome> {
    let cancelling = job_state(tx, write.key.job_id)? == Some(JobState::Cancelling);
    Ok(BatchOutcome::Committed { cancelling })
}

/// Whether this very write stands: the cursor is behind it, and only this attempt could have moved it there.
fn is_committed(tx: &Tx<'_>, write: &BatchWrite) -> Answer<bool> {
    if let Some(end) = &write.end {
        return Ok(repeat::ended(attempt_now(tx, &write.key)?, end) != EndOutcome::Stale);
    }
    let now = batch(tx, (&write.key).into())?;
    Ok(now.is_some_and(|now| repeat::batched(&now, write)))
}

fn insert_batch_op(tx: &Tx<'_>, engine: EngineNo, write: &BatchWrite) -> Answer<usize> {
    let (key, to, end) = (&write.key, &write.to, write.end.as_ref());
    let (counts, row) = (to.resume.counts, write.journal.as_ref());
    let error = end.and_then(|end| end.error.as_ref());
    tx.execute(
        include_str!("../../sql/sqlite/commit_batch.sql"),
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            write.lease_id.0.cast_signed(),
            write.from,
            tx.now,
            to.resume.cursor,
            counts.success,
            counts.skip,
            counts.fail,
            counts.cancel,
            to.first_failed,
            write.total,
            to.out_bytes,
            to.resume.outcome_hash.cast_signed(),
            to.resume.input_hash,
            row.map(|row| row.seqs),
            row.map(|row| &row.outcomes),
            row.map(|row| &row.notes),
            row.map(|row| &row.outputs),
            end.map(|end| end.version),
            end.map(|end| ending_code(end.ending.kind)),
            end.map(|end| end.ending.guid.get()),
            end.and_then(|end| end.ending.content.as_ref().map(Hash::as_bytes)),
            end.map(|end| end.ledger.get()),
            engine.0,
            end.and_then(|end| end.output.as_ref()),
            error.map(|error| &error.code),
            error.map(|error| &error.message),
        ],
    )
}

fn batch(tx: &Tx<'_>, place: BatchPlace) -> Answer<Option<BatchView>> {
    let sql = format!(
        "SELECT {POINT}, total, attempt_no, lease_id, updated_at, opened FROM batch
         WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4"
    );
    let BatchPlace { job_id, step_index, branch, turn } = place;
    let at = params![job_id.as_bytes(), step_index, branch.cast_signed(), turn];
    tx.all(&sql, at, |row| view(row).map_err(|error| failed(&error))).map(|mut found| found.pop())
}

fn view(row: &Row<'_>) -> rusqlite::Result<BatchView> {
    Ok(BatchView {
        point: point(row)?,
        total: row.get(9)?,
        attempt_no: row.get(10)?,
        lease_id: LeaseId(row.get(11)?),
        updated_at: row.get(12)?,
        opened: row.get(13)?,
    })
}

/// How far the batches of a job are, each with the attempt that has it; not more than can be told.
pub(super) fn progress(tx: &Tx<'_>, job_id: JobId) -> Answer<Vec<(AttemptKey, BatchProgress)>> {
    let sql =
        "SELECT job_id, step_index, branch, turn, attempt_no, cursor, total, success, skip, fail,
            cancel, updated_at, (SELECT count(*) FROM batch_journal n WHERE n.job_id = b.job_id
                AND n.step_index = b.step_index AND n.branch = b.branch AND n.turn = b.turn)
        FROM batch b WHERE job_id = ?1 ORDER BY step_index, branch, turn LIMIT ?2";
    tx.all(sql, params![job_id.as_bytes(), MAX_BATCHES], |row| {
        let progress = || -> rusqlite::Result<BatchProgress> {
            Ok(BatchProgress {
                cursor: row.get(5)?,
                total: row.get(6)?,
                counts: Counts {
                    success: row.get(7)?,
                    skip: row.get(8)?,
                    fail: row.get(9)?,
                    cancel: row.get(10)?,
                },
                commits: row.get(12)?,
                moved_at: row.get(11)?,
            })
        };
        Ok((key(row)?, progress().map_err(|error| failed(&error))?))
    })
}

fn journal(tx: &Tx<'_>, place: BatchPlace, from_seq: u64, limit: u32) -> Answer<Vec<JournalRow>> {
    let BatchPlace { job_id, step_index, branch, turn } = place;
    tx.all(
        include_str!("../../sql/sqlite/batch_journal.sql"),
        params![job_id.as_bytes(), step_index, branch.cast_signed(), turn, from_seq, limit],
        |row| {
            let read = || -> rusqlite::Result<JournalRow> {
                Ok(JournalRow {
                    first_seq: row.get(0)?,
                    seqs: row.get(1)?,
                    outcomes: row.get(2)?,
                    notes: row.get(3)?,
                    outputs: row.get(4)?,
                })
            };
            read().map_err(|error| failed(&error))
        },
    )
}
