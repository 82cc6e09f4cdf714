//! Child jobs, run by real engines on both stores: one child for an attempt, one telling of its end, failures,
//! cancels, families that are too deep, lost engines.

use std::sync::Arc;

use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::child::{LOOK_MS, MAX_DEPTH};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::explain::{Seen, explain};
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::signals::Signal;
use sprag_engine::store::{JobFilter, JobView, Store};
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{JobState, State, StepState};
use tokio::sync::Notify;

use crate::graphs::{GRACE, closed, handler, lose_engines_of, submit};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::world::World;

const PARENT: &str = "
  - {step_id: before, service: work}
  - {step_id: child, job: {request_type: CHILD, input: '{\"from\": steps.before.output, \"n\": input.n}'}}
  - {step_id: after, service: work}
";

const CHILD: &str = "
  - {step_id: one, service: work}
  - {step_id: two, service: work}
";

/// A parent, and a child under its own protocol.
async fn engine<W: World>(
    play: &Play<W>,
    (parent, child): (&str, &str),
    work: Handler,
) -> Engine<W::Store> {
    let max_output_bytes = EngineConfig::default().max_output_bytes;
    limited_engine(play, (parent, child), (work, max_output_bytes)).await
}

/// The same, where an output may have so many bytes.
async fn limited_engine<W: World>(
    play: &Play<W>,
    (parent, child): (&str, &str),
    (work, max_output_bytes): (Handler, usize),
) -> Engine<W::Store> {
    let config = EngineConfig {
        poll: Duration::from_millis(10),
        beat: Duration::from_millis(40),
        takeover: Duration::from_secs(3_600),
        max_output_bytes,
        ..EngineConfig::default()
    };
    let mut builder = EngineBuilder::new(play.world.reopen().await.unwrap()).config(config);
    for (name, steps) in [("graph", parent), ("child", child)] {
        let (id, kind) = (format!("{name}.v1"), name.to_uppercase());
        let text = format!("protocol_id: {id}\nrequest_types: [{kind}]\nsteps:{steps}");
        let mut protocol = Protocol::read(&text).unwrap_or_else(|refusal| panic!("{refusal}"));
        for step in protocol.steps.iter_mut().filter(|step| step.steps.is_empty()) {
            step.retry.backoff = Some(vec![0]);
        }
        builder = builder.protocol(protocol);
    }
    builder.service(SERVICE, 8, work).start().await.unwrap()
}

fn says() -> Handler {
    Handler::new(|payload: Value, directive: Directive, _: Context| async move {
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        if payload["n"] == json!("fail") && directive.step_id == "two" {
            return Err(Failure::fatal("TOLD", "no"));
        }
        Ok(json!({"step": directive.step_id, "payload": payload, "saw": directive.inputs}))
    })
}

async fn children<S: Store>(store: &S, parent: JobId) -> Vec<JobView> {
    let filter = JobFilter { limit: 1_000, ..JobFilter::default() };
    let mut all = store.jobs(filter).await.unwrap();
    all.retain(|job| job.facts.parent().is_some_and(|(key, _)| key.job_id == parent));
    all.sort_by_key(|job| job.facts.parent());
    all
}

async fn until_child<S: Store>(store: &S, parent: JobId) -> JobView {
    loop {
        if let Some(child) = children(store, parent).await.pop() {
            return child;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

on_both_stores! {
    async fn a_child_job_gives_its_result_to_the_step_that_waits_for_it<W>(play: &Play<W>) {
        let engine = engine(play, (PARENT, CHILD), says()).await;
        let job_id = submit(&engine, json!({"n": 7})).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        let [child] = &children(play.store(), job_id).await[..] else { panic!("one child") };
        assert_eq!((child.row.state, child.row.is_graph), (JobState::Succeeded, false));
        let payload: Value = serde_json::from_str(&child.facts.payload).unwrap();
        assert_eq!((&payload["n"], &payload["from"]["step"]), (&json!(7), &json!("before")));
        let attempts = play.attempts(job_id).await;
        let waited = attempts.iter().find(|a| a.step_id == "child").unwrap();
        assert_eq!((waited.row.state, waited.child), (StepState::Succeeded, Some(child.facts.job_id)));
        assert_eq!(waited.row.ledger.to_string(), "001111000000001", "one entry, one message");
        let output: Value = serde_json::from_str(waited.output.as_deref().unwrap()).unwrap();
        assert_eq!(output["step"], "two", "the result of a sequence is its last output");
        let after = attempts.iter().find(|a| a.step_id == "after").unwrap();
        let after: Value = serde_json::from_str(after.output.as_deref().unwrap()).unwrap();
        assert_eq!(after["saw"]["child"], output);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn the_result_of_a_graph_is_that_of_its_last_steps<W>(play: &Play<W>) {
        let child = "
  - {step_id: each, for_each: '[1, 2]', service: work}
  - {step_id: spin, needs: [], repeat: {while: turn < 1, max: 2}, service: work}
";
        let engine = engine(play, (PARENT, child), says()).await;
        let job_id = submit(&engine, json!({"n": 7})).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        let attempts = play.attempts(job_id).await;
        let waited = attempts.iter().find(|a| a.step_id == "child").unwrap();
        let output: Value = serde_json::from_str(waited.output.as_deref().unwrap()).unwrap();
        assert_eq!(output["each"].as_array().unwrap().len(), 2);
        assert_eq!(output["spin"]["step"], "spin");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn the_result_of_a_child_may_be_as_large_as_an_output<W>(play: &Play<W>) {
        let (parent, two) = (
            "\n  - {step_id: child, job: {request_type: CHILD, input: input}}\n",
            "\n  - {step_id: a, needs: [], service: work}\n  - {step_id: b, needs: [], service: work}\n",
        );
        let half = || handler(async |_: Directive| Ok(json!("x".repeat(600))));
        // {"a":"...","b":"..."}
        let together = 1_200 + 15;
        for (limit, ends, code) in [
            (together, JobState::Succeeded, None),
            (together - 1, JobState::FailedFinal, Some("CHILD_RESULT_TOO_LARGE")),
        ] {
            let engine = limited_engine(play, (parent, two), (half(), limit)).await;
            let job_id = submit(&engine, json!({"limit": limit})).await;
            let job = closed(play.store(), job_id).await;
            assert_eq!((job.row.state, job.error.as_ref().map(|e| e.code.as_str())), (ends, code));
            engine.shutdown(GRACE).await.unwrap();
        }
    }

    async fn a_child_that_failed_is_tried_again_as_the_step_says<W>(play: &Play<W>) {
        let parent = PARENT.replace("input.n}'}}", "input.n}'}, retry: {max_attempts: 2}}");
        let engine = engine(play, (&parent, CHILD), says()).await;
        let job_id = submit(&engine, json!({"n": "fail"})).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::FailedFinal);
        let error = job.error.unwrap();
        assert_eq!(error.code, "CHILD_FAILED");
        assert!(error.message.contains("TOLD"), "{}", error.message);
        let family = children(play.store(), job_id).await;
        let tried: Vec<_> = family.iter().map(|c| (c.facts.parent().unwrap().0.attempt_no, c.row.state)).collect();
        assert_eq!(tried, [(1, JobState::FailedFinal), (2, JobState::FailedFinal)]);
        let after = play.attempts(job_id).await.into_iter().find(|a| a.step_id == "after").unwrap();
        assert_eq!(after.row.state, StepState::Pending);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_cancel_reaches_the_children_and_theirs<W>(play: &Play<W>) {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, wait) = (begun.clone(), go.clone());
        let work = handler(move |directive: Directive| {
            let (begun, go) = (begun.clone(), go.clone());
            async move {
                if directive.step_id == "deep" {
                    begun.notify_one();
                    go.notified().await;
                }
                Ok(json!({}))
            }
        });
        // The child is a parent itself: of a job that follows its own protocol, one level down.
        let child = "
  - {step_id: deep, needs: [], when: has(input.deep), service: work}
  - {step_id: grandchild, needs: [], when: '!has(input.deep)', job: {request_type: CHILD, input: '{\"deep\": true}'}}
  - {step_id: both, needs: [deep, grandchild], service: work}
";
        let engine = engine(play, (PARENT, child), work).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        told.notified().await;
        play.expect_sound().await;
        assert_eq!(engine.cancel(job_id, None).await.unwrap(), JobState::Cancelling);
        let below = children(play.store(), job_id).await.pop().unwrap();
        assert_eq!(below.row.state, JobState::Cancelling, "asked to stop with its parent");
        wait.notify_one();
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        let all = play.store().jobs(JobFilter { limit: 10, ..JobFilter::default() }).await.unwrap();
        let states: Vec<_> = all.iter().map(|job| job.row.state).collect();
        assert_eq!(states, [JobState::Cancelled; 3]);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_cancel_that_died_before_the_children_is_made_good<W>(play: &Play<W>) {
        let child = "
  - {step_id: rest, sleep: 1000h}
";
        let engine = engine(play, (PARENT, child), says()).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        let below = until_child(play.store(), job_id).await;
        // As an engine leaves it that dies after the first of its two commits.
        play.cancel(job_id).await.unwrap();
        assert_eq!(play.job(below.facts.job_id).await.row.state, JobState::Queued);
        play.clock.advance(i64::try_from(LOOK_MS).unwrap());
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        assert_eq!(play.job(below.facts.job_id).await.row.state, JobState::Cancelled);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_child_that_is_cancelled_by_itself_fails_its_step_for_good<W>(play: &Play<W>) {
        let child = "
  - {step_id: rest, sleep: 1000h}
";
        let engine = engine(play, (PARENT, child), says()).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        let below = until_child(play.store(), job_id).await;
        engine.cancel(below.facts.job_id, None).await.unwrap();
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "CHILD_CANCELLED"));
        assert_eq!(children(play.store(), job_id).await.len(), 1, "nobody wants another one");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_child_that_takes_longer_than_its_step_may_is_cancelled_and_the_step_times_out<W>(play: &Play<W>) {
        let child = "
  - {step_id: rest, sleep: 1000h}
";
        let limited = "input.n}'}, timeouts: {step: 90s}, retry: {max_attempts: 2}}";
        let parent = PARENT.replace("input.n}'}}", limited);
        let engine = engine(play, (&parent, child), says()).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        let first = until_child(play.store(), job_id).await.facts.job_id;
        // It is looked after before its time is over, and lives on.
        let looked = i64::try_from(LOOK_MS).unwrap();
        let timer = format!("SELECT CAST(timer_at AS text) FROM attempt WHERE job_id = {} AND step_id = 'child'", W::id(job_id));
        let before = play.world.query(&timer).await.unwrap();
        play.clock.advance(looked);
        while play.world.query(&timer).await.unwrap() == before {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(play.job(first).await.row.state, JobState::Queued);
        play.clock.advance(90_000 - looked);
        assert_eq!(closed(play.store(), first).await.row.state, JobState::Cancelled);
        let family = loop {
            let family = children(play.store(), job_id).await;
            if family.len() == 2 {
                break family;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        play.expect_sound().await;
        play.clock.advance(60_000);
        play.clock.advance(30_000);
        let job = closed(play.store(), job_id).await;
        let error = job.error.unwrap();
        assert_eq!((job.row.state, error.code.as_str()), (JobState::FailedFinal, "STEP_TIMEOUT"));
        assert!(error.message.contains(&family[1].facts.job_id.to_string()), "{}", error.message);
        assert_eq!(children(play.store(), job_id).await.len(), 2, "one child for each attempt");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_timeout_cancels_the_child_of_its_own_branch_alone<W>(play: &Play<W>) {
        let parent = "
  - step_id: each
    for_each: '[1, 1000]'
    on_failure: {tolerate: 1}
    steps:
      - {step_id: child, when: item == 1, timeouts: {step: 10s}, retry: {max_attempts: 1}, job: {request_type: CHILD, input: item}}
      - {step_id: other, needs: [], when: item > 1, job: {request_type: CHILD, input: item}}
";
        let child = "
  - {step_id: rest, wait: {signal: go}}
";
        let engine = engine(play, (parent, child), says()).await;
        let job_id = submit(&engine, json!({})).await;
        while children(play.store(), job_id).await.len() < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let family = children(play.store(), job_id).await;
        play.clock.advance(10_000);
        let (short, long) = (family[0].facts.job_id, family[1].facts.job_id);
        assert_eq!(closed(play.store(), short).await.row.state, JobState::Cancelled);
        assert!(!play.job(long).await.row.state.is_terminal(), "it has its own time");
        engine.signal(long, Signal::new("s", "go", &json!("went"))).await.unwrap();
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_family_that_is_too_deep_ends_with_that<W>(play: &Play<W>) {
        let own = "
  - {step_id: child, retry: {max_attempts: 1}, job: {request_type: GRAPH, input: input}}
";
        let engine = engine(play, (own, CHILD), says()).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::FailedFinal);
        let all = play.store().jobs(JobFilter { limit: 100, ..JobFilter::default() }).await.unwrap();
        assert_eq!(all.len(), MAX_DEPTH as usize + 1);
        let youngest = &all[0];
        assert_eq!(youngest.error.as_ref().unwrap().code, "CHILD_TOO_DEEP");
        assert!(job.error.unwrap().message.contains("CHILD_TOO_DEEP"), "the cause is told to the top");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_child_that_nobody_serves_fails_its_step<W>(play: &Play<W>) {
        let parent = PARENT.replace("request_type: CHILD", "request_type: NOBODY");
        let engine = engine(play, (&parent, CHILD), says()).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "PROTOCOL_UNKNOWN"));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn children_take_no_slot_of_their_tenant<W>(play: &Play<W>) {
        let engine = engine(play, (PARENT, CHILD), says()).await;
        engine.limit_tenant("t1", Some(1)).await.unwrap();
        let job_id = submit(&engine, json!({"n": 1})).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        submit(&engine, json!({"n": 2})).await;
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn children_in_fan_outs_and_cycles_are_each_their_own<W>(play: &Play<W>) {
        let parent = "
  - step_id: each
    for_each: '[1, 2, 3]'
    steps:
      - step_id: rounds
        repeat: {while: turn < 1, max: 3}
        steps:
          - {step_id: child, job: {request_type: CHILD, input: '{\"n\": item, \"turn\": turn}'}}
";
        let engine = engine(play, (parent, CHILD), says()).await;
        let job_id = submit(&engine, json!({})).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        assert_eq!(children(play.store(), job_id).await.len(), 6);
        let attempts = play.attempts(job_id).await;
        let gathered = attempts.iter().find(|a| a.step_id == "each/gather").unwrap();
        let gathered: Value = serde_json::from_str(gathered.output.as_deref().unwrap()).unwrap();
        let seen: Vec<_> = gathered.as_array().unwrap().iter()
            .map(|o| (o["payload"]["n"].clone(), o["payload"]["turn"].clone())).collect();
        assert_eq!(seen, [1, 2, 3].map(|n| (json!(n), json!(1))));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn explain_tells_of_the_parent_and_of_the_child<W>(play: &Play<W>) {
        let child = "
  - {step_id: rest, sleep: 1000h}
";
        let engine = engine(play, (PARENT, child), says()).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        let below = until_child(play.store(), job_id).await;
        let job = play.job(job_id).await;
        let told = explain(&Seen::of(&job, &play.attempts(job_id).await), job.updated_at);
        let id = below.facts.job_id;
        assert!(told.now.contains(&format!("step child of service sprag.control waits for its child, job {id}")), "{}", told.now);
        let told = explain(&Seen::of(&below, &play.attempts(id).await), job.updated_at);
        assert!(told.happened[0].contains(&format!("as the child of job {job_id}")), "{:?}", told.happened);
        engine.cancel(job_id, None).await.unwrap();
        closed(play.store(), job_id).await;
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_parent_that_waits_for_a_child_that_is_over_is_told_by_the_audit<W>(play: &Play<W>) {
        let child = "
  - {step_id: rest, sleep: 1000h}
";
        let engine = engine(play, (PARENT, child), says()).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        until_child(play.store(), job_id).await;
        let row = format!("job_id = {} AND step_id = 'child'", W::id(job_id));
        let other = W::id(JobId::new());
        play.world.execute(&format!("UPDATE attempt SET child_id = {other} WHERE {row}")).await.unwrap();
        let checks = play.store().audit().await.unwrap();
        let told: Vec<_> = checks.iter().filter(|c| !c.violations.is_empty()).map(|c| c.name.as_str()).collect();
        assert_eq!(told, ["34_waits_for_a_child_that_is_over"]);
        let below = children(play.store(), job_id).await.pop().unwrap().facts.job_id;
        play.world.execute(&format!("UPDATE attempt SET child_id = {} WHERE {row}", W::id(below))).await.unwrap();
        engine.cancel(job_id, None).await.unwrap();
        closed(play.store(), job_id).await;
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn another_engine_goes_on_with_the_family_when_one_is_lost<W>(play: &Play<W>) {
        let parent = "
  - step_id: each
    for_each: '[1, 2, 3, 4, 5, 6]'
    max_parallel: 2
    steps:
      - {step_id: child, retry: {max_attempts: 1}, job: {request_type: CHILD, input: '{\"n\": item, \"ms\": 4}'}}
";
        let first = engine(play, (parent, CHILD), says()).await;
        let job_id = submit(&first, json!({})).await;
        let survivor = lose_engines_of(play, first, 6, async || engine(play, (parent, CHILD), says()).await).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        let family = children(play.store(), job_id).await;
        assert_eq!(family.len(), 6, "one child for each branch, whoever was lost");
        assert!(family.iter().all(|child| child.row.state == JobState::Succeeded));
        survivor.shutdown(GRACE).await.unwrap();
    }
}
