//! `sprag move`: a stopped store from SQLite to Postgres and back.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sprag_stores::moving::{Progress, move_store};

use crate::output::{Failure, Output, unreadable};

/// Arguments of `sprag move`.
#[derive(Debug, Args)]
#[command(after_help = "\
Both stores are closed to engines from the first row on. If the command is interrupted, the same command goes
on where it was. In the end the rows of all tables are counted, the target is audited and opened; the source
stays as it was, and closed. Cursors of the feed belong to one store: readers begin anew. Tables of your own in
the same file or database are not moved: move them by other means while the store is closed.

Example:
  sprag move --from sqlite:sprag.db --to postgres://localhost/sprag")]
pub struct MoveArgs {
    /// The store that has the jobs: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL")]
    from: String,
    /// A store that has none, or one that this command was filling.
    #[arg(long, value_name = "URL")]
    to: String,
}

#[derive(Serialize)]
struct Report {
    moved: BTreeMap<String, u64>,
}

/// Runs `sprag move`.
pub fn run(args: &MoveArgs, output: &mut Output) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unreadable("a thread", &error))?;
    let is_shown = !output.is_json() && std::io::stderr().is_terminal();
    let bar = if is_shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{msg:16} {wide_bar} {pos}/{len}");
    bar.set_style(style.expect("the template is one"));
    let tell = |progress: &Progress| {
        bar.set_message(progress.table.clone());
        bar.set_length(progress.total);
        bar.set_position(progress.moved);
    };
    let moved = runtime.block_on(move_store(&args.from, &args.to, tell));
    bar.finish_and_clear();
    let moved = moved.map_err(sprag_kernel::Refusal::from)?.rows;
    if output.is_json() {
        return output.json(&Report { moved });
    }
    for (table, rows) in moved.iter().filter(|(_, rows)| **rows > 0) {
        output.line(format_args!("{rows:10}  {table}"))?;
    }
    output.line("moved, counted and audited; the source stays closed")
}
