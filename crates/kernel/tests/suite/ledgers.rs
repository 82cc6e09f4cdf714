//! Group L: the two ledgers and the semaphore. Left to the stores: that marker and work are one
//! commit (L6's rollback, L24, L25, L34, L39), one statement (L41), the CHECK (L43's other half), the
//! queue (L44, L48) and both backends alike (L49). L38 is a property, in `properties` and `walks`.

use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::leg1::{self, Entry};
use sprag_kernel::decide::leg2::{self, finish};
use sprag_kernel::decide::rows::{AttemptRow, EndingKind};
use sprag_kernel::ledger::{ActivityLedger, GuidLedger, LEDGER_MAX, Semaphore};
use sprag_kernel::{Code, JobState, OutboxState, StepState};

use crate::world::{Dies, World, reports, silent};

fn activity(digits: &str) -> ActivityLedger {
    ActivityLedger::parse(digits).unwrap()
}

fn guid(digits: &str) -> GuidLedger {
    GuidLedger::parse(digits).unwrap()
}

#[test]
fn l1_the_first_leg1_entry_adds_one_trillion() {
    assert_eq!(ActivityLedger::FRESH.to_string(), "000000000000000");
    assert_eq!(ActivityLedger::FRESH.enter_leg1().unwrap().to_string(), "001000000000000");
}

#[test]
fn l2_leg1_completion_sets_digit_4() {
    assert_eq!(activity("001000000000000").complete_leg1().unwrap(), activity("001100000000000"));
    let never = ActivityLedger::FRESH.complete_leg1().unwrap_err();
    assert_eq!(never.code(), Code::StepOutOfOrder);
}

#[test]
fn l3_a_replayed_leg1_message_is_counted_and_does_no_work() {
    let mut world = World::new(1);
    world.activate().unwrap();
    match world.enter_leg1().unwrap() {
        Entry::Replay(ledger) => assert_eq!(ledger.to_string(), "002100000000000"),
        Entry::Work(ledger) => panic!("{ledger} works again"),
    }
    assert_eq!(world.job.attempts_total, 1);
}

#[test]
fn l6_leg1_work_that_fails_leaves_its_entry_only() {
    let mut world = World::new(1);
    for entries in 1..=3 {
        assert!(matches!(world.enter_leg1().unwrap(), Entry::Work(_)));
        assert_eq!(world.row().ledger.leg1_entries(), entries);
        assert!(!world.row().ledger.leg1_complete());
    }
    world.work_leg1().unwrap();
    assert_eq!(world.row().ledger.to_string(), "003100000000000");
}

#[test]
fn l8_a_leg2_entry_counts_on_the_activity_and_seeds_the_guid() {
    let entered = activity("001100000000000").enter_leg2().unwrap();
    assert_eq!(entered.to_string(), "001100000000001");
    assert_eq!(GuidLedger::seeded(entered).to_string(), "000000000000001");
    let seventh = GuidLedger::seeded(activity("002111000000007"));
    assert_eq!(seventh.to_string(), "000000000000007", "the low eight digits only");
}

#[test]
fn l11_leg2_before_leg1_is_complete_is_refused_for_retry() {
    let mut world = World::new(1);
    world.enter_leg1().unwrap();
    let refusal = leg2::enter(world.row(), EndingKind::Success, None).unwrap_err();
    assert_eq!(refusal.code(), Code::Leg1Incomplete);
    assert_eq!(refusal.code().class().name(), "conflict");
}

#[test]
fn l14_step_1_sets_digit_5_of_both() {
    assert_eq!(activity("001100000000001").complete_work().unwrap(), activity("001110000000001"));
    assert_eq!(guid("000000000000001").complete_work().unwrap(), guid("000010000000001"));
}

#[test]
fn l15_l20_l31_every_step_is_done_once() {
    let ledger = activity("001111100000001");
    let message = guid("000111100000001");
    assert_eq!(ledger.complete_leg1().unwrap(), ledger);
    assert_eq!(ledger.complete_work().unwrap(), ledger);
    assert_eq!(ledger.complete_children().unwrap(), ledger);
    assert_eq!(ledger.complete_completion().unwrap(), ledger);
    assert_eq!(message.complete_work().unwrap(), message);
    assert_eq!(message.complete_children(true).unwrap(), message);
    assert_eq!(message.complete_completion().unwrap(), message);

    let mut world = World::running(1);
    world.report(Report::Succeeded);
    let before = world.clone();
    world.finish(Dies::Never).unwrap();
    assert_eq!(world, before);
    let again = finish(&world.job, world.row(), world.terms()).unwrap();
    assert_eq!((again.step, again.spawn, again.completes), (None, None, false));
}

#[test]
fn l17_two_children_take_a_semaphore_of_5_to_6_without_a_hit() {
    let settled = Semaphore::new(5).settle(2).unwrap();
    assert_eq!((settled.after.get(), settled.delta, settled.hit), (6, 1, false));
    let marked = guid("000010000000001").complete_children(settled.hit).unwrap();
    assert_eq!(marked.to_string(), "000011000000001");
}

#[test]
fn l18_no_child_takes_a_semaphore_of_1_to_0_with_a_hit() {
    let settled = Semaphore::new(1).settle(0).unwrap();
    assert_eq!((settled.after.get(), settled.delta, settled.hit), (0, -1, true));
    let marked = guid("000010000000001").complete_children(settled.hit).unwrap();
    assert_eq!(marked.to_string(), "000111000000001");
}

#[test]
fn l19_the_delta_is_n_minus_1() {
    for (children, delta) in [(0, -1), (1, 0), (2, 1), (3, 2)] {
        assert_eq!(Semaphore::new(4).settle(children).unwrap().delta, delta);
    }
}

#[test]
fn a_semaphore_never_goes_below_zero_and_a_closed_job_settles_nothing() {
    for (open, children, parked) in [(0, 0, 0), (0, 1, 0), (0, 5, 0), (2, 0, 2), (1, 1, 1)] {
        match Semaphore::new(open).settle_against(children, parked, 0) {
            Ok(settled) => assert!(open > 0 && settled.hit, "{open} {children} {parked}"),
            Err(refusal) => assert_eq!(refusal.code(), Code::SemaphoreRange),
        }
    }
    assert!(Semaphore::new(0).settle(1).is_err());
    assert!(Semaphore::new(2).settle_against(0, 2, 0).is_err());
    assert!(Semaphore::new(u32::MAX).settle(2).is_err());
    assert!(Semaphore::new(13).settle_against(0, 0, 12).unwrap().hit, "any threshold");
}

#[test]
fn l21_steps_out_of_order_are_refused() {
    let refusals = [
        guid("000000000000001").complete_children(true).unwrap_err(),
        guid("000010000000001").complete_completion().unwrap_err(),
        GuidLedger::FRESH.complete_work().unwrap_err(),
        activity("001100000000001").complete_children().unwrap_err(),
        activity("001110000000001").complete_completion().unwrap_err(),
        activity("001100000000000").complete_work().unwrap_err(),
    ];
    assert!(refusals.iter().all(|refusal| refusal.code() == Code::StepOutOfOrder));
}

#[test]
fn l32_a_message_that_did_not_close_the_job_never_runs_step_3() {
    let refusal = guid("000011000000001").complete_completion().unwrap_err();
    assert_eq!(refusal.code(), Code::StepOutOfOrder);
    assert!(guid("000011000000001").is_finished());
    assert!(!guid("000111000000001").is_finished());

    let mut world = World::running(2);
    world.report(Report::Succeeded);
    assert_eq!(world.completions, 0);
    assert!(!world.attempts[0].is_ending_open, "and is acknowledged");
}

#[test]
fn a_message_that_died_after_closing_the_job_still_runs_step_3_once() {
    let mut world = World::running(1);
    world.result(world.fence(), Report::Succeeded, "result").unwrap();
    world.finish(Dies::AfterStep2).unwrap();
    assert_eq!((world.job.state, world.completions), (JobState::Succeeded, 0));
    assert_eq!(world.digits(0).1, "000111000000001");
    world.redeliver(Dies::AfterStep2).unwrap();
    world.redeliver(Dies::Never).unwrap();
    world.redeliver(Dies::Never).unwrap();
    assert_eq!(world.completions, 1);
    assert_eq!(world.digits(0), ("001111100000004".into(), "000111100000001".into()));
    assert_eq!(world.semaphores, [1, 0]);
}

#[test]
fn q29_a_closed_job_turns_away_a_message_without_step_2_and_nothing_changes() {
    let mut running = World::running(1);
    running.result(running.fence(), Report::Succeeded, "result").unwrap();
    let mut halfway = running.clone();
    halfway.finish(Dies::AfterStep1).unwrap();
    for mut world in [running, halfway] {
        world.job.state = JobState::Cancelled;
        world.job.semaphore = Semaphore::new(0);
        let turned_away = finish(&world.job, world.row(), world.terms()).unwrap();
        assert_eq!(
            (turned_away.step, turned_away.spawn, turned_away.completes),
            (None, None, false)
        );
        assert_eq!(turned_away.ledger, world.row().ledger);
        assert_eq!(Some(turned_away.guid), world.row().ending.map(|ending| ending.guid));
    }
}

#[test]
fn a_message_that_died_after_step_1_resumes_with_step_2() {
    let mut world = World::running(2);
    world.result(world.fence(), Report::Succeeded, "result").unwrap();
    world.finish(Dies::AfterStep1).unwrap();
    assert_eq!(world.digits(0), ("001110000000001".into(), "000010000000001".into()));
    assert_eq!((world.job.current_step, world.row().state), (0, StepState::Succeeded));
    world.redeliver(Dies::Never).unwrap();
    assert_eq!((world.job.current_step, world.semaphores.as_slice()), (1, &[1, 1][..]));
    assert_eq!(world.trace.iter().filter(|(_, _, s)| *s == StepState::Succeeded).count(), 1);
}

#[test]
fn l36_the_dimension_is_the_ordinal_minus_1() {
    assert_eq!(guid("000000000000001").dimension(), Some(0));
    assert_eq!(guid("000111100000007").dimension(), Some(6));
    assert_eq!(GuidLedger::FRESH.dimension(), None);
    assert_eq!(activity("001100000000007").dimension(), Some(6));
    assert_eq!(activity("001100000000000").dimension(), None);
}

#[test]
fn the_message_of_a_turn_is_the_next_entry_of_its_loop() {
    let closer = activity("001100000000000").after_turns(6).unwrap();
    assert_eq!(closer.to_string(), "001100000000006");
    let entered = closer.enter_leg2().unwrap();
    assert_eq!(GuidLedger::seeded(entered).dimension(), Some(6));
    assert!(entered.after_turns(1).is_err(), "its message has entered");
    assert!(activity("001000000000000").after_turns(1).is_err(), "Leg1 is not done");
    let at_ceiling = activity("001100000000000").after_turns(99_999_999).unwrap();
    assert_eq!(at_ceiling.enter_leg2().unwrap_err().code(), Code::Leg2EntriesExhausted);
    assert!(activity("001100000000000").after_turns(100_000_000).is_err(), "no carry into digit 7");
}

#[test]
fn l40_the_guid_decides_even_where_the_activity_says_otherwise() {
    let mut world = World::running(1);
    world.report(Report::Succeeded);
    let edited = AttemptRow { ledger: activity("001100000000001"), ..*world.row() };
    let again = finish(&world.job, &edited, world.terms()).unwrap();
    assert_eq!((again.step, again.spawn, again.completes), (None, None, false));
    assert_eq!(again.ledger, edited.ledger);
}

#[test]
fn l43_ceilings_are_tested_before_the_increment() {
    assert_eq!(activity("998000000000000").enter_leg1().unwrap().to_string(), "999000000000000");
    let full = activity("999000000000000").enter_leg1().unwrap_err();
    assert_eq!(full.code(), Code::Leg1AttemptsExhausted);
    let last = activity("001100099999998").enter_leg2().unwrap();
    assert_eq!(last.to_string(), "001100099999999", "no carry into digit 7");
    assert_eq!(last.enter_leg2().unwrap_err().code(), Code::Leg2EntriesExhausted);
    for over in [LEDGER_MAX + 1, u64::MAX] {
        assert_eq!(ActivityLedger::from_stored(over).unwrap_err().code(), Code::LedgerImpossible);
        assert_eq!(GuidLedger::from_stored(over).unwrap_err().code(), Code::LedgerImpossible);
    }
}

#[test]
fn fifteen_digits_are_fifteen_digits() {
    for text in
        ["", "1", "00100000000000", "0010000000000000", "00100000000000a", "-01000000000000"]
    {
        assert_eq!(ActivityLedger::parse(text).unwrap_err().code(), Code::LedgerDigits, "{text}");
        assert_eq!(GuidLedger::parse(text).unwrap_err().code(), Code::LedgerDigits, "{text}");
    }
    assert!(ActivityLedger::parse("\u{661}00000000000000").is_err(), "ASCII digits only");
}

#[test]
fn at_the_leg1_ceiling_the_step_fails_with_digit_4_and_the_message_in_one_commit() {
    let mut world = World::new(1);
    world.attempts[0].row.ledger = activity("999000000000000");
    world.play(0, silent);
    assert_eq!(world.digits(0), ("999111100000001".into(), "000111100000001".into()));
    assert_eq!(world.row().state, StepState::FailedFinal);
    assert_eq!(world.job.state, JobState::FailedFinal);
    assert_eq!(world.outbox_rows(OutboxState::FailedFinal), 1);
    let kind = world.row().ending.unwrap().kind;
    assert_eq!(kind, EndingKind::Leg1Failed(Code::Leg1AttemptsExhausted));
}

/// The 1000th delivery of an activation whose Leg1 is done was refused, and failing the step was
/// illegal too, so the message could never be acknowledged.
#[test]
fn a_replay_at_the_leg1_ceiling_is_acknowledged() {
    let mut world = World::new(1);
    world.activate().unwrap();
    world.attempts[0].row.ledger = activity("999100000000000");
    assert_eq!(world.enter_leg1().unwrap(), Entry::Replay(activity("999100000000000")));
}

#[test]
fn at_the_leg2_ceiling_the_step_fails_and_the_activity_is_not_touched() {
    let full = activity("001100099999999");
    let mut running = World::running(1);
    running.attempts[0].row.ledger = full;
    running.report(Report::Succeeded);
    let mut silent_worker = World::new(1);
    silent_worker.play(29, silent);
    silent_worker.attempts[0].row.ledger = full;
    silent_worker.play(30, silent);
    for world in [running, silent_worker] {
        assert_eq!(world.digits(0), (full.to_string(), "000111199999999".into()));
        assert_eq!(world.row().state, StepState::FailedFinal);
        assert_eq!((world.job.state, world.completions), (JobState::FailedFinal, 1));
        assert_eq!(leg2::enter_again(world.row()), full, "a redelivery has no room either");
    }
}

#[test]
fn l46_retry_then_success_leaves_these_digits() {
    let mut world = World::running(1);
    world.report(Report::Retryable);
    assert_eq!(world.digits(0), ("001111000000001".into(), "000011000000001".into()));
    world.play(30, reports(Report::Succeeded));
    assert_eq!(world.digits(1), ("001111100000001".into(), "000111100000001".into()));
    assert_eq!(world.semaphores, [1, 1, 0]);
}

#[test]
fn a_message_that_never_entered_finishes_nothing() {
    let world = World::running(1);
    let refusal = finish(&world.job, world.row(), world.terms()).unwrap_err();
    assert_eq!(refusal.code(), Code::NotYet);
}

#[test]
fn a_replayed_activation_is_read_from_one_integer() {
    let entered = AttemptRow { ledger: activity("001000000000000"), ..AttemptRow::first(0) };
    assert!(matches!(leg1::enter(&entered), Ok(Entry::Work(_))));
    let done = AttemptRow { ledger: activity("001100000000000"), ..AttemptRow::first(0) };
    assert!(matches!(leg1::enter(&done), Ok(Entry::Replay(_))));
}
