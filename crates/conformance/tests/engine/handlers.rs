//! Handlers of each kind, and what they are told while they run.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sprag_engine::directive::Failure;
use sprag_engine::engine::EngineConfig;
use sprag_engine::plan;
use sprag_engine::store::{Held, Store};
use sprag_engine::worker::{Handler, StopReason, TransactionalHandler};
use sprag_kernel::{JobState, StepState};
use sprag_stores::sqlite::{SqliteStore, SqliteWork};
use tokio::sync::Notify;

use super::world::{World, assert_clean, closed, envelope, protocol};

const GRACE: Duration = Duration::from_secs(5);

fn effects(world: &World) -> Vec<String> {
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    let mut statement = connection.prepare("SELECT name FROM effect ORDER BY name").unwrap();
    let rows = statement.query_map([], |row| row.get(0)).unwrap();
    rows.collect::<rusqlite::Result<_>>().unwrap()
}

fn insert(name: String) -> SqliteWork {
    SqliteWork::new(move |connection| {
        connection.execute("INSERT INTO effect VALUES (?1)", [&name])?;
        Ok(())
    })
}

#[tokio::test]
async fn the_writes_of_a_transactional_handler_stand_once_and_its_output_goes_on() {
    let world = World::new();
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    connection.execute_batch("CREATE TABLE effect (name TEXT)").unwrap();
    let handler = TransactionalHandler::new(|_: serde_json::Value, directive, _| async move {
        let seen: Option<u32> = directive.input("a")?;
        let name = format!("{} after {seen:?}", directive.step_id);
        Ok((7_u32, insert(name)))
    });
    let builder = world.builder().protocol(protocol(&["a", "b"]));
    let handler_b = TransactionalHandler::new(|_: serde_json::Value, directive, _| async move {
        let seen: Option<u32> = directive.input("a")?;
        Ok((1, insert(format!("{} after {seen:?}", directive.step_id))))
    });
    let engine = builder.service("a", 2, handler).service("b", 2, handler_b).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    assert_eq!(closed(&engine, job_id).await.row.state, JobState::Succeeded);
    assert_eq!(effects(&world), ["a after None", "b after Some(7)"]);
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

/// Attempt 1 violates a constraint of the user's table after it has written; attempt 2 does well.
#[tokio::test]
async fn work_that_fails_ends_its_attempt_as_it_says_and_the_next_one_may_do_well() {
    let world = World::new();
    let connection = rusqlite::Connection::open(world.path()).unwrap();
    connection.execute_batch("CREATE TABLE effect (name TEXT)").unwrap();
    let handler = TransactionalHandler::new(|_: serde_json::Value, directive, _| async move {
        let attempt_no = directive.attempt_no;
        let work = SqliteWork::new(move |connection| {
            connection.execute("INSERT INTO effect VALUES (?1)", [attempt_no])?;
            match attempt_no {
                1 => Err(Failure::retryable("NOT_NOW", "another time").into()),
                2 => panic!("this one panics"),
                _ => Ok(()),
            }
        });
        Ok((attempt_no, work))
    });
    let builder = world.builder().protocol(protocol(&["a"]));
    let engine = builder.service("a", 2, handler).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    assert_eq!(closed(&engine, job_id).await.row.state, JobState::Succeeded);
    let attempts = engine.store().attempts(job_id).await.unwrap();
    let codes: Vec<_> =
        attempts.iter().map(|a| a.error.as_ref().map(|error| error.code.as_str())).collect();
    assert_eq!(codes, [Some("NOT_NOW"), Some("WORK_PANIC"), None]);
    assert_eq!(effects(&world), ["3"]);
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_blocking_handler_leaves_the_async_threads_alone_and_its_panic_is_classified() {
    let world = World::new();
    let (went, go) = std::sync::mpsc::channel::<()>();
    let go = std::sync::Mutex::new(go);
    let handler = Handler::blocking(move |input: serde_json::Value, _, _| {
        assert!(input["n"] != 2, "this one panics");
        // If this ran on the only async thread, nobody would ever send.
        go.lock().unwrap().recv().map_err(|error| Failure::fatal("GONE", error))?;
        Ok(1)
    });
    let builder = world.builder().protocol(protocol(&["a"]));
    let engine = builder.service("a", 2, handler).start().await.unwrap();
    let waits = engine.submit(&envelope(1)).await.unwrap().job_id;
    let panics = engine.submit(&envelope(2)).await.unwrap().job_id;
    assert_eq!(closed(&engine, panics).await.error.unwrap().code, "HANDLER_PANIC");
    went.send(()).unwrap();
    assert_eq!(closed(&engine, waits).await.row.state, JobState::Succeeded);
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_handler_past_its_timeout_is_told_and_keeps_its_slot_until_it_returns() {
    let world = World::new();
    let mut protocol = protocol(&["a"]);
    protocol.steps[0].timeouts.step = Some(20);
    protocol.steps[0].retry.max_attempts = Some(2);
    let running = Arc::new(AtomicU32::new(0));
    let counted = running.clone();
    let handler = Handler::blocking(move |_: serde_json::Value, directive, context| {
        assert_eq!(counted.fetch_add(1, Ordering::SeqCst), 0, "the one slot is taken");
        if directive.attempt_no == 1 {
            while !context.should_stop() {
                std::thread::yield_now();
            }
            assert_eq!(context.stop_reason(), Some(StopReason::TimedOut));
        }
        counted.fetch_sub(1, Ordering::SeqCst);
        Ok(directive.attempt_no)
    });
    let engine = world.builder().protocol(protocol).service("a", 1, handler).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    assert_eq!(closed(&engine, job_id).await.row.state, JobState::Succeeded);
    let attempts = engine.store().attempts(job_id).await.unwrap();
    assert_eq!(attempts[0].error.as_ref().unwrap().code, "STEP_TIMEOUT");
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

/// The cancel is written past the engine that runs the handler, as another process would.
#[tokio::test]
async fn a_handler_is_told_of_a_cancel_that_came_by_another_way() {
    let world = World::new();
    let started = Arc::new(Notify::new());
    let starts = started.clone();
    let handler = Handler::new(move |_: serde_json::Value, _, mut context| {
        starts.notify_one();
        async move {
            context.stopped().await;
            assert_eq!(context.stop_reason(), Some(StopReason::Cancelled));
            Err::<(), _>(Failure::retryable("CANCELLED", "told to stop"))
        }
    });
    let builder = world.builder().protocol(protocol(&["a", "b"]));
    let engine = builder.service("a", 1, handler).start().await.unwrap();
    for is_own in [true, false] {
        let job_id = engine.submit(&envelope(usize::from(is_own))).await.unwrap().job_id;
        started.notified().await;
        if is_own {
            engine.cancel(job_id, None).await.unwrap();
        } else {
            let other = SqliteStore::look(&world.path()).unwrap();
            let number = other.join("other").await.unwrap();
            let decide = Box::new(|held: &Held, _| plan::cancel(held, None));
            other.amend(number, job_id, None, decide).await.unwrap().unwrap().unwrap();
        }
        let job = closed(&engine, job_id).await;
        assert_eq!(job.row.state, JobState::Cancelled);
        let attempts = engine.store().attempts(job_id).await.unwrap();
        assert_eq!(attempts[0].row.state, StepState::Cancelled);
    }
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn a_heartbeat_renews_the_lease_and_its_progress_is_shown() {
    let world = World::new();
    let go = Arc::new(Notify::new());
    let goes = go.clone();
    let handler = Handler::new(move |_: serde_json::Value, _, context| {
        let go = goes.clone();
        async move {
            assert!(context.heartbeat("\0").is_err(), "no store has to keep a NUL");
            assert!(context.heartbeat("x".repeat(20_000)).is_err());
            context.heartbeat(serde_json::json!({"pages": 3}))?;
            go.notified().await;
            Ok::<_, Failure>(1)
        }
    });
    let builder = world.builder().protocol(protocol(&["a"]));
    let engine = builder.service("a", 1, handler).start().await.unwrap();
    let job_id = engine.submit(&envelope(1)).await.unwrap().job_id;
    let (attempts, first) = loop {
        let attempts = engine.store().attempts(job_id).await.unwrap();
        if attempts[0].progress.is_some() {
            break (attempts, engine.store().job(job_id).await.unwrap().unwrap());
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    assert_eq!(attempts[0].progress.as_deref(), Some(r#"{"pages":3}"#));
    let now = engine.store().now().await.unwrap();
    let explanation =
        sprag_engine::explain::explain(&sprag_engine::explain::Seen::of(&first, &attempts), now);
    assert!(explanation.now.contains(r#"It last said: {"pages":3}"#), "{}", explanation.now);
    go.notify_one();
    assert_eq!(closed(&engine, job_id).await.row.state, JobState::Succeeded);
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}

#[tokio::test]
async fn an_output_that_no_store_has_to_keep_fails_its_attempt_for_good() {
    let world = World::new();
    let handler = Handler::new(|input: serde_json::Value, _, _| async move {
        match input["n"].as_u64() {
            Some(1) => Ok("x".repeat(300)),
            Some(2) => Ok("a\0b".to_owned()),
            _ => Err(Failure::fatal("BAD\0CODE", "a\0b")),
        }
    });
    let config = EngineConfig {
        max_output_bytes: 200,
        poll: Duration::from_millis(5),
        ..EngineConfig::default()
    };
    let builder = world.builder().config(config).protocol(protocol(&["a"]));
    let engine = builder.service("a", 2, handler).start().await.unwrap();
    let mut codes = Vec::new();
    for n in 1..=3 {
        let job_id = engine.submit(&envelope(n)).await.unwrap().job_id;
        let job = closed(&engine, job_id).await;
        assert_eq!((job.row.state, job.row.attempts_total), (JobState::FailedFinal, 1));
        codes.push(job.error.unwrap().code);
    }
    assert_eq!(codes, ["INPUT_TOO_LARGE", "NUL_CHARACTER", "BAD\u{fffd}CODE"]);
    assert_clean(engine.store()).await;
    engine.shutdown(GRACE).await.unwrap();
}
