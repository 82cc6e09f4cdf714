//! Schedules: kept, and moved on tick by tick, with their envelopes laid into the inbox.

use sprag_engine::schedules::{Rest, Schedule, ScheduleView, Schedules, TickWrite};
use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::decide::schedule::Missed;
use sprag_kernel::retry::Millis;
use tokio_postgres::Row;

use super::PostgresStore;
use super::rows::{get, time, unsigned_long};
use super::slice::span;

impl Schedules for PostgresStore {
    async fn put_schedule(
        &self,
        schedule: Schedule,
        next_at: Option<Millis>,
    ) -> Answer<ScheduleView> {
        let sql = "INSERT INTO sprag.schedule (tenant_id, schedule_id, cron, zone, missed, envelope, version,
                created_at, next_at)
            VALUES ($1, $2, $3, $4, $5, $6, sprag.now_ms($8), sprag.now_ms($8), $7) ON CONFLICT DO NOTHING";
        let Schedule { tenant_id, schedule_id, cron, zone, missed, envelope } = &schedule;
        let (missed, next_at) = (missed.code(), next_at.map(span));
        let now = self.pools.test_now();
        let row: super::pools::Params<'_> =
            &[tenant_id, schedule_id, cron, zone, &missed, envelope, &next_at, &now];
        self.pools.run(sql, row).await?;
        let gone = || StoreError::Unavailable("the schedule went away".to_owned());
        self.schedule(tenant_id, schedule_id).await?.ok_or_else(gone)
    }

    async fn schedule(&self, tenant_id: &str, schedule_id: &str) -> Answer<Option<ScheduleView>> {
        let sql = format!("{SELECT} WHERE tenant_id = $1 AND schedule_id = $2");
        self.pools.read(&sql, &[&tenant_id, &schedule_id]).await?.first().map(view).transpose()
    }

    async fn schedules(&self, tenant_id: Option<&str>) -> Answer<Vec<ScheduleView>> {
        let sql = format!(
            "{SELECT} WHERE $1::text IS NULL OR tenant_id = $1 ORDER BY tenant_id, schedule_id"
        );
        self.pools.read(&sql, &[&tenant_id]).await?.iter().map(view).collect()
    }

    async fn remove_schedule(&self, tenant_id: &str, schedule_id: &str) -> Answer<bool> {
        let sql =
            "DELETE FROM sprag.schedule WHERE tenant_id = $1 AND schedule_id = $2 RETURNING 1";
        Ok(!self.pools.run(sql, &[&tenant_id, &schedule_id]).await?.is_empty())
    }

    async fn rest_schedule(&self, tenant_id: &str, schedule_id: &str, rest: Rest) -> Answer<()> {
        let now = self.pools.test_now();
        match rest {
            Rest::Paused => self.pools.run(PAUSE, &[&tenant_id, &schedule_id, &now]).await?,
            Rest::Awake(next_at) => {
                let next_at = next_at.map(span);
                self.pools.run(RESUME, &[&tenant_id, &schedule_id, &next_at]).await?
            }
        };
        Ok(())
    }

    async fn next_schedules(&self, limit: u32) -> Answer<Vec<ScheduleView>> {
        let sql = format!(
            "{SELECT} WHERE next_at IS NOT NULL AND paused_at IS NULL ORDER BY next_at LIMIT $1"
        );
        self.pools.read(&sql, &[&i64::from(limit)]).await?.iter().map(view).collect()
    }

    async fn tick(&self, write: TickWrite) -> Answer<bool> {
        let sql = include_str!("../../sql/postgres/tick.sql");
        let (last_tick, next_at) = (span(write.last_tick), write.next_at.map(span));
        let row: super::pools::Params<'_> = &[
            &write.tenant_id,
            &write.schedule_id,
            &write.version.cast_signed(),
            &last_tick,
            &next_at,
            &write.dedup_keys,
            &self.pools.test_now(),
        ];
        Ok(!self.pools.run(sql, row).await?.is_empty())
    }
}

const SELECT: &str = "SELECT tenant_id, schedule_id, cron, zone, missed, envelope, version, next_at, \
    paused_at, last_tick FROM sprag.schedule";
const PAUSE: &str = "UPDATE sprag.schedule SET paused_at = sprag.now_ms($3), version = version + 1
    WHERE tenant_id = $1 AND schedule_id = $2 AND paused_at IS NULL";
const RESUME: &str =
    "UPDATE sprag.schedule SET paused_at = NULL, next_at = $3, version = version + 1
    WHERE tenant_id = $1 AND schedule_id = $2 AND paused_at IS NOT NULL";

fn view(row: &Row) -> Answer<ScheduleView> {
    let unknown = || StoreError::Poison("a schedule has a policy that does not exist".to_owned());
    Ok(ScheduleView {
        schedule: Schedule {
            tenant_id: get(row, 0)?,
            schedule_id: get(row, 1)?,
            cron: get(row, 2)?,
            zone: get(row, 3)?,
            missed: Missed::from_code(get(row, 4)?).ok_or_else(unknown)?,
            envelope: get(row, 5)?,
        },
        version: unsigned_long(row, 6)?,
        next_at: time(row, 7)?,
        paused_at: time(row, 8)?,
        last_tick: time(row, 9)?,
    })
}
