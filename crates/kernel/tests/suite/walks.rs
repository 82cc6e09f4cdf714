//! Random histories of one job: any order of activations, publishes, callbacks, timers, lost owners,
//! cancels, deaths between the steps of a message, and redeliveries. After each action the job must
//! look like a job, and whatever happened it must end, once.

use proptest::prelude::*;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::{Ending, EndingKind, Fence, LeaseId};
use sprag_kernel::ledger::{ActivityLedger, GuidLedger};
use sprag_kernel::{JobState, OutboxState, State, StepState};

use crate::world::{Attempt, Dies, World, reports};

#[derive(Clone, Copy, Debug)]
enum Action {
    Pass(u64),
    EnterAndDie,
    Activate,
    Publish,
    PublishFails,
    Ack,
    Heartbeat,
    Report(Report, u8),
    ForgedReport(u8),
    FireTimers,
    LoseOwner,
    Cancel,
    Handle(Dies),
    Redeliver(usize, Dies),
}

fn action() -> impl Strategy<Value = Action> {
    let dies = prop_oneof![Just(Dies::AfterStep1), Just(Dies::AfterStep2), Just(Dies::Never)];
    let report =
        prop_oneof![Just(Report::Succeeded), Just(Report::Retryable), Just(Report::NonRetryable)];
    prop_oneof![
        4 => prop_oneof![Just(1_u64), Just(30_000), Just(120_000), Just(900_000)].prop_map(Action::Pass),
        1 => Just(Action::EnterAndDie),
        6 => Just(Action::Activate),
        6 => Just(Action::Publish),
        1 => Just(Action::PublishFails),
        6 => Just(Action::Ack),
        1 => Just(Action::Heartbeat),
        4 => (report, 0..2_u8).prop_map(|(report, content)| Action::Report(report, content)),
        1 => (0..3_u8).prop_map(Action::ForgedReport),
        2 => Just(Action::FireTimers),
        1 => Just(Action::LoseOwner),
        1 => Just(Action::Cancel),
        6 => dies.clone().prop_map(Action::Handle),
        2 => (any::<usize>(), dies).prop_map(|(at, dies)| Action::Redeliver(at, dies)),
    ]
}

/// Does it if it can happen. A refusal is an answer and must leave the world as it was.
fn act(world: &mut World, action: Action) {
    let before = world.clone();
    let is_due = world.attempt().due.is_some_and(|due| due <= world.now);
    let answer = match action {
        Action::Pass(ms) => {
            world.now += ms;
            return;
        }
        Action::EnterAndDie if is_due || world.row().ledger.leg1_complete() => {
            world.enter_leg1().map(|_| ())
        }
        Action::Activate if is_due => world.activate(),
        Action::EnterAndDie | Action::Activate => Ok(()),
        Action::Publish => world.publish(),
        Action::PublishFails => world.publish_fails(),
        Action::Ack => world.ack(world.fence()).map(|_| ()),
        Action::Heartbeat => world.heartbeat(world.fence()).map(|_| ()),
        Action::Report(report, content) => {
            world.result(world.fence(), report, &format!("{report:?} {content}")).map(|_| ())
        }
        Action::ForgedReport(attempt_no) => {
            let fence = Fence { attempt_no: attempt_no.into(), lease_id: LeaseId(1) };
            let forged = world.result(fence, Report::Succeeded, "forged");
            assert!(forged.is_err(), "a forged fence is never heard");
            Ok(())
        }
        Action::FireTimers => {
            world.fire_timers();
            Ok(())
        }
        Action::LoseOwner => {
            world.lose_owner();
            Ok(())
        }
        Action::Cancel => world.cancel().map(|_| ()),
        Action::Handle(dies) => {
            if world.attempts.iter().any(|attempt| attempt.is_ending_open) {
                world.finish(dies).expect("a message that entered is handled");
            }
            Ok(())
        }
        Action::Redeliver(at, dies) => {
            let at = at % world.attempts.len();
            if world.attempts[at].row.ending.is_some() {
                world.redeliver_at(at, dies).expect("a message that entered is handled");
            }
            Ok(())
        }
    };
    if answer.is_err() {
        assert_eq!(*world, before, "{action:?} was refused and changed something");
    }
}

/// What changed between two moments is what may change.
fn hold_change(before: &World, after: &World) {
    for (old, new) in before.attempts.iter().zip(&after.attempts) {
        assert!(new.row.ledger >= old.row.ledger, "a ledger only grows");
        let guid = |attempt: &Attempt| attempt.row.ending.map_or(0, |ending| ending.guid.get());
        assert!(guid(new) >= guid(old), "a ledger only grows");
        if old.row.state.is_terminal() {
            assert_eq!(new.row.state, old.row.state);
        }
        if old.row.outbox.is_some_and(State::is_terminal) {
            assert_eq!(new.row.outbox, old.row.outbox);
            assert_eq!(new.row.publish_attempts, old.row.publish_attempts);
        }
    }
    assert!(after.job.version >= before.job.version);
    assert_eq!(after.job.version - before.job.version, moves(after) - moves(before));
    if before.job.state.is_terminal() {
        assert_eq!(after.job, before.job, "a closed job is never touched");
        assert_eq!(after.attempts.len(), before.attempts.len());
    }
    if before.job.state == JobState::Cancelling {
        assert_eq!(after.job.attempts_total, before.job.attempts_total, "nothing starts");
    }
    assert!(after.completions <= 1);
}

fn moves(world: &World) -> u64 {
    world.job_events.len() as u64
}

/// Whether the attempt is one of the job's open obligations.
fn is_open(attempt: &Attempt) -> bool {
    let spawned = attempt.row.ending.is_some_and(|ending| ending.guid.children_spawned());
    attempt.due.is_some() || (attempt.row.ledger.leg1_complete() && !spawned)
}

/// The audit of one job.
fn audit(world: &World) {
    let job = &world.job;
    let is_closed = job.state.is_terminal();
    let obligations = world.attempts.iter().filter(|attempt| is_open(attempt)).count();
    assert_eq!(job.semaphore.get() as usize, obligations, "one count of what is open");
    assert_eq!(job.semaphore.get() == 0, is_closed);
    assert_eq!(world.completed_at.is_some(), is_closed);
    assert_eq!(world.guids().filter(|guid| guid.job_closed()).count(), usize::from(is_closed));
    let written = world.attempts.iter().filter(|attempt| attempt.row.lease_id.is_some()).count();
    assert_eq!(job.attempts_total as usize, written);
    let states = world.step_states();
    assert!(states.iter().filter(|state| **state == StepState::InProgress).count() <= 1);
    if job.state == JobState::Cancelled {
        assert!(states.iter().all(|state| state.is_terminal()));
    }
    if job.state == JobState::Succeeded {
        assert!(states.iter().all(|state| *state == StepState::Succeeded));
    }
    world.attempts.iter().for_each(|attempt| audit_attempt(world, attempt));
}

fn audit_attempt(world: &World, attempt: &Attempt) {
    let row = &attempt.row;
    assert_eq!(ActivityLedger::from_stored(row.ledger.get()).unwrap(), row.ledger);
    assert!(row.counted_attempts() <= world.policy.max_attempts + 1);
    let done = |ending: &Ending| ending.guid.work_done();
    if let Some(ending) = row.ending {
        assert_eq!(GuidLedger::from_stored(ending.guid.get()).unwrap(), ending.guid);
        assert_eq!(ending.guid.work_done(), row.ledger.work_done());
        assert_eq!(ending.guid.children_spawned(), row.ledger.children_spawned());
        assert!(ending.guid.ordinal() >= 1);
    }
    let ended_by_cancel = matches!(row.ending, Some(Ending { kind: EndingKind::Cancel, .. }));
    assert!(row.outbox.is_some() == row.ledger.leg1_complete() || ended_by_cancel);
    if row.state.is_terminal() {
        let never_started = row.lease_id.is_none() && row.state == StepState::Cancelled;
        assert!(never_started || row.ending.as_ref().is_some_and(done), "{row:?}");
    }
    if row.outbox == Some(OutboxState::Pending) {
        assert_eq!(row.state, StepState::Dispatching, "a pending row belongs to its fence");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_a_job_closes_exactly_once(
        steps in 1..4_u32,
        max_attempts in 1..4_u32,
        actions in proptest::collection::vec(action(), 0..90),
        last_words in prop_oneof![
            Just(Report::Succeeded), Just(Report::Retryable), Just(Report::NonRetryable)
        ],
    ) {
        let mut world = World::new(steps).with(|policy| {
            policy.max_attempts = max_attempts;
            policy.max_losses = 2;
        });
        for action in actions {
            let before = world.clone();
            act(&mut world, action);
            hold_change(&before, &world);
            audit(&world);
        }
        let before = world.clone();
        let end = world.now / 1000 + 20_000;
        world.play(end, reports(last_words));
        hold_change(&before, &world);
        audit(&world);
        prop_assert!(world.job.state.is_terminal(), "{:?}", world.job);
        prop_assert_eq!(world.completions, 1);
        prop_assert_eq!(world.job.semaphore.get(), 0);
        prop_assert!(world.attempts.iter().all(|attempt| !attempt.is_ending_open));
        prop_assert!(world.guids().all(GuidLedger::is_finished));
    }
}
