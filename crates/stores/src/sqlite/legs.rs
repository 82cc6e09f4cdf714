//! The two legs up to the entry of Leg2: claim, the work of Leg1, messages that end attempts. `finish.rs` goes on.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{ToSql, params};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId};
use sprag_engine::store::{
    Answer, DispatchOutcome, DispatchWrite, EndOutcome, EndWrite, HandOff, Held, JobFacts, Pulse,
    Wish, ending_code,
};
use sprag_kernel::decide::rows::{LONE_DELIVERY, LeaseId};
use sprag_kernel::ledger::Semaphore;
use sprag_kernel::machine::State;
use sprag_kernel::{JobState, OutboxState};

use super::children;
use super::engines::expect_alive;
use super::rows::{HELD_COLUMNS, held_if_readable, key, place, state};
use super::upkeep::is_paused;
use super::writer::Tx;
use crate::SHARED_BYTES;
use crate::repeat::{self, AttemptNow};

pub(super) fn claim(tx: &Tx<'_>, engine: EngineNo, wishes: &[Wish]) -> Answer<Vec<Held>> {
    expect_alive(tx, engine)?;
    let mut claimed = Vec::new();
    for wish in wishes {
        claim_service(tx, engine, wish, &mut claimed)?;
    }
    add_shared(tx, &mut claimed)?;
    Ok(claimed)
}

/// Reads the payloads that were left out, each once, and has the branches of a job share its facts.
fn add_shared(tx: &Tx<'_>, claimed: &mut [Held]) -> Answer<()> {
    let mut shared: HashMap<JobId, Arc<JobFacts>> = HashMap::new();
    let is_left_out = |held: &&mut Held| held.facts.payload.is_empty() && held.damage.is_none();
    for held in claimed.iter_mut().filter(is_left_out) {
        let job_id = held.key.job_id;
        if let Some(facts) = shared.get(&job_id) {
            held.facts = facts.clone();
            continue;
        }
        let sql = "SELECT payload FROM job WHERE job_id = ?1";
        let payload = tx.find(sql, [job_id.as_bytes()], |row| row.get(0))?.unwrap_or_default();
        held.facts = Arc::new(JobFacts { payload, ..(*held.facts).clone() });
        shared.insert(job_id, held.facts.clone());
    }
    Ok(())
}

fn claim_service(
    tx: &Tx<'_>,
    engine: EngineNo,
    wish: &Wish,
    claimed: &mut Vec<Held>,
) -> Answer<()> {
    let payload =
        format!("iif(a.branch = 0 OR octet_length(j.payload) <= {SHARED_BYTES}, j.payload, ''),");
    let columns = HELD_COLUMNS.replacen("j.payload,", &payload, 1);
    let sql = format!(
        "SELECT {columns} FROM attempt a JOIN job j ON j.job_id = a.job_id
         WHERE a.service = ?1 AND a.ready_at IS NOT NULL
             AND (a.gate IS NULL OR a.admitted_at IS NOT NULL)
             AND (?3 = 0 OR (a.losses + a.ledger / 1000000000000 >= ?4) = (?3 = 2))
             AND (?5 IS NULL OR j.tenant_id = ?5)
         ORDER BY a.ready_at LIMIT ?2"
    );
    if is_paused(tx, &wish.service)? {
        return Ok(());
    }
    let wish = params![wish.service, wish.max, wish.pick.code(), LONE_DELIVERY - 1, wish.tenant_id];
    let found = tx.all(&sql, wish, |row| Ok((key(row)?, held_if_readable(tx.connection, row)?)))?;
    for (key, held) in found {
        let Some(mut held) = held else {
            set_aside(tx, engine, &key)?;
            continue;
        };
        enter(tx, engine, &mut held)?;
        claimed.push(held);
    }
    Ok(())
}

/// An activation that cannot be read leaves the queue, or the next claim would find it again.
fn set_aside(tx: &Tx<'_>, engine: EngineNo, key: &AttemptKey) -> Answer<usize> {
    let (job_id, branch) = (key.job_id.as_bytes(), key.branch.cast_signed());
    tx.execute(
        "UPDATE attempt SET ready_at = NULL, owner = ?6, version = version + 1
             WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5",
        params![job_id, key.step_index, branch, key.turn, key.attempt_no, engine.0],
    )
}

/// Leg1 entry of a claimed activation. At the ceiling it is claimed without an entry; the engine ends it.
fn enter(tx: &Tx<'_>, engine: EngineNo, held: &mut Held) -> Answer<()> {
    let entered = held.attempt.ledger.enter_leg1();
    held.is_unentered = entered.is_err();
    let ledger = entered.unwrap_or(held.attempt.ledger);
    let key = &held.key;
    tx.execute(
        include_str!("../../sql/sqlite/enter_leg1.sql"),
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            ledger.get(),
            engine.0,
            tx.now,
        ],
    )?;
    crash_point("claim.after_entry");
    held.attempt.ledger = ledger;
    held.attempt.version += 1;
    Ok(())
}

const GONE: DispatchOutcome = DispatchOutcome::Gone;

pub(super) fn dispatch(
    tx: &Tx<'_>,
    engine: EngineNo,
    writes: &[DispatchWrite],
) -> Answer<Vec<DispatchOutcome>> {
    expect_alive(tx, engine)?;
    writes.iter().map(|write| dispatch_one(tx, engine, write)).collect()
}

fn dispatch_one(tx: &Tx<'_>, engine: EngineNo, write: &DispatchWrite) -> Answer<DispatchOutcome> {
    let key = &write.key;
    // Before all else: a repeat may be committed already, and cancelled since.
    let done = if write.repeats { repeat::dispatched(attempt_now(tx, key)?, write) } else { GONE };
    if done != GONE {
        return Ok(done);
    }
    let job = match job_now(tx, key)? {
        None => return Ok(GONE),
        Some(job) if job.is_ending() => return Ok(DispatchOutcome::Ending),
        Some(job) if job.state != write.job_from => return Ok(DispatchOutcome::Moved(job.state)),
        Some(job) => job,
    };
    let lease_end = tx.now + i64::try_from(write.lease_ms).unwrap_or(i64::MAX / 2);
    let ack_end = tx.now + i64::try_from(write.ack_timeout_ms).unwrap_or(i64::MAX / 2);
    let (pending, sent) = (OutboxState::Pending, OutboxState::Sent);
    let (outbox, acked, timer, owner) = match write.hand_off {
        HandOff::InProcess => (sent, true, None, Some(engine.0)),
        HandOff::Pulled => (sent, true, Some(lease_end), None),
        HandOff::PulledUnacked => (sent, false, Some(ack_end), None),
        HandOff::Outbox => (pending, false, None, Some(engine.0)),
    };
    let row = params![
        key.job_id.as_bytes(),
        key.step_index,
        key.branch.cast_signed(),
        key.turn,
        key.attempt_no,
        write.version,
        write.step_to.code(),
        write.ledger.get(),
        write.lease_id.0.cast_signed(),
        lease_end,
        outbox.code(),
        (outbox == sent).then_some(tx.now),
        acked.then_some(tx.now),
        timer,
        owner,
        tx.now,
        write.claim_id,
    ];
    let in_place = include_str!("../../sql/sqlite/dispatch_in_place.sql");
    let moving = include_str!("../../sql/sqlite/dispatch_attempt.sql");
    if execute_either(tx, [in_place, moving], row)? == 0 {
        return Ok(GONE);
    }
    crash_point("dispatch.after_attempt");
    let position = tx.next_position()?;
    tx.execute(
        "UPDATE OR FAIL job SET state = ?2, version = version + 1, events = events + 1, last_event = ?4,
                 attempts_total = attempts_total + 1, updated_at = ?3
             WHERE job_id BETWEEN ?1 AND ?1",
        params![key.job_id.as_bytes(), write.job_to.code(), tx.now, position],
    )?;
    tx.tally.moved(write.job_from, write.job_to);
    crash_point("dispatch.after_job");
    event_behind(tx, key, (&job, position), &write.changes)?;
    if let Some(child) = &write.child {
        children::begin(tx, engine, key, child)?;
    }
    let lease_expires_at = lease_end.cast_unsigned();
    Ok(DispatchOutcome::Done { version: write.version + 1, lease_expires_at })
}

pub(super) fn attempt_now(tx: &Tx<'_>, key: &AttemptKey) -> Answer<Option<AttemptNow>> {
    tx.find(
        "SELECT version, lease_id, guid, content, lease_expires_at FROM attempt WHERE job_id = ?1
             AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5",
        place(key),
        |row| {
            Ok(AttemptNow {
                version: row.get(0)?,
                lease_id: row.get::<_, Option<u64>>(1)?.map(LeaseId),
                guid: row.get(2)?,
                content: row.get(3)?,
                lease_expires_at: row.get(4)?,
            })
        },
    )
}

pub(super) fn job_state(tx: &Tx<'_>, job_id: JobId) -> Answer<Option<JobState>> {
    let sql = "SELECT state FROM job WHERE job_id = ?1";
    let code: Option<u8> = tx.find(sql, [job_id.as_bytes()], |row| row.get(0))?;
    code.map(state).transpose()
}

/// Runs the statement that writes no index, or the other one if the row does not stand where it will.
fn execute_either(
    tx: &Tx<'_>,
    [in_place, moving]: [&'static str; 2],
    row: &[&dyn ToSql],
) -> Answer<usize> {
    match tx.execute(in_place, row)? {
        0 => tx.execute(moving, row),
        written => Ok(written),
    }
}

/// The event row of a change whose job row was read before, and names the position of the event now.
pub(super) fn event_behind(
    tx: &Tx<'_>,
    key: &AttemptKey,
    (job, position): (&JobNow, i64),
    changes: &str,
) -> Answer<()> {
    tx.execute(
        "INSERT INTO event (pos, job_id, before, n, at, step_index, branch, turn, attempt_no, changes)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            position,
            key.job_id.as_bytes(),
            job.last_event,
            job.events + 1,
            tx.now,
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            changes,
        ],
    )
    .map(|_| ())
}

/// The event row of a change; says its position. The job row is written next, and names it as its newest one.
pub(super) fn event(tx: &Tx<'_>, key: &AttemptKey, changes: &str) -> Answer<i64> {
    let position = tx.next_position()?;
    tx.execute(
        include_str!("../../sql/sqlite/insert_event.sql"),
        params![
            key.job_id.as_bytes(),
            tx.now,
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            changes,
            position,
        ],
    )?;
    Ok(position)
}

pub(super) fn end(tx: &Tx<'_>, engine: EngineNo, writes: &[EndWrite]) -> Answer<Vec<EndOutcome>> {
    expect_alive(tx, engine)?;
    writes.iter().map(|write| end_one(tx, engine, write)).collect()
}

pub(super) fn end_one(tx: &Tx<'_>, engine: EngineNo, write: &EndWrite) -> Answer<EndOutcome> {
    let key = &write.key;
    let (code, message) = match &write.error {
        Some(error) => (Some(&error.code), Some(&error.message)),
        None => (None, None),
    };
    let row = params![
        key.job_id.as_bytes(),
        key.step_index,
        key.branch.cast_signed(),
        key.turn,
        key.attempt_no,
        write.version,
        write.lease_id.map(|lease| lease.0.cast_signed()),
        ending_code(write.ending.kind),
        write.ending.guid.get(),
        write.ending.content.as_ref().map(sprag_kernel::keys::Hash::as_bytes),
        write.ledger.get(),
        engine.0,
        write.output,
        code,
        message,
        tx.now,
        write.output_ref,
    ];
    let in_place = include_str!("../../sql/sqlite/end_in_place.sql");
    let moving = include_str!("../../sql/sqlite/end_attempt.sql");
    let entered = execute_either(tx, [in_place, moving], row)?;
    crash_point("end.after_attempt");
    if entered == 0 && write.repeats {
        return Ok(repeat::ended(attempt_now(tx, key)?, write));
    }
    if entered == 0 {
        return Ok(EndOutcome::Stale);
    }
    Ok(EndOutcome::Entered { version: write.version + 1 })
}

pub(super) fn pulse(tx: &Tx<'_>, engine: EngineNo, pulses: &[Pulse]) -> Answer<()> {
    expect_alive(tx, engine)?;
    for Pulse { key, lease_id, lease_ms, progress } in pulses {
        tx.execute(
            include_str!("../../sql/sqlite/pulse.sql"),
            params![
                key.job_id.as_bytes(),
                key.step_index,
                key.branch.cast_signed(),
                key.turn,
                key.attempt_no,
                engine.0,
                lease_id.0.cast_signed(),
                tx.now + i64::try_from(*lease_ms).unwrap_or(i64::MAX / 2),
                progress,
            ],
        )?;
        crash_point("pulse.after_row");
    }
    Ok(())
}

pub(super) fn cancelling(tx: &Tx<'_>, mut jobs: Vec<JobId>) -> Answer<Vec<JobId>> {
    let mut states = Vec::with_capacity(jobs.len());
    for job_id in &jobs {
        states.push(job_state(tx, *job_id)?);
    }
    let mut states = states.into_iter();
    jobs.retain(|_| states.next().flatten() == Some(JobState::Cancelling));
    Ok(jobs)
}

/// The job as Leg1 and Step 2 find it.
pub(super) struct JobNow {
    pub(super) state: JobState,
    pub(super) verdict: Option<JobState>,
    pub(super) version: u64,
    pub(super) semaphore: Semaphore,
    pub(super) events: u32,
    pub(super) last_event: i64,
}

impl JobNow {
    /// Whether nothing may start any more.
    pub(super) fn is_ending(&self) -> bool {
        self.state == JobState::Cancelling || self.verdict.is_some()
    }
}

pub(super) fn job_now(tx: &Tx<'_>, key: &AttemptKey) -> Answer<Option<JobNow>> {
    type Found = (u8, Option<u8>, u64, u32, u32, i64);
    let found: Option<Found> = tx.find(
        "SELECT state, verdict, version, semaphore, events, last_event FROM job WHERE job_id = ?1",
        [key.job_id.as_bytes()],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?, row.get(5)?)),
    )?;
    let Some((code, verdict, version, semaphore, events, last_event)) = found else {
        return Ok(None);
    };
    let verdict = verdict.map(state).transpose()?;
    let semaphore = Semaphore::new(semaphore);
    Ok(Some(JobNow { state: state(code)?, verdict, version, semaphore, events, last_event }))
}
