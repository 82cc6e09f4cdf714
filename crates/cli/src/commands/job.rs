//! `sprag job`: jobs, at a server or straight in a store.

use std::time::Duration;

use clap::{Args, Subcommand};
use serde_json::Value;
use sprag_engine::graph::place;
use sprag_kernel::{Code, JobState, Refusal, State};

use crate::feed::Feed;
use crate::jobs::{AtArgs, Jobs, Wanted, look};
use crate::output::{Failure, Output};
use crate::stores::Looking;
use crate::table::Table;
use crate::waiting;

/// How often a store is looked at for new events.
const LOOK: Duration = Duration::from_millis(250);

/// Arguments of `sprag job`.
#[derive(Debug, Args)]
pub struct JobArgs {
    #[command(subcommand)]
    command: JobCommand,
    #[command(flatten)]
    at: AtArgs,
}

#[derive(Debug, Subcommand)]
enum JobCommand {
    /// List jobs, the newest first.
    List(ListArgs),
    /// Show a job and its steps.
    #[command(after_help = "\
Examples:
  sprag job show JOB_ID
  sprag job show JOB_ID --json | jq .version")]
    Show(OneArgs),
    /// Tell in sentences what happened, what holds the job now, and what comes next.
    #[command(after_help = "\
Examples:
  sprag job explain JOB_ID
  sprag job explain JOB_ID --store sqlite:sprag-data/sprag.db")]
    Explain(OneArgs),
    /// Show the history of a job.
    Events(EventsArgs),
    /// Show what was said to a job.
    #[command(after_help = "\
Example:
  sprag job signals JOB_ID")]
    Signals(OneArgs),
    /// Watch a job of a server until it is over; exit 1 if it does not succeed.
    Watch(WatchArgs),
    /// Write the ordered output of a batch step, one line of JSON for each item that succeeded; needs --store.
    Output(OutputArgs),
    /// Ask a job to stop. With --store on a SQLite file no engine may be running.
    Cancel(CancelArgs),
    /// Run a job that ended badly again, as a new job. With --store on a SQLite file no engine may be running.
    Rerun(RerunArgs),
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag job list --state FAILED_FINAL
  sprag job list --from $(date -d yesterday +%s000)       submitted since then
  sprag job list --store sqlite:sprag.db --limit 5 --json")]
struct ListArgs {
    /// Only of this tenant.
    #[arg(long)]
    tenant: Option<String>,
    /// Only in this state, such as QUEUED.
    #[arg(long, value_parser = state)]
    state: Option<JobState>,
    /// Only of this request type.
    #[arg(long = "type", value_name = "TYPE")]
    request_type: Option<String>,
    /// Submitted at this time or later, in milliseconds since 1970.
    #[arg(long, value_name = "MS")]
    from: Option<u64>,
    /// Submitted before this time, in milliseconds since 1970.
    #[arg(long, value_name = "MS")]
    to: Option<u64>,
    /// Only with this text in correlation id, document, key or error.
    #[arg(long)]
    text: Option<String>,
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
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag job cancel JOB_ID
  sprag job cancel JOB_ID --if-match 3      only if nothing has happened since `sprag job show` said version 3")]
struct CancelArgs {
    /// The job.
    job_id: String,
    /// Only if the job has this version.
    #[arg(long, value_name = "VERSION")]
    if_match: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag job events JOB_ID
  sprag job events JOB_ID --follow --json      as they happen, until the job is over")]
struct EventsArgs {
    /// The job.
    job_id: String,
    /// Go on with new events until the job is over.
    #[arg(long, short)]
    follow: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  sprag job watch JOB_ID --timeout 60 && echo done")]
struct WatchArgs {
    /// The job.
    job_id: String,
    /// Give up after so many seconds; the job goes on.
    #[arg(long, value_name = "SECONDS")]
    timeout: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Example:
  sprag job output JOB_ID lines --store sqlite:sprag-data/sprag.db > lines.ndjson")]
struct OutputArgs {
    /// The job.
    job_id: String,
    /// The step.
    step_id: String,
    /// Begin at this item.
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    from: u64,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag job rerun JOB_ID
  sprag job rerun JOB_ID --n 1      the same new job, however often it is asked for")]
struct RerunArgs {
    /// The job.
    job_id: String,
    /// Which rerun of the job: the same number is the same new job. By default the first that does not
    /// exist or has not ended badly itself.
    #[arg(long)]
    n: Option<u32>,
    /// Only if the job has this version.
    #[arg(long, value_name = "VERSION")]
    if_match: Option<u64>,
}

fn state(name: &str) -> Result<JobState, String> {
    JobState::from_name(name).ok_or_else(|| {
        let names: Vec<_> = JobState::machine().states.iter().map(|s| s.name()).collect();
        format!("states are {}", names.join(", "))
    })
}

/// Runs `sprag job`.
pub fn run(args: &JobArgs, output: &mut Output) -> Result<(), Failure> {
    let jobs = Jobs::find(&args.at)?;
    match &args.command {
        JobCommand::List(args) => list(&jobs, args, output),
        JobCommand::Show(args) => show(&jobs.show(&args.job_id)?, output),
        JobCommand::Explain(args) => explanation(&jobs.explain(&args.job_id)?, output),
        JobCommand::Events(args) => events(&jobs, args, output),
        JobCommand::Watch(args) => watch(&jobs, args, output),
        JobCommand::Output(args) => batch_output(jobs.expect_store()?, args, output),
        JobCommand::Signals(args) => signals(&jobs.signals(&args.job_id)?, output),
        JobCommand::Cancel(args) => told(&jobs.cancel(&args.job_id, args.if_match)?, output),
        JobCommand::Rerun(args) => told(&jobs.rerun(&args.job_id, args.n, args.if_match)?, output),
    }
}

/// A member as text; nothing if it is not there.
fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value[name].as_str().unwrap_or_default()
}

fn list(jobs: &Jobs, args: &ListArgs, output: &mut Output) -> Result<(), Failure> {
    let list = jobs.list(Wanted {
        tenant: args.tenant.clone(),
        state: args.state,
        request_type: args.request_type.clone(),
        from: args.from,
        to: args.to,
        text: args.text.clone(),
        before: args.before.clone(),
        limit: args.limit,
    })?;
    if output.is_json() {
        return output.json(&list);
    }
    let mut table = Table::new(["JOB", "STATE", "TENANT", "PROTOCOL", "ERROR"]);
    for job in list["items"].as_array().into_iter().flatten() {
        table.row(
            ["jobId", "state", "tenant_id", "protocol_id", "error_code"]
                .map(|name| text(job, name)),
        );
    }
    table.print(output)
}

fn show(job: &Value, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(job);
    }
    output.line(format_args!("{}  {}", text(job, "jobId"), text(job, "state")))?;
    output.line(format_args!(
        "tenant {}, type {}, protocol {}, version {}, {} open, {} directives",
        text(job, "tenant_id"),
        text(job, "request_type"),
        text(job, "protocol_id"),
        job["version"],
        job["semaphore"],
        job["attempts_total"]
    ))?;
    for step in job["steps"].as_array().into_iter().flatten() {
        let branch = match step["branch"].as_str().and_then(|branch| branch.parse().ok()) {
            None | Some(0) => String::new(),
            Some(branch) => format!(" {}", place::show(branch)),
        };
        output.line(format_args!(
            "  {:16} {:13} attempt {}  {}  {}",
            format!("{}{branch}", text(step, "stepId")),
            text(step, "state"),
            step["attempt_no"],
            text(step, "ledger"),
            text(step, "guid")
        ))?;
        if !step["output"].is_null() {
            output.line(format_args!("    {}", step["output"]))?;
        }
        if !step["last_error_code"].is_null() {
            let (code, message) = (text(step, "last_error_code"), text(step, "last_error_message"));
            output.line(format_args!("    {code}: {message}"))?;
        }
    }
    Ok(())
}

/// What an act has left.
fn told(job: &Value, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(job);
    }
    output.line(format_args!("{}  {}", text(job, "jobId"), text(job, "state")))
}

fn explanation(explained: &Value, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(explained);
    }
    for sentence in explained["happened"].as_array().into_iter().flatten() {
        output.line(sentence.as_str().unwrap_or_default())?;
    }
    let (now, next) = (text(explained, "now"), text(explained, "next"));
    output.line(format_args!("\nNow:  {now}\nNext: {next}"))
}

fn signals(said: &Value, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(said);
    }
    let mut table = Table::new(["SIGNAL", "ID", "DECISION", "BY", "REASON", "STEP"]);
    for signal in said["items"].as_array().into_iter().flatten() {
        let step = signal["step_index"].as_u64().map(|step| step.to_string()).unwrap_or_default();
        let [name, id, decision, by, reason] =
            ["signal", "signal_id", "decision", "by", "reason"].map(|name| text(signal, name));
        table.row([name, id, decision, by, reason, &step]);
    }
    table.print(output)
}

fn events(jobs: &Jobs, args: &EventsArgs, output: &mut Output) -> Result<(), Failure> {
    match (args.follow, jobs) {
        (false, _) => {
            jobs.events(&args.job_id)?.iter().try_for_each(|event| event_line(event, output))
        }
        (true, Jobs::Server(client)) => Feed::new(client, Some(&args.job_id)).follow(|event| {
            event_line(event, output)?;
            output.finish()?;
            Ok::<_, Failure>(closes(event))
        }),
        (true, Jobs::Store(_)) => {
            let mut shown = 0;
            loop {
                let events = jobs.events(&args.job_id)?;
                for event in &events[shown.min(events.len())..] {
                    event_line(event, output)?;
                }
                output.finish()?;
                if events.iter().any(closes) {
                    return Ok(());
                }
                shown = events.len();
                std::thread::sleep(LOOK);
            }
        }
    }
}

/// Whether a job is over with this event.
fn closes(event: &Value) -> bool {
    let changes = event["data"]["changes"].as_array().into_iter().flatten();
    let mut jobs = changes.filter(|change| change["machine"] == "job");
    jobs.any(|change| JobState::from_name(text(change, "to")).is_some_and(JobState::is_terminal))
}

/// One event, with the job it is about if it says so.
pub fn event_line(event: &Value, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(event);
    }
    let data = &event["data"];
    let about = match (&data["step_index"], &data["attempt_no"]) {
        (Value::Number(step), Value::Number(no)) => {
            format!("step {step}{} attempt {no}", whereabouts(data))
        }
        _ => String::new(),
    };
    let changes = data["changes"].as_array().into_iter().flatten();
    let moves: Vec<String> = changes
        .map(|c| format!("{} {} > {}", text(c, "machine"), text(c, "from"), text(c, "to")))
        .collect();
    let moves = if moves.is_empty() { text(event, "type").to_owned() } else { moves.join(", ") };
    let job = event["jobId"].as_str().map(|job| format!("{job}  ")).unwrap_or_default();
    let note = if data["note"].is_null() { String::new() } else { format!("  {}", data["note"]) };
    let (n, at) = (&event["n"], &event["at"]);
    output.line(format_args!("{job}{n:>4}  {at}  {about:20}  {moves}{note}"))
}

/// The branch and the turn of an event, if its step has any.
fn whereabouts(data: &Value) -> String {
    let branch = data["branch"].as_str().and_then(|branch| branch.parse().ok());
    let branch = branch.map(|branch| format!(" branch {}", place::show(branch)));
    let turn = data["turn"].as_u64().map(|turn| format!(" turn {turn}"));
    branch.unwrap_or_default() + &turn.unwrap_or_default()
}

fn watch(jobs: &Jobs, args: &WatchArgs, output: &mut Output) -> Result<(), Failure> {
    let Jobs::Server(client) = jobs else {
        return Err(Refusal::new(Code::Usage)
            .with("reason", "a store is looked at with `sprag job events --follow`")
            .into());
    };
    let job = waiting::wait(client, &args.job_id, args.timeout.map(Duration::from_secs))?;
    told(&job, output)?;
    waiting::expect_success(&job, output)
}

/// Items of the output that are read at a time.
const OUTPUT_PAGE: usize = 1_000;

fn batch_output(url: &str, args: &OutputArgs, output: &mut Output) -> Result<(), Failure> {
    let store = Looking::open(url)?;
    let (_, attempts) = look(&store, &args.job_id)?;
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
