//! Windows: how they are cut (R18 to R35), which are active, when they close (R36 to R41).

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::Value;
use sprag_kernel::SeqState;
use sprag_kernel::planner::{Entry, PlanConfig, PlanHasher, Planner, Snapshot};
use sprag_lanes::{Batch, Config, Context, Control, Items, Lanes, Observation, Outcome, Why};

use crate::stage::{Gate, Written, config, until};

const WINDOWS: &str = include_str!("../fixtures/windows.json");

struct Vector {
    entries: Vec<Entry>,
    config: PlanConfig,
    snapshot: Option<Snapshot>,
    windows: Vec<(u64, u64, u64, u64)>,
}

fn numbers(value: &Value) -> Vec<u64> {
    value.as_array().unwrap().iter().map(|number| number.as_u64().unwrap()).collect()
}

fn vector(name: &str) -> Vector {
    let vectors: Vec<Value> = serde_json::from_str(WINDOWS).unwrap();
    let named = |vector: &&Value| vector["name"].as_str().unwrap().split(' ').next() == Some(name);
    let vector = vectors.iter().find(named).unwrap_or_else(|| panic!("no vector {name}"));
    let entries = vector["entries"].as_array().unwrap().iter().map(|entry| {
        let [cost, bytes] = numbers(entry)[..] else { panic!("cost and bytes") };
        Entry { cost, bytes }
    });
    let windows = vector["windows"].as_array().unwrap().iter().map(|window| {
        let [start, end, cost, bytes] = numbers(window)[..] else { panic!("four numbers") };
        (start, end, cost, bytes)
    });
    Vector {
        entries: entries.collect(),
        windows: windows.collect(),
        config: serde_json::from_value(vector["config"].clone()).unwrap(),
        snapshot: serde_json::from_value(vector["snapshot"].clone()).unwrap(),
    }
}

fn planned(vector: &Vector) -> Vec<(u64, u64, u64, u64)> {
    let mut planner = Planner::new(vector.config);
    planner.adapt(vector.snapshot.as_ref());
    let mut windows: Vec<_> =
        vector.entries.iter().filter_map(|entry| planner.push(*entry)).collect();
    windows.extend(planner.finish());
    windows.iter().map(|w| (w.start, w.end, w.cost, w.bytes)).collect()
}

/// The windows that a real run works through, as seen from its sink.
fn lived_through(vector: &Vector) -> Vec<(u64, u64)> {
    let control = Control::new();
    let seen = Arc::new(Mutex::new(BTreeMap::new()));
    let (watch, notes) = (control.clone(), Arc::clone(&seen));
    let sink = move |_: &mut Batch<u64>| {
        for window in watch.observe().unwrap().windows {
            notes.lock().unwrap().insert(window.window, (window.start, window.end));
        }
        Ok(())
    };
    let config = Config { threads: 1, max_claim: 1, plan: vector.config, ..Config::default() };
    let compute = |_: &Entry, context: &Context| Outcome::Success(context.seq());
    let items = Items::of(vector.entries.clone()).entry(|entry| *entry);
    Lanes::new(config).control(&control).run(items, compute, sink).unwrap();
    let seen = seen.lock().unwrap();
    seen.values().copied().collect()
}

fn holds(name: &str) {
    let vector = vector(name);
    assert_eq!(planned(&vector), vector.windows, "{name}");
    if vector.snapshot.is_none() && !vector.config.adaptive {
        let bounds: Vec<_> = vector.windows.iter().map(|w| (w.0, w.1)).collect();
        assert_eq!(lived_through(&vector), bounds, "{name} in a run");
    }
}

#[test]
fn r18_uniform_costs_fill_windows_to_the_target() {
    holds("P1");
}

#[test]
fn r19_the_entry_cap_closes_a_window() {
    holds("P2");
}

#[test]
fn r20_the_byte_cap_closes_a_window() {
    holds("P3");
}

#[test]
fn r21_the_span_cap_closes_a_window() {
    holds("P4");
}

#[test]
fn r22_an_oversize_entry_stands_alone() {
    holds("P5");
}

#[test]
fn r24_the_minimum_of_entries_beats_the_target() {
    holds("P7");
}

#[test]
fn r26_no_entries_make_no_window_and_one_makes_one() {
    holds("P9");
    holds("P10");
}

#[test]
fn r27_a_cost_of_zero_counts_as_one() {
    holds("P11");
}

#[test]
fn r29_adaptive_without_a_snapshot_keeps_the_target() {
    holds("P13");
}

#[test]
fn r30_lag_above_the_soft_limit_shrinks_windows() {
    holds("P14");
}

#[test]
fn r31_idle_workers_let_windows_grow() {
    holds("P15");
}

#[test]
fn r33_mixed_entries_are_cut_by_the_first_cap_they_meet() {
    holds("P18");
}

#[test]
fn every_window_vector_holds() {
    let vectors: Vec<Value> = serde_json::from_str(WINDOWS).unwrap();
    assert!(vectors.len() >= 12);
    for vector in &vectors {
        holds(vector["name"].as_str().unwrap().split(' ').next().unwrap());
    }
}

#[test]
fn r35_equal_plans_have_equal_hashes_and_any_other_field_another() {
    let config = vector("P1").config;
    let hash = |config: &PlanConfig| {
        let mut hasher = PlanHasher::new(config);
        hasher.entry(Entry { cost: 1, bytes: 2 });
        hasher.digest()
    };
    let other = [
        PlanConfig { target_cost: 31.0, ..config },
        PlanConfig { max_cost: 51, ..config },
        PlanConfig { max_bytes: 201, ..config },
        PlanConfig { max_span: 9, ..config },
        PlanConfig { min_entries: 2, ..config },
        PlanConfig { max_entries: 5, ..config },
        PlanConfig { adaptive: true, ..config },
        PlanConfig { shrink: 0.5, ..config },
        PlanConfig { grow: 1.5, ..config },
        PlanConfig { commit_lag_soft: 65, ..config },
        PlanConfig { buffered_bytes_soft: 161, ..config },
    ];
    let mut hashes: Vec<_> = other.iter().map(hash).collect();
    hashes.push(hash(&config));
    assert_eq!(hash(&config), hash(&config));
    hashes.sort_unstable();
    hashes.dedup();
    assert_eq!(hashes.len(), other.len() + 1);
    // The same bytes on every machine: this one was computed once and written down.
    let fixed = hash(&config).iter().take(4).fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
    assert_eq!(fixed, FIXED_PLAN_HASH, "{fixed:#x}");
}

const FIXED_PLAN_HASH: u32 = 0x44d3_9f82;

/// Twelve items in windows of four, some held back; `look` drives the gate and observes.
fn watched(closed: &[u64], look: impl FnOnce(&Gate, &Control)) -> Written {
    let (gate, control) = (Gate::closed_for(closed.iter().copied()), Control::new());
    let written = Written::default();
    let (door, watch, sink) = (gate.clone(), control.clone(), written.sink());
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            door.pass(context.seq());
            Outcome::Success(*number)
        };
        Lanes::new(config(4, 4)).control(&watch).run(Items::of(0..12_u64), compute, sink)
    });
    look(&gate, &control);
    run.join().unwrap().unwrap();
    written
}

fn bounds(seen: &Observation) -> Vec<(u64, u64)> {
    seen.windows.iter().map(|window| (window.start, window.end)).collect()
}

/// Waits until the cursor stands here and everything dispatched but the head is handed over.
fn settled(control: &Control, cursor: u64, terminal: u64) -> Observation {
    let settled = |seen: &Observation| {
        seen.next_commit_seq == cursor && seen.ledger.terminal == terminal && seen.busy_workers == 1
    };
    until("the run settles", || control.observe().is_some_and(|seen| settled(&seen)));
    control.observe().unwrap()
}

#[test]
fn r36_active_are_the_window_of_the_cursor_and_the_next() {
    watched(&[0, 4, 8], |gate, control| {
        // 4 is held as well: all of 1 to 7 but 4 are done, and two workers stand at the gate.
        until("both heads are held", || gate.holds(0) && gate.holds(4));
        until("the rest is done", || control.observe().unwrap().ledger.terminal == 6);
        assert_eq!(bounds(&control.observe().unwrap()), [(0, 3), (4, 7)]);
        gate.open(0);
        until("8 is held", || gate.holds(8));
        until("the rest is done", || control.observe().unwrap().ledger.terminal == 10);
        let seen = control.observe().unwrap();
        assert_eq!((seen.next_commit_seq, bounds(&seen)), (4, vec![(4, 7), (8, 11)]));
        gate.open(4);
        let seen = settled(control, 8, 11);
        assert_eq!(bounds(&seen), [(8, 11)]);
        gate.open(8);
    });
}

#[test]
fn r38_a_full_w1_neither_closes_nor_opens_a_third_window() {
    let written = watched(&[0], |gate, control| {
        let seen = settled(control, 0, 7);
        assert_eq!(bounds(&seen), [(0, 3), (4, 7)]);
        assert_eq!(seen.windows[1].terminal, 4);
        assert_eq!(seen.max_seen_seq, Some(7), "nothing of the third window was dispatched");
        gate.open(0);
    });
    assert_eq!(written.pages().runs[0], (0, 7), "one maximal run");
}

#[test]
fn r39_a_window_closes_when_the_cursor_is_past_its_end() {
    let control = Control::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (watch, notes) = (control.clone(), Arc::clone(&seen));
    let sink = move |batch: &mut Batch<u64>| {
        let seen = watch.observe().unwrap();
        let w0 = seen.windows[0];
        notes.lock().unwrap().push((batch.first(), seen.ledger.terminal, w0.start));
        Ok(())
    };
    // One byte per batch: every seq is written alone, while those claimed with it are terminal already.
    let config = Config { max_batch_bytes: 1, max_claim: 4, ..config(1, 4) };
    let compute = |number: &u64, _: &Context| Outcome::Success(*number);
    Lanes::new(config).control(&control).run(Items::stream(0..8_u64), compute, sink).unwrap();
    let seen = seen.lock().unwrap();
    assert_eq!(
        seen[2..4],
        [(2, 4, 0), (3, 4, 0)],
        "all terminal, the cursor at the end: still open"
    );
    assert_eq!((seen[4].0, seen[4].2), (4, 4), "the cursor past the end: closed");
}

#[test]
fn r41_the_snapshot_says_what_the_run_waits_for() {
    watched(&[2], |gate, control| {
        let seen = settled(control, 2, 7);
        gate.open(2);
        assert_eq!(seen.next_commit_seq, 2);
        assert_eq!(seen.max_seen_seq, Some(7));
        assert_eq!(seen.commit_lag, 5);
        assert_eq!((seen.ledger.terminal, seen.ledger.in_flight), (7, 1));
        assert_eq!((seen.ledger.committed, seen.ledger.dispatched), (2, 0));
        let views: Vec<_> =
            seen.windows.iter().map(|w| (w.start, w.end, w.terminal, w.committed)).collect();
        assert_eq!(views, [(0, 3, 3, 2), (4, 7, 4, 0)]);
        let blocked = seen.oldest_blocked.unwrap();
        assert_eq!((blocked.seq, blocked.state), (2, SeqState::InFlight));
        assert_eq!(blocked.why, Why::Computing);
        assert_eq!(seen.buffered_bytes, 5 * 8, "3 to 7 wait, eight bytes each");
        let json = serde_json::to_value(&seen).unwrap();
        assert_eq!(json["oldest_blocked"]["state"], "IN_FLIGHT");
    });
}

#[test]
fn an_adaptive_run_shrinks_its_windows_while_the_cursor_lags_and_only_then() {
    let (gate, control) = (Gate::closed_for([0, 12]), Control::new());
    let (door, watch) = (gate.clone(), control.clone());
    let mut config = config(2, 100);
    config.plan.adaptive = true;
    config.plan.target_cost = 8.0;
    config.plan.commit_lag_soft = 4;
    (config.plan.shrink, config.plan.grow) = (0.5, 1.0);
    let run = thread::spawn(move || {
        let compute = move |number: &u64, context: &Context| {
            door.pass(context.seq());
            Outcome::Success(*number)
        };
        let sink = Written::default().sink();
        Lanes::new(config).control(&watch).run(Items::of(0..40_u64), compute, sink)
    });
    // The second window is begun at 8, seven behind the head.
    assert_eq!(bounds(&settled(&control, 0, 11)), [(0, 7), (8, 11)]);
    gate.open(0);
    // The third was begun with the head still held; the fourth at 16, three behind the new one.
    assert_eq!(bounds(&settled(&control, 12, 23)), [(12, 15), (16, 23)]);
    gate.open(12);
    assert_eq!(run.join().unwrap().unwrap().summary.counts.success, 40);
}
