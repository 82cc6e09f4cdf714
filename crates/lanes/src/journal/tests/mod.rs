//! The journal under damage, crashes, compaction and company. The parts share a medium in memory
//! that can lose what was not synced, and a journal of random commits whose every prefix is known.

#![allow(clippy::cast_possible_truncation)] // small numbers of a test

mod compaction;
mod crash;
mod damage;
mod disk;
mod lanes;
mod rules;
mod thread;

use std::io;

use super::log::Log;
use super::medium::Medium;
use super::replay::replay;
use super::state::RunState;
use super::{CommitRun, Ended, Identity, Outcome, RunId, Settings, SyncPolicy};

/// A disk in memory: what was written, and what would be there after a loss of power.
#[derive(Clone, Debug, Default)]
struct Memory {
    bytes: Vec<u8>,
    /// The content at the last sync.
    synced: Vec<u8>,
    syncs: u32,
    fail_next: bool,
}

impl Memory {
    fn outcome(&mut self) -> io::Result<()> {
        if std::mem::take(&mut self.fail_next) { Err(io::Error::other("planted")) } else { Ok(()) }
    }
}

impl Medium for Memory {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        self.outcome()?;
        let offset = offset as usize;
        self.bytes[offset..offset + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn sync(&mut self) -> io::Result<()> {
        self.outcome()?;
        self.synced.clone_from(&self.bytes);
        self.syncs += 1;
        Ok(())
    }

    fn allocate(&mut self, from: u64, length: u64) -> io::Result<()> {
        self.outcome()?;
        assert_eq!(from, self.bytes.len() as u64);
        self.bytes.resize(length as usize, 0);
        Ok(())
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.outcome()?;
        self.bytes.truncate(length as usize);
        Ok(())
    }
}

fn identity() -> Identity {
    Identity { run_id: RunId([0xA5; 16]), plan_hash: [9; 32], note: b"seq 9 | work {}".to_vec() }
}

fn small() -> Settings {
    Settings { sync: SyncPolicy::None, segment_bytes: 4096, ..Settings::default() }
}

fn begin(settings: Settings) -> Log<Memory> {
    let born = Log::written(Memory::default(), &identity(), &RunState::new(0), settings).unwrap();
    reopen(&born.medium.bytes, settings)
}

fn reopen(bytes: &[u8], settings: Settings) -> Log<Memory> {
    let found = replay(bytes).unwrap();
    let medium = Memory { bytes: bytes.to_vec(), synced: bytes.to_vec(), ..Memory::default() };
    Log::taken_over(medium, &found, 77, settings).unwrap()
}

/// A repeatable stream of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }

    fn hash(&mut self) -> [u8; 32] {
        std::array::from_fn(|_| self.roll(256) as u8)
    }

    fn end(&mut self) -> Ended {
        let outcome =
            if self.roll(4) == 0 { Outcome::ALL[self.roll(4) as usize] } else { Outcome::Success };
        let attempts = if self.roll(6) == 0 { self.roll(300) as u32 } else { 0 };
        Ended { outcome, attempts }
    }

    fn ends(&mut self, most: u64) -> Vec<Ended> {
        (0..=self.roll(most)).map(|_| self.end()).collect()
    }
}

/// Appends one random commit.
fn commit(log: &mut Log<Memory>, dice: &mut Dice) {
    let ends = dice.ends(12);
    let mark = log.totals.last.mark + dice.roll(5_000);
    let (input_hash, outcome_hash) = (dice.hash(), dice.roll(u64::MAX));
    let first_seq = log.totals.last.end_seq;
    log.append(&CommitRun { first_seq, ends: &ends, mark, input_hash, outcome_hash }, 0).unwrap();
}
