//! Gates: who stands in line and may start. The writer's transaction is the lock; the kernel decides.

use rusqlite::params;
use sprag_engine::crash::crash_point;
use sprag_engine::gate::{GateView, MAX_GATES};
use sprag_engine::ids::{AttemptKey, EngineNo};
use sprag_engine::store::Answer;
use sprag_kernel::decide::gate::{Gate, Limit};

use super::engines::expect_alive;
use super::rows::{failed, key};
use super::writer::Tx;
use crate::LINE;

pub(super) fn admit(tx: &Tx<'_>, engine: EngineNo, gates: &[String]) -> Answer<usize> {
    assert!(gates.len() <= MAX_GATES, "gates come in pages");
    expect_alive(tx, engine)?;
    let mut admitted = 0;
    for gate in gates {
        admitted += admit_at(tx, gate)?;
    }
    Ok(admitted)
}

fn admit_at(tx: &Tx<'_>, name: &str) -> Answer<usize> {
    let Some((_, first)) = line(tx, name, 1)?.pop() else { return Ok(0) };
    // Counted only as far as the limit of the first: beyond it nobody is let in. If it has none, as far as the
    // largest behind it.
    let most = match first.max {
        Some(max) => Some(max),
        None => line(tx, name, LINE)?.iter().filter_map(|(_, limit)| limit.max).max(),
    };
    let sql = "SELECT count(*) FROM (SELECT 1 FROM attempt
        WHERE gate = ?1 AND admitted_at IS NOT NULL LIMIT ?2)";
    let most = params![name, most.unwrap_or(0)];
    let admitted = tx.find(sql, most, |row| row.get(0))?.unwrap_or_default();
    let room = first.max.map_or(LINE, |max| LINE.min(i64::from(max - admitted)));
    let line = line(tx, name, room)?;
    let sql = "SELECT arrival_us FROM gate WHERE gate = ?1";
    let arrival_us = tx.find(sql, [name], |row| row.get(0))?.unwrap_or_default();
    let has_rate = line.iter().any(|(_, limit)| limit.gap_us.is_some());
    let idle_since = if has_rate { idle_since(tx, name)? } else { None };
    let mut gate = Gate { admitted, arrival_us, idle_since };

    let starts = gate.admit(tx.now.cast_unsigned(), line.iter().map(|(_, limit)| *limit));
    for ((key, _), start) in line.iter().zip(&starts) {
        let (job_id, branch) = (key.job_id.as_bytes(), key.branch.cast_signed());
        tx.execute(
            include_str!("../../sql/sqlite/admit.sql"),
            params![job_id, key.step_index, branch, key.turn, key.attempt_no, start, tx.now],
        )?;
        crash_point("admit.after_row");
    }
    if gate.arrival_us != arrival_us {
        keep(tx, name, gate.arrival_us)?;
    }
    Ok(starts.len())
}

/// Since when somebody who is admitted, and whose time has come, waits to be claimed.
fn idle_since(tx: &Tx<'_>, name: &str) -> Answer<Option<u64>> {
    let sql = "SELECT min(admitted_at) FROM attempt
        WHERE gate = ?1 AND admitted_at IS NOT NULL AND ready_at IS NOT NULL";
    Ok(tx.find(sql, [name], |row| row.get(0))?.flatten())
}

/// The gate's next time; and a few rows go whose time has passed.
fn keep(tx: &Tx<'_>, name: &str, arrival_us: u64) -> Answer<()> {
    let sql = "INSERT INTO gate VALUES (?1, ?2) ON CONFLICT DO UPDATE SET arrival_us = ?2";
    tx.execute(sql, params![name, arrival_us])?;
    crash_point("admit.after_arrival");
    let sweep = "DELETE FROM gate WHERE gate IN (
        SELECT gate FROM gate WHERE arrival_us < ?1 ORDER BY arrival_us LIMIT 16)";
    tx.execute(sweep, [tx.now * 1_000]).map(|_| ())
}

fn line(tx: &Tx<'_>, name: &str, most: i64) -> Answer<Vec<(AttemptKey, Limit)>> {
    tx.all(include_str!("../../sql/sqlite/line.sql"), params![name, most], |row| {
        let limit =
            || -> rusqlite::Result<Limit> { Ok(Limit { max: row.get(5)?, gap_us: row.get(6)? }) };
        Ok((key(row)?, limit().map_err(|error| failed(&error))?))
    })
}

pub(super) fn lines(tx: &Tx<'_>, after: Option<&str>, limit: u32) -> Answer<Vec<String>> {
    let page = params![after.unwrap_or_default(), limit];
    tx.all(include_str!("../../sql/sqlite/lines.sql"), page, |row| {
        row.get(0).map_err(|error| failed(&error))
    })
}

pub(super) fn gate(tx: &Tx<'_>, gate: &str) -> Answer<GateView> {
    let view = tx.find(include_str!("../../sql/upkeep/gate.sql"), [gate], |row| {
        let next_at = row.get::<_, Option<u64>>(2)?.map(|us| us.div_ceil(1_000));
        Ok(GateView { admitted: row.get(0)?, waiting: row.get(1)?, next_at })
    })?;
    Ok(view.unwrap_or(GateView { admitted: 0, waiting: 0, next_at: None }))
}
