//! `--halt`: what it counts, what it ends, and what stands afterwards.

use std::io::Write;
use std::time::{Duration, Instant};

use super::{Bench, await_end, await_gone, run, said};

#[test]
fn halt_soon_stops_after_the_failures_and_resumes() {
    let bench = Bench::new(100);
    let said = run(bench.command(&["-j1", "--halt", "soon,fail=2"]));
    said.refused("RUN_STOPPED");
    assert_eq!(bench.begun().len(), 14, "items 7 and 14 fail");
    run(bench.command(&["-j4"])).refused("ITEMS_FAILED");
    assert_eq!(bench.out(), bench.expected());
}

/// Runs items one at a time under a policy; returns how many were begun.
fn begun_under(policy: &str, script: &str) -> usize {
    let bench = Bench::new(20);
    let script = format!("echo B {{}} >> notes; {script}");
    let said = run(bench.bare(&["-j1", "--halt", policy, "-a", "items", "--", &script]));
    assert_eq!(said.code, 1, "{policy}: {}", said.stderr);
    assert!(said.stderr.starts_with("RUN_STOPPED: "), "{policy}: {}", said.stderr);
    assert!(said.stderr.contains("--halt"), "{policy}: {}", said.stderr);
    bench.begun().len()
}

#[test]
fn halt_counts_failures_successes_all_and_shares_of_them() {
    let odd_fail = "[ $(({} % 2)) = 0 ]";
    assert_eq!(begun_under("soon,fail=3", odd_fail), 5);
    assert_eq!(begun_under("soon,success=3", odd_fail), 6);
    assert_eq!(begun_under("soon,done=3", odd_fail), 3);
    assert_eq!(begun_under("now,done=4", odd_fail), 4);
    assert_eq!(begun_under("soon,fail=50%", "[ {} -lt 3 ]"), 4, "2 of 4, after 1 of 3");
    assert_eq!(begun_under("soon,success=60%", "[ {} -ge 3 ]"), 5, "3 of 5, after 2 of 4");
    assert_eq!(begun_under("now,done=100%", odd_fail), 3, "fewer than three are not judged");
}

#[test]
fn a_policy_that_is_not_reached_changes_nothing() {
    let bench = Bench::new(20);
    run(bench.command(&["-j2", "--halt", "now,fail=3"])).refused("ITEMS_FAILED");
    assert_eq!(bench.out(), bench.expected());
}

/// The first item does this as soon as the second one runs, which goes on like this. In a second run that
/// one ends at once.
fn with_a_neighbour(first: &str, second: &str) -> String {
    let begins = "[ -e second ] && exit 0; echo $$ >> pids";
    format!(
        "if [ {{}} = 1 ]; then until [ -e pids ]; do sleep 0.01; done; {first}; fi; {begins}; {second}"
    )
}

#[test]
fn halt_now_commits_the_success_that_it_was_told_to_wait_for() {
    let bench = Bench::new(2);
    let script = with_a_neighbour("echo found; exit 0", "trap '' TERM; while :; do sleep 1; done");
    let words = ["-j2", "--halt", "now,success=1", "--grace", "0s", "--journal", "run.journal"];
    let mut command = bench.bare(&words);
    command.args(["--out", "out", "-a", "items", "--", &script]);
    let said = run(command);
    said.refused("RUN_STOPPED");
    assert!(said.stderr.contains("--halt"), "{}", said.stderr);
    await_gone(&bench);
    assert_eq!(bench.out(), "found\n");
    let status = bench.status();
    assert_eq!((&status["cursor"], &status["success"]), (&1.into(), &1.into()));
    assert_eq!(status["state"], "stopped");
}

#[test]
fn halt_now_commits_the_failure_that_made_it_end_and_shows_why() {
    let bench = Bench::new(2);
    let script = with_a_neighbour("echo B 1 >> notes; echo oops >&2; exit 3", "exec sleep 71");
    let words = ["-j2", "--halt", "now,fail=1", "--journal", "run.journal", "-a", "items", "--"];
    let command = || {
        let mut command = bench.bare(&words);
        command.arg(&script);
        command
    };
    let said = run(command());
    assert_eq!((said.code, said.stdout.as_str()), (1, ""));
    assert!(said.stderr.starts_with("oops\nRUN_STOPPED: "), "{}", said.stderr);
    await_gone(&bench);
    let status = bench.status();
    assert_eq!((&status["cursor"], &status["fail"]), (&1.into(), &1.into()));
    std::fs::write(bench.path("second"), "").unwrap();
    run(command()).refused("ITEMS_FAILED");
    assert_eq!(bench.begun(), [1], "a failed item is final");
}

#[test]
fn halt_now_leaves_what_it_ends_and_what_is_behind_that_to_the_resume() {
    let bench = Bench::new(3);
    let begun = Instant::now();
    let script = "[ -e second ] && { echo {}; exit 0; }; echo $$ >> pids; \
                  [ {} = 2 ] || exec sleep 65; until [ $(wc -l < pids) = 3 ]; do sleep 0.01; done";
    let command = |policy: &str| {
        let mut command = bench.bare(&["-j3", "--halt", policy, "--journal", "run.journal"]);
        command.args(["--out", "out", "-a", "items", "--", script]);
        command
    };
    run(command("now,success=1")).refused("RUN_STOPPED");
    assert!(begun.elapsed() < Duration::from_secs(20));
    await_gone(&bench);
    assert_eq!((bench.status()["cursor"].as_u64(), bench.out().as_str()), (Some(0), ""));
    std::fs::write(bench.path("second"), "").unwrap();
    assert_eq!(run(command("never")).code, 0);
    assert_eq!(bench.out(), "1\n2\n3\n");
}

#[test]
fn a_halt_does_not_wait_for_input() {
    let bench = Bench::new(1);
    let mut command = bench.bare(&["-j2", "--halt", "now,fail=1", "exit 3"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(b"a\n").unwrap();
    await_end(&mut child);
    drop(stdin);
    let said = said(child);
    said.refused("RUN_STOPPED");
    assert!(said.stderr.contains("--halt"), "{}", said.stderr);
}
