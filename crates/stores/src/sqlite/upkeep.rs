//! What is done beside jobs: pauses, limits, deliveries, retention, counts.

use rusqlite::{named_params, params};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::Answer;
use sprag_engine::upkeep::{
    Backlog, Counts, Delivery, Retired, ServiceView, Task, TaskView, TenantView,
};
use sprag_kernel::retry::Millis;

use super::engines::expect_alive;
use super::rows::{failed, state};
use super::writer::Tx;
use crate::AGEING_MS;

pub(super) fn pause(tx: &Tx<'_>, service: &str) -> Answer<()> {
    let sql = "INSERT INTO service VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    tx.execute(sql, params![service, tx.now]).map(|_| ())
}

pub(super) fn resume(tx: &Tx<'_>, service: &str) -> Answer<()> {
    tx.execute("DELETE FROM service WHERE service = ?1", [service]).map(|_| ())
}

/// What most stores have none of. A slice looks once instead of for each of its rows; nothing that it writes changes it.
#[derive(Clone, Copy)]
pub(super) struct Exceptions {
    /// While any service is paused nothing is entered ahead: all goes by the queue, where claims look.
    pub(super) is_any_paused: bool,
    /// Whether any tenant may have so many open jobs only.
    pub(super) is_any_limited: bool,
}

impl Exceptions {
    pub(super) fn look(tx: &Tx<'_>) -> Answer<Self> {
        let has_row = |sql| -> Answer<bool> { Ok(tx.find(sql, [], |_| Ok(()))?.is_some()) };
        Ok(Self {
            is_any_paused: has_row("SELECT 1 FROM service LIMIT 1")?,
            is_any_limited: has_row("SELECT 1 FROM tenant LIMIT 1")?,
        })
    }
}

pub(super) fn is_paused(tx: &Tx<'_>, service: &str) -> Answer<bool> {
    let sql = "SELECT 1 FROM service WHERE service = ?1";
    Ok(tx.find(sql, [service], |_| Ok(()))?.is_some())
}

pub(super) fn serve(tx: &Tx<'_>, engine: EngineNo, services: &[String]) -> Answer<()> {
    expect_alive(tx, engine)?;
    let sql = "INSERT INTO served VALUES (?1, ?2) ON CONFLICT DO UPDATE SET seen_at = ?2";
    for service in services {
        tx.execute(sql, params![service, tx.now])?;
        crash_point("serve.after_row");
    }
    Ok(())
}

pub(super) fn services(tx: &Tx<'_>) -> Answer<Vec<ServiceView>> {
    let weight = named_params! {"$1": AGEING_MS};
    tx.all(include_str!("../../sql/upkeep/services.sql"), weight, |row| {
        let view = || -> rusqlite::Result<ServiceView> {
            Ok(ServiceView {
                service: row.get(0)?,
                paused_at: row.get(1)?,
                ready: row.get(2)?,
                seen_at: row.get(3)?,
                ready_since: row.get(4)?,
            })
        };
        view().map_err(|error| failed(&error))
    })
}

pub(super) fn limit_tenant(tx: &Tx<'_>, tenant_id: &str, max_open: Option<u32>) -> Answer<()> {
    let Some(max_open) = max_open else {
        return tx.execute("DELETE FROM tenant WHERE tenant_id = ?1", [tenant_id]).map(|_| ());
    };
    let set = "UPDATE tenant SET max_open = ?2 WHERE tenant_id = ?1";
    if tx.execute(set, params![tenant_id, max_open])? == 0 {
        let open = include_str!("../../sql/sqlite/insert_tenant.sql");
        tx.execute(open, params![tenant_id, max_open])?;
    }
    Ok(())
}

pub(super) fn tenants(tx: &Tx<'_>) -> Answer<Vec<TenantView>> {
    tx.all(include_str!("../../sql/upkeep/tenants.sql"), [], |row| {
        let view = || -> rusqlite::Result<TenantView> {
            Ok(TenantView { tenant_id: row.get(0)?, max_open: row.get(1)?, open_jobs: row.get(2)? })
        };
        view().map_err(|error| failed(&error))
    })
}

pub(super) fn claim_tasks(
    tx: &Tx<'_>,
    engine: EngineNo,
    (tasks, max): (&[String], u32),
    hold_ms: Millis,
) -> Answer<Vec<Task>> {
    expect_alive(tx, engine)?;
    let until = tx.now + i64::try_from(hold_ms).unwrap_or(i64::MAX / 2);
    let mut claimed = Vec::new();
    for task in tasks {
        let left = u32::try_from(max as usize - claimed.len()).unwrap_or(0);
        let sql = include_str!("../../sql/sqlite/claim_tasks.sql");
        let claim = params![task, tx.now, left, engine.0, until];
        claimed.extend(tx.all(sql, claim, |row| {
            let task = || -> rusqlite::Result<Task> {
                let job_id = JobId::from_bytes(row.get(0)?);
                Ok(Task { job_id, task: task.clone(), delivery: row.get(1)? })
            };
            task().map_err(|error| failed(&error))
        })?);
    }
    crash_point("claim_tasks.after_claim");
    Ok(claimed)
}

pub(super) fn settle_tasks(
    tx: &Tx<'_>,
    engine: EngineNo,
    settled: &[(Task, Delivery)],
) -> Answer<()> {
    expect_alive(tx, engine)?;
    for (task, delivery) in settled {
        let (due_at, message) = match delivery {
            Delivery::Done => (None, None),
            Delivery::Failed { delay_ms, message } => {
                (Some(tx.now + i64::try_from(*delay_ms).unwrap_or(i64::MAX / 2)), Some(message))
            }
        };
        let (job_id, name) = (task.job_id.as_bytes(), &task.task);
        let sql = include_str!("../../sql/sqlite/settle_task.sql");
        tx.execute(sql, params![job_id, name, task.delivery, engine.0, due_at, message, tx.now])?;
        crash_point("settle_tasks.after_task");
    }
    Ok(())
}

pub(super) fn undelivered(tx: &Tx<'_>) -> Answer<u64> {
    let sql = "SELECT count(*) FROM completion WHERE due_at IS NOT NULL";
    tx.find(sql, [], |row| row.get(0)).map(Option::unwrap_or_default)
}

pub(super) fn tasks(tx: &Tx<'_>, job_id: JobId) -> Answer<Vec<TaskView>> {
    let sql = "SELECT task, deliveries, due_at, owner IS NOT NULL, error_message FROM completion
        WHERE job_id = ?1 AND due_at IS NOT NULL ORDER BY task";
    tx.all(sql, [job_id.as_bytes()], |row| {
        let view = || -> rusqlite::Result<TaskView> {
            Ok(TaskView {
                task: row.get(0)?,
                deliveries: row.get(1)?,
                due_at: row.get(2)?,
                is_claimed: row.get(3)?,
                error: row.get(4)?,
            })
        };
        view().map_err(|error| failed(&error))
    })
}

pub(super) fn backlog(tx: &Tx<'_>, now: Millis, since: Millis) -> Answer<Backlog> {
    let sql = include_str!("../../sql/upkeep/backlog.sql");
    // By name: SQLite numbers them in the order in which the text has them.
    let params = named_params! {"$1": now, "$2": since, "$3": AGEING_MS};
    tx.find(sql, params, |row| {
        Ok(Backlog {
            timers_due: row.get(0)?,
            unpublished: row.get(1)?,
            retries_waiting: row.get(2)?,
            stuck_jobs: row.get(3)?,
        })
    })
    .map(Option::unwrap_or_default)
}

pub(super) fn retire(
    tx: &Tx<'_>,
    engine: EngineNo,
    keep_ms: Millis,
    (after, limit): (Option<JobId>, u32),
) -> Answer<Retired> {
    expect_alive(tx, engine)?;
    let until = tx.now - i64::try_from(keep_ms).unwrap_or(i64::MAX / 2);
    let after = after.map_or([0; 16], |job_id| *job_id.as_bytes());
    let sql = include_str!("../../sql/sqlite/look_at_finished.sql");
    let page: Vec<([u8; 16], bool, bool)> = tx.all(sql, params![after, limit, until], |row| {
        let read = || Ok((row.get(0)?, row.get(1)?, row.get(2)?));
        read().map_err(|error| failed(&error))
    })?;
    let mut deleted = 0;
    for (job_id, _, _) in page.iter().filter(|(_, is_over, _)| *is_over) {
        let keep = include_str!("../../sql/sqlite/insert_retired.sql");
        tx.execute(keep, params![job_id, tx.now])?;
        crash_point("retire.after_key");
        for delete in [
            "DELETE FROM completion WHERE job_id = ?1",
            "DELETE FROM stale WHERE job_id = ?1",
            "DELETE FROM signal WHERE job_id = ?1",
            "DELETE FROM batch_journal WHERE job_id = ?1",
            "DELETE FROM batch WHERE job_id = ?1",
            include_str!("../../sql/sqlite/delete_events.sql"),
            "DELETE FROM attempt WHERE job_id = ?1",
        ] {
            tx.execute(delete, [job_id])?;
            crash_point("retire.after_rows");
        }
        let sql = "DELETE FROM job WHERE job_id = ?1 RETURNING state";
        if let Some(code) = tx.find(sql, [job_id], |row| row.get(0))? {
            tx.tally.gone(state(code)?);
        }
        crash_point("retire.after_job");
        deleted += 1;
    }
    // A job that is younger than the limit, or the end, is the end of this round.
    let is_round_over =
        page.len() < limit as usize || page.iter().any(|(_, _, is_young)| *is_young);
    let last = page.last().map(|(job_id, _, _)| JobId::from_bytes(*job_id));
    Ok(Retired { deleted, next: last.filter(|_| !is_round_over) })
}

pub(super) fn forget(tx: &Tx<'_>, engine: EngineNo, keep_ms: Millis, limit: u32) -> Answer<usize> {
    expect_alive(tx, engine)?;
    let until = tx.now - i64::try_from(keep_ms).unwrap_or(i64::MAX / 2);
    let sql = include_str!("../../sql/sqlite/forget_retired.sql");
    let forgotten = tx.execute(sql, params![until, limit])?;
    if forgotten > 0 {
        crash_point("forget.after_keys");
        tx.eras().forget_empty(tx)?;
    }
    Ok(forgotten)
}

pub(super) fn counts(tx: &Tx<'_>) -> Answer<Counts> {
    tx.all(include_str!("../../sql/upkeep/counts.sql"), [], |row| {
        let read = || -> rusqlite::Result<(u8, u64)> { Ok((row.get(0)?, row.get(1)?)) };
        let (code, jobs) = read().map_err(|error| failed(&error))?;
        Ok((state(code)?, jobs))
    })
}
