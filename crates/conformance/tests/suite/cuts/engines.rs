//! The lives of engines, and what they do beside jobs.

use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::inbox::{InboxId, TakeIn};
use sprag_engine::store::{Held, Store};
use sprag_engine::upkeep::{Delivery, Task, Upkeep};

use super::{Stage, of_job};
use crate::world::World;

pub(super) async fn engines(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let is_there =
        |name: &String| format!("SELECT 'joined' FROM engine WHERE name = '{name}' LIMIT 1");
    // A life that nobody heard of never beats, and is taken over like any other.
    let join = async |name: &String, _| cut.join(name).await;
    stage.survives("join", async || JobId::new().to_string(), join, is_there).await;
    let newcomer = async || play.store().join("newcomer").await.unwrap();
    let life = |no: &EngineNo| {
        format!("SELECT ROW(beat_at, dead)::text FROM engine WHERE engine_no = {}", no.0)
    };
    let beat = async |no: &EngineNo, _| cut.beat(*no, None).await;
    stage.survives("beat", newcomer, beat, life).await;
    let leave = async |no: &EngineNo, _| cut.leave(*no).await;
    stage.survives("leave", newcomer, leave, life).await;

    let left_behind = async || {
        let dead = newcomer().await;
        (dead, stage.entered_as(dead).await)
    };
    let take_over = async |(dead, _): &(EngineNo, Held), _| cut.take_over(*dead, engine).await;
    let taken = |(dead, held): &(EngineNo, Held)| {
        format!(
            "SELECT 'dead ' || dead FROM engine WHERE engine_no = {} UNION ALL {}",
            dead.0,
            of_job(&held.key.job_id)
        )
    };
    stage.survives("take_over", left_behind, take_over, taken).await;

    let due = async || {
        let (job_id, service) = stage.queued().await;
        let sql = format!(
            "UPDATE attempt SET ready_at = NULL, timer_at = {} WHERE job_id = '{job_id}' AND step_index = 0",
            play.clock.now(),
        );
        play.world.execute(&sql).await.unwrap();
        (job_id, service)
    };
    let look = async |_: &(JobId, String), _| cut.due(engine, 500).await;
    stage.survives("due", due, look, |(job, _)| of_job(job)).await;

    let put = async |name: &String, _| cut.put_protocol(name, "{}").await;
    let kept =
        |name: &String| format!("SELECT definition FROM protocol WHERE protocol_id = '{name}'");
    stage.survives("put_protocol", async || JobId::new().to_string(), put, kept).await;

    let written = async || {
        let sql = "SELECT sprag.submit('{}'::text)::text";
        let inbox_id =
            play.world.query(sql).await.unwrap()[0][0].as_ref().unwrap().parse().unwrap();
        TakeIn { inbox_id: InboxId(inbox_id), job: Ok(Stage::job("t1")) }
    };
    let take_in = async |entry: &TakeIn, _| cut.take_in(engine, vec![entry.clone()]).await;
    let taken = |entry: &TakeIn| {
        format!(
            "SELECT ROW(taken_at, error_code, job_id IS NULL)::text FROM inbox WHERE inbox_id = {}
             UNION ALL {}",
            entry.inbox_id,
            of_job(&entry.job.as_ref().unwrap().facts.job_id)
        )
    };
    stage.survives("take_in", written, take_in, taken).await;
}

pub(super) async fn upkeep(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let name = async || JobId::new().to_string();
    let of_service =
        |name: &String| format!("SELECT count(*)::text FROM service WHERE service = '{name}'");
    let paused = async || {
        let name = name().await;
        play.store().pause(&name).await.unwrap();
        name
    };
    stage.survives("pause", name, async |name, _| cut.pause(name).await, of_service).await;
    stage.survives("resume", paused, async |name, _| cut.resume(name).await, of_service).await;
    play.world.execute("DELETE FROM service").await.unwrap();
    let serve = async |name: &String, _| cut.serve(play.engine, vec![name.clone()]).await;
    let seen = |name: &String| format!("SELECT seen_at::text FROM served WHERE service = '{name}'");
    stage.survives("serve", name, serve, seen).await;
    let limit = async |name: &String, _| cut.limit_tenant(name, Some(3)).await;
    let of_tenant = |name: &String| {
        format!("SELECT ROW(max_open, open_jobs)::text FROM tenant WHERE tenant_id = '{name}'")
    };
    stage.survives("limit_tenant", name, limit, of_tenant).await;

    let task = async || {
        let task = format!("hook:{}", JobId::new());
        (stage.closed(&task).await, task)
    };
    let claim = async |(_, task): &(JobId, String), _| {
        cut.claim_tasks(engine, vec![task.clone()], 1, 1_000).await
    };
    stage.survives("claim_tasks", task, claim, |(job, _)| of_job(job)).await;
    let delivered = async || {
        let (_, task) = task().await;
        let mut tasks = play.store().claim_tasks(engine, vec![task], 1, 1_000).await.unwrap();
        tasks.remove(0)
    };
    let settle =
        async |task: &Task, _| cut.settle_tasks(engine, vec![(task.clone(), Delivery::Done)]).await;
    stage.survives("settle_tasks", delivered, settle, |task| of_job(&task.job_id)).await;

    let over = async || {
        let settled = delivered().await;
        let delivery = vec![(settled.clone(), Delivery::Done)];
        play.store().settle_tasks(engine, delivery).await.unwrap();
        // The job of the newest event stays.
        stage.queued().await;
        settled.job_id
    };
    let gone = |job_id: &JobId| {
        format!("SELECT 'key' FROM retired WHERE job_id = '{job_id}' UNION ALL {}", of_job(job_id))
    };
    let retire = async |_: &JobId, _| cut.retire(engine, 0, None, 10_000).await;
    stage.survives("retire", over, retire, gone).await;
    let retired = async || {
        let job_id = over().await;
        play.store().retire(engine, 0, None, 10_000).await.unwrap();
        job_id
    };
    let forget = async |_: &JobId, _| cut.forget(engine, 0, 10_000).await;
    let left =
        |job_id: &JobId| format!("SELECT count(*)::text FROM retired WHERE job_id = '{job_id}'");
    stage.survives("forget", retired, forget, left).await;
}
