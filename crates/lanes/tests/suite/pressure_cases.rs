//! Back-pressure (R48) and the bounds of memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use sprag_lanes::{Config, Context, Control, Items, Lanes, Limit, Outcome, Pause};

use crate::stage::{Gate, Written, config, until};

#[test]
fn r48_dispatch_pauses_above_the_hard_limit_and_goes_on_below_the_ratio() {
    let mut config = config(2, 100);
    // Results are 8 bytes: more than 32 pause, fewer than 16 resume.
    config.pressure.buffered_bytes = Limit { soft: u64::MAX, hard: 32 };
    config.pressure.resume_ratio = 0.5;
    let (gate, control) = (Gate::closed_for([0, 5]), Control::new());
    let (door, watch) = (gate.clone(), control.clone());
    let written = Written::default();
    let sink = written.sink();
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            door.pass(context.seq());
            Outcome::Success(*number)
        };
        Lanes::new(config).control(&watch).run(Items::of(0..20_u64), compute, sink)
    });
    until("five results wait", || control.observe().is_some_and(|seen| seen.ledger.terminal == 4));
    // 1 to 4 wait: 32 bytes are not above the limit, so 5 is dispatched and held by the gate.
    until("5 is held", || gate.holds(5));
    gate.open(5);
    until("dispatch pauses", || {
        control.observe().is_some_and(|seen| seen.paused_by == Some(Pause::BufferedBytes))
    });
    let seen = control.observe().unwrap();
    assert_eq!((seen.max_seen_seq, seen.buffered_bytes), (Some(5), 40), "nothing beyond 5");
    gate.open(0);
    let report = run.join().unwrap().unwrap();
    assert_eq!(report.summary.counts.success, 20);
    assert_eq!(written.pages().writes.len(), 20);
}

#[test]
fn the_head_is_dispatched_even_if_nothing_may_wait() {
    let mut config = config(3, 10);
    config.pressure.buffered_bytes = Limit { soft: 0, hard: 0 };
    config.pressure.window_bytes = Limit { soft: 0, hard: 0 };
    config.pressure.commit_lag = Limit { soft: 0, hard: 0 };
    let compute = |number: &u64, _: &Context| Outcome::Success(*number);
    let written = Written::default();
    let report = Lanes::new(config).run(Items::of(0..50_u64), compute, written.sink()).unwrap();
    assert_eq!(report.summary.counts.success, 50);
}

#[test]
fn the_commit_lag_stays_at_its_limit_and_one_claim() {
    let mut config = config(2, 1_000);
    config.pressure.commit_lag = Limit { soft: 5, hard: 10 };
    let (gate, control) = (Gate::closed_for([0]), Control::new());
    let (door, watch) = (gate.clone(), control.clone());
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            door.pass(context.seq());
            Outcome::Success(*number)
        };
        let sink = Written::default().sink();
        Lanes::new(config).control(&watch).run(Items::of(0..100_u64), compute, sink)
    });
    until("dispatch pauses", || {
        control.observe().is_some_and(|seen| seen.paused_by == Some(Pause::CommitLag))
    });
    assert_eq!(control.observe().unwrap().commit_lag, 11, "paused once above 10");
    gate.open(0);
    assert_eq!(run.join().unwrap().unwrap().summary.counts.success, 100);
}

/// Counts the items that are alive.
struct Counted(Arc<AtomicU64>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[test]
fn an_endless_source_is_held_in_two_windows() {
    let alive = Arc::new(AtomicU64::new(0));
    let most = Arc::new(AtomicU64::new(0));
    let (count, peak) = (Arc::clone(&alive), Arc::clone(&most));
    let items = (0..100_000).map(move |_| {
        let now = count.fetch_add(1, Ordering::Relaxed) + 1;
        peak.fetch_max(now, Ordering::Relaxed);
        Counted(Arc::clone(&count))
    });
    let mut config = Config { threads: 2, ..Config::default() };
    config.plan.max_entries = 128;
    let compute = |_: &Counted, context: &Context| Outcome::Success(context.seq());
    let sink = Written::default().sink();
    Lanes::new(config).run(Items::stream(items), compute, sink).unwrap();
    // Two windows, one item read ahead; claims drop their items when they are handed over.
    assert!(most.load(Ordering::Relaxed) <= 2 * 128 + 1, "{most:?} items at once");
}
