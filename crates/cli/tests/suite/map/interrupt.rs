//! Ctrl-C, its repetition, and orders to end.

use std::fs;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{Bench, await_end, await_gone, await_lines, run, said, send};

#[test]
fn ctrl_c_lets_running_commands_end_and_the_same_command_goes_on() {
    let bench = Bench::new(200);
    let child = bench.command(&["-j3"]).spawn().unwrap();
    await_lines(&bench.path("notes"), 40);
    send(&child, Signal::INT);
    said(child).refused("RUN_STOPPED");
    assert_eq!(bench.status()["state"], "stopped");
    let stopped_at = bench.begun().len();
    assert!(stopped_at < 200);
    assert_eq!(bench.status()["cursor"], stopped_at, "all that was begun is committed");
    run(bench.command(&["-j2"])).refused("ITEMS_FAILED");
    assert_eq!(bench.out(), bench.expected());
    let mut begun = bench.begun();
    begun.sort_unstable();
    assert_eq!(begun, (1..=200).collect::<Vec<_>>(), "nothing ran twice");
}

#[test]
fn a_second_ctrl_c_ends_the_commands_and_their_children() {
    let bench = Bench::new(4);
    let words = ["-j2", "--journal", "run.journal", "--grace", "60s", "-a", "items", "--"];
    // Asked to end, it says that it failed; but it did not, it was ended.
    let script = "trap 'exit 3' TERM; echo $$ >> pids; sleep 63 & echo $! >> pids; wait; echo {}";
    let begun = Instant::now();
    let mut command = bench.bare(&words);
    let child = command.arg(script).spawn().unwrap();
    await_lines(&bench.path("pids"), 4);
    send(&child, Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    send(&child, Signal::INT);
    said(child).refused("RUN_STOPPED");
    assert!(begun.elapsed() < Duration::from_secs(20));
    await_gone(&bench);
    let status = bench.status();
    assert_eq!(status["cursor"], 0, "what the run ended itself is not committed as failed");
    assert_eq!(status["state"], "stopped");
}

#[test]
fn an_order_to_end_that_reaches_the_commands_too_does_not_make_them_fail() {
    let bench = Bench::new(2);
    let words = ["-j2", "--journal", "run.journal", "--out", "out", "-a", "items", "--"];
    let script = "[ -e second ] || { echo $$ >> pids; exec sleep 68; }; echo {}";
    let command = || {
        let mut command = bench.bare(&words);
        command.arg(script);
        command
    };
    let child = command().spawn().unwrap();
    await_lines(&bench.path("pids"), 2);
    end_commands(&bench);
    send(&child, Signal::TERM);
    said(child).refused("RUN_STOPPED");
    assert_eq!(bench.status()["cursor"], 0);
    fs::write(bench.path("second"), "").unwrap();
    assert_eq!(run(command()).code, 0);
    assert_eq!(bench.out(), "1\n2\n");
}

#[test]
fn at_the_end_of_the_grace_commands_are_ended_and_run_again_at_the_resume() {
    let bench = Bench::new(3);
    let words = ["-j3", "--journal", "run.journal", "--out", "out", "--grace", "100ms"];
    let script = "if [ -e second ] || [ {} = 1 ]; then echo {}; else echo $$ >> pids; sleep 64; fi";
    let command = || {
        let mut command = bench.bare(&words);
        command.args(["-a", "items", "--", script]);
        command
    };
    let child = command().spawn().unwrap();
    await_lines(&bench.path("pids"), 2);
    await_lines(&bench.path("out"), 1);
    send(&child, Signal::TERM);
    said(child).refused("RUN_STOPPED");
    await_gone(&bench);
    assert_eq!(bench.status()["cursor"], 1);
    fs::write(bench.path("second"), "").unwrap();
    assert_eq!(run(command()).code, 0);
    assert_eq!(bench.out(), "1\n2\n3\n");
}

#[test]
fn cancel_on_interrupt_gives_every_item_an_outcome() {
    let bench = Bench::new(1_000);
    let child = bench.command(&["-j2", "--cancel-on-interrupt"]).spawn().unwrap();
    await_lines(&bench.path("notes"), 20);
    send(&child, Signal::INT);
    said(child).refused("ITEMS_FAILED");
    let status = bench.status();
    assert_eq!(status["state"], "complete");
    assert!(status["cancel"].as_u64().unwrap() > 0);
    let outcomes = ["success", "fail", "cancel"].map(|name| status[name].as_u64().unwrap());
    assert_eq!(outcomes.iter().sum::<u64>(), status["cursor"].as_u64().unwrap());
}

/// Items that do not end by themselves, all to be cancelled at an interrupt.
fn endless(bench: &Bench) -> std::process::Command {
    let mut command = bench.bare(&["-j2", "--cancel-on-interrupt", "--grace", "60s", "--jsonl"]);
    command.args(["--journal", "run.journal", "--out", "out", "-a", "items", "--"]);
    command.arg("echo begun; echo $$ >> pids; exec sleep 69");
    command
}

/// Asserts that every item of the bench was cancelled, the first two while they ran.
fn assert_cancelled(bench: &Bench) {
    let status = bench.status();
    assert_eq!((&status["state"], &status["clean"]), (&"complete".into(), &true.into()));
    assert_eq!((&status["cursor"], &status["cancel"]), (&bench.items.into(), &bench.items.into()));
    let out = bench.out();
    let records: Vec<serde_json::Value> =
        out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for (seq, record) in (0..bench.items).zip(&records) {
        assert_eq!((&record["seq"], &record["outcome"]), (&seq.into(), &"cancel".into()));
        assert_eq!(record["output"], if seq < 2 { "begun\n" } else { "" });
    }
}

#[test]
fn a_second_ctrl_c_cancels_commands_that_do_not_end_by_themselves() {
    let bench = Bench::new(4);
    let child = endless(&bench).spawn().unwrap();
    await_lines(&bench.path("pids"), 2);
    send(&child, Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    send(&child, Signal::INT);
    said(child).refused("ITEMS_FAILED");
    await_gone(&bench);
    assert_cancelled(&bench);
}

#[test]
fn an_order_to_end_that_reaches_the_commands_too_cancels_them() {
    let bench = Bench::new(4);
    let child = endless(&bench).spawn().unwrap();
    await_lines(&bench.path("pids"), 2);
    end_commands(&bench);
    send(&child, Signal::TERM);
    said(child).refused("ITEMS_FAILED");
    assert_cancelled(&bench);
}

#[test]
fn a_second_ctrl_c_ends_a_run_whose_output_nobody_reads() {
    let bench = Bench::new(4);
    let script = "head -c 300000 /dev/zero | tr '\\0' {}; echo; echo {} >> done";
    let words = ["-j2", "--journal", "run.journal", "-a", "items", "--", script];
    let mut child = bench.bare(&words).spawn().unwrap();
    await_lines(&bench.path("done"), 4);
    send(&child, Signal::INT);
    std::thread::sleep(Duration::from_millis(100));
    send(&child, Signal::INT);
    await_end(&mut child);
    let cut = said(child);
    assert_eq!(cut.code, 1);
    assert!(cut.stderr.starts_with("RUN_STOPPED: "), "{}", cut.stderr);
    assert!(cut.stdout.len() < 300_000, "nobody has read");
    assert_eq!(bench.status()["cursor"], 0, "what was not written is not journalled");
    let whole = run(bench.bare(&words));
    assert_eq!((whole.code, whole.stdout.len()), (0, 4 * 300_001));
}

#[test]
fn waiting_for_input_does_not_hinder_a_stop() {
    let bench = Bench::new(1);
    let mut command = bench.bare(&["--journal", "run.journal", "--out", "out", "echo"]);
    let mut child = command.stdin(std::process::Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, b"one\ntwo\nthr").unwrap();
    await_lines(&bench.path("out"), 2);
    send(&child, Signal::INT);
    said(child).refused("RUN_STOPPED");
    drop(stdin);
    assert_eq!((bench.out().as_str(), &bench.status()["state"]), ("one\ntwo\n", &"stopped".into()));
}

/// Sends the order to end to the commands that noted their numbers.
fn end_commands(bench: &Bench) {
    for pid in fs::read_to_string(bench.path("pids")).unwrap().lines() {
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::TERM).unwrap();
    }
}
