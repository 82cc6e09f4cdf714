//! Cancel (R42 to R45) and stop, which is not cancel.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use sprag_lanes::{
    Config, Context, Control, Drain, Ending, ErrorClass, Items, Lanes, Outcome, Summary, TestClock,
    Verdict,
};

use crate::stage::{Gate, Written, config, until};

/// Five items; the second one asks for a cancel.
fn cancelled_at_one(written: &Written) -> Summary {
    let control = Control::new();
    let asker = control.clone();
    let compute = move |number: &u64, context: &Context| {
        if context.seq() == 1 {
            asker.cancel();
            assert!(context.should_end());
            return Outcome::Fail(ErrorClass::NonRetryableCancellation, "gave up".into());
        }
        Outcome::Success(*number)
    };
    let run = Lanes::new(config(1, 100)).control(&control);
    run.run(Items::of(0..5_u64), compute, written.sink()).unwrap().summary
}

#[test]
fn r42_a_cancelled_run_gives_every_seq_an_outcome_and_writes_only_what_was_done() {
    // A forced cancel: 1 never hears of it, so the grace ends first, by a clock that the test owns.
    let (gate, control, clock) = (Gate::closed_for([1]), Control::new(), TestClock::new());
    let (door, watch, time, written) =
        (gate.clone(), control.clone(), clock.clone(), Written::default());
    let sink = written.sink();
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            door.pass(context.seq());
            Outcome::Success(*number)
        };
        let run = Lanes::new(config(1, 100)).control(&watch).clock(time);
        run.run(Items::of(0..5_u64), compute, sink)
    });
    until("1 is held", || gate.holds(1));
    control.cancel();
    until("2 to 4 are cancelled", || control.observe().unwrap().ledger.terminal == 4);
    clock.advance_ms(Config::default().grace_ms);
    let summary = run.join().unwrap().unwrap().summary;
    gate.open(1);
    assert_eq!(summary.ending, Ending::Cancelled);
    assert_eq!((summary.total, summary.counts.success, summary.counts.cancel), (5, 1, 4));
    let pages = written.pages();
    assert_eq!(pages.writes, [(0, 0)]);
    assert_eq!(pages.outcomes, ["success", "cancel", "cancel", "cancel", "cancel"]);
}

#[test]
fn r44_nothing_is_dispatched_after_the_latch() {
    let computed = Arc::new(AtomicU64::new(0));
    let (count, control) = (Arc::clone(&computed), Control::new());
    let asker = control.clone();
    let compute = move |number: &u64, context: &Context| {
        count.fetch_add(1, Ordering::SeqCst);
        if context.seq() == 3 {
            asker.cancel();
            assert!(context.should_end());
        }
        Outcome::Success(*number)
    };
    let written = Written::default();
    let run = Lanes::new(config(1, 4)).control(&control);
    let summary = run.run(Items::of(0..1_000_u64), compute, written.sink()).unwrap().summary;
    // The item that asked may finish in the grace; nobody begins another. At the end the run itself
    // checks that no seq is dispatched or in flight, so no lease is left.
    assert_eq!(computed.load(Ordering::SeqCst), 4);
    assert_eq!((summary.counts.success, summary.counts.cancel), (4, 996));
}

#[test]
fn r45_the_same_point_of_cancellation_gives_the_same_summary() {
    let first = cancelled_at_one(&Written::default());
    for _ in 0..20 {
        let written = Written::default();
        assert_eq!(cancelled_at_one(&written), first);
        assert_eq!(written.pages().outcomes[..2], ["success", "cancel"]);
    }
    assert_eq!((first.counts.success, first.counts.fail, first.counts.cancel), (1, 0, 4));
}

#[test]
fn a_cancelled_run_of_unknown_length_ends_where_it_was_read() {
    for source in [Items::stream(0..), Items::stream(0..).at_hand()] {
        let control = Control::new();
        let asker = control.clone();
        let compute = move |number: &u64, context: &Context| {
            if context.seq() == 9 {
                asker.cancel();
                assert!(context.should_end());
            }
            Outcome::Success(*number)
        };
        let run = Lanes::new(config(1, 4)).control(&control);
        let summary = run.run(source, compute, Written::default().sink()).unwrap().summary;
        assert_eq!((summary.ending, summary.total), (Ending::Cancelled, 10));
    }
}

#[test]
fn a_retry_that_waits_is_cancelled_too() {
    let (control, clock) = (Control::new(), TestClock::new());
    let watch = control.clone();
    let written = Written::default();
    let sink = written.sink();
    let time = clock.clone();
    let run = thread::spawn(move || {
        let compute = |_: &u64, context: &Context| match context.seq() {
            1 => Outcome::Fail(ErrorClass::RetryableTransient, "again".into()),
            seq => Outcome::Success(seq),
        };
        let run = Lanes::new(config(2, 100)).control(&watch).clock(time);
        run.run(Items::of(0..4_u64), compute, sink)
    });
    until("1 waits for its retry", || {
        control.observe().is_some_and(|seen| seen.waiting_retries == 1 && seen.ledger.terminal == 3)
    });
    control.cancel();
    let summary = run.join().unwrap().unwrap().summary;
    assert_eq!((summary.counts.success, summary.counts.cancel), (3, 1));
    assert_eq!(written.pages().attempts, [0, 1, 0, 0]);
}

#[test]
fn a_stopped_run_commits_its_prefix_and_the_resumed_one_ends_like_an_undisturbed_one() {
    let compute = |number: &u64, _: &Context| Outcome::Success(number * 7);
    let whole = Lanes::new(config(2, 16))
        .run(Items::of(0..500_u64), compute, Written::default().sink())
        .unwrap()
        .summary;
    let control = Control::new();
    let (asker, written) = (control.clone(), Written::default());
    let stopping = move |number: &u64, context: &Context| {
        if context.seq() == 100 {
            asker.stop();
        }
        compute(number, context)
    };
    let run = Lanes::new(config(2, 16)).control(&control);
    let stopped = run.run(Items::of(0..500_u64), stopping, written.sink()).unwrap().summary;
    assert_eq!(stopped.ending, Ending::Stopped);
    assert!(stopped.total < 500 && stopped.counts.cancel == 0);
    let run = Lanes::new(config(2, 16)).resume(stopped.resume());
    let resumed = run.run(Items::of(0..500_u64), compute, written.sink()).unwrap().summary;
    assert_eq!(resumed, whole);
    let expected: Vec<_> = (0..500).map(|seq| (seq, seq * 7)).collect();
    assert_eq!(written.pages().writes, expected);
}

#[test]
fn a_worker_that_never_returns_does_not_outlive_the_grace_of_a_stop() {
    let (gate, control, clock) = (Gate::closed_for([3]), Control::new(), TestClock::new());
    let (door, watch, time) = (gate.clone(), control.clone(), clock.clone());
    let written = Written::default();
    let sink = written.sink();
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            door.pass(context.seq());
            Outcome::Success(*number)
        };
        let run = Lanes::new(config(1, 100)).control(&watch).clock(time);
        run.run(Items::of(0..10_u64), compute, sink)
    });
    until("3 is held", || gate.holds(3));
    control.stop();
    until("the stop is heard", || {
        control.observe().is_none() || {
            clock.advance_ms(Config::default().grace_ms);
            run.is_finished()
        }
    });
    let summary = run.join().unwrap().unwrap().summary;
    assert_eq!((summary.ending, summary.total), (Ending::Stopped, 3));
    gate.open(3);
    assert_eq!(written.pages().writes.len(), 3);
}

/// Four items on two threads. 1 is done, 2 gives up as soon as it hears of the order to end, 0 waits at the gate.
fn gives_up_under(order: fn(&Control), gate: &Gate, written: &Written) -> Summary {
    let control = Control::new();
    let (asker, door) = (control.clone(), gate.clone());
    let compute = move |number: &u64, context: &Context| {
        match context.seq() {
            0 => door.pass(0),
            2 => {
                order(&asker);
                assert!(context.should_end());
                door.open(0);
                return Outcome::Fail(ErrorClass::NonRetryableCancellation, "gave up".into());
            }
            _ => {}
        }
        Outcome::Success(*number)
    };
    let run = Lanes::new(config(2, 100)).control(&control);
    run.run(Items::of(0..4_u64), compute, written.sink()).unwrap().summary
}

#[test]
fn what_gives_up_in_a_stop_has_no_outcome_and_what_stands_before_it_is_committed() {
    let written = Written::default();
    let stopped = gives_up_under(Control::stop, &Gate::closed_for([0]), &written);
    assert_eq!((stopped.ending, stopped.total), (Ending::Stopped, 2));
    let compute = |number: &u64, _: &Context| Outcome::Success(*number);
    let run = Lanes::new(config(2, 100)).resume(stopped.resume());
    let resumed = run.run(Items::of(0..4_u64), compute, written.sink()).unwrap().summary;
    assert_eq!(resumed.counts.success, 4);
    assert_eq!(written.pages().writes, [(0, 0), (1, 1), (2, 2), (3, 3)]);
}

#[test]
fn what_gives_up_in_a_cancel_is_cancelled_and_the_hash_says_so() {
    let written = Written::default();
    let cancelled = gives_up_under(Control::cancel, &Gate::closed_for([0]), &written);
    assert_eq!((cancelled.ending, cancelled.total), (Ending::Cancelled, 4));
    assert_eq!(written.pages().outcomes, ["success", "success", "cancel", "cancel"]);
    let mut drain = Drain::new(4, Written::default().sink(), u64::MAX);
    for seq in 0..4 {
        drain.arrive(seq, if seq < 2 { Verdict::Success(seq) } else { Verdict::Cancel }).unwrap();
    }
    drain.drain().unwrap();
    assert_eq!(cancelled.outcome_hash, drain.resume().outcome_hash);
}

#[test]
fn a_cancel_that_overrules_a_stop_gives_an_outcome_to_what_the_stop_left() {
    // 0 keeps the run from being over; 96 is in the middle of a claim, whose end nobody begins with.
    let (gate, control, written) = (Gate::closed_for([0, 96]), Control::new(), Written::default());
    let (door, watch, sink) = (gate.clone(), control.clone(), written.sink());
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            door.pass(context.seq());
            if context.seq() >= 96 && context.should_end() {
                return Outcome::Fail(ErrorClass::NonRetryableCancellation, "gave up".into());
            }
            Outcome::Success(*number)
        };
        let config = Config { max_claim: 8, ..config(2, 1_000) };
        Lanes::new(config).control(&watch).run(Items::of(0..400_u64), compute, sink)
    });
    until("both are held", || gate.holds(0) && gate.holds(96));
    control.stop();
    gate.open(96);
    until("one worker has left", || control.observe().unwrap().busy_workers == 1);
    control.cancel();
    gate.open(0);
    until("the run is over", || run.is_finished());
    let summary = run.join().unwrap().unwrap().summary;
    assert_eq!((summary.ending, summary.total), (Ending::Cancelled, 400));
    assert_eq!((summary.counts.success, summary.counts.cancel), (96, 304));
}
