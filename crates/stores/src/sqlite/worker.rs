//! Attempts that workers outside hold: found by claim or by place, moved along, given back.

use rusqlite::{Row, params};
use sprag_engine::crash::crash_point;
use sprag_engine::graph::CONTROL;
use sprag_engine::ids::{AttemptKey, EngineNo};
use sprag_engine::store::{
    Answer, Held, RenewOutcome, RenewWrite, Renewal, StaleCallback, StepPlace,
};
use sprag_kernel::machine::State;
use sprag_kernel::{JobState, OutboxState};

use super::engines::expect_alive;
use super::legs::{event, job_state};
use super::rows::{HELD_COLUMNS, held_if_readable, key, place};
use super::writer::Tx;
use crate::AGEING_MS;

/// What was handed out under these claims and is still under its lease.
pub(super) fn claimed(tx: &Tx<'_>, claim_ids: &[String]) -> Answer<Vec<(String, Held)>> {
    let sql = format!(
        "SELECT {HELD_COLUMNS} FROM attempt a JOIN job j ON j.job_id = a.job_id
         WHERE a.claim_id = ?1 AND a.timer_at IS NOT NULL AND a.timer_at > ?2
         ORDER BY a.job_id, a.step_index, a.branch, a.turn, a.attempt_no"
    );
    let mut all = Vec::new();
    for claim_id in claim_ids {
        let read = |row: &Row<'_>| held_if_readable(tx.connection, row);
        let found = tx.all(&sql, params![claim_id, tx.now], read)?;
        all.extend(found.into_iter().flatten().map(|held| (claim_id.clone(), held)));
    }
    Ok(all)
}

/// At each place the newest attempt that has a lease, or else the one that waits for it.
pub(super) fn find(tx: &Tx<'_>, places: &[StepPlace]) -> Answer<Vec<Option<Held>>> {
    let sql = format!(
        "SELECT {HELD_COLUMNS} FROM attempt a JOIN job j ON j.job_id = a.job_id
         WHERE a.job_id = ?1 AND a.step_index BETWEEN ?2 AND ?3 AND a.branch = ?4 AND a.turn = ?5
             AND a.step_id = ?6 ORDER BY a.lease_id IS NULL, a.attempt_no DESC LIMIT 1"
    );
    let one = |place: &StepPlace| {
        let (lowest, highest) = place.step_index.map_or((0, u32::MAX), |index| (index, index));
        let branch = place.branch.cast_signed();
        let at =
            params![place.job_id.as_bytes(), lowest, highest, branch, place.turn, place.step_id];
        let read = |row: &Row<'_>| held_if_readable(tx.connection, row);
        tx.all(&sql, at, read).map(|mut found| found.pop().flatten())
    };
    places.iter().map(one).collect()
}

pub(super) fn renew(
    tx: &Tx<'_>,
    engine: EngineNo,
    writes: &[RenewWrite],
) -> Answer<Vec<RenewOutcome>> {
    expect_alive(tx, engine)?;
    writes.iter().map(|write| renew_one(tx, engine, write)).collect()
}

fn renew_one(tx: &Tx<'_>, engine: EngineNo, write: &RenewWrite) -> Answer<RenewOutcome> {
    let key = &write.key;
    if let Some((from, _)) = write.job
        && job_state(tx, key.job_id)? != Some(from)
    {
        return Ok(RenewOutcome::Gone);
    }
    let deadline = tx.now.cast_unsigned() + write.timer_ms.min(i64::MAX.cast_unsigned() / 2);
    let deadline = write.ends_at.map_or(deadline, |ends_at| ends_at.min(deadline));
    let (outbox, acked, owner) = match write.renewal {
        Renewal::Sent => (Some(OutboxState::Sent.code()), false, Some(engine.0)),
        Renewal::Acked => (None, true, None),
        Renewal::Alive => (None, false, None),
    };
    let written = tx.execute(
        include_str!("../../sql/sqlite/renew_attempt.sql"),
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            write.version,
            write.lease_id.0.cast_signed(),
            write.step_to.code(),
            outbox,
            deadline,
            acked,
            tx.now,
            owner,
            write.progress,
        ],
    )?;
    if written == 0 {
        return Ok(RenewOutcome::Gone);
    }
    crash_point("renew.after_attempt");
    if !write.changes.is_empty() {
        let position = event(tx, key, &write.changes)?;
        crash_point("renew.after_event");
        let to = write.job.map(|(_, to)| to.code());
        tx.execute(
            "UPDATE job SET state = coalesce(?2, state), version = version + 1,
                 events = events + 1, last_event = ?4, updated_at = ?3 WHERE job_id = ?1",
            params![key.job_id.as_bytes(), to, tx.now, position],
        )?;
        write.job.iter().for_each(|(from, to)| tx.tally.moved(*from, *to));
    }
    Ok(RenewOutcome::Done { version: write.version + 1, deadline })
}

pub(super) fn record_stale(
    tx: &Tx<'_>,
    engine: EngineNo,
    callbacks: &[StaleCallback],
) -> Answer<()> {
    expect_alive(tx, engine)?;
    for stale in callbacks {
        let key = &stale.key;
        tx.execute(
            include_str!("../../sql/sqlite/record_stale.sql"),
            params![
                key.job_id.as_bytes(),
                key.step_index,
                key.branch.cast_signed(),
                key.turn,
                key.attempt_no,
                stale.callback,
                stale.code.name(),
                stale.lease_id.0.cast_signed(),
                tx.now,
            ],
        )?;
        crash_point("record_stale.after_row");
    }
    Ok(())
}

pub(super) fn release(
    tx: &Tx<'_>,
    engine: EngineNo,
    activations: &[(AttemptKey, u64)],
) -> Answer<()> {
    expect_alive(tx, engine)?;
    for (key, version) in activations {
        tx.execute(
            include_str!("../../sql/sqlite/release.sql"),
            params![
                key.job_id.as_bytes(),
                key.step_index,
                key.branch.cast_signed(),
                key.turn,
                key.attempt_no,
                version,
                engine.0,
                tx.now,
                AGEING_MS,
                JobState::Cancelling.code(),
                CONTROL,
            ],
        )?;
        crash_point("release.after_row");
    }
    Ok(())
}

/// Directives whose time to be published has come pass to this engine.
pub(super) fn unpublished(
    tx: &Tx<'_>,
    engine: EngineNo,
    services: &[String],
    limit: u32,
) -> Answer<Vec<Held>> {
    expect_alive(tx, engine)?;
    let take = include_str!("../../sql/sqlite/take_unpublished.sql");
    let mut taken = Vec::new();
    for service in services {
        let left = limit.saturating_sub(u32::try_from(taken.len()).unwrap_or(u32::MAX));
        taken.extend(tx.all(take, params![engine.0, tx.now, service, left], key)?);
    }
    crash_point("unpublished.after_taking");
    taken.sort_unstable();
    let sql = format!(
        "SELECT {HELD_COLUMNS} FROM attempt a JOIN job j ON j.job_id = a.job_id
         WHERE a.job_id = ?1 AND a.step_index = ?2 AND a.branch = ?3 AND a.turn = ?4
             AND a.attempt_no = ?5"
    );
    let read = |key| tx.all(&sql, place(key), |row| held_if_readable(tx.connection, row));
    let read = taken.iter().map(read).collect::<Answer<Vec<_>>>()?;
    Ok(read.into_iter().flatten().flatten().collect())
}

pub(super) fn held_by(tx: &Tx<'_>, engine: EngineNo) -> Answer<Vec<Held>> {
    let sql = format!(
        "SELECT {HELD_COLUMNS} FROM attempt a JOIN job j ON j.job_id = a.job_id WHERE a.owner = ?1
         ORDER BY a.job_id, a.step_index, a.branch, a.turn, a.attempt_no"
    );
    let all = tx.all(&sql, [engine.0], |row| held_if_readable(tx.connection, row))?;
    Ok(all.into_iter().flatten().collect())
}
