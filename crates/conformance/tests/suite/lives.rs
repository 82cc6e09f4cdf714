//! Whole engines on both stores at the edges of their lives: what they are handed when, what they leave behind
//! when they stop, and what they meet that another engine has begun.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_conformance::bus::{Faults, TestBus};
use sprag_engine::callback::Claim;
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineConfig};
use sprag_engine::explain::explained;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{AttemptFilter, Store};
use sprag_engine::upkeep::Upkeep;
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{JobState, StepState};
use tokio::sync::Notify;

use crate::graphs::{GRACE, closed, echo};
use crate::on_both_stores;
use crate::play::{BEGIN_MS, Play, SERVICE};
use crate::pull::{builder, claim, until};
use crate::world::World;

/// One step that is tried once.
fn protocol(service: &str) -> Protocol {
    let mut protocol = Protocol::new("life.v1", "LIFE").step("only", service);
    protocol.steps[0].retry.max_attempts = Some(1);
    protocol
}

fn envelope(more: &Value) -> Value {
    let mut envelope = json!({
        "tenant_id": "t1", "request_type": "LIFE", "input_ref": "in", "output_ref": "out",
        "payload": {}, "schema_version": "1", "idempotency_key": JobId::new().to_string(),
    });
    let fields = more.as_object().unwrap().clone();
    envelope.as_object_mut().unwrap().extend(fields);
    envelope
}

async fn submit<S: Store>(engine: &Engine<S>, more: &Value) -> JobId {
    engine.submit(envelope(more).to_string().as_bytes()).await.unwrap().job_id
}

/// A handler that says when it has begun and gives up when it is told to stop, the first time.
fn gives_up(begun: Arc<Notify>) -> Handler {
    Handler::new(move |_: Value, directive: Directive, mut context: Context| {
        let begun = begun.clone();
        async move {
            if directive.attempt_no == 1 {
                begun.notify_one();
                context.stopped().await;
                return Err(Failure::retryable("GAVE_UP", "told to stop"));
            }
            Ok(json!(directive.attempt_no))
        }
    })
}

on_both_stores! {
    /// A time that had passed was taken for one that is to come: the store had entered the job for the engine,
    /// which did not know of it.
    async fn a_job_with_a_time_begins_when_that_has_come_and_at_once_if_it_has_passed<W>(play: &Play<W>) {
        let engine = builder(play).await.protocol(protocol(SERVICE)).service(SERVICE, 4, echo());
        let engine = engine.start().await.unwrap();
        for not_before in [0, 1, BEGIN_MS] {
            let job_id = submit(&engine, &json!({"not_before": not_before})).await;
            assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        }
        let later = submit(&engine, &json!({"not_before": BEGIN_MS + 60_000})).await;
        let now = submit(&engine, &json!({})).await;
        closed(play.store(), now).await;
        assert_eq!(play.job(later).await.row.state, JobState::Queued);
        play.clock.advance(60_000);
        assert_eq!(closed(play.store(), later).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    /// A deploy used up an attempt of every handler that obeyed.
    async fn a_handler_that_gives_up_because_its_engine_stops_has_lost_an_engine_and_no_attempt<W>(play: &Play<W>) {
        let begun = Arc::new(Notify::new());
        let start = async || {
            let engine = builder(play).await.protocol(protocol(SERVICE));
            engine.service(SERVICE, 1, gives_up(begun.clone())).start().await.unwrap()
        };
        let first = start().await;
        let job_id = submit(&first, &json!({})).await;
        begun.notified().await;
        first.shutdown(GRACE).await.unwrap();
        let attempts = play.attempts(job_id).await;
        assert_eq!(attempts[0].row.state, StepState::FailedRetry);
        assert_eq!(attempts[0].error.as_ref().unwrap().code, "GAVE_UP", "what it said is kept");
        assert_eq!((attempts.len(), attempts[1].row.losses), (2, 1));
        play.expect_sound().await;
        let second = start().await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        second.shutdown(GRACE).await.unwrap();
    }

    /// The engine entered the message that closes the job and ended over a protocol that it had never met.
    async fn an_engine_cancels_a_job_whose_protocol_it_does_not_know<W>(play: &Play<W>) {
        let bus = Arc::new(TestBus::new(1, Faults { refuse: 100, ..Faults::default() }));
        let knows = builder(play).await.protocol(protocol("outside")).bus(&["outside"], bus);
        let knows = knows.start().await.unwrap();
        let job_id = submit(&knows, &json!({})).await;
        until(play, job_id, |attempt| attempt.timer_at.is_some()).await;
        knows.shutdown(GRACE).await.unwrap();

        let stranger = Protocol::new("other.v1", "OTHER").step("only", SERVICE);
        let engine = builder(play).await.protocol(stranger).service(SERVICE, 1, echo());
        let engine = engine.start().await.unwrap();
        engine.cancel(job_id, None).await.unwrap();
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        engine.shutdown(Duration::from_secs(5)).await.expect("it lives on");
    }

    async fn the_extremes_of_a_priority_and_of_a_time_are_taken<W>(play: &Play<W>) {
        let engine = builder(play).await.protocol(protocol(SERVICE)).start().await.unwrap();
        for (more, due) in [(json!({"priority": 1_000_000}), true), (json!({"not_before": u64::MAX}), false)] {
            let job_id = submit(&engine, &more).await;
            assert_eq!(play.attempts(job_id).await[0].is_ready, due, "{more}");
        }
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_job_whose_service_nobody_serves_waits_and_says_so<W>(play: &Play<W>) {
        let config = EngineConfig {
            poll: Duration::from_millis(5),
            beat: Duration::from_millis(20),
            takeover: Duration::from_secs(1_000_000),
            ..EngineConfig::default()
        };
        let both = Protocol::new("life.v1", "LIFE").step("own", SERVICE).step("other", "nobody's");
        let engine = builder(play).await.config(config).protocol(both).service(SERVICE, 1, echo());
        let engine = engine.start().await.unwrap();
        let job_id = submit(&engine, &json!({})).await;
        until(play, job_id, |attempt| attempt.step_id == "other" && attempt.is_ready).await;
        let now_of = async |job_id| {
            let job = play.job(job_id).await;
            explained(play.store(), &job, AttemptFilter::default()).await.unwrap().now
        };
        let seen = async || {
            let services = play.store().services().await.unwrap();
            let seen = services.into_iter().filter(|view| view.seen_at.is_some());
            seen.map(|view| view.service).collect::<BTreeSet<_>>()
        };
        while !seen().await.contains(SERVICE) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let now = now_of(job_id).await;
        assert!(now.contains("service nobody's") && now.contains("nobody serves that service so far"), "{now}");
        assert!(!seen().await.contains("nobody's"));

        // A worker outside asks: from the next beat on it is known who does.
        let asked = Claim { services: vec!["nobody's".to_owned(), "idle".to_owned()], ..claim("c1", 1) };
        assert_eq!(engine.claim(asked).await.unwrap().len(), 1);
        while !(seen().await.contains("nobody's") && seen().await.contains("idle")) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        let waiting = submit(&engine, &json!({})).await;
        until(play, waiting, |attempt| attempt.step_id == "other" && attempt.is_ready).await;
        let now = now_of(waiting).await;
        assert!(now.contains("service nobody's") && !now.contains("nobody serves"), "{now}");
        engine.shutdown(GRACE).await.unwrap();
    }
}
