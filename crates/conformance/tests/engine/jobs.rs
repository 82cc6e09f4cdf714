//! Jobs that go well, fail, are retried and cancelled.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use sprag_engine::directive::Failure;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_kernel::{JobState, StepState};
use tokio::sync::Notify;

use super::world::{World, assert_clean, closed, echo, envelope, protocol};

const GRACE: Duration = Duration::from_secs(5);

#[tokio::test]
async fn j23_a_three_step_job_succeeds_and_each_step_sees_what_came_before() {
    let world = World::new();
    let engine = world
        .builder()
        .protocol(protocol(&["a", "b", "c"]))
        .service("a", 2, echo())
        .service("b", 2, echo())
        .service("c", 2, echo())
        .start()
        .await
        .unwrap();
    let submitted = engine.submit(&envelope(7)).await.unwrap();
    assert!(submitted.created);
    let job = closed(&engine, submitted.job_id).await;
    assert_eq!(job.row.state, JobState::Succeeded);
    assert_eq!(job.row.attempts_total, 3);
    assert_eq!(job.row.semaphore.get(), 0);
    let attempts = engine.store().attempts(submitted.job_id).await.unwrap();
    let digits: Vec<_> = attempts
        .iter()
        .map(|a| (a.row.ledger.to_string(), a.row.ending.unwrap().guid.to_string()))
        .collect();
    let step = ("001111000000001".to_owned(), "000011000000001".to_owned());
    let last = ("001111100000001".to_owned(), "000111100000001".to_owned());
    assert_eq!(digits, [step.clone(), step, last]);
    let output: serde_json::Value =
        serde_json::from_str(attempts[2].output.as_ref().unwrap()).unwrap();
    assert_eq!(output["saw"]["a"]["n"], 7);
    assert_eq!(output["saw"]["b"]["step"], "b");
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_job_that_has_begun_goes_on_before_another_begins() {
    const SLOTS: usize = 4;
    let world = World::new();
    // Jobs that have begun their first step and not yet their last one, and the most there were.
    let seen = Arc::new(Mutex::new((0, 0)));
    let noted = seen.clone();
    let note = Handler::new(move |_: serde_json::Value, directive, _| {
        let mut seen = noted.lock().unwrap();
        match directive.step_id.as_str() {
            "a" => seen.0 += 1,
            "c" => seen.0 -= 1,
            _ => {}
        }
        seen.1 = seen.0.max(seen.1);
        async { Ok(1) }
    });
    let mut protocol = protocol(&["a", "b", "c"]);
    protocol.steps.iter_mut().for_each(|step| step.service = "work".to_owned());
    let engine =
        world.builder().protocol(protocol).service("work", SLOTS, note).start().await.unwrap();
    let mut jobs = Vec::new();
    for n in 0..300 {
        jobs.push(engine.submit(&envelope(n)).await.unwrap().job_id);
    }
    for job_id in jobs {
        closed(&engine, job_id).await;
    }
    let (left, most) = *seen.lock().unwrap();
    assert_eq!(left, 0, "every job has run its last step");
    assert!(most <= SLOTS, "{most} jobs were under way in {SLOTS} slots");
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn i36_the_same_envelope_is_the_same_job_in_every_state() {
    let world = World::new();
    let engine =
        world.builder().protocol(protocol(&["a"])).service("a", 2, echo()).start().await.unwrap();
    let first = engine.submit(&envelope(1)).await.unwrap();
    closed(&engine, first.job_id).await;
    let again = engine.submit(&envelope(1)).await.unwrap();
    assert_eq!((again.job_id, again.created), (first.job_id, false));
    assert_eq!(again.state, JobState::Succeeded);
    let other = engine.submit(&envelope(2)).await.unwrap();
    assert_ne!(other.job_id, first.job_id);
    closed(&engine, other.job_id).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn l46_a_failed_attempt_is_followed_by_another_and_both_keep_their_digits() {
    let world = World::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let flaky = Handler::new(move |_: serde_json::Value, _, _| {
        let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
        async move { if first { Err(Failure::retryable("BUSY", "later")) } else { Ok(1) } }
    });
    let engine =
        world.builder().protocol(protocol(&["a"])).service("a", 2, flaky).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    let job = closed(&engine, job_id).await;
    assert_eq!(job.row.state, JobState::Succeeded);
    assert_eq!(job.row.attempts_total, 2);
    let attempts = engine.store().attempts(job_id).await.unwrap();
    let states: Vec<_> = attempts.iter().map(|a| (a.row.state, a.row.ledger.to_string())).collect();
    assert_eq!(
        states,
        [
            (StepState::FailedRetry, "001111000000001".to_owned()),
            (StepState::Succeeded, "001111100000001".to_owned()),
        ]
    );
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn t12_a_step_that_always_fails_is_tried_three_times_and_fails_the_job() {
    let world = World::new();
    let failing = Handler::new(|_: serde_json::Value, _, _| async move {
        Err::<(), _>(Failure::retryable("DOWN", "the service is down"))
    });
    let engine = world
        .builder()
        .protocol(protocol(&["a", "b"]))
        .service("a", 2, failing)
        .service("b", 2, echo())
        .start()
        .await
        .unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    let job = closed(&engine, job_id).await;
    assert_eq!(job.row.state, JobState::FailedFinal);
    assert_eq!(job.error.unwrap().code, "DOWN");
    let attempts = engine.store().attempts(job_id).await.unwrap();
    assert_eq!(attempts.len(), 4, "three of a, and b that never started");
    assert_eq!(attempts[3].row.state, StepState::Pending);
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_panic_is_a_failed_attempt_and_a_fatal_failure_is_final() {
    let world = World::new();
    let panicking = Handler::new(|input: serde_json::Value, _, _| async move {
        assert!(input["n"] != 1, "this one panics");
        Err::<(), _>(Failure::fatal("BAD_INPUT", "never"))
    });
    let engine = world
        .builder()
        .protocol(protocol(&["a"]))
        .service("a", 2, panicking)
        .start()
        .await
        .unwrap();
    let panics = engine.submit(&envelope(1)).await.unwrap().job_id;
    let fatal = engine.submit(&envelope(2)).await.unwrap().job_id;
    let (panics, fatal) = (closed(&engine, panics).await, closed(&engine, fatal).await);
    assert_eq!(panics.error.unwrap().code, "HANDLER_PANIC");
    assert_eq!((fatal.row.attempts_total, fatal.row.state), (1, JobState::FailedFinal));
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn j15_a_cancel_before_anyone_took_the_job_closes_it_without_a_directive() {
    let world = World::new();
    // Nobody serves step a here, so the job waits.
    let engine = world.builder().protocol(protocol(&["a", "b"])).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    assert_eq!(engine.cancel(job_id, None).await.unwrap(), JobState::Cancelling);
    engine.shutdown(GRACE).await.unwrap();

    let engine = world
        .builder()
        .protocol(protocol(&["a", "b"]))
        .service("a", 1, echo())
        .start()
        .await
        .unwrap();
    let job = closed(&engine, job_id).await;
    assert_eq!(job.row.state, JobState::Cancelled);
    assert_eq!(job.row.attempts_total, 0);
    assert_eq!(engine.cancel(job_id, None).await.unwrap(), JobState::Cancelled, "again is a no-op");
    let attempts = engine.store().attempts(job_id).await.unwrap();
    assert!(attempts.iter().all(|attempt| attempt.row.state == StepState::Cancelled));
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn j8_a_running_attempt_may_finish_after_a_cancel_but_nothing_follows() {
    let world = World::new();
    let (started, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let (s, g) = (started.clone(), go.clone());
    let slow = Handler::new(move |_: serde_json::Value, _, _| {
        let (started, go) = (s.clone(), g.clone());
        async move {
            started.notify_one();
            go.notified().await;
            Ok::<_, Failure>(1)
        }
    });
    let engine = world
        .builder()
        .protocol(protocol(&["a", "b"]))
        .service("a", 1, slow)
        .service("b", 1, echo())
        .start()
        .await
        .unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    started.notified().await;
    assert_eq!(engine.cancel(job_id, None).await.unwrap(), JobState::Cancelling);
    go.notify_one();
    let job = closed(&engine, job_id).await;
    assert_eq!(job.row.state, JobState::Cancelled);
    let attempts = engine.store().attempts(job_id).await.unwrap();
    let states: Vec<_> = attempts.iter().map(|attempt| attempt.row.state).collect();
    assert_eq!(states, [StepState::Succeeded, StepState::Cancelled]);
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn whoever_waits_for_a_job_hears_of_its_end_at_once_and_of_an_unknown_one_that_it_is() {
    let world = World::new();
    let engine = world.builder().protocol(protocol(&["a"])).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    let impatient = tokio::time::timeout(Duration::from_millis(20), engine.closed(job_id)).await;
    assert!(impatient.is_err(), "nobody serves it");
    let both = async { tokio::join!(engine.closed(job_id), engine.closed(job_id)) };
    let begun = std::time::Instant::now();
    let ((one, other), cancelled) = tokio::join!(both, engine.cancel(job_id, None));
    assert!(cancelled.is_ok());
    for job in [one, other, engine.closed(job_id).await] {
        assert_eq!(job.unwrap().row.state, JobState::Cancelled);
    }
    assert_eq!(engine.outcome(job_id).await.unwrap(), JobState::Cancelled);
    assert!(begun.elapsed() < Duration::from_millis(900), "told, and not found by looking again");
    let unknown = engine.closed(sprag_engine::ids::JobId::new()).await.unwrap_err();
    assert_eq!(unknown.code().name(), "JOB_UNKNOWN");
    engine.shutdown(GRACE).await.unwrap();
}
