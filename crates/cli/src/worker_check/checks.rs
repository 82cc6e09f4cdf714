//! The checks, each a small story about one job or a few.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::bench::{Bench, Seen};

/// Longer than the lease: who does not show signs of life loses the step.
const LONG_MS: u64 = 6_500;
/// So long that only a cancel ends it in time.
const VERY_LONG_MS: u64 = 600_000;
/// So long that the server is surely killed in the middle, and shorter than the lease.
const SHORT_MS: u64 = 700;
/// How many jobs a worker is given at once.
const MANY: u64 = 50;

/// One story.
pub(super) struct Check {
    /// What the worker does.
    pub(super) name: &'static str,
    /// How it does that.
    pub(super) advice: &'static str,
    /// Whether it is about work that lasts longer than a lease.
    pub(super) is_long: bool,
    pub(super) run: fn(&mut Bench) -> Seen<()>,
}

pub(super) const CHECKS: [Check; 8] = [
    Check {
        name: "does a step and reports its output",
        advice: "claims, does the work, and reports with the names of the directive as they are",
        is_long: false,
        run: echo,
    },
    Check {
        name: "does many steps, each once",
        advice: "claims again when it has reported, each time with a new claim_id",
        is_long: false,
        run: many,
    },
    Check {
        name: "does the branches of a fan-out",
        advice: "names the directive's branch and turn in its reports",
        is_long: false,
        run: fan,
    },
    Check {
        name: "reports a failure that may pass",
        advice: "says FAILED, failure_class RETRYABLE, and error {code, message}",
        is_long: false,
        run: shaky,
    },
    Check {
        name: "reports a failure for good",
        advice: "says FAILED, failure_class NON_RETRYABLE, and error {code, message}",
        is_long: false,
        run: fatal,
    },
    Check {
        name: "goes on after the server was killed and started again",
        advice: "sends a call that was not answered again as it was; a report counts once",
        is_long: false,
        run: restarted,
    },
    Check {
        name: "shows signs of life while it works",
        advice: "sends heartbeats well before lease_expires_at, also while the work blocks",
        is_long: true,
        run: long,
    },
    Check {
        name: "stops when its job is cancelled",
        advice: "stops when a heartbeat answers cancel, and reports FAILED, RETRYABLE, CANCELLED",
        is_long: true,
        run: cancelled,
    },
];

fn expect(what: &str, is: &Value, wanted: &Value) -> Seen<()> {
    if is == wanted { Ok(()) } else { Err(format!("{what} is {is}, not {wanted}")) }
}

/// The one step of a job that is over as it should be, in its one attempt.
fn succeeded(bench: &Bench, job_id: &str) -> Seen<Value> {
    let (job, mut steps) = bench.ended(job_id)?;
    expect("the job's state", &job["state"], &"SUCCEEDED".into())?;
    expect("the number of attempts", &job["attempts_total"], &1.into())?;
    Ok(steps.pop().unwrap_or_default())
}

fn echo(bench: &mut Bench) -> Seen<()> {
    let value = json!({"text": "käse \u{1f9c0}", "list": [1, 2.5, null, true], "empty": {}});
    let job_id = bench.submit(&json!({"do": "echo", "value": value}))?;
    expect("the output", &succeeded(bench, &job_id)?["output"], &value)
}

fn many(bench: &mut Bench) -> Seen<()> {
    let submit = |n| bench.submit(&json!({"do": "echo", "value": n}));
    let jobs = (0..MANY).map(submit).collect::<Seen<Vec<_>>>()?;
    let mut outputs = BTreeSet::new();
    for job_id in &jobs {
        outputs.insert(succeeded(bench, job_id)?["output"].to_string());
    }
    expect("the number of different outputs", &outputs.len().into(), &MANY.into())
}

fn fan(bench: &mut Bench) -> Seen<()> {
    let job_id =
        bench.submit_fan(&json!({"do": "echo", "value": "branch", "items": [1, 2, 3, 4]}))?;
    let (job, _) = bench.ended(&job_id)?;
    expect("the job's state", &job["state"], &"SUCCEEDED".into())
}

fn shaky(bench: &mut Bench) -> Seen<()> {
    let job_id = bench.submit(&json!({"do": "fail", "times": 2, "value": "at last"}))?;
    let (job, steps) = bench.ended(&job_id)?;
    expect("the job's state", &job["state"], &"SUCCEEDED".into())?;
    expect("the last attempt", &steps[0]["attempt_no"], &3.into())
}

fn fatal(bench: &mut Bench) -> Seen<()> {
    let job_id = bench.submit(&json!({"do": "fatal"}))?;
    let (job, steps) = bench.ended(&job_id)?;
    expect("the job's state", &job["state"], &"FAILED_FINAL".into())?;
    expect("the last attempt", &steps[0]["attempt_no"], &1.into())?;
    match steps[0]["last_error_code"].as_str() {
        Some(code) if !code.is_empty() => Ok(()),
        Some(_) | None => Err("the failure has no code".to_owned()),
    }
}

fn restarted(bench: &mut Bench) -> Seen<()> {
    let job_id = bench.submit(&json!({"do": "sleep", "ms": SHORT_MS, "value": "kept"}))?;
    bench.taken(&job_id)?;
    bench.restart()?;
    expect("the output", &succeeded(bench, &job_id)?["output"], &"kept".into())?;
    // It claims again from a server that it did not know.
    let next = bench.submit(&json!({"do": "echo", "value": 1}))?;
    succeeded(bench, &next).map(drop)
}

fn long(bench: &mut Bench) -> Seen<()> {
    let job_id = bench.submit(&json!({"do": "sleep", "ms": LONG_MS, "value": "slept"}))?;
    expect("the output", &succeeded(bench, &job_id)?["output"], &"slept".into())
}

fn cancelled(bench: &mut Bench) -> Seen<()> {
    let job_id = bench.submit(&json!({"do": "sleep", "ms": VERY_LONG_MS, "value": "slept"}))?;
    bench.taken(&job_id)?;
    bench.cancel(&job_id)?;
    let (job, steps) = bench.ended(&job_id)?;
    expect("the job's state", &job["state"], &"CANCELLED".into())?;
    match steps[0]["last_error_code"].as_str() {
        Some("LEASE_EXPIRED") => Err("it fell silent instead of reporting".to_owned()),
        Some(_) | None => Ok(()),
    }
}
