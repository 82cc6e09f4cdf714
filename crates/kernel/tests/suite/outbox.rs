//! Group O: the outbox. Left to the stores: O6, O8 and O9 (no new row, row claim, constraint). The
//! pairs of O3 are in `pairs`.

use sprag_kernel::decide::leg1::{self, Publish};
use sprag_kernel::{Code, JobState, OutboxState, StepState};

use crate::world::{World, silent};

fn dispatched() -> World {
    let mut world = World::new(1);
    world.activate().unwrap();
    world
}

#[test]
fn o1_a_publish_moves_row_and_step_in_one_decision() {
    let world = dispatched();
    let row = world.row();
    match leg1::published(row, row.version, world.terms()).unwrap() {
        Publish::Sent { outbox, step, ack_deadline } => {
            assert_eq!((outbox.from(), outbox.to()), (OutboxState::Pending, OutboxState::Sent));
            assert_eq!(step.to(), StepState::AwaitingAck);
            assert_eq!(ack_deadline, 30_000);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn o4_marking_sent_with_a_stale_version_or_twice_is_a_conflict() {
    let mut world = dispatched();
    let stale = world.row().version - 1;
    let refusal = leg1::published(world.row(), stale, world.terms()).unwrap_err();
    assert_eq!(refusal.code(), Code::JobVersionConflict);

    world.publish().unwrap();
    let before = world.clone();
    let refusal = world.publish().unwrap_err();
    assert_eq!(refusal.code(), Code::OutboxIllegalTransition);
    assert_eq!(refusal.code().class().name(), "conflict");
    assert_eq!(world, before);
}

#[test]
fn a_row_that_was_never_written_cannot_be_published() {
    let world = World::new(1);
    let row = world.row();
    let refusal = leg1::published(row, row.version, world.terms()).unwrap_err();
    assert_eq!(refusal.code(), Code::NotYet);
}

#[test]
fn a_failed_publish_stays_pending_waits_30_then_120_seconds_and_the_third_ends_the_step() {
    let mut world = dispatched();
    for (failed, not_before) in [(1, 30_000), (2, 150_000)] {
        world.publish_fails().unwrap();
        assert_eq!(world.row().outbox, Some(OutboxState::Pending));
        assert_eq!(world.row().state, StepState::Dispatching);
        assert_eq!(
            (world.row().publish_attempts, world.attempt().not_before),
            (failed, not_before)
        );
        world.now = not_before;
    }
    world.publish_fails().unwrap();
    assert_eq!(world.row().outbox, Some(OutboxState::FailedFinal));
    world.play(150, silent);
    assert_eq!(world.row().state, StepState::FailedFinal);
    assert_eq!(world.job_events.last(), Some(&(JobState::Dispatching, JobState::FailedFinal)));
    assert_eq!(world.job.attempts_total, 1, "publishing counts its own tries");
}

/// A publisher whose send timed out, although it arrived and another one marked it, reported the
/// failure with the row's newest version; the sent row was then rescheduled.
#[test]
fn a_closed_row_takes_no_publish_failure() {
    let mut sent = dispatched();
    sent.publish().unwrap();
    let mut cancelled = dispatched();
    cancelled.cancel().unwrap();
    for mut world in [sent, cancelled] {
        let before = world.clone();
        assert_eq!(world.publish_fails().unwrap_err().code(), Code::OutboxIllegalTransition);
        assert_eq!(world, before);
    }
}

#[test]
fn a_pending_row_of_an_attempt_that_is_no_longer_the_newest_closes_unpublished() {
    let world = dispatched();
    let row = *world.row();
    assert_eq!(leg1::superseded(&row, &row).unwrap(), None);
    match leg1::superseded(&row, &row.successor()).unwrap() {
        Some(Publish::Superseded(change)) => assert_eq!(change.to(), OutboxState::FailedFinal),
        other => panic!("{other:?}"),
    }
    let sent = sprag_kernel::decide::rows::AttemptRow { outbox: Some(OutboxState::Sent), ..row };
    assert_eq!(leg1::superseded(&sent, &row.successor()).unwrap(), None, "it is out already");
    assert_eq!(leg1::superseded(&World::new(1).attempts[0].row, &row.successor()).unwrap(), None);
}
