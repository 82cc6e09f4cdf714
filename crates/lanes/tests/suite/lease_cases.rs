//! Retries, backoff and leases in a whole run, with a clock that the test owns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use sprag_lanes::{
    Backoff, Batch, Config, Context, Control, ErrorClass, Items, Lanes, Observation, Outcome,
    TestClock,
};

use crate::stage::{Gate, Written, config, until};

#[test]
fn a_retry_waits_for_its_time_and_blocks_nobody() {
    let (control, clock, written) = (Control::new(), TestClock::new(), Written::default());
    let (watch, time, sink) = (control.clone(), clock.clone(), written.sink());
    let mut config = config(1, 100);
    config.backoff = Backoff::new(vec![50, 500]).unwrap();
    let run = thread::spawn(move || {
        let compute = |number: &u64, context: &Context| {
            if context.seq() == 1 && context.attempts() < 2 {
                return Outcome::Fail(ErrorClass::RetryableTransient, "not yet".into());
            }
            Outcome::Success(*number)
        };
        Lanes::new(config).control(&watch).clock(time).run(Items::of(0..6_u64), compute, sink)
    });
    let waits = |retries| {
        control.observe().is_some_and(|seen| {
            let waiting = seen.waiting_retries == 1 && seen.ledger.terminal == 5;
            waiting && seen.retries.transient == retries
        })
    };
    until("all but 1 are done and 1 waits", || waits(1));
    clock.advance_ms(49);
    clock.advance_ms(1);
    until("1 was tried again and waits longer", || waits(2));
    clock.advance_ms(500);
    let summary = run.join().unwrap().unwrap().summary;
    assert_eq!((summary.counts.success, summary.retries.transient), (6, 2));
    assert_eq!(written.pages().attempts, [0, 2, 0, 0, 0, 0]);
}

#[test]
fn a_retryable_failure_without_budget_is_the_outcome_and_the_run_goes_on() {
    let compute = |number: &u64, context: &Context| match context.seq() {
        0 => Outcome::Fail(ErrorClass::RetryableResource, "never".into()),
        _ => Outcome::Success(*number),
    };
    let config = Config { max_retries: 2, backoff: Backoff::new(vec![0]).unwrap(), ..config(2, 8) };
    let written = Written::default();
    let report = Lanes::new(config).run(Items::of(0..20_u64), compute, written.sink()).unwrap();
    assert_eq!((report.summary.counts.fail, report.summary.counts.success), (1, 19));
    assert_eq!(report.summary.retries.resource, 2);
    let pages = written.pages();
    assert_eq!((pages.outcomes[0], pages.attempts[0]), ("fail", 2));
}

#[test]
fn the_retries_of_a_window_are_shared() {
    let compute = |_: &u64, _: &Context| -> Outcome<u64> {
        Outcome::Fail(ErrorClass::RetryableTransient, "never".into())
    };
    let mut config = config(2, 3);
    config.window_retries = Some(1);
    config.backoff = Backoff::new(vec![0]).unwrap();
    let written = Written::default();
    let report = Lanes::new(config).run(Items::of(0..9_u64), compute, written.sink()).unwrap();
    assert_eq!(report.summary.retries.transient, 3, "one per window of three");
    assert_eq!(report.summary.counts.fail, 9);
    for window in written.pages().attempts.chunks(3) {
        assert_eq!(window.iter().sum::<u16>(), 1);
    }
}

#[test]
fn a_silent_worker_loses_its_seq_but_nothing_that_it_had_finished() {
    // One claim of four: 0 and 1 are done, 2 hangs at its first attempt, 3 has not begun.
    let (gate, control, clock) = (Gate::closed_for([2]), Control::new(), TestClock::new());
    let (door, watch, time, written) =
        (gate.clone(), control.clone(), clock.clone(), Written::default());
    let first_tries = Arc::new(AtomicU64::new(0));
    let (tries, sink) = (Arc::clone(&first_tries), written.sink());
    let mut config = Config { max_claim: 4, ..config(2, 100) };
    config.lease_ms = Some(1_000);
    config.backoff = Backoff::new(vec![10]).unwrap();
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            if context.attempts() == 0 {
                tries.fetch_add(1, Ordering::SeqCst);
                door.pass(context.seq());
            }
            Outcome::Success(number + u64::from(context.attempts()) * 100)
        };
        // A stream, so that the first claims are not made smaller towards a known end.
        let items = Items::stream(0..8_u64);
        Lanes::new(config).control(&watch).clock(time).run(items, compute, sink)
    });
    until("2 hangs and the other worker is idle", || {
        gate.holds(2) && control.observe().is_some_and(|seen| seen.busy_workers == 1)
    });
    clock.advance_ms(999);
    assert_eq!(control.observe().unwrap().retries.lease_expired, 0);
    clock.advance_ms(1);
    until("the lease is taken", || {
        control.observe().is_some_and(|seen| seen.retries.lease_expired == 1)
    });
    clock.advance_ms(10);
    until("the run is over", || control.observe().is_none());
    gate.open(2);
    let summary = run.join().unwrap().unwrap().summary;
    assert_eq!((summary.counts.success, summary.retries.lease_expired), (8, 1));
    let pages = written.pages();
    assert_eq!(pages.writes[2], (2, 102), "the second attempt counts, the late first is dropped");
    assert_eq!(pages.attempts, [0, 0, 1, 0, 0, 0, 0, 0], "nobody else was charged");
}

#[test]
fn a_worker_that_is_long_in_the_sink_is_waited_for_though_its_claim_was_taken() {
    // One worker has 0 and then 2 to 5, the other 1 and then the rest. 2 takes 5 ms, so it is handed over
    // before 3 begins, and its worker stays in the sink for longer than the lease.
    let (gate, control, clock) = (Gate::closed_for([2]), Control::new(), TestClock::new());
    let (door, watch, time) = (gate.clone(), control.clone(), clock.clone());
    let (written, ticks, asked) = (Written::default(), clock.clone(), control.clone());
    let (begun, mut notes) = (AtomicU64::new(0), written.sink());
    let mut config = Config { max_claim: 4, ..config(2, 100) };
    config.lease_ms = Some(1_000);
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            begun.fetch_max(context.seq(), Ordering::SeqCst);
            match context.seq() {
                seq @ 0..2 => until("the next", || begun.load(Ordering::SeqCst) > seq),
                2 => {
                    until("1 is committed", || asked.observe().unwrap().next_commit_seq == 2);
                    ticks.advance_ms(5);
                }
                _ => {}
            }
            Outcome::Success(*number)
        };
        let sink = move |batch: &mut Batch<u64>| {
            if batch.first() == 2 {
                door.pass(2);
            }
            notes(batch)
        };
        let items = Items::stream(0..10_u64).at_hand();
        Lanes::new(config).control(&watch).clock(time).run(items, compute, sink)
    });
    until("2 is written and the other worker is idle", || {
        let idle = |seen: Observation| seen.total.is_some() && seen.busy_workers == 1;
        gate.holds(2) && control.observe().is_some_and(idle)
    });
    assert_eq!(control.observe().unwrap().ledger.terminal, 7, "3 to 5 wait behind the writer");
    clock.advance_ms(1_000);
    until("the others are done and nobody holds anything", || {
        let seen = control.observe().unwrap();
        seen.ledger.terminal == 10 && seen.busy_workers == 0
    });
    gate.open(2);
    let summary = run.join().unwrap().unwrap().summary;
    assert_eq!((summary.counts.success, summary.retries.total()), (10, 0));
    assert_eq!(written.pages().writes.len(), 10);
}

#[test]
fn a_heartbeat_keeps_the_lease() {
    let (gate, control, clock) = (Gate::closed_for([0]), Control::new(), TestClock::new());
    let (door, watch, time) = (gate.clone(), control.clone(), clock.clone());
    let beats = Arc::new(AtomicU64::new(0));
    let beaten = Arc::clone(&beats);
    let mut config = config(1, 100);
    config.lease_ms = Some(1_000);
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            while door.is_closed(context.seq()) {
                assert!(context.heartbeat());
                beaten.fetch_add(1, Ordering::SeqCst);
                thread::yield_now();
            }
            Outcome::Success(*number)
        };
        let sink = Written::default().sink();
        Lanes::new(config).control(&watch).clock(time).run(Items::of(0..1_u64), compute, sink)
    });
    for _ in 0..5 {
        clock.advance_ms(900);
        let before = beats.load(Ordering::SeqCst);
        until("it beats at the new time", || beats.load(Ordering::SeqCst) > before + 1);
    }
    gate.open(0);
    let summary = run.join().unwrap().unwrap().summary;
    assert_eq!((summary.counts.success, summary.retries.lease_expired), (1, 0));
}
