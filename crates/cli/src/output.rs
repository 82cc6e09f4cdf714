//! Answers go to stdout, errors to stderr. A reader that closes the pipe early is not an error.

use std::fmt::Display;
use std::io::{self, BufWriter, Stdout, Write};
use std::process::ExitCode;

use serde::Serialize;
use sprag_kernel::{Code, Refusal};

/// Why a command did not finish.
#[derive(Debug)]
pub enum Failure {
    /// Refused or failed, with a code.
    Refused(Refusal),
    /// Whoever read stdout has gone; there is nothing left to say.
    ReaderGone,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Where a command's answer goes.
#[derive(Debug)]
pub struct Output {
    json: bool,
    stdout: BufWriter<Stdout>,
}

impl Output {
    /// An output for programs or for people.
    pub fn new(json: bool) -> Self {
        Self { json, stdout: BufWriter::new(io::stdout()) }
    }

    /// Whether a program reads it.
    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints one line.
    pub fn line(&mut self, line: impl Display) -> Result<(), Failure> {
        writeln!(self.stdout, "{line}").map_err(|error| write_failure(&error))
    }

    /// Prints one JSON line.
    pub fn json(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        self.line(serde_json::to_string(value).expect("answers have string keys"))
    }

    /// Hands over all that is buffered.
    pub fn finish(&mut self) -> Result<(), Failure> {
        self.stdout.flush().map_err(|error| write_failure(&error))
    }
}

fn write_failure(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => Failure::ReaderGone,
        _ => Failure::Refused(unreadable("standard output", error)),
    }
}

/// The refusal for a file or stream that cannot be read or written.
pub fn unreadable(what: impl Display, error: &io::Error) -> Refusal {
    Refusal::new(Code::InputUnreadable)
        .with("what", what.to_string())
        .with("reason", error.to_string())
}

/// Prints a refusal; exit 1, or 2 if the command line was wrong.
pub fn report_refusal(refusal: &Refusal, json: bool) -> ExitCode {
    let line = if json {
        serde_json::to_string(refusal).expect("refusals have string keys")
    } else {
        refusal.to_string()
    };
    // Nothing can be done for a caller that has closed stderr too.
    let _ = writeln!(io::stderr(), "{line}");
    ExitCode::from(if refusal.code() == Code::Usage { 2 } else { 1 })
}

/// Prints help and version to stdout (exit 0), wrong usage to stderr (exit 2).
pub fn report_usage(error: &clap::Error, json: bool) -> ExitCode {
    if error.use_stderr() && json {
        let text = error.to_string();
        let reason = text.lines().next().unwrap_or_default().trim_start_matches("error: ");
        let refusal = Refusal::new(Code::Usage).with("reason", reason.to_owned());
        report_refusal(&refusal, true);
    } else {
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}
