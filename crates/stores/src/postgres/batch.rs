//! Batch steps: taken up, committed run by run, and read.

use sprag_engine::batch::store::{
    BatchOutcome, BatchPlace, BatchPoint, BatchView, BatchWrite, Batches, JournalRow,
};
use sprag_engine::ids::{AttemptKey, EngineNo};
use sprag_engine::store::{Answer, EndOutcome, ending_code};
use sprag_kernel::JobState;
use sprag_kernel::decide::rows::LeaseId;
use sprag_lanes::{Counts, Resume};
use tokio_postgres::Row;

use super::PostgresStore;
use super::legs::attempts_now;
use super::pools::Pools;
use super::rows::{get, time, unsigned, unsigned_long};
use super::slice::{code, signed};
use crate::repeat;

impl Batches for PostgresStore {
    async fn open_batch(
        &self,
        engine: EngineNo,
        key: AttemptKey,
        lease_id: LeaseId,
    ) -> Answer<Option<BatchPoint>> {
        open(&self.pools, engine, &key, lease_id).await
    }

    async fn commit_batch(&self, engine: EngineNo, write: BatchWrite) -> Answer<BatchOutcome> {
        commit(&self.pools, engine, &write).await
    }

    async fn batch(&self, place: BatchPlace) -> Answer<Option<BatchView>> {
        batch(&self.pools, place).await
    }

    async fn batch_journal(
        &self,
        place: BatchPlace,
        from_seq: u64,
        limit: u32,
    ) -> Answer<Vec<JournalRow>> {
        journal(&self.pools, place, from_seq, limit).await
    }
}

fn point(row: &Row) -> Answer<BatchPoint> {
    let counts = Counts {
        success: unsigned_long(row, 1)?,
        skip: unsigned_long(row, 2)?,
        fail: unsigned_long(row, 3)?,
        cancel: unsigned_long(row, 4)?,
    };
    let hash: &[u8] = get(row, 6)?;
    let resume = Resume {
        cursor: unsigned_long(row, 0)?,
        counts,
        outcome_hash: get::<i64>(row, 5)?.cast_unsigned(),
        // One that is damaged is no input's: the batch is refused as changed.
        input_hash: hash.try_into().unwrap_or_default(),
    };
    Ok(BatchPoint { resume, first_failed: time(row, 7)?, out_bytes: unsigned_long(row, 8)? })
}

async fn open(
    pools: &Pools,
    engine: EngineNo,
    key: &AttemptKey,
    lease_id: LeaseId,
) -> Answer<Option<BatchPoint>> {
    let rows = pools
        .run(
            include_str!("../../sql/postgres/open_batch.sql"),
            &[
                &engine.0,
                &pools.test_now(),
                &key.job_id.uuid(),
                &signed(key.step_index),
                &key.branch.cast_signed(),
                &signed(key.turn),
                &signed(key.attempt_no),
                &lease_id.0.cast_signed(),
            ],
        )
        .await?;
    if rows.is_empty() {
        pools.expect_alive(engine).await?;
    }
    rows.first().map(point).transpose()
}

async fn commit(pools: &Pools, engine: EngineNo, write: &BatchWrite) -> Answer<BatchOutcome> {
    let rows = run_commit(pools, engine, write).await?;
    if let Some(row) = rows.first() {
        return Ok(BatchOutcome::Committed { cancelling: get(row, 0)? });
    }
    pools.expect_alive(engine).await?;
    if !is_repeated(pools, write).await? {
        return Ok(BatchOutcome::Stale);
    }
    // Whether the job is being cancelled is told with the next commit.
    Ok(BatchOutcome::Committed { cancelling: false })
}

/// Whether this very write is committed already, its outcome lost: the cursor is behind it, and only this
/// attempt could have moved it there.
async fn is_repeated(pools: &Pools, write: &BatchWrite) -> Answer<bool> {
    if !write.repeats {
        return Ok(false);
    }
    if let Some(end) = &write.end {
        let now = attempts_now(pools, [&write.key].into_iter()).await?;
        let now = now.get(&write.key).copied();
        return Ok(repeat::ended(now, end) != EndOutcome::Stale);
    }
    let now = batch(pools, (&write.key).into()).await?;
    Ok(now.is_some_and(|now| repeat::batched(&now, write)))
}

async fn run_commit(pools: &Pools, engine: EngineNo, write: &BatchWrite) -> Answer<Vec<Row>> {
    let (key, to, end) = (&write.key, &write.to, write.end.as_ref());
    let (counts, row) = (to.resume.counts, write.journal.as_ref());
    let error = end.and_then(|end| end.error.as_ref());
    let ending = end.map(|end| {
        i16::try_from(ending_code(end.ending.kind)).expect("codes of endings are below 100")
    });
    let content = end.and_then(|end| end.ending.content.as_ref());
    pools
        .run(
            include_str!("../../sql/postgres/commit_batch.sql"),
            &[
                &engine.0,
                &pools.test_now(),
                &key.job_id.uuid(),
                &signed(key.step_index),
                &key.branch.cast_signed(),
                &signed(key.turn),
                &signed(key.attempt_no),
                &write.lease_id.0.cast_signed(),
                &write.from.cast_signed(),
                &to.resume.cursor.cast_signed(),
                &counts.success.cast_signed(),
                &counts.skip.cast_signed(),
                &counts.fail.cast_signed(),
                &counts.cancel.cast_signed(),
                &to.first_failed.map(u64::cast_signed),
                &write.total.map(u64::cast_signed),
                &to.out_bytes.cast_signed(),
                &to.resume.outcome_hash.cast_signed(),
                &to.resume.input_hash.as_slice(),
                &row.map(|row| row.seqs.cast_signed()),
                &row.map(|row| row.outcomes.as_str()),
                &row.map(|row| row.notes.as_str()),
                &row.map(|row| row.outputs.as_str()),
                &code(JobState::Cancelling),
                &end.map(|end| end.version.cast_signed()),
                &ending,
                &end.map(|end| end.ending.guid.get().cast_signed()),
                &content.map(|hash| hash.as_bytes().as_slice()),
                &end.map(|end| end.ledger.get().cast_signed()),
                &end.and_then(|end| end.output.as_deref()),
                &error.map(|error| error.code.as_str()),
                &error.map(|error| error.message.as_str()),
            ],
        )
        .await
}

async fn batch(pools: &Pools, place: BatchPlace) -> Answer<Option<BatchView>> {
    let sql = "SELECT cursor, success, skip, fail, cancel, outcome_hash, input_hash, first_failed,
            out_bytes, total, attempt_no, lease_id, updated_at, opened FROM sprag.batch
        WHERE job_id = $1 AND step_index = $2 AND branch = $3 AND turn = $4";
    let BatchPlace { job_id, step_index, branch, turn } = place;
    let (step_index, branch, turn) = (signed(step_index), branch.cast_signed(), signed(turn));
    let rows = pools.read(sql, &[&job_id.uuid(), &step_index, &branch, &turn]).await?;
    let view = |row: &Row| {
        Ok(BatchView {
            point: point(row)?,
            total: time(row, 9)?,
            attempt_no: unsigned(row, 10)?,
            lease_id: LeaseId(get::<i64>(row, 11)?.cast_unsigned()),
            updated_at: unsigned_long(row, 12)?,
            opened: unsigned_long(row, 13)?,
        })
    };
    rows.first().map(view).transpose()
}

async fn journal(
    pools: &Pools,
    place: BatchPlace,
    from_seq: u64,
    limit: u32,
) -> Answer<Vec<JournalRow>> {
    let sql = include_str!("../../sql/postgres/batch_journal.sql");
    let BatchPlace { job_id, step_index, branch, turn } = place;
    let (step_index, branch, turn) = (signed(step_index), branch.cast_signed(), signed(turn));
    let (from_seq, limit) = (from_seq.cast_signed(), i64::from(limit));
    let rows =
        pools.read(sql, &[&job_id.uuid(), &step_index, &branch, &turn, &from_seq, &limit]).await?;
    let read = |row: &Row| {
        Ok(JournalRow {
            first_seq: unsigned_long(row, 0)?,
            seqs: unsigned_long(row, 1)?,
            outcomes: get(row, 2)?,
            notes: get(row, 3)?,
            outputs: get(row, 4)?,
        })
    };
    rows.iter().map(read).collect()
}
