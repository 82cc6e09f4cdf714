//! Schedules: kept, and moved on tick by tick, with their envelopes laid into the inbox.

use rusqlite::{Row, params};
use sprag_engine::crash::crash_point;
use sprag_engine::schedules::{Rest, Schedule, ScheduleView, Schedules, TickWrite};
use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::decide::schedule::Missed;
use sprag_kernel::retry::Millis;

use super::SqliteStore;
use super::rows::failed;
use super::writer::Tx;

impl Schedules for SqliteStore {
    async fn put_schedule(
        &self,
        schedule: Schedule,
        next_at: Option<Millis>,
    ) -> Answer<ScheduleView> {
        self.writer.run(move |tx| put(tx, &schedule, next_at)).await
    }

    async fn schedule(&self, tenant_id: &str, schedule_id: &str) -> Answer<Option<ScheduleView>> {
        let (tenant_id, schedule_id) = (tenant_id.to_owned(), schedule_id.to_owned());
        self.readers.run(move |tx| one(tx, &tenant_id, &schedule_id)).await
    }

    async fn schedules(&self, tenant_id: Option<&str>) -> Answer<Vec<ScheduleView>> {
        let tenant_id = tenant_id.map(str::to_owned);
        let sql =
            format!("{SELECT} WHERE ?1 IS NULL OR tenant_id = ?1 ORDER BY tenant_id, schedule_id");
        self.readers.run(move |tx| tx.all(&sql, [&tenant_id], view)).await
    }

    async fn remove_schedule(&self, tenant_id: &str, schedule_id: &str) -> Answer<bool> {
        let (tenant_id, schedule_id) = (tenant_id.to_owned(), schedule_id.to_owned());
        let sql = "DELETE FROM schedule WHERE tenant_id = ?1 AND schedule_id = ?2";
        self.writer
            .run(move |tx| tx.execute(sql, [&tenant_id, &schedule_id]).map(|rows| rows > 0))
            .await
    }

    async fn rest_schedule(&self, tenant_id: &str, schedule_id: &str, rest: Rest) -> Answer<()> {
        let (tenant_id, schedule_id) = (tenant_id.to_owned(), schedule_id.to_owned());
        self.writer
            .run(move |tx| {
                let (sql, value) = match rest {
                    Rest::Paused => (PAUSE, Some(tx.now)),
                    Rest::Awake(next_at) => (RESUME, next_at.map(u64::cast_signed)),
                };
                tx.execute(sql, params![tenant_id, schedule_id, value]).map(|_| ())
            })
            .await
    }

    async fn next_schedules(&self, limit: u32) -> Answer<Vec<ScheduleView>> {
        let sql = format!(
            "{SELECT} WHERE next_at IS NOT NULL AND paused_at IS NULL ORDER BY next_at LIMIT ?1"
        );
        self.readers.run(move |tx| tx.all(&sql, [limit], view)).await
    }

    async fn tick(&self, write: TickWrite) -> Answer<bool> {
        self.writer.run(move |tx| tick(tx, &write)).await
    }
}

const SELECT: &str = "SELECT tenant_id, schedule_id, cron, zone, missed, envelope, version, next_at, \
    paused_at, last_tick FROM schedule";
const PAUSE: &str = "UPDATE schedule SET paused_at = ?3, version = version + 1
    WHERE tenant_id = ?1 AND schedule_id = ?2 AND paused_at IS NULL";
const RESUME: &str = "UPDATE schedule SET paused_at = NULL, next_at = ?3, version = version + 1
    WHERE tenant_id = ?1 AND schedule_id = ?2 AND paused_at IS NOT NULL";

fn view(row: &Row<'_>) -> Answer<ScheduleView> {
    let unknown = || StoreError::Poison("a schedule has a policy that does not exist".to_owned());
    let missed: i16 = row.get(4).map_err(|error| failed(&error))?;
    let missed = Missed::from_code(missed).ok_or_else(unknown)?;
    let read = || -> rusqlite::Result<ScheduleView> {
        Ok(ScheduleView {
            schedule: Schedule {
                tenant_id: row.get(0)?,
                schedule_id: row.get(1)?,
                cron: row.get(2)?,
                zone: row.get(3)?,
                missed,
                envelope: row.get(5)?,
            },
            version: row.get(6)?,
            next_at: row.get(7)?,
            paused_at: row.get(8)?,
            last_tick: row.get(9)?,
        })
    };
    read().map_err(|error| failed(&error))
}

fn one(tx: &Tx<'_>, tenant_id: &str, schedule_id: &str) -> Answer<Option<ScheduleView>> {
    let sql = format!("{SELECT} WHERE tenant_id = ?1 AND schedule_id = ?2");
    Ok(tx.all(&sql, [tenant_id, schedule_id], view)?.pop())
}

fn put(tx: &Tx<'_>, schedule: &Schedule, next_at: Option<Millis>) -> Answer<ScheduleView> {
    tx.execute(
        "INSERT INTO schedule (tenant_id, schedule_id, cron, zone, missed, envelope, version, created_at, next_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?7, ?8) ON CONFLICT DO NOTHING",
        params![
            schedule.tenant_id,
            schedule.schedule_id,
            schedule.cron,
            schedule.zone,
            schedule.missed.code(),
            schedule.envelope,
            tx.now,
            next_at,
        ],
    )?;
    let gone = || StoreError::Unavailable("the schedule went away".to_owned());
    one(tx, &schedule.tenant_id, &schedule.schedule_id)?.ok_or_else(gone)
}

fn tick(tx: &Tx<'_>, write: &TickWrite) -> Answer<bool> {
    let (tenant_id, schedule_id) = (&write.tenant_id, &write.schedule_id);
    let moved = tx.execute(
        "UPDATE schedule SET version = version + 1, last_tick = ?4, next_at = ?5
         WHERE tenant_id = ?1 AND schedule_id = ?2 AND version = ?3 AND paused_at IS NULL",
        params![tenant_id, schedule_id, write.version, write.last_tick, write.next_at],
    )?;
    if moved == 0 {
        return Ok(false);
    }
    crash_point("schedule.after_move");
    for dedup_key in &write.dedup_keys {
        tx.execute(
            "INSERT INTO inbox (envelope, submitted_at, dedup_key)
             SELECT envelope, ?3, ?4 FROM schedule WHERE tenant_id = ?1 AND schedule_id = ?2",
            params![tenant_id, schedule_id, tx.now, dedup_key],
        )?;
        crash_point("schedule.after_envelope");
    }
    Ok(true)
}
