//! Payloads, on both stores: schemas that they must fit, what becomes of one that does not, and large ones.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::EngineBuilder;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{Pick, Store, Wish};
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{Code, JobState, StepState};

use crate::graphs::{GRACE, closed, echo, engine, submit};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::world::World;

/// A step's schema: an object whose `count` is a whole number.
const WHOLE: &str =
    "payload_schema: {type: object, required: [count], properties: {count: {type: integer}}}";

on_both_stores! {
    async fn a_sequence_refuses_a_payload_that_a_later_step_must_not_be_handed<W>(play: &Play<W>) {
        let steps = format!("- {{step_id: a, service: work}}\n- {{step_id: b, service: work, {WHOLE}}}");
        let engine = engine(play, &steps, echo()).await;
        let envelope = json!({
            "tenant_id": "t1", "request_type": "GRAPH", "input_ref": "in", "output_ref": "out",
            "payload": {"count": "one"}, "schema_version": "1",
        });
        let refusal = engine.submit(envelope.to_string().as_bytes()).await.unwrap_err();
        assert_eq!(refusal.code(), Code::PayloadInvalid);
        assert_eq!(refusal.field("pointer"), Some(&"/count".into()));
        assert_eq!(refusal.field("step_id"), Some(&"b".into()));
        let job_id = submit(&engine, json!({"count": 1})).await;
        assert_eq!(closed(engine.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_step_of_a_graph_fails_in_leg1_and_one_that_is_skipped_does_not_ask<W>(play: &Play<W>) {
        let steps = format!(
            "- {{step_id: a, service: work}}\n- {{step_id: b, service: work, when: 'input.runs', {WHOLE}}}"
        );
        let engine = engine(play, &steps, echo()).await;
        let bad = submit(&engine, json!({"count": "one", "runs": true})).await;
        let job = closed(engine.store(), bad).await;
        assert_eq!(job.row.state, JobState::FailedFinal);
        assert_eq!(job.error.as_ref().unwrap().code, "PAYLOAD_INVALID");
        assert!(job.error.unwrap().message.contains("pointer: /count"));
        assert_eq!(ended(&engine, bad, 1).await, StepState::FailedFinal);

        let good = submit(&engine, json!({"count": 2, "runs": true})).await;
        assert_eq!(closed(engine.store(), good).await.row.state, JobState::Succeeded);
        let skipped = submit(&engine, json!({"count": "none", "runs": false})).await;
        assert_eq!(closed(engine.store(), skipped).await.row.state, JobState::Succeeded);
        assert_eq!(ended(&engine, skipped, 1).await, StepState::Skipped);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_large_payload_is_read_once_for_all_branches_and_each_sees_it_whole<W>(play: &Play<W>) {
        let list: Vec<_> = (0..400).map(|n| format!("{n:0100}")).collect();
        let work = Handler::new(|payload: Value, directive: Directive, _: Context| async move {
            let own = directive.index.and_then(|index| payload["list"].get(index as usize).cloned());
            Ok::<_, Failure>(json!([payload["list"].as_array().map(Vec::len), own == directive.item]))
        });
        let steps = "- {step_id: each, for_each: input.list, service: work}";
        let engine = engine(play, steps, work).await;
        let before = submit(&engine, json!({"list": ["a small one"]})).await;
        let job_id = submit(&engine, json!({"list": list})).await;
        assert_eq!(closed(engine.store(), before).await.row.state, JobState::Succeeded);
        assert_eq!(closed(engine.store(), job_id).await.row.state, JobState::Succeeded);
        let attempts = play.attempts(job_id).await;
        let seen: Vec<_> = attempts.iter().filter(|a| a.step_id == "each").map(|a| a.output.clone().unwrap()).collect();
        assert_eq!(seen, vec!["[400,true]"; 400]);
        engine.shutdown(GRACE).await.unwrap();

        // What one claim takes shares what never changes.
        let slow = submit_unserved(play, json!({"list": list})).await;
        let wish = Wish { service: SERVICE.to_owned(), max: 300, pick: Pick::Any, tenant_id: None };
        let claimed = play.store().claim(play.engine, vec![wish]).await.unwrap();
        assert_eq!(claimed.len(), 300);
        assert!(claimed.iter().all(|held| held.key.job_id == slow && Arc::ptr_eq(&held.facts, &claimed[0].facts)));
        assert!(claimed[0].facts.payload.contains(&list[399]));
        let keys = claimed.iter().map(|held| (held.key, held.attempt.version)).collect();
        play.store().release(play.engine, keys).await.unwrap();
    }
}

/// Opens a fan-out whose branches nobody does.
async fn submit_unserved<W: World>(play: &Play<W>, payload: Value) -> JobId {
    let text = "{protocol_id: graph.v1, request_types: [GRAPH],
        steps: [{step_id: each, for_each: input.list, service: work}]}";
    let mut protocol = Protocol::read(text).unwrap();
    protocol.steps[0].retry.backoff = Some(vec![0]);
    let store = play.world.reopen().await.unwrap();
    let engine = EngineBuilder::new(store).protocol(protocol).start().await.unwrap();
    let job_id = submit(&engine, payload).await;
    while play.attempts(job_id).await.iter().filter(|a| a.step_id == "each" && a.is_ready).count()
        < 400
    {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    engine.shutdown(GRACE).await.unwrap();
    job_id
}

/// How the newest attempt of a step has ended.
async fn ended<S: sprag_engine::store::Store>(
    engine: &sprag_engine::engine::Engine<S>,
    job_id: JobId,
    step_index: u32,
) -> StepState {
    let attempts = engine.store().attempts(job_id).await.unwrap();
    attempts.iter().rfind(|attempt| attempt.key.step_index == step_index).unwrap().row.state
}

#[test]
fn a_protocol_with_a_schema_that_cannot_be_used_is_refused_at_its_place() {
    let read = |step: &str| {
        let text = format!("protocol_id: p.v1\nrequest_types: [P]\nsteps:\n- {step}");
        Protocol::read(&text).unwrap_err()
    };
    for step in [
        "{step_id: a, service: s, payload_schema: {type: objekt}}",
        "{step_id: a, service: s, payload_schema: {$ref: 'https://example.org/schema.json'}}",
        "{step_id: a, sleep: 1s, payload_schema: {type: object}}",
    ] {
        let refusal = read(step);
        assert_eq!(refusal.code(), Code::ProtocolInvalid, "{step}");
        assert_eq!(refusal.field("place"), Some(&"steps[0].payload_schema".into()), "{step}");
    }
}
