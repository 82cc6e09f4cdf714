//! Schedules: a tick whose outcome is lost is not taken twice, and none is lost.

use sprag_engine::ids::JobId;
use sprag_engine::schedules::{Rest, Schedule, Schedules, TickWrite};
use sprag_engine::store::Store;
use sprag_kernel::decide::schedule::Missed;

use super::Stage;

const TENANT: &str = "t1";

fn schedule() -> Schedule {
    Schedule {
        tenant_id: TENANT.to_owned(),
        schedule_id: JobId::new().to_string(),
        cron: "* * * * *".to_owned(),
        zone: "UTC".to_owned(),
        missed: Missed::Once,
        envelope: "{}".to_owned(),
    }
}

/// The schedule and what its ticks have laid into the inbox, without what is new with every scene.
fn of_schedule(schedule: &Schedule) -> String {
    let id = &schedule.schedule_id;
    format!(
        "SELECT 'schedule ' || ROW(version, cron, next_at, paused_at, last_tick)::text FROM schedule
         WHERE schedule_id = '{id}'
         UNION ALL SELECT 'inbox ' || replace(dedup_key, '{id}', '') FROM inbox
         WHERE dedup_key LIKE '%{id}%' UNION ALL SELECT 'asked' ORDER BY 1"
    )
}

pub(super) async fn schedules(stage: &Stage) {
    let (play, cut) = (&stage.play, &stage.cut);
    // The clock stands still.
    let version = play.store().now().await.unwrap();
    let new = async || schedule();
    let put = async |schedule: &Schedule, _| cut.put_schedule(schedule.clone(), Some(60_000)).await;
    stage.survives("put_schedule", new, put, of_schedule).await;

    let kept = async || {
        let schedule = schedule();
        play.store().put_schedule(schedule.clone(), Some(60_000)).await.unwrap();
        schedule
    };
    // Whoever finds the schedule moved on has nothing more to do, as an engine that looks again.
    let tick = async |schedule: &Schedule, _| {
        let write = TickWrite {
            tenant_id: TENANT.to_owned(),
            schedule_id: schedule.schedule_id.clone(),
            version,
            dedup_keys: [60_000, 120_000]
                .map(|tick| format!("s:{}:{tick}", schedule.schedule_id))
                .into(),
            last_tick: 120_000,
            next_at: Some(180_000),
        };
        cut.tick(write).await
    };
    stage.survives("tick", kept, tick, of_schedule).await;

    let rest = async |schedule: &Schedule, _| {
        cut.rest_schedule(TENANT, &schedule.schedule_id, Rest::Paused).await
    };
    stage.survives("rest_schedule", kept, rest, of_schedule).await;
    let asleep = async || {
        let schedule = kept().await;
        let name = &schedule.schedule_id;
        play.store().rest_schedule(TENANT, name, Rest::Paused).await.unwrap();
        schedule
    };
    let wake = async |schedule: &Schedule, _| {
        cut.rest_schedule(TENANT, &schedule.schedule_id, Rest::Awake(Some(90_000))).await
    };
    stage.survives("rest_schedule", asleep, wake, of_schedule).await;

    let remove =
        async |schedule: &Schedule, _| cut.remove_schedule(TENANT, &schedule.schedule_id).await;
    stage.survives("remove_schedule", kept, remove, of_schedule).await;
}
