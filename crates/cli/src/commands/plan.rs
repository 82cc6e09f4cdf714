//! `sprag plan`: entries in, windows out, one line each; nothing but the open window is held.

use std::fs::File;
use std::io::{self, BufRead, Read};
use std::path::PathBuf;

use clap::Args;
use serde::Serialize;
use serde::de::DeserializeOwned;
use sprag_kernel::keys::Hash;
use sprag_kernel::planner::{Entry, PlanConfig, PlanHasher, Planner, Snapshot};
use sprag_kernel::{Code, Refusal};

use super::read_all;
use crate::output::{Failure, Output, unreadable};

/// A configuration is a few hundred bytes.
const MAX_CONFIG_BYTES: u64 = 1 << 20;
/// An entry is two numbers.
const MAX_LINE_BYTES: u64 = 64 << 10;

/// Arguments of `sprag plan`.
#[derive(Debug, Args)]
#[command(after_help = "\
Reads one entry per line, {\"cost\": 10, \"bytes\": 32}, and prints one line per window, then the
hash of the plan. If an entry is refused, the windows before it are printed and the hash is not.

The configuration is a JSON object: targetCost, maxCost, maxBytes, maxSpan, minEntries, maxEntries,
and optionally adaptive, shrink, grow, commitLagSoft, bufferedBytesSoft and
snapshot {commitLag, bufferedBytes, util}.

Example:
  echo '{\"targetCost\":30,\"maxCost\":50,\"maxBytes\":200,\"maxSpan\":8,\"minEntries\":1,\"maxEntries\":4}' > plan.json
  seq 12 | sed 's/.*/{\"cost\":10,\"bytes\":32}/' | sprag plan --config plan.json")]
pub struct PlanArgs {
    /// The plan's configuration, as JSON.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
}

#[derive(Serialize)]
struct PlanHash {
    plan_hash: String,
}

/// Runs `sprag plan`.
pub fn run(args: &PlanArgs, output: &mut Output) -> Result<(), Failure> {
    let (config, snapshot) = read_config(args)?;
    let mut planner = Planner::new(config);
    let mut hasher = PlanHasher::new(&config);
    if let Some(snapshot) = &snapshot {
        planner.adapt(Some(snapshot));
        hasher.snapshot(snapshot);
    }
    let mut lines = Lines { source: io::stdin().lock(), number: 0, line: Vec::new() };
    while let Some(entry) = lines.next_entry()? {
        hasher.entry(entry);
        if let Some(window) = planner.push(entry) {
            output.json(&window)?;
        }
    }
    if let Some(window) = planner.finish() {
        output.json(&window)?;
    }
    output.json(&PlanHash { plan_hash: Hash::from_bytes(hasher.digest()).to_string() })
}

fn read_config(args: &PlanArgs) -> Result<(PlanConfig, Option<Snapshot>), Refusal> {
    let name = args.config.display().to_string();
    let file = File::open(&args.config).map_err(|error| unreadable(&name, &error))?;
    let text = read_all(file, &name, MAX_CONFIG_BYTES)?;
    let mut members: serde_json::Map<String, serde_json::Value> = parse(&text)?;
    let snapshot = members.remove("snapshot").unwrap_or(serde_json::Value::Null);
    let config: PlanConfig = from_value(serde_json::Value::Object(members))?;
    config.check()?;
    Ok((config, from_value(snapshot)?))
}

fn parse<T: DeserializeOwned>(text: &[u8]) -> Result<T, Refusal> {
    serde_json::from_slice(text).map_err(|error| invalid_config(&error))
}

fn from_value<T: DeserializeOwned>(value: serde_json::Value) -> Result<T, Refusal> {
    serde_json::from_value(value).map_err(|error| invalid_config(&error))
}

fn invalid_config(error: &serde_json::Error) -> Refusal {
    Refusal::new(Code::PlanConfigInvalid).with("reason", error.to_string())
}

/// Entries, line by line.
struct Lines<R> {
    source: R,
    number: u64,
    line: Vec<u8>,
}

impl<R: BufRead> Lines<R> {
    fn next_entry(&mut self) -> Result<Option<Entry>, Refusal> {
        loop {
            self.line.clear();
            let mut limited = self.source.by_ref().take(MAX_LINE_BYTES + 1);
            let read = limited.read_until(b'\n', &mut self.line);
            let length = read.map_err(|error| unreadable("standard input", &error))?;
            self.number += 1;
            match length as u64 {
                0 => return Ok(None),
                length if length > MAX_LINE_BYTES => {
                    return Err(Refusal::new(Code::InputTooLarge)
                        .with("line", self.number)
                        .with("limit_bytes", MAX_LINE_BYTES));
                }
                _ if self.line.trim_ascii().is_empty() => {}
                _ => return self.entry().map(Some),
            }
        }
    }

    fn entry(&self) -> Result<Entry, Refusal> {
        let entry: Entry = serde_json::from_slice(&self.line).map_err(|error| {
            Refusal::new(Code::PlanEntryInvalid)
                .with("line", self.number)
                .with("reason", error.to_string())
        })?;
        entry.check().map_err(|refusal| refusal.with("line", self.number))?;
        Ok(entry)
    }
}
