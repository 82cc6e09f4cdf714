//! `sprag map` from outside.

mod behaviour;
mod halt;
mod interrupt;
mod kill;
mod resume;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::Said;

/// A folder with items, a command that notes when it begins and ends, a journal and an output.
struct Bench {
    folder: tempfile::TempDir,
    items: u64,
}

/// Notes its beginning and end in one line each, so that overlaps and repeats show. Every seventh item
/// fails after half its output. A closed pipe must not keep it from noting its end.
const WORK: &str = r#"#!/bin/sh
trap '' PIPE
echo "B $1" >> "$NOTES"
printf 'item %s begins\n' "$1" 2>/dev/null
[ $(($1 % 7)) = 0 ] && { echo "E $1" >> "$NOTES"; exit 3; }
printf 'item %s ends\n' "$1" 2>/dev/null
echo "E $1" >> "$NOTES"
"#;

impl Bench {
    fn new(items: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let list: String = (1..=items).flat_map(|item| [item.to_string(), "\n".into()]).collect();
        fs::write(folder.path().join("items"), list).unwrap();
        fs::write(folder.path().join("work"), WORK).unwrap();
        fs::write(folder.path().join("notes"), "").unwrap();
        Self { folder, items }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// `sprag map` over the items with journal and output, and these options.
    fn command(&self, options: &[&str]) -> Command {
        let mut command = self.bare(options);
        command.args(["--journal", "run.journal", "--out", "out", "-a", "items"]);
        command.args(["--", "/bin/sh", "work", "{}"]);
        command
    }

    /// `sprag map` in the folder with these words only.
    fn bare(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sprag"));
        command.arg("map").args(words).current_dir(self.folder.path());
        command.env("NOTES", self.path("notes")).stdin(Stdio::null());
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn out(&self) -> String {
        fs::read_to_string(self.path("out")).unwrap()
    }

    /// What the output must be.
    fn expected(&self) -> String {
        let well = (1..=self.items).filter(|item| item % 7 != 0);
        let lines = well.flat_map(|item| ["begins", "ends"].map(|what| (item, what)));
        lines.fold(String::new(), |text, (item, what)| text + &format!("item {item} {what}\n"))
    }

    fn notes(&self) -> Vec<(bool, u64)> {
        let notes = fs::read_to_string(self.path("notes")).unwrap();
        let note = |line: &str| (line.starts_with('B'), line[2..].parse().unwrap());
        notes.lines().map(note).collect()
    }

    /// Items that were begun, in the order of their beginnings.
    fn begun(&self) -> Vec<u64> {
        self.notes().into_iter().filter(|(begins, _)| *begins).map(|(_, item)| item).collect()
    }

    fn status(&self) -> serde_json::Value {
        said(self.bare(&["status", "run.journal", "--json"]).spawn().unwrap()).json()
    }
}

/// Waits for the end of a command.
fn said(child: Child) -> Said {
    let output = child.wait_with_output().unwrap();
    Said {
        stdout: String::from_utf8(output.stdout).unwrap(),
        stderr: String::from_utf8(output.stderr).unwrap(),
        code: output.status.code().unwrap_or(-1),
    }
}

fn run(mut command: Command) -> Said {
    said(command.spawn().unwrap())
}

/// Waits until a file has at least so many lines.
fn await_lines(path: &Path, lines: usize) {
    let begun = Instant::now();
    while fs::read_to_string(path).unwrap_or_default().lines().count() < lines {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} stays short", path.display());
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn send(child: &Child, signal: rustix::process::Signal) {
    rustix::process::kill_process(rustix::process::Pid::from_child(child), signal).unwrap();
}

/// Waits until a process has ended, whether its output is read or not.
fn await_end(child: &mut Child) {
    let begun = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if begun.elapsed() > Duration::from_secs(20) {
            child.kill().unwrap();
            panic!("it does not end");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until no process that noted its number lives.
fn await_gone(bench: &Bench) {
    let pids = fs::read_to_string(bench.path("pids")).unwrap();
    let begun = Instant::now();
    for pid in pids.lines().map(|line| line.parse().unwrap()) {
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        while rustix::process::test_kill_process(pid).is_ok() {
            assert!(begun.elapsed() < Duration::from_secs(10), "process {pid:?} lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
