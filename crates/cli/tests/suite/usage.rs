//! What every command has in common.

use std::io::Read;
use std::process::{Command, Stdio};

use super::sprag;

#[test]
fn wrong_usage_exits_2_and_teaches() {
    for args in [&["machines", "nonsense"][..], &["canon", "--nonsense"], &["plan"], &["nonsense"]]
    {
        let said = sprag(args, "");
        assert_eq!(said.code, 2, "{args:?}");
        assert_eq!(said.stdout, "");
        assert!(said.stderr.contains("--help"), "{}", said.stderr);
    }
}

#[test]
fn wrong_usage_with_json_is_a_coded_error() {
    let said = sprag(&["machines", "nonsense", "--json"], "");
    assert_eq!(said.code, 2);
    assert_eq!(said.error()["error_code"], "USAGE");
}

#[test]
fn help_of_every_command_exits_0() {
    for args in [&["--help"][..], &["machines", "--help"], &["ledger", "explain", "--help"]] {
        let said = sprag(args, "");
        assert_eq!(said.code, 0);
        assert!(said.stdout.contains("Usage: sprag"), "{}", said.stdout);
    }
}

#[test]
fn a_reader_that_goes_away_is_not_an_error() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sprag"))
        .args(["canon"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut stdin = child.stdin.take().unwrap();
    let document = format!("[{}0]", "0,".repeat(200_000));
    std::io::Write::write_all(&mut stdin, document.as_bytes()).unwrap();
    drop(stdin);
    let mut stderr = String::new();
    child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
    assert!(child.wait().unwrap().success(), "{stderr}");
    assert_eq!(stderr, "");
}
