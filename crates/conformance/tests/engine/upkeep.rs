//! Hooks, reruns, pauses, limits and retention of a whole engine.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprag_engine::directive::Failure;
use sprag_engine::engine::EngineConfig;
use sprag_engine::hooks::{Ended, Hook};
use sprag_engine::store::Store;
use sprag_engine::upkeep::Upkeep;
use sprag_engine::worker::Handler;
use sprag_kernel::JobState;
use tokio::sync::mpsc;

use crate::world::{World, assert_clean, closed, echo, envelope, protocol};

const GRACE: Duration = Duration::from_secs(5);

fn quick() -> EngineConfig {
    EngineConfig {
        beat: Duration::from_millis(50),
        takeover: Duration::from_millis(300),
        poll: Duration::from_millis(5),
        sweep: Duration::from_millis(5),
        hook_backoff: vec![Duration::from_millis(1)],
        ..EngineConfig::default()
    }
}

/// Fails until it is told that all is well.
fn broken(well: &Arc<AtomicU32>) -> Handler {
    let well = well.clone();
    Handler::new(move |_: serde_json::Value, _, _| {
        let well = well.load(Ordering::SeqCst) == 1;
        async move { if well { Ok(1) } else { Err(Failure::fatal("BAD", "it is broken")) } }
    })
}

#[tokio::test]
async fn a_hook_is_called_until_it_succeeds_each_time_with_the_same_key() {
    let world = World::new();
    let (tell, mut told) = mpsc::unbounded_channel();
    let calls = Arc::new(AtomicU32::new(0));
    let hook = Hook::new(move |ended: Ended| {
        let (n, tell) = (calls.fetch_add(1, Ordering::SeqCst), tell.clone());
        async move {
            tell.send(ended).unwrap();
            assert!(n != 0, "the first call panics");
            if n == 1 { Err("the second fails") } else { Ok(()) }
        }
    });
    let mut protocol = protocol(&["a", "b"]);
    protocol.on_end = vec!["mail".to_owned()];
    let builder = world.builder().config(quick()).protocol(protocol).hook("mail", hook);
    let builder = builder.service("a", 1, echo()).service("b", 1, echo());
    let engine = builder.start().await.unwrap();
    let job_id = engine.submit(&envelope(7)).await.unwrap().job_id;
    for _ in 0..3 {
        let ended = told.recv().await.unwrap();
        assert_eq!((ended.job_id, ended.state), (job_id, JobState::Succeeded));
        assert_eq!(ended.output.unwrap()["step"], "b", "of the last step");
        assert_eq!(ended.effect_key, format!("{job_id}/hook:mail"));
    }
    while engine.store().undelivered().await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    assert!(told.try_recv().is_err(), "once it has succeeded it is not called again");
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_hook_that_nobody_had_is_called_by_a_later_engine() {
    let world = World::new();
    let mut named = protocol(&["a"]);
    named.on_end = vec!["late".to_owned()];
    let builder = world.builder().config(quick()).protocol(named.clone());
    let engine = builder.service("a", 1, echo()).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    closed(&engine, job_id).await;
    assert_eq!(engine.store().undelivered().await.unwrap(), 1);
    engine.shutdown(GRACE).await.unwrap();

    let (tell, mut told) = mpsc::unbounded_channel();
    let hook = Hook::new(move |ended: Ended| {
        let sent = tell.send(ended.job_id);
        async move { sent.map_err(|error| error.to_string()) }
    });
    let builder = world.builder().config(quick()).protocol(named).hook("late", hook);
    let engine = builder.start().await.unwrap();
    assert_eq!(told.recv().await.unwrap(), job_id);
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_job_that_ended_badly_is_run_again_once_per_number() {
    let world = World::new();
    let well = Arc::new(AtomicU32::new(0));
    let builder = world.builder().protocol(protocol(&["a"])).service("a", 1, broken(&well));
    let engine = builder.start().await.unwrap();
    let first = engine.submit(&envelope(1)).await.unwrap().job_id;
    let open = engine.submit(&envelope(2)).await.unwrap().job_id;
    closed(&engine, first).await;
    let second = engine.rerun(first, None).await.unwrap();
    assert!(second.created);
    closed(&engine, second.job_id).await;
    well.store(1, Ordering::SeqCst);
    let third = engine.rerun(first, None).await.unwrap();
    assert!(third.created && third.job_id != second.job_id, "the first rerun ended badly too");
    let job = closed(&engine, third.job_id).await;
    assert_eq!((job.row.state, job.facts.rerun_of), (JobState::Succeeded, Some(first)));
    assert_eq!(job.facts.dedup_key, format!("x:{first}:2"));
    let again = engine.rerun(first, None).await.unwrap();
    assert_eq!((again.job_id, again.created), (third.job_id, false), "it has succeeded by now");
    let named = engine.rerun(first, Some(1)).await.unwrap();
    assert_eq!((named.job_id, named.created), (second.job_id, false), "a number is one job");
    let refused = engine.rerun(third.job_id, None).await.unwrap_err();
    assert_eq!(refused.code().name(), "JOB_NOT_FAILED");
    closed(&engine, open).await;
    assert_eq!(engine.submit(&envelope(1)).await.unwrap().job_id, first, "a repeat is no rerun");
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_paused_service_starts_nothing_until_it_is_resumed() {
    let world = World::new();
    let ran = Arc::new(Mutex::new(Vec::new()));
    let seen = ran.clone();
    let handler = Handler::new(move |input: serde_json::Value, _, _| {
        seen.lock().unwrap().push(input["n"].as_u64().unwrap());
        async { Ok::<_, Failure>(1) }
    });
    let builder = world.builder().protocol(protocol(&["a"])).service("a", 2, handler);
    let engine = builder.start().await.unwrap();
    engine.pause("a").await.unwrap();
    let paused = engine.submit(&envelope(1)).await.unwrap().job_id;
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(ran.lock().unwrap().is_empty());
    let job = engine.store().job(paused).await.unwrap().unwrap();
    let attempts = engine.store().attempts(paused).await.unwrap();
    let explained = sprag_engine::explain::explain(
        &sprag_engine::explain::Seen::of(&job, &attempts),
        job.created_at,
    );
    assert!(explained.now.contains("is paused"), "{}", explained.now);
    engine.resume("a").await.unwrap();
    closed(&engine, paused).await;
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn retention_deletes_finished_jobs_and_a_repeat_is_still_known() {
    let world = World::new();
    let config = EngineConfig { retention: Some(Duration::from_millis(1)), ..quick() };
    let builder = world.builder().config(config).protocol(protocol(&["a"]));
    let engine = builder.service("a", 1, echo()).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    // The job of the newest event stays; here it is the second's.
    while engine.store().job(job_id).await.unwrap().is_some_and(|job| job.completed_at.is_none()) {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    engine.submit(&envelope(2)).await.unwrap();
    while engine.store().job(job_id).await.unwrap().is_some() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    let again = engine.submit(&envelope(1)).await.unwrap();
    assert_eq!((again.job_id, again.state, again.created), (job_id, JobState::Succeeded, false));
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

/// More jobs than a sweeper looks at before it rests when it finds nothing to delete.
#[tokio::test]
async fn a_sweeper_that_is_behind_does_not_rest_before_all_is_deleted() {
    const JOBS: usize = 10_500;
    let world = World::new();
    let builder = world.builder().protocol(protocol(&["a"]));
    let engine = builder.service("a", 64, echo()).start().await.unwrap();
    for n in 0..JOBS {
        engine.submit(&envelope(n)).await.unwrap();
    }
    while engine.store().open_jobs().await.unwrap() > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.shutdown(GRACE).await.unwrap();

    let config = EngineConfig {
        retention: Some(Duration::from_millis(1)),
        sweep: Duration::from_secs(100_000),
        ..quick()
    };
    let builder = world.builder().config(config).protocol(protocol(&["a"]));
    let engine = builder.service("a", 1, echo()).start().await.unwrap();
    let all_gone = async {
        // The job of the newest event stays.
        while engine.store().counts().await.unwrap() != [(JobState::Succeeded, 1)] {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let gone = tokio::time::timeout(Duration::from_secs(60), all_gone).await;
    assert!(gone.is_ok(), "{:?} are left", engine.store().counts().await);
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn j26_a_tenant_at_its_limit_is_told_so_and_served_again_later() {
    let world = World::new();
    let well = Arc::new(AtomicU32::new(1));
    let builder = world.builder().protocol(protocol(&["a"])).service("a", 1, broken(&well));
    let engine = builder.start().await.unwrap();
    engine.limit_tenant("t1", Some(1)).await.unwrap();
    engine.pause("a").await.unwrap();
    let first = engine.submit(&envelope(1)).await.unwrap().job_id;
    assert_eq!(engine.submit(&envelope(2)).await.unwrap_err().code().name(), "TENANT_LIMIT");
    engine.resume("a").await.unwrap();
    closed(&engine, first).await;
    let second = engine.submit(&envelope(2)).await.unwrap();
    assert!(second.created);
    closed(&engine, second.job_id).await;
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}
