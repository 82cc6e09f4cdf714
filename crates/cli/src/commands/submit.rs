//! `sprag submit`: an envelope to a server, and its job to the end if asked for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::value::RawValue;
use sprag_kernel::{Code, JobState, Refusal, State};

use super::read_file;
use crate::client::{Client, ServerArgs, passes, segment};
use crate::output::{Failure, Output};

const MAX_ENVELOPE_BYTES: u64 = 64 << 20;
/// How often a job is looked at while it is waited for.
const LOOK: Duration = Duration::from_millis(200);
/// How long a server may be away while a job is waited for.
const AWAY: Duration = Duration::from_secs(60);

/// Arguments of `sprag submit`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag submit envelope.json
  sprag submit - --key order-17 --wait < envelope.json      exit 1 if the job does not succeed")]
pub struct SubmitArgs {
    /// The envelope as a file, or - for standard input.
    file: PathBuf,
    /// The idempotency key: the same key is the same job.
    #[arg(long)]
    key: Option<String>,
    /// Wait until the job is over.
    #[arg(long)]
    wait: bool,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs `sprag submit`.
pub fn run(args: &SubmitArgs, output: &mut Output) -> Result<(), Failure> {
    let client = Client::find(&args.server)?;
    let envelope = read_file(&args.file, MAX_ENVELOPE_BYTES)?;
    let envelope = match &args.key {
        Some(key) => with_key(&envelope, key)?,
        None => envelope,
    };
    let mut job = client.call("POST", "/v1/commands", &envelope)?;
    if args.wait {
        job = wait(&client, job["jobId"].as_str().unwrap_or_default())?;
    }
    let state = job["state"].as_str().unwrap_or_default().to_owned();
    if output.is_json() {
        output.json(&job)?;
    } else {
        output.line(format_args!("{}  {state}", job["jobId"].as_str().unwrap_or_default()))?;
    }
    if args.wait && state != JobState::Succeeded.name() {
        output.finish()?;
        let code = job["error_code"].as_str().unwrap_or("none").to_owned();
        return Err(Refusal::new(Code::JobFailed).with("state", state).with("error", code).into());
    }
    Ok(())
}

/// The envelope with this key; everything else stays as it was written.
fn with_key(envelope: &[u8], key: &str) -> Result<Vec<u8>, Refusal> {
    let invalid = |error: serde_json::Error| {
        Refusal::new(Code::EnvelopeInvalid).with("reason", error.to_string())
    };
    let mut members: BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(envelope).map_err(invalid)?;
    let key = serde_json::value::to_raw_value(key).map_err(invalid)?;
    members.insert("idempotency_key".to_owned(), key);
    serde_json::to_vec(&members).map_err(invalid)
}

/// Looks at a job until it is over. A server that is being started again is waited for.
fn wait(client: &Client, job_id: &str) -> Result<serde_json::Value, Refusal> {
    let path = format!("/v1/jobs/{}", segment(job_id));
    let mut heard = Instant::now();
    loop {
        match client.call("GET", &path, b"") {
            Ok(job) => {
                heard = Instant::now();
                let state = job["state"].as_str().and_then(JobState::from_name);
                if state.is_none_or(JobState::is_terminal) {
                    return Ok(job);
                }
            }
            Err(refusal) if passes(&refusal) && heard.elapsed() < AWAY => {}
            Err(refusal) => return Err(refusal),
        }
        std::thread::sleep(LOOK);
    }
}
