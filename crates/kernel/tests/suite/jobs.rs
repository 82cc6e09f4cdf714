//! Group J: jobs. Left to the stores: J26 (tenant limits live in SQL).

use sprag_kernel::decide::callback::{Ack, Report, ack};
use sprag_kernel::decide::cancel::{Cancel, cancel};
use sprag_kernel::decide::leg1;
use sprag_kernel::decide::rows::{AttemptRow, Fence, LeaseId};
use sprag_kernel::decide::timer::Fired;
use sprag_kernel::{Code, JobState, OutboxState, State, StepState};

use crate::world::{Dies, World, acks_only, reports, silent};

const PENDING: StepState = StepState::Pending;

#[test]
fn j1_create_leaves_queued_one_obligation_pending_steps_and_no_outbox_row() {
    let world = World::new(3);
    assert_eq!(world.job.state, JobState::Queued);
    assert_eq!((world.job.semaphore.get(), world.job.attempts_total), (1, 0));
    assert_eq!(world.step_states(), [PENDING; 3]);
    assert!(world.attempts.iter().all(|a| a.row.shown_attempt_no() == 0 && a.row.outbox.is_none()));
    assert_eq!(world.attempts.iter().filter(|a| a.due.is_some()).count(), 1);
}

#[test]
fn j2_leg1_of_step_0_writes_states_fence_lease_and_outbox_row_together() {
    let mut world = World::new(2);
    world.enter_leg1().unwrap();
    let lease = world.policy.lease(LeaseId(7), world.now);
    let leg1::Leg1::Dispatch(dispatch) = leg1::dispatch(&world.job, world.row(), lease).unwrap()
    else {
        panic!("nobody cancels")
    };
    assert_eq!(dispatch.job.unwrap().to(), JobState::Dispatching);
    assert_eq!(dispatch.step.to(), StepState::Dispatching);
    assert_eq!((dispatch.lease.id, dispatch.lease.expires_at), (LeaseId(7), 900_000));
    assert_eq!(dispatch.outbox, OutboxState::Pending);

    world.work_leg1().unwrap();
    assert_eq!((world.job.attempts_total, world.row().shown_attempt_no()), (1, 1));
    assert_eq!(world.row().ledger.to_string(), "001100000000000");
}

#[test]
fn j3_the_ack_of_step_0_moves_job_and_step_together() {
    let mut world = World::new(2);
    world.activate().unwrap();
    world.publish().unwrap();
    let Ack::Accepted { job, step, .. } = world.ack(world.fence()).unwrap() else {
        panic!("the first ACK")
    };
    assert_eq!(job.unwrap().to(), JobState::InProgress);
    assert_eq!(step.to(), StepState::InProgress);
}

#[test]
fn j4_success_of_step_0_of_3_activates_step_1_and_gives_the_job_a_new_version() {
    let mut world = World::running(3);
    let version = world.job.version;
    world.report(Report::Succeeded);
    assert_eq!(world.job_events.last(), Some(&(JobState::InProgress, JobState::InProgress)));
    assert_eq!((world.job.current_step, world.job.version), (1, version + 1));
    assert_eq!(world.step_states(), [StepState::Succeeded, PENDING, PENDING]);
    assert_eq!((world.attempt().row.step_index, world.attempt().due), (1, Some(world.now)));
}

#[test]
fn j5_success_of_the_last_step_closes_the_job() {
    let mut world = World::running(1);
    world.now = 7_000;
    world.report(Report::Succeeded);
    assert_eq!(world.job.state, JobState::Succeeded);
    assert_eq!(world.completed_at, Some(7_000));
    assert_eq!(world.job.semaphore.get(), 0);
    assert_eq!(world.completions, 1);
}

#[test]
fn j8_cancel_moves_every_open_job_to_cancelling_and_again_is_a_no_op() {
    let mut dispatched = World::new(2);
    dispatched.activate().unwrap();
    for mut world in [World::new(2), dispatched, World::running(2)] {
        let from = world.job.state;
        assert_eq!(world.cancel().unwrap(), JobState::Cancelling, "from {from}");
        let before = world.clone();
        assert_eq!(world.cancel().unwrap(), JobState::Cancelling);
        assert_eq!(world, before, "again from {from}");
    }
}

#[test]
fn j9_cancel_of_a_terminal_job_returns_its_state_and_changes_nothing() {
    let ended = |end: fn(&mut World)| {
        let mut world = World::running(1);
        end(&mut world);
        world
    };
    let worlds = [
        (JobState::Succeeded, ended(|world| world.report(Report::Succeeded))),
        (JobState::FailedFinal, ended(|world| world.report(Report::NonRetryable))),
        (
            JobState::Cancelled,
            ended(|world| {
                world.cancel().unwrap();
                world.report(Report::Retryable);
            }),
        ),
    ];
    for (state, mut world) in worlds {
        assert_eq!(world.job.state, state);
        let before = world.clone();
        assert_eq!(world.cancel().unwrap(), state);
        let named = cancel(&world.job, world.row(), Some(999)).unwrap();
        assert_eq!(named, Cancel::NoOp(state), "whatever version was read");
        assert_eq!(world, before);
    }
}

#[test]
fn j13_a_final_failure_under_cancel_keeps_its_state_and_the_job_is_cancelled() {
    let mut world = World::running(3);
    world.cancel().unwrap();
    world.report(Report::NonRetryable);
    assert_eq!(world.job.state, JobState::Cancelled);
    let cancelled = StepState::Cancelled;
    assert_eq!(world.step_states(), [StepState::FailedFinal, cancelled, cancelled]);
}

#[test]
fn a_success_or_a_retryable_failure_under_cancel_also_ends_cancelled() {
    for (report, step) in
        [(Report::Succeeded, StepState::Succeeded), (Report::Retryable, StepState::Cancelled)]
    {
        let mut world = World::running(2);
        world.cancel().unwrap();
        assert!(world.heartbeat(world.fence()).unwrap(), "the worker is told to stop");
        world.report(report);
        assert_eq!(world.job.state, JobState::Cancelled, "never SUCCEEDED or FAILED_FINAL");
        assert_eq!(world.step_states(), [step, StepState::Cancelled]);
        let retries = world.trace.iter().filter(|(_, _, s)| *s == StepState::FailedRetry);
        assert_eq!(retries.count(), 0, "it may not restart, so it never waits for a retry");
        assert_eq!((world.job.semaphore.get(), world.completions), (0, 1));
    }
}

/// Leg1 of a cancelled job asked for no state, and would have ended an attempt that a worker held.
#[test]
fn leg1_of_a_cancelled_job_does_not_end_an_attempt_that_runs() {
    let mut world = World::running(1);
    world.cancel().unwrap();
    let before = world.clone();
    assert_eq!(world.work_leg1().unwrap_err().code(), Code::StepIllegalTransition);
    assert_eq!(world, before);
}

#[test]
fn j15_a_cancel_before_leg1_ends_cancelled_without_any_outbox_row() {
    let mut world = World::new(3);
    world.cancel().unwrap();
    world.play(0, silent);
    assert_eq!(
        world.job_events,
        [(JobState::Queued, JobState::Cancelling), (JobState::Cancelling, JobState::Cancelled),]
    );
    assert_eq!(world.step_states(), [StepState::Cancelled; 3]);
    assert!(world.attempts.iter().all(|attempt| attempt.row.outbox.is_none()));
    assert_eq!(world.job.attempts_total, 0);
    assert_eq!(world.digits(0), ("001111100000001".into(), "000111100000001".into()));
}

#[test]
fn j17_an_ack_under_cancel_is_accepted_and_the_attempt_may_finish() {
    let mut world = World::new(1);
    world.activate().unwrap();
    world.publish().unwrap();
    world.cancel().unwrap();
    assert!(matches!(world.ack(world.fence()), Ok(Ack::Accepted { job: None, .. })));
    assert_eq!(world.row().state, StepState::InProgress);
    assert_eq!(world.job.state, JobState::Cancelling);
}

#[test]
fn j18_under_cancel_a_missing_ack_ends_the_job_after_30_seconds() {
    let mut world = World::new(2);
    world.activate().unwrap();
    world.publish().unwrap();
    world.cancel().unwrap();
    world.play(29, silent);
    assert_eq!(world.job.state, JobState::Cancelling);
    world.play(30, silent);
    assert_eq!(world.job.state, JobState::Cancelled);
    assert_eq!(world.step_states(), [StepState::Cancelled; 2]);
}

#[test]
fn a_cancel_during_a_backoff_does_not_wait_for_it() {
    let mut world = World::running(2);
    world.report(Report::Retryable);
    world.now = 1_000;
    world.cancel().unwrap();
    world.play(1, silent);
    assert_eq!(world.job.state, JobState::Cancelled);
    assert_eq!(world.step_states(), [StepState::Cancelled; 2]);
    assert_eq!(world.job.attempts_total, 1, "nothing was started");
}

#[test]
fn a_cancel_between_step_1_and_step_2_starts_no_further_attempt() {
    for report in [Report::Succeeded, Report::Retryable, Report::NonRetryable] {
        let mut world = World::running(2);
        world.result(world.fence(), report, "result").unwrap();
        world.finish(Dies::AfterStep1).unwrap();
        world.cancel().unwrap();
        world.play(0, silent);
        assert_eq!(world.job.state, JobState::Cancelled, "{report:?}");
        assert!(world.step_states().iter().all(|state| state.is_terminal()));
        assert_eq!(world.attempts.len(), 2);
    }
}

#[test]
fn j20_a_stale_version_is_a_conflict_that_names_both() {
    let world = World::running(1);
    let refusal = cancel(&world.job, world.row(), Some(1)).unwrap_err();
    assert_eq!(refusal.code(), Code::JobVersionConflict);
    assert_eq!(refusal.field("expected").unwrap().to_string(), "1");
    assert_eq!(refusal.field("actual").unwrap().to_string(), world.job.version.to_string());
    assert!(cancel(&world.job, world.row(), Some(world.job.version)).is_ok());
}

#[test]
fn j21_a_move_that_names_a_step_that_is_not_current_is_refused() {
    let mut world = World::running(3);
    world.report(Report::Succeeded);
    let lease = world.policy.lease(LeaseId(1), 0);
    for step in [0, 2] {
        let refusal = leg1::dispatch(&world.job, &AttemptRow::first(step), lease).unwrap_err();
        assert_eq!(refusal.code(), Code::StepNotCurrent);
        let awaiting = AttemptRow {
            state: StepState::AwaitingAck,
            lease_id: Some(LeaseId(1)),
            ..AttemptRow::first(step)
        };
        let fence = Fence { attempt_no: 1, lease_id: LeaseId(1) };
        let refusal = ack(&world.job, &awaiting, fence, world.terms()).unwrap_err();
        assert_eq!(refusal.code(), Code::StepNotCurrent, "only the current step is IN_PROGRESS");
    }
}

#[test]
fn j22_step_1_cannot_start_while_step_0_is_open() {
    for open in [World::new(2), World::running(2)] {
        let lease = open.policy.lease(LeaseId(1), 0);
        let refusal = leg1::dispatch(&open.job, &open.attempts[1].row, lease).unwrap_err();
        assert_eq!(refusal.code(), Code::StepNotCurrent);
    }
}

#[test]
fn j23_a_happy_job_of_3_steps_has_3_attempts_3_sent_rows_and_semaphores_1_1_1_0() {
    let mut world = World::new(3);
    world.play(1, reports(Report::Succeeded));
    assert_eq!(world.job.state, JobState::Succeeded);
    assert_eq!(world.job.attempts_total, 3);
    assert_eq!(world.outbox_rows(OutboxState::Sent), 3);
    assert_eq!(world.semaphores, [1, 1, 1, 0]);
    assert_eq!(world.digits(0), ("001111000000001".into(), "000011000000001".into()));
    assert_eq!(world.digits(2), ("001111100000001".into(), "000111100000001".into()));
}

#[test]
fn j24_a_terminal_job_is_changed_by_no_callback_timer_or_replay() {
    let mut world = World::running(1);
    let fence = world.fence();
    world.report(Report::Succeeded);
    let before = world.clone();
    assert_eq!(world.ack(fence).unwrap(), Ack::Duplicate);
    assert_eq!(world.heartbeat(fence).unwrap_err().code(), Code::StaleFence);
    assert_eq!(
        world.result(fence, Report::NonRetryable, "other").unwrap_err().code(),
        Code::StaleFence
    );
    world.now = 10_000_000;
    assert_eq!(world.fire_timers(), [Fired::Vanish; 2]);
    assert_eq!(world.lose_owner(), Fired::Vanish);
    world.finish(Dies::Never).unwrap();
    world.now = before.now;
    assert_eq!(world, before);
    let lease = world.policy.lease(LeaseId(1), 0);
    let refusal = leg1::dispatch(&world.job, world.row(), lease).unwrap_err();
    assert_eq!(refusal.code(), Code::StepNotCurrent);
}

#[test]
fn j28_a_cancel_closes_an_unpublished_row_and_waits_for_no_worker() {
    let mut world = World::new(2);
    world.activate().unwrap();
    world.cancel().unwrap();
    assert_eq!(world.outbox_rows(OutboxState::FailedFinal), 1);
    assert_eq!(world.publish().unwrap_err().code(), Code::OutboxIllegalTransition);
    assert_eq!(world.ack(world.fence()).unwrap_err().code(), Code::StaleFence);
    world.play(0, silent);
    assert_eq!(world.job.state, JobState::Cancelled);
    assert_eq!(world.step_states(), [StepState::Cancelled; 2]);
}

#[test]
fn steps_behind_a_final_failure_stay_pending() {
    let mut world = World::running(3);
    world.report(Report::NonRetryable);
    assert_eq!(world.job.state, JobState::FailedFinal);
    assert_eq!(world.step_states(), [StepState::FailedFinal, PENDING, PENDING]);
    world.play(5, acks_only);
    assert_eq!(world.job.attempts_total, 1);
}

#[test]
fn a_failure_that_leg1_finds_in_a_cancelling_job_is_a_cancel_without_a_directive() {
    let mut world = World::new(2);
    world.enter_leg1().unwrap();
    world.cancel().unwrap();
    world.fail_leg1(Code::Leg1AttemptsExhausted).unwrap();
    assert_eq!(world.job.attempts_total, 0);
    assert_eq!(world.attempts[0].row.outbox, None);
    world.finish(Dies::Never).unwrap();
    assert_eq!(world.job.state, JobState::Cancelled);
}
