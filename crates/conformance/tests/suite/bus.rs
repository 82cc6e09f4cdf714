//! Services behind a bus: the outbox, its publisher, and jobs that end whatever the bus does.

use std::sync::Arc;
use std::time::Duration;

use sprag_conformance::bus::{Faults, TestBus};
use sprag_engine::callback::Claim;
use sprag_engine::engine::Engine;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{Pick, Store, Wish};
use sprag_kernel::retry::{ACK_TIMEOUT_MS, LEASE_MS};
use sprag_kernel::{JobState, OutboxState, State, StepState};

use crate::on_both_stores;
use crate::play::Play;
use crate::pull::{builder, claim, closed, done, stale, submit, until};
use crate::world::World;

const GRACE: Duration = Duration::from_secs(5);

async fn engine<W: World>(play: &Play<W>, bus: &TestBus, steps: usize) -> Engine<W::Store> {
    let mut protocol = Protocol::new("bus.v1", "PULL");
    for n in 0..steps {
        protocol = protocol.step(&format!("s{n}"), "outside");
    }
    for step in &mut protocol.steps {
        step.retry.max_attempts = Some(100);
        step.retry.ack_backoff = Some(vec![1_000]);
        step.retry.backoff = Some(vec![1_000]);
    }
    let bus = Arc::new(bus.clone());
    builder(play).await.protocol(protocol).bus(&["outside"], bus).start().await.unwrap()
}

/// Lets time pass until all jobs are over.
async fn pass_time<W: World>(play: &Play<W>, jobs: &[JobId]) {
    for job_id in jobs {
        for round in 0.. {
            assert!(round < 20_000, "it does not close: {:?}", play.attempts(*job_id).await);
            if play.job(*job_id).await.row.state.is_terminal() {
                break;
            }
            play.clock.advance(1_000);
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

/// Each step that was done, was done by one attempt, and its effect is the one that all attempts share.
async fn expect_effects_once<W: World>(play: &Play<W>, job_id: JobId, steps: usize) {
    let attempts = play.attempts(job_id).await;
    let done = attempts.iter().filter(|attempt| attempt.row.state == StepState::Succeeded);
    let outputs: Vec<_> = done.map(|attempt| attempt.output.clone().unwrap()).collect();
    let effect = |n: usize| format!(r#"{{"effect":"{job_id}/{n}/0/0"}}"#);
    assert_eq!(outputs, (0..steps).map(effect).collect::<Vec<_>>());
}

async fn ends_whatever_the_bus_does<W: World>(play: &Play<W>, seed: u64, faults: Faults) {
    let bus = TestBus::new(seed, faults);
    let engine = engine(play, &bus, 3).await;
    let mut jobs = Vec::new();
    for n in 0..12 {
        jobs.push(submit(&engine, n).await);
    }
    pass_time(play, &jobs).await;
    for job_id in jobs {
        match play.job(job_id).await.row.state {
            JobState::Succeeded => expect_effects_once(play, job_id, 3).await,
            JobState::FailedFinal => {
                assert!(faults.refuse > 0, "only a bus that refuses fails a job");
                assert_eq!(play.job(job_id).await.error.unwrap().code, "PUBLISH_FAILED");
            }
            state => panic!("{state}"),
        }
    }
    engine.shutdown(GRACE).await.unwrap();
}

on_both_stores! {
    async fn o1_a_job_goes_through_the_outbox_step_by_step<W>(play: &Play<W>) {
        let bus = TestBus::new(1, Faults::default());
        let engine = engine(play, &bus, 3).await;
        let job_id = submit(&engine, 1).await;
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        expect_effects_once(play, job_id, 3).await;
        for attempt in play.attempts(job_id).await {
            assert_eq!(attempt.row.outbox, Some(OutboxState::Sent));
            assert!(attempt.sent_at.is_some() && attempt.acked_at.is_some());
        }
        assert!(bus.published().values().all(|times| *times == 1));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn jobs_end_on_a_bus_that_loses_repeats_delays_and_reorders<W>(play: &Play<W>) {
        ends_whatever_the_bus_does(play, 7, Faults { refuse: 0, lose: 15, repeat: 30 }).await;
    }

    async fn jobs_end_on_a_bus_that_refuses_too<W>(play: &Play<W>) {
        ends_whatever_the_bus_does(play, 8, Faults { refuse: 30, lose: 10, repeat: 10 }).await;
    }

    /// Its worker knows nothing of that, and does the work: for nothing, because the next attempt has the step.
    async fn a_directive_that_arrives_after_its_ack_deadline_changes_nothing<W>(play: &Play<W>) {
        let bus = TestBus::holding();
        let engine = engine(play, &bus, 1).await;
        let job_id = submit(&engine, 1).await;
        let named = |what: &str, attempt: u32| format!("{what} {job_id}/s0/{attempt}");
        bus.holds(&named("letter", 1)).await;
        until(play, job_id, |attempt| attempt.row.state == StepState::AwaitingAck).await;
        play.clock.advance(ACK_TIMEOUT_MS.cast_signed());
        until(play, job_id, |attempt| attempt.key.attempt_no == 2).await;
        play.clock.advance(1_000);
        bus.holds(&named("letter", 2)).await;
        bus.let_go(&named("letter", 1));
        for (callback, n) in [("result", 1), ("ack", 2), ("heartbeat", 3)] {
            bus.let_go(&named(callback, 1));
            while stale(play).await.len() < n {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        let attempts = play.attempts(job_id).await;
        assert_eq!(attempts[0].error.as_ref().unwrap().code, "ACK_TIMEOUT");
        assert!(attempts[0].output.is_none() && attempts[0].acked_at.is_none());
        assert_eq!(attempts[1].row.ending, None);
        bus.flow();
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        expect_effects_once(play, job_id, 1).await;
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_callback_that_arrives_after_its_lease_changes_nothing<W>(play: &Play<W>) {
        let bus = TestBus::holding();
        let engine = engine(play, &bus, 1).await;
        let job_id = submit(&engine, 1).await;
        let named = |what: &str, attempt: u32| format!("{what} {job_id}/s0/{attempt}");
        bus.holds(&named("letter", 1)).await;
        bus.let_go(&named("letter", 1));
        bus.let_go(&named("ack", 1));
        until(play, job_id, |attempt| attempt.row.state == StepState::InProgress).await;
        play.clock.advance(LEASE_MS.cast_signed());
        until(play, job_id, |attempt| attempt.key.attempt_no == 2).await;
        play.clock.advance(1_000);
        bus.holds(&named("letter", 2)).await;
        for (callback, n) in [("result", 1), ("heartbeat", 2)] {
            bus.let_go(&named(callback, 1));
            while stale(play).await.len() < n {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        let attempts = play.attempts(job_id).await;
        assert_eq!(attempts[0].error.as_ref().unwrap().code, "LEASE_EXPIRED");
        assert!(attempts[0].output.is_none() && attempts[1].row.ending.is_none());
        bus.flow();
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        expect_effects_once(play, job_id, 1).await;
        engine.shutdown(GRACE).await.unwrap();
    }

    /// The letter that went out last arrives first, and its worker's result before the ACK.
    async fn letters_and_callbacks_may_come_in_any_order<W>(play: &Play<W>) {
        let bus = TestBus::holding();
        let engine = engine(play, &bus, 1).await;
        let (first, second) = (submit(&engine, 1).await, submit(&engine, 2).await);
        for job_id in [first, second] {
            bus.holds(&format!("letter {job_id}/s0/1")).await;
        }
        bus.let_go(&format!("letter {second}/s0/1"));
        for callback in ["result", "heartbeat", "ack"] {
            bus.let_go(&format!("{callback} {second}/s0/1"));
        }
        assert_eq!(closed(play, second).await, JobState::Succeeded);
        let waits = play.attempts(first).await.remove(0);
        assert_eq!((waits.acked_at, waits.row.ending), (None, None));
        bus.flow();
        assert_eq!(closed(play, first).await, JobState::Succeeded);
        for job_id in [first, second] {
            expect_effects_once(play, job_id, 1).await;
        }
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_bus_that_refuses_is_tried_three_times_and_fails_the_step<W>(play: &Play<W>) {
        let bus = TestBus::new(1, Faults { refuse: 100, ..Faults::default() });
        let engine = engine(play, &bus, 2).await;
        let job_id = submit(&engine, 1).await;
        pass_time(play, &[job_id]).await;
        let job = play.job(job_id).await;
        assert_eq!(job.row.state, JobState::FailedFinal);
        assert_eq!((job.error.unwrap().code.as_str(), job.row.attempts_total), ("PUBLISH_FAILED", 1));
        let attempt = play.attempts(job_id).await.remove(0);
        assert_eq!(attempt.row.outbox, Some(OutboxState::FailedFinal));
        assert_eq!(attempt.row.publish_attempts, 2, "the third failure is the last");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn o8_of_two_publishers_on_one_row_one_has_it<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.write_directive(&held).await;
        let heirs = [play.store().join("one").await.unwrap(), play.store().join("two").await.unwrap()];
        assert!(play.store().take_over(play.engine, heirs[0]).await.unwrap().is_empty());
        let take = |engine| play.store().unpublished(engine, vec!["work".to_owned()], 10);
        let (one, two) = tokio::join!(take(heirs[0]), take(heirs[1]));
        assert_eq!(one.unwrap().len() + two.unwrap().len(), 1);
        let attempt = play.attempts(job_id).await.remove(0);
        assert!(attempt.owner.is_some() && attempt.timer_at.is_none());
    }

    async fn a_cancelled_row_is_never_published<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.write_directive(&held).await;
        play.cancel(job_id).await.unwrap();
        let attempt = play.attempts(job_id).await.remove(0);
        assert_eq!(attempt.row.outbox, Some(OutboxState::FailedFinal));
        let other = play.store().join("other").await.unwrap();
        play.store().take_over(play.engine, other).await.unwrap();
        let taken = play.store().unpublished(other, vec!["work".to_owned()], 10).await.unwrap();
        assert!(taken.is_empty());
    }

    async fn a_cancel_of_a_sequence_does_not_wait_for_a_row_that_waits_for_its_next_try<W>(play: &Play<W>) {
        let bus = TestBus::new(1, Faults { refuse: 100, ..Faults::default() });
        let engine = engine(play, &bus, 2).await;
        let job_id = submit(&engine, 1).await;
        until(play, job_id, |attempt| attempt.row.publish_attempts == 1 && attempt.timer_at.is_some())
            .await;
        engine.cancel(job_id, None).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::Cancelled);
        let attempt = play.attempts(job_id).await.remove(0);
        assert_eq!(attempt.row.outbox, Some(OutboxState::FailedFinal));
        engine.shutdown(GRACE).await.unwrap();
    }

    /// A claim whose answer got lost: the store says that the engine has it, the engine does not know.
    async fn what_an_engine_holds_without_knowing_is_found_again<W>(play: &Play<W>) {
        let engine = crate::pull::engine(play, 1).await;
        let job_id = submit(&engine, 1).await;
        let number = play.world.query("SELECT CAST(max(engine_no) AS text) FROM engine").await.unwrap();
        let number = EngineNo(number[0][0].as_ref().unwrap().parse().unwrap());
        let wish = Wish { service: "outside".to_owned(), max: 10, pick: Pick::Any, tenant_id: None };
        assert_eq!(play.store().claim(number, vec![wish]).await.unwrap().len(), 1);
        let early = Claim { wait: Duration::ZERO, ..claim("early", 1) };
        assert!(engine.claim(early).await.unwrap().is_empty(), "nobody else gets it");
        engine.reconcile();
        let found = engine.claim(claim("c", 1)).await.unwrap();
        assert_eq!(found[0].job_id, job_id.to_string());
        engine.result(found[0].fence(), done()).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    /// The 999th entry is worked on; the next is told apart, and fails the step.
    async fn an_activation_that_was_entered_999_times_fails_with_its_code<W>(play: &Play<W>) {
        let engine = crate::pull::engine(play, 1).await;
        let (last, one_more) = (submit(&engine, 1).await, submit(&engine, 2).await);
        for (job_id, entries) in [(last, 998_u64), (one_more, 999)] {
            let ledger = entries * 1_000_000_000_000;
            let sql =
                format!("UPDATE attempt SET ledger = {ledger} WHERE job_id = {}", W::id(job_id));
            play.world.execute(&sql).await.unwrap();
        }
        let given = engine.claim(claim("c", 10)).await.unwrap();
        assert_eq!((given.len(), given[0].job_id.clone()), (1, last.to_string()));
        assert_eq!(closed(play, one_more).await, JobState::FailedFinal);
        assert_eq!(play.job(one_more).await.error.unwrap().code, "LEG1_ATTEMPTS_EXHAUSTED");
        engine.result(given[0].fence(), done()).await.unwrap();
        assert_eq!(closed(play, last).await, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }
}
