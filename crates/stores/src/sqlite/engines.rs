//! Engines: joining, beating, and taking over what a dead one held.

use rusqlite::params;
use sprag_engine::crash::crash_point;
use sprag_engine::graph::CONTROL;
use sprag_engine::ids::EngineNo;
use sprag_engine::store::{Answer, Due, Held, Signs, StoreError};
use sprag_kernel::decide::rows::LONE_DELIVERY;
use sprag_kernel::retry::Millis;
use sprag_kernel::{JobState, State as _};

use super::rows::{HELD_COLUMNS, failed, held_if_readable, key, place};
use super::writer::Tx;
use crate::moving::{CLOSED, closed};
use crate::versions::{admit, version_of};
use crate::{AGEING_MS, BURIED, DEAD_KEPT_MS, TAKEN};

/// A new life; on this occasion old ones that are over are let go.
pub(super) fn join(tx: &Tx<'_>, name: &str) -> Answer<EngineNo> {
    let sql = include_str!("../../sql/sqlite/bury.sql");
    tx.execute(sql, params![tx.now, DEAD_KEPT_MS, BURIED])?;
    crash_point("join.after_burial");
    let sql = "SELECT value FROM meta WHERE key = ?1";
    if let Some(why) = tx.find(sql, [CLOSED], |row| row.get(0))? {
        return Err(closed(why));
    }
    let sql =
        "INSERT INTO engine (name, joined_at, beat_at) VALUES (?1, ?2, ?2) RETURNING engine_no";
    let joined = tx.find(sql, params![name, tx.now], |row| row.get(0).map(EngineNo))?;
    joined.ok_or_else(|| StoreError::Unavailable("no engine row".to_owned()))
}

/// A sign of life, and what others show: engines that count as alive and are silent, and dead ones of which not
/// everything is taken over. An engine that the store does not admit any more must go.
pub(super) fn beat(
    tx: &Tx<'_>,
    engine: EngineNo,
    silent_ms: Option<Millis>,
    version: i64,
) -> Answer<Signs> {
    // One that has left beats no more.
    let sql = "UPDATE engine SET beat_at = ?2 WHERE engine_no = ?1 AND dead = 0 AND beat_at > 0";
    if tx.execute(sql, params![engine.0, tx.now])? == 0 {
        return Err(StoreError::Fenced);
    }
    let sql = "SELECT value FROM meta WHERE key = 'oldest_compatible'";
    let oldest: Option<String> = tx.find(sql, [], |row| row.get(0))?;
    admit(version, version_of(&oldest.unwrap_or_default())?)?;
    let since = silent_ms.map(|ms| tx.now - i64::try_from(ms).unwrap_or(i64::MAX));
    let sql = "SELECT engine_no FROM engine e WHERE engine_no <> ?1 AND ?2 IS NOT NULL
            AND iif(dead = 0, beat_at <= ?2, EXISTS (SELECT 1 FROM attempt WHERE owner = e.engine_no))
        ORDER BY engine_no";
    let number = |row: &rusqlite::Row<'_>| row.get(0).map(EngineNo).map_err(|error| failed(&error));
    let silent = tx.all(sql, params![engine.0, since], number)?;
    let sql = "SELECT 1 FROM inbox WHERE taken_at IS NULL LIMIT 1";
    let has_mail = tx.find(sql, [], |_| Ok(()))?.is_some();
    Ok(Signs { silent, has_mail })
}

/// A number that is another one if somebody else than the writer has written to the file since.
pub(super) fn foreign_writes(tx: &Tx<'_>) -> Answer<Option<i64>> {
    tx.find("PRAGMA data_version", [], |row| row.get(0))
}

/// Refuses an engine that was declared dead. In the writer's transaction, so it holds until the commit.
pub(super) fn expect_alive(tx: &Tx<'_>, engine: EngineNo) -> Answer<()> {
    let sql = "SELECT 1 FROM engine WHERE engine_no = ?1 AND dead = 0";
    tx.find(sql, [engine.0], |_| Ok(()))?.ok_or(StoreError::Fenced)
}

/// The engine beats no more. What it holds is found by whoever looks for the silent.
pub(super) fn leave(tx: &Tx<'_>, engine: EngineNo) -> Answer<()> {
    let sql = "UPDATE engine SET beat_at = 0 WHERE engine_no = ?1 AND dead = 0";
    tx.execute(sql, [engine.0]).map(|_| ())
}

/// Marks the engine dead, and takes over some of what it held: says what has passed to the heir, and how many
/// there were. Only what passes on here is returned: the heir may run attempts of its own.
pub(super) fn take_over(tx: &Tx<'_>, dead: EngineNo, heir: EngineNo) -> Answer<(Vec<Held>, usize)> {
    expect_alive(tx, heir)?;
    tx.execute("UPDATE engine SET dead = 1 WHERE engine_no = ?1", [dead.0])?;
    crash_point("take_over.after_death");
    tx.execute(
        "UPDATE completion SET due_at = ?2, owner = NULL WHERE due_at IS NOT NULL AND owner = ?1",
        params![dead.0, tx.now],
    )?;
    crash_point("take_over.after_release");
    let found = tx.all(
        "SELECT job_id, step_index, branch, turn, attempt_no, lease_id IS NULL AND ending IS NULL,
             coalesce(outbox = 0 AND ending IS NULL, 0), ending IS NOT NULL,
             coalesce(ending IS NOT NULL AND ledger % 100000000 - guid % 100000000 + 2 < ?3
                 AND ledger % 100000000 < 99999999, 0)
         FROM attempt WHERE owner = ?1
         ORDER BY job_id, step_index, branch, turn, attempt_no LIMIT ?2",
        params![dead.0, TAKEN, LONE_DELIVERY],
        |row| Ok((key(row)?, flag(row, 5)?, flag(row, 6)?, (flag(row, 7)?, flag(row, 8)?))),
    )?;
    let mut passed_on = Vec::new();
    for (at, is_free, is_unsent, (is_message, is_entered)) in &found {
        tx.execute(
            include_str!("../../sql/sqlite/take_over.sql"),
            params![
                at.job_id.as_bytes(),
                at.step_index,
                at.branch.cast_signed(),
                at.turn,
                at.attempt_no,
                heir.0,
                tx.now,
                AGEING_MS,
                is_free,
                is_unsent,
                is_entered,
                JobState::Cancelling.code(),
                CONTROL,
            ],
        )?;
        crash_point("take_over.after_row");
        if !is_free && !is_unsent {
            passed_on.push((at, *is_message && !is_entered));
        }
    }
    crash_point("take_over.after_hand_over");
    let sql = format!(
        "SELECT {HELD_COLUMNS} FROM attempt a JOIN job j ON j.job_id = a.job_id
         WHERE a.job_id = ?1 AND a.step_index = ?2 AND a.branch = ?3 AND a.turn = ?4
             AND a.attempt_no = ?5"
    );
    let mut all = Vec::with_capacity(passed_on.len());
    for (key, is_unentered) in passed_on {
        let held = tx.all(&sql, place(key), |row| held_if_readable(tx.connection, row))?;
        all.extend(held.into_iter().flatten().map(|held| Held { is_unentered, ..held }));
    }
    Ok((all, found.len()))
}

fn flag(row: &rusqlite::Row<'_>, column: usize) -> Answer<bool> {
    row.get(column).map_err(|error| failed(&error))
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
    let sql = "SELECT timer_at FROM attempt WHERE timer_at > ?1 ORDER BY timer_at LIMIT 1";
    let next: Option<i64> = tx.find(sql, [tx.now], |row| row.get(0))?;
    let (now, next) = (tx.now.cast_unsigned(), next.map(i64::cast_unsigned));
    Ok(Due { promoted, held, now, next })
}
