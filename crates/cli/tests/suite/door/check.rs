//! `sprag worker-check`, run against workers that are as they should be, and against one that is not.

use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use super::program;
use crate::{Said, sprag};

/// The manual's worker, with work of our own, and its form for long work beside it.
fn workers(work: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let (before, after) = program("def run(").split_once("def work(directive):\n").unwrap();
    let (_, after) = after.split_once("\n\n").unwrap();
    let worker = format!("{before}{work}\n\n{after}");
    fs::write(folder.path().join("worker.py"), worker).unwrap();
    fs::write(folder.path().join("alive.py"), program("def alive(")).unwrap();
    folder
}

fn duties() -> &'static str {
    program("asked[\"do\"]")
}

fn check(folder: &Path, exec: &str, args: &[&str]) -> Said {
    let exec = format!("cd '{}' && exec {exec}", folder.display());
    sprag(&[&["worker-check", "--json", "--exec", &exec], args].concat(), "")
}

/// The checks that failed.
fn failed(said: &Said) -> Vec<String> {
    let checks: Vec<Value> =
        said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(checks.len() >= 6, "{}{}", said.stdout, said.stderr);
    let bad = checks.iter().filter(|check| check["ok"] == false);
    bad.map(|check| check["check"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_manuals_worker_passes_what_concerns_short_work() {
    let folder = workers(duties());
    let said = check(folder.path(), "python3 worker.py", &["--short"]);
    assert_eq!(failed(&said), [""; 0], "{}", said.stdout);
    assert_eq!(said.code, 0, "{}", said.stderr);
}

#[test]
fn the_manuals_worker_for_long_work_passes_everything() {
    let folder = workers(duties());
    let said = check(folder.path(), "python3 alive.py", &[]);
    assert_eq!(failed(&said), [""; 0], "{}", said.stdout);
    assert_eq!(said.code, 0, "{}", said.stderr);
}

#[test]
fn a_command_under_sprag_worker_passes_everything() {
    let folder = tempfile::tempdir().unwrap();
    let command = format!(
        "import json, sys\n{}\ntry: print(json.dumps(work(json.load(sys.stdin))))\n\
         except ValueError: sys.exit(65)\nexcept OSError: sys.exit(1)\n",
        duties()
    );
    fs::write(folder.path().join("command.py"), command).unwrap();
    let program = env!("CARGO_BIN_EXE_sprag");
    let exec =
        format!("'{program}' worker --service \"$SERVICE\" --exec 'python3 command.py' -j 4");
    let said = check(folder.path(), &exec, &[]);
    assert_eq!(failed(&said), [""; 0], "{}", said.stdout);
    assert_eq!(said.code, 0, "{}", said.stderr);
}

#[test]
fn a_worker_that_is_wrong_is_told_where() {
    // It calls everything a success, loses what it was given, and knows no signs of life.
    let folder = workers("def work(directive):\n    return 7\n");
    let said = check(folder.path(), "python3 worker.py", &["--timeout", "10"]);
    assert_eq!((said.code, &said.error()["error_code"]), (1, &"WORKER_UNFIT".into()));
    let failed = failed(&said);
    for wrong in [
        "does a step and reports its output",
        "does many steps, each once",
        "reports a failure that may pass",
        "reports a failure for good",
        "shows signs of life while it works",
    ] {
        assert!(failed.iter().any(|name| name == wrong), "{wrong}: {failed:?}");
    }
}

#[test]
fn a_worker_that_shows_no_signs_of_life_fails_that_check_alone() {
    let folder = workers(duties());
    let said = check(folder.path(), "python3 worker.py", &["--timeout", "12"]);
    assert_eq!(said.code, 1);
    let failed = failed(&said);
    assert_eq!(failed, ["shows signs of life while it works", "stops when its job is cancelled"]);
}

#[test]
fn a_worker_that_does_not_start_fails_every_check() {
    let folder = tempfile::tempdir().unwrap();
    let begun = std::time::Instant::now();
    let exec = "echo there is no such interpreter >&2; exit 3";
    let said = check(folder.path(), exec, &["--short", "--timeout", "300"]);
    assert_eq!((said.code, failed(&said).len()), (1, 6), "{}", said.stdout);
    assert!(begun.elapsed() < std::time::Duration::from_secs(300), "its end is noticed");
    assert!(said.stdout.contains("the worker has ended"), "{}", said.stdout);
    assert!(said.stdout.contains("no such interpreter"), "{}", said.stdout);
}
