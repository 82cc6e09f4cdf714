//! `sprag ledger explain`: fifteen digits, drawn and read out.

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use sprag_kernel::{ActivityLedger, GuidLedger};

use crate::output::{Failure, Output};

/// Arguments of `sprag ledger`.
#[derive(Debug, Args)]
pub struct LedgerArgs {
    #[command(subcommand)]
    command: LedgerCommand,
}

#[derive(Debug, Subcommand)]
enum LedgerCommand {
    /// Say what each digit means and what happens next.
    Explain(ExplainArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag ledger explain 001111100000001
  sprag ledger explain 000111100000001 --kind guid
  sprag ledger explain 002100000000000 --json")]
struct ExplainArgs {
    /// All fifteen digits.
    digits: String,
    /// Whose ledger it is.
    #[arg(long, value_enum, default_value_t = Kind::Activity)]
    kind: Kind,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Kind {
    /// The ledger of an attempt.
    Activity,
    /// The ledger of the message that ends an attempt.
    Guid,
}

#[derive(Serialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum Explained {
    Activity {
        digits: String,
        leg1_entries: u64,
        leg1_complete: bool,
        work_done: bool,
        children_spawned: bool,
        completion_tasks_done: bool,
        leg2_entries: u64,
        dimension: Option<u64>,
    },
    Guid {
        digits: String,
        job_closed: bool,
        work_done: bool,
        children_spawned: bool,
        completion_tasks_done: bool,
        ordinal: u64,
        dimension: Option<u64>,
    },
}

/// Runs `sprag ledger`.
pub fn run(args: &LedgerArgs, output: &mut Output) -> Result<(), Failure> {
    let LedgerCommand::Explain(args) = &args.command;
    match args.kind {
        Kind::Activity => activity(ActivityLedger::parse(&args.digits)?, output),
        Kind::Guid => guid(GuidLedger::parse(&args.digits)?, output),
    }
}

/// Draws the digits of an attempt.
pub fn activity(ledger: ActivityLedger, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(&Explained::Activity {
            digits: ledger.to_string(),
            leg1_entries: ledger.leg1_entries(),
            leg1_complete: ledger.leg1_complete(),
            work_done: ledger.work_done(),
            children_spawned: ledger.children_spawned(),
            completion_tasks_done: ledger.completion_tasks_done(),
            leg2_entries: ledger.leg2_entries(),
            dimension: ledger.dimension(),
        });
    }
    let meanings = [
        format!("Leg1 entered {}", times(ledger.leg1_entries())),
        done("the directive is committed", ledger.leg1_complete()),
        done("the outcome is committed (Step 1)", ledger.work_done()),
        done("what follows is committed (Step 2)", ledger.children_spawned()),
        done("the job's completion tasks are committed (Step 3)", ledger.completion_tasks_done()),
        format!("Leg2 entered {}{}", times(ledger.leg2_entries()), dimension(ledger.dimension())),
    ];
    drawing("activity ledger of an attempt", &ledger.to_string(), &meanings, output)?;
    output.line(format_args!("\n{}", ledger.next()))
}

/// Draws the digits of a message.
pub fn guid(ledger: GuidLedger, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(&Explained::Guid {
            digits: ledger.to_string(),
            job_closed: ledger.job_closed(),
            work_done: ledger.work_done(),
            children_spawned: ledger.children_spawned(),
            completion_tasks_done: ledger.completion_tasks_done(),
            ordinal: ledger.ordinal(),
            dimension: ledger.dimension(),
        });
    }
    let ordinal = match ledger.ordinal() {
        0 => "never delivered".to_owned(),
        n => format!("Leg2 entry {n} of its attempt{}", dimension(ledger.dimension())),
    };
    let meanings = [
        "reserved".to_owned(),
        done("this message closed the job", ledger.job_closed()),
        done("its outcome is committed (Step 1)", ledger.work_done()),
        done("what follows is committed (Step 2)", ledger.children_spawned()),
        done("the job's completion tasks are committed (Step 3)", ledger.completion_tasks_done()),
        ordinal,
    ];
    drawing("GUID ledger of a message", &ledger.to_string(), &meanings, output)?;
    output.line(format_args!("\n{}", ledger.next()))
}

fn done(what: &str, is_done: bool) -> String {
    format!("{}: {what}", if is_done { "yes" } else { "no" })
}

fn times(count: u64) -> String {
    match count {
        0 => "never".to_owned(),
        1 => "once".to_owned(),
        n => format!("{n} times"),
    }
}

fn dimension(dimension: Option<u64>) -> String {
    dimension.map_or_else(String::new, |dimension| format!(", dimension {dimension}"))
}

/// Draws six groups of digits with a line from each to its meaning, the last group first.
fn drawing(
    title: &str,
    digits: &str,
    meanings: &[String; 6],
    output: &mut Output,
) -> Result<(), Failure> {
    // Columns in which the groups 1-3, 4, 5, 6, 7, 8-15 hang their lines.
    const HANGERS: [usize; 6] = [3, 7, 9, 11, 13, 20];
    let groups =
        [&digits[..3], &digits[3..4], &digits[4..5], &digits[5..6], &digits[6..7], &digits[7..]];
    output.line(format_args!("{title}\n"))?;
    output.line(format_args!(
        "  {}  {} {} {} {}  {}",
        groups[0], groups[1], groups[2], groups[3], groups[4], groups[5]
    ))?;
    output.line("  └┬┘  │ │ │ │  └───┬──┘")?;
    for group in (0..6).rev() {
        let mut line = String::new();
        for hanger in &HANGERS[..group] {
            line.push_str(&" ".repeat(hanger - line.chars().count()));
            line.push('│');
        }
        line.push_str(&" ".repeat(HANGERS[group] - line.chars().count()));
        output.line(format_args!("{line}└ {}", meanings[group]))?;
    }
    Ok(())
}
