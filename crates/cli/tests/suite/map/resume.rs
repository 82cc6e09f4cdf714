//! What a journal accepts, what it refuses, and what a killed run leaves behind.

use std::fs;
use std::time::{Duration, Instant};

use super::{Bench, await_lines, run, said};

#[test]
fn a_finished_run_runs_nothing_again_and_a_longer_input_goes_on() {
    let bench = Bench::new(10);
    run(bench.command(&["-j2"])).refused("ITEMS_FAILED");
    run(bench.command(&["-j2"])).refused("ITEMS_FAILED");
    assert_eq!(bench.begun().len(), 10);
    let mut list = fs::read_to_string(bench.path("items")).unwrap();
    list.push_str("11\n12\n");
    fs::write(bench.path("items"), list).unwrap();
    run(bench.command(&["-j2"])).refused("ITEMS_FAILED");
    let longer = Bench { items: 12, ..bench };
    assert_eq!(longer.begun().len(), 12);
    assert_eq!(longer.out(), longer.expected());
}

#[test]
fn an_edited_input_is_refused_with_the_range_that_differs() {
    let bench = Bench::new(200);
    run(bench.command(&["-j1", "--sync", "always"])).refused("ITEMS_FAILED");
    let before = (bench.out(), fs::read(bench.path("run.journal")).unwrap());
    let text = fs::read_to_string(bench.path("items")).unwrap();
    fs::write(bench.path("items"), text.replace("\n120\n", "\n12O\n")).unwrap();
    let said = run(bench.command(&["-j1", "--json"]));
    let error: serde_json::Value =
        serde_json::from_str(said.stderr.lines().last().unwrap()).unwrap();
    assert_eq!(error["error_code"], "PLAN_CHANGED");
    let [first, last] =
        ["first_seq", "last_seq"].map(|name| error["fields"][name].as_u64().unwrap());
    assert!((first..=last).contains(&119), "{first} to {last}");
    assert!(last - first < 60, "{first} to {last}");
    assert_eq!(bench.out(), before.0);
    fs::write(bench.path("items"), "1\n2\n").unwrap();
    run(bench.command(&["-j1"])).refused("PLAN_CHANGED");
    assert_eq!(bench.out(), before.0);
}

#[test]
fn a_journal_of_another_command_is_refused_by_name() {
    let bench = Bench::new(3);
    run(bench.command(&[]));
    let words = ["--journal", "run.journal", "--out", "out", "-a", "items", "--", "echo", "{}"];
    let said = run(bench.bare(&words));
    said.refused("JOURNAL_OTHER_RUN");
    assert!(said.stderr.contains("/bin/sh work"), "{}", said.stderr);
    // Another form of the results is another run too; how it is run may change.
    run(bench.command(&["--tag"])).refused("JOURNAL_OTHER_RUN");
    assert_eq!(run(bench.command(&["-j9", "--retries", "2", "--timeout", "1m"])).code, 0);
}

#[test]
fn a_journal_in_use_is_refused() {
    let bench = Bench::new(2);
    let words = ["-j2", "--journal", "run.journal", "-a", "items", "--", "touch up.{}; sleep 3"];
    let mut child = bench.bare(&words).spawn().unwrap();
    while !bench.path("up.2").exists() {
        std::thread::sleep(Duration::from_millis(2));
    }
    run(bench.bare(&words)).refused("JOURNAL_IN_USE");
    let status = bench.status();
    assert_eq!(status["state"], "running");
    assert_eq!(status["in_use_by"], child.id());
    assert_eq!(
        status["blocked_by"].as_str().unwrap().split(':').next().unwrap(),
        format!("process {} runs it", child.id())
    );
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn a_shorter_output_than_the_journal_knows_is_refused() {
    let bench = Bench::new(3);
    run(bench.command(&[]));
    fs::write(bench.path("out"), "item").unwrap();
    run(bench.command(&[])).refused("OUTPUT_SHORT");
    fs::remove_file(bench.path("out")).unwrap();
    run(bench.command(&[])).refused("OUTPUT_SHORT");
}

#[test]
fn a_damaged_journal_is_refused_and_left_as_it_is() {
    let bench = Bench::new(30);
    run(bench.command(&["--sync", "always"]));
    let mut bytes = fs::read(bench.path("run.journal")).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    fs::write(bench.path("run.journal"), &bytes).unwrap();
    let said = run(bench.command(&[]));
    said.refused("JOURNAL_DAMAGED");
    assert!(
        said.stderr.contains("offset: ") && said.stderr.contains("record: "),
        "{}",
        said.stderr
    );
    assert_eq!(fs::read(bench.path("run.journal")).unwrap(), bytes);
}

/// Item 1 takes its time, and marks a second one of itself that runs beside it.
const SLOW: &str = "mkdir busy || touch twice; sleep 1.5; rmdir busy; echo {}";

fn orphan(bench: &Bench, more: &[&str]) -> std::process::Child {
    let words = ["--journal", "run.journal", "--out", "out", "-a", "items"];
    let mut command = bench.bare(&words);
    command.args(more).args(["--", SLOW]);
    command.spawn().unwrap()
}

#[test]
fn a_resume_waits_for_commands_of_the_killed_run() {
    let bench = Bench::new(1);
    let mut first = orphan(&bench, &[]);
    while !bench.path("busy").exists() {
        std::thread::sleep(Duration::from_millis(1));
    }
    first.kill().unwrap();
    first.wait().unwrap();
    let status = bench.status();
    assert_eq!(status["state"], "killed");
    assert!(!status["commands_left"].as_array().unwrap().is_empty());
    let said = said(orphan(&bench, &[]));
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(said.stderr.contains("waiting for commands of a killed run"), "{}", said.stderr);
    assert!(!bench.path("twice").exists(), "item 1 ran beside itself");
    assert_eq!(bench.out(), "1\n");
}

#[test]
fn end_orphans_ends_them_instead() {
    let bench = Bench::new(1);
    let words = ["--journal", "run.journal", "--out", "out", "-a", "items"];
    let script = "echo $$ >> pids; [ -e second ] || sleep 66; echo {}";
    let mut command = bench.bare(&words);
    let mut first = command.args(["--", script]).spawn().unwrap();
    await_lines(&bench.path("pids"), 1);
    first.kill().unwrap();
    first.wait().unwrap();
    fs::write(bench.path("second"), "").unwrap();
    let begun = Instant::now();
    let mut command = bench.bare(&words);
    let said = said(command.args(["--end-orphans", "--", script]).spawn().unwrap());
    assert_eq!(said.code, 0, "{}", said.stderr);
    assert!(begun.elapsed() < Duration::from_secs(20));
    assert_eq!(bench.out(), "1\n");
}

#[test]
fn failed_items_are_final_until_a_new_run_takes_them() {
    let bench = Bench::new(20);
    run(bench.command(&[])).refused("ITEMS_FAILED");
    let again = |journal: &str| {
        let mut command = bench.bare(&["-a", "items", "--retry-failed", "run.journal"]);
        command.args(["--journal", journal, "--jsonl", "--", "echo", "again {} {#}"]);
        run(command)
    };
    let said = again("again.journal");
    assert_eq!(said.code, 0, "{}", said.stderr);
    let records: Vec<serde_json::Value> =
        said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(records.len(), 2);
    assert_eq!(records[0]["output"], "again 7 7\n");
    assert_eq!((&records[1]["seq"], &records[1]["of_seq"]), (&1.into(), &13.into()));
    let items = fs::read_to_string(bench.path("items")).unwrap();
    fs::write(bench.path("items"), items.replace('7', "seven")).unwrap();
    again("other.journal").refused("PLAN_CHANGED");
    assert_eq!(again("run.journal").code, 2, "the earlier journal is not written to");
    assert_eq!(bench.status()["fail"], 2);
}
