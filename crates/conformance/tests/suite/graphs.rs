//! Graphs, run by real engines on both stores: joins, conditions, fan-outs, failures and cancels with
//! obligations still parked, lost engines.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::graph::place;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{AttemptView, JobView, Store};
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{JobState, State, StepState};
use tokio::sync::{Notify, Semaphore};

use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::world::World;

pub const GRACE: Duration = Duration::from_secs(5);

/// A handler that says what it was handed: `item`, or the outputs that it saw.
pub fn echo() -> Handler {
    handler(|directive| async move { Ok(said(&directive)) })
}

pub fn said(directive: &Directive) -> Value {
    match &directive.item {
        Some(item) if directive.inputs.is_empty() => {
            json!({"item": item, "at": place::show(directive.branch)})
        }
        _ => json!({"step": directive.step_id, "saw": directive.inputs}),
    }
}

pub fn handler<F, A>(work: F) -> Handler
where
    F: Fn(Directive) -> A + Send + Sync + 'static,
    A: Future<Output = Result<Value, Failure>> + Send + 'static,
{
    Handler::new(move |_: Value, directive: Directive, _: Context| work(directive))
}

/// An engine on the play's books, as another process would be.
pub async fn engine<W: World>(play: &Play<W>, steps: &str, handler: Handler) -> Engine<W::Store> {
    let text = format!("protocol_id: graph.v1\nrequest_types: [GRAPH]\nsteps:\n{steps}");
    let mut protocol = Protocol::read(&text).unwrap_or_else(|refusal| panic!("{refusal}"));
    for step in protocol.steps.iter_mut().filter(|step| step.steps.is_empty()) {
        step.retry.backoff = Some(vec![0]);
    }
    let config = EngineConfig {
        poll: Duration::from_millis(10),
        beat: Duration::from_millis(40),
        takeover: Duration::from_secs(3_600),
        ..EngineConfig::default()
    };
    EngineBuilder::new(play.world.reopen().await.unwrap())
        .config(config)
        .protocol(protocol)
        .service(SERVICE, 8, handler)
        .start()
        .await
        .unwrap()
}

pub async fn submit<S: Store>(engine: &Engine<S>, payload: Value) -> JobId {
    let envelope = json!({
        "tenant_id": "t1", "request_type": "GRAPH", "input_ref": "in", "output_ref": "out",
        "payload": payload, "schema_version": "1", "idempotency_key": JobId::new().to_string(),
    });
    engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id
}

pub async fn closed<S: Store>(store: &S, job_id: JobId) -> JobView {
    for _ in 0..4_000 {
        let job = store.job(job_id).await.unwrap().unwrap();
        if job.row.state.is_terminal() {
            return job;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let attempts = store.attempts(job_id).await.unwrap();
    let open: Vec<_> = attempts.iter().filter(|a| !a.row.state.is_terminal()).collect();
    panic!("the job does not close: {:?}\n{open:#?}", store.job(job_id).await);
}

/// Runs one job to its end and stops the engine.
pub async fn ran<W: World>(play: &Play<W>, steps: &str, payload: Value, work: Handler) -> Run {
    let engine = engine(play, steps, work).await;
    let job_id = submit(&engine, payload).await;
    let job = closed(play.store(), job_id).await;
    engine.shutdown(GRACE).await.unwrap();
    play.expect_sound().await;
    Run { job, attempts: play.attempts(job_id).await }
}

pub struct Run {
    pub job: JobView,
    pub attempts: Vec<AttemptView>,
}

impl Run {
    pub fn state(&self, step_id: &str) -> StepState {
        self.find(step_id).row.state
    }

    pub fn find(&self, step_id: &str) -> &AttemptView {
        self.attempts.iter().rfind(|a| a.step_id == step_id).unwrap_or_else(|| panic!("{step_id}"))
    }

    pub fn output(&self, step_id: &str) -> Value {
        let output = self.find(step_id).output.as_deref();
        output.map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
    }

    #[track_caller]
    pub fn succeeded(&self) {
        assert_eq!(self.job.row.state, JobState::Succeeded, "{:?}", self.job.error);
    }

    pub fn error(&self) -> &str {
        self.job.error.as_ref().map_or("", |error| error.code.as_str())
    }
}

/// Fails for good where the step's name, or the item, is named in the payload.
fn fails_where_told() -> Handler {
    Handler::new(|payload: Value, directive: Directive, _: Context| async move {
        let told = |name: &Value| payload["fail"].as_array().is_some_and(|all| all.contains(name));
        let item = directive.item.clone().unwrap_or(Value::Null);
        if told(&json!(directive.step_id)) || told(&item) {
            return Err(Failure::fatal("TOLD", format!("{} {item}", directive.step_id)));
        }
        Ok(said(&directive))
    })
}

const DIAMOND: &str = "
  - {step_id: first, service: work}
  - {step_id: left, needs: [first], service: work}
  - {step_id: right, needs: [first], service: work}
  - {step_id: last, needs: [left, right], service: work}
";

const FAN: &str = "
  - {step_id: each, for_each: input.items, service: work}
  - {step_id: after, service: work}
";

on_both_stores! {
    async fn a_join_runs_once_when_all_before_it_are_over<W>(play: &Play<W>) {
        let run = ran(play, DIAMOND, json!({}), echo()).await;
        run.succeeded();
        assert_eq!((run.attempts.len(), run.job.row.attempts_total), (4, 4));
        let saw = run.output("last")["saw"].clone();
        let names: Vec<_> = saw.as_object().unwrap().keys().cloned().collect();
        assert_eq!(names, ["first", "left", "right"]);
    }

    async fn several_roots_begin_at_once<W>(play: &Play<W>) {
        let steps = "
  - {step_id: a, needs: [], service: work}
  - {step_id: b, needs: [], service: work}
  - {step_id: c, needs: [], service: work}
  - {step_id: d, needs: [a, b, c], service: work}
";
        let meet = Arc::new(tokio::sync::Barrier::new(3));
        let run = ran(play, steps, json!({}), handler(move |directive| {
            let meet = meet.clone();
            async move {
                if directive.step_id != "d" {
                    meet.wait().await;
                }
                Ok(said(&directive))
            }
        })).await;
        run.succeeded();
    }

    async fn a_step_whose_condition_is_false_is_skipped_and_its_followers_see_null<W>(play: &Play<W>) {
        let steps = "
  - {step_id: a, service: work}
  - {step_id: b, when: steps.a.output.step == 'z', service: work}
  - {step_id: c, when: steps.b.output == null, service: work}
";
        let run = ran(play, steps, json!({}), echo()).await;
        run.succeeded();
        assert_eq!(run.state("b"), StepState::Skipped);
        assert_eq!(run.state("c"), StepState::Succeeded);
        assert_eq!(run.job.row.attempts_total, 2, "a skipped step has no directive");
    }

    async fn a_job_of_which_every_step_is_skipped_succeeds<W>(play: &Play<W>) {
        let steps = "
  - {step_id: a, when: 'false', service: work}
  - {step_id: b, when: input.run, service: work}
";
        let run = ran(play, steps, json!({"run": false}), echo()).await;
        run.succeeded();
        assert_eq!(run.job.row.attempts_total, 0);
    }

    async fn a_condition_without_a_value_fails_its_step<W>(play: &Play<W>) {
        let steps = "
  - {step_id: a, service: work}
  - {step_id: b, when: input.absent > 1, service: work}
  - {step_id: c, service: work}
";
        let run = ran(play, steps, json!({}), echo()).await;
        assert_eq!((run.job.row.state, run.error()), (JobState::FailedFinal, "EXPRESSION_FAILED"));
        assert_eq!(run.state("c"), StepState::Pending, "what is behind a failed step never began");
    }

    async fn a_fan_out_gathers_in_the_order_of_its_items<W>(play: &Play<W>) {
        let items: Vec<u32> = (0..25).collect();
        let run = ran(play, FAN, json!({"items": items}), echo()).await;
        run.succeeded();
        let gathered = run.output("each/gather");
        let order: Vec<_> = gathered.as_array().unwrap().iter().map(|o| o["item"].as_u64()).collect();
        assert_eq!(order, (0..25).map(Some).collect::<Vec<_>>());
        assert_eq!(run.output("after")["saw"]["each"], gathered);
        let fan = run.find("each/fan");
        assert_eq!(fan.row.state, StepState::Succeeded);
    }

    async fn a_fan_out_over_nothing_gathers_nothing<W>(play: &Play<W>) {
        let run = ran(play, FAN, json!({"items": []}), echo()).await;
        run.succeeded();
        assert_eq!(run.output("each/gather"), json!([]));
    }

    async fn a_skipped_fan_out_has_the_output_null<W>(play: &Play<W>) {
        let steps = FAN.replace("for_each: input.items", "for_each: input.items, when: 'false'");
        let run = ran(play, &steps, json!({"items": [1]}), echo()).await;
        run.succeeded();
        assert_eq!(run.state("each/gather"), StepState::Skipped);
        assert_eq!(run.attempts.iter().filter(|a| a.step_id == "each").count(), 0);
    }

    async fn fan_outs_nest<W>(play: &Play<W>) {
        let steps = "
  - step_id: outer
    for_each: input.lists
    steps:
      - {step_id: head, service: work}
      - {step_id: inner, for_each: item, service: work}
      - {step_id: tail, needs: [inner, head], service: work}
  - {step_id: after, service: work}
";
        let run = ran(play, steps, json!({"lists": [[1, 2], [], [3, 4, 5]]}), echo()).await;
        run.succeeded();
        let tails = run.output("outer/gather");
        let inner: Vec<Vec<_>> = tails
            .as_array().unwrap().iter()
            .map(|tail| tail["saw"]["inner"].as_array().unwrap().iter().map(|o| o["at"].clone()).collect())
            .collect();
        assert_eq!(json!(inner), json!([["0/0", "0/1"], [], ["2/0", "2/1", "2/2"]]));
    }

    async fn only_so_many_branches_are_open_at_a_time<W>(play: &Play<W>) {
        let steps = FAN.replace("for_each: input.items", "for_each: input.items, max_parallel: 3");
        let (open, most) = (Arc::new(AtomicI64::new(0)), Arc::new(AtomicI64::new(0)));
        let seen = most.clone();
        let work = handler(move |directive| {
            let (open, most) = (open.clone(), most.clone());
            async move {
                most.fetch_max(open.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                tokio::task::yield_now().await;
                open.fetch_sub(1, Ordering::SeqCst);
                Ok(said(&directive))
            }
        });
        let run = ran(play, &steps, json!({"items": (0..17).collect::<Vec<_>>()}), work).await;
        run.succeeded();
        assert_eq!(run.output("each/gather").as_array().unwrap().len(), 17);
        assert!((1..=3).contains(&seen.load(Ordering::SeqCst)));
    }

    /// The rows that end the outer branches are not there yet.
    async fn branches_that_have_not_opened_what_is_within_them_are_sound<W>(play: &Play<W>) {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Semaphore::new(0)));
        let (told, wait) = (begun.clone(), go.clone());
        let work = handler(move |directive| {
            let (begun, go) = (begun.clone(), go.clone());
            async move { begun.notify_one(); go.acquire().await.unwrap().forget(); Ok(said(&directive)) }
        });
        let steps = "
  - step_id: each
    needs: []
    for_each: input.items
    steps:
      - {step_id: first, service: work}
      - {step_id: pair, for_each: '[1, 2]', service: work}
";
        let engine = engine(play, steps, work).await;
        let job_id = submit(&engine, json!({"items": [1, 2, 3]})).await;
        told.notified().await;
        play.expect_sound().await;
        wait.add_permits(100);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn too_many_items_fail_the_fan_out<W>(play: &Play<W>) {
        let steps = FAN.replace("for_each: input.items", "for_each: input.items, max_items: 2");
        let run = ran(play, &steps, json!({"items": [1, 2, 3]}), echo()).await;
        assert_eq!((run.job.row.state, run.error()), (JobState::FailedFinal, "TOO_MANY_ITEMS"));
    }

    async fn a_failed_branch_fails_the_job_and_closes_what_is_parked<W>(play: &Play<W>) {
        let steps = FAN.replace("for_each: input.items", "for_each: input.items, max_parallel: 2");
        let payload = json!({"items": (0..20).collect::<Vec<_>>(), "fail": [3]});
        let run = ran(play, &steps, payload, fails_where_told()).await;
        assert_eq!((run.job.row.state, run.error()), (JobState::FailedFinal, "TOLD"));
        assert_eq!(run.state("each/gather"), StepState::Cancelled, "a parked join is closed");
        let cancelled = run.attempts.iter().filter(|a| a.row.state == StepState::Cancelled).count();
        assert!(cancelled > 10, "branches that were parked are closed: {cancelled}");
        assert_eq!(run.state("after"), StepState::Pending);
    }

    async fn a_tolerant_fan_out_lets_the_other_branches_finish<W>(play: &Play<W>) {
        let payload = json!({"items": [0, 1, 2, 3, 4], "fail": [1, 3]});
        for (policy, ok) in [("finish_all", false), ("{tolerate: 1}", false), ("{tolerate: 2}", true)] {
            let steps = format!("
  - {{step_id: each, for_each: input.items, on_failure: {policy}, service: work}}
  - {{step_id: after, service: work}}
").replace("graph.v1", policy);
            let played = Play::<W>::begin().await;
            let run = ran(&played, &steps, payload.clone(), fails_where_told()).await;
            let branches: Vec<_> = run.attempts.iter().filter(|a| a.step_id == "each").map(|a| a.row.state).collect();
            assert_eq!(branches.iter().filter(|s| **s == StepState::Succeeded).count(), 3, "{policy}");
            if ok {
                run.succeeded();
                let gathered = run.output("each/gather");
                assert_eq!((&gathered[1], &gathered[2]["item"]), (&Value::Null, &json!(2)));
            } else {
                assert_eq!((run.job.row.state, run.error()), (JobState::FailedFinal, "BRANCHES_FAILED"), "{policy}");
            }
        }
        assert!(play.store().open_jobs().await.unwrap() == 0);
    }

    async fn the_steps_behind_a_failed_one_are_skipped_in_a_tolerant_branch<W>(play: &Play<W>) {
        let steps = "
  - step_id: each
    for_each: input.items
    on_failure: {tolerate: 1}
    steps:
      - {step_id: a, service: work}
      - {step_id: b, needs: [a], service: work}
      - {step_id: c, needs: [a], service: work}
";
        let run = ran(play, steps, json!({"items": [7, 8], "fail": [8]}), fails_where_told()).await;
        run.succeeded();
        let states = |name: &str| run.attempts.iter().filter(|a| a.step_id == name).map(|a| a.row.state).collect::<Vec<_>>();
        assert_eq!(states("a"), [StepState::Succeeded, StepState::FailedFinal]);
        assert_eq!(states("b"), [StepState::Succeeded, StepState::Skipped]);
        assert_eq!(states("each/join"), [StepState::Succeeded, StepState::Skipped]);
        let gathered = run.output("each/gather");
        assert!(gathered[0]["b"].is_object() && gathered[1].is_null(), "{gathered}");
    }

    async fn one_failed_arm_closes_the_join_and_the_other_arm_drains<W>(play: &Play<W>) {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, wait) = (begun.clone(), go.clone());
        let work = handler(move |directive| {
            let (begun, go) = (begun.clone(), go.clone());
            async move {
                match directive.step_id.as_str() {
                    "right" => { begun.notify_one(); go.notified().await; Ok(said(&directive)) }
                    "left" => { begun.notified().await; begun.notify_one(); Err(Failure::fatal("LEFT", "no")) }
                    _ => Ok(said(&directive)),
                }
            }
        });
        let engine = engine(play, DIAMOND, work).await;
        let job_id = submit(&engine, json!({})).await;
        told.notified().await;
        told.notify_one();
        let job = loop {
            let job = play.job(job_id).await;
            if job.row.verdict.is_some() { break job; }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert_eq!((job.row.state, job.row.verdict), (JobState::InProgress, Some(JobState::FailedFinal)));
        assert_eq!(job.row.semaphore.get(), 1, "only the arm that runs is left");
        play.expect_sound().await;
        wait.notify_one();
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "LEFT"));
        let states: Vec<_> = play.attempts(job_id).await.iter().map(|a| a.row.state).collect();
        assert_eq!(states, [StepState::Succeeded, StepState::FailedFinal, StepState::Succeeded, StepState::Cancelled]);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_cancel_that_finds_only_waiting_obligations_ends_the_job_at_once<W>(play: &Play<W>) {
        let steps = "
  - {step_id: rest, needs: [], sleep: 1h}
  - {step_id: too, needs: [], sleep: 2h}
  - {step_id: both, needs: [rest, too], service: work}
  - {step_id: last, service: work}
";
        let engine = engine(play, steps, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        assert_eq!(play.job(job_id).await.row.semaphore.get(), 3, "two roots and a join");
        assert_eq!(engine.cancel(job_id, None).await.unwrap(), JobState::Cancelling);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        let attempts = play.attempts(job_id).await;
        assert!(attempts.iter().all(|a| a.row.state == StepState::Cancelled));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_countdown_that_is_off_is_told_by_the_audit<W>(play: &Play<W>) {
        let steps = "
  - {step_id: rest, needs: [], sleep: 1h}
  - {step_id: too, needs: [], sleep: 2h}
  - {step_id: both, needs: [rest, too], service: work}
";
        let engine = engine(play, steps, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        let row = format!("job_id = {} AND step_index = 2", W::id(job_id));
        let set = |countdown| format!("UPDATE attempt SET countdown = {countdown} WHERE {row}");
        for countdown in [1, 3] {
            play.world.execute(&set(countdown)).await.unwrap();
            let checks = play.store().audit().await.unwrap();
            let told: Vec<_> = checks.iter().filter(|check| !check.violations.is_empty()).collect();
            let [check] = told[..] else { panic!("{told:?}") };
            assert_eq!(check.name, "28_countdown_is_not_the_unfinished_predecessors");
            assert_eq!(check.violations[0].job_id, Some(job_id));
        }
        play.world.execute(&set(2)).await.unwrap();
        play.expect_sound().await;
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_failure_that_nothing_tolerates_in_a_success_is_told_by_the_audit<W>(play: &Play<W>) {
        let steps = FAN.replace("for_each: input.items", "for_each: input.items, on_failure: {tolerate: 1}");
        let run = ran(play, &steps, json!({"items": [1, 2], "fail": [2]}), fails_where_told()).await;
        run.succeeded();
        let row = format!("job_id = {} AND step_id = 'after'", W::id(run.job.facts.job_id));
        let set = |state| format!("UPDATE attempt SET state = {state} WHERE {row}");
        play.world.execute(&set(6)).await.unwrap();
        let checks = play.store().audit().await.unwrap();
        let told: Vec<_> = checks.iter().filter(|c| !c.violations.is_empty()).map(|c| c.name.as_str()).collect();
        assert_eq!(told, ["17_events_do_not_replay_to_the_row", "42_end_that_its_steps_do_not_bear_out"]);
        play.world.execute(&set(4)).await.unwrap();
    }

    async fn a_cancel_lets_what_runs_finish_and_starts_nothing<W>(play: &Play<W>) {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, wait) = (begun.clone(), go.clone());
        let work = handler(move |directive| {
            let (begun, go) = (begun.clone(), go.clone());
            async move { begun.notify_one(); go.notified().await; Ok(said(&directive)) }
        });
        let steps = FAN.replace("for_each: input.items", "for_each: input.items, max_parallel: 1");
        let engine = engine(play, &steps, work).await;
        let job_id = submit(&engine, json!({"items": [1, 2, 3]})).await;
        told.notified().await;
        engine.cancel(job_id, None).await.unwrap();
        wait.notify_one();
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        let ran = play.attempts(job_id).await.iter().filter(|a| a.row.state == StepState::Succeeded).count();
        assert_eq!(ran, 2, "the opener and the branch that was running");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_sleep_ends_when_its_time_has_come<W>(play: &Play<W>) {
        let steps = "
  - {step_id: a, service: work}
  - {step_id: rest, sleep: 1h}
  - {step_id: b, service: work}
";
        let engine = engine(play, steps, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        while play.attempts(job_id).await[1].timer_at.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(play.attempts(job_id).await[1].row.state, StepState::Pending);
        play.expect_sound().await;
        play.clock.advance(3_600_000);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_retry_in_a_branch_keeps_its_item<W>(play: &Play<W>) {
        let tries = Arc::new(AtomicUsize::new(0));
        let work = handler(move |directive| {
            let tries = tries.clone();
            async move {
                if directive.item == Some(json!(2)) && tries.fetch_add(1, Ordering::SeqCst) == 0 {
                    return Err(Failure::retryable("AGAIN", "once"));
                }
                Ok(said(&directive))
            }
        });
        let engine = engine(play, FAN, work).await;
        let job_id = submit(&engine, json!({"items": [1, 2]})).await;
        let mut ended = false;
        for _ in 0..400 {
            // A backoff is a time, and time is the test's.
            play.clock.advance(30_000);
            ended |= play.job(job_id).await.row.state.is_terminal();
            if ended { break; }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.attempts_total), (JobState::Succeeded, 6));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn another_engine_goes_on_when_one_is_lost_at_any_moment<W>(play: &Play<W>) {
        let items: Vec<u32> = (0..40).collect();
        let undisturbed = {
            let quiet = Play::<W>::begin().await;
            outputs(&ran(&quiet, FAN, json!({"items": items}), echo()).await.attempts)
        };
        let first = engine(play, FAN, slow_echo()).await;
        let job_id = submit(&first, json!({"items": items})).await;
        let survivor = lose_engines(play, first, (FAN, slow_echo), 6).await;
        closed(play.store(), job_id).await;
        assert_eq!(outputs(&play.attempts(job_id).await), undisturbed);
        survivor.shutdown(GRACE).await.unwrap();
    }
}

/// Loses one engine after the other, each taken over by a new one; returns the last.
pub async fn lose_engines<W: World>(
    play: &Play<W>,
    first: Engine<W::Store>,
    (steps, work): (&str, fn() -> Handler),
    count: i64,
) -> Engine<W::Store> {
    lose_engines_of(play, first, count, async || engine(play, steps, work()).await).await
}

/// The same with engines of any kind.
pub async fn lose_engines_of<W: World>(
    play: &Play<W>,
    first: Engine<W::Store>,
    count: i64,
    another: impl AsyncFn() -> Engine<W::Store>,
) -> Engine<W::Store> {
    let mut engine_now = first;
    // The play itself is number 1.
    for number in 2..2 + count {
        tokio::time::sleep(Duration::from_millis(20)).await;
        let heir = another().await;
        busy(play, number).await;
        let dead = format!("SELECT CAST(dead AS text) FROM engine WHERE engine_no = {number}");
        while play.world.query(&dead).await.unwrap()[0][0].as_deref() != Some("1") {
            // As if it had not beaten for long.
            play.store().leave(sprag_engine::ids::EngineNo(number)).await.unwrap();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        // It is fenced off; what it says of that does not matter.
        let _ = engine_now.shutdown(Duration::ZERO).await;
        engine_now = heir;
    }
    engine_now
}

/// Waits until an engine runs something, if it comes to that: on a busy machine it mostly waits for its store.
async fn busy<W: World>(play: &Play<W>, engine_no: i64) {
    let running = format!(
        "SELECT CAST(count(*) AS text) FROM attempt WHERE owner = {engine_no} AND lease_id IS NOT NULL AND ending IS NULL"
    );
    for _ in 0..100 {
        if play.world.query(&running).await.unwrap()[0][0].as_deref() != Some("0") {
            return;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

fn slow_echo() -> Handler {
    handler(|directive| async move {
        tokio::time::sleep(Duration::from_millis(3)).await;
        Ok(said(&directive))
    })
}

/// The last output of every place, by name.
pub fn outputs(attempts: &[AttemptView]) -> BTreeMap<(String, u64, u32), Option<String>> {
    let place = |a: &AttemptView| (a.step_id.clone(), a.key.branch, a.key.turn);
    attempts.iter().map(|attempt| (place(attempt), attempt.output.clone())).collect()
}
