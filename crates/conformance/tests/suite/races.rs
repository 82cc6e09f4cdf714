//! Races: whatever comes at the same time, one of it counts.

use std::collections::HashSet;

use sprag_engine::store::{DispatchOutcome, EndOutcome, FinishOutcome, Store};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{JobState, StepState};

use crate::firsts::Firsts;
use crate::on_both_stores;
use crate::play::{Play, facts, join_all, new_job};
use crate::world::World;

on_both_stores! {
    async fn two_finishes_of_one_message_settle_it_once<W>(play: &Play<W>) {
        for _ in 0..25 {
            let job_id = play.create(2).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            play.report(&mut held, Report::Succeeded).await;
            let write = play.finish_write(&held, true).unwrap();
            let outcomes =
                join_all((0..4).map(|_| play.finish_as(play.engine, write.clone()))).await;
            let done = outcomes.iter().filter(|outcome| {
                matches!(outcome.as_ref().unwrap(), FinishOutcome::Done { .. })
            });
            assert_eq!(done.count(), 1, "{outcomes:?}");
            let job = play.job(job_id).await;
            assert_eq!((job.row.semaphore.get(), job.row.current_step), (1, 1));
            assert_eq!(play.store().events(job_id).await.unwrap().len(), 3);
        }
    }

    async fn of_a_result_and_a_lost_owner_the_first_ends_the_attempt<W>(play: &Play<W>) {
        let (mut results, mut losses) = (0, 0);
        for n in 0..40 {
            let job_id = play.create(1).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            let heir = play.store().join("heir").await.unwrap();
            let result = Play::<W>::result_write(&held, Report::Succeeded);
            let lost = Play::<W>::lost_write(&held).unwrap();
            let pair = [(play.engine, result.clone()), (heir, lost.clone())];
            let order = if n % 2 == 0 { [0, 1] } else { [1, 0] };
            let outcomes = join_all(order.map(|i| {
                let (engine, write) = pair[i].clone();
                play.end_as(engine, write)
            }))
            .await;
            let mut entered = order.into_iter().zip(outcomes).filter_map(|(i, outcome)| {
                match outcome.unwrap() {
                    EndOutcome::Entered { version } => Some((i, version)),
                    EndOutcome::Stale => None,
                }
            });
            let (winner, version) = entered.next().expect("one enters");
            assert_eq!(entered.next(), None, "and one only");
            let write = if winner == 0 { result } else { lost };
            held.attempt.version = version;
            held.attempt.ledger = write.ledger;
            held.attempt.ending = Some(write.ending);
            play.finish(&held).await;
            let attempts = play.attempts(job_id).await;
            let states: Vec<_> = attempts.iter().map(|attempt| attempt.row.state).collect();
            if winner == 0 {
                results += 1;
                assert_eq!(states, [StepState::Succeeded]);
            } else {
                losses += 1;
                assert_eq!(states, [StepState::FailedRetry, StepState::FailedRetry]);
                assert_eq!(attempts[1].row.losses, 1);
                let due = play.store().due(play.engine, 10).await.unwrap();
                assert_eq!(due.promoted, 1, "at once");
                play.run_step(Report::Succeeded).await;
            }
            assert_eq!(play.job(job_id).await.row.state, JobState::Succeeded);
        }
        assert_eq!(results + losses, 40);
        assert!(results > 0 && losses > 0, "both orders were tried: {results} and {losses}");
    }

    async fn o8_eight_claimers_of_two_hundred_activations_take_each_once<W>(play: &Play<W>) {
        let jobs: Vec<_> =
            (0..200).map(|n| new_job(facts("t1", None, &format!("{n}")), 1)).collect();
        play.store().submit(play.engine, jobs).await.unwrap();
        let mut engines = Vec::new();
        for n in 0..8 {
            engines.push(play.store().join(&format!("claimer {n}")).await.unwrap());
        }
        let claims = join_all(engines.iter().map(|engine| async {
            let mut all = Vec::new();
            loop {
                let claimed = play.claim_as(*engine, 7).await.unwrap();
                if claimed.is_empty() {
                    break all;
                }
                all.extend(claimed.into_iter().map(|held| held.key));
            }
        }))
        .await;
        let all: Vec<_> = claims.into_iter().flatten().collect();
        let distinct: HashSet<_> = all.iter().collect();
        assert_eq!((all.len(), distinct.len()), (200, 200));
    }

    async fn a_cancel_and_a_dispatch_never_both_win<W>(play: &Play<W>) {
        let mut firsts = Firsts::new(25);
        while let Some(order) = firsts.next() {
            let job_id = play.create(1).await;
            let mut held = play.claim().await;
            let write = play.dispatch_write(&mut held).unwrap();
            let dispatch = play.dispatch_as(play.engine, write);
            let (cancelled, dispatched) = order.join(play.cancel(job_id), dispatch).await;
            assert_eq!(cancelled.unwrap(), JobState::Cancelling);
            match dispatched.unwrap() {
                DispatchOutcome::Done { version, .. } => {
                    firsts.saw("dispatch");
                    held.attempt.version = version;
                    play.report(&mut held, Report::Succeeded).await;
                    play.finish(&held).await;
                }
                DispatchOutcome::Ending | DispatchOutcome::Moved(_) | DispatchOutcome::Gone => {
                    firsts.saw("cancel");
                    let held = play.refuse_leg1(job_id).await;
                    play.finish(&held).await;
                }
            }
            assert_eq!(play.job(job_id).await.row.state, JobState::Cancelled);
        }
    }

    async fn a_cancel_and_a_finish_wait_for_each_other<W>(play: &Play<W>) {
        let mut firsts = Firsts::new(30);
        while let Some(order) = firsts.next() {
            let job_id = play.create(1).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            play.report(&mut held, Report::Succeeded).await;
            let write = play.finish_write(&held, false).unwrap();
            let finish = play.finish_as(play.engine, write);
            let (cancelled, finished) = order.join(play.cancel(job_id), finish).await;
            let FinishOutcome::Done { job, .. } = finished.unwrap() else { panic!("nobody else finishes") };
            assert_eq!(play.job(job_id).await.row.state, job);
            match job {
                JobState::Succeeded => {
                    firsts.saw("finish");
                    assert_eq!(cancelled.unwrap(), JobState::Succeeded, "there is nothing to stop");
                }
                JobState::Cancelled => {
                    firsts.saw("cancel");
                    assert_eq!(cancelled.unwrap(), JobState::Cancelling);
                }
                other => panic!("{other:?}"),
            }
        }
    }

    async fn finishes_of_many_jobs_in_overlapping_slices_settle_each_once<W>(play: &Play<W>) {
        let mut writes = Vec::new();
        for _ in 0..30 {
            play.create(1).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            play.report(&mut held, Report::Succeeded).await;
            writes.push(play.finish_write(&held, false).unwrap());
        }
        let slices = (0..8).map(|task| {
            let mut slice = writes.clone();
            slice.rotate_left(task * 4);
            play.store().finish(play.engine, slice)
        });
        let outcomes = join_all(slices).await;
        let done = outcomes
            .iter()
            .flat_map(|slice| slice.as_ref().unwrap())
            .filter(|outcome| matches!(outcome, FinishOutcome::Done { .. }));
        assert_eq!(done.count(), 30);
    }
}
