//! The bench that a worker is checked on: a server of its own, the worker beside it, and jobs to look at.

use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sprag_engine::protocol::Protocol;
use sprag_kernel::{JobState, Refusal, State};

use crate::client::{Client, segment};
use crate::stage::{Stage, without_settings};

const PROTOCOLS: [&str; 2] = [
    "
protocol_id: check.v1
request_types: [CHECK]
steps:
  - step_id: only
    service: check
    timeouts: {lease: 4s}
    retry: {max_attempts: 3, backoff: [50ms]}
",
    "
protocol_id: check-fan.v1
request_types: [CHECK_FAN]
steps:
  - step_id: all
    for_each: input.items
    service: check
    timeouts: {lease: 4s}
    retry: {max_attempts: 3, backoff: [50ms]}
",
];
const SERVICE: &str = "check";
const LOOK: Duration = Duration::from_millis(20);
/// How many lines of the worker's stderr are shown.
const WORDS: usize = 10;

/// A server, and the worker under test beside it.
pub(super) struct Bench {
    stage: Stage,
    client: Client,
    /// The process of the worker.
    worker: u32,
    limit: Duration,
    jobs: u32,
}

/// What a check makes of what it has seen.
pub(super) type Seen<T> = Result<T, String>;

impl Bench {
    /// Starts both.
    pub(super) fn open(exec: &str, limit: Duration) -> Result<Self, Refusal> {
        let stage = Stage::open("check", false)?;
        let client = stage.client()?;
        for text in PROTOCOLS {
            let protocol = Protocol::read(text)?;
            let body = serde_json::to_vec(&protocol).expect("protocols have string keys");
            client.call("PUT", &format!("/v1/protocols/{}", protocol.protocol_id), &body)?;
        }
        let new = br#"{"scopes": ["work"], "label": "worker-check"}"#;
        let token = client.call("POST", "/v1/tokens", new)?;
        let mut command = Command::new("/bin/sh");
        without_settings(&mut command);
        command.args(["-c", exec]).env("SERVICE", SERVICE).env("SPRAG_SERVER", stage.url());
        command.env("SPRAG_TOKEN", token["token"].as_str().unwrap_or_default());
        let worker = stage.start(&mut command)?;
        Ok(Self { stage, client, worker, limit, jobs: 0 })
    }

    /// Ends both.
    pub(super) fn close(self) -> Result<(), Refusal> {
        self.stage.close()
    }

    /// SIGKILL to the server, and another one in its place.
    pub(super) fn restart(&mut self) -> Seen<()> {
        self.stage.restart().map_err(|refusal| refusal.to_string())
    }

    /// A job for the worker, by its id.
    pub(super) fn submit(&mut self, payload: &Value) -> Seen<String> {
        self.submit_as("CHECK", payload)
    }

    /// A job of one branch per item.
    pub(super) fn submit_fan(&mut self, payload: &Value) -> Seen<String> {
        self.submit_as("CHECK_FAN", payload)
    }

    fn submit_as(&mut self, request_type: &str, payload: &Value) -> Seen<String> {
        self.jobs += 1;
        let envelope = json!({
            "tenant_id": "check", "request_type": request_type, "schema_version": "1",
            "input_ref": "none", "output_ref": "none", "payload": payload,
            "idempotency_key": self.jobs.to_string(),
        });
        let job = self.call("POST", "/v1/commands", envelope.to_string().as_bytes())?;
        Ok(job["jobId"].as_str().unwrap_or_default().to_owned())
    }

    /// Asks a job to stop.
    pub(super) fn cancel(&self, job_id: &str) -> Seen<()> {
        self.call("POST", &format!("/v1/jobs/{}/cancel", segment(job_id)), b"").map(drop)
    }

    /// Waits until a job is over; the job, and its steps.
    pub(super) fn ended(&self, job_id: &str) -> Seen<(Value, Vec<Value>)> {
        self.until(job_id, |job, _| {
            job["state"].as_str().and_then(JobState::from_name).is_some_and(JobState::is_terminal)
        })
    }

    /// Waits until the worker has taken a job.
    pub(super) fn taken(&self, job_id: &str) -> Seen<()> {
        self.until(job_id, |_, steps| steps.iter().any(|step| step["state"] == "IN_PROGRESS"))
            .map(drop)
    }

    fn until(
        &self,
        job_id: &str,
        is_wanted: impl Fn(&Value, &[Value]) -> bool,
    ) -> Seen<(Value, Vec<Value>)> {
        let begun = Instant::now();
        let path = format!("/v1/jobs/{}", segment(job_id));
        loop {
            let job = self.call("GET", &path, b"")?;
            let mut steps = self.call("GET", &format!("{path}/steps?limit=500"), b"")?;
            let steps: Vec<Value> =
                serde_json::from_value(steps["items"].take()).unwrap_or_default();
            if is_wanted(&job, &steps) {
                return Ok((job, steps));
            }
            if self.stage.has_ended(self.worker) {
                return Err(format!("the worker has ended{}", self.last_words()));
            }
            if begun.elapsed() > self.limit {
                let seen: Vec<String> = steps
                    .iter()
                    .map(|step| format!("{}, attempt {}", step["state"], step["attempt_no"]))
                    .collect();
                let seen = seen.join("; ");
                let (limit, words) = (self.limit.as_secs(), self.last_words());
                return Err(format!("after {limit} s the step is {seen}{words}"));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// What the worker last said, if it said anything.
    fn last_words(&self) -> String {
        let words = self.stage.last_words(WORDS);
        if words.is_empty() { words } else { format!("; its stderr ends with:\n{words}") }
    }

    fn call(&self, method: &str, path: &str, body: &[u8]) -> Seen<Value> {
        self.client.call(method, path, body).map_err(|refusal| refusal.to_string())
    }
}
