//! `sprag inbox`: what users have submitted inside of their own transactions.

use clap::Args;
use serde::Serialize;
use sprag_engine::ids::JobId;
use sprag_engine::inbox::{InboxFilter, InboxId, InboxView};

use crate::output::{Failure, Output};
use crate::stores::Looking;

/// Arguments of `sprag inbox`.
#[derive(Debug, Args)]
#[command(after_help = "\
A row becomes one job, or keeps the reason why it became none. Rows are kept for a week.

Example:
  sprag inbox --store postgres://localhost/sprag --refused")]
pub struct InboxArgs {
    /// The store: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL")]
    store: String,
    /// Only what was refused.
    #[arg(long)]
    refused: bool,
    /// At most so many.
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// Go on behind this row.
    #[arg(long, value_name = "INBOX_ID")]
    before: Option<i64>,
}

#[derive(Serialize)]
struct Shape<'a> {
    inbox_id: i64,
    submitted_at: u64,
    taken_at: Option<u64>,
    #[serde(rename = "jobId")]
    job_id: Option<String>,
    error_code: Option<&'a str>,
    error_message: Option<&'a str>,
}

fn shape(row: &InboxView) -> Shape<'_> {
    Shape {
        inbox_id: row.inbox_id.0,
        submitted_at: row.submitted_at,
        taken_at: row.taken_at,
        job_id: row.job_id.as_ref().map(JobId::to_string),
        error_code: row.error.as_ref().map(|error| error.code.as_str()),
        error_message: row.error.as_ref().map(|error| error.message.as_str()),
    }
}

/// Runs `sprag inbox`.
pub fn run(args: &InboxArgs, output: &mut Output) -> Result<(), Failure> {
    let before = args.before.map(InboxId);
    let filter = InboxFilter { refused: args.refused, before, limit: args.limit };
    let rows = Looking::open(&args.store)?.inbox(filter)?;
    if output.is_json() {
        #[derive(Serialize)]
        struct List<'a> {
            items: Vec<Shape<'a>>,
            next: Option<i64>,
        }
        let is_full = rows.len() == args.limit as usize;
        let next = rows.last().filter(|_| is_full).map(|row| row.inbox_id.0);
        return output.json(&List { items: rows.iter().map(shape).collect(), next });
    }
    for row in &rows {
        let became = match (row.job_id, &row.error) {
            (Some(job_id), _) => job_id.to_string(),
            (None, Some(error)) => error.message.clone(),
            (None, None) => "waits for an engine".to_owned(),
        };
        output.line(format_args!("{:8}  {}  {became}", row.inbox_id, row.submitted_at))?;
    }
    Ok(())
}
