//! `sprag verify`: every invariant of a store, in one snapshot.

use clap::Args;
use serde::Serialize;
use sprag_engine::store::Check;
use sprag_kernel::{Code, Refusal};

use crate::output::{Failure, Output};
use crate::stores::Looking;

/// How many violations of one check are printed for people.
const SHOWN: usize = 10;

/// Arguments of `sprag verify`.
#[derive(Debug, Args)]
#[command(after_help = "\
Works beside running engines: all checks see one snapshot. Exit 1 if any is broken.

Example:
  sprag verify --store sqlite:sprag.db
  sprag verify --store postgres://localhost/sprag --json")]
pub struct VerifyArgs {
    /// The store: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL")]
    store: String,
}

#[derive(Serialize)]
struct Report<'a> {
    ok: bool,
    checks: Vec<Checked<'a>>,
}

#[derive(Serialize)]
struct Checked<'a> {
    name: &'a str,
    violations: Vec<Broken<'a>>,
}

#[derive(Serialize)]
struct Broken<'a> {
    job_id: Option<String>,
    request_id: Option<String>,
    detail: &'a str,
}

/// Runs `sprag verify`.
pub fn run(args: &VerifyArgs, output: &mut Output) -> Result<(), Failure> {
    let checks = Looking::open(&args.store)?.audit()?;
    let broken: usize = checks.iter().map(|check| check.violations.len()).sum();
    if output.is_json() {
        output.json(&report(&checks))?;
    } else {
        checks.iter().try_for_each(|check| print(check, output))?;
        output.line(format_args!("{} checks, {broken} violations", checks.len()))?;
    }
    if broken > 0 {
        output.finish()?;
        return Err(Refusal::new(Code::AuditBroken).with("violations", broken).into());
    }
    Ok(())
}

fn report(checks: &[Check]) -> Report<'_> {
    Report {
        ok: checks.iter().all(|check| check.violations.is_empty()),
        checks: checks
            .iter()
            .map(|check| Checked {
                name: &check.name,
                violations: check
                    .violations
                    .iter()
                    .map(|v| Broken {
                        job_id: v.job_id.map(|id| id.to_string()),
                        request_id: v.request_id.map(|id| id.to_string()),
                        detail: &v.detail,
                    })
                    .collect(),
            })
            .collect(),
    }
}

fn print(check: &Check, output: &mut Output) -> Result<(), Failure> {
    let mark = if check.violations.is_empty() { "ok    " } else { "BROKEN" };
    output.line(format_args!("{mark} {}", check.name.replace('_', " ")))?;
    for violation in check.violations.iter().take(SHOWN) {
        let whose = match (violation.job_id, violation.request_id) {
            (Some(job_id), _) => job_id.to_string(),
            (None, Some(request_id)) => format!("request {request_id}"),
            (None, None) => "the store".to_owned(),
        };
        output.line(format_args!("         {whose}: {}", violation.detail))?;
    }
    let more = check.violations.len().saturating_sub(SHOWN);
    if more > 0 { output.line(format_args!("         and {more} more")) } else { Ok(()) }
}
