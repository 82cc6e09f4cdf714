//! What the journal refuses, what it repeats without harm, and when it syncs.

use sprag_kernel::Code;
use sprag_kernel::error::Field;

use super::*;
use crate::journal::frame::{self, Place};
use crate::journal::outcome::EqualRun;
use crate::journal::record::Record;
use crate::journal::state::Ending;

const DONE: Ended = Ended { outcome: Outcome::Success, attempts: 0 };
const FAILED: Ended = Ended { outcome: Outcome::Fail, attempts: 2 };

fn run(first_seq: u64, ends: &[Ended]) -> CommitRun<'_> {
    let end = first_seq + ends.len() as u64;
    let hash = [end as u8; 32];
    CommitRun { first_seq, ends, mark: end * 10, input_hash: hash, outcome_hash: end }
}

/// A journal of seqs 0 to 4 with records planted behind it, as a faulty writer would leave them.
fn planted(records: &[Record]) -> Vec<u8> {
    let mut log = begin(small());
    log.append(&run(0, &[DONE, DONE, FAILED, DONE, DONE]), 0).unwrap();
    let (mut bytes, mut offset) = (log.medium.bytes, log.at.offset);
    bytes.truncate(offset as usize);
    for (number, record) in (log.at.number..).zip(records) {
        let place = Place { run_id: identity().run_id, offset, epoch: log.at.epoch, number };
        let body = record.encode(offset, log.at.synced_to);
        offset += frame::write(&mut bytes, place, &body) as u64;
    }
    bytes
}

fn terminal(first: u64, ends: &[Ended]) -> Record {
    Record::Terminal(crate::journal::outcome::runs_of(first, ends).collect())
}

fn code(bytes: &[u8]) -> Code {
    replay(bytes).unwrap_err().code()
}

#[test]
fn a_second_outcome_for_a_seq_is_corruption_even_in_the_tail() {
    let bytes = planted(&[terminal(2, &[DONE])]);
    let refusal = replay(&bytes).unwrap_err();
    assert_eq!(refusal.code(), Code::SeqOutcomeConflict);
    assert_eq!(refusal.field("seq"), Some(&Field::from(2_u64)));
    assert!(refusal.field("offset").is_some() && refusal.field("record").is_some());
}

#[test]
fn a_second_outcome_before_the_commit_is_corruption_too() {
    let bytes = planted(&[terminal(5, &[DONE, DONE]), terminal(6, &[FAILED, DONE])]);
    assert_eq!(code(&bytes), Code::SeqOutcomeConflict);
}

#[test]
fn the_same_outcome_again_changes_nothing() {
    let once = replay(&planted(&[])).unwrap();
    let again = run(0, &[DONE, DONE, FAILED, DONE, DONE]).point();
    let twice =
        planted(&[terminal(1, &[DONE, FAILED]), terminal(3, &[DONE]), Record::Commit(again)]);
    let twice = replay(&twice).unwrap();
    assert_eq!(once.state, twice.state);
    assert_eq!(twice.torn, None);
}

#[test]
fn an_outcome_that_overlaps_counts_only_what_is_new() {
    let point = run(3, &[DONE, DONE, FAILED]).point();
    let found =
        replay(&planted(&[terminal(3, &[DONE, DONE, FAILED]), Record::Commit(point)])).unwrap();
    assert_eq!(found.state.cursor(), 6);
    assert_eq!(found.state.counts.total(), 6);
    assert_eq!(found.state.outcomes.seqs(Outcome::Fail).collect::<Vec<_>>(), [2, 5]);
    assert_eq!(found.state.retries, 4);
}

#[test]
fn outcomes_without_their_commit_are_cut() {
    let found = replay(&planted(&[terminal(5, &[DONE, DONE])])).unwrap();
    assert_eq!(found.state.cursor(), 5);
    assert!(found.torn.is_some());
}

#[test]
fn records_that_contradict_the_ones_before_are_refused() {
    let early = CommitRun { mark: 3, ..run(5, &[DONE]) }.point();
    let checkpoint = |cursor: u64| {
        Record::Checkpoint(crate::journal::record::Checkpoint {
            ending: Ending::Complete,
            cursor,
            counts: crate::journal::state::Counts { success: cursor, ..Default::default() },
            retries: 0,
            spacing: 0,
            owner: 1,
        })
    };
    let gap = Record::Terminal(vec![EqualRun { first: 6, length: 1, ended: DONE }]);
    let cases = [
        vec![gap],
        vec![Record::Commit(run(0, &[DONE; 7]).point())],
        vec![terminal(5, &[DONE]), Record::Commit(run(5, &[DONE; 2]).point())],
        vec![terminal(5, &[DONE]), Record::Commit(early)],
        vec![checkpoint(5)],
        vec![checkpoint(4)],
    ];
    for case in cases {
        assert_eq!(code(&planted(&case)), Code::JournalDamaged, "{case:?}");
    }
}

#[test]
fn an_unknown_version_is_refused_by_name() {
    let mut bytes = planted(&[]);
    bytes[8] = 2;
    let refusal = replay(&bytes).unwrap_err();
    assert_eq!(refusal.code(), Code::JournalVersion);
    assert_eq!(refusal.field("version"), Some(&Field::from(2_u32)));
}

#[test]
fn a_file_that_is_no_journal_is_not_called_damaged() {
    assert_eq!(code(b"seq\tHost\tStarttime\n"), Code::JournalForeign);
    assert_eq!(code(b""), Code::JournalForeign);
}

#[test]
fn a_frame_of_another_run_or_place_is_not_whole() {
    let bytes = planted(&[]);
    let header = crate::journal::header::Header::length(&identity().note);
    assert!(frame::read(&bytes, header, identity().run_id).is_some());
    assert!(frame::read(&bytes, header, RunId([0; 16])).is_none());
    let mut moved = vec![0; 8];
    moved.extend_from_slice(&bytes);
    assert!(frame::read(&moved, header + 8, identity().run_id).is_none());
}

#[test]
fn a_record_of_an_earlier_epoch_behind_a_later_one_does_not_count() {
    let mut log = begin(small());
    log.append(&run(0, &[DONE]), 0).unwrap();
    let mut old = begin(small());
    (old.at, old.totals) = (log.at, log.totals);
    // A paused writer of epoch 1 would write here, but epoch 2 has begun.
    let mut new = reopen(&log.medium.bytes, small());
    old.at.number = new.at.number;
    old.at.offset = new.at.offset;
    old.medium = new.medium.clone();
    old.append(&run(1, &[FAILED]), 0).unwrap();
    let found = replay(&old.medium.bytes).unwrap();
    assert_eq!(found.state.cursor(), 1);
    assert!(found.torn.is_some());
    new.append(&run(1, &[DONE]), 0).unwrap();
    assert_eq!(replay(&new.medium.bytes).unwrap().state.counts.success, 2);
}

#[test]
fn the_policy_says_when_a_commit_is_synced() {
    let syncs = |sync, sync_wait_ms, now: &[u64]| {
        let mut log = begin(Settings { sync, sync_wait_ms, sync_bytes: 1 << 20, ..small() });
        let before = log.medium.syncs;
        for (seq, &now) in now.iter().enumerate() {
            log.append(&run(seq as u64, &[DONE]), now).unwrap();
        }
        log.medium.syncs - before
    };
    let times = [0, 5, 10, 19, 21, 22, 50];
    assert_eq!(syncs(SyncPolicy::None, 20, &times), 0);
    assert_eq!(syncs(SyncPolicy::Always, 20, &times), 7);
    assert_eq!(syncs(SyncPolicy::Batch, 20, &times), 2, "at 21 and at 50");
}

#[test]
fn a_full_group_does_not_wait_for_its_time() {
    let settings =
        Settings { sync: SyncPolicy::Batch, sync_wait_ms: 1_000, sync_bytes: 300, ..small() };
    let mut log = begin(settings);
    let before = log.medium.syncs;
    for seq in 0..8 {
        log.append(&run(seq, &[DONE]), 0).unwrap();
    }
    assert!(log.medium.syncs - before >= 2);
    assert_eq!(log.sync_due_at(), (log.at.offset > log.at.synced_to).then_some(1_000));
}

#[test]
fn after_a_failed_write_nothing_more_is_written() {
    let mut log = begin(small());
    log.append(&run(0, &[DONE]), 0).unwrap();
    let before = log.medium.bytes.clone();
    log.medium.fail_next = true;
    assert_eq!(log.append(&run(1, &[DONE]), 0).unwrap_err().code(), Code::JournalUnavailable);
    let again = log.append(&run(2, &[DONE]), 0).unwrap_err();
    assert_eq!(again.code(), Code::JournalUnavailable);
    assert!(log.sync().is_err());
    assert_eq!(log.medium.bytes, before);
}

#[test]
fn a_batch_too_large_for_one_frame_is_split_and_comes_back_whole() {
    let mut dice = Dice(5);
    let ends: Vec<Ended> = (0..400_000).map(|_| dice.end()).collect();
    let mut log = begin(small());
    log.append(&run(0, &ends), 0).unwrap();
    let found = replay(&log.medium.bytes).unwrap();
    assert_eq!(found.state.cursor(), 400_000);
    for (seq, end) in ends.iter().enumerate() {
        assert_eq!(found.state.outcomes.get(seq as u64), Some(*end));
    }
}

#[test]
fn a_changed_input_is_refused_with_the_range_of_the_first_difference() {
    let mut log = begin(small());
    for first in [0, 3, 6] {
        log.append(&run(first, &[DONE; 3]), 0).unwrap();
    }
    let mut check = replay(&log.medium.bytes).unwrap().state.input_check();
    assert_eq!(check.next_end(), Some(3));
    check.check(&[3; 32]).unwrap();
    assert_eq!(check.next_end(), Some(6));
    let refusal = check.check(&[0; 32]).unwrap_err();
    assert_eq!(refusal.code(), Code::PlanChanged);
    assert_eq!(refusal.field("first_seq"), Some(&Field::from(3_u64)));
    assert_eq!(refusal.field("last_seq"), Some(&Field::from(5_u64)));
    assert_eq!(check.finish(7).unwrap_err().code(), Code::PlanChanged);
    check.check(&[6; 32]).unwrap();
    check.check(&[9; 32]).unwrap();
    assert_eq!(check.next_end(), None);
    check.finish(9).unwrap();
    check.finish(12).unwrap();
}
