//! What an item's outcome looks like in the output.

use std::fmt::Write as _;

use serde::Serialize;
use sprag_lanes::journal::Outcome;

use super::args::{RunArgs, StderrPolicy};
use super::command::{End, Finished};
use super::items::Item;

/// How results are written.
#[derive(Clone, Copy, Debug)]
pub struct Format {
    layout: Layout,
    keep_failed: bool,
    stderr: StderrPolicy,
    /// Whether items have another place in the input than in the run.
    origins: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layout {
    /// As the command printed it.
    Plain,
    /// Each line behind its item.
    Tagged,
    /// One JSON record per item.
    Records,
}

/// An item with its outcome. Of an item that was cancelled before it ran nothing else is known.
#[derive(Debug)]
pub struct Settled<'a> {
    /// Its seq.
    pub seq: u64,
    /// How it ended.
    pub outcome: Outcome,
    /// Retries before that.
    pub attempts: u32,
    /// The item and what its last command left.
    pub ran: Option<(&'a Item, &'a Finished)>,
}

#[derive(Serialize)]
struct Record<'a> {
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    of_seq: Option<u64>,
    item: Option<String>,
    outcome: &'static str,
    attempts: u32,
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timeout: bool,
    output: std::borrow::Cow<'a, str>,
    /// Present, with the bytes in hexadecimal, if they are not text and `output` had to replace some.
    #[serde(skip_serializing_if = "Option::is_none")]
    output_hex: Option<String>,
}

impl Format {
    /// What the command line asks for.
    pub fn new(args: &RunArgs) -> Self {
        Self {
            layout: match (args.tag, args.jsonl) {
                (_, true) => Layout::Records,
                (true, false) => Layout::Tagged,
                (false, false) => Layout::Plain,
            },
            keep_failed: args.keep_failed,
            stderr: args.stderr,
            origins: args.retry_failed.is_some(),
        }
    }

    /// Lets go of what will never be written of a command that failed.
    pub fn trim_failed(self, finished: &mut Finished) {
        if self.layout != Layout::Records && !self.keep_failed {
            finished.stdout = Vec::new();
        }
        match self.stderr {
            StderrPolicy::Ordered | StderrPolicy::Failed => {}
            StderrPolicy::Pass | StderrPolicy::Drop => finished.stderr = Vec::new(),
        }
    }

    /// Appends what goes to the output.
    pub fn out(self, settled: &Settled<'_>, out: &mut Vec<u8>) {
        if self.layout == Layout::Records {
            serde_json::to_writer(&mut *out, &self.record(settled)).expect("string keys");
            out.push(b'\n');
            return;
        }
        let written = match settled.outcome {
            Outcome::Success => true,
            Outcome::Fail => self.keep_failed,
            Outcome::Skip | Outcome::Cancel => false,
        };
        let Some((item, finished)) = settled.ran.filter(|_| written) else { return };
        if self.layout == Layout::Tagged {
            tagged(&item.text, &finished.stdout, out);
        } else {
            out.extend_from_slice(&finished.stdout);
        }
    }

    /// Appends what goes to stderr.
    pub fn err(self, settled: &Settled<'_>, err: &mut Vec<u8>) {
        let written = match self.stderr {
            StderrPolicy::Ordered => true,
            StderrPolicy::Failed => settled.outcome == Outcome::Fail,
            StderrPolicy::Pass | StderrPolicy::Drop => false,
        };
        let Some((item, finished)) = settled.ran.filter(|_| written) else { return };
        if self.layout == Layout::Tagged {
            tagged(&item.text, &finished.stderr, err);
        } else {
            err.extend_from_slice(&finished.stderr);
        }
    }

    fn record<'a>(self, settled: &Settled<'a>) -> Record<'a> {
        let ran = settled.ran;
        let end = ran.map(|(_, finished)| finished.end);
        let output = ran.map_or(&[][..], |(_, finished)| &finished.stdout);
        Record {
            seq: settled.seq,
            of_seq: ran.filter(|_| self.origins).map(|(item, _)| item.origin),
            item: ran.map(|(item, _)| String::from_utf8_lossy(&item.text).into_owned()),
            outcome: settled.outcome.name(),
            attempts: settled.attempts,
            exit_code: end
                .and_then(|end| if let End::Exit(code) = end { Some(code) } else { None }),
            signal: end.and_then(|end| if let End::Signal(n) = end { Some(n) } else { None }),
            timeout: end == Some(End::Timeout),
            output: String::from_utf8_lossy(output),
            output_hex: std::str::from_utf8(output).err().map(|_| hex(output)),
        }
    }
}

/// Begins every line with the item and a tab.
fn tagged(item: &[u8], text: &[u8], out: &mut Vec<u8>) {
    for line in text.split_inclusive(|&byte| byte == b'\n') {
        out.extend_from_slice(item);
        out.push(b'\t');
        out.extend_from_slice(line);
    }
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string does not fail");
        text
    })
}
