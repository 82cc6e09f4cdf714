//! Decisions under the rows' locks, in a short transaction. The attempt is locked before its job, as the
//! slices do it, so that a cancel and a RESULT of the same attempt wait for each other instead of
//! deadlocking. Which attempt is the newest is only known from a row that may move before it is locked;
//! so it is looked up again under the locks.

use std::slice;

use sprag_engine::crash::crash_point;
use sprag_engine::graph::CONTROL;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place};
use sprag_engine::store::{Amendment, Answer, Decide, Held, StoreError, Timer, ending_code};
use sprag_kernel::keys::Hash;
use sprag_kernel::{OutboxState, Refusal};
use tokio_postgres::{Row, Transaction};

use super::failure::{Repeats, failed};
use super::hints::ring;
use super::pools::{Pools, begin, commit};
use super::rows::{HELD_WIDTH, OUTPUTS, add_inputs, get, held_row, key, with_held};
use super::slice::{code, signed, span};
use crate::AGEING_MS;

/// How often the newest attempt is looked for again because another one took its place.
pub(super) const LOOKS: u32 = 10;

pub(super) async fn amend<T>(
    pools: &Pools,
    engine: EngineNo,
    (job_id, place): (JobId, Option<Place>),
    decide: &mut Decide<T>,
) -> Answer<Option<Result<T, Refusal>>> {
    let mut repeats = Repeats::default();
    let mut client = pools.engine().await?;
    let mut looks = 0;
    let (answer, is_ready) = loop {
        looks += 1;
        if looks > LOOKS {
            let reason = format!("the newest attempt of {job_id} keeps moving");
            return Err(StoreError::Unavailable(reason));
        }
        let tx = begin(&mut client).await?;
        // Locked first, as a takeover does it. A dead engine may look, but not write.
        let alive = "SELECT 1 FROM sprag.engine WHERE engine_no = $1 AND dead = 0 FOR KEY SHARE";
        let alive = tx.query_opt(alive, &[&engine.0]).await.map_err(|error| failed(&error))?;
        let locked = match lock(&tx, job_id, place).await {
            Ok(locked) => locked,
            Err(error) if repeats.again(&error) => {
                repeats.pause().await;
                continue;
            }
            Err(error) => return Err(failed(&error)),
        };
        let row = match locked {
            Locked::Unknown => return Ok(None),
            Locked::Moved => continue,
            Locked::Newest(row) => row,
        };
        crash_point("postgres.amend.after_lock");
        let now = pools.test_now().map_or_else(|| get(&row, HELD_WIDTH), Ok)?;
        let mut before = held_row(&row)?;
        // A graph asks for its inputs by name, and may have very many.
        if !before.job.is_graph {
            // On the connection that is here: waiting for a second one could starve the pool.
            let outputs = tx.query(OUTPUTS, &[&vec![job_id.uuid()]]).await;
            add_inputs(slice::from_mut(&mut before), &outputs.map_err(|error| failed(&error))?)?;
        }
        let (amendment, answer) = match decide(&before, now.cast_unsigned()) {
            Err(refusal) => return Ok(Some(Err(refusal))),
            Ok((None, answer)) => return Ok(Some(Ok(answer))),
            Ok((Some(_), _)) if alive.is_none() => return Err(StoreError::Fenced),
            Ok((Some(amendment), answer)) => (amendment, answer),
        };
        let written = match write(&tx, engine, (&before, &amendment), now).await {
            Ok(()) => commit(tx).await,
            Err(error) => Err(error),
        };
        match written {
            Ok(()) => break (answer, amendment.timer == Timer::Ready),
            Err(error) if repeats.again(&error) => repeats.pause().await,
            Err(error) => return Err(failed(&error)),
        }
    };
    drop(client);
    if is_ready {
        ring(pools).await;
    }
    Ok(Some(Ok(answer)))
}

/// What was found when the locks were asked for.
pub(super) enum Locked {
    /// There is no such job or step.
    Unknown,
    /// Another attempt became the newest in between.
    Moved,
    /// Attempt and job are locked.
    Newest(Row),
}

pub(super) async fn lock(
    tx: &Transaction<'_>,
    job_id: JobId,
    place: Option<Place>,
) -> Result<Locked, tokio_postgres::Error> {
    let Some(found) = newest(tx, job_id, place).await? else { return Ok(Locked::Unknown) };
    let lock = "SELECT 1 FROM sprag.attempt WHERE job_id = $1 AND step_index = $2 AND branch = $3
        AND turn = $4 AND attempt_no = $5 FOR UPDATE";
    let (step, branch): (i32, i64) = (found.try_get(1)?, found.try_get(2)?);
    let (turn, attempt_no): (i32, i32) = (found.try_get(3)?, found.try_get(4)?);
    tx.execute(lock, &[&job_id.uuid(), &step, &branch, &turn, &attempt_no]).await?;
    let lock = "SELECT 1 FROM sprag.job WHERE job_id = $1 FOR NO KEY UPDATE";
    tx.execute(lock, &[&job_id.uuid()]).await?;
    let Some(row) = newest(tx, job_id, place).await? else { return Ok(Locked::Unknown) };
    let same = key(&row).ok() == key(&found).ok();
    Ok(if same { Locked::Newest(row) } else { Locked::Moved })
}

/// The newest attempt of the current step, or at the place named. In a graph nobody is current: an open
/// obligation, one that waits if there is one.
async fn newest(
    tx: &Transaction<'_>,
    job_id: JobId,
    place: Option<Place>,
) -> Result<Option<Row>, tokio_postgres::Error> {
    let named = with_held(
        "SELECT {held}, sprag.now_ms(NULL) FROM sprag.job j JOIN sprag.attempt a
             ON a.job_id = j.job_id AND a.step_index = coalesce($2::integer, j.current_step)
         WHERE j.job_id = $1 AND ($3::bigint IS NULL OR (a.branch = $3 AND a.turn = $4::integer))
             AND ($2 IS NOT NULL OR j.is_graph = 0)
         ORDER BY a.attempt_no DESC LIMIT 1",
    );
    let step_index = place.map(|place| signed(place.step_index));
    let branch = place.map(|place| place.branch.cast_signed());
    let turn = place.map(|place| signed(place.turn));
    let found = tx.query_opt(&named, &[&job_id.uuid(), &step_index, &branch, &turn]).await?;
    if found.is_some() || place.is_some() {
        return Ok(found);
    }
    let open = with_held(include_str!("../../sql/postgres/any_obligation.sql"));
    tx.query_opt(&open, &[&job_id.uuid()]).await
}

pub(super) async fn write(
    tx: &Transaction<'_>,
    engine: EngineNo,
    (before, after): (&Held, &Amendment),
    now: i64,
) -> Result<(), tokio_postgres::Error> {
    if after.writes_attempt(&before.attempt) {
        let entered = before.attempt.ending.is_none() && after.attempt.ending.is_some();
        let owner = entered.then_some(engine.0);
        write_attempt(tx, (&before.key, owner), after, now).await?;
        crash_point("postgres.amend.after_attempt");
    }
    let dispatched = before.attempt.outbox.is_none() && after.attempt.outbox.is_some();
    let key = &before.key;
    tx.execute(
        include_str!("../../sql/postgres/amend_job.sql"),
        &[
            &key.job_id.uuid(),
            &code(after.job_to),
            &now,
            &signed(key.step_index),
            &key.branch.cast_signed(),
            &signed(key.turn),
            &signed(key.attempt_no),
            &after.changes,
            &i32::from(dispatched),
            &after.verdict.map(code),
        ],
    )
    .await?;
    Ok(())
}

async fn write_attempt(
    tx: &Transaction<'_>,
    (key, owner): (&AttemptKey, Option<i64>),
    after: &Amendment,
    now: i64,
) -> Result<(), tokio_postgres::Error> {
    let row = &after.attempt;
    let (timer, at) = match after.timer {
        Timer::Keep => ("keep", None),
        Timer::Clear => ("clear", None),
        Timer::At(at) => ("at", Some(span(at))),
        Timer::Ready => ("ready", None),
    };
    let ending = row.ending.map(|ending| {
        i16::try_from(ending_code(ending.kind)).expect("codes of endings are below 100")
    });
    let content = row.ending.and_then(|ending| ending.content);
    tx.execute(
        include_str!("../../sql/postgres/amend_attempt.sql"),
        &[
            &key.job_id.uuid(),
            &signed(key.step_index),
            &key.branch.cast_signed(),
            &signed(key.turn),
            &signed(key.attempt_no),
            &code(row.state),
            &row.ledger.get().cast_signed(),
            &row.ending.map(|ending| ending.guid.get().cast_signed()),
            &ending,
            &content.as_ref().map(|hash: &Hash| hash.as_bytes().as_slice()),
            &row.outbox.map(code),
            &signed(row.publish_attempts),
            &row.deadline.map(span),
            &row.acked,
            &(row.outbox == Some(OutboxState::Sent)),
            &timer,
            &at,
            &AGEING_MS,
            &after.output,
            &after.error.as_ref().map(|error| error.code.as_str()),
            &after.error.as_ref().map(|error| error.message.as_str()),
            &now,
            &owner,
            &row.lease_id.map(|lease| lease.0.cast_signed()),
            &CONTROL,
        ],
    )
    .await?;
    Ok(())
}
