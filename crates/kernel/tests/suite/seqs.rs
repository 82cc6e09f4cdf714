//! Group S: one seq. Left to the runtime: the counters and their cost (S33), seqs outside of what was
//! discovered (S34), and two threads (S35, whose second mover is here). Counts here are counted.

use sprag_kernel::decide::seq::{
    AfterFailure, At, FailRules, Lease, NOBODY, Outcome, Reclaim, Slot,
};
use sprag_kernel::retry::{Budget, ErrorClass, Millis};
use sprag_kernel::{Code, Refusal, SeqState, State};

use SeqState::{
    Committed, Dispatched, InFlight, TerminalCancel, TerminalFail, TerminalSkip, TerminalSuccess,
    Unseen,
};

/// A run of seqs in memory; `events` are the outcomes that the commit lane may see.
struct Batch {
    slots: Vec<Slot>,
    cursor: u64,
    events: Vec<(u64, SeqState)>,
    rules: FailRules,
}

fn at(seq: u64) -> At {
    At { seq, wall_ms: 1_700_000_000_000 }
}

impl Batch {
    fn new(n: usize) -> Self {
        let budget = Budget { max_retries: 2, window_left: None };
        let rules = FailRules { budget, cancelled: false };
        Self { slots: vec![Slot::UNSEEN; n], cursor: 0, events: Vec::new(), rules }
    }

    /// One seq, in flight by owner 1.
    fn in_flight() -> Self {
        let mut batch = Self::new(1);
        batch.begin(0);
        batch
    }

    fn write(&mut self, seq: u64, slot: Slot) {
        let was = self.slots[seq as usize].state;
        let outcome =
            matches!(slot.state, TerminalSuccess | TerminalSkip | TerminalFail | TerminalCancel);
        if outcome && was != slot.state {
            self.events.push((seq, slot.state));
        }
        self.slots[seq as usize] = slot;
    }

    fn slot(&self, seq: u64) -> Slot {
        self.slots[seq as usize]
    }

    fn begin(&mut self, seq: u64) {
        let dispatched = self.slot(seq).dispatch(1, at(seq)).expect("it waits");
        self.write(seq, dispatched.start(dispatched.lease, at(seq)).expect("the owner starts"));
    }

    fn end(&mut self, seq: u64, outcome: Outcome) {
        let slot = self.slot(seq);
        self.write(seq, slot.finish(slot.lease, outcome, at(seq)).expect("the owner finishes"));
    }

    fn fail(&mut self, seq: u64, class: ErrorClass) -> AfterFailure {
        let slot = self.slot(seq);
        let after = slot.fail(slot.lease, class, self.rules, at(seq)).expect("the owner fails");
        let (AfterFailure::Retry(slot) | AfterFailure::Final(slot)) = after;
        self.write(seq, slot);
        after
    }

    fn cancel(&mut self, seq: u64) {
        let slot = self.slot(seq).cancel(99, at(seq)).expect("it has not ended");
        self.write(seq, slot);
    }

    fn reclaim(&self, seq: u64, now: Millis, heartbeat: Millis) -> Reclaim {
        self.slot(seq).reclaim(now, heartbeat, 5, self.rules, at(seq)).expect("never illegal")
    }

    fn commit(&mut self, seq: u64) -> Result<(), Refusal> {
        let slot = self.slot(seq).commit(self.cursor, at(seq))?;
        if slot != self.slot(seq) {
            self.cursor += 1;
        }
        self.write(seq, slot);
        Ok(())
    }

    fn count(&self, state: SeqState) -> usize {
        self.slots.iter().filter(|slot| slot.state == state).count()
    }
}

#[test]
fn s1_a_dispatch_gives_an_unseen_seq_to_its_owner_with_attempts_0() {
    let slot = Slot::UNSEEN.dispatch(1, at(0)).unwrap();
    assert_eq!((slot.state, slot.attempts), (Dispatched, 0));
    assert_eq!(slot.lease, Lease { owner: 1, generation: 1 });
}

#[test]
fn s2_its_owner_starts_a_dispatched_seq() {
    let batch = Batch::in_flight();
    assert_eq!((batch.count(Dispatched), batch.count(InFlight)), (0, 1));
}

#[test]
fn s3_a_success_ends_the_seq_and_clears_the_lease() {
    let mut batch = Batch::in_flight();
    batch.end(0, Outcome::Success);
    assert_eq!(batch.slot(0).state, TerminalSuccess);
    assert_eq!(batch.slot(0).lease.owner, NOBODY);
}

#[test]
fn s4_a_skip_ends_the_seq() {
    let mut batch = Batch::in_flight();
    batch.end(0, Outcome::Skip);
    assert_eq!(batch.events, [(0, TerminalSkip)]);
}

#[test]
fn s5_a_non_retryable_failure_ends_the_seq_with_one_event() {
    let mut batch = Batch::in_flight();
    assert!(matches!(batch.fail(0, ErrorClass::NonRetryableSchema), AfterFailure::Final(_)));
    assert_eq!(batch.events, [(0, TerminalFail)]);
}

#[test]
fn s6_a_dispatched_seq_can_be_cancelled() {
    let mut batch = Batch::new(1);
    batch.slots[0] = Slot::UNSEEN.dispatch(1, at(0)).unwrap();
    batch.cancel(0);
    assert_eq!((batch.count(Dispatched), batch.events.as_slice()), (0, &[(0, TerminalCancel)][..]));
}

#[test]
fn s7_a_seq_in_flight_can_be_cancelled_by_force_and_its_late_result_is_dropped() {
    let mut batch = Batch::in_flight();
    let lease = batch.slot(0).lease;
    batch.cancel(0);
    assert_eq!(batch.slot(0).state, TerminalCancel);
    let late = batch.slot(0).finish(lease, Outcome::Success, at(0)).unwrap_err();
    assert_eq!(late.code(), Code::SeqStaleOwner);
}

#[test]
fn an_unseen_seq_is_cancelled_through_dispatched_with_the_canceller_as_owner() {
    let slot = Slot::UNSEEN.cancel(99, at(0)).unwrap();
    assert_eq!((slot.state, slot.attempts, slot.lease.owner), (TerminalCancel, 0, NOBODY));
    assert!(slot.lease.generation > 0, "it was dispatched, to the canceller");
}

#[test]
fn s8_each_of_the_four_outcomes_commits_at_the_cursor() {
    let mut batch = Batch::new(4);
    (0..3).for_each(|seq| batch.begin(seq));
    batch.end(0, Outcome::Success);
    batch.end(1, Outcome::Skip);
    batch.fail(2, ErrorClass::NonRetryableInput);
    batch.cancel(3);
    for seq in 0..4 {
        batch.commit(seq).unwrap();
        assert_eq!((batch.slot(seq).state, batch.cursor), (Committed, seq + 1));
    }
}

#[test]
fn a_commit_anywhere_else_than_at_the_cursor_is_refused() {
    let mut batch = Batch::new(2);
    batch.begin(1);
    batch.end(1, Outcome::Success);
    assert_eq!(batch.commit(1).unwrap_err().code(), Code::SeqNotCursor);
    assert_eq!(batch.commit(0).unwrap_err().code(), Code::SeqIllegalTransition);
    assert_eq!((batch.cursor, batch.slot(1).state), (0, TerminalSuccess));
}

#[test]
fn s9_a_retryable_failure_with_budget_waits_for_another_dispatch_without_an_event() {
    for class in [ErrorClass::RetryableTransient, ErrorClass::RetryableResource] {
        let mut batch = Batch::in_flight();
        assert!(matches!(batch.fail(0, class), AfterFailure::Retry(_)));
        assert_eq!((batch.slot(0).state, batch.slot(0).attempts), (Dispatched, 1));
        assert!(batch.events.is_empty());
    }
}

#[test]
fn the_budget_is_used_up_after_max_retries() {
    let mut batch = Batch::in_flight();
    for _ in 0..2 {
        assert!(matches!(batch.fail(0, ErrorClass::RetryableTransient), AfterFailure::Retry(_)));
        batch.begin(0);
    }
    assert!(matches!(batch.fail(0, ErrorClass::RetryableTransient), AfterFailure::Final(_)));
    assert_eq!(batch.slot(0).attempts, 2);
}

/// The count stood still at its end, so a larger budget was never used up.
#[test]
fn a_budget_beyond_what_the_count_can_hold_ends_with_the_count() {
    let mut batch = Batch::in_flight();
    batch.rules.budget.max_retries = u32::MAX;
    batch.slots[0].attempts = u16::MAX - 1;
    assert!(matches!(batch.fail(0, ErrorClass::RetryableTransient), AfterFailure::Retry(_)));
    batch.begin(0);
    assert!(matches!(batch.fail(0, ErrorClass::RetryableTransient), AfterFailure::Final(_)));
    assert_eq!(batch.slot(0).attempts, u16::MAX);
}

#[test]
fn s12_a_non_retryable_class_ends_the_seq_at_once() {
    for class in ErrorClass::ALL {
        let mut batch = Batch::in_flight();
        let is_final = matches!(batch.fail(0, class), AfterFailure::Final(_));
        assert_eq!(is_final, class.name().starts_with("NON_RETRYABLE"), "{}", class.name());
        assert_eq!(batch.slot(0).attempts, u16::from(!is_final));
    }
}

#[test]
fn s14_an_outcome_cannot_be_dispatched_again() {
    for state in [TerminalSuccess, TerminalSkip, TerminalCancel, TerminalFail, Committed] {
        let slot = Slot { state, ..Slot::UNSEEN };
        let refusal = slot.dispatch(1, at(0)).unwrap_err();
        assert_eq!(refusal.code(), Code::SeqIllegalTransition, "{state}");
    }
}

#[test]
fn s17_an_illegal_move_names_seq_both_states_who_made_it_and_the_time() {
    let mut batch = Batch::in_flight();
    let lease = batch.slot(0).lease;
    batch.end(0, Outcome::Success);
    let again = batch.slot(0).finish(lease, Outcome::Skip, at(42)).unwrap_err();
    let engine = batch.slot(0).dispatch(7, at(42)).unwrap_err();
    for (refusal, attempted, owner) in [(again, "TERMINAL_SKIP", "1"), (engine, "DISPATCHED", "7")]
    {
        let field = |name: &str| refusal.field(name).map(ToString::to_string).unwrap_or_default();
        assert_eq!(refusal.code(), Code::SeqIllegalTransition);
        assert_eq!((field("seq"), field("wall_ms")), ("42".into(), "1700000000000".into()));
        assert_eq!((field("from"), field("to")), ("TERMINAL_SUCCESS".into(), attempted.into()));
        assert_eq!(field("owner"), owner);
    }
}

#[test]
fn s18_committing_again_is_a_no_op_wherever_the_cursor_is() {
    let mut batch = Batch::in_flight();
    batch.end(0, Outcome::Success);
    batch.commit(0).unwrap();
    batch.commit(0).unwrap();
    assert_eq!((batch.cursor, batch.count(Committed)), (1, 1));
}

#[test]
fn s21_a_second_outcome_of_the_same_owner_and_generation_is_fatal() {
    let mut batch = Batch::in_flight();
    let lease = batch.slot(0).lease;
    batch.end(0, Outcome::Success);
    for _ in 0..2 {
        let again = batch.slot(0).finish(lease, Outcome::Success, at(0)).unwrap_err();
        assert_eq!(again.code(), Code::SeqIllegalTransition);
        batch.commit(0).unwrap();
    }
}

#[test]
fn s22_a_start_by_someone_else_is_rejected_and_changes_nothing() {
    let slot = Slot::UNSEEN.dispatch(1, at(0)).unwrap();
    for lease in [Lease { owner: 9, ..slot.lease }, Lease { generation: 0, ..slot.lease }] {
        let refusal = slot.start(lease, at(0)).unwrap_err();
        assert_eq!(refusal.code(), Code::SeqStaleOwner);
        assert_eq!(refusal.code().class().name(), "conflict", "never fatal");
    }
}

/// A slot without an owner took any owner that named its generation: a free seq could be started
/// without a dispatch, and a start of an unseen one was fatal to the batch.
#[test]
fn what_nobody_holds_can_be_started_or_ended_by_nobody_and_that_is_never_fatal() {
    let free = |held: Slot| match held.reclaim(5, 0, 5, Batch::new(1).rules, at(0)).unwrap() {
        Reclaim::Freed(slot) => slot,
        other => panic!("{other:?}"),
    };
    let waiting = free(Slot::UNSEEN.dispatch(1, at(0)).unwrap());
    for slot in [Slot::UNSEEN, waiting] {
        for owner in [NOBODY, 1, 9] {
            let forged = Lease { owner, ..slot.lease };
            let rules = Batch::new(1).rules;
            let answers = [
                slot.start(forged, at(0)).unwrap_err(),
                slot.finish(forged, Outcome::Success, at(0)).unwrap_err(),
                slot.fail(forged, ErrorClass::LeaseExpired, rules, at(0)).unwrap_err(),
            ];
            assert!(answers.iter().all(|refusal| refusal.code() == Code::SeqStaleOwner));
        }
    }
}

#[test]
fn s23_a_heartbeat_counts_for_the_owner_only() {
    let slot = Batch::in_flight().slot(0);
    assert!(slot.beats(slot.lease));
    assert!(!slot.beats(Lease { owner: 2, ..slot.lease }));
    assert!(!slot.beats(Lease { generation: 9, ..slot.lease }));
}

#[test]
fn s24_a_heartbeat_outside_of_flight_does_not_count() {
    let dispatched = Slot::UNSEEN.dispatch(1, at(0)).unwrap();
    assert!(!dispatched.beats(dispatched.lease));
    let mut batch = Batch::in_flight();
    let lease = batch.slot(0).lease;
    batch.end(0, Outcome::Success);
    assert!(!batch.slot(0).beats(lease));
}

#[test]
fn s25_a_lease_is_reclaimed_at_its_timeout_and_not_a_moment_before() {
    let batch = Batch::in_flight();
    assert_eq!(batch.reclaim(0, 2004, 2000), Reclaim::Keep);
    assert!(matches!(batch.reclaim(0, 2005, 2000), Reclaim::Failed(AfterFailure::Retry(_))));
    assert_eq!(batch.reclaim(0, 1000, 2000), Reclaim::Keep, "a clock behind the heartbeat");
    assert_eq!(batch.reclaim(0, 2005, 2000), batch.reclaim(0, 2005, 2000));
}

#[test]
fn a_reclaimed_dispatch_is_free_again_and_counts_no_retry() {
    let mut batch = Batch::new(1);
    let held = Slot::UNSEEN.dispatch(1, at(0)).unwrap();
    batch.slots[0] = held;
    let Reclaim::Freed(free) = batch.reclaim(0, 5, 0) else { panic!("it has expired") };
    assert_eq!((free.state, free.attempts, free.lease.owner), (Dispatched, 0, NOBODY));
    assert_eq!(free.lease.generation, held.lease.generation + 1, "a stranger from now on");
    assert_eq!(free.start(held.lease, at(0)).unwrap_err().code(), Code::SeqStaleOwner);
    batch.slots[0] = free;
    assert_eq!(batch.reclaim(0, 5000, 0), Reclaim::Keep, "nobody holds it");
    let other = free.dispatch(2, at(0)).unwrap();
    assert_eq!(other.start(other.lease, at(0)).unwrap().state, InFlight);
}

#[test]
fn what_is_not_dispatched_or_in_flight_is_never_reclaimed() {
    for state in [Unseen, TerminalSuccess, TerminalSkip, TerminalFail, TerminalCancel, Committed] {
        let batch = Batch { slots: vec![Slot { state, ..Slot::UNSEEN }], ..Batch::new(1) };
        assert_eq!(batch.reclaim(0, 1_000_000, 0), Reclaim::Keep, "{state}");
    }
}

#[test]
fn s27_an_expired_lease_without_budget_is_a_final_failure() {
    let mut batch = Batch::in_flight();
    batch.rules.budget.max_retries = 0;
    match batch.reclaim(0, 2005, 2000) {
        Reclaim::Failed(AfterFailure::Final(slot)) => assert_eq!(slot.state, TerminalFail),
        other => panic!("{other:?}"),
    }
}

#[test]
fn s30_after_the_cancel_latch_nothing_is_retried() {
    let mut batch = Batch::in_flight();
    batch.rules.cancelled = true;
    assert!(matches!(batch.fail(0, ErrorClass::RetryableTransient), AfterFailure::Final(_)));
    let mut expired = Batch::in_flight();
    expired.rules.cancelled = true;
    assert!(matches!(expired.reclaim(0, 9, 0), Reclaim::Failed(AfterFailure::Final(_))));
}

#[test]
fn s35_the_second_of_two_starts_under_one_lease_is_illegal() {
    let dispatched = Slot::UNSEEN.dispatch(1, at(0)).unwrap();
    let started = dispatched.start(dispatched.lease, at(0)).unwrap();
    let second = started.start(dispatched.lease, at(0)).unwrap_err();
    assert_eq!(second.code(), Code::SeqIllegalTransition);
}

#[test]
fn s36_s37_a_retried_seq_commits_once_with_the_outcome_of_its_last_attempt() {
    let mut batch = Batch::in_flight();
    let first = batch.slot(0).lease;
    batch.fail(0, ErrorClass::RetryableTransient);
    batch.begin(0);
    let late = batch.slot(0).finish(first, Outcome::Skip, at(0)).unwrap_err();
    assert_eq!(late.code(), Code::SeqStaleOwner, "an older generation is dropped");
    batch.end(0, Outcome::Success);
    batch.commit(0).unwrap();
    assert_eq!((batch.count(Committed), batch.cursor), (1, 1));
    assert_eq!(batch.events, [(0, TerminalSuccess)], "one event");
}

#[test]
fn s39_four_mixed_outcomes_complete_with_one_event_each() {
    let mut batch = Batch::new(4);
    (0..3).for_each(|seq| batch.begin(seq));
    batch.fail(2, ErrorClass::NonRetryableCorruption);
    batch.cancel(3);
    batch.end(1, Outcome::Skip);
    batch.end(0, Outcome::Success);
    (0..4).for_each(|seq| batch.commit(seq).unwrap());
    assert_eq!((batch.events.len(), batch.count(Committed), batch.cursor), (4, 4, 4));
    assert!(batch.slots.iter().all(|slot| slot.state.is_terminal()));
    assert_eq!(batch.events.iter().filter(|(_, state)| *state == TerminalSuccess).count(), 1);
}

#[test]
fn s40_a_window_budget_that_is_used_up_ends_the_next_failure() {
    let mut batch = Batch::new(3);
    (0..3).for_each(|seq| batch.begin(seq));
    batch.rules.budget.window_left = Some(1);
    assert!(matches!(batch.fail(0, ErrorClass::RetryableTransient), AfterFailure::Retry(_)));
    batch.rules.budget.window_left = Some(0);
    assert!(matches!(batch.fail(1, ErrorClass::RetryableTransient), AfterFailure::Final(_)));
    batch.rules.budget.window_left = None;
    assert!(matches!(batch.fail(2, ErrorClass::RetryableTransient), AfterFailure::Retry(_)));
}
