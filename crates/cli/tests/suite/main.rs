//! The `sprag` binary from outside: real processes, real pipes.

#![allow(clippy::unwrap_used)]

mod canon;
mod demo;
mod docs;
mod door;
mod examples;
mod job;
mod ledger;
mod machines;
mod map;
mod move_store;
mod plan;
mod protocol;
mod usage;

use std::io::Write;
use std::process::{Command, Stdio};

/// What a finished command said.
struct Said {
    stdout: String,
    stderr: String,
    code: i32,
}

impl Said {
    fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.stdout).expect("one JSON document on stdout")
    }

    fn error(&self) -> serde_json::Value {
        serde_json::from_str(&self.stderr).expect("one JSON document on stderr")
    }

    /// Asserts a refusal: exit 1, nothing on stdout, one line on stderr that starts with the code.
    #[track_caller]
    fn refused(&self, code: &str) {
        assert_eq!(self.code, 1, "{}", self.stderr);
        assert_eq!(self.stdout, "");
        assert_eq!(self.stderr.lines().count(), 1, "{}", self.stderr);
        assert!(self.stderr.starts_with(&format!("{code}: ")), "{}", self.stderr);
    }
}

fn sprag(args: &[&str], stdin: impl AsRef<[u8]>) -> Said {
    let mut child = Command::new(env!("CARGO_BIN_EXE_sprag"))
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut pipe = child.stdin.take().expect("a pipe");
    let input = stdin.as_ref().to_vec();
    // A command that refuses early does not read to the end.
    let writer = std::thread::spawn(move || drop(pipe.write_all(&input)));
    let output = child.wait_with_output().expect("the binary ends");
    writer.join().expect("the writer ends");
    Said {
        stdout: String::from_utf8(output.stdout).expect("UTF-8"),
        stderr: String::from_utf8(output.stderr).expect("UTF-8"),
        code: output.status.code().expect("no signal ended it"),
    }
}
