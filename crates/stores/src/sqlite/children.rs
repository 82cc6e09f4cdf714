//! Child jobs: created with the directive that hands work to them, and heard of by the attempt that waits for
//! them with their close. The writer's transaction holds both.

use rusqlite::params;
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place};
use sprag_engine::plan;
use sprag_engine::store::{Answer, ChildEnd, Decide, NewChild, StoreError, Tells};
use sprag_kernel::JobState;

use super::amend::amend;
use super::read::{attempt_error, ends};
use super::rows::failed;
use super::submit::submit_one;
use super::writer::Tx;

/// Creates the child of an attempt whose directive was just written.
pub(super) fn begin(
    tx: &Tx<'_>,
    engine: EngineNo,
    key: &AttemptKey,
    child: &NewChild,
) -> Answer<()> {
    let submitted = submit_one(tx, engine, &child.job)?.map_err(StoreError::Refused)?;
    tx.execute(
        "UPDATE attempt SET child_id = ?6, waits_until = acked_at + ?7 WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3
             AND turn = ?4 AND attempt_no = ?5",
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            submitted.job_id.as_bytes(),
            child.timeout_ms.map(|ms| i64::try_from(ms).unwrap_or(i64::MAX / 2)),
        ],
    )?;
    crash_point("dispatch.after_child");
    Ok(())
}

/// A child was just closed: the attempt that waits for it hears how.
pub(super) fn tell(
    tx: &Tx<'_>,
    engine: EngineNo,
    (job_id, state): (JobId, JobState),
    tells: &Tells,
) -> Answer<()> {
    let places: Vec<_> = tells.results.iter().map(|(_, place)| (job_id, *place)).collect();
    let names = tells.results.iter().map(|(name, _)| name.clone());
    let results = names.zip(ends(tx, &places)?).collect();
    let sql = "SELECT error_code, error_message FROM job WHERE job_id = ?1";
    let error = tx.all(sql, [job_id.as_bytes()], |row| {
        let text = |column| row.get(column).map_err(|error| failed(&error));
        Ok(attempt_error(text(0)?, text(1)?))
    })?;
    let error = error.into_iter().next().flatten();
    let end = ChildEnd { job_id, state, error, results, max_bytes: tells.max_bytes };
    let waits = tells.parent;
    let mut decide: Decide<()> = Box::new(move |held, now| {
        plan::child_ended(held, &waits, &end, now).map(|(amendment, _)| (amendment, ()))
    });
    let told = amend(tx, engine, (waits.job_id, Some(waits.place())), &mut decide)?;
    told.transpose().map_err(StoreError::Refused)?;
    crash_point("finish.after_telling");
    Ok(())
}

/// The children of a job, or of one of its steps, that nobody has asked to stop yet.
pub(super) fn open(tx: &Tx<'_>, job_id: JobId, place: Option<Place>) -> Answer<Vec<JobId>> {
    let sql = "SELECT c.job_id FROM attempt a JOIN job c ON c.job_id = a.child_id
        WHERE a.job_id = ?1 AND a.child_id IS NOT NULL AND c.state < ?2
            AND (?3 IS NULL OR a.step_index = ?3 AND a.branch = ?4 AND a.turn = ?5)";
    let cancelling = sprag_kernel::machine::State::code(JobState::Cancelling);
    let (step_index, turn) = (place.map(|at| at.step_index), place.map(|at| at.turn));
    let branch = place.map(|at| at.branch.cast_signed());
    tx.all(sql, params![job_id.as_bytes(), cancelling, step_index, branch, turn], |row| {
        row.get(0).map(JobId::from_bytes).map_err(|error| failed(&error))
    })
}
