//! Group T: steps, callbacks, timers. Left to the stores and surfaces: T10 (looking a job up) and
//! T28 (whose clock); here time is an argument and a worker's clock never enters. T30 needs stored
//! routes: the kernel has no way to reroute, a route is computed once and pinned by the store.

use sprag_kernel::decide::callback::{Ack, Report, Stored};
use sprag_kernel::decide::rows::{EndingKind, Fence, LeaseId};
use sprag_kernel::decide::timer::Fired;
use sprag_kernel::keys::{Mode, route};
use sprag_kernel::{Code, JobState, OutboxState, StepState};

use crate::world::{Dies, World, acks_only, reports, silent};

use StepState::{AwaitingAck, Dispatching, FailedFinal, FailedRetry, InProgress, Succeeded};

/// A one-step job whose directive is out since second 0.
fn awaiting() -> World {
    let mut world = World::new(1);
    world.activate().unwrap();
    world.publish().unwrap();
    world
}

/// The world refuses with this code and is unchanged.
fn refused<T: std::fmt::Debug>(
    world: &mut World,
    code: Code,
    act: impl FnOnce(&mut World) -> Result<T, sprag_kernel::Refusal>,
) {
    let before = world.clone();
    assert_eq!(act(world).unwrap_err().code(), code);
    assert_eq!(*world, before);
}

/// When the step came to these states.
fn times(world: &World, states: &[StepState]) -> Vec<(u64, u32, StepState)> {
    world.trace.iter().copied().filter(|(_, _, state)| states.contains(state)).collect()
}

#[test]
fn t1_a_sent_row_makes_the_step_await_its_ack_for_30_seconds_under_the_same_fence() {
    let mut world = World::new(1);
    world.activate().unwrap();
    let fence = world.fence();
    world.now = 5_000;
    world.publish().unwrap();
    assert_eq!(world.row().state, AwaitingAck);
    assert_eq!(world.fence(), fence);
    assert_eq!(world.row().deadline, Some(35_000));
}

#[test]
fn t2_an_ack_resets_the_lease_to_15_minutes_and_the_ack_timer_is_gone() {
    let mut world = awaiting();
    world.now = 10_000;
    world.ack(world.fence()).unwrap();
    assert_eq!(world.row().state, InProgress);
    assert_eq!(world.row().deadline, Some(910_000));
    world.now = 30_000;
    assert_eq!(world.fire_timers(), [Fired::Vanish, Fired::Wait(910_000)]);
}

#[test]
fn t3_an_ack_of_attempt_1_while_2_is_current_is_stale() {
    let mut world = World::running(1);
    let first = world.fence();
    world.report(Report::Retryable);
    world.play(30, silent);
    assert_eq!((world.row().attempt_no, world.row().state), (2, AwaitingAck));
    refused(&mut world, Code::StaleFence, |world| world.ack(first));
    refused(&mut world, Code::StaleFence, |world| world.heartbeat(first));
    refused(&mut world, Code::StaleFence, |world| world.result(first, Report::Succeeded, "late"));
}

#[test]
fn t4_an_ack_with_another_lease_is_stale() {
    let mut world = awaiting();
    let forged = Fence { lease_id: LeaseId(4711), ..world.fence() };
    refused(&mut world, Code::StaleFence, |world| world.ack(forged));
    let other_attempt = Fence { attempt_no: 2, ..world.fence() };
    refused(&mut world, Code::StaleFence, |world| world.ack(other_attempt));
}

#[test]
fn an_ack_before_the_row_is_sent_is_not_yet() {
    let mut world = World::new(1);
    world.activate().unwrap();
    refused(&mut world, Code::NotYet, |world| world.ack(world.fence()));
}

#[test]
fn t6_a_result_before_the_ack_is_not_yet() {
    let mut world = awaiting();
    refused(&mut world, Code::NotYet, |world| {
        world.result(world.fence(), Report::Succeeded, "result")
    });
    refused(&mut world, Code::NotYet, |world| world.heartbeat(world.fence()));
}

#[test]
fn t7_a_duplicate_ack_changes_nothing_and_does_not_extend_the_lease() {
    let mut world = World::running(1);
    world.now = 60_000;
    let before = world.clone();
    assert_eq!(world.ack(world.fence()).unwrap(), Ack::Duplicate);
    assert_eq!(world, before);
    assert_eq!(world.row().deadline, Some(900_000));
}

#[test]
fn t8_a_duplicate_result_is_a_success_and_spawns_no_second_child() {
    let mut world = World::running(2);
    let fence = world.fence();
    world.result(fence, Report::Succeeded, "result").unwrap();
    let stored = world.clone();
    assert_eq!(world.result(fence, Report::Succeeded, "result").unwrap(), Stored::Duplicate);
    assert_eq!(world, stored);
    refused(&mut world, Code::StaleFence, |w| w.result(fence, Report::Succeeded, "another"));
    refused(&mut world, Code::StaleFence, |w| w.result(fence, Report::NonRetryable, "another"));

    let mut last = World::running(1);
    last.report(Report::Succeeded);
    let before = last.clone();
    assert_eq!(last.result(last.fence(), Report::Succeeded, "result").unwrap(), Stored::Duplicate);
    last.finish(Dies::Never).unwrap();
    assert_eq!(last, before);
}

#[test]
fn a_retryable_result_sent_twice_is_a_success_while_the_next_attempt_waits() {
    let mut world = World::running(1);
    let fence = world.fence();
    world.report(Report::Retryable);
    let before = world.clone();
    assert_eq!(world.result(fence, Report::Retryable, "result").unwrap(), Stored::Duplicate);
    assert_eq!(world, before);
}

#[test]
fn t11_a_result_is_read_only_if_status_and_failure_class_agree() {
    assert_eq!(Report::read("SUCCEEDED", None).unwrap(), Report::Succeeded);
    assert_eq!(Report::read("FAILED", Some("RETRYABLE")).unwrap(), Report::Retryable);
    assert_eq!(Report::read("FAILED", Some("NON_RETRYABLE")).unwrap(), Report::NonRetryable);
    let wrong = [
        ("FAILED", None, "failure_class"),
        ("FAILED", Some("retryable"), "failure_class"),
        ("SUCCEEDED", Some("RETRYABLE"), "failure_class"),
        ("DONE", None, "status"),
    ];
    for (status, class, field) in wrong {
        let refusal = Report::read(status, class).unwrap_err();
        assert_eq!(refusal.code(), Code::ResultInvalid);
        assert_eq!(refusal.field("field").unwrap().to_string(), field);
    }
}

#[test]
fn t12_retryable_results_wait_30_then_120_seconds_and_the_third_is_final() {
    let mut world = World::new(1);
    world.play(1000, reports(Report::Retryable));
    assert_eq!(
        times(&world, &[FailedRetry, Dispatching, FailedFinal]),
        [
            (0, 1, Dispatching),
            (0, 1, FailedRetry),
            (30, 2, Dispatching),
            (30, 2, FailedRetry),
            (150, 3, Dispatching),
            (150, 3, FailedFinal),
        ]
    );
    assert_eq!(world.job.state, JobState::FailedFinal);
    assert_eq!(world.job.attempts_total, 3);
    assert_eq!(world.semaphores, [1, 1, 1, 0]);
}

#[test]
fn t13_the_ack_timeout_schedule_ends_at_450_seconds() {
    let mut world = World::new(1);
    world.play(1000, silent);
    assert_eq!(
        world.trace,
        [
            (0, 1, Dispatching),
            (0, 1, AwaitingAck),
            (30, 1, FailedRetry),
            (90, 2, Dispatching),
            (90, 2, AwaitingAck),
            (120, 2, FailedRetry),
            (420, 3, Dispatching),
            (420, 3, AwaitingAck),
            (450, 3, FailedFinal),
        ]
    );
    assert_eq!(world.job_events.last(), Some(&(JobState::Dispatching, JobState::FailedFinal)));
    assert_eq!(world.completed_at, Some(450_000));
}

#[test]
fn t14_the_lease_schedule_ends_at_2850_seconds() {
    let mut world = World::new(1);
    world.play(4000, acks_only);
    assert_eq!(
        times(&world, &[InProgress, FailedRetry, FailedFinal]),
        [
            (0, 1, InProgress),
            (900, 1, FailedRetry),
            (930, 2, InProgress),
            (1830, 2, FailedRetry),
            (1950, 3, InProgress),
            (2850, 3, FailedFinal),
        ]
    );
    assert_eq!(world.completed_at, Some(2_850_000));
}

#[test]
fn the_wait_depends_on_the_attempt_number_whatever_failed_before() {
    let mut world = World::new(1);
    world.play(89, silent);
    world.play(90, reports(Report::Retryable));
    assert_eq!(world.attempt().due, Some(210_000), "attempt 2 failed: the second of 30 s, 120 s");
}

#[test]
fn past_its_end_a_table_repeats_its_last_wait() {
    let mut world = World::new(1).with(|policy| policy.max_attempts = 6);
    world.play(10_000, reports(Report::Retryable));
    let started: Vec<u64> = times(&world, &[Dispatching]).iter().map(|(at, ..)| *at).collect();
    assert_eq!(started, [0, 30, 150, 750, 1350, 1950]);
}

#[test]
fn t17_with_one_attempt_a_retryable_result_is_final() {
    let mut world = World::new(1).with(|policy| policy.max_attempts = 1);
    world.play(1, reports(Report::Retryable));
    assert_eq!((world.row().state, world.job.state), (FailedFinal, JobState::FailedFinal));
}

#[test]
fn t19_a_heartbeat_moves_the_lease_and_an_old_one_is_stale() {
    let mut world = World::running(1);
    let fence = world.fence();
    world.now = 840_000;
    assert!(!world.heartbeat(fence).unwrap(), "nobody cancels");
    assert_eq!(world.row().deadline, Some(840_000 + 900_000));
    world.now = 900_000;
    assert_eq!(world.fire_timers(), [Fired::Vanish, Fired::Wait(1_740_000)]);
    let old = Fence { lease_id: LeaseId(0), ..fence };
    refused(&mut world, Code::StaleFence, |world| world.heartbeat(old));
}

#[test]
fn a_deadline_is_reached_at_its_very_millisecond_and_not_before() {
    let mut world = World::running(1);
    world.now = 899_999;
    assert_eq!(world.fire_timers(), [Fired::Vanish, Fired::Wait(900_000)]);
    world.now = 900_000;
    assert!(matches!(world.fire_timers()[1], Fired::End(_)));
    let mut late = awaiting();
    late.now = 29_999;
    assert_eq!(late.fire_timers()[0], Fired::Wait(30_000));
    late.now = 30_000;
    assert!(matches!(late.fire_timers()[0], Fired::End(_)));
}

#[test]
fn t26_only_the_lowest_open_step_is_ever_dispatched_or_in_progress() {
    let mut world = World::new(3);
    let mut happy = reports(Report::Succeeded);
    world.play(2, |world| {
        let states = world.step_states();
        let open = states.iter().position(|s| !matches!(s, Succeeded)).unwrap_or(3);
        assert!(states.iter().skip(open + 1).all(|state| *state == StepState::Pending));
        happy(world);
    });
    assert_eq!(world.job.state, JobState::Succeeded);
}

#[test]
fn t29_routing_lanes_are_crc32_of_the_lower_case_key_modulo_16() {
    let lane = |tenant, mode, doc| {
        let route = route(tenant, mode, doc).unwrap();
        (route.key, route.lane)
    };
    assert_eq!(lane("TenantA", Mode::Default, None), ("tenanta".into(), 3));
    assert_eq!(lane("TenantA", Mode::Default, Some("Doc-99")), ("tenanta".into(), 3));
    assert_eq!(lane("TenantA", Mode::Burst, Some("Doc-99")), ("tenantadoc-99".into(), 9));
    assert_eq!(lane("t1", Mode::Default, None), ("t1".into(), 7));
    for missing in [None, Some("")] {
        let refusal = route("t1", Mode::Burst, missing).unwrap_err();
        assert_eq!(refusal.code(), Code::DocIdMissing);
    }
}

#[test]
fn t31_a_result_stored_just_before_the_lease_ends_decides_however_late_it_is_processed() {
    let mut world = World::running(1);
    world.now = 899_900;
    world.result(world.fence(), Report::Succeeded, "result").unwrap();
    world.now += 600_000;
    assert_eq!(world.fire_timers(), [Fired::Vanish; 2]);
    assert_eq!(world.lose_owner(), Fired::Vanish);
    world.finish(Dies::Never).unwrap();
    assert_eq!((world.row().state, world.job.state), (Succeeded, JobState::Succeeded));
    assert_eq!(world.job.attempts_total, 1);
}

#[test]
fn t32_five_lost_engines_cost_a_healthy_step_no_attempt() {
    let mut world = World::new(1);
    for lost in 1..=5 {
        world.start_step();
        assert!(matches!(world.lose_owner(), Fired::End(_)));
        world.finish(Dies::Never).unwrap();
        assert_eq!(world.row().losses, lost);
        assert_eq!(world.attempt().due, Some(world.now), "at once");
    }
    world.start_step();
    assert_eq!((world.row().attempt_no, world.row().counted_attempts()), (6, 1));
    world.report(Report::Succeeded);
    assert_eq!(world.job.state, JobState::Succeeded);
    assert_eq!(world.job.attempts_total, 6);
    assert_eq!(world.semaphores, [1, 1, 1, 1, 1, 1, 0]);
}

#[test]
fn after_losses_the_budget_of_attempts_and_its_waits_are_whole() {
    let mut world = World::new(1);
    for _ in 0..3 {
        world.start_step();
        world.lose_owner();
        world.finish(Dies::Never).unwrap();
    }
    world.play(1000, reports(Report::Retryable));
    let started: Vec<u64> = times(&world, &[Dispatching]).iter().map(|(at, ..)| *at).collect();
    assert_eq!(started, [0, 0, 0, 0, 30, 150]);
    assert_eq!(world.job.state, JobState::FailedFinal);
}

#[test]
fn a_handler_that_kills_its_engine_ends_after_max_losses() {
    let mut world = World::new(1).with(|policy| policy.max_losses = 2);
    let mut lost = 0;
    while world.job.state != JobState::FailedFinal {
        world.start_step();
        world.lose_owner();
        world.finish(Dies::Never).unwrap();
        lost += 1;
        assert!(lost < 10);
    }
    assert_eq!(lost, 3, "two are forgiven");
    assert_eq!(world.row().state, FailedFinal);
}

/// A batch that loses its engine more often than a step may, but commits something each time.
#[test]
fn a_step_that_gets_ahead_is_not_given_up_however_often_its_engine_is_lost() {
    let mut world = World::new(1).with(|policy| policy.max_losses = 2);
    for lost in 1..=20 {
        world.start_step();
        world.lose_owner();
        world.row_mut().got_ahead = true;
        world.finish(Dies::Never).unwrap();
        assert_eq!((world.row().losses, world.row().excused), (0, lost));
    }
    // It stands still from here on: two more are forgiven, and none of them counts as an attempt.
    for lost in 1..=2 {
        world.start_step();
        assert_eq!(world.row().counted_attempts(), 1);
        world.lose_owner();
        world.finish(Dies::Never).unwrap();
        assert_eq!((world.row().losses, world.row().excused), (lost, 20));
    }
    world.start_step();
    world.lose_owner();
    world.finish(Dies::Never).unwrap();
    assert_eq!(world.job.state, JobState::FailedFinal);
}

#[test]
fn an_attempt_that_nobody_runs_cannot_lose_its_owner() {
    let mut world = World::new(1);
    assert_eq!(world.lose_owner(), Fired::Vanish);
    world.activate().unwrap();
    assert_eq!(world.lose_owner(), Fired::Vanish, "another publisher takes the row");
    world.publish().unwrap();
    assert!(matches!(world.lose_owner(), Fired::End(_)), "while it awaits its ACK");
}

#[test]
fn exactly_one_message_ends_an_attempt_and_a_later_one_is_stale() {
    let mut world = World::running(1);
    let fence = world.fence();
    world.now = 900_000;
    assert!(matches!(world.fire_timers()[1], Fired::End(_)));
    let ledger = world.row().ledger;
    refused(&mut world, Code::StaleFence, |w| w.result(fence, Report::Succeeded, "late"));
    assert_eq!(world.fire_timers(), [Fired::Vanish; 2]);
    assert_eq!(world.row().ledger, ledger, "no entry");
    assert_eq!(world.row().ending.unwrap().kind, EndingKind::LeaseExpired);
}

#[test]
fn a_failure_found_in_leg1_walks_legal_pairs_to_failed_final() {
    let mut world = World::new(2);
    world.enter_leg1().unwrap();
    world.fail_leg1(Code::EnvelopeInvalid).unwrap();
    assert_eq!(world.row().state, Dispatching);
    world.play(0, silent);
    assert_eq!(world.trace, [(0, 1, Dispatching), (0, 1, FailedFinal)]);
    assert_eq!(
        world.job_events,
        [(JobState::Queued, JobState::Dispatching), (JobState::Dispatching, JobState::FailedFinal),]
    );
    assert_eq!(world.outbox_rows(OutboxState::FailedFinal), 1);
    assert_eq!(world.digits(0), ("001111100000001".into(), "000111100000001".into()));
}
