//! `sprag map status`: what a journal says, without touching it.

use std::path::Path;

use serde::Serialize;
use sprag_kernel::Refusal;
use sprag_lanes::journal::{Ending, EqualRun, Outcome, RunState, inspect};

use super::args::StatusArgs;
use super::orphans;
use super::render::hex;
use crate::output::{Failure, Output, unreadable};

/// Ranges of seqs that are listed; the counts say the rest.
const MAX_RANGES: usize = 50;

#[derive(Serialize)]
struct Status {
    journal: String,
    run_id: String,
    command: String,
    /// What may be done with it: `complete`, `stopped`, `running`, `killed`.
    state: &'static str,
    clean: bool,
    cursor: u64,
    success: u64,
    skip: u64,
    fail: u64,
    cancel: u64,
    retries: u64,
    failed: Vec<String>,
    skipped: Vec<String>,
    cancelled: Vec<String>,
    output_bytes: u64,
    epoch: u32,
    records: u32,
    bytes: u64,
    in_use_by: Option<u32>,
    /// Commands of a killed run that are still alive; a resume waits for them.
    commands_left: Vec<i32>,
    torn: Option<TornTail>,
    blocked_by: Option<String>,
}

#[derive(Serialize)]
struct TornTail {
    offset: u64,
    record: u32,
    bytes: u64,
}

/// Runs `sprag map status`.
pub(super) fn run(args: &StatusArgs, output: &mut Output) -> Result<(), Failure> {
    let status = read(&args.journal)?;
    if output.is_json() {
        return output.json(&status);
    }
    output.line(format_args!("journal    {} (epoch {})", status.journal, status.epoch))?;
    output.line(format_args!("command    {}", status.command))?;
    let clean = if status.clean { "clean" } else { "not closed in good order" };
    output.line(format_args!("state      {}, {clean}", status.state))?;
    output.line(format_args!("cursor     {} items committed", status.cursor))?;
    output.line(format_args!(
        "outcomes   {} success, {} skip, {} fail, {} cancel; {} retries",
        status.success, status.skip, status.fail, status.cancel, status.retries
    ))?;
    for (name, ranges) in
        [("failed", &status.failed), ("skipped", &status.skipped), ("cancelled", &status.cancelled)]
    {
        if !ranges.is_empty() {
            output.line(format_args!("{name:<10} seq {}", ranges.join(", ")))?;
        }
    }
    output.line(format_args!("output     {} bytes", status.output_bytes))?;
    output.line(format_args!("size       {} records, {} bytes", status.records, status.bytes))?;
    if let Some(torn) = &status.torn {
        output.line(format_args!(
            "torn tail  {} bytes at offset {}, record {}; a resume cuts them",
            torn.bytes, torn.offset, torn.record
        ))?;
    }
    if let Some(reason) = &status.blocked_by {
        output.line(format_args!("blocked    {reason}"))?;
    }
    Ok(())
}

fn read(path: &Path) -> Result<Status, Refusal> {
    let (found, in_use) = inspect(path)?;
    let left = orphans::left_behind(path).map_err(|error| unreadable(path.display(), &error))?;
    let commands_left: Vec<i32> = left.iter().map(|pid| pid.as_raw_nonzero().get()).collect();
    let state = &found.state;
    let counts = state.counts;
    Ok(Status {
        journal: path.display().to_string(),
        run_id: hex(&found.identity.run_id.0),
        command: String::from_utf8_lossy(&found.identity.note).into_owned(),
        state: match (state.ending, in_use) {
            (_, true) => "running",
            (Ending::Complete, false) => "complete",
            (Ending::Stopped, false) => "stopped",
            (Ending::Open, false) => "killed",
        },
        clean: found.torn.is_none() && state.ending != Ending::Open,
        cursor: state.cursor(),
        success: counts.success,
        skip: counts.skip,
        fail: counts.fail,
        cancel: counts.cancel,
        retries: state.retries,
        failed: ranges(state, Outcome::Fail),
        skipped: ranges(state, Outcome::Skip),
        cancelled: ranges(state, Outcome::Cancel),
        output_bytes: state.last.mark,
        epoch: state.epoch,
        records: found.records,
        bytes: found.length,
        in_use_by: in_use.then_some(state.owner),
        // Of a run in progress these are its own.
        blocked_by: blocked_by(state, in_use, &commands_left),
        commands_left: if in_use { Vec::new() } else { commands_left },
        // A reader may meet a record half written.
        torn: found.torn.filter(|_| !in_use).map(|torn| TornTail {
            offset: torn.offset,
            record: torn.record,
            bytes: torn.bytes,
        }),
    })
}

/// What stands between this journal and its next commit.
fn blocked_by(state: &RunState, in_use: bool, left: &[i32]) -> Option<String> {
    if in_use {
        Some(format!("process {} runs it: seq {} is next", state.owner, state.cursor()))
    } else if !left.is_empty() {
        let list = left.iter().map(i32::to_string).collect::<Vec<_>>().join(", ");
        Some(format!("commands of a killed run are still alive: process {list}"))
    } else {
        (state.ending != Ending::Complete).then(|| {
            format!("nobody runs it: repeat the command to go on at seq {}", state.cursor())
        })
    }
}

/// Seqs with this outcome as ranges, the first of them.
fn ranges(state: &RunState, outcome: Outcome) -> Vec<String> {
    let alike = state.outcomes.runs().iter().filter(|run| run.ended.outcome == outcome);
    let mut joined: Vec<(u64, u64)> = Vec::new();
    for run in alike {
        let full = joined.len() > MAX_RANGES;
        match joined.last_mut() {
            Some((_, end)) if *end == run.first => *end = run.end(),
            _ if full => break,
            _ => joined.push((run.first, EqualRun::end(run))),
        }
    }
    let more = joined.len() > MAX_RANGES;
    let one = |&(first, end): &(u64, u64)| match end - first {
        1 => first.to_string(),
        _ => format!("{first}-{}", end - 1),
    };
    let listed = joined.iter().take(MAX_RANGES).map(one);
    listed.chain(more.then(|| "...".to_owned())).collect()
}
