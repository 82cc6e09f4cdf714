//! `sprag submit`: an envelope, or many, to a server; and the job to its end if asked for.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::Value;
use serde_json::value::RawValue;
use sprag_kernel::{Code, Refusal};

use super::read_file;
use crate::client::{Client, ServerArgs, passes};
use crate::feed::AWAY;
use crate::output::{Failure, Output};
use crate::waiting;

const MAX_ENVELOPE_BYTES: u64 = 64 << 20;
/// The largest file of many envelopes.
const MAX_BULK_BYTES: u64 = 4 << 30;
/// Lines of one call: enough for groups, few enough that an answer comes soon.
const CALL_LINES: usize = 2_000;
/// The largest body of one call; a server takes eight times as much.
const CALL_BYTES: usize = 8 << 20;
/// How long to wait before a call that was not answered is made again.
const REST: Duration = Duration::from_millis(200);

/// Arguments of `sprag submit`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag submit envelope.json
  sprag submit - --key order-17 --wait < envelope.json      exit 1 if the job does not succeed
  sprag submit --bulk envelopes.ndjson                      one envelope per line, one answer per line")]
pub struct SubmitArgs {
    /// The envelope as a file, or - for standard input.
    file: PathBuf,
    /// The file has one envelope per line. Exit 1 if any of them is refused; the others are submitted.
    #[arg(long, conflicts_with_all = ["key", "wait"])]
    bulk: bool,
    /// The idempotency key: the same key is the same job.
    #[arg(long)]
    key: Option<String>,
    /// Wait until the job is over, and show on a terminal where it is.
    #[arg(long)]
    wait: bool,
    /// With --wait: give up after so many seconds; the job goes on.
    #[arg(long, value_name = "SECONDS", requires = "wait")]
    timeout: Option<u64>,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs `sprag submit`.
pub fn run(args: &SubmitArgs, output: &mut Output) -> Result<(), Failure> {
    let client = Client::find(&args.server)?;
    if args.bulk {
        return submit_all(&client, &read_file(&args.file, MAX_BULK_BYTES)?, output);
    }
    let envelope = read_file(&args.file, MAX_ENVELOPE_BYTES)?;
    let envelope = match &args.key {
        Some(key) => with_key(&envelope, key)?,
        None => envelope,
    };
    let mut job = client.call("POST", "/v1/commands", &envelope)?;
    if args.wait {
        let job_id = job["jobId"].as_str().unwrap_or_default();
        job = waiting::wait(&client, job_id, args.timeout.map(Duration::from_secs))?;
    }
    if output.is_json() {
        output.json(&job)?;
    } else {
        let text = |name: &str| job[name].as_str().unwrap_or_default();
        output.line(format_args!("{}  {}", text("jobId"), text("state")))?;
    }
    if args.wait { waiting::expect_success(&job, output) } else { Ok(()) }
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

/// Submits every line, some at a time, and prints one answer per line.
fn submit_all(client: &Client, text: &[u8], output: &mut Output) -> Result<(), Failure> {
    let lines: Vec<&[u8]> = text
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii)
        .filter(|line| !line.is_empty())
        .collect();
    let (mut sent, mut refused) = (0, 0_usize);
    while sent < lines.len() {
        let count = fitting(&lines[sent..]);
        let answers = submit_some(client, &lines[sent..sent + count])?;
        for (n, answer) in answers.iter().enumerate() {
            refused += usize::from(!tell(sent + n + 1, answer, output)?);
        }
        // What is committed is told at once.
        output.finish()?;
        sent += count;
    }
    if refused > 0 {
        let refusal = Refusal::new(Code::SubmitsRefused).with("refused", refused);
        return Err(refusal.with("submitted", lines.len() - refused).into());
    }
    Ok(())
}

/// How many of the lines go into one call; at least one.
fn fitting(lines: &[&[u8]]) -> usize {
    let mut bytes = 0;
    let fits = |line: &&&[u8]| {
        bytes += line.len() + 1;
        bytes <= CALL_BYTES
    };
    lines.iter().take(CALL_LINES).take_while(fits).count().max(1)
}

/// One answer per line. Lines that came too fast for the tenant's rate are sent again.
fn submit_some(client: &Client, lines: &[&[u8]]) -> Result<Vec<String>, Refusal> {
    let mut answers = vec![String::new(); lines.len()];
    let mut left: Vec<usize> = (0..lines.len()).collect();
    loop {
        let some: Vec<&[u8]> = left.iter().map(|n| lines[*n]).collect();
        let answered = insist(client, &some.join(&b'\n'))?;
        for (n, answer) in left.iter().zip(answered.lines()) {
            answer.clone_into(&mut answers[*n]);
        }
        left.retain(|n| is_too_fast(&answers[*n]));
        if left.is_empty() {
            return Ok(answers);
        }
        std::thread::sleep(REST);
    }
}

fn is_too_fast(answer: &str) -> bool {
    // A job's answer has no such text, so most lines need not be read.
    answer.contains(Code::RateLimited.name())
        && serde_json::from_str::<Value>(answer)
            .is_ok_and(|told| told["error_code"] == Code::RateLimited.name())
}

/// The same lines again are the same jobs, so a call that was not answered is made again.
fn insist(client: &Client, lines: &[u8]) -> Result<String, Refusal> {
    let begun = Instant::now();
    loop {
        match client.submit_lines(lines) {
            Err(refusal) if passes(&refusal) && begun.elapsed() < AWAY => {
                client.waits(&refusal);
                std::thread::sleep(REST);
            }
            answered => return answered,
        }
    }
}

/// Prints what became of a line. Whether it was submitted.
fn tell(number: usize, answer: &str, output: &mut Output) -> Result<bool, Failure> {
    let told: Value = serde_json::from_str(answer).unwrap_or_default();
    let text = |name: &str| told[name].as_str().unwrap_or_default();
    let is_submitted = told["jobId"].is_string();
    if output.is_json() {
        output.line(answer)?;
    } else if is_submitted {
        output.line(format_args!("{}  {}", text("jobId"), text("state")))?;
    } else {
        output.line(format_args!("line {number}: {}: {}", text("error_code"), text("detail")))?;
    }
    Ok(is_submitted)
}
