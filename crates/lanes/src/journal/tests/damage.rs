//! Every truncation and every single bit flip of a 64 KiB journal, against what is known of it.

use sprag_kernel::Code;
use sprag_kernel::error::Field;

use super::*;
use crate::journal::frame;
use crate::journal::state::Ending;

const SIZE: usize = 64 << 10;

/// One record of the journal under test.
struct Known {
    start: usize,
    end: usize,
    number: u32,
    /// The sync that it marks.
    synced_to: usize,
}

struct Subject {
    bytes: Vec<u8>,
    header: usize,
    certain_to: usize,
    records: Vec<Known>,
    /// The state behind each place where the journal may end.
    states: Vec<(usize, RunState)>,
}

/// Commits, syncs in groups of five or so, checkpoints, a resume in the middle, an unsynced end.
fn subject() -> Subject {
    let settings = Settings { segment_bytes: SIZE as u64, ..small() };
    let born = Log::written(Memory::default(), &identity(), &RunState::new(0), settings).unwrap();
    let certain_to = born.at.offset as usize;
    let header = crate::journal::header::Header::length(&identity().note);
    let mut dice = Dice(3);
    let mut log = reopen(&born.medium.bytes, settings);
    let mut states = vec![(certain_to, replay(&born.medium.bytes).unwrap().state)];
    let note = |log: &Log<Memory>, states: &mut Vec<(usize, RunState)>| {
        states.push((log.at.offset as usize, replay(&log.medium.bytes).unwrap().state));
    };
    note(&log, &mut states);
    while log.at.offset < SIZE as u64 - 2_500 {
        commit(&mut log, &mut dice);
        note(&log, &mut states);
        match dice.roll(60) {
            0..12 => log.sync().unwrap(),
            12 => {
                log.checkpoint(Ending::Stopped, 0).unwrap();
                note(&log, &mut states);
            }
            13 => {
                log = reopen(&log.medium.bytes, settings);
                note(&log, &mut states);
            }
            _ => {}
        }
    }
    for _ in 0..8 {
        commit(&mut log, &mut dice);
        note(&log, &mut states);
    }
    let bytes = log.medium.bytes;
    assert_eq!(bytes.len(), SIZE);
    let records = records(&bytes, header);
    Subject { bytes, header, certain_to, records, states }
}

fn records(bytes: &[u8], header: usize) -> Vec<Known> {
    let mut found = Vec::new();
    let mut start = header;
    while let Some(frame) = frame::read(bytes, start, identity().run_id) {
        let synced_to = crate::journal::record::synced_to(frame.body, start as u64).unwrap();
        let end = start + frame.length;
        found.push(Known { start, end, number: frame.number, synced_to: synced_to as usize });
        start = end;
    }
    found
}

impl Subject {
    fn end(&self) -> usize {
        self.records.last().unwrap().end
    }

    /// The state of the longest prefix that ends at or before `offset`.
    fn state_before(&self, offset: usize) -> &RunState {
        let after = self.states.partition_point(|(end, _)| *end <= offset);
        &self.states[after - 1].1
    }

    /// Damage that begins in the record or space at `byte` must lead to this.
    fn check_flip(&self, file: &[u8], byte: usize) {
        let result = replay(file);
        if byte < self.header {
            let refusal = result.unwrap_err();
            assert!(matches!(refusal.field("offset"), Some(Field::Number(0 | 8))), "{refusal}");
            return;
        }
        let at = self.records.partition_point(|record| record.end <= byte);
        let (start, number) = match self.records.get(at) {
            Some(record) => (record.start, record.number),
            None => (self.end(), self.records.len() as u32),
        };
        let later = self.records.iter().skip(at + 1);
        let tail = later.map(|record| record.synced_to).max().unwrap_or(0).max(self.certain_to);
        if start < tail {
            let refusal = result.unwrap_err();
            assert_eq!(refusal.code(), Code::JournalDamaged);
            assert_eq!(refusal.field("offset"), Some(&Field::from(start)), "byte {byte}");
            assert_eq!(refusal.field("record"), Some(&Field::from(number)), "byte {byte}");
        } else {
            let found = result.unwrap();
            assert_eq!(&found.state, self.state_before(start), "byte {byte}");
            let torn = found.torn.unwrap();
            assert_eq!((torn.offset, torn.record), (start as u64, number), "byte {byte}");
        }
    }
}

#[test]
fn the_journal_under_test_has_a_certain_part_and_a_tail() {
    let subject = subject();
    let tail = subject.records.iter().map(|record| record.synced_to).max().unwrap();
    assert!(tail > SIZE / 2 && tail < subject.end() - 500, "both sides are exercised");
    assert!(subject.states.iter().any(|(_, state)| state.epoch > 2), "resumes are in it");
    assert!(subject.end() < SIZE - 500, "room taken ahead is in it");
    let whole = replay(&subject.bytes).unwrap();
    assert_eq!(whole.torn, None);
    assert_eq!(&whole.state, subject.state_before(SIZE));
}

#[test]
fn every_bit_flip_is_cut_from_the_tail_or_refused_with_its_place() {
    let subject = subject();
    std::thread::scope(|scope| {
        for half in 0..2 {
            let subject = &subject;
            scope.spawn(move || {
                let mut file = subject.bytes.clone();
                for byte in (half..SIZE).step_by(2) {
                    for bit in 0..8 {
                        file[byte] ^= 1 << bit;
                        subject.check_flip(&file, byte);
                        file[byte] ^= 1 << bit;
                    }
                }
            });
        }
    });
}

#[test]
fn every_truncation_leaves_a_correct_prefix_or_is_refused() {
    let subject = subject();
    for length in 0..SIZE {
        let result = replay(&subject.bytes[..length]);
        if length < subject.certain_to {
            let refusal = result.unwrap_err();
            assert!(refusal.field("offset").is_some(), "cut at {length}: {refusal}");
            continue;
        }
        let found = result.unwrap();
        assert_eq!(&found.state, subject.state_before(length), "cut at {length}");
        let whole = subject.states.iter().any(|(end, _)| *end == length);
        assert_eq!(found.torn.is_some(), !whole && length < subject.end(), "cut at {length}");
    }
}

#[test]
fn a_lost_page_before_the_tail_is_refused_and_in_the_tail_is_cut() {
    let subject = subject();
    for page in (0..SIZE).step_by(512).skip(1) {
        let mut file = subject.bytes.clone();
        if file[page..page + 512].iter().all(|&byte| byte == 0) {
            continue;
        }
        file[page..page + 512].fill(0);
        // The first byte that really changed decides which record is hit.
        let hit = (page..page + 512).find(|&at| subject.bytes[at] != 0).unwrap();
        let at = subject.records.partition_point(|record| record.end <= hit);
        let start = subject.records[at].start;
        let survivors = subject.records.iter().filter(|record| record.start >= page + 512);
        let tail = survivors.map(|record| record.synced_to).max().unwrap_or(0);
        match replay(&file) {
            Ok(found) => {
                assert!(start >= tail, "page {page} was certain");
                assert_eq!(&found.state, subject.state_before(start));
            }
            Err(refusal) => {
                assert!(start < tail.max(subject.certain_to), "page {page}: {refusal}");
                assert_eq!(refusal.field("offset"), Some(&Field::from(start)));
            }
        }
    }
}
