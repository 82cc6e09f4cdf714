//! Steps that the engine does by itself, on both stores: commands and calls, and engines that may not.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::outbound::{Answer, Call};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{Store, StoreError};
use sprag_kernel::{Code, JobState};

use crate::graphs::{GRACE, closed, submit};
use crate::on_both_stores;
use crate::play::Play;
use crate::world::World;

fn protocol(steps: &str) -> Protocol {
    let text = format!("protocol_id: graph.v1\nrequest_types: [GRAPH]\nsteps:\n{steps}");
    let mut protocol = Protocol::read(&text).unwrap_or_else(|refusal| panic!("{refusal}"));
    for step in protocol.steps.iter_mut().filter(|step| step.steps.is_empty()) {
        step.retry.backoff = Some(vec![0]);
    }
    protocol
}

fn config(exec: Option<usize>) -> EngineConfig {
    EngineConfig { poll: Duration::from_millis(10), exec, ..EngineConfig::default() }
}

async fn engine<W: World>(play: &Play<W>, steps: &str) -> Engine<W::Store> {
    let answer = |call: &Call| {
        // What comes twice has the same key; here the first try is turned away.
        let status = if call.url.ends_with("busy") { 503 } else { 200 };
        let said = json!({"method": call.method, "body": call.body, "key": call.effect_key});
        Ok(Answer { status, body: said.to_string().into_bytes() })
    };
    EngineBuilder::new(play.world.reopen().await.unwrap())
        .config(config(Some(4)))
        .http(Arc::new(answer))
        .protocol(protocol(steps))
        .start()
        .await
        .unwrap()
}

async fn output<S: Store>(store: &S, job_id: sprag_engine::ids::JobId, step_id: &str) -> Value {
    let attempts = store.attempts(job_id).await.unwrap();
    let attempt = attempts.iter().rfind(|a| a.step_id == step_id).unwrap();
    serde_json::from_str(attempt.output.as_deref().unwrap_or("null")).unwrap()
}

on_both_stores! {
    async fn a_command_gets_the_directive_and_its_output_is_the_steps<W>(play: &Play<W>) {
        let steps = "
  - {step_id: one, exec: {command: [cat]}}
  - {step_id: two, exec: {command: [sh, -c, 'echo $MODE'], env: {MODE: '7'}}}
  - {step_id: call, http: {method: POST, url: 'https://example.org/hook', body: '{\"was\": steps.two.output}'}}
";
        let engine = engine(play, steps).await;
        let job_id = submit(&engine, json!({"a": 1})).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        assert_eq!(output(play.store(), job_id, "one").await["payload"], json!({"a": 1}));
        assert_eq!(output(play.store(), job_id, "two").await, json!(7));
        let called = output(play.store(), job_id, "call").await;
        assert_eq!((&called["status"], &called["body"]["body"]), (&json!(200), &json!(r#"{"was":7}"#)));
        assert!(called["body"]["key"].as_str().unwrap().contains(&job_id.to_string()));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn an_exit_code_or_a_status_says_whether_it_is_tried_again<W>(play: &Play<W>) {
        for (step, code, attempts) in [
            ("{step_id: s, exec: {command: [sh, -c, 'exit 64']}}", "EXIT_64", 1),
            ("{step_id: s, exec: {command: [sh, -c, 'exit 1']}}", "EXIT_1", 3),
            ("{step_id: s, exec: {command: [/no/such/program]}}", "EXEC_FAILED", 3),
            ("{step_id: s, http: {method: GET, url: 'http://example.org/busy'}}", "HTTP_503", 3),
        ] {
            let play = Play::<W>::begin().await;
            let engine = engine(&play, &format!("  - {step}")).await;
            let job_id = submit(&engine, json!({})).await;
            let job = closed(play.store(), job_id).await;
            assert_eq!(job.error.unwrap().code, code, "{step}");
            assert_eq!(play.attempts(job_id).await.len(), attempts, "{step}");
            engine.shutdown(GRACE).await.unwrap();
        }
        assert_eq!(play.store().open_jobs().await.unwrap(), 0);
    }

    async fn a_cancel_and_the_end_of_its_time_end_a_command<W>(play: &Play<W>) {
        let steps = "
  - {step_id: s, exec: {command: [sleep, '600']}, timeouts: {step: 50ms}, retry: {max_attempts: 1}}
";
        let engine = engine(play, steps).await;
        let job_id = submit(&engine, json!({})).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.error.unwrap().code, "STEP_TIMEOUT");
        engine.shutdown(GRACE).await.unwrap();

        let play = Play::<W>::begin().await;
        let engine = self::engine(&play, "  - {step_id: s, exec: {command: [sleep, '600']}}").await;
        let job_id = submit(&engine, json!({})).await;
        while play.job(job_id).await.row.state != JobState::InProgress {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        engine.cancel(job_id, None).await.unwrap();
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn an_engine_that_may_not_refuses_the_protocol<W>(play: &Play<W>) {
        for (kind, step) in [
            ("exec", "{step_id: s, exec: {command: [cat]}}"),
            ("http", "{step_id: s, http: {method: GET, url: 'http://example.org/'}}"),
        ] {
            let builder = EngineBuilder::new(play.world.reopen().await.unwrap()).config(config(None));
            let started = builder.protocol(protocol(&format!("  - {step}"))).start().await;
            let Err(StoreError::Refused(refusal)) = started else { panic!("{kind} is allowed") };
            assert_eq!(refusal.code(), Code::StepKindRefused);
            assert_eq!(refusal.field("kind"), Some(&kind.into()));
        }
    }
}
