//! `sprag demo`: a summary that is checked, and nothing left behind.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// Of these documents one is damaged, three are shaky, and two publishers die after their effect.
const DOCUMENTS: &str = "24";

fn demo(folder: &std::path::Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sprag"));
    // Settings for another server that the demo must not obey.
    command.env("SPRAG_SERVER", "http://127.0.0.1:1").env("SPRAG_LISTEN", "0.0.0.0:7070");
    command.args(["demo", "--documents", DOCUMENTS]).args(args).env("TMPDIR", folder);
    command
}

#[test]
fn the_demo_ends_as_its_script_says_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let said = demo(folder.path(), &["--json"]).output().unwrap();
    let errors = String::from_utf8_lossy(&said.stderr).into_owned();
    assert!(said.status.success(), "{errors}");
    let summary: Value = serde_json::from_slice(&said.stdout).unwrap();
    assert_eq!(
        (&summary["jobs"], &summary["succeeded"], &summary["failed"]),
        (&24.into(), &23.into(), &1.into())
    );
    // Two steps for each document that is whole, and two to four pages.
    let pages: u64 = (1..=24).filter(|n| n % 50 != 17).map(|n| 2 + n % 3).sum();
    assert_eq!(summary["steps"], 23 * 2 + pages);
    assert_eq!(summary["published"], 23);
    assert_eq!(summary["duplicates_prevented"]["submits"], 24);
    let at_least =
        |count: &Value, least: u64| assert!(count.as_u64().unwrap() >= least, "{summary}");
    at_least(&summary["duplicates_prevented"]["effects"], 2);
    at_least(&summary["leases_lost"], 1);
    at_least(&summary["retries"], 3 + 2 + 1);
    at_least(&summary["audit"]["checks"], 20);
    assert_eq!(summary["audit"]["violations"], 0);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0, "the folder is gone");
}

#[test]
fn a_demo_that_is_kept_goes_on_until_a_signal_and_tells_a_job_digit_by_digit() {
    let folder = tempfile::tempdir().unwrap();
    let mut kept = demo(folder.path(), &["--keep"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (stdout, stderr) = (kept.stdout.take().unwrap(), kept.stderr.take().unwrap());
    let told = std::thread::spawn(move || std::io::read_to_string(stdout).unwrap());
    let mut heard = Vec::new();
    for line in BufReader::new(stderr).lines().map_while(Result::ok) {
        heard.push(line);
        if heard.last().unwrap().contains("Ctrl-C ends them") {
            break;
        }
    }
    let url = heard.iter().find_map(|line| line.split("go on at ").nth(1)).expect("the address");
    let url = url.split(". In").next().unwrap();
    let mut answer = ureq::get(format!("{url}/healthz")).call().unwrap();
    assert!(answer.body_mut().read_to_string().unwrap().contains("true"), "it is still there");
    let pid = Pid::from_raw(i32::try_from(kept.id()).unwrap()).unwrap();
    kill_process(pid, Signal::INT).unwrap();
    let begun = Instant::now();
    let status = loop {
        if let Some(status) = kept.try_wait().unwrap() {
            break status;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not end");
        std::thread::sleep(Duration::from_millis(10));
    };
    assert!(status.success(), "{status}");
    let told = told.join().unwrap();
    for part in ["clean: ", "SUCCEEDED", "001111100000001  000111100000001", "Leg1 entered once"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(ureq::get(format!("{url}/healthz")).call().is_err(), "the server ended with it");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "the folder stays");
}
