//! The command line of `sprag map` as data.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use sprag_kernel::retry::Millis;
use sprag_lanes::journal::SyncPolicy;

use super::policy::{ExitCodes, Halt};

/// Arguments of `sprag map`.
#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
#[command(disable_help_subcommand = true)]
#[command(override_usage = "sprag map [OPTIONS] [--] COMMAND [WORDS]... [::: ITEMS...]\n       \
                            sprag map status JOURNAL")]
#[command(after_help = "\
The command runs once per item, several at a time; what each one prints to stdout is kept whole and
comes out in the order of the items.

In the command:  {} the item   {.} without its extension   {/} without its folder
                 {//} its folder   {/.} neither folder nor extension   {#} its number, from 1
Without any of them the item is added as the last word. A command of one word that holds shell syntax,
or one with a word such as '|' or '&&', runs in sh, and items are quoted for it; else it is executed
directly. --shell and --no-shell decide it.

With --journal the same command goes on where it was stopped or killed. With --out as well, the file is
cut back to the journalled length first, so that it ends up byte for byte as if nothing had happened.
Into a pipe nothing can be taken back: the results of the last moments before a kill may come twice.
A command runs again only if its result was not yet committed.

Ctrl-C stops: running commands get --grace to end, the same command goes on later. A second Ctrl-C
ends them now, and the run too if nobody reads its output. A failed item is final: its stdout is
left out and the exit code is 1; --retry-failed runs the failed items of a journal again, as a run
of its own.

Examples:
  seq 1 1000 | sprag map -j 8 --journal run.journal --out result.txt -- ./work {}
  sprag map status run.journal
  find . -name '*.wav' -print0 | sprag map -0 -- lame --quiet {} {.}.mp3
  sprag map 'wc -l < {} | tr -d \" \"' ::: *.txt
  sprag map --retries 3 --backoff 1s,10s --timeout 1m -a urls.txt -- curl -fsS {}
  sprag map --jsonl -a ids.txt -- ./probe {} | jq 'select(.outcome == \"fail\")'
  sprag map -a ids.txt --retry-failed run.journal --journal again.journal --out again.txt -- ./work {}")]
pub struct MapArgs {
    /// Look at a journal instead of running.
    #[command(subcommand)]
    pub command: Option<MapCommand>,
    /// The run.
    #[command(flatten)]
    pub run: RunArgs,
}

/// What else `sprag map` can do.
#[derive(Debug, Subcommand)]
pub enum MapCommand {
    /// Show a journal: cursor, outcomes, what blocks, whether it is clean.
    Status(StatusArgs),
}

/// Arguments of `sprag map status`.
#[derive(Debug, Args)]
pub struct StatusArgs {
    /// The journal.
    pub journal: PathBuf,
}

/// A run of commands over items.
#[allow(clippy::struct_excessive_bools)] // flags of a command line are what they are
#[derive(Debug, Args)]
pub struct RunArgs {
    /// Commands at a time [default: number of cores].
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=4096))]
    pub jobs: Option<u16>,
    /// Write down what was committed, so that the same command goes on after a kill.
    #[arg(long, value_name = "FILE")]
    pub journal: Option<PathBuf>,
    /// Write results to a file instead of stdout.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Read items from a file instead of stdin.
    #[arg(short = 'a', long = "arg-file", value_name = "FILE")]
    pub arg_file: Option<PathBuf>,
    /// Items end with a zero byte instead of a newline.
    #[arg(short = '0', long)]
    pub null: bool,
    /// Run the command in sh.
    #[arg(long, conflicts_with = "no_shell")]
    pub shell: bool,
    /// Execute the command directly, whatever it looks like.
    #[arg(long)]
    pub no_shell: bool,
    /// Begin each line of output with its item and a tab.
    #[arg(long, conflicts_with = "jsonl")]
    pub tag: bool,
    /// Print one JSON record per item, failed ones included: seq, item, outcome, attempts, exit_code, output.
    #[arg(long)]
    pub jsonl: bool,
    /// Print what failed items wrote to stdout too.
    #[arg(long)]
    pub keep_failed: bool,
    /// What happens to the stderr of the commands.
    #[arg(long, value_enum, default_value_t = StderrPolicy::Ordered, value_name = "POLICY")]
    pub stderr: StderrPolicy,
    /// Try a failed item up to K more times.
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub retries: u16,
    /// Waits before the first, second, ... retry; the last one repeats.
    #[arg(long, value_name = "WAITS", value_delimiter = ',', value_parser = duration,
          default_value = "200ms,1s,5s")]
    pub backoff: Vec<Millis>,
    /// End a command that takes longer, with all it started; counts as a failure.
    #[arg(long, value_name = "TIME", value_parser = duration)]
    pub timeout: Option<Millis>,
    /// Retry only these: exit codes, ranges, 'timeout', 'signal' [default: all].
    #[arg(long, value_name = "CODES")]
    pub retry_exit: Option<ExitCodes>,
    /// When to stop early: never, or soon|now,fail|success|done=N or N%. 'now' ends running commands.
    #[arg(long, value_name = "POLICY", default_value = "never")]
    pub halt: Halt,
    /// How long running commands may go on after a stop.
    #[arg(long, value_name = "TIME", value_parser = duration, default_value = "10s")]
    pub grace: Millis,
    /// On Ctrl-C give every remaining item the outcome 'cancel' instead of leaving it for later.
    #[arg(long)]
    pub cancel_on_interrupt: bool,
    /// Run only the items that failed or were cancelled in this journal, as a new run.
    #[arg(long, value_name = "JOURNAL")]
    pub retry_failed: Option<PathBuf>,
    /// End commands that a killed run left behind, instead of waiting for them.
    #[arg(long, requires = "journal")]
    pub end_orphans: bool,
    /// When commits are made to survive a loss of power. All of them survive a kill.
    #[arg(long, value_enum, default_value_t = SyncArg::Batch, value_name = "WHEN")]
    pub sync: SyncArg,
    /// Print the commands that would run, and run none.
    #[arg(long)]
    pub dry_run: bool,
    /// Write a summary as JSON to stderr, or to FILE.
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true,
          default_missing_value = "-")]
    pub summary: Option<PathBuf>,
    /// No progress bar.
    #[arg(short, long)]
    pub quiet: bool,
    /// The command and, behind ':::', the items.
    #[arg(trailing_var_arg = true, required = true, value_name = "COMMAND")]
    pub words: Vec<OsString>,
}

/// What happens to the stderr of the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StderrPolicy {
    /// Whole and in the order of the items.
    Ordered,
    /// As it comes, mixed.
    Pass,
    /// Only that of failed items, whole and in order.
    Failed,
    /// Nowhere.
    Drop,
}

/// When commits are made durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SyncArg {
    /// When the system likes.
    None,
    /// In groups, within a few hundredths of a second.
    Batch,
    /// Each one before the next.
    Always,
}

impl From<SyncArg> for SyncPolicy {
    fn from(sync: SyncArg) -> Self {
        match sync {
            SyncArg::None => Self::None,
            SyncArg::Batch => Self::Batch,
            SyncArg::Always => Self::Always,
        }
    }
}

/// Reads `250ms`, `10s`, `5m`, `2h`; a bare number is seconds.
fn duration(text: &str) -> Result<Millis, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let scale = match unit {
        "ms" => 1.0,
        "" | "s" => 1_000.0,
        "m" => 60_000.0,
        "h" => 3_600_000.0,
        _ => return Err("write a time as 250ms, 10s, 5m or 2h".into()),
    };
    let number: f64 = number.parse().map_err(|_| "write a time as 250ms, 10s, 5m or 2h")?;
    let millis = (number * scale).round();
    if millis > MAX_WAIT_MS {
        return Err("at most a year".into());
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 0 to a year
    Ok(millis as Millis)
}

const MAX_WAIT_MS: f64 = 366.0 * 24.0 * 3_600_000.0;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units_and_bare_numbers_are_seconds() {
        let cases =
            [("250ms", 250), ("10s", 10_000), ("1.5s", 1_500), ("2m", 120_000), ("7", 7_000)];
        for (text, millis) in cases {
            assert_eq!(duration(text), Ok(millis));
        }
        for text in ["", "s", "1x", "-1s", "1e99", "99999999h"] {
            assert!(duration(text).is_err(), "{text}");
        }
    }
}
