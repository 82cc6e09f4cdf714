//! The seq ledger, case by case (S1 to S40).

use std::sync::{Arc, Barrier};

use sprag_kernel::decide::seq::{Lease, Slot};
use sprag_kernel::error::{Class, Code, Refusal};
use sprag_kernel::{SeqState, State};
use sprag_lanes::{Attempt, ErrorClass, LedgerCounts, SeqLedger, TerminalEvent};

const TRANSIENT: ErrorClass = ErrorClass::RetryableTransient;
const INPUT: ErrorClass = ErrorClass::NonRetryableInput;

fn state(ledger: &SeqLedger, seq: u64) -> SeqState {
    ledger.slot(seq).unwrap().state
}

fn in_flight(ledger: &SeqLedger, seq: u64) -> Lease {
    let lease = ledger.dispatch(seq, 1, 0).unwrap();
    ledger.start(seq, lease, 0).unwrap();
    lease
}

/// Brings a fresh seq to a state; returns the last lease it was under.
fn bring(ledger: &SeqLedger, seq: u64, to: SeqState) -> Option<Lease> {
    match to {
        SeqState::Unseen => return None,
        SeqState::Dispatched => return Some(ledger.dispatch(seq, 1, 0).unwrap()),
        SeqState::InFlight => return Some(in_flight(ledger, seq)),
        SeqState::TerminalSuccess | SeqState::Committed => {
            let lease = in_flight(ledger, seq);
            ledger.succeed(seq, lease).unwrap();
            if to == SeqState::Committed {
                ledger.commit(seq).unwrap();
            }
            return Some(lease);
        }
        SeqState::TerminalSkip => {
            let lease = in_flight(ledger, seq);
            ledger.skip(seq, lease).unwrap();
            return Some(lease);
        }
        SeqState::TerminalFail => {
            let lease = in_flight(ledger, seq);
            ledger.fail(seq, lease, INPUT).unwrap();
            return Some(lease);
        }
        SeqState::TerminalCancel => {}
    }
    ledger.cancel(seq).unwrap();
    None
}

fn counts(dispatched: u64, in_flight: u64, terminal: u64, committed: u64) -> LedgerCounts {
    LedgerCounts { dispatched, in_flight, terminal, committed }
}

fn assert_fatal(refusal: &Refusal) {
    assert_eq!(refusal.code(), Code::SeqIllegalTransition);
    assert_eq!(refusal.code().class(), Class::Corrupt);
}

#[test]
fn s1_an_unseen_seq_is_dispatched() {
    let ledger = SeqLedger::new(1, 0);
    ledger.dispatch(0, 1, 0).unwrap();
    assert_eq!(state(&ledger, 0), SeqState::Dispatched);
    assert_eq!(ledger.slot(0).unwrap().attempts, 0);
    assert_eq!(ledger.counts(), counts(1, 0, 0, 0));
}

#[test]
fn s2_its_owner_starts_it() {
    let ledger = SeqLedger::new(1, 0);
    in_flight(&ledger, 0);
    assert_eq!(state(&ledger, 0), SeqState::InFlight);
    assert_eq!(ledger.counts(), counts(0, 1, 0, 0));
}

#[test]
fn s3_a_success_is_terminal_and_clears_the_lease() {
    let ledger = SeqLedger::new(1, 0);
    let lease = in_flight(&ledger, 0);
    let event = ledger.succeed(0, lease).unwrap();
    assert_eq!(event.state, SeqState::TerminalSuccess);
    assert_eq!(ledger.slot(0).unwrap().lease.owner, 0);
    assert_eq!(ledger.counts(), counts(0, 0, 1, 0));
}

#[test]
fn s4_a_skip_is_terminal() {
    let ledger = SeqLedger::new(1, 0);
    let lease = in_flight(&ledger, 0);
    ledger.skip(0, lease).unwrap();
    assert_eq!(state(&ledger, 0), SeqState::TerminalSkip);
    assert_eq!(ledger.counts(), counts(0, 0, 1, 0));
}

#[test]
fn s5_a_failure_that_may_not_be_retried_is_terminal_with_one_event() {
    let ledger = SeqLedger::new(1, 5);
    let lease = in_flight(&ledger, 0);
    let event = TerminalEvent { seq: 0, state: SeqState::TerminalFail, reason: Some(INPUT) };
    assert_eq!(ledger.fail(0, lease, INPUT).unwrap(), Attempt::Final(event));
    assert_eq!(ledger.counts(), counts(0, 0, 1, 0));
}

#[test]
fn s6_a_dispatched_seq_is_cancelled() {
    let ledger = SeqLedger::new(1, 0);
    bring(&ledger, 0, SeqState::Dispatched);
    ledger.cancel(0).unwrap();
    assert_eq!(state(&ledger, 0), SeqState::TerminalCancel);
    assert_eq!(ledger.counts(), counts(0, 0, 1, 0));
}

#[test]
fn s7_a_running_seq_is_cancelled_by_force_and_its_late_result_dropped() {
    let ledger = SeqLedger::new(1, 0);
    let lease = in_flight(&ledger, 0);
    ledger.cancel(0).unwrap();
    assert_eq!(state(&ledger, 0), SeqState::TerminalCancel);
    assert_eq!(ledger.counts(), counts(0, 0, 1, 0));
    let late = ledger.succeed(0, lease).unwrap_err();
    assert_eq!((late.code(), late.code().class()), (Code::SeqStaleOwner, Class::Conflict));
    assert_eq!(state(&ledger, 0), SeqState::TerminalCancel);
}

#[test]
fn s8_every_terminal_state_commits_at_the_cursor() {
    let ledger = SeqLedger::new(4, 0);
    let terminal = [
        SeqState::TerminalSuccess,
        SeqState::TerminalSkip,
        SeqState::TerminalFail,
        SeqState::TerminalCancel,
    ];
    for (seq, to) in (0..).zip(terminal) {
        bring(&ledger, seq, to);
    }
    for seq in 0..4 {
        ledger.commit(seq).unwrap();
        assert_eq!(state(&ledger, seq), SeqState::Committed);
        assert_eq!(ledger.cursor(), seq + 1);
        assert_eq!(ledger.counts(), counts(0, 0, 4, seq + 1));
    }
}

#[test]
fn s9_a_retryable_failure_with_budget_waits_for_another_dispatch_without_an_event() {
    let ledger = SeqLedger::new(1, 2);
    let lease = in_flight(&ledger, 0);
    assert_eq!(ledger.fail(0, lease, TRANSIENT).unwrap(), Attempt::Retry(1));
    assert_eq!(state(&ledger, 0), SeqState::Dispatched);
    assert_eq!(ledger.counts(), counts(1, 0, 0, 0));
}

#[test]
fn s12_a_class_that_may_not_be_retried_ends_at_once() {
    let ledger = SeqLedger::new(1, 2);
    let lease = in_flight(&ledger, 0);
    assert!(matches!(ledger.fail(0, lease, INPUT).unwrap(), Attempt::Final(_)));
    assert_eq!(ledger.slot(0).unwrap().attempts, 0);
}

#[test]
fn s14_a_terminal_seq_is_not_dispatched_again() {
    for to in [SeqState::TerminalSuccess, SeqState::TerminalSkip, SeqState::TerminalCancel] {
        let ledger = SeqLedger::new(1, 2);
        bring(&ledger, 0, to);
        assert_fatal(&ledger.dispatch(0, 1, 0).unwrap_err());
        assert_eq!(state(&ledger, 0), to);
    }
}

/// The move that would lead from a state to itself, tried by whoever holds the seq.
fn again(ledger: &SeqLedger, to: SeqState, lease: Option<Lease>) -> Result<(), Refusal> {
    let lease = lease.unwrap_or(Lease { owner: 1, generation: 0 });
    match to {
        SeqState::InFlight => ledger.start(0, lease, 0),
        SeqState::Dispatched => ledger.dispatch(0, 1, 0).map(|_| ()),
        SeqState::TerminalSuccess => ledger.succeed(0, lease).map(|_| ()),
        SeqState::TerminalSkip => ledger.skip(0, lease).map(|_| ()),
        SeqState::TerminalFail => ledger.fail(0, lease, INPUT).map(|_| ()),
        SeqState::TerminalCancel => ledger.cancel(0).map(|_| ()),
        // Nothing leads to UNSEEN; the nearest is a commit of what was never dispatched. A start of it
        // would come from outside, without a lease, and be turned away.
        SeqState::Unseen | SeqState::Committed => ledger.commit(0),
    }
}

#[test]
fn s16_of_the_eight_self_pairs_only_committed_is_a_no_op() {
    for state in SeqState::machine().states {
        let ledger = SeqLedger::new(1, 0);
        let lease = bring(&ledger, 0, *state);
        let before = (ledger.slot(0).unwrap(), ledger.counts(), ledger.cursor());
        let answer = again(&ledger, *state, lease);
        if *state == SeqState::Committed {
            answer.unwrap();
        } else {
            assert_fatal(&answer.unwrap_err());
        }
        assert_eq!((ledger.slot(0).unwrap(), ledger.counts(), ledger.cursor()), before);
    }
}

#[test]
fn s17_an_illegal_move_says_which_seq_from_where_to_where_whose_and_when() {
    let ledger = SeqLedger::new(8, 0);
    let lease = in_flight(&ledger, 7);
    let refusal = ledger.start(7, lease, 0).unwrap_err();
    let text = |name| refusal.field(name).unwrap().to_string();
    assert_eq!(text("seq"), "7");
    assert_eq!(text("from"), "IN_FLIGHT");
    assert_eq!(text("to"), "IN_FLIGHT");
    assert_eq!(text("owner"), "1");
    assert!(text("wall_ms").parse::<u64>().unwrap() > 1_600_000_000_000);
}

#[test]
fn s18_a_committed_seq_committed_again_changes_nothing() {
    let ledger = SeqLedger::new(2, 0);
    bring(&ledger, 0, SeqState::Committed);
    ledger.commit(0).unwrap();
    assert_eq!((ledger.cursor(), ledger.counts().committed), (1, 1));
}

#[test]
fn s21_a_second_success_of_the_same_lease_is_fatal() {
    let ledger = SeqLedger::new(1, 0);
    let lease = bring(&ledger, 0, SeqState::TerminalSuccess).unwrap();
    assert_fatal(&ledger.succeed(0, lease).unwrap_err());
}

#[test]
fn s22_a_stranger_cannot_start_a_seq() {
    let ledger = SeqLedger::new(1, 0);
    let lease = bring(&ledger, 0, SeqState::Dispatched).unwrap();
    let refusal = ledger.start(0, Lease { owner: 9, ..lease }, 0).unwrap_err();
    assert_eq!(refusal.code(), Code::SeqStaleOwner);
    let slot = ledger.slot(0).unwrap();
    assert_eq!((slot.state, slot.lease), (SeqState::Dispatched, lease));
}

#[test]
fn s23_only_the_owner_of_a_running_seq_beats() {
    let ledger = SeqLedger::new(1, 0);
    let lease = in_flight(&ledger, 0);
    assert!(ledger.heartbeat(0, lease, 70).unwrap());
    assert_eq!(ledger.heartbeat_of(0).unwrap(), 70);
    assert!(!ledger.heartbeat(0, Lease { owner: 2, ..lease }, 90).unwrap());
    assert_eq!(ledger.heartbeat_of(0).unwrap(), 70);
}

#[test]
fn s24_a_seq_that_does_not_run_has_no_heartbeat() {
    for to in [SeqState::Dispatched, SeqState::TerminalSuccess, SeqState::TerminalFail] {
        let ledger = SeqLedger::new(1, 0);
        let lease = bring(&ledger, 0, to).unwrap();
        assert!(!ledger.heartbeat(0, lease, 70).unwrap());
        assert_eq!(ledger.heartbeat_of(0).unwrap(), 0);
    }
}

#[test]
fn s25_a_lease_expires_when_its_time_has_passed_and_not_before() {
    let ledger = SeqLedger::new(1, 1);
    let lease = in_flight(&ledger, 0);
    ledger.heartbeat(0, lease, 2_000).unwrap();
    assert_eq!(ledger.reclaim(2_004, 5).unwrap(), []);
    assert_eq!(ledger.reclaim(2_005, 5).unwrap(), [(0, Attempt::Retry(1))]);
}

#[test]
fn an_expired_dispatch_that_never_started_is_freed_without_a_retry() {
    let ledger = SeqLedger::new(2, 0);
    let old = ledger.dispatch(0, 1, 100).unwrap();
    in_flight(&ledger, 1);
    let taken = ledger.reclaim(110, 10).unwrap();
    assert!(matches!(taken[..], [(0, Attempt::Freed), (1, Attempt::Final(_))]), "ascending");
    let slot = ledger.slot(0).unwrap();
    assert_eq!((slot.state, slot.attempts, slot.lease.owner), (SeqState::Dispatched, 0, 0));
    assert_eq!(ledger.start(0, old, 111).unwrap_err().code(), Code::SeqStaleOwner);
    let new = ledger.dispatch(0, 2, 111).unwrap();
    ledger.start(0, new, 111).unwrap();
    assert_eq!(ledger.counts(), counts(0, 1, 1, 0));
}

#[test]
fn s27_a_lost_lease_without_budget_is_a_final_failure_and_its_late_result_is_dropped() {
    let ledger = SeqLedger::new(1, 0);
    let lease = in_flight(&ledger, 0);
    let reason = Some(ErrorClass::LeaseExpired);
    let event = TerminalEvent { seq: 0, state: SeqState::TerminalFail, reason };
    assert_eq!(ledger.reclaim(9, 9).unwrap(), [(0, Attempt::Final(event))]);
    assert_eq!(ledger.reason(0), reason);
    assert_eq!(ledger.reclaim(99, 9).unwrap(), [], "one event only");
    assert_eq!(ledger.succeed(0, lease).unwrap_err().code(), Code::SeqStaleOwner);
}

#[test]
fn s30_nothing_is_retried_after_the_cancel_latch() {
    let ledger = SeqLedger::new(1, 5);
    let lease = in_flight(&ledger, 0);
    ledger.latch_cancel();
    assert!(matches!(ledger.fail(0, lease, TRANSIENT).unwrap(), Attempt::Final(_)));
    assert_eq!(state(&ledger, 0), SeqState::TerminalFail);
}

#[test]
fn s33_a_transition_touches_one_slot_of_a_million() {
    let ledger = SeqLedger::new(1_000_000, 0);
    let slots = || (0..1_000_000).map(|seq| ledger.slot(seq).unwrap()).collect::<Vec<Slot>>();
    let before = slots();
    ledger.dispatch(777_777, 1, 5).unwrap();
    let after = slots();
    let touched = before.iter().zip(&after).filter(|(before, after)| before != after).count();
    assert_eq!(touched, 1);
}

#[test]
fn s34_a_seq_outside_of_the_ledger_is_unknown_to_every_operation() {
    let ledger = SeqLedger::new(3, 0);
    let lease = Lease { owner: 1, generation: 1 };
    let answers = [
        ledger.dispatch(3, 1, 0).map(|_| ()),
        ledger.start(3, lease, 0),
        ledger.succeed(3, lease).map(|_| ()),
        ledger.skip(3, lease).map(|_| ()),
        ledger.fail(3, lease, INPUT).map(|_| ()),
        ledger.cancel(3).map(|_| ()),
        ledger.commit(3),
        ledger.heartbeat(3, lease, 0).map(|_| ()),
        ledger.slot(u64::MAX).map(|_| ()),
    ];
    for answer in answers {
        let refusal = answer.unwrap_err();
        assert_eq!((refusal.code(), refusal.code().class()), (Code::SeqUnknown, Class::Corrupt));
    }
}

#[test]
fn s35_of_two_threads_with_the_same_lease_one_starts_the_seq() {
    for _ in 0..200 {
        let ledger = Arc::new(SeqLedger::new(1, 0));
        let lease = ledger.dispatch(0, 1, 0).unwrap();
        let line = Arc::new(Barrier::new(2));
        let start = || {
            let (ledger, line) = (Arc::clone(&ledger), Arc::clone(&line));
            std::thread::spawn(move || {
                line.wait();
                ledger.start(0, lease, 0)
            })
        };
        let answers = [start(), start()].map(|thread| thread.join().unwrap());
        let refused: Vec<_> = answers.into_iter().filter_map(Result::err).collect();
        assert_eq!(refused.len(), 1);
        assert_fatal(&refused[0]);
        assert_eq!(ledger.counts(), counts(0, 1, 0, 0));
    }
}

#[test]
fn s36_a_retried_seq_is_committed_once_under_its_own_number() {
    let ledger = SeqLedger::new(1, 1);
    let lease = in_flight(&ledger, 0);
    ledger.fail(0, lease, TRANSIENT).unwrap();
    let lease = in_flight(&ledger, 0);
    ledger.succeed(0, lease).unwrap();
    ledger.commit(0).unwrap();
    assert_eq!((ledger.cursor(), ledger.counts()), (1, counts(0, 0, 1, 1)));
    assert_eq!(ledger.slot(0).unwrap().attempts, 1);
}

#[test]
fn s37_the_final_reason_is_that_of_the_last_attempt() {
    let ledger = SeqLedger::new(2, 1);
    for seq in 0..2 {
        let lease = in_flight(&ledger, seq);
        ledger.fail(seq, lease, TRANSIENT).unwrap();
        assert_eq!(ledger.reason(seq), Some(TRANSIENT));
    }
    let lease = in_flight(&ledger, 0);
    assert_eq!(ledger.succeed(0, lease).unwrap().reason, None);
    assert_eq!(ledger.reason(0), None);
    let lease = in_flight(&ledger, 1);
    ledger.fail(1, lease, INPUT).unwrap();
    assert_eq!(ledger.reason(1), Some(INPUT));
}

#[test]
fn s40_the_last_retry_of_a_window_is_used_once() {
    let ledger = SeqLedger::new(4, 5);
    ledger.limit_window(0, 2, 1);
    let leases: Vec<_> = (0..4).map(|seq| in_flight(&ledger, seq)).collect();
    assert_eq!(ledger.fail(0, leases[0], TRANSIENT).unwrap(), Attempt::Retry(1));
    assert!(matches!(ledger.fail(1, leases[1], TRANSIENT).unwrap(), Attempt::Final(_)));
    let outside = ledger.fail(3, leases[3], TRANSIENT).unwrap();
    assert_eq!(outside, Attempt::Retry(1), "seq 3 is in no limited window");
}

#[test]
fn commit_names_the_cursor_or_is_refused() {
    let ledger = SeqLedger::new(2, 0);
    bring(&ledger, 1, SeqState::TerminalSuccess);
    assert_eq!(ledger.commit(1).unwrap_err().code(), Code::SeqNotCursor);
    assert_eq!(state(&ledger, 1), SeqState::TerminalSuccess);
}
