//! Whole engines on both stores at the edges of their lives: what they are handed when, what they leave behind
//! when they stop, and what they meet that another engine has begun.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_conformance::bus::{Faults, TestBus};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::Engine;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{JobState, StepState};
use tokio::sync::Notify;

use crate::graphs::{GRACE, closed, echo};
use crate::on_both_stores;
use crate::play::{BEGIN_MS, Play, SERVICE};
use crate::pull::{builder, until};
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
}
