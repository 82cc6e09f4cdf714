//! `sprag move`: a stopped store from SQLite to Postgres and back.

use std::collections::BTreeMap;
use std::io::IsTerminal;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;
use sprag_stores::moving::{Progress, abandon_move, move_store};

use crate::output::{Failure, Output, unreadable};

/// Arguments of `sprag move`.
#[derive(Debug, Args)]
#[command(after_help = "\
Both stores are closed to engines from the first row on. If the command is interrupted, the same command goes
on where it was. In the end the rows of all tables are counted, the target is audited and opened; the source
stays as it was, and closed. Cursors of the feed belong to one store: readers begin anew. Tables of your own in
the same file or database are not moved: move them by other means while the store is closed.

A move that was interrupted goes on between the same two stores only. --abandon gives it up instead.

Examples:
  sprag move --from sqlite:sprag.db --to postgres://localhost/sprag
  sprag move --from sqlite:sprag.db --to postgres://localhost/sprag --abandon")]
pub struct MoveArgs {
    /// The store that has the jobs: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL")]
    from: String,
    /// A store that has none, or one that this command was filling.
    #[arg(long, value_name = "URL", required_unless_present = "abandon")]
    to: Option<String>,
    /// Give up a move that was interrupted: empty the target and open the source again. Leave out --to if the
    /// target is lost.
    #[arg(long)]
    abandon: bool,
}

#[derive(Serialize)]
struct Report {
    moved: BTreeMap<String, u64>,
}

#[derive(Serialize)]
struct Abandoned {
    abandoned: bool,
}

/// Runs `sprag move`.
pub fn run(args: &MoveArgs, output: &mut Output) -> Result<(), Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| unreadable("a thread", &error))?;
    let (Some(to), false) = (&args.to, args.abandon) else {
        let abandoned = runtime.block_on(abandon_move(&args.from, args.to.as_deref()));
        abandoned.map_err(sprag_kernel::Refusal::from)?;
        if output.is_json() {
            return output.json(&Abandoned { abandoned: true });
        }
        return output.line("abandoned; the source is open again");
    };
    let is_shown = !output.is_json() && std::io::stderr().is_terminal();
    let bar = if is_shown { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{msg:16} {wide_bar} {pos}/{len}");
    bar.set_style(style.expect("the template is one"));
    let tell = |progress: &Progress| {
        bar.set_message(progress.table.clone());
        bar.set_length(progress.total);
        bar.set_position(progress.moved);
    };
    let moved = runtime.block_on(move_store(&args.from, to, tell));
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
