//! What must hold for any input: ledgers, canonical JSON, windows, the projection.

use std::collections::BTreeSet;

use proptest::prelude::*;
use sprag_kernel::canon::{canonical, quoted};
use sprag_kernel::decide::request::project;
use sprag_kernel::keys::normalise_space;
use sprag_kernel::ledger::{ActivityLedger, GuidLedger, LEDGER_MAX};
use sprag_kernel::planner::{Entry, PlanConfig, PlanHasher, Planner, Snapshot, Window};
use sprag_kernel::{Code, JobState, Refusal, State};

use crate::json::{Dice, tree};

/// An increment of the activity ledger, with its weight.
type Increment = (fn(ActivityLedger) -> Result<ActivityLedger, Refusal>, u64);

const INCREMENTS: [Increment; 6] = [
    (ActivityLedger::enter_leg1, 1_000_000_000_000),
    (ActivityLedger::complete_leg1, 100_000_000_000),
    (ActivityLedger::complete_work, 10_000_000_000),
    (ActivityLedger::complete_children, 1_000_000_000),
    (ActivityLedger::complete_completion, 100_000_000),
    (ActivityLedger::enter_leg2, 1),
];

/// Leg1 entries, four markers, Leg2 entries: read from the text, not from the accessors.
fn fields(digits: &str) -> [u64; 6] {
    let part = |from: usize, to: usize| digits[from..to].parse().expect("digits");
    [part(0, 3), part(3, 4), part(4, 5), part(5, 6), part(6, 7), part(7, 15)]
}

/// A legal ledger, often right below a ceiling.
fn activity() -> impl Strategy<Value = ActivityLedger> {
    let leg1 = prop_oneof![0..4_u64, 996..=999_u64];
    let leg2 = prop_oneof![0..4_u64, 99_999_996..=99_999_999_u64];
    (leg1, 0..=4_u32, leg2).prop_filter_map("no legal history", |(leg1, markers, leg2)| {
        let marked: u64 = (0..markers).map(|m| 100_000_000_000 / 10_u64.pow(m)).sum();
        ActivityLedger::from_stored(leg1 * 1_000_000_000_000 + marked + leg2).ok()
    })
}

proptest! {
    #[test]
    fn a_ledger_never_decreases_never_carries_and_never_passes_fifteen_digits(
        start in activity(),
        increments in proptest::collection::vec(0..6_usize, 1..40),
    ) {
        let mut ledger = start;
        for chosen in increments {
            let (increment, weight) = INCREMENTS[chosen];
            let Ok(after) = increment(ledger) else { continue };
            prop_assert!(after.get() == ledger.get() || after.get() == ledger.get() + weight);
            prop_assert!(after.get() <= LEDGER_MAX);
            let (old, new) = (fields(&ledger.to_string()), fields(&after.to_string()));
            let field = [0, 1, 2, 3, 4, 5][chosen];
            for (at, (old, new)) in old.into_iter().zip(new).enumerate() {
                prop_assert!(new == old || (at == field && new == old + 1), "field {at}");
            }
            prop_assert!(new[1..5].iter().all(|marker| *marker <= 1));
            prop_assert_eq!(ActivityLedger::from_stored(after.get()).unwrap(), after);
            prop_assert_eq!(ActivityLedger::parse(&after.to_string()).unwrap(), after);
            prop_assert_eq!(after.leg1_entries(), new[0]);
            prop_assert_eq!(after.leg2_entries(), new[5]);
            ledger = after;
        }
    }

    #[test]
    fn a_guid_ledger_keeps_its_ordinal_and_sets_each_marker_once(
        entered in activity(),
        steps in proptest::collection::vec(0..4_u8, 1..12),
    ) {
        let mut guid = GuidLedger::seeded(entered);
        for step in steps {
            let marked = match step {
                0 => guid.complete_work(),
                1 => guid.complete_children(false),
                2 => guid.complete_children(true),
                _ => guid.complete_completion(),
            };
            let Ok(after) = marked else { continue };
            prop_assert!(after >= guid);
            prop_assert_eq!(after.ordinal(), entered.leg2_entries());
            prop_assert_eq!(GuidLedger::from_stored(after.get()).unwrap(), after);
            guid = after;
        }
    }
}

/// All activity ledgers that a history of at most two entries of each leg can make, counted here.
fn reachable_activities() -> BTreeSet<u64> {
    let mut all = BTreeSet::from([0]);
    loop {
        let mut next = all.clone();
        for ledger in &all {
            let digit = |weight: u64| ledger / weight % 10;
            let [leg1, done, work, children, completion, leg2] = fields(&format!("{ledger:015}"));
            assert_eq!(digit(100_000_000_000), done);
            let moves = [
                (leg1 < 2, 1_000_000_000_000),
                (done == 0 && leg1 > 0, 100_000_000_000),
                (done == 1 && leg2 < 2, 1),
                (work == 0 && leg2 > 0, 10_000_000_000),
                (children == 0 && work == 1, 1_000_000_000),
                (completion == 0 && children == 1, 100_000_000),
            ];
            next.extend(moves.iter().filter(|(may, _)| *may).map(|(_, weight)| ledger + weight));
        }
        if next == all {
            return all;
        }
        all = next;
    }
}

#[test]
fn stored_activity_digits_are_accepted_exactly_if_a_history_leads_to_them() {
    let reachable = reachable_activities();
    assert_eq!(reachable.len(), 1 + 2 + 2 + 2 * 2 * 4);
    for leg1 in 0..=2 {
        for markers in 0..10_000 {
            for leg2 in 0..=2 {
                let ledger = leg1 * 1_000_000_000_000 + markers * 100_000_000 + leg2;
                let accepted = ActivityLedger::from_stored(ledger).is_ok();
                assert_eq!(accepted, reachable.contains(&ledger), "{ledger:015}");
            }
        }
    }
}

#[test]
fn stored_guid_digits_are_accepted_exactly_if_a_history_leads_to_them() {
    // By ordinal: seeded; Step 1; Step 2 with and without closing; Step 3 only where it closed.
    let reachable: BTreeSet<u64> = (1..=2_u64)
        .flat_map(|ordinal| [0, 100, 110, 1110, 1111].map(|m| m * 100_000_000 + ordinal))
        .chain([0])
        .collect();
    for top in 0..=1 {
        for markers in 0..10_000 {
            for ordinal in 0..=2 {
                let ledger = top * 1_000_000_000_000 + markers * 100_000_000 + ordinal;
                let accepted = GuidLedger::from_stored(ledger).is_ok();
                assert_eq!(accepted, reachable.contains(&ledger), "{ledger:015}");
            }
        }
    }
}

proptest! {
    #[test]
    fn canonical_text_is_the_slow_reference_s_whatever_the_spelling(
        tree in tree(),
        seeds in any::<[u64; 2]>(),
    ) {
        for tree in [tree.clone(), tree.grown()] {
            let expected = tree.canonical();
            for seed in seeds {
                let spelled = tree.spelled(&mut Dice(seed));
                prop_assert_eq!(canonical(spelled.as_bytes()).unwrap(), expected.as_str(), "{}", spelled);
            }
            prop_assert_eq!(canonical(expected.as_bytes()).unwrap(), expected);
        }
    }

    #[test]
    fn garbage_gets_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = canonical(&bytes);
    }

    #[test]
    fn a_damaged_document_is_accepted_exactly_if_another_reader_accepts_it(
        tree in tree(),
        seed in any::<u64>(),
        damage in proptest::collection::vec((any::<usize>(), any::<u8>(), 0..4_u8), 1..4),
    ) {
        let mut bytes = tree.spelled(&mut Dice(seed)).into_bytes();
        for (at, byte, kind) in damage {
            let at = at % bytes.len().max(1);
            match kind {
                0 if !bytes.is_empty() => { bytes.remove(at); }
                1 => bytes.insert(at, br#"{}[]",:\u0e-.tn"#[usize::from(byte) % 15]),
                2 if !bytes.is_empty() => bytes[at] = byte,
                _ => bytes.truncate(at),
            }
        }
        let theirs = serde_json::from_slice::<serde_json::Value>(&bytes);
        match (canonical(&bytes), theirs) {
            (Ok(text), Ok(_)) => prop_assert_eq!(canonical(text.as_bytes()).unwrap(), text),
            // Their numbers are doubles with another range; ours are texts with another length.
            (Ok(_), Err(error)) => prop_assert!(error.to_string().contains("out of range")),
            (Err(refusal), Ok(_)) => prop_assert_eq!(refusal.code(), Code::NumberRange),
            (Err(_), Err(_)) => {}
        }
    }

    #[test]
    fn quoted_text_is_canonical_and_reads_back(text in any::<String>()) {
        let quoted = quoted(&text);
        prop_assert_eq!(canonical(quoted.as_bytes()).unwrap(), quoted.as_str());
        prop_assert_eq!(serde_json::from_str::<String>(&quoted).unwrap(), text);
    }

    #[test]
    fn normal_space_is_single_trimmed_and_final(text in any::<String>()) {
        let normal = normalise_space(&text);
        prop_assert!(!normal.contains("  ") && normal.trim() == normal);
        prop_assert!(normal.chars().all(|c| c == ' ' || !c.is_whitespace()));
        let letters = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
        prop_assert_eq!(letters(&normal), letters(&text));
        prop_assert_eq!(normalise_space(&normal), normal);
    }
}

fn config() -> impl Strategy<Value = PlanConfig> {
    let caps = (1..60_u64, 0..60_u64, 1..9_u64, 1..5_u64, 1..9_u64);
    (1.0..60.0_f64, caps).prop_map(
        |(target_cost, (max_cost, max_bytes, max_span, min_entries, max_entries))| PlanConfig {
            target_cost,
            max_cost,
            max_bytes,
            max_span,
            min_entries,
            max_entries,
            adaptive: true,
            shrink: 0.5,
            grow: 1.5,
            commit_lag_soft: 8,
            buffered_bytes_soft: 100,
        },
    )
}

fn plan(config: PlanConfig, entries: &[Entry], snapshot: Option<&Snapshot>) -> Vec<Window> {
    let mut planner = Planner::new(config);
    planner.adapt(snapshot);
    let mut windows: Vec<_> = entries.iter().filter_map(|entry| planner.push(*entry)).collect();
    windows.extend(planner.finish());
    windows
}

proptest! {
    #[test]
    fn windows_partition_the_entries_within_their_caps_and_are_cut_for_a_reason(
        config in config(),
        entries in proptest::collection::vec((0..70_u64, 0..70_u64), 0..60),
        snapshot in proptest::option::of((0..20_u64, 0..200_u64, 0.0..1.0_f64)),
    ) {
        let entries: Vec<Entry> =
            entries.into_iter().map(|(cost, bytes)| Entry { cost, bytes }).collect();
        let snapshot = snapshot.map(|(commit_lag, buffered_bytes, util)| {
            Snapshot { commit_lag, buffered_bytes, util }
        });
        let target = config.target_for(snapshot.as_ref());
        let windows = plan(config, &entries, snapshot.as_ref());
        let mut next = 0_u64;
        for (number, window) in windows.iter().enumerate() {
            prop_assert_eq!((window.window, window.start), (number as u64, next));
            let held = &entries[window.start as usize..=window.end as usize];
            prop_assert_eq!(window.entries, held.len() as u64);
            prop_assert_eq!(window.cost, held.iter().map(|e| e.cost.max(1)).sum::<u64>());
            prop_assert_eq!(window.bytes, held.iter().map(|e| e.bytes).sum::<u64>());
            let within = window.entries <= config.max_entries.min(config.max_span)
                && window.cost <= config.max_cost
                && window.bytes <= config.max_bytes;
            prop_assert!(within || window.entries == 1, "only an oversize entry breaks a cap");
            next = window.end + 1;
            // One entry more would have broken a cap, or the target with the minimum reached.
            if let Some(more) = entries.get(next as usize) {
                let cost = window.cost + more.cost.max(1);
                let full = window.entries + 1 > config.max_entries.min(config.max_span)
                    || cost > config.max_cost
                    || window.bytes + more.bytes > config.max_bytes;
                let enough = window.entries >= config.min_entries && cost as f64 > target;
                prop_assert!(full || enough, "{window:?}");
            }
        }
        prop_assert_eq!(next, entries.len() as u64);
    }

    #[test]
    fn equal_entries_taken_at_once_cut_the_windows_that_they_cut_one_by_one(
        config in config(),
        runs in proptest::collection::vec((0..9_u64, 0..9_u64, 1..12_u64), 0..20),
    ) {
        let (mut single, mut windows) = (Planner::new(config), Vec::new());
        let (mut whole, mut same) = (Planner::new(config), Vec::new());
        for (cost, bytes, count) in runs {
            let entry = Entry { cost: cost * cost, bytes: bytes * bytes };
            windows.extend((0..count).filter_map(|_| single.push(entry)));
            let mut left = count;
            while left > 0 {
                let room = whole.room_for(entry).min(left);
                whole.extend(entry, room);
                left -= room;
                if left > 0 {
                    same.extend(whole.push(entry));
                    left -= 1;
                }
            }
            prop_assert_eq!(whole.open(), single.open());
        }
        prop_assert_eq!(same, windows);
    }
}

#[test]
fn an_adaptive_target_shrinks_when_behind_and_grows_when_idle_and_never_leaves_its_range() {
    let base = PlanConfig {
        target_cost: 60.0,
        max_cost: 80,
        max_bytes: 1,
        max_span: 1,
        min_entries: 1,
        max_entries: 1,
        adaptive: true,
        shrink: 0.5,
        grow: 1.5,
        commit_lag_soft: 8,
        buffered_bytes_soft: 100,
    };
    let target = |config: &PlanConfig, commit_lag, buffered_bytes, util| {
        config.target_for(Some(&Snapshot { commit_lag, buffered_bytes, util }))
    };
    let cases = [
        ((9, 0, 0.0), 30.0),   // lag above soft
        ((8, 0, 0.9), 60.0),   // equal is not above
        ((0, 101, 0.0), 30.0), // bytes above soft
        ((0, 100, 0.9), 60.0),
        ((4, 0, 0.54), 80.0), // idle: 90 within the cap
        ((5, 0, 0.0), 60.0),  // more lag than half of soft
        ((0, 0, 0.55), 60.0), // busy enough
    ];
    for ((lag, bytes, util), expected) in cases {
        let found = target(&base, lag, bytes, util);
        assert!((found - expected).abs() < 1e-9, "{lag} {bytes} {util}: {found}");
    }
    let tight = PlanConfig { commit_lag_soft: 1, target_cost: 1.0, ..base };
    assert!((target(&tight, 1, 0, 0.0) - 1.5).abs() < 1e-9, "a lag of 1 is always idle enough");
    assert!((target(&tight, 2, 0, 0.0) - 1.0).abs() < 1e-9, "never below 1");
    let fixed = PlanConfig { adaptive: false, ..base };
    assert!((target(&fixed, 99, 999, 0.0) - 60.0).abs() < 1e-9);
}

#[test]
fn r35_a_plan_hash_is_stable_and_every_field_of_the_config_changes_it() {
    let base = PlanConfig {
        target_cost: 30.0,
        max_cost: 50,
        max_bytes: 200,
        max_span: 8,
        min_entries: 1,
        max_entries: 4,
        adaptive: false,
        shrink: 0.75,
        grow: 1.2,
        commit_lag_soft: 64,
        buffered_bytes_soft: 160,
    };
    let hash = |config: &PlanConfig, costs: &[u64]| {
        let mut hasher = PlanHasher::new(config);
        for cost in costs {
            hasher.entry(Entry { cost: *cost, bytes: 1 });
        }
        assert_eq!(hasher.digest(), hasher.digest());
        hasher.digest()
    };
    let changes: [fn(&mut PlanConfig); 11] = [
        |c| c.target_cost += 0.5,
        |c| c.max_cost += 1,
        |c| c.max_bytes += 1,
        |c| c.max_span += 1,
        |c| c.min_entries += 1,
        |c| c.max_entries += 1,
        |c| c.adaptive = true,
        |c| c.shrink = 0.5,
        |c| c.grow = 1.5,
        |c| c.commit_lag_soft += 1,
        |c| c.buffered_bytes_soft += 1,
    ];
    let mut hashes: BTreeSet<_> = changes
        .iter()
        .map(|change| {
            let mut config = base;
            change(&mut config);
            hash(&config, &[5, 5, 7])
        })
        .collect();
    hashes.insert(hash(&base, &[5, 5, 7]));
    hashes.insert(hash(&base, &[5, 7, 5]));
    hashes.insert(hash(&base, &[5, 5, 5, 7]));
    hashes.insert(hash(&base, &[]));
    assert_eq!(hashes.len(), changes.len() + 4);
    assert_eq!(hash(&base, &[5, 5, 7]), hash(&base, &[5, 5, 7]));
}

#[test]
fn every_legal_job_transition_projects_to_a_legal_or_the_same_request_status() {
    for row in JobState::machine().transitions {
        let (from, to) = (project(row.from), project(row.to));
        assert!(from.wish(to).is_ok(), "{} > {} is {from} > {to}", row.from, row.to);
    }
}
