//! Timers on the store's clock, to the millisecond, and what is left of them when engines die.

use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::plan;
use sprag_engine::store::{AttemptError, EndOutcome, Held, Store};
use sprag_kernel::decide::callback::{self, Report};
use sprag_kernel::decide::rows::Fence;
use sprag_kernel::decide::timer::{self, Fired};
use sprag_kernel::keys::Mode;
use sprag_kernel::{Code, JobState, OutboxState, StepState};

use crate::on_both_stores;
use crate::play::{BEGIN_MS, Play, facts, new_job};
use crate::world::World;

/// The message that a due attempt gets, as the kernel decides at this time.
fn fire(held: &Held, now: u64) -> Option<sprag_engine::store::EndWrite> {
    let fence = plan::fence(&held.attempt);
    let fired = match held.attempt.state {
        StepState::AwaitingAck => timer::ack_timeout(&held.attempt, fence, now),
        StepState::InProgress => timer::lease_expiry(&held.attempt, fence, now),
        other => panic!("{other} has no timer here"),
    };
    let Ok(Fired::End(entered)) = fired else { return None };
    let error = AttemptError { code: "DUE".to_owned(), message: "in a test".to_owned() };
    Some(plan::end(held, entered, None, Some(error)))
}

/// Directive written and published at once: the attempt awaits its ACK.
async fn send<W: World>(play: &Play<W>, job_id: JobId) -> Fence {
    let held = play.claim().await;
    play.write_directive(&held).await;
    play.publish(job_id, play.held(job_id).await.attempt.version).await.unwrap();
    plan::fence(&play.held(job_id).await.attempt)
}

/// Lets time pass from timer to timer until the job is over: every due attempt ends, every activation is sent, and
/// acknowledged if `acks`. Nothing happens in the millisecond before. Returns (second, state of the newest attempt, its
/// number) at each change, each of which is on the second.
async fn schedule<W: World>(
    play: &Play<W>,
    job_id: JobId,
    acks: bool,
) -> Vec<(i64, StepState, u32)> {
    let mut seen = Vec::new();
    let mut see = |state, attempt_no| {
        let ms = play.clock.now() - BEGIN_MS;
        assert_eq!(ms % 1_000, 0, "{state:?} of attempt {attempt_no} after {ms} ms");
        seen.push((ms / 1_000, state, attempt_no));
    };
    while play.job(job_id).await.row.state != JobState::FailedFinal {
        let next = play.store().due(play.engine, 10).await.unwrap().next.expect("a timer is set");
        play.clock.advance(i64::try_from(next).unwrap() - play.clock.now() - 1);
        let early = play.store().due(play.engine, 10).await.unwrap();
        assert_eq!((early.held.len(), early.promoted, early.next), (0, 0, Some(next)));
        play.clock.advance(1);
        let due = play.store().due(play.engine, 10).await.unwrap();
        assert_eq!((due.held.len() + due.promoted, due.now), (1, next), "one thing at a time");
        for mut held in due.held {
            let write = fire(&held, due.now).expect("what is due has expired");
            assert!(matches!(play.end(&mut held, write).await, EndOutcome::Entered { .. }));
            play.finish(&held).await;
            let state = play.attempts(job_id).await[held.key.attempt_no as usize - 1].row.state;
            see(state, held.key.attempt_no);
        }
        if due.promoted > 0 {
            let fence = send(play, job_id).await;
            see(StepState::AwaitingAck, fence.attempt_no);
            if acks {
                play.ack(job_id, None, fence).await.unwrap();
            }
        }
    }
    seen
}

/// A dead engine's attempt, ended as lost by its heir.
async fn lose<W: World>(play: &Play<W>, dead: EngineNo, heir: EngineNo) {
    let mut taken = play.store().take_over(dead, heir).await.unwrap();
    let mut lost = taken.pop().unwrap();
    let write = Play::<W>::lost_write(&lost).unwrap();
    let EndOutcome::Entered { version } = play.end_as(heir, write.clone()).await.unwrap() else {
        panic!("the heir ends it")
    };
    lost.attempt.version = version;
    lost.attempt.ledger = write.ledger;
    lost.attempt.ending = Some(write.ending);
    play.finish_as(heir, play.finish_write(&lost, false).unwrap()).await.unwrap();
    play.store().due(heir, 10).await.unwrap();
}

on_both_stores! {
    async fn t13_the_ack_timeout_schedule_ends_at_450_seconds<W>(play: &Play<W>) {
        use StepState::{AwaitingAck, FailedFinal, FailedRetry};
        let job_id = play.create(1).await;
        send(play, job_id).await;
        let seen = schedule(play, job_id, false).await;
        assert_eq!(seen, [
            (30, FailedRetry, 1), (90, AwaitingAck, 2), (120, FailedRetry, 2),
            (420, AwaitingAck, 3), (450, FailedFinal, 3),
        ]);
    }

    async fn t14_the_lease_schedule_ends_at_2850_seconds<W>(play: &Play<W>) {
        use StepState::{AwaitingAck, FailedFinal, FailedRetry};
        let job_id = play.create(1).await;
        let fence = send(play, job_id).await;
        play.ack(job_id, None, fence).await.unwrap();
        let seen = schedule(play, job_id, true).await;
        assert_eq!(seen, [
            (900, FailedRetry, 1), (930, AwaitingAck, 2), (1_830, FailedRetry, 2),
            (1_950, AwaitingAck, 3), (2_850, FailedFinal, 3),
        ]);
    }

    async fn t13_a_timer_fires_at_its_millisecond_and_not_before<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        send(play, job_id).await;
        play.clock.advance(29_999);
        assert!(play.store().due(play.engine, 10).await.unwrap().held.is_empty());
        play.clock.advance(1);
        assert_eq!(play.store().due(play.engine, 10).await.unwrap().held.len(), 1);
    }

    async fn t3_and_t6_callbacks_that_are_late_or_early_change_nothing<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let first = send(play, job_id).await;
        let early = play.held(job_id).await;
        let content = sprag_kernel::keys::Hash::of(b"x");
        let refused = callback::result(&early.attempt, first, Report::Succeeded, content);
        assert_eq!(refused.unwrap_err().code(), Code::NotYet, "T6");
        play.clock.advance(30_000);
        let mut held = play.store().due(play.engine, 10).await.unwrap().held.pop().unwrap();
        let write = fire(&held, play.clock.now().cast_unsigned()).unwrap();
        play.end(&mut held, write).await;
        play.finish(&held).await;
        play.clock.advance(60_000);
        play.store().due(play.engine, 10).await.unwrap();
        send(play, job_id).await;
        let before = play.attempts(job_id).await;
        let stale = play.ack(job_id, None, first).await.unwrap_err();
        assert_eq!(stale.code(), Code::StaleFence, "T3");
        assert_eq!(play.attempts(job_id).await[1].row, before[1].row);
    }

    async fn t17_with_one_attempt_a_retryable_result_is_final<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Retryable).await;
        let policy = sprag_kernel::retry::RetryPolicy { max_attempts: 1, ..play.policy.clone() };
        let write = plan::finish(&held, &policy, false).unwrap();
        play.finish_as(play.engine, write).await.unwrap();
        assert_eq!(play.job(job_id).await.row.state, JobState::FailedFinal);
        assert_eq!(play.attempts(job_id).await[0].row.state, StepState::FailedFinal);
    }

    async fn t26_only_the_lowest_open_step_is_ever_in_progress<W>(play: &Play<W>) {
        let job_id = play.create(3).await;
        for step in 0..3 {
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            let states: Vec<_> = play.attempts(job_id).await.iter().map(|a| a.row.state).collect();
            let expected: Vec<_> = (0..3)
                .map(|n| match n {
                    n if n < step => StepState::Succeeded,
                    n if n == step => StepState::InProgress,
                    _ => StepState::Pending,
                })
                .collect();
            assert_eq!(states, expected);
            assert!(play.claim_as(play.engine, 10).await.unwrap().is_empty(), "nothing else to claim");
            play.report(&mut held, Report::Succeeded).await;
            play.finish(&held).await;
        }
    }

    async fn t30_a_retry_keeps_the_lane_and_mode_of_its_job<W>(play: &Play<W>) {
        let mut burst = facts("TenantA", None, "burst");
        burst.mode = Mode::Burst;
        burst.doc_id = Some("Doc-99".to_owned());
        burst.route = sprag_kernel::keys::route("TenantA", Mode::Burst, Some("Doc-99")).unwrap();
        let pinned = (burst.mode, burst.route.clone());
        play.submit(new_job(burst, 1)).await.unwrap();
        play.run_step(Report::Retryable).await;
        play.clock.advance(30_000);
        play.store().due(play.engine, 10).await.unwrap();
        let again = play.claim().await;
        assert_eq!((again.key.attempt_no, again.facts.mode, again.facts.route.clone()), (2, pinned.0, pinned.1));
        assert_eq!(again.facts.route.lane, 9, "T29");
    }

    async fn t31_a_result_stored_just_in_time_decides_however_late_it_is_finished<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let fence = send(play, job_id).await;
        play.ack(job_id, None, fence).await.unwrap();
        play.clock.advance(899_900);
        let mut held = play.held(job_id).await;
        play.report(&mut held, Report::Succeeded).await;
        play.clock.advance(600_000);
        let heir = play.store().join("heir").await.unwrap();
        assert!(play.store().due(heir, 10).await.unwrap().held.is_empty(), "the lease is closed");
        let taken = play.store().take_over(play.engine, heir).await.unwrap().pop().unwrap();
        play.finish_as(heir, play.finish_write(&taken, false).unwrap()).await.unwrap();
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.attempts_total), (JobState::Succeeded, 1));
    }

    async fn t32_five_engines_die_with_a_healthy_step_and_none_counts_against_it<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut engine = play.engine;
        for _ in 0..5 {
            let mut held = play.claim_as(engine, 10).await.unwrap().pop().unwrap();
            let write = play.dispatch_write(&mut held).unwrap();
            play.dispatch_as(engine, write).await.unwrap();
            let heir = play.store().join("heir").await.unwrap();
            lose(play, engine, heir).await;
            engine = heir;
        }
        let mut held = play.claim_as(engine, 10).await.unwrap().pop().unwrap();
        assert_eq!((held.attempt.losses, held.attempt.counted_attempts()), (5, 1));
        let write = play.dispatch_write(&mut held).unwrap();
        play.dispatch_as(engine, write).await.unwrap();
        let mut held = play.held(job_id).await;
        let write = Play::<W>::result_write(&held, Report::Succeeded);
        let EndOutcome::Entered { version } = play.end_as(engine, write.clone()).await.unwrap() else {
            panic!("nobody else ends it")
        };
        held.attempt.version = version;
        held.attempt.ledger = write.ledger;
        held.attempt.ending = Some(write.ending);
        play.finish_as(engine, play.finish_write(&held, false).unwrap()).await.unwrap();
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.attempts_total), (JobState::Succeeded, 6));
    }

    async fn j17_an_ack_under_cancel_is_accepted_and_the_attempt_may_finish<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        let fence = send(play, job_id).await;
        assert_eq!(play.cancel(job_id).await.unwrap(), JobState::Cancelling);
        play.ack(job_id, None, fence).await.unwrap();
        let mut held = play.held(job_id).await;
        assert_eq!((held.job.state, held.attempt.state), (JobState::Cancelling, StepState::InProgress));
        play.report(&mut held, Report::Succeeded).await;
        play.finish(&held).await;
        assert_eq!(play.job(job_id).await.row.state, JobState::Cancelled);
        let states: Vec<_> = play.attempts(job_id).await.iter().map(|a| a.row.state).collect();
        assert_eq!(states, [StepState::Succeeded, StepState::Cancelled]);
    }

    async fn j18_under_cancel_a_missing_ack_ends_the_job_after_30_seconds<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        send(play, job_id).await;
        play.cancel(job_id).await.unwrap();
        play.clock.advance(30_000);
        let due = play.store().due(play.engine, 10).await.unwrap();
        let mut held = due.held.into_iter().next().unwrap();
        let write = fire(&held, due.now).unwrap();
        play.end(&mut held, write).await;
        play.finish(&held).await;
        assert_eq!(play.job(job_id).await.row.state, JobState::Cancelled);
        let states: Vec<_> = play.attempts(job_id).await.iter().map(|a| a.row.state).collect();
        assert_eq!(states, [StepState::Cancelled; 2]);
    }

    async fn j28_a_cancel_closes_an_unpublished_row_and_waits_for_no_worker<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.write_directive(&held).await;
        let decide = |held: &Held, _| plan::cancel(held, None);
        let (state, entered) = play.amend(job_id, None, decide).await.unwrap();
        assert_eq!(state, JobState::Cancelling);
        play.finish(&entered.expect("the cancel enters its message itself")).await;
        assert_eq!(play.job(job_id).await.row.state, JobState::Cancelled);
        let row = play.attempts(job_id).await.remove(0).row;
        assert_eq!((row.outbox, row.state), (Some(OutboxState::FailedFinal), StepState::Cancelled));
    }
}
