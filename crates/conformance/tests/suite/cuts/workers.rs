//! What workers say and commit, signals and those who wait for them, and gates.

use sprag_engine::batch::store::{BatchOutcome, BatchWorked, BatchWrite, Batches};
use sprag_engine::gate::Gates;
use sprag_engine::ids::JobId;
use sprag_engine::plan;
use sprag_engine::signals::{Signal, Signals, WaitOutcome, WaitWrite};
use sprag_engine::store::{HandOff, Held, Pulse, StaleCallback, Store};
use sprag_kernel::Code;
use sprag_kernel::decide::gate::Limit;
use sprag_kernel::decide::rows::LeaseId;

use super::{LIMIT, Stage, of_job};
use crate::batch::committed;
use crate::deeds::Then;
use crate::gates::gated;
use crate::world::{Postgres, World};

pub(super) async fn workers(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let of_held = |held: &Held| of_job(&held.key.job_id);
    let unacked = async || {
        let mut held = stage.entered().await;
        let (to, lease) = (HandOff::PulledUnacked, LeaseId(7));
        let write = plan::dispatch_to(to, &mut held, lease, &play.policy).unwrap();
        play.dispatch_as(engine, write).await.unwrap();
        play.held(held.key.job_id).await
    };
    // A worker that hears nothing says it again, and is looked at anew.
    let ack = async |held: &Held, _| {
        let held = play.held(held.key.job_id).await;
        let fence = plan::fence(&held.attempt);
        match plan::worker::ack(&held, fence, &play.policy).unwrap() {
            Some(write) => cut.renew(engine, vec![write]).await.map(drop),
            None => Ok(()),
        }
    };
    stage.survives("renew", unacked, ack, of_held).await;

    let record = async |held: &Held, _| {
        let (key, lease_id) = (held.key, LeaseId(3));
        let refused = StaleCallback { key, lease_id, callback: "ack", code: Code::StaleFence };
        cut.record_stale(engine, vec![refused]).await
    };
    stage.survives("record_stale", async || stage.running().await, record, of_held).await;

    let release =
        async |held: &Held, _| cut.release(engine, vec![(held.key, held.attempt.version)]).await;
    stage.survives("release", async || stage.entered().await, release, of_held).await;

    let unpublished = async || {
        let held = stage.entered().await;
        play.write_directive(&held).await;
        let sql = format!(
            "UPDATE attempt SET owner = NULL, timer_at = {} WHERE job_id = '{}' AND step_index = 0",
            play.clock.now(),
            held.key.job_id
        );
        play.world.execute(&sql).await.unwrap();
        held
    };
    let publish = async |held: &Held, _| {
        let service = play.attempts(held.key.job_id).await[0].service.clone();
        cut.unpublished(engine, vec![service], 1).await
    };
    stage.survives("unpublished", unpublished, publish, of_held).await;

    let pulse = async |held: &Held, _| {
        let lease_id = held.attempt.lease_id.unwrap();
        let progress = Some("1".to_owned());
        cut.pulse(engine, vec![Pulse { key: held.key, lease_id, lease_ms: 5, progress }]).await
    };
    stage.survives("pulse", async || stage.running().await, pulse, of_held).await;

    let open = async |held: &Held, _| {
        let opened = cut.open_batch(engine, held.key, held.attempt.lease_id.unwrap()).await?;
        assert!(opened.is_some());
        Ok(())
    };
    stage.survives("open_batch", async || stage.running().await, open, of_held).await;
    let opened = async || {
        let held = stage.running().await;
        let lease_id = held.attempt.lease_id.unwrap();
        let point = play.store().open_batch(engine, held.key, lease_id).await.unwrap().unwrap();
        committed(&held, point, 3, None)
    };
    let commit = async |write: &BatchWrite, repeats| {
        let outcome = cut.commit_batch(engine, BatchWrite { repeats, ..write.clone() }).await?;
        assert!(matches!(outcome, BatchOutcome::Committed { .. }), "{outcome:?}");
        Ok(())
    };
    stage.survives("commit_batch", opened, commit, |write| of_job(&write.key.job_id)).await;
    let commit_with = async |write: &BatchWrite, repeats| {
        let work = Postgres::work(&write.key.job_id.to_string(), Then::Ends);
        let write = BatchWrite { repeats, ..write.clone() };
        let worked = cut.commit_batch_with(engine, write, work, LIMIT).await?;
        assert!(matches!(worked, BatchWorked::Committed { .. }), "{worked:?}");
        Ok(())
    };
    let with_effect = |write: &BatchWrite| {
        let job_id = &write.key.job_id;
        let effect = format!("SELECT 'effect' FROM public.effect WHERE name = '{job_id}'");
        format!("{effect} UNION ALL {}", of_job(job_id))
    };
    stage.survives("commit_batch_with", opened, commit_with, with_effect).await;
}

pub(super) async fn signals(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let said = || Signal::new("s", "go", &serde_json::Value::Null);
    let signal = async |held: &Held, _| cut.signal(engine, held.key.job_id, said()).await;
    let of_held = |held: &Held| of_job(&held.key.job_id);
    stage.survives("signal", async || stage.entered().await, signal, of_held).await;
    let told = async || {
        let held = stage.entered().await;
        play.store().signal(engine, held.key.job_id, said()).await.unwrap().unwrap().unwrap();
        WaitWrite {
            key: held.key,
            version: held.attempt.version,
            signal: "go".to_owned(),
            timeout_ms: None,
        }
    };
    let wait = async |write: &WaitWrite, _| {
        assert_eq!(cut.wait(engine, vec![write.clone()]).await?, [WaitOutcome::Runs]);
        Ok(())
    };
    stage.survives("wait", told, wait, |write| of_job(&write.key.job_id)).await;
}

pub(super) async fn gates(stage: &Stage) {
    let (play, cut, engine) = (&stage.play, &stage.cut, stage.engine());
    let in_line = async || {
        let gate = JobId::new().to_string();
        let job = gated(&gate, Limit { max: Some(1), gap_us: Some(5_000) }, 1);
        play.submit(job.clone()).await.unwrap();
        (job.facts.job_id, gate)
    };
    let admit = async |(_, gate): &(JobId, String), _| cut.admit(engine, vec![gate.clone()]).await;
    let admitted = |(job_id, gate): &(JobId, String)| {
        let next = format!("SELECT 'next ' || arrival_us FROM gate WHERE gate = '{gate}'");
        format!("{next} UNION ALL {}", of_job(job_id))
    };
    stage.survives("admit", in_line, admit, admitted).await;
}
