//! Looking ahead says what then comes, because both ask the same decision.

use sprag_kernel::decide::ahead::{self, Ahead};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::leg2::{Duty, Follows};
use sprag_kernel::decide::rows::{EndingKind, JobRow};
use sprag_kernel::decide::timer::Fired;
use sprag_kernel::{Code, JobState, StepState};

use crate::world::{Dies, World};

/// What a message of this kind would come to now.
fn told(world: &World, kind: EndingKind) -> Ahead {
    let asked = ahead::if_ended(&world.job, world.row(), (kind, None), world.terms()).unwrap();
    asked.expect("nothing is done yet")
}

#[test]
fn what_is_told_of_a_missing_ack_is_what_comes_up_to_the_last_attempt() {
    let mut world = World::new(1);
    for attempt_no in 1..=3 {
        world.activate().unwrap();
        world.publish().unwrap();
        world.now = world.row().deadline.unwrap();
        let told = told(&world, EndingKind::AckTimeout);
        assert!(world.fire_timers().iter().any(|fired| matches!(fired, Fired::End(_))));
        world.finish(Dies::Never).unwrap();
        if attempt_no == 3 {
            let ends = (told.step, told.follows, told.ends);
            assert_eq!(
                ends,
                (StepState::FailedFinal, Follows::Nothing, Some(JobState::FailedFinal))
            );
            assert_eq!(world.job.state, JobState::FailedFinal);
            return;
        }
        let due = world.attempt().due.unwrap();
        assert_eq!(told.follows, Follows::NextAttempt { attempt_no: attempt_no + 1, due });
        assert_eq!(told.ends, None);
        world.now = due;
    }
}

#[test]
fn what_is_told_of_each_way_to_end_is_what_comes() {
    let world = World::running(2);
    let follows = |kind| told(&world, kind).follows;
    let (no, now) = (2, world.now);
    assert_eq!(follows(EndingKind::Success), Follows::NextStep(1));
    let again = Follows::NextAttempt { attempt_no: no, due: now + 30_000 };
    assert_eq!((follows(EndingKind::Retryable), follows(EndingKind::LeaseExpired)), (again, again));
    let at_once = Follows::NextAttempt { attempt_no: no, due: now };
    assert_eq!(follows(EndingKind::OwnerLost), at_once);
    let counted = |kind| told(&world, kind).next.unwrap().counted_attempts();
    assert_eq!(counted(EndingKind::LeaseExpired), 2);
    assert_eq!(counted(EndingKind::OwnerLost), 1, "a loss is no attempt");
    assert_eq!(told(&world, EndingKind::NonRetryable).ends, Some(JobState::FailedFinal));

    let mut cancelled = world.clone();
    cancelled.cancel().unwrap();
    assert_eq!(told(&cancelled, EndingKind::LeaseExpired).ends, Some(JobState::Cancelled));

    let mut entered = world.clone();
    entered.result(entered.fence(), Report::Retryable, "result").unwrap();
    let after = |world: &World| ahead::after(&world.job, world.row(), None, world.terms()).unwrap();
    assert_eq!(after(&entered).unwrap().follows, again);
    let before = *entered.row();
    entered.finish(Dies::Never).unwrap();
    assert_eq!(entered.attempts[0].row.attempt_no, before.attempt_no);
    let done = ahead::after(&entered.job, &entered.attempts[0].row, None, entered.terms()).unwrap();
    assert_eq!(done, None, "what is done is not told again");
}

#[test]
fn in_a_graph_the_last_failure_pins_the_end_unless_it_is_tolerated() {
    let mut world = World::running(1).with(|policy| policy.max_attempts = 1);
    world.job = JobRow { is_graph: true, ..world.job };
    let ask = |is_tolerated| {
        let asked = (EndingKind::Retryable, Some(Duty { children: 1, is_tolerated }));
        ahead::if_ended(&world.job, world.row(), asked, world.terms()).unwrap().unwrap()
    };
    assert_eq!(ask(false).ends, Some(JobState::FailedFinal));
    assert_eq!((ask(true).ends, ask(true).follows), (None, Follows::Duty { children: 1 }));
}

#[test]
fn nothing_is_told_of_a_message_that_cannot_be() {
    let world = World::new(1);
    let asked = (EndingKind::Retryable, None);
    let refused = ahead::if_ended(&world.job, world.row(), asked, world.terms()).unwrap_err();
    assert_eq!(refused.code(), Code::Leg1Incomplete, "nobody has begun it");
}
