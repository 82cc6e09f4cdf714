//! `sprag worker-check`: a kit that any worker can be run against, whatever it is written in. A server is started in
//! a folder of its own, the worker beside it, and jobs are submitted whose payload says what the worker is to do;
//! what the server tells of the jobs afterwards decides.
//!
//! The worker under test does the duties that `docs/workers.md` lists. A check that fails says what was seen and
//! what a worker does instead.

mod bench;
mod checks;

use std::time::Duration;

use clap::Args;
use serde_json::json;
use sprag_kernel::{Code, Refusal};

use crate::output::{Failure, Output};
use bench::Bench;
use checks::CHECKS;

/// Arguments of `sprag worker-check`.
#[derive(Debug, Args)]
#[command(after_help = "\
The command is run by sh with SPRAG_SERVER, SPRAG_TOKEN and SERVICE in its environment, as a worker that does not
end. It does what the payload of a directive says: docs/workers.md has the table. Exit 0: it passed every check.

Examples:
  sprag worker-check --exec 'python3 worker.py'
  sprag worker-check --short --exec ./worker        its work never lasts longer than a lease")]
pub struct WorkerCheckArgs {
    /// What starts the worker.
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// Leave out what concerns work that lasts longer than a lease: signs of life, and stopping in the middle.
    #[arg(long)]
    short: bool,
    /// How long one check may take.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    timeout: u64,
}

/// Runs `sprag worker-check`.
pub fn run(args: &WorkerCheckArgs, output: &mut Output) -> Result<(), Failure> {
    let mut bench = Bench::open(&args.exec, Duration::from_secs(args.timeout))?;
    let mut failed = Vec::new();
    for check in CHECKS.iter().filter(|check| !(args.short && check.is_long)) {
        let found = (check.run)(&mut bench);
        if output.is_json() {
            let reason = found.as_ref().err();
            output.json(&json!({"check": check.name, "ok": found.is_ok(), "reason": reason}))?;
        } else {
            let mark = if found.is_ok() { "ok    " } else { "FAILED" };
            output.line(format_args!("{mark} {}", check.name))?;
            if let Err(reason) = &found {
                output.line(format_args!("       seen: {reason}"))?;
                output.line(format_args!("       a worker: {}", check.advice))?;
            }
        }
        output.finish()?;
        failed.extend(found.err().map(|_| check.name));
    }
    bench.close()?;
    if failed.is_empty() {
        return Ok(());
    }
    Err(Refusal::new(Code::WorkerUnfit).with("failed", failed.join("; ")).into())
}
