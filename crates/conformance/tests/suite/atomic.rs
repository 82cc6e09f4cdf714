//! A call is one commit: if any of its writes is refused, be it the last, nothing of it is there. Each table that the
//! call writes to refuses the row of its second job in turn, on Postgres when all has been written and the commit comes.

use std::fmt::Debug;

use sprag_engine::ids::JobId;
use sprag_engine::plan;
use sprag_engine::store::{Answer, EndOutcome, FinishOutcome, Held, Store, StoreError};
use sprag_engine::upkeep::Upkeep;
use sprag_kernel::JobState;
use sprag_kernel::decide::callback::Report;

use crate::engines::everything;
use crate::on_both_stores;
use crate::play::{Play, acknowledging};
use crate::world::World;

/// Makes a call while each of these tables refuses the job, which comes to nothing, and then as it is meant.
async fn all_or_nothing<W: World, T: Debug>(
    play: &Play<W>,
    (tables, job_id): (&[&str], JobId),
    act: impl AsyncFn() -> Answer<T>,
) -> T {
    let before = everything(play).await;
    for table in tables {
        play.world.execute(&W::refusing(table, job_id)).await.unwrap();
        let answer = act().await;
        let is_refused = matches!(answer, Err(StoreError::Poison(_) | StoreError::Unavailable(_)));
        assert!(is_refused, "{table} is written to: {answer:?}");
        play.world.execute(&W::admitting(table)).await.unwrap();
        assert_eq!(everything(play).await, before, "refused by {table}");
    }
    let answer = act().await.unwrap();
    assert_ne!(everything(play).await, before);
    answer
}

async fn running<W: World>(play: &Play<W>, steps: usize) -> Held {
    play.create(steps).await;
    let mut held = play.claim().await;
    play.dispatch(&mut held).await;
    held
}

/// Two whose message has entered.
async fn ended<W: World>(play: &Play<W>, (steps, report): (usize, Report)) -> [Held; 2] {
    let (mut one, mut two) = (running(play, steps).await, running(play, steps).await);
    play.report(&mut one, report).await;
    play.report(&mut two, report).await;
    [one, two]
}

on_both_stores! {
    async fn l39_the_messages_of_a_slice_enter_together_or_not_at_all<W>(play: &Play<W>) {
        let held = [running(play, 1).await, running(play, 1).await];
        let writes = held.each_ref().map(|held| Play::<W>::result_write(held, Report::Succeeded));
        let what = (&["attempt"][..], held[1].key.job_id);
        let end = async || play.store().end(play.engine, writes.to_vec()).await;
        let outcomes = all_or_nothing(play, what, end).await;
        assert!(outcomes.iter().all(|outcome| matches!(outcome, EndOutcome::Entered { .. })));
    }

    async fn l39_steps_1_to_3_are_done_together_or_not_at_all<W>(play: &Play<W>) {
        for report in [Report::Succeeded, Report::Retryable] {
            let held = ended(play, (2, report)).await;
            let writes = held.each_ref().map(|held| play.finish_write(held, true).unwrap());
            let what = (&["attempt", "job", "event"][..], held[1].key.job_id);
            let finish = async || play.store().finish(play.engine, writes.to_vec()).await;
            for outcome in all_or_nothing(play, what, finish).await {
                assert!(matches!(outcome, FinishOutcome::Done { job: JobState::InProgress, .. }), "{outcome:?}");
            }
        }
    }

    async fn l34_a_job_closes_with_its_tasks_and_its_slot_or_not_at_all<W>(play: &Play<W>) {
        play.store().limit_tenant("t1", Some(10)).await.unwrap();
        for (report, state) in
            [(Report::Succeeded, JobState::Succeeded), (Report::NonRetryable, JobState::FailedFinal)]
        {
            let held = ended(play, (1, report)).await;
            let writes = held.each_ref().map(|held| {
                let mut write = play.finish_write(held, false).unwrap();
                write.tasks = ["hook:one".to_owned(), "hook:two".to_owned()].into();
                write
            });
            let what = (&["attempt", "job", "event", "completion"][..], held[1].key.job_id);
            let finish = async || play.store().finish(play.engine, writes.to_vec()).await;
            for outcome in all_or_nothing(play, what, finish).await {
                assert!(matches!(outcome, FinishOutcome::Done { job, .. } if job == state), "{outcome:?}");
            }
        }
        assert_eq!(play.store().undelivered().await.unwrap(), 8);
        assert_eq!(play.store().tenants().await.unwrap()[0].open_jobs, 0);
    }

    async fn l39_a_decision_under_locks_is_written_whole_or_not_at_all<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.write_directive(&held).await;
        play.publish(job_id, play.held(job_id).await.attempt.version).await.unwrap();
        let fence = plan::fence(&play.held(job_id).await.attempt);
        let ack = async || {
            let decide = Box::new(acknowledging(&play.policy, fence));
            play.store().amend(play.engine, job_id, None, decide).await
        };
        let what = (&["attempt", "job", "event"][..], job_id);
        all_or_nothing(play, what, ack).await.unwrap().unwrap();
        let cancel = async || {
            let decide = Box::new(|held: &Held, _| plan::cancel(held, None));
            play.store().amend(play.engine, job_id, None, decide).await
        };
        let cancelled = all_or_nothing(play, (&["job", "event"][..], job_id), cancel).await;
        assert_eq!(cancelled.unwrap().unwrap().0, JobState::Cancelling);
    }
}
