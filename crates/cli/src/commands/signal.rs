//! `sprag signal`: says something to a job that waits for it, through a server.

use clap::Args;
use serde::Serialize;
use serde_json::Value;
use sprag_engine::ids::JobId;
use sprag_kernel::{Code, Refusal};

use crate::client::{Client, ServerArgs, segment};
use crate::output::{Failure, Output};

/// Arguments of `sprag signal`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag signal JOB approval --by alice --reason 'looks good'
  sprag signal JOB approval --reject --by bob --reason 'the total is wrong'
  sprag signal JOB paid --id invoice-17 --payload '{\"amount\": 12}'")]
pub struct SignalArgs {
    /// The job.
    job_id: String,
    /// The signal that a step of it waits for.
    signal: String,
    /// An id of yours: the same id is the same signal, however often it is sent. A new one if not given.
    #[arg(long)]
    id: Option<String>,
    /// JSON that the step has as its output.
    #[arg(long, value_name = "JSON", default_value = "null")]
    payload: String,
    /// Say no: the step fails.
    #[arg(long)]
    reject: bool,
    /// Who says so; the name of the token if not given.
    #[arg(long, value_name = "WHO")]
    by: Option<String>,
    /// Why.
    #[arg(long, value_name = "WHY")]
    reason: Option<String>,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Serialize)]
struct Said<'a> {
    signal_id: String,
    payload: Value,
    decision: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
}

/// Runs `sprag signal`.
pub fn run(args: &SignalArgs, output: &mut Output) -> Result<(), Failure> {
    let payload = serde_json::from_str(&args.payload).map_err(|error| {
        Refusal::new(Code::SignalInvalid).with("field", "payload").with("reason", error.to_string())
    })?;
    let said = Said {
        signal_id: args.id.clone().unwrap_or_else(|| JobId::new().to_string()),
        payload,
        decision: if args.reject { "reject" } else { "approve" },
        by: args.by.as_deref(),
        reason: args.reason.as_deref(),
    };
    let path = format!("/v1/jobs/{}/signals/{}", segment(&args.job_id), segment(&args.signal));
    let body = serde_json::to_vec(&said).expect("a signal has string keys");
    let answer = Client::find(&args.server)?.call("POST", &path, &body)?;
    if output.is_json() {
        return output.json(&answer);
    }
    let taken = answer["taken"].as_bool() == Some(true);
    output.line(format_args!(
        "{}  {}  {}",
        answer["jobId"].as_str().unwrap_or_default(),
        said.signal_id,
        if taken { "a step has it" } else { "kept for a step" }
    ))
}
