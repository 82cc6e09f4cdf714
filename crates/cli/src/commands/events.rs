//! `sprag events`: what happens to all jobs of a server, as it happens.

use clap::Args;

use super::job::event_line;
use crate::client::{Client, ServerArgs};
use crate::feed::Feed;
use crate::output::{Failure, Output};

/// Arguments of `sprag events`.
#[derive(Debug, Args)]
#[command(after_help = "\
It goes on until it is ended, and over restarts of the server. With --json each event has its place as `id`.

Examples:
  sprag events
  sprag events --json --after ID      go on behind the last event that was seen
  sprag events --limit 100            the first hundred")]
pub struct EventsArgs {
    /// Only of this job.
    #[arg(long, value_name = "JOB_ID")]
    job: Option<String>,
    /// Go on behind the event with this id; from the first one if not given.
    #[arg(long, value_name = "ID")]
    after: Option<String>,
    /// End after so many.
    #[arg(long, value_name = "COUNT")]
    limit: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs `sprag events`.
pub fn run(args: &EventsArgs, output: &mut Output) -> Result<(), Failure> {
    let client = Client::find(&args.server)?;
    let mut told = 0;
    if args.limit == Some(0) {
        return Ok(());
    }
    Feed::behind(&client, args.job.as_deref(), args.after.clone()).follow(|event| {
        event_line(event, output)?;
        output.finish()?;
        told += 1;
        Ok::<_, Failure>(args.limit.is_some_and(|limit| told >= limit))
    })
}
