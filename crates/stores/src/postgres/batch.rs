//! Batch steps: taken up, committed run by run, and read.

use std::time::Duration;

use sprag_engine::batch::store::{
    BatchOutcome, BatchPlace, BatchPoint, BatchProgress, BatchView, BatchWorked, BatchWrite,
    Batches, JournalRow,
};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId};
use sprag_engine::store::{Answer, EndOutcome, ending_code};
use sprag_kernel::JobState;
use sprag_kernel::decide::rows::LeaseId;
use sprag_lanes::{Counts, Resume};
use tokio_postgres::Row;

use super::PostgresStore;
use super::failure::failed;
use super::legs::{attempts_now, cancelling};
use super::pools::{Pools, begin, commit as commit_transaction};
use super::rows::{get, key, time, unsigned, unsigned_long};
use super::slice::{code, signed};
use super::submit::Runner;
use super::work::{Fault, PostgresWork, prepare, rolled_back, run};
use crate::{MAX_BATCHES, repeat};

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
    let rows = run_commit(Runner::Alone(pools), engine, write).await?;
    match rows.first() {
        Some(row) => Ok(BatchOutcome::Committed { cancelling: get(row, 0)? }),
        None => repeated(pools, engine, write).await,
    }
}

/// Commits with work behind it, in one transaction. A lost race is repeated by the caller, like a lost answer.
pub(super) async fn commit_with(
    pools: &Pools,
    engine: EngineNo,
    write: &BatchWrite,
    (work, limit): (&PostgresWork, Duration),
) -> Answer<BatchWorked> {
    let mut client = pools.work().await?;
    let tx = begin(&mut client).await?;
    let rows = run_commit(Runner::Within(&tx, pools.test_now()), engine, write).await?;
    let Some(row) = rows.first() else {
        drop(tx);
        drop(client);
        return repeated(pools, engine, write).await.map(BatchWorked::from);
    };
    crash_point("postgres.commit_batch.after_statement");
    let cancelling = get(row, 0)?;
    prepare(&tx, limit).await.map_err(|error| failed(&error))?;
    match run(work, &tx, limit).await {
        Ok(()) => {
            crash_point("postgres.commit_batch.after_work");
            commit_transaction(tx).await.map_err(|error| failed(&error))?;
            Ok(BatchWorked::Committed { cancelling })
        }
        Err(Fault::Lost(error)) => Err(failed(&error)),
        Err(Fault::Failed(failure)) => Ok(BatchWorked::Failed(failure)),
        Err(Fault::Ended) => {
            drop(tx);
            drop(client);
            let is_committed = is_committed(pools, write).await?;
            let committed = is_committed.then_some(BatchWorked::Committed { cancelling });
            Ok(committed.unwrap_or_else(|| BatchWorked::Failed(rolled_back())))
        }
    }
}

/// The guard did not hold: perhaps because this very write is committed already, its outcome lost.
async fn repeated(pools: &Pools, engine: EngineNo, write: &BatchWrite) -> Answer<BatchOutcome> {
    pools.expect_alive(engine).await?;
    if !write.repeats || !is_committed(pools, write).await? {
        return Ok(BatchOutcome::Stale);
    }
    let cancelling = !cancelling(pools, &[write.key.job_id]).await?.is_empty();
    Ok(BatchOutcome::Committed { cancelling })
}

/// Whether this very write stands: the cursor is behind it, and only this attempt could have moved it there.
async fn is_committed(pools: &Pools, write: &BatchWrite) -> Answer<bool> {
    if let Some(end) = &write.end {
        let now = attempts_now(pools, [&write.key].into_iter()).await?;
        let now = now.get(&write.key).copied();
        return Ok(repeat::ended(now, end) != EndOutcome::Stale);
    }
    let now = batch(pools, (&write.key).into()).await?;
    Ok(now.is_some_and(|now| repeat::batched(&now, write)))
}

async fn run_commit(runner: Runner<'_>, engine: EngineNo, write: &BatchWrite) -> Answer<Vec<Row>> {
    let (key, to, end) = (&write.key, &write.to, write.end.as_ref());
    let (counts, row) = (to.resume.counts, write.journal.as_ref());
    let error = end.and_then(|end| end.error.as_ref());
    let ending = end.map(|end| {
        i16::try_from(ending_code(end.ending.kind)).expect("codes of endings are below 100")
    });
    let content = end.and_then(|end| end.ending.content.as_ref());
    runner
        .run(
            include_str!("../../sql/postgres/commit_batch.sql"),
            &[
                &engine.0,
                &runner.test_now(),
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

/// How far the batches of a job are, each with the attempt that has it; not more than can be told.
pub(super) async fn progress(
    pools: &Pools,
    job_id: JobId,
) -> Answer<Vec<(AttemptKey, BatchProgress)>> {
    let sql = "SELECT job_id, step_index, branch, turn, attempt_no, cursor, total, success, skip, fail,
            cancel, updated_at, (SELECT count(*) FROM sprag.batch_journal n WHERE n.job_id = b.job_id
                AND n.step_index = b.step_index AND n.branch = b.branch AND n.turn = b.turn)
        FROM sprag.batch b WHERE job_id = $1 ORDER BY step_index, branch, turn LIMIT $2";
    let rows = pools.read(sql, &[&job_id.uuid(), &MAX_BATCHES]).await?;
    let progress = |row: &Row| {
        let batch = BatchProgress {
            cursor: unsigned_long(row, 5)?,
            total: time(row, 6)?,
            counts: Counts {
                success: unsigned_long(row, 7)?,
                skip: unsigned_long(row, 8)?,
                fail: unsigned_long(row, 9)?,
                cancel: unsigned_long(row, 10)?,
            },
            commits: unsigned_long(row, 12)?,
            moved_at: unsigned_long(row, 11)?,
        };
        Ok((key(row)?, batch))
    };
    rows.iter().map(progress).collect()
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
