//! `sprag job`: jobs, straight in a store.

use clap::{Args, Subcommand};
use serde::Serialize;
use sprag_engine::explain::explain;
use sprag_engine::ids::JobId;
use sprag_engine::store::{AttemptView, EventView, JobFilter, JobView, Submitted};
use sprag_kernel::keys::Mode;
use sprag_kernel::{Code, JobState, Refusal, State};

use crate::output::{Failure, Output};
use crate::stores::{Acting, Looking};

/// Arguments of `sprag job`.
#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// List jobs, the newest first.
    List(ListArgs),
    /// Show a job and its steps.
    Show(OneArgs),
    /// Tell in sentences what happened, what holds the job now, and what comes next.
    Explain(OneArgs),
    /// Show the history of a job.
    Events(OneArgs),
    /// Write the ordered output of a batch step, one line of JSON for each item that succeeded.
    Output(OutputArgs),
    /// Ask a job to stop. On a SQLite file no engine may be running.
    Cancel(OneArgs),
    /// Run a job that ended badly again, as a new job. On a SQLite file no engine may be running.
    Rerun(RerunArgs),
}

#[derive(Debug, Args)]
struct ListArgs {
    /// The store: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL")]
    store: String,
    /// Only of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Only in this state, such as QUEUED.
    #[arg(long, value_parser = state)]
    state: Option<JobState>,
    /// At most so many.
    #[arg(long, default_value_t = 50)]
    limit: u32,
    /// Go on behind this job.
    #[arg(long, value_name = "JOB_ID")]
    before: Option<String>,
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The job.
    job_id: String,
    /// The store: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL")]
    store: String,
}

#[derive(Debug, Args)]
struct OutputArgs {
    #[command(flatten)]
    one: OneArgs,
    /// The step.
    step_id: String,
    /// Begin at this item.
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    from: u64,
}

#[derive(Debug, Args)]
struct RerunArgs {
    #[command(flatten)]
    one: OneArgs,
    /// Which rerun of the job: the same number is the same new job. By default the first that does not
    /// exist or has not ended badly itself.
    #[arg(long)]
    n: Option<u32>,
}

fn state(name: &str) -> Result<JobState, String> {
    JobState::from_name(name).ok_or_else(|| {
        let names: Vec<_> = JobState::machine().states.iter().map(|s| s.name()).collect();
        format!("states are {}", names.join(", "))
    })
}

#[derive(Serialize)]
struct JobShape<'a> {
    #[serde(rename = "jobId")]
    job_id: String,
    tenant_id: &'a str,
    request_type: &'a str,
    protocol_id: &'a str,
    state: &'static str,
    version: u64,
    semaphore: u32,
    current_step_index: u32,
    current_step_id: Option<&'a str>,
    attempts_total: u32,
    mode: &'static str,
    lane: u32,
    routing_key: &'a str,
    doc_id: Option<&'a str>,
    idempotency_key: Option<&'a str>,
    idempotency_hash: String,
    correlation_id: Option<&'a str>,
    traceparent: Option<&'a str>,
    rerun_of: Option<String>,
    error_code: Option<&'a str>,
    error_message: Option<&'a str>,
    created_at: u64,
    updated_at: u64,
    completed_at: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    steps: Vec<StepShape<'a>>,
}

#[derive(Serialize)]
struct StepShape<'a> {
    #[serde(rename = "stepId")]
    step_id: &'a str,
    step_index: u32,
    branch: u64,
    turn: u32,
    state: &'static str,
    attempt_no: u32,
    service: &'a str,
    ledger: String,
    guid: Option<String>,
    output: Option<serde_json::Value>,
    last_error_code: Option<&'a str>,
    last_error_message: Option<&'a str>,
}

/// Runs `sprag job`.
pub fn run(args: &JobArgs, output: &mut Output) -> Result<(), Failure> {
    match &args.command {
        JobCommand::List(args) => list(args, output),
        JobCommand::Show(args) => show(args, output),
        JobCommand::Explain(args) => explanation(args, output),
        JobCommand::Events(args) => events(args, output),
        JobCommand::Output(args) => batch_output(args, output),
        JobCommand::Cancel(args) => cancel(args, output),
        JobCommand::Rerun(args) => rerun(args, output),
    }
}

fn list(args: &ListArgs, output: &mut Output) -> Result<(), Failure> {
    let store = Looking::open(&args.store)?;
    let filter = JobFilter {
        tenant_id: args.tenant.clone(),
        state: args.state,
        before: args.before.as_deref().map(str::parse).transpose()?,
        limit: args.limit,
        ..JobFilter::default()
    };
    let jobs = store.jobs(filter)?;
    if output.is_json() {
        #[derive(Serialize)]
        struct List<'a> {
            items: Vec<JobShape<'a>>,
            next: Option<String>,
        }
        let full = jobs.len() == args.limit as usize;
        let next = jobs.last().filter(|_| full).map(|job| job.facts.job_id.to_string());
        let items = jobs.iter().map(|job| shape(job, &[])).collect();
        return output.json(&List { items, next });
    }
    for job in &jobs {
        let error = job.error.as_ref().map_or("", |error| error.code.as_str());
        output.line(format_args!(
            "{}  {:12}  {:16}  {:24}  {error}",
            job.facts.job_id,
            job.row.state.name(),
            job.facts.tenant_id,
            job.facts.protocol_id
        ))?;
    }
    Ok(())
}

/// A job and its attempts, or the refusal that there is none.
fn find(store: &Looking, job_id: &str) -> Result<(JobView, Vec<AttemptView>), Refusal> {
    let job_id: JobId = job_id.parse()?;
    let job = store.job(job_id)?;
    let unknown = || Refusal::new(Code::JobUnknown).with("job_id", job_id.to_string());
    let job = job.ok_or_else(unknown)?;
    Ok((job, store.attempts(job_id)?))
}

fn shape<'a>(job: &'a JobView, attempts: &'a [AttemptView]) -> JobShape<'a> {
    JobShape {
        job_id: job.facts.job_id.to_string(),
        tenant_id: &job.facts.tenant_id,
        request_type: &job.facts.request_type,
        protocol_id: &job.facts.protocol_id,
        state: job.row.state.name(),
        version: job.row.version,
        semaphore: job.row.semaphore.get(),
        current_step_index: job.row.current_step,
        current_step_id: current_step(job, attempts),
        attempts_total: job.row.attempts_total,
        mode: match job.facts.mode {
            Mode::Default => "DEFAULT",
            Mode::Burst => "BURST",
        },
        lane: job.facts.route.lane,
        routing_key: &job.facts.route.key,
        doc_id: job.facts.doc_id.as_deref(),
        idempotency_key: job.facts.idempotency_key.as_deref(),
        idempotency_hash: job.facts.hash.to_string(),
        correlation_id: job.facts.correlation_id.as_deref(),
        traceparent: job.facts.traceparent.as_deref(),
        rerun_of: job.facts.rerun_of.map(|job_id| job_id.to_string()),
        error_code: job.error.as_ref().map(|error| error.code.as_str()),
        error_message: job.error.as_ref().map(|error| error.message.as_str()),
        created_at: job.created_at,
        updated_at: job.updated_at,
        completed_at: job.completed_at,
        steps: attempts.iter().map(step_shape).collect(),
    }
}

fn current_step<'a>(job: &JobView, attempts: &'a [AttemptView]) -> Option<&'a str> {
    let is_current = |attempt: &&AttemptView| attempt.key.step_index == job.row.current_step;
    attempts.iter().find(is_current).map(|attempt| attempt.step_id.as_str())
}

fn step_shape(attempt: &AttemptView) -> StepShape<'_> {
    StepShape {
        step_id: &attempt.step_id,
        step_index: attempt.key.step_index,
        branch: attempt.key.branch,
        turn: attempt.key.turn,
        state: attempt.row.state.name(),
        attempt_no: attempt.row.shown_attempt_no(),
        service: &attempt.service,
        ledger: attempt.row.ledger.to_string(),
        guid: attempt.row.ending.map(|ending| ending.guid.to_string()),
        output: attempt.output.as_deref().and_then(|text| serde_json::from_str(text).ok()),
        last_error_code: attempt.error.as_ref().map(|error| error.code.as_str()),
        last_error_message: attempt.error.as_ref().map(|error| error.message.as_str()),
    }
}

fn show(args: &OneArgs, output: &mut Output) -> Result<(), Failure> {
    let (job, attempts) = find(&Looking::open(&args.store)?, &args.job_id)?;
    if output.is_json() {
        return output.json(&shape(&job, &attempts));
    }
    output.line(format_args!("{}  {}", job.facts.job_id, job.row.state))?;
    output.line(format_args!(
        "tenant {}, type {}, protocol {}, version {}, {} open, {} directives",
        job.facts.tenant_id,
        job.facts.request_type,
        job.facts.protocol_id,
        job.row.version,
        job.row.semaphore.get(),
        job.row.attempts_total
    ))?;
    for attempt in &attempts {
        let guid = attempt.row.ending.map(|ending| ending.guid.to_string()).unwrap_or_default();
        output.line(format_args!(
            "  {:16} {:13} attempt {}  {}  {guid}",
            attempt.step_id,
            attempt.row.state.name(),
            attempt.row.shown_attempt_no(),
            attempt.row.ledger
        ))?;
        if let Some(produced) = &attempt.output {
            output.line(format_args!("    {produced}"))?;
        }
        if let Some(error) = &attempt.error {
            output.line(format_args!("    {}: {}", error.code, error.message))?;
        }
    }
    Ok(())
}

fn cancel(args: &OneArgs, output: &mut Output) -> Result<(), Failure> {
    let job_id: JobId = args.job_id.parse()?;
    let state = Acting::open(&args.store)?.cancel(job_id)?;
    told(job_id, state, None, output)
}

fn rerun(args: &RerunArgs, output: &mut Output) -> Result<(), Failure> {
    let job_id: JobId = args.one.job_id.parse()?;
    let Submitted { job_id, state, created } =
        Acting::open(&args.one.store)?.rerun(job_id, args.n)?;
    told(job_id, state, Some(created), output)
}

/// What an act has left.
fn told(
    job_id: JobId,
    state: JobState,
    created: Option<bool>,
    output: &mut Output,
) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Told {
        #[serde(rename = "jobId")]
        job_id: String,
        state: &'static str,
        #[serde(skip_serializing_if = "Option::is_none")]
        created: Option<bool>,
    }
    if output.is_json() {
        return output.json(&Told { job_id: job_id.to_string(), state: state.name(), created });
    }
    output.line(format_args!("{job_id}  {state}"))
}

fn explanation(args: &OneArgs, output: &mut Output) -> Result<(), Failure> {
    let store = Looking::open(&args.store)?;
    let (job, attempts) = find(&store, &args.job_id)?;
    let now = store.now()?;
    let signals = store.signals(job.facts.job_id)?;
    let explained = explain(&job, &attempts, &signals, now);
    if output.is_json() {
        return output.json(&explained);
    }
    for sentence in &explained.happened {
        output.line(sentence)?;
    }
    output.line(format_args!("\nNow:  {}\nNext: {}", explained.now, explained.next))
}

fn events(args: &OneArgs, output: &mut Output) -> Result<(), Failure> {
    let store = Looking::open(&args.store)?;
    let (job, _) = find(&store, &args.job_id)?;
    let events = store.events(job.facts.job_id)?;
    for event in &events {
        event_lines(event, output)?;
    }
    Ok(())
}

/// Items of the output that are read at a time.
const OUTPUT_PAGE: usize = 1_000;

fn batch_output(args: &OutputArgs, output: &mut Output) -> Result<(), Failure> {
    let store = Looking::open(&args.one.store)?;
    let (_, attempts) = find(&store, &args.one.job_id)?;
    let unknown = || Refusal::new(Code::StepUnknown).with("step_id", args.step_id.clone());
    let step = attempts.iter().find(|attempt| attempt.step_id == args.step_id);
    let key = step.ok_or_else(unknown)?.key;
    let mut next = args.from;
    loop {
        let page = store.batch_output(&key, next, OUTPUT_PAGE)?;
        for line in page.iter().filter_map(|item| item.output.as_ref()) {
            output.line(line)?;
        }
        next += page.len() as u64;
        if page.len() < OUTPUT_PAGE {
            return Ok(());
        }
    }
}

fn event_lines(event: &EventView, output: &mut Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Shape<'a> {
        n: u64,
        at: u64,
        step_index: Option<u32>,
        attempt_no: Option<u32>,
        changes: Vec<&'a str>,
        #[serde(skip_serializing_if = "Option::is_none")]
        note: Option<serde_json::Value>,
    }
    if output.is_json() {
        return output.json(&Shape {
            n: event.n,
            at: event.at,
            step_index: event.attempt.map(|(step, _)| step),
            attempt_no: event.attempt.map(|(_, attempt)| attempt),
            changes: event.changes.split_whitespace().collect(),
            note: event.note.as_deref().and_then(|note| serde_json::from_str(note).ok()),
        });
    }
    let about =
        event.attempt.map_or(String::new(), |(step, no)| format!("step {step} attempt {no}"));
    let note = event.note.as_deref().unwrap_or_default();
    output.line(format_args!("{:4}  {}  {about:20}  {}{note}", event.n, event.at, event.changes))
}
