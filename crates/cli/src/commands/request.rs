//! `sprag request`: every verb of a request, against a server.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use sprag_engine::requests::RequestVersion;

use super::job::event_line;
use super::read_file;
use crate::client::{Client, ServerArgs, segment};
use crate::jobs::asking;
use crate::output::{Failure, Output};
use crate::table::Table;

const MAX_REQUEST_BYTES: u64 = 64 << 20;

/// Arguments of `sprag request`.
#[derive(Debug, Args)]
#[command(after_help = "\
A request is a job that is looked at before it runs: draft shows the plan and what is wrong with it, confirm freezes
it and runs it, retry runs it again if it failed.

Examples:
  sprag request new request.json
  sprag request draft REQUEST_ID
  sprag request confirm REQUEST_ID
  sprag request show REQUEST_ID")]
pub struct RequestArgs {
    #[command(subcommand)]
    command: RequestCommand,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Subcommand)]
enum RequestCommand {
    /// Create a request from a file, or from - for standard input.
    #[command(after_help = "\
Example:
  echo '{\"tenant_id\": \"me\", \"request_type\": \"LETTER\", \"requirement\": \"a letter\", \"envelope\":
    {\"input_ref\": \"in\", \"output_ref\": \"out\", \"payload\": {}, \"schema_version\": \"1\"}}' | sprag request new -")]
    New {
        /// {tenant_id, request_type, inputs, requirement, plan_revision, envelope}
        file: PathBuf,
    },
    /// Work out the plan preview.
    #[command(after_help = "\
Examples:
  sprag request draft REQUEST_ID
  sprag request draft REQUEST_ID --edit mended.json      the file is {\"envelope\": {...}}")]
    Draft {
        #[command(flatten)]
        one: VersionArgs,
        /// {envelope}: what its jobs are to be submitted with instead.
        #[arg(long, value_name = "FILE")]
        edit: Option<PathBuf>,
    },
    /// Freeze the plan, and run it.
    #[command(after_help = "\
Examples:
  sprag request confirm REQUEST_ID
  sprag request confirm REQUEST_ID --no-run --if-match 2      only the draft that was looked at")]
    Confirm {
        #[command(flatten)]
        one: VersionArgs,
        /// Only freeze it.
        #[arg(long)]
        no_run: bool,
    },
    /// Begin the first run of a confirmed request.
    #[command(after_help = "\
Example:
  sprag request run REQUEST_ID")]
    Run(VersionArgs),
    /// Begin another run in place of a failed one.
    #[command(after_help = "\
Example:
  sprag request retry REQUEST_ID --run-no 1")]
    Retry {
        #[command(flatten)]
        one: VersionArgs,
        /// The run that failed.
        #[arg(long, value_name = "NUMBER")]
        run_no: u32,
    },
    /// Ask the current run to stop.
    #[command(after_help = "\
Example:
  sprag request cancel REQUEST_ID")]
    Cancel {
        /// The request.
        request_id: String,
    },
    /// Show a request.
    #[command(after_help = "\
Example:
  sprag request show REQUEST_ID --json")]
    Show {
        /// The request.
        request_id: String,
    },
    /// Show what happened to a request by itself; the history of a run is that of its job.
    #[command(after_help = "\
Example:
  sprag request events REQUEST_ID")]
    Events {
        /// The request.
        request_id: String,
    },
    /// List requests, the newest first.
    List(ListArgs),
}

#[derive(Debug, Args)]
struct VersionArgs {
    /// The request.
    request_id: String,
    /// Only if the request has this version, or this version and that of its job, such as 4.1.
    #[arg(long, value_name = "VERSION")]
    if_match: Option<RequestVersion>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag request list
  sprag request list --type LETTER --limit 5 --json")]
struct ListArgs {
    /// Only of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Only of this request type.
    #[arg(long = "type", value_name = "TYPE")]
    request_type: Option<String>,
    /// At most so many.
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// Go on behind this request.
    #[arg(long, value_name = "REQUEST_ID")]
    before: Option<String>,
}

/// Runs `sprag request`.
pub fn run(args: &RequestArgs, output: &mut Output) -> Result<(), Failure> {
    let client = Client::find(&args.server)?;
    let get = |id: &str, below: &str| {
        client.call("GET", &format!("/v1/requests/{}{below}", segment(id)), b"")
    };
    let post = |one: &VersionArgs, verb: &str, body: &[u8]| {
        let path = format!("/v1/requests/{}/{verb}", segment(&one.request_id));
        let version = one.if_match.map(|version| version.to_string());
        client.call_if("POST", &path, version.as_deref(), body)
    };
    let request = match &args.command {
        RequestCommand::New { file } => {
            client.call("POST", "/v1/requests", &read_file(file, MAX_REQUEST_BYTES)?)?
        }
        RequestCommand::Draft { one, edit } => {
            let edit = edit.as_ref().map(|file| read_file(file, MAX_REQUEST_BYTES));
            post(one, "draft", &edit.transpose()?.unwrap_or_default())?
        }
        RequestCommand::Confirm { one, no_run } => {
            post(one, "confirm", json!({"run": !no_run}).to_string().as_bytes())?
        }
        RequestCommand::Run(one) => post(one, "run", b"")?,
        RequestCommand::Retry { one, run_no } => {
            post(one, "retry", json!({"run_no": run_no}).to_string().as_bytes())?
        }
        RequestCommand::Cancel { request_id } => {
            client.call("POST", &format!("/v1/requests/{}/cancel", segment(request_id)), b"")?
        }
        RequestCommand::Show { request_id } => get(request_id, "")?,
        RequestCommand::Events { request_id } => {
            let events = get(request_id, "/events")?;
            let mut events = events["items"].as_array().into_iter().flatten();
            return events.try_for_each(|event| event_line(event, output));
        }
        RequestCommand::List(args) => return list(&client, args, output),
    };
    if output.is_json() { output.json(&request) } else { print(&request, output) }
}

fn list(client: &Client, args: &ListArgs, output: &mut Output) -> Result<(), Failure> {
    let asked = [
        ("tenant", args.tenant.clone()),
        ("type", args.request_type.clone()),
        ("cursor", args.before.clone()),
        ("limit", Some(args.limit.to_string())),
    ];
    let list = client.call("GET", &asking("/v1/requests", asked), b"")?;
    if output.is_json() {
        return output.json(&list);
    }
    let mut table = Table::new(["REQUEST", "STATUS", "TENANT", "TYPE", "JOB"]);
    for request in list["items"].as_array().into_iter().flatten() {
        table.row(
            ["requestId", "status", "tenant_id", "request_type", "jobId"]
                .map(|name| request[name].as_str().unwrap_or_default()),
        );
    }
    table.print(output)
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
        let part = |field: &str| step[field].as_str();
        let by = part("service").or_else(|| part("kind")).unwrap_or("-");
        let within = part("within").map(|outer| format!(" of {outer}")).unwrap_or_default();
        let id = part("stepId").unwrap_or("-");
        let payload = step.get("payload").map(|payload| format!(": {payload}")).unwrap_or_default();
        output.line(format_args!("  step {id}{within}, by {by}{payload}"))?;
    }
    Ok(())
}
