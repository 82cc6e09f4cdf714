//! `sprag request`: every verb of a request, against a server.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use super::read_file;
use crate::client::{Client, ServerArgs, segment};
use crate::output::{Failure, Output};

const MAX_REQUEST_BYTES: u64 = 64 << 20;

/// Arguments of `sprag request`.
#[derive(Debug, Args)]
pub struct RequestArgs {
    #[command(subcommand)]
    command: RequestCommand,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum RequestCommand {
    /// Create a request from a file, or from - for standard input.
    New {
        /// {tenant_id, request_type, inputs, requirement, plan_revision, envelope}
        file: PathBuf,
    },
    /// Work out the plan preview.
    Draft {
        /// The request.
        request_id: String,
        /// {envelope}: what its jobs are to be submitted with instead.
        #[arg(long, value_name = "FILE")]
        edit: Option<PathBuf>,
    },
    /// Freeze the plan, and run it.
    Confirm {
        /// The request.
        request_id: String,
        /// Only freeze it.
        #[arg(long)]
        no_run: bool,
    },
    /// Begin the first run of a confirmed request.
    Run {
        /// The request.
        request_id: String,
    },
    /// Begin another run in place of a failed one.
    Retry {
        /// The request.
        request_id: String,
        /// The run that failed.
        #[arg(long, value_name = "NUMBER")]
        run_no: u32,
    },
    /// Ask the current run to stop.
    Cancel {
        /// The request.
        request_id: String,
    },
    /// Show a request.
    Show {
        /// The request.
        request_id: String,
    },
}

/// Runs `sprag request`.
pub fn run(args: &RequestArgs, output: &mut Output) -> Result<(), Failure> {
    let client = Client::find(&args.server)?;
    let post = |id: &str, verb: &str, body: &[u8]| {
        client.call("POST", &format!("/v1/requests/{}/{verb}", segment(id)), body)
    };
    let request = match &args.command {
        RequestCommand::New { file } => {
            client.call("POST", "/v1/requests", &read_file(file, MAX_REQUEST_BYTES)?)?
        }
        RequestCommand::Draft { request_id, edit } => {
            let edit = edit
                .as_ref()
                .map(|file| read_file(file, MAX_REQUEST_BYTES))
                .transpose()?
                .unwrap_or_default();
            post(request_id, "draft", &edit)?
        }
        RequestCommand::Confirm { request_id, no_run } => {
            post(request_id, "confirm", json!({"run": !no_run}).to_string().as_bytes())?
        }
        RequestCommand::Run { request_id } => post(request_id, "run", b"")?,
        RequestCommand::Retry { request_id, run_no } => {
            post(request_id, "retry", json!({"run_no": run_no}).to_string().as_bytes())?
        }
        RequestCommand::Cancel { request_id } => post(request_id, "cancel", b"")?,
        RequestCommand::Show { request_id } => {
            client.call("GET", &format!("/v1/requests/{}", segment(request_id)), b"")?
        }
    };
    if output.is_json() { output.json(&request) } else { print(&request, output) }
}

fn print(request: &Value, output: &mut Output) -> Result<(), Failure> {
    let text = |field: &str| request[field].as_str().unwrap_or("-").to_owned();
    let (id, status) = (text("requestId"), text("status"));
    let (version, run_no) = (&request["version"], &request["run_no"]);
    output.line(format_args!(
        "{id}  {status}  version {version}, run {run_no}, job {}",
        text("jobId")
    ))?;
    for check in request["draft"]["checks"].as_array().into_iter().flatten() {
        let mark = if check["passed"] == true { "ok    " } else { "FAILS " };
        let reason = check["reason"].as_str().unwrap_or_default();
        output
            .line(format_args!("  {mark} {}  {reason}", check["name"].as_str().unwrap_or("-")))?;
    }
    for step in request["draft"]["steps"].as_array().into_iter().flatten() {
        let part = |field: &str| step[field].as_str().unwrap_or("-");
        output.line(format_args!(
            "  step {}, by {}: {}",
            part("stepId"),
            part("service"),
            step["payload"]
        ))?;
    }
    Ok(())
}
