//! What an explanation says comes next, and when: each kind of sentence, on a clock of the test, and what then does come.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::json;
use sprag_engine::bus::{Bus, Delivery, Later, Letter};
use sprag_engine::callback::{AckMode, Claim};
use sprag_engine::directive::Directive;
use sprag_engine::engine::{Engine, EngineBuilder};
use sprag_engine::explain::explained;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{AttemptFilter, Store};
use sprag_engine::upkeep::{Delivery as Delivered, Upkeep};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{JobState, OutboxState, StepState};
use tokio::sync::Notify;

use crate::graphs::{GRACE, handler, submit};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::pull::{builder, claim, closed, done, until};
use crate::world::World;

/// A builder with this protocol, on the play's clock.
async fn with<W: World>(play: &Play<W>, steps: &str) -> EngineBuilder<W::Store> {
    let text = format!("protocol_id: graph.v1\nrequest_types: [GRAPH]\nsteps:\n{steps}");
    let protocol = Protocol::read(&text).unwrap_or_else(|refusal| panic!("{refusal}"));
    builder(play).await.protocol(protocol)
}

/// An engine that serves nothing itself, and a job of these steps.
async fn job<W: World>(play: &Play<W>, steps: &str) -> (Engine<W::Store>, JobId) {
    let engine = with(play, steps).await.start().await.unwrap();
    let job_id = submit(&engine, json!({"pages": [1, 2]})).await;
    (engine, job_id)
}

async fn next<W: World>(play: &Play<W>, job_id: JobId) -> String {
    let job = play.job(job_id).await;
    explained(play.store(), &job, AttemptFilter::default()).await.unwrap().next
}

/// The next attempt is handed out, and not acknowledged.
async fn handed<S: Store>(engine: &Engine<S>, claim_id: &str) -> Directive {
    let claim = Claim { ack: AckMode::Explicit, ..claim(claim_id, 1) };
    engine.claim(claim).await.unwrap().remove(0)
}

/// A transport that refuses as long as it is told to, and never brings an answer.
struct Fickle(AtomicBool);

impl Bus for Fickle {
    fn publish(&self, _: Letter) -> Later<'_, Result<(), String>> {
        let refuses = self.0.load(Ordering::SeqCst);
        Box::pin(async move { if refuses { Err("the broker is away".to_owned()) } else { Ok(()) } })
    }

    fn receive(&self) -> Later<'_, Option<Delivery>> {
        Box::pin(std::future::pending())
    }
}

/// A job whose step is behind a bus that refuses its directive.
async fn refused<W: World>(play: &Play<W>) -> (Engine<W::Store>, JobId, Arc<Fickle>) {
    let bus = Arc::new(Fickle(AtomicBool::new(true)));
    let engine = with(play, "  - {step_id: a, service: outside}\n").await;
    let engine = engine.bus(&["outside"], bus.clone()).start().await.unwrap();
    let job_id = submit(&engine, json!({})).await;
    until(play, job_id, |attempt| attempt.row.publish_attempts == 1).await;
    (engine, job_id, bus)
}

on_both_stores! {
    async fn an_attempt_that_nobody_acknowledges_is_followed_by_the_next_one<W>(play: &Play<W>) {
        let (engine, job_id) = job(play, "  - {step_id: a, service: outside}\n").await;
        for (attempt_no, wait) in [(1, "1m"), (2, "5m")] {
            handed(&engine, &format!("c{attempt_no}")).await;
            let coming = attempt_no + 1;
            let follows = format!("attempt {coming} of 3 follows {wait} later.");
            let told = next(play, job_id).await;
            assert_eq!(told, format!("If nobody acknowledges it in 30s, {follows}"));
            play.clock.advance(18_000);
            let told = next(play, job_id).await;
            assert_eq!(told, format!("If nobody acknowledges it in 12s, {follows}"));
            play.clock.advance(12_000);
            until(play, job_id, |attempt| attempt.key.attempt_no == coming).await;
            let told = next(play, job_id).await;
            assert_eq!(told, format!("Attempt {coming} of 3 begins in {wait}."));
            play.clock.advance(if attempt_no == 1 { 60_000 } else { 300_000 });
        }
        handed(&engine, "c3").await;
        assert_eq!(
            next(play, job_id).await,
            "It is the last attempt: if nobody acknowledges it in 30s, the job ends FAILED_FINAL."
        );
        play.clock.advance(30_000);
        assert_eq!(closed(play, job_id).await, JobState::FailedFinal);
        assert_eq!(next(play, job_id).await, "Nothing: the job is over.");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_worker_that_falls_silent_loses_its_lease_and_is_told_when<W>(play: &Play<W>) {
        let steps = "  - {step_id: a, service: outside, timeouts: {lease: 2m}, retry: {backoff: [40s]}}\n";
        let (engine, job_id) = job(play, steps).await;
        assert_eq!(
            next(play, job_id).await,
            "Nothing until somebody serves outside; then attempt 1 of 3 begins."
        );
        engine.claim(claim("c1", 1)).await.unwrap();
        play.clock.advance(30_000);
        assert_eq!(
            next(play, job_id).await,
            "If its lease ends unrenewed in 90s, attempt 2 of 3 follows 40s later."
        );
        engine.cancel(job_id, None).await.unwrap();
        assert_eq!(
            next(play, job_id).await,
            "If its lease ends unrenewed in 90s, the job ends CANCELLED."
        );
        play.clock.advance(90_000);
        assert_eq!(closed(play, job_id).await, JobState::Cancelled);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_directive_that_was_refused_is_published_again_and_says_why_it_was_not<W>(play: &Play<W>) {
        let (engine, job_id, bus) = refused(play).await;
        assert_eq!(
            next(play, job_id).await,
            "Try 2 of 3 to publish the directive is due in 30s (the last one failed: the broker is away); \
             if that fails, the next one follows 2m later."
        );
        play.clock.advance(30_000);
        until(play, job_id, |attempt| attempt.row.publish_attempts == 2).await;
        assert_eq!(
            next(play, job_id).await,
            "Try 3 of 3 to publish the directive is due in 2m (the last one failed: the broker is away); \
             it is the last one: if it fails, the job ends FAILED_FINAL."
        );
        bus.0.store(false, Ordering::SeqCst);
        play.clock.advance(120_000);
        let sent = until(play, job_id, |a| a.row.outbox == Some(OutboxState::Sent)).await;
        let fence = sprag_engine::callback::Fence {
            job_id,
            step_id: "a".to_owned(),
            step_index: None,
            branch: 0,
            turn: 0,
            attempt_no: 1,
            lease_id: sent.row.lease_id.unwrap(),
            tenant_id: None,
        };
        engine.ack(fence.clone()).await.unwrap();
        engine.result(fence, done()).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        assert_eq!(play.attempts(job_id).await[0].error, None, "what was in the way is past");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_job_that_is_cancelled_before_its_directive_is_out_does_not_end_with_why_it_was_not<W>(play: &Play<W>) {
        let (engine, job_id, _) = refused(play).await;
        let reason = play.attempts(job_id).await[0].error.clone().unwrap();
        assert_eq!((reason.code.as_str(), reason.message.as_str()), ("PUBLISH_FAILED", "the broker is away"));
        engine.cancel(job_id, None).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::Cancelled);
        assert_eq!(play.job(job_id).await.error, None);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_wait_tells_when_its_time_ends_and_what_then<W>(play: &Play<W>) {
        for (then, told) in [("fail", "the job ends FAILED_FINAL"), ("succeed", "the step succeeds without it")] {
            let steps = format!("  - {{step_id: a, wait: {{signal: go, timeout: 3h, on_timeout: {then}}}}}\n");
            let text = format!("protocol_id: {then}.v1\nrequest_types: [GRAPH]\nsteps:\n{steps}");
            let protocol = Protocol::read(&text).unwrap();
            let engine = builder(play).await.protocol(protocol).start().await.unwrap();
            let job_id = submit(&engine, json!({})).await;
            until(play, job_id, |attempt| attempt.waits_for.is_some() && attempt.owner.is_none()).await;
            assert_eq!(
                next(play, job_id).await,
                format!("Nothing until signal go comes, or its time ends in 3h: then {told}.")
            );
            engine.cancel(job_id, None).await.unwrap();
            closed(play, job_id).await;
            engine.shutdown(GRACE).await.unwrap();
        }
        let (engine, job_id) = job(play, "  - {step_id: a, wait: {signal: go}}\n").await;
        until(play, job_id, |attempt| attempt.waits_for.is_some() && attempt.owner.is_none()).await;
        assert_eq!(next(play, job_id).await, "Nothing until signal go comes.");
        engine.cancel(job_id, None).await.unwrap();
        closed(play, job_id).await;
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_sleep_tells_when_it_is_over<W>(play: &Play<W>) {
        let (engine, job_id) = job(play, "  - {step_id: a, sleep: 1h}\n").await;
        assert_eq!(next(play, job_id).await, "Its sleep is over in 1h.");
        play.clock.advance(3_600_000);
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_handler_in_the_engine_may_fail_be_slow_or_lose_its_engine<W>(play: &Play<W>) {
        let (go, goes) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let told = go.clone();
        let works = goes.clone();
        let waits = handler(move |_| {
            let (told, works) = (told.clone(), works.clone());
            async move {
                works.notify_one();
                told.notified().await;
                Ok(json!(1))
            }
        });
        let steps = "  - {step_id: a, service: work, timeouts: {step: 1h}, retry: {max_attempts: 2}}\n  \
                       - {step_id: b, service: outside}\n";
        let engine = with(play, steps).await.service(SERVICE, 1, waits).start().await.unwrap();
        let job_id = submit(&engine, json!({})).await;
        goes.notified().await;
        until(play, job_id, |attempt| attempt.row.state == StepState::InProgress).await;
        assert_eq!(
            next(play, job_id).await,
            "If it fails, or it is not done in 1h, attempt 2 of 2 follows 30s later. \
             If its engine is lost, attempt 2 of 3 follows at once."
        );
        go.notify_one();
        until(play, job_id, |attempt| attempt.step_id == "b" && attempt.is_ready).await;
        engine.pause("outside").await.unwrap();
        assert_eq!(
            next(play, job_id).await,
            "Nothing until service outside is resumed; then attempt 1 of 3 begins."
        );
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn branches_are_told_of_one_by_one_and_a_failure_that_is_tolerated_is_no_end<W>(play: &Play<W>) {
        let steps = "  - {step_id: a, for_each: input.pages, on_failure: finish_all, service: outside, \
                          retry: {max_attempts: 1}}\n";
        let (engine, job_id) = job(play, steps).await;
        let mut given = 0;
        while given < 2 {
            given += engine.claim(claim(&format!("c{given}"), 2)).await.unwrap().len();
        }
        let last = "It is the last attempt: if its lease ends unrenewed in 15m, it counts as failed, \
                    and what is beside it goes on.";
        assert_eq!(
            next(play, job_id).await,
            format!("Step a of branch 0: {last} Step a of branch 1: {last}")
        );
        engine.cancel(job_id, None).await.unwrap();
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_job_that_is_over_tells_of_the_hooks_that_were_not_heard_of<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Succeeded).await;
        let tasks = ["hook:mail".to_owned()].into();
        let write = sprag_engine::store::FinishWrite { tasks, ..play.finish_write(&held, false).unwrap() };
        play.finish_as(play.engine, write).await.unwrap();
        let told = next(play, job_id).await;
        assert_eq!(told, "The job is over. Hook mail is to be called by an engine that has it.");
        let claimed = play.store().claim_tasks(play.engine, vec!["hook:mail".into()], 1, 60_000).await;
        let task = claimed.unwrap().remove(0);
        let told = next(play, job_id).await;
        assert_eq!(told, "The job is over. Hook mail is being called; if nobody hears of that, again in 1m.");
        let failed = Delivered::Failed { delay_ms: 30_000, message: "no post".to_owned() };
        play.store().settle_tasks(play.engine, vec![(task, failed)]).await.unwrap();
        let told = next(play, job_id).await;
        assert_eq!(
            told,
            "The job is over. Hook mail has failed once: no post; it is called again in 30s."
        );
        play.clock.advance(30_000);
        let claimed = play.store().claim_tasks(play.engine, vec!["hook:mail".into()], 1, 60_000).await;
        let settled = vec![(claimed.unwrap().remove(0), Delivered::Done)];
        play.store().settle_tasks(play.engine, settled).await.unwrap();
        assert_eq!(next(play, job_id).await, "Nothing: the job is over.");
    }

    async fn events_of_branches_and_turns_can_be_told_apart<W>(play: &Play<W>) {
        let steps = "  - {step_id: a, for_each: input.pages, service: work}\n  \
                       - {step_id: b, repeat: {while: 'turn < 1', max: 3}, service: work}\n";
        let answers = handler(|_| async { Ok(json!(1)) });
        let engine = with(play, steps).await.service(SERVICE, 2, answers).start().await.unwrap();
        let job_id = submit(&engine, json!({"pages": [1, 2]})).await;
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        let events = play.store().events(job_id).await.unwrap();
        let seen: std::collections::BTreeSet<(u64, u32)> =
            events.iter().map(|event| (event.branch, event.turn)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [(0, 0), (0, 1), (1, 0), (2, 0)]);
        let fed = crate::feed::look_for(play, sprag_engine::store::Cursor::START, events.len()).await;
        let mut fed: Vec<_> = fed.into_iter().map(|event| event.event).collect();
        fed.sort_by_key(|event| event.n);
        assert_eq!(fed, events, "the feed says the same");
        engine.shutdown(GRACE).await.unwrap();
    }
}
