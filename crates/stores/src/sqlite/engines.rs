//! Engines: joining, beating, and taking over what a dead one held.

use rusqlite::params;
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::{Answer, Due, Held, StoreError};
use sprag_kernel::retry::Millis;

use super::rows::{HELD_COLUMNS, failed, held_if_readable, key, place};
use super::writer::Tx;
use crate::AGEING_MS;
use crate::moving::{CLOSED, closed};
use crate::versions::{admit, version_of};

pub(super) fn join(tx: &Tx<'_>, name: &str) -> Answer<EngineNo> {
    let sql = "SELECT value FROM meta WHERE key = ?1";
    if let Some(why) = tx.find(sql, [CLOSED], |row| row.get(0))? {
        return Err(closed(why));
    }
    let sql =
        "INSERT INTO engine (name, joined_at, beat_at) VALUES (?1, ?2, ?2) RETURNING engine_no";
    let joined = tx.find(sql, params![name, tx.now], |row| row.get(0).map(EngineNo))?;
    joined.ok_or_else(|| StoreError::Unavailable("no engine row".to_owned()))
}

/// A sign of life, and a look whether the store still admits a binary of this version.
pub(super) fn beat(tx: &Tx<'_>, engine: EngineNo, low: Option<JobId>, version: i64) -> Answer<()> {
    let low = low.as_ref().map(JobId::as_bytes);
    let sql = "UPDATE engine SET beat_at = ?2, low = ?3 WHERE engine_no = ?1 AND dead = 0";
    if tx.execute(sql, params![engine.0, tx.now, low])? == 0 {
        return Err(StoreError::Fenced);
    }
    let sql = "SELECT value FROM meta WHERE key = 'oldest_compatible'";
    let oldest: Option<String> = tx.find(sql, [], |row| row.get(0))?;
    admit(version, version_of(&oldest.unwrap_or_default())?)
}

/// Refuses an engine that was declared dead. In the writer's transaction, so it holds until the commit.
pub(super) fn expect_alive(tx: &Tx<'_>, engine: EngineNo) -> Answer<()> {
    let sql = "SELECT 1 FROM engine WHERE engine_no = ?1 AND dead = 0";
    tx.find(sql, [engine.0], |_| Ok(()))?.ok_or(StoreError::Fenced)
}

pub(super) fn silent(tx: &Tx<'_>, timeout_ms: Millis) -> Answer<Vec<EngineNo>> {
    let since = tx.now - i64::try_from(timeout_ms).unwrap_or(i64::MAX);
    let sql = "SELECT engine_no FROM engine WHERE dead = 0 AND beat_at <= ?1 ORDER BY engine_no";
    tx.all(sql, [since], |row| row.get(0).map(EngineNo).map_err(|error| failed(&error)))
}

/// The engine beats no more. What it holds is found by whoever looks for the silent.
pub(super) fn leave(tx: &Tx<'_>, engine: EngineNo) -> Answer<()> {
    let sql = "UPDATE engine SET beat_at = 0 WHERE engine_no = ?1 AND dead = 0";
    tx.execute(sql, [engine.0]).map(|_| ())
}

/// Marks the engine dead, frees its activations, and hands its attempts and messages to the heir.
pub(super) fn take_over(tx: &Tx<'_>, dead: EngineNo, heir: EngineNo) -> Answer<Vec<Held>> {
    expect_alive(tx, heir)?;
    tx.execute("UPDATE engine SET dead = 1 WHERE engine_no = ?1", [dead.0])?;
    crash_point("take_over.after_death");
    // An activation that was entered and not dispatched goes back to the queue; its next claim enters
    // it again.
    tx.execute(
        "UPDATE attempt SET owner = NULL, ready_at = ?2 - priority * ?3, version = version + 1,
             updated_at = ?2
         WHERE owner = ?1 AND lease_id IS NULL AND ending IS NULL",
        params![dead.0, tx.now, AGEING_MS],
    )?;
    // A directive that was not published is anybody's to publish.
    tx.execute(
        "UPDATE attempt SET owner = NULL, timer_at = ?2, version = version + 1, updated_at = ?2
         WHERE owner = ?1 AND outbox = 0 AND ending IS NULL",
        params![dead.0, tx.now],
    )?;
    crash_point("take_over.after_release");
    tx.execute(
        "UPDATE completion SET due_at = ?2, owner = NULL WHERE due_at IS NOT NULL AND owner = ?1",
        params![dead.0, tx.now],
    )?;
    // A message that was not finished is delivered again, which is one more entry of Leg2. Only what
    // passes on here is returned: the heir may run attempts of its own.
    let mut passed_on = tx.all(
        "UPDATE attempt SET owner = ?2, version = version + 1,
             ledger = ledger + (ending IS NOT NULL AND ledger % 100000000 < 99999999)
         WHERE owner = ?1 RETURNING job_id, step_index, branch, turn, attempt_no",
        params![dead.0, heir.0],
        key,
    )?;
    crash_point("take_over.after_hand_over");
    passed_on.sort_unstable();
    let sql = format!(
        "SELECT {HELD_COLUMNS} FROM attempt a JOIN job j ON j.job_id = a.job_id
         WHERE a.job_id = ?1 AND a.step_index = ?2 AND a.branch = ?3 AND a.turn = ?4
             AND a.attempt_no = ?5"
    );
    let read = |key| tx.all(&sql, place(key), |row| held_if_readable(tx.connection, row));
    let held = passed_on.iter().map(read).collect::<Answer<Vec<_>>>()?;
    Ok(held.into_iter().flatten().flatten().collect())
}

/// Activations whose time has come are made claimable; the rest is returned, but for directives that wait to
/// be published (state 1), which only a publisher takes.
pub(super) fn due(tx: &Tx<'_>, engine: EngineNo, limit: u32) -> Answer<Due> {
    expect_alive(tx, engine)?;
    let sql = include_str!("../../sql/sqlite/promote_due.sql");
    let promoted = tx.execute(sql, params![tx.now, AGEING_MS, limit])?;
    let sql = format!(
        "SELECT {HELD_COLUMNS} FROM attempt a JOIN job j ON j.job_id = a.job_id
         WHERE a.timer_at <= ?1 AND a.state <> 1 ORDER BY a.timer_at LIMIT ?2"
    );
    let held = tx.all(&sql, params![tx.now, limit], |row| held_if_readable(tx.connection, row))?;
    let held = held.into_iter().flatten().collect();
    Ok(Due { promoted, held, now: tx.now.cast_unsigned() })
}
