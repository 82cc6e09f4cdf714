//! The journal as a file, with real processes.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use sprag_kernel::{Code, Refusal};

use super::*;
use crate::journal::state::Ending;
use crate::journal::{Journal, Replay, inspect};

const DONE: Ended = Ended { outcome: Outcome::Success, attempts: 0 };

fn open(path: &Path) -> Result<(Journal, Replay), Refusal> {
    Journal::open_or_create(path, &identity(), Settings::default())
}

fn add(journal: &mut Journal, ends: &[Ended]) -> Result<(), Refusal> {
    append_at(journal, journal.cursor(), ends)
}

fn append_at(journal: &mut Journal, first_seq: u64, ends: &[Ended]) -> Result<(), Refusal> {
    let end = first_seq + ends.len() as u64;
    let hash = [end as u8; 32];
    let run = CommitRun { first_seq, ends, mark: end, input_hash: hash, outcome_hash: end };
    journal.append(&run, 0)
}

#[test]
fn a_run_that_was_dropped_in_the_middle_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let (mut journal, found) = open(&path).unwrap();
    assert_eq!((found.state.cursor(), found.state.ending), (0, Ending::Open));
    add(&mut journal, &[DONE; 5]).unwrap();
    drop(journal);
    let (mut journal, found) = open(&path).unwrap();
    assert_eq!((found.state.cursor(), found.state.epoch), (5, 1));
    add(&mut journal, &[DONE; 2]).unwrap();
    journal.close(Ending::Complete, 0).unwrap();
    let (found, in_use) = inspect(&path).unwrap();
    assert!(!in_use && found.torn.is_none());
    assert_eq!((found.state.cursor(), found.state.ending), (7, Ending::Complete));
    assert_eq!(fs::metadata(&path).unwrap().len(), found.length, "room taken ahead is given back");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing is left beside it");
}

#[test]
fn appending_is_idempotent_by_seq() {
    let folder = tempfile::tempdir().unwrap();
    let (mut journal, _) = open(&folder.path().join("run.journal")).unwrap();
    let failed = Ended { outcome: Outcome::Fail, attempts: 1 };
    append_at(&mut journal, 0, &[DONE, failed, DONE]).unwrap();
    append_at(&mut journal, 1, &[failed, DONE]).unwrap();
    append_at(&mut journal, 1, &[failed, DONE, DONE]).unwrap();
    assert_eq!(journal.cursor(), 4);
    let conflict = append_at(&mut journal, 1, &[DONE]).unwrap_err();
    assert_eq!(conflict.code(), Code::SeqOutcomeConflict);
    let gap = append_at(&mut journal, 5, &[DONE]).unwrap_err();
    assert_eq!(gap.code(), Code::SeqNotCursor);
    assert_eq!(journal.cursor(), 4);
}

#[test]
fn another_run_or_another_plan_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let (mut journal, _) = open(&path).unwrap();
    add(&mut journal, &[DONE]).unwrap();
    drop(journal);
    let before = fs::read(&path).unwrap();
    let refused = |identity: Identity| {
        Journal::open_or_create(&path, &identity, Settings::default()).unwrap_err()
    };
    let other = refused(Identity { run_id: RunId([1; 16]), ..identity() });
    assert_eq!(other.code(), Code::JournalOtherRun);
    assert!(other.to_string().contains("seq 9 | work {}"), "{other}");
    let changed = refused(Identity { plan_hash: [0; 32], ..identity() });
    assert_eq!(changed.code(), Code::PlanChanged);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn damage_before_the_tail_is_refused_and_the_file_left_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    for _ in 0..3 {
        let (mut journal, _) = open(&path).unwrap();
        add(&mut journal, &[DONE; 3]).unwrap();
    }
    let mut bytes = fs::read(&path).unwrap();
    let header = crate::journal::header::Header::length(&identity().note);
    bytes[header + 60] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(open(&path).unwrap_err().code(), Code::JournalDamaged);
    assert_eq!(fs::read(&path).unwrap(), bytes);
}

#[test]
fn a_torn_tail_is_cut_once_and_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let (mut journal, _) = open(&path).unwrap();
    add(&mut journal, &[DONE; 3]).unwrap();
    add(&mut journal, &[DONE; 4]).unwrap();
    drop(journal);
    let (whole, _) = inspect(&path).unwrap();
    let file = fs::OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(whole.length - 5).unwrap();
    let (journal, found) = open(&path).unwrap();
    assert_eq!(found.state.cursor(), 3);
    assert!(found.torn.is_some_and(|torn| torn.bytes > 0));
    drop(journal);
    let (_, found) = open(&path).unwrap();
    assert_eq!((found.state.cursor(), found.torn), (3, None));
}

#[test]
fn a_long_run_is_compacted_on_the_way_and_stays_locked() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let settings = Settings {
        sync: SyncPolicy::None,
        segment_bytes: 4096,
        checkpoint_every: 100,
        compact_bytes: 200_000,
        ..Settings::default()
    };
    let (mut journal, _) = Journal::open_or_create(&path, &identity(), settings).unwrap();
    for _ in 0..20_000 {
        add(&mut journal, &[DONE; 3]).unwrap();
    }
    assert!(fs::metadata(&path).unwrap().len() < 500_000, "2.5 MB were appended");
    assert_eq!(open(&path).unwrap_err().code(), Code::JournalInUse);
    drop(journal);
    let (_, found) = open(&path).unwrap();
    assert_eq!(found.state.cursor(), 60_000);
    assert_eq!(found.state.outcomes.runs().len(), 1);
}

#[test]
fn what_a_killed_creation_or_compaction_left_behind_is_no_hindrance() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    fs::write(folder.path().join("run.journal.new"), b"half a header").unwrap();
    fs::write(folder.path().join("run.journal.compact"), vec![7; 9_000]).unwrap();
    let (mut journal, _) = open(&path).unwrap();
    add(&mut journal, &[DONE; 3]).unwrap();
    journal.compact(0).unwrap();
    drop(journal);
    assert_eq!(open(&path).unwrap().1.state.cursor(), 3);
}

#[test]
fn a_second_name_that_a_killed_creation_left_costs_no_journal() {
    let folder = tempfile::tempdir().unwrap();
    let (path, aside) = (folder.path().join("run.journal"), folder.path().join("first.journal"));
    let (mut journal, _) = open(&path).unwrap();
    add(&mut journal, &[DONE; 3]).unwrap();
    drop(journal);
    // As after a kill between the two calls that give a new journal its name.
    fs::hard_link(&path, folder.path().join("run.journal.new")).unwrap();
    fs::rename(&path, &aside).unwrap();
    assert_eq!(open(&path).unwrap().1.state.cursor(), 0, "a new run begins under the old name");
    assert_eq!(open(&aside).unwrap().1.state.cursor(), 3, "the first one is untouched");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2, "nothing else is left");
}

/// Not a test of its own: the second process of the one below, which sets the variable.
#[test]
fn holder() {
    let Some(path) = std::env::var_os("SPRAG_TEST_HOLD_JOURNAL") else { return };
    let (mut journal, _) = open(Path::new(&path)).unwrap();
    add(&mut journal, &[DONE; 2]).unwrap();
    println!("\nholding");
    std::thread::sleep(std::time::Duration::from_secs(60));
}

#[test]
fn a_journal_held_by_another_process_is_refused_until_that_process_is_killed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.journal");
    let mut holder = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "journal::tests::disk::holder", "--nocapture"])
        .env("SPRAG_TEST_HOLD_JOURNAL", &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(holder.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "holding"));
    assert_eq!(open(&path).unwrap_err().code(), Code::JournalInUse);
    let (seen, in_use) = inspect(&path).unwrap();
    assert!(in_use && seen.state.owner == holder.id());
    holder.kill().unwrap();
    holder.wait().unwrap();
    assert_eq!(open(&path).unwrap().1.state.cursor(), 2);
}

/// The writing process of the test below, killed by the fault hook.
#[cfg(feature = "fault")]
#[test]
fn writer() {
    let Some(path) = std::env::var_os("SPRAG_TEST_WRITE_JOURNAL") else { return };
    let settings = Settings {
        sync: SyncPolicy::Always,
        segment_bytes: 512,
        checkpoint_every: 4,
        compact_bytes: 700,
        ..Settings::default()
    };
    let (mut journal, _) =
        Journal::open_or_create(Path::new(&path), &identity(), settings).unwrap();
    while journal.cursor() < 60 {
        add(&mut journal, &[DONE; 3]).unwrap();
        println!("\ncommitted {}", journal.cursor());
    }
    journal.close(Ending::Complete, 0).unwrap();
    println!("\nclosed");
}

/// Creation, appending, segments, checkpoints, compaction, closing: at every point of every one of
/// them the process is killed, and what it had acknowledged is there.
#[cfg(feature = "fault")]
#[test]
fn killed_at_every_write_point_a_journal_keeps_what_it_acknowledged() {
    let folder = tempfile::tempdir().unwrap();
    for torn in [false, true] {
        for point in 1_u32.. {
            let path = folder.path().join(format!("{point}{torn}.journal"));
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["--exact", "journal::tests::disk::writer", "--nocapture"]);
            command.env("SPRAG_TEST_WRITE_JOURNAL", &path);
            command.env("SPRAG_FAULT_KILL_AT", point.to_string());
            if torn {
                command.env("SPRAG_FAULT_TORN", "1");
            }
            let output = command.output().unwrap();
            let said = String::from_utf8(output.stdout).unwrap();
            let mut committed = said.lines().filter_map(|line| line.strip_prefix("committed "));
            let acknowledged: u64 = committed.next_back().map_or(0, |last| last.parse().unwrap());
            let (_, found) = open(&path).unwrap();
            let cursor = found.state.cursor();
            assert!((acknowledged..=acknowledged + 3).contains(&cursor), "point {point}: {cursor}");
            assert_eq!(found.state.counts.success, cursor);
            if said.contains("closed") {
                assert!(point > 70, "only {point} points were passed");
                break;
            }
        }
    }
}
