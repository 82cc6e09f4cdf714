//! Waiting for a job of a server: looked at until it is over, shown on a terminal meanwhile. A server that is
//! being started again is waited for.

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde_json::Value;
use sprag_kernel::{Code, JobState, Refusal, State};

use crate::client::{Client, passes, segment};
use crate::feed::AWAY;
use crate::output::{Failure, Output};

/// How often a job is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// How many steps are shown at a time.
const SHOWN: usize = 4;
/// How many steps are looked at for that, and how often: a job may have very many.
const STEPS: usize = 100;
const LOOK_AT_STEPS: Duration = Duration::from_secs(1);

/// Waits until the job is over, and returns it as it ended.
pub fn wait(client: &Client, job_id: &str, limit: Option<Duration>) -> Result<Value, Refusal> {
    let path = format!("/v1/jobs/{}", segment(job_id));
    let mut view = View::new();
    let begun = Instant::now();
    let mut heard = Instant::now();
    loop {
        match client.call("GET", &path, b"") {
            Ok(job) => {
                heard = Instant::now();
                let state = job["state"].as_str().and_then(JobState::from_name);
                if state.is_none_or(JobState::is_terminal) {
                    return Ok(job);
                }
                view.show(client, &path, &job);
            }
            Err(refusal) if passes(&refusal) && heard.elapsed() < AWAY => {
                view.away(client, &refusal);
            }
            Err(refusal) => return Err(refusal),
        }
        if limit.is_some_and(|limit| begun.elapsed() >= limit) {
            return Err(Refusal::new(Code::WaitTimeout).with("job_id", job_id.to_owned()));
        }
        std::thread::sleep(LOOK);
    }
}

/// Refuses a job that has not succeeded, after what was printed of it.
pub fn expect_success(job: &Value, output: &mut Output) -> Result<(), Failure> {
    let state = job["state"].as_str().unwrap_or_default().to_owned();
    if state == JobState::Succeeded.name() {
        return Ok(());
    }
    output.finish()?;
    let code = job["error_code"].as_str().unwrap_or("none").to_owned();
    Err(Refusal::new(Code::JobFailed).with("state", state).with("error", code).into())
}

/// One line on stderr that tells where the job is, if somebody sees it.
struct View {
    bar: Option<ProgressBar>,
    /// When the steps were looked at, and in which state the job was.
    looked: Option<(Instant, String)>,
}

impl View {
    fn new() -> Self {
        let is_seen = std::io::stderr().is_terminal();
        let bar = || {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
            bar.enable_steady_tick(LOOK);
            bar
        };
        Self { bar: is_seen.then(bar), looked: None }
    }

    fn show(&mut self, client: &Client, path: &str, job: &Value) {
        let Some(bar) = &self.bar else { return };
        let state = job["state"].as_str().unwrap_or_default();
        let is_fresh =
            |(at, seen): &(Instant, String)| at.elapsed() < LOOK_AT_STEPS && seen == state;
        if self.looked.as_ref().is_some_and(is_fresh) {
            return;
        }
        // What is only looked at may be missing; the job itself is asked for again.
        let path = format!("{path}/steps?outputs=none&limit={STEPS}");
        let part = client.call("GET", &path, b"").unwrap_or_default();
        let steps = part["items"].as_array().cloned().unwrap_or_default();
        let over = |step: &&Value| step["state"] == "SUCCEEDED" || step["state"] == "SKIPPED";
        let open = steps.iter().filter(|step| !over(step) && step["attempt_no"] != 0);
        let named: Vec<String> = open
            .take(SHOWN)
            .map(|step| {
                let (id, state) = (&step["stepId"], &step["state"]);
                let plain = |value: &Value| value.as_str().unwrap_or_default().to_owned();
                format!("{} {} (attempt {})", plain(id), plain(state), step["attempt_no"])
            })
            .collect();
        let done = steps.iter().filter(over).count();
        let of = if part["next"].is_null() { "" } else { "the first " };
        let count = steps.len();
        bar.set_message(format!("{state}, {done} of {of}{count} steps; {}", named.join(", ")));
        self.looked = Some((Instant::now(), state.to_owned()));
    }

    fn away(&self, client: &Client, refusal: &Refusal) {
        match &self.bar {
            Some(bar) => bar.set_message(format!("waiting for the server: {refusal}")),
            None => client.waits(refusal),
        }
    }
}

impl Drop for View {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
