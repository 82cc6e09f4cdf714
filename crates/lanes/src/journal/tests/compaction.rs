//! A compacted journal replays to the same state, then and after any further commits.

use proptest::prelude::*;

use super::*;
use crate::journal::state::{Ending, MAX_POINTS};

fn compacted(log: &Log<Memory>, settings: Settings) -> Log<Memory> {
    let found = replay(&log.medium.bytes).unwrap();
    let mut short = Log::written(Memory::default(), &identity(), &found.state, settings).unwrap();
    short.at.epoch = log.at.epoch;
    short
}

fn check_equivalent(seed: u64, commits: u64) -> Result<(), TestCaseError> {
    let mut dice = Dice(seed);
    let mut log = begin(small());
    for _ in 0..commits {
        commit(&mut log, &mut dice);
    }
    log.checkpoint(Ending::Open, 0).unwrap();
    let mut short = compacted(&log, small());
    prop_assert!(short.at.offset <= log.at.offset);
    let same = |log: &Log<Memory>, short: &Log<Memory>| {
        let found = [log, short].map(|log| replay(&log.medium.bytes).unwrap().state);
        prop_assert_eq!(&found[0], &found[1]);
        Ok(())
    };
    same(&log, &short)?;
    // Any further history, compacted once more on the way, keeps them equal.
    let mut twin = Dice(dice.0);
    for round in 0..commits / 2 {
        commit(&mut log, &mut dice);
        commit(&mut short, &mut twin);
        if round == commits / 4 {
            log.checkpoint(Ending::Stopped, 0).unwrap();
            short.checkpoint(Ending::Stopped, 0).unwrap();
            short = compacted(&short, small());
        }
    }
    same(&log, &short)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(120))]

    #[test]
    fn compaction_changes_bytes_and_nothing_else(seed: u64, commits in 0_u64..200) {
        check_equivalent(seed, commits)?;
    }
}

#[test]
fn compaction_is_equivalent_when_points_are_thinned() {
    for seed in 0..12 {
        check_equivalent(seed, MAX_POINTS as u64 * 3).unwrap();
    }
}

#[test]
fn a_compacted_history_is_certain_from_its_first_byte_to_its_last() {
    let mut dice = Dice(1);
    let mut log = begin(small());
    for _ in 0..300 {
        commit(&mut log, &mut dice);
    }
    log.checkpoint(Ending::Open, 0).unwrap();
    let short = compacted(&log, small());
    for length in 0..short.at.offset as usize {
        assert!(replay(&short.medium.bytes[..length]).is_err(), "cut at {length}");
    }
}

#[test]
fn uniform_history_shrinks_to_its_points() {
    let mut log = begin(small());
    let ends = [Ended { outcome: Outcome::Success, attempts: 0 }; 10];
    for n in 0..50_000_u64 {
        let hash = [n as u8; 32];
        let run = CommitRun {
            first_seq: n * 10,
            ends: &ends,
            mark: n,
            input_hash: hash,
            outcome_hash: n,
        };
        log.append(&run, 0).unwrap();
    }
    log.checkpoint(Ending::Open, 0).unwrap();
    let short = compacted(&log, small());
    assert!(short.at.offset < 150_000, "{} bytes", short.at.offset);
    assert_eq!(
        replay(&short.medium.bytes).unwrap().state,
        replay(&log.medium.bytes).unwrap().state
    );
}
