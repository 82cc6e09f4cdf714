//! What is done beside jobs: pauses, limits, deliveries, retention, counts.

use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::{Answer, StoreError};
use sprag_engine::upkeep::{
    Backlog, Counts, Delivery, Retired, ServiceView, Task, TaskView, TenantView,
};
use sprag_kernel::retry::Millis;
use uuid::Uuid;

use super::failure::failed;
use super::hints::ring;
use super::pools::{Pools, begin, commit};
use super::rows::{get, state, time, unsigned, unsigned_long};
use super::slice::{signed, span};
use crate::AGEING_MS;

pub(super) async fn pause(pools: &Pools, service: &str) -> Answer<()> {
    let sql = "INSERT INTO sprag.service VALUES ($1, sprag.now_ms($2)) ON CONFLICT DO NOTHING";
    pools.run(sql, &[&service, &pools.test_now()]).await.map(|_| ())
}

pub(super) async fn resume(pools: &Pools, service: &str) -> Answer<()> {
    pools.run("DELETE FROM sprag.service WHERE service = $1", &[&service]).await?;
    ring(pools).await;
    Ok(())
}

pub(super) async fn serve(pools: &Pools, engine: EngineNo, services: &[String]) -> Answer<()> {
    let sql = include_str!("../../sql/postgres/serve.sql");
    let noted = pools.run(sql, &[&engine.0, &pools.test_now(), &services]).await?;
    if noted.is_empty() { pools.expect_alive(engine).await } else { Ok(()) }
}

pub(super) async fn services(pools: &Pools) -> Answer<Vec<ServiceView>> {
    let rows = pools.read(include_str!("../../sql/upkeep/services.sql"), &[&AGEING_MS]).await?;
    rows.iter()
        .map(|row| {
            let (service, paused_at) = (get(row, 0)?, time(row, 1)?);
            let (ready, seen_at) = (unsigned_long(row, 2)?, time(row, 3)?);
            let ready_since = time(row, 4)?;
            Ok(ServiceView { service, paused_at, ready, seen_at, ready_since })
        })
        .collect()
}

/// Sets a limit. The first one of a tenant counts what is open: no job may be created or closed between
/// the count and the row that keeps it, so the table is locked for this moment.
pub(super) async fn limit_tenant(pools: &Pools, tenant: &str, max: Option<u32>) -> Answer<()> {
    let Some(max) = max else {
        let sql = "DELETE FROM sprag.tenant WHERE tenant_id = $1";
        return pools.run(sql, &[&tenant]).await.map(|_| ());
    };
    let max = signed(max);
    let set = "UPDATE sprag.tenant SET max_open = $2 WHERE tenant_id = $1 RETURNING 1";
    if !pools.run(set, &[&tenant, &max]).await?.is_empty() {
        return Ok(());
    }
    let mut client = pools.plain().await?;
    let tx = begin(&mut client).await?;
    let run = async {
        tx.batch_execute("LOCK TABLE sprag.job IN SHARE ROW EXCLUSIVE MODE").await?;
        crash_point("postgres.limit_tenant.after_lock");
        let sql = include_str!("../../sql/postgres/insert_tenant.sql");
        tx.execute(sql, &[&tenant, &max]).await?;
        commit(tx).await
    };
    run.await.map_err(|error| failed(&error))
}

pub(super) async fn tenants(pools: &Pools) -> Answer<Vec<TenantView>> {
    let rows = pools.read(include_str!("../../sql/upkeep/tenants.sql"), &[]).await?;
    rows.iter()
        .map(|row| {
            let (max_open, open_jobs) = (unsigned(row, 1)?, unsigned(row, 2)?);
            Ok(TenantView { tenant_id: get(row, 0)?, max_open, open_jobs })
        })
        .collect()
}

pub(super) async fn claim_tasks(
    pools: &Pools,
    engine: EngineNo,
    (tasks, max): (&[String], u32),
    hold_ms: Millis,
) -> Answer<Vec<Task>> {
    let sql = include_str!("../../sql/postgres/claim_tasks.sql");
    let (max, hold) = (i64::from(max), span(hold_ms));
    let rows = pools.run(sql, &[&engine.0, &pools.test_now(), &tasks, &max, &hold]).await?;
    if rows.is_empty() {
        pools.expect_alive(engine).await?;
    }
    let mut claimed = Vec::with_capacity(rows.len());
    for row in &rows {
        let job_id = JobId::from(get::<Uuid>(row, 0)?);
        claimed.push(Task { job_id, task: get(row, 1)?, delivery: unsigned(row, 2)? });
    }
    // An update returns rows as it meets them.
    let place = |task: &Task| tasks.iter().position(|asked| *asked == task.task);
    claimed.sort_by_key(|task| (place(task), task.job_id));
    Ok(claimed)
}

pub(super) async fn settle_tasks(
    pools: &Pools,
    engine: EngineNo,
    settled: &[(Task, Delivery)],
) -> Answer<()> {
    let jobs: Vec<Uuid> = settled.iter().map(|(task, _)| task.job_id.uuid()).collect();
    let tasks: Vec<&str> = settled.iter().map(|(task, _)| task.task.as_str()).collect();
    let deliveries: Vec<i32> = settled.iter().map(|(task, _)| signed(task.delivery)).collect();
    let outcome = |delivery: &Delivery| match delivery {
        Delivery::Done => (None, None),
        Delivery::Failed { delay_ms, message } => (Some(span(*delay_ms)), Some(message.clone())),
    };
    let (delays, messages): (Vec<_>, Vec<_>) =
        settled.iter().map(|(_, delivery)| outcome(delivery)).unzip();
    let sql = include_str!("../../sql/postgres/settle_tasks.sql");
    let now = pools.test_now();
    let written =
        pools.run(sql, &[&engine.0, &now, &jobs, &tasks, &deliveries, &delays, &messages]).await?;
    if written.is_empty() { pools.expect_alive(engine).await } else { Ok(()) }
}

pub(super) async fn undelivered(pools: &Pools) -> Answer<u64> {
    let sql = "SELECT count(*) FROM sprag.completion WHERE due_at IS NOT NULL";
    pools.read(sql, &[]).await?.first().map_or(Ok(0), |row| unsigned_long(row, 0))
}

pub(super) async fn tasks(pools: &Pools, job_id: JobId) -> Answer<Vec<TaskView>> {
    let sql = "SELECT task, deliveries, due_at, owner IS NOT NULL, error_message
        FROM sprag.completion WHERE job_id = $1 AND due_at IS NOT NULL ORDER BY task COLLATE \"C\"";
    let rows = pools.read(sql, &[&job_id.uuid()]).await?;
    rows.iter()
        .map(|row| {
            let (task, deliveries) = (get(row, 0)?, unsigned(row, 1)?);
            let due_at = time(row, 2)?.unwrap_or_default();
            Ok(TaskView { task, deliveries, due_at, is_claimed: get(row, 3)?, error: get(row, 4)? })
        })
        .collect()
}

pub(super) async fn backlog(pools: &Pools, now: Millis, since: Millis) -> Answer<Backlog> {
    let sql = include_str!("../../sql/upkeep/backlog.sql");
    let (now, since) = (span(now), span(since));
    let rows = pools.read(sql, &[&now, &since, &AGEING_MS]).await?;
    let Some(row) = rows.first() else { return Ok(Backlog::default()) };
    Ok(Backlog {
        timers_due: unsigned_long(row, 0)?,
        unpublished: unsigned_long(row, 1)?,
        retries_waiting: unsigned_long(row, 2)?,
        stuck_jobs: unsigned_long(row, 3)?,
    })
}

pub(super) async fn retire(
    pools: &Pools,
    engine: EngineNo,
    keep_ms: Millis,
    (after, limit): (Option<JobId>, u32),
) -> Answer<Retired> {
    let sql = include_str!("../../sql/postgres/retire.sql");
    let (after, limit) = (after.map_or(Uuid::nil(), JobId::uuid), i64::from(limit));
    let keep = span(keep_ms);
    let rows = pools.run(sql, &[&engine.0, &pools.test_now(), &keep, &after, &limit]).await?;
    let row = rows.first().ok_or(StoreError::Fenced)?;
    let deleted = usize::try_from(get::<i64>(row, 0)?).unwrap_or(0);
    if deleted > 0 {
        crash_point("postgres.retire.after_deletion");
    }
    // A job that is younger than the limit, or the end, is the end of this round.
    let is_round_over = get::<i64>(row, 1)? < limit || get(row, 2)?;
    let last = get::<Option<Uuid>>(row, 3)?.map(JobId::from);
    Ok(Retired { deleted, next: last.filter(|_| !is_round_over) })
}

pub(super) async fn forget(
    pools: &Pools,
    engine: EngineNo,
    keep_ms: Millis,
    limit: u32,
) -> Answer<usize> {
    let sql = include_str!("../../sql/postgres/forget_retired.sql");
    let (keep, limit) = (span(keep_ms), i64::from(limit));
    let rows = pools.run(sql, &[&engine.0, &pools.test_now(), &keep, &limit]).await?;
    if rows.is_empty() {
        pools.expect_alive(engine).await?;
    }
    Ok(rows.len())
}

pub(super) async fn counts(pools: &Pools) -> Answer<Counts> {
    let rows = pools.read(include_str!("../../sql/upkeep/counts.sql"), &[]).await?;
    rows.iter().map(|row| Ok((state(row, 0)?, unsigned_long(row, 1)?))).collect()
}
