//! Child jobs: created in the transaction that writes the directive which hands work to them, and heard of by
//! the attempt that waits for them in the one that closes them. Locks go from the child to its parent, never
//! back: a cancel goes down one transaction at a time.

use std::slice;

use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place};
use sprag_engine::plan;
use sprag_engine::store::{
    Answer, ChildEnd, DispatchOutcome, DispatchWrite, FinishOutcome, FinishWrite, NewChild,
    StoreError, Tells,
};
use sprag_kernel::JobState;
use sprag_kernel::machine::State;
use sprag_kernel::retry::Millis;
use tokio_postgres::Transaction;
use uuid::Uuid;

use super::amend::{LOOKS, Locked, lock, write as amend_rows};
use super::failure::failed;
use super::pools::{Pools, begin, commit};
use super::read::attempt_error;
use super::rows::{HELD_WIDTH, get, held_row};
use super::slice::{signed, span};
use super::submit::Runner;
use super::{finish, graph, legs, limited, read};

/// Writes a directive and creates the child that it goes to.
pub(super) async fn dispatch(
    pools: &Pools,
    engine: EngineNo,
    write: &DispatchWrite,
    child: &NewChild,
) -> Answer<DispatchOutcome> {
    let mut client = pools.engine().await?;
    let tx = begin(&mut client).await?;
    let mut outcomes = [DispatchOutcome::Gone];
    let runner = Runner::Within(&tx, pools.test_now());
    if !legs::dispatch_slice(runner, engine, &[(0, write)], &mut outcomes).await? {
        return Ok(DispatchOutcome::Gone);
    }
    let mut answers = [None];
    let jobs = slice::from_ref(&child.job);
    limited::fill(&tx, pools.test_now(), (engine, jobs), &mut answers).await?;
    let [answer] = answers;
    let gone = || StoreError::Unavailable("a job went away while it was looked at".to_owned());
    let submitted = answer.ok_or_else(gone)?.map_err(StoreError::Refused)?;
    note_child(&tx, &write.key, submitted.job_id, child.timeout_ms)
        .await
        .map_err(|error| failed(&error))?;
    crash_point("postgres.dispatch.after_child");
    commit(tx).await.map_err(|error| failed(&error))?;
    Ok(outcomes[0])
}

async fn note_child(
    tx: &Transaction<'_>,
    key: &AttemptKey,
    child: JobId,
    timeout_ms: Option<Millis>,
) -> Result<u64, tokio_postgres::Error> {
    let sql = "UPDATE sprag.attempt SET child_id = $6, waits_until = acked_at + $7::bigint
        WHERE job_id = $1 AND step_index = $2 AND branch = $3 AND turn = $4 AND attempt_no = $5";
    let (step_index, branch) = (signed(key.step_index), key.branch.cast_signed());
    let (turn, attempt_no) = (signed(key.turn), signed(key.attempt_no));
    let (job_id, timeout) = (key.job_id.uuid(), timeout_ms.map(span));
    tx.execute(sql, &[&job_id, &step_index, &branch, &turn, &attempt_no, &child.uuid(), &timeout])
        .await
}

/// Steps 1 to 3 of a message of a child, and the telling if they close it.
pub(super) async fn finish(
    pools: &Pools,
    engine: EngineNo,
    write: &FinishWrite,
    tells: &Tells,
) -> Answer<FinishOutcome> {
    let mut client = pools.engine().await?;
    let tx = begin(&mut client).await?;
    let mut outcomes = [FinishOutcome::Gone];
    let (runner, slice) = (Runner::Within(&tx, pools.test_now()), vec![(0, write)]);
    if write.graph.is_some() {
        graph::finish_slice(runner, engine, &slice, &mut outcomes).await?;
    } else {
        finish::finish_slice(runner, engine, &slice, &mut outcomes).await?;
    }
    if let FinishOutcome::Done { job, .. } = outcomes[0]
        && job.is_terminal()
    {
        tell(&tx, pools.test_now(), (engine, tells), (write.key.job_id, job)).await?;
    }
    commit(tx).await.map_err(|error| failed(&error))?;
    Ok(outcomes[0])
}

async fn tell(
    tx: &Transaction<'_>,
    test_now: Option<i64>,
    (engine, tells): (EngineNo, &Tells),
    (job_id, state): (JobId, JobState),
) -> Answer<()> {
    let places: Vec<_> = tells.results.iter().map(|(_, place)| (job_id, *place)).collect();
    let names = tells.results.iter().map(|(name, _)| name.clone());
    let results = names.zip(read::ends(Runner::Within(tx, test_now), &places).await?).collect();
    let sql = "SELECT error_code, error_message FROM sprag.job WHERE job_id = $1";
    let row = tx.query_one(sql, &[&job_id.uuid()]).await.map_err(|error| failed(&error))?;
    let error = attempt_error(get(&row, 0)?, get(&row, 1)?);
    let end = ChildEnd { job_id, state, error, results, max_bytes: tells.max_bytes };
    let waits = &tells.parent;
    for _ in 0..LOOKS {
        let locked = lock(tx, waits.job_id, Some(waits.place())).await;
        let row = match locked.map_err(|error| failed(&error))? {
            Locked::Unknown => return Ok(()),
            Locked::Moved => continue,
            Locked::Newest(row) => row,
        };
        let held = held_row(&row)?;
        let now = test_now.map_or_else(|| get(&row, HELD_WIDTH), Ok)?;
        let told = plan::child_ended(&held, waits, &end, now.cast_unsigned())
            .map_err(StoreError::Refused)?;
        if let (Some(amendment), _) = told {
            let written = amend_rows(tx, engine, (&held, &amendment), now).await;
            written.map_err(|error| failed(&error))?;
        }
        crash_point("postgres.finish.after_telling");
        return Ok(());
    }
    Err(StoreError::Unavailable(format!("the attempt that waits for {job_id} keeps moving")))
}

/// The children of a job, or of one of its steps, that nobody has asked to stop yet.
pub(super) async fn open(pools: &Pools, job_id: JobId, place: Option<Place>) -> Answer<Vec<JobId>> {
    let sql = "SELECT c.job_id FROM sprag.attempt a JOIN sprag.job c ON c.job_id = a.child_id
        WHERE a.job_id = $1 AND a.child_id IS NOT NULL AND c.state < $2
            AND ($3::integer IS NULL OR a.step_index = $3 AND a.branch = $4::bigint AND a.turn = $5::integer)";
    let cancelling = i16::from(JobState::Cancelling.code());
    let (step_index, turn) =
        (place.map(|at| signed(at.step_index)), place.map(|at| signed(at.turn)));
    let branch = place.map(|at| at.branch.cast_signed());
    let job_id = job_id.uuid();
    let rows = pools.run(sql, &[&job_id, &cancelling, &step_index, &branch, &turn]).await?;
    rows.iter().map(|row| get::<Uuid>(row, 0).map(JobId::from)).collect()
}
