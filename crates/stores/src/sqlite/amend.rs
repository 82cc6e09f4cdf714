//! Decisions under the rows' locks. The writer's transaction is the lock.

use rusqlite::params;
use sprag_engine::crash::crash_point;
use sprag_engine::graph::CONTROL;
use sprag_engine::ids::{EngineNo, JobId, Place};
use sprag_engine::store::{Amendment, Answer, Decide, Held, Timer, ending_code};
use sprag_kernel::OutboxState;
use sprag_kernel::Refusal;
use sprag_kernel::keys::Hash;
use sprag_kernel::machine::State;

use super::engines::expect_alive;
use super::legs::event;
use super::rows::{HELD_COLUMNS, held};
use super::writer::Tx;
use crate::AGEING_MS;

pub(super) fn amend<T>(
    tx: &Tx<'_>,
    engine: EngineNo,
    (job_id, place): (JobId, Option<Place>),
    decide: &mut Decide<T>,
) -> Answer<Option<Result<T, Refusal>>> {
    let Some(before) = newest(tx, job_id, place)? else { return Ok(None) };
    match decide(&before, tx.now.cast_unsigned()) {
        Err(refusal) => Ok(Some(Err(refusal))),
        Ok((None, answer)) => Ok(Some(Ok(answer))),
        Ok((Some(amendment), answer)) => {
            expect_alive(tx, engine)?;
            write(tx, engine, &before, &amendment)?;
            Ok(Some(Ok(answer)))
        }
    }
}

/// The newest attempt of the current step, or at the place named. In a graph nobody is current: an open
/// obligation, one that waits if there is one.
fn newest(tx: &Tx<'_>, job_id: JobId, place: Option<Place>) -> Answer<Option<Held>> {
    let named = format!(
        "SELECT {HELD_COLUMNS} FROM job j JOIN attempt a ON a.job_id = j.job_id
             AND a.step_index = coalesce(?2, j.current_step)
         WHERE j.job_id = ?1 AND (?3 IS NULL OR (a.branch = ?3 AND a.turn = ?4))
             AND (?2 IS NOT NULL OR NOT j.is_graph)
         ORDER BY a.attempt_no DESC LIMIT 1"
    );
    let (step_index, branch, turn) = match place {
        Some(Place { step_index, branch, turn }) => {
            (Some(step_index), Some(branch.cast_signed()), Some(turn))
        }
        None => (None, None, None),
    };
    let job = job_id.as_bytes();
    let read = |row: &rusqlite::Row<'_>| held(tx.connection, row);
    let found = tx.all(&named, params![job, step_index, branch, turn], read)?;
    if let Some(found) = found.into_iter().next() {
        return Ok(Some(found));
    }
    if place.is_some() {
        return Ok(None);
    }
    let open = include_str!("../../sql/sqlite/any_obligation.sql").replace("{held}", HELD_COLUMNS);
    Ok(tx.all(&open, params![job], read)?.into_iter().next())
}

fn write(tx: &Tx<'_>, engine: EngineNo, before: &Held, after: &Amendment) -> Answer<()> {
    if after.writes_attempt(&before.attempt) {
        write_attempt(tx, engine, before, after)?;
    }
    crash_point("amend.after_attempt");
    let tells = (!after.changes.is_empty()).then(|| event(tx, &before.key, &after.changes));
    let position = tells.transpose()?;
    crash_point("amend.after_event");
    tx.execute(
        "UPDATE job SET state = ?2, version = version + 1, events = events + (?3 IS NOT NULL),
                 last_event = coalesce(?3, last_event), updated_at = ?4,
                 attempts_total = attempts_total + ?5, verdict = coalesce(?6, verdict)
             WHERE job_id = ?1",
        params![
            before.key.job_id.as_bytes(),
            after.job_to.code(),
            position,
            tx.now,
            before.attempt.outbox.is_none() && after.attempt.outbox.is_some(),
            after.verdict.map(State::code),
        ],
    )?;
    tx.tally.moved(before.job.state, after.job_to);
    Ok(())
}

fn write_attempt(tx: &Tx<'_>, engine: EngineNo, before: &Held, after: &Amendment) -> Answer<usize> {
    let entered = before.attempt.ending.is_none() && after.attempt.ending.is_some();
    let (key, row) = (&before.key, &after.attempt);
    let (timer, at) = match after.timer {
        Timer::Keep => ("keep", None),
        Timer::Clear => ("clear", None),
        Timer::At(at) => ("at", Some(at)),
        Timer::Ready => ("ready", None),
    };
    tx.execute(
        include_str!("../../sql/sqlite/amend_attempt.sql"),
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            row.state.code(),
            row.ledger.get(),
            row.ending.map(|ending| ending.guid.get()),
            row.ending.map(|ending| ending_code(ending.kind)),
            row.ending.and_then(|ending| ending.content).as_ref().map(Hash::as_bytes),
            row.outbox.map(State::code),
            row.publish_attempts,
            row.deadline,
            row.acked,
            row.outbox == Some(OutboxState::Sent),
            timer,
            at,
            AGEING_MS,
            after.output,
            after.error.as_ref().map(|error| &error.code),
            after.error.as_ref().map(|error| &error.message),
            tx.now,
            entered.then_some(engine.0),
            row.lease_id.map(|lease| lease.0.cast_signed()),
            CONTROL,
        ],
    )
}
