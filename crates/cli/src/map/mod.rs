//! `sprag map`: one command per item, in parallel, results in order, resumed after a crash.
//!
//! The run is the lanes' run: items are its source, commands its compute, the writer its sink. What
//! is durable is decided in one place, [`writer`]: results first, then their commit. What is left of
//! a killed run is dealt with before anything starts: the journal's lock keeps two runs apart, the
//! lock that commands inherit keeps a resume from running an item beside its own orphan.
//!
//! | file | owns |
//! |---|---|
//! | `args`, `policy` | the command line |
//! | `items`, `template` | what runs for which item |
//! | `command`, `groups`, `orphans`, `signals` | processes: how they end, and who ends them |
//! | `lanes`, `render`, `inbox`, `writer`, `outlet` | from items to committed results |
//! | `plan`, `run`, `screen`, `status` | one run from start to exit code, and looking at it |

pub mod args;
pub mod command;
pub mod groups;
pub mod inbox;
pub mod items;
pub mod lanes;
pub mod orphans;
pub mod outlet;
mod plan;
pub mod policy;
pub mod render;
mod run;
pub mod screen;
pub mod signals;
mod status;
pub mod template;
pub mod writer;

use args::{MapArgs, MapCommand};

use crate::output::{Failure, Output};

/// Runs `sprag map`.
pub fn run(args: &MapArgs, output: &mut Output) -> Result<(), Failure> {
    match &args.command {
        Some(MapCommand::Status(args)) => status::run(args, output),
        None => run::run(&args.run, output),
    }
}

/// Whether a call was cut short by a signal and is to be made again.
fn interrupted(error: rustix::io::Errno) -> bool {
    error == rustix::io::Errno::INTR
}
