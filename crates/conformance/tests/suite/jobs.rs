//! Jobs: from create to closed, and what must not happen on the way.

use sprag_engine::ids::AttemptKey;
use sprag_engine::plan;
use sprag_engine::store::{
    Amendment, AttemptFilter, Begins, DispatchOutcome, EndOutcome, FinishOutcome, JobFacts, NewJob,
    NewStep, Pulse, Store, Timer,
};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::{Fence, LeaseId};
use sprag_kernel::{Code, JobState, OutboxState, StepState};

use crate::engines::everything;
use crate::on_both_stores;
use crate::play::{BEGIN_MS, Play, facts, new_job};
use crate::world::World;

const NOW: u64 = BEGIN_MS.cast_unsigned();

/// A graph of three steps that all begin with the job.
const ROOTS: &str = "
protocol_id: roots.v1
request_types: [ROOTS]
steps:
  - {step_id: s0, needs: [], service: work}
  - {step_id: s1, needs: [], service: work}
  - {step_id: s2, needs: [], service: work}
";

on_both_stores! {
    async fn j1_create_leaves_a_queued_job_with_one_activation<W>(play: &Play<W>) {
        let job_id = play.create(3).await;
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.semaphore.get()), (JobState::Queued, 1));
        assert_eq!((job.row.version, job.row.attempts_total, job.completed_at), (1, 0, None));
        let attempts = play.attempts(job_id).await;
        assert_eq!(attempts.len(), 3);
        for attempt in &attempts {
            assert_eq!(attempt.row.state, StepState::Pending);
            assert_eq!((attempt.row.shown_attempt_no(), attempt.row.outbox), (0, None));
        }
        let ready: Vec<bool> = attempts.iter().map(|attempt| attempt.is_ready).collect();
        assert_eq!(ready, [true, false, false]);
    }

    async fn attempts_and_events_are_read_in_parts_and_outputs_by_their_size<W>(play: &Play<W>) {
        let job_id = play.create(3).await;
        play.run_step(Report::Succeeded).await;
        play.run_step(Report::Retryable).await;
        let store = play.store();
        let all = play.attempts(job_id).await;
        let keys: Vec<AttemptKey> = all.iter().map(|attempt| attempt.key).collect();
        for limit in 1..=4 {
            let mut read = Vec::new();
            loop {
                let after = read.last().copied();
                let filter =
                    AttemptFilter { after, limit: Some(limit), ..AttemptFilter::default() };
                let part = store.attempts_by(job_id, filter).await.unwrap();
                assert!(part.len() <= limit as usize);
                if part.is_empty() {
                    break;
                }
                read.extend(part.iter().map(|attempt| attempt.key));
            }
            assert_eq!(read, keys, "{limit} at a time");
        }
        let newest = AttemptFilter { newest: true, max_output: Some(0), ..AttemptFilter::default() };
        let newest = store.attempts_by(job_id, newest).await.unwrap();
        assert_eq!((newest.len(), all.len()), (3, 4), "one was tried again");
        assert!(newest.iter().all(|shown| shown.key != keys[1]), "the older of the two");
        for shown in &newest {
            let whole = all.iter().find(|whole| whole.key == shown.key).unwrap();
            let bytes = whole.output.as_ref().map(|output| output.len() as u64);
            assert_eq!((&shown.output, shown.output_bytes, whole.output_bytes), (&None, bytes, bytes));
        }
        assert!(newest[0].output_bytes.is_some(), "the first step has one");
        let events = store.events(job_id).await.unwrap();
        let second = store.events_after(job_id, 1, 1).await.unwrap();
        assert_eq!((second.len(), second[0].n, second[0].at), (1, 2, events[1].at));
        assert!(store.events_after(job_id, u64::MAX, 9).await.unwrap().is_empty());
    }

    async fn j2_leg1_writes_fence_outbox_and_states_in_one_commit<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        assert!(matches!(
            play.write_directive(&held).await,
            DispatchOutcome::Done { version: 3, .. }
        ));
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.attempts_total), (JobState::Dispatching, 1));
        assert_eq!(job.row.version, 2, "one commit, one version");
        let attempt = play.attempts(job_id).await.remove(0);
        assert_eq!(attempt.row.state, StepState::Dispatching);
        assert_eq!((attempt.row.shown_attempt_no(), attempt.row.lease_id.is_some()), (1, true));
        assert_eq!((attempt.row.outbox, attempt.sent_at), (Some(OutboxState::Pending), None));
        let sql = format!("SELECT CAST(lease_expires_at AS text) FROM attempt WHERE job_id = {}", W::id(job_id));
        let lease_ends = (BEGIN_MS + 15 * 60_000).to_string();
        assert_eq!(play.world.query(&sql).await.unwrap()[0][0], Some(lease_ends));
        let events = play.store().events(job_id).await.unwrap();
        assert_eq!(events.len(), 2);
        assert_eq!(events[1].changes, "J0>1 S0>1 ");
    }

    /// A slice that carried two attempts of one job left any other job of it QUEUED, whose event yet told that
    /// it had begun; the next directive of that job told so once more.
    async fn a_job_begins_in_a_slice_in_which_others_share_a_job<W>(play: &Play<W>) {
        play.store().put_protocol("roots.v1", ROOTS).await.unwrap();
        let facts = JobFacts { protocol_id: "roots.v1".to_owned(), ..facts("t1", None, "graph") };
        let mut graph = NewJob { is_graph: true, ..new_job(facts, 3) };
        graph.steps = graph
            .steps
            .iter()
            .map(|step| NewStep { begins: Begins::Ready, ..step.clone() })
            .collect();
        play.submit(graph).await.unwrap();
        let mut slice = play.claim_as(play.engine, 3).await.unwrap();
        let mut first = slice.remove(0);
        play.dispatch(&mut first).await;
        for held in &mut slice {
            held.job = first.job;
        }
        let begins = play.create(1).await;
        slice.push(play.claim().await);

        let writes = slice.iter_mut().map(|held| play.dispatch_write(held).unwrap()).collect();
        let outcomes = play.store().dispatch(play.engine, writes).await.unwrap();
        for outcome in outcomes {
            assert!(matches!(outcome, DispatchOutcome::Done { .. }), "{outcome:?}");
        }
        assert_eq!(play.job(begins).await.row.state, JobState::InProgress);
        let shared = play.job(first.key.job_id).await.row;
        assert_eq!((shared.state, shared.attempts_total), (JobState::InProgress, 3));
    }

    async fn o1_and_t1_publishing_sends_the_row_and_starts_the_ack_timer<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.write_directive(&held).await;
        play.clock.advance(1_000);
        play.publish(job_id, 3).await.unwrap();
        let attempt = play.attempts(job_id).await.remove(0);
        assert_eq!((attempt.row.outbox, attempt.sent_at), (Some(OutboxState::Sent), Some(NOW + 1_000)));
        assert_eq!(attempt.row.state, StepState::AwaitingAck);
        assert_eq!(attempt.timer_at, Some(NOW + 31_000));
    }

    async fn o4_sending_a_row_that_was_sent_changes_nothing<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.write_directive(&held).await;
        let stale = play.publish(job_id, 2).await.unwrap_err();
        assert_eq!(stale.code(), Code::JobVersionConflict);
        play.publish(job_id, 3).await.unwrap();
        let again = play.publish(job_id, 4).await.unwrap_err();
        assert_eq!(again.code(), Code::OutboxIllegalTransition);
        assert_eq!(play.attempts(job_id).await[0].row.version, 4);
    }

    async fn j3_the_first_ack_moves_job_and_step_in_one_commit<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.write_directive(&held).await;
        play.publish(job_id, 3).await.unwrap();
        let fence = plan::fence(&play.held(job_id).await.attempt);
        play.clock.advance(5_000);
        play.ack(job_id, None, fence).await.unwrap();
        let job = play.job(job_id).await;
        let attempt = play.attempts(job_id).await.remove(0);
        assert_eq!((job.row.state, attempt.row.state), (JobState::InProgress, StepState::InProgress));
        assert_eq!(attempt.row.deadline, Some(NOW + 5_000 + 900_000), "T2: the lease begins anew");
        play.clock.advance(5_000);
        play.ack(job_id, None, fence).await.unwrap();
        assert_eq!(play.attempts(job_id).await[0].row.version, attempt.row.version, "T7: a no-op");
    }

    async fn t4_an_ack_with_another_lease_changes_nothing<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.write_directive(&held).await;
        play.publish(job_id, 3).await.unwrap();
        let wrong = Fence { attempt_no: 1, lease_id: LeaseId(4_711) };
        assert_eq!(play.ack(job_id, None, wrong).await.unwrap_err().code(), Code::StaleFence);
        assert_eq!(play.attempts(job_id).await[0].row.version, 4);
    }

    async fn j4_a_success_in_the_middle_activates_the_next_step<W>(play: &Play<W>) {
        let job_id = play.create(3).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Succeeded).await;
        let before = play.job(job_id).await;
        let outcome = play.finish(&held).await;
        let job = play.job(job_id).await;
        assert_eq!(
            outcome,
            FinishOutcome::Done {
                job: JobState::InProgress,
                job_version: before.row.version + 1,
                entered_next: false
            }
        );
        assert_eq!(job.row.version, before.row.version + 1);
        assert_eq!((job.row.state, job.row.current_step), (JobState::InProgress, 1));
        let attempts = play.attempts(job_id).await;
        assert_eq!(attempts[0].row.state, StepState::Succeeded);
        assert!(attempts[1].is_ready && !attempts[2].is_ready);
    }

    async fn j5_a_success_of_the_last_step_closes_the_job<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        play.clock.advance(2_000);
        play.run_step(Report::Succeeded).await;
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.semaphore.get()), (JobState::Succeeded, 0));
        assert_eq!(job.completed_at, Some(NOW + 2_000));
    }

    async fn j20_an_update_with_a_stale_version_changes_nothing<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        let mut stale = held.clone();
        stale.attempt.version -= 1;
        let write = play.dispatch_write(&mut stale).unwrap();
        let outcome = play.dispatch_as(play.engine, write).await.unwrap();
        assert_eq!(outcome, DispatchOutcome::Gone);
        assert_eq!(play.job(job_id).await.row.version, 1);
        play.dispatch(&mut held).await;
    }

    async fn j21_a_step_that_is_not_current_is_not_dispatched<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let mut next = play.attempts(job_id).await.remove(1);
        next.row.ledger = next.row.ledger.enter_leg1().unwrap();
        held.key = AttemptKey { step_index: 1, ..held.key };
        held.attempt = next.row;
        let refusal = play.dispatch_write(&mut held).unwrap_err();
        assert_eq!(refusal.code(), Code::StepNotCurrent);
    }

    /// Even a write that skips the plans finds no Leg1 entry in the row.
    async fn j22_a_later_step_cannot_start_while_the_first_is_open<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        let mut held = play.claim().await;
        let mut write = play.dispatch_write(&mut held).unwrap();
        write.key.step_index = 1;
        write.version = 1;
        let outcome = play.dispatch_as(play.engine, write).await.unwrap();
        assert_eq!(outcome, DispatchOutcome::Gone);
        let attempts = play.attempts(job_id).await;
        assert_eq!(attempts[1].row.state, StepState::Pending);
        assert!(play.claim_as(play.engine, 10).await.unwrap().is_empty());
    }

    async fn j23_a_happy_job_of_three_steps<W>(play: &Play<W>) {
        let job_id = play.create(3).await;
        let mut semaphores = vec![play.job(job_id).await.row.semaphore.get()];
        for _ in 0..3 {
            play.run_step(Report::Succeeded).await;
            semaphores.push(play.job(job_id).await.row.semaphore.get());
        }
        assert_eq!(semaphores, [1, 1, 1, 0]);
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.attempts_total), (JobState::Succeeded, 3));
        let attempts = play.attempts(job_id).await;
        assert!(attempts.iter().all(|attempt| attempt.row.outbox == Some(OutboxState::Sent)));
        let events = play.store().events(job_id).await.unwrap();
        let told: Vec<_> = events.iter().map(|event| (event.n, event.changes.as_str())).collect();
        assert_eq!(
            told,
            [
                (1, "created"),
                (2, "J0>1 S0>1 O0>1 S1>2 J1>2 S2>3 "),
                (3, "S3>4 J2>2 "),
                (4, "S0>1 O0>1 S1>2 S2>3 "),
                (5, "S3>4 J2>2 "),
                (6, "S0>1 O0>1 S1>2 S2>3 "),
                (7, "S3>4 J2>4 "),
            ]
        );
    }

    async fn a_step_sees_the_outputs_of_the_steps_before_it<W>(play: &Play<W>) {
        play.create(3).await;
        play.run_step(Report::Succeeded).await;
        play.run_step(Report::Succeeded).await;
        let held = play.claim().await;
        assert_eq!(held.inputs, [(0, r#"{"of":0}"#.to_owned()), (1, r#"{"of":1}"#.to_owned())]);
    }

    async fn the_next_step_is_entered_in_the_commit_that_ends_the_one_before<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Succeeded).await;
        let write = play.finish_write(&held, true).unwrap();
        let outcome = play.finish_as(play.engine, write).await.unwrap();
        let FinishOutcome::Done { job_version, entered_next: true, .. } = outcome else {
            panic!("{outcome:?}")
        };
        let mut next = plan::entered_next(&held, job_version, None).unwrap();
        let row = play.attempts(job_id).await.remove(1).row;
        assert_eq!((next.attempt, next.job), (row, play.job(job_id).await.row));
        play.dispatch(&mut next).await;
        play.report(&mut next, Report::Succeeded).await;
        play.finish(&next).await;
        assert_eq!(play.job(job_id).await.row.state, JobState::Succeeded);
    }

    async fn j24_a_closed_job_stays_as_it_is_however_it_has_ended<W>(play: &Play<W>) {
        use JobState::{Cancelled, FailedFinal, Succeeded};
        for (report, ended) in [
            (Report::Succeeded, Succeeded),
            (Report::NonRetryable, FailedFinal),
            (Report::Retryable, Cancelled),
        ] {
            let job_id = play.create(1).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            let (running, lease_id) = (held.clone(), held.attempt.lease_id.unwrap());
            if ended == Cancelled {
                play.cancel(job_id).await.unwrap();
            }
            play.report(&mut held, report).await;
            play.finish(&held).await;
            assert_eq!(play.job(job_id).await.row.state, ended);
            let closed = everything(play).await;
            play.clock.advance(3_600_000);

            assert_eq!(play.finish(&held).await, FinishOutcome::Gone);
            let fence = plan::fence(&running.attempt);
            assert!(play.ack(job_id, None, fence).await.is_ok(), "a duplicate ACK is a no-op");
            for report in [Report::Succeeded, Report::Retryable, Report::NonRetryable] {
                let again = Play::<W>::result_write(&running, report);
                assert_eq!(play.end_as(play.engine, again).await.unwrap(), EndOutcome::Stale);
            }
            let progress = Some("1".to_owned());
            let heartbeat = Pulse { key: held.key, lease_id, lease_ms: 9_000, progress };
            play.store().pulse(play.engine, vec![heartbeat]).await.unwrap();
            assert_eq!(play.cancel(job_id).await.unwrap(), ended, "J9: a no-op, however often");
            assert_eq!(play.cancel(job_id).await.unwrap(), ended);
            let due = play.store().due(play.engine, 100).await.unwrap();
            assert!(due.promoted == 0 && due.held.is_empty());
            assert!(play.claim_as(play.engine, 10).await.unwrap().is_empty());
            assert_eq!(everything(play).await, closed);
        }
    }

    async fn t12_a_retryable_failure_waits_for_its_backoff<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        for wait in [30_000, 120_000] {
            play.run_step(Report::Retryable).await;
            let newest = play.attempts(job_id).await.pop().unwrap();
            assert_eq!(newest.row.state, StepState::FailedRetry);
            play.clock.advance(wait - 1);
            assert_eq!(play.store().due(play.engine, 10).await.unwrap().promoted, 0);
            play.clock.advance(1);
            let due = play.store().due(play.engine, 10).await.unwrap();
            assert_eq!((due.promoted, due.held.len()), (1, 0));
        }
        play.run_step(Report::Retryable).await;
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.attempts_total), (JobState::FailedFinal, 3));
        assert_eq!(job.error.unwrap().code, "PLAYED");
        assert_eq!(play.attempts(job_id).await[2].row.state, StepState::FailedFinal);
    }

    async fn b11_steps_behind_a_failed_one_stay_pending<W>(play: &Play<W>) {
        let job_id = play.create(3).await;
        play.run_step(Report::NonRetryable).await;
        let states: Vec<_> = play.attempts(job_id).await.iter().map(|a| a.row.state).collect();
        assert_eq!(states, [StepState::FailedFinal, StepState::Pending, StepState::Pending]);
    }

    async fn a_cancel_waits_for_nobody_to_serve_the_service_even_after_an_entry<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        let activation = (held.key, held.attempt.version);
        play.store().release(play.engine, vec![activation]).await.unwrap();
        play.cancel(job_id).await.unwrap();
        play.claim_cancelled().await;
        let held = play.refuse_leg1(job_id).await;
        play.finish(&held).await;
        assert_eq!(play.job(job_id).await.row.state, JobState::Cancelled);
    }

    async fn a_cancel_leaves_what_an_engine_has_taken_up_with_it<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        play.cancel(job_id).await.unwrap();
        let attempt = &play.attempts(job_id).await[0];
        assert_eq!((attempt.owner, attempt.is_ready), (Some(play.engine), false));
        assert_eq!(attempt.row.version, held.attempt.version);
    }

    async fn j15_a_cancel_before_leg1_closes_the_job_without_a_directive<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        assert_eq!(play.cancel(job_id).await.unwrap(), JobState::Cancelling);
        let version = play.job(job_id).await.row.version;
        assert_eq!(play.cancel(job_id).await.unwrap(), JobState::Cancelling, "J8: again");
        assert_eq!(play.job(job_id).await.row.version, version, "a no-op");
        let mut held = play.claim_cancelled().await;
        held.job.state = JobState::Queued; // as an engine that has not heard of the cancel
        let write = play.dispatch_write(&mut held).unwrap();
        let outcome = play.dispatch_as(play.engine, write).await.unwrap();
        assert_eq!(outcome, DispatchOutcome::Ending);
        let held = play.refuse_leg1(job_id).await;
        play.finish(&held).await;
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.attempts_total), (JobState::Cancelled, 0));
        let attempts = play.attempts(job_id).await;
        assert!(attempts.iter().all(|a| a.row.state == StepState::Cancelled));
        assert!(attempts.iter().all(|a| a.row.outbox.is_none()));
        let events = play.store().events(job_id).await.unwrap();
        assert!(events.iter().any(|event| event.changes.contains("J0>3")));
        assert!(events.iter().any(|event| event.changes.contains("J3>6")));
    }

    async fn j13_a_cancelled_job_ends_cancelled_whatever_its_step_says<W>(play: &Play<W>) {
        for (report, step) in [
            (Report::Succeeded, StepState::Succeeded),
            (Report::NonRetryable, StepState::FailedFinal),
            (Report::Retryable, StepState::Cancelled),
        ] {
            let job_id = play.create(2).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            play.report(&mut held, report).await;
            // The plan was made for an open job; the statement finds it cancelling.
            let write = play.finish_write(&held, true).unwrap();
            assert_eq!(play.cancel(job_id).await.unwrap(), JobState::Cancelling);
            let outcome = play.finish_as(play.engine, write).await.unwrap();
            let FinishOutcome::Done { job: JobState::Cancelled, entered_next: false, .. } = outcome
            else {
                panic!("{outcome:?}")
            };
            let states: Vec<_> = play.attempts(job_id).await.iter().map(|a| a.row.state).collect();
            assert_eq!(states, [step, StepState::Cancelled]);
            assert_eq!(play.job(job_id).await.row.semaphore.get(), 0);
        }
    }

    async fn an_amendment_that_is_refused_or_empty_writes_nothing<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let refused = play.amend::<()>(job_id, None, |_, _| Err(sprag_kernel::Refusal::new(Code::NotYet))).await;
        assert_eq!(refused.unwrap_err().code(), Code::NotYet);
        let now = play.amend(job_id, None, |_, now| Ok((None, now))).await.unwrap();
        assert_eq!((now, play.job(job_id).await.row.version), (NOW, 1));
        let nobody = play.store().amend(play.engine, sprag_engine::ids::JobId::new(), None, Box::new(|_, _| Ok((None, ()))));
        assert!(nobody.await.unwrap().is_none(), "T10: no such job");
        let no_step = play.store().amend(play.engine, job_id, Some(7.into()), Box::new(|_, _| Ok((None, ()))));
        assert!(no_step.await.unwrap().is_none(), "T10: no such step");
    }

    async fn a_timer_that_an_amendment_sets_is_looked_at_when_it_is_due<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let at = NOW + 7_000;
        play.amend(job_id, None, move |held, _| {
            let amendment = Amendment {
                job_to: held.job.state,
                verdict: None,
                attempt: held.attempt,
                timer: Timer::At(at),
                output: None,
                error: None,
                changes: String::new(),
            };
            Ok((Some(amendment), ()))
        })
        .await
        .unwrap();
        play.clock.advance(6_999);
        assert!(play.store().due(play.engine, 10).await.unwrap().held.is_empty());
        play.clock.advance(1);
        let due = play.store().due(play.engine, 10).await.unwrap();
        assert_eq!((due.held.len(), due.held[0].key, due.now), (1, held.key, at));
    }
}
