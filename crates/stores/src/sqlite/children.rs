//! Child jobs: created with the directive that hands work to them, and heard of by the attempt that waits for
//! them with their close. The writer's transaction holds both.

use rusqlite::params;
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId};
use sprag_engine::plan;
use sprag_engine::store::{Answer, ChildEnd, Decide, NewJob, StoreError, Tells};
use sprag_kernel::JobState;

use super::amend::amend;
use super::read::{attempt_error, ends};
use super::rows::failed;
use super::submit::submit_one;
use super::writer::Tx;

/// Creates the child of an attempt whose directive was just written.
pub(super) fn begin(tx: &Tx<'_>, engine: EngineNo, key: &AttemptKey, child: &NewJob) -> Answer<()> {
    let submitted = submit_one(tx, engine, child)?.map_err(StoreError::Refused)?;
    tx.execute(
        "UPDATE attempt SET child_id = ?6 WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3
             AND turn = ?4 AND attempt_no = ?5",
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            submitted.job_id.as_bytes(),
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
    let end = ChildEnd { job_id, state, error, results };
    let waits = tells.parent;
    let mut decide: Decide<()> = Box::new(move |held, _now| {
        plan::child_ended(held, &waits, &end).map(|(amendment, _)| (amendment, ()))
    });
    let told = amend(tx, engine, (waits.job_id, Some(waits.place())), &mut decide)?;
    told.transpose().map_err(StoreError::Refused)?;
    crash_point("finish.after_telling");
    Ok(())
}

/// The children of a job that nobody has asked to stop yet.
pub(super) fn open(tx: &Tx<'_>, job_id: JobId) -> Answer<Vec<JobId>> {
    let sql = "SELECT c.job_id FROM attempt a JOIN job c ON c.job_id = a.child_id
        WHERE a.job_id = ?1 AND a.child_id IS NOT NULL AND c.state < ?2";
    let cancelling = sprag_kernel::machine::State::code(JobState::Cancelling);
    tx.all(sql, params![job_id.as_bytes(), cancelling], |row| {
        row.get(0).map(JobId::from_bytes).map_err(|error| failed(&error))
    })
}
