//! Loss of power: any part of what was not synced may be missing, in any order.

use proptest::prelude::*;

use super::*;

const SECTOR: usize = 512;

/// What may be on the disk after the power went: every sector old or new, any length between.
fn after_power_loss(medium: &Memory, dice: &mut Dice) -> Vec<u8> {
    let mut disk = medium.bytes.clone();
    disk.resize(medium.bytes.len().max(medium.synced.len()), 0);
    for start in (0..disk.len()).step_by(SECTOR) {
        let end = (start + SECTOR).min(disk.len());
        if dice.roll(2) == 0 {
            let old = medium.synced.iter().copied().chain(std::iter::repeat(0)).skip(start);
            disk[start..end].iter_mut().zip(old).for_each(|(byte, old)| *byte = old);
        }
    }
    if dice.roll(3) == 0 {
        let grown = disk.len() - medium.synced.len().min(disk.len());
        disk.truncate(disk.len() - dice.roll(grown as u64 + 1) as usize);
    }
    disk
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Ten crashes in a row: each time the journal opens, holds at least what was synced and at most
    /// what was written, and is exactly a prefix of it.
    #[test]
    fn what_was_synced_survives_and_what_survives_is_a_prefix(seed: u64) {
        let mut dice = Dice(seed);
        let settings = Settings { segment_bytes: 2048, checkpoint_every: 7, ..small() };
        let mut log = begin(settings);
        log.sync().unwrap();
        for _ in 0..10 {
            let found = replay(&log.medium.bytes).unwrap().state;
            let mut prefixes = vec![found.clone()];
            let mut synced = found.cursor();
            for _ in 0..dice.roll(40) {
                commit(&mut log, &mut dice);
                prefixes.push(replay(&log.medium.bytes).unwrap().state);
                if dice.roll(6) == 0 {
                    log.sync().unwrap();
                    synced = log.totals.last.end_seq;
                }
            }
            let disk = after_power_loss(&log.medium, &mut dice);
            let survived = replay(&disk).map_err(|refusal| TestCaseError::fail(refusal.to_string()))?;
            prop_assert!(survived.state.cursor() >= synced);
            let same = prefixes.iter().find(|state| state.cursor() == survived.state.cursor());
            let mut same = same.expect("a prefix").clone();
            // The checkpoint of this epoch is in the tail too and may be lost with it.
            (same.epoch, same.owner) = (survived.state.epoch, survived.state.owner);
            prop_assert_eq!(&same, &survived.state);
            log = reopen(&disk, settings);
        }
    }
}
