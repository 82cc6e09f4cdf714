//! A job, explained from its rows: what happened, what holds it now, and what comes next and when. A sequence
//! is held by its current step, a graph by every obligation that is open.

use serde::Serialize;
use sprag_kernel::decide::rows::EndingKind;
use sprag_kernel::retry::Millis;
use sprag_kernel::{JobState, State, StepState};

mod next;

use crate::batch::store::BatchProgress;
use crate::duration;
use crate::graph::{Graph, place};
use crate::protocol::Protocol;
use crate::signals::{Decision, SignalView};
use crate::store::{Answer, AttemptFilter, AttemptView, JobView, Store};
use crate::upkeep::{TaskView, is_served};

/// An explanation in sentences.
#[derive(Clone, Debug, Serialize)]
pub struct Explanation {
    /// What happened, in order.
    pub happened: Vec<String>,
    /// What holds the job now.
    pub now: String,
    /// What will happen next.
    pub next: String,
}

/// What is looked at to explain a job.
#[derive(Clone, Copy)]
pub struct Seen<'a> {
    /// The job.
    pub job: &'a JobView,
    /// Its attempts, all of them.
    pub attempts: &'a [AttemptView],
    /// What was said to it.
    pub signals: &'a [SignalView],
    /// Its completion tasks that are not delivered.
    pub tasks: &'a [TaskView],
    /// The rules that it is pinned to; without them it is not told what would follow a failure, and when.
    pub graph: Option<&'a Graph>,
}

impl<'a> Seen<'a> {
    /// The rows alone.
    pub fn of(job: &'a JobView, attempts: &'a [AttemptView]) -> Self {
        Self { job, attempts, signals: &[], tasks: &[], graph: None }
    }
}

/// Looks at a job in its store and explains it. Outputs above what the filter allows are not quoted.
pub async fn explained<S: Store>(
    store: &S,
    job: &JobView,
    filter: AttemptFilter,
) -> Answer<Explanation> {
    let job_id = job.facts.job_id;
    let attempts = store.attempts_by(job_id, filter).await?;
    let signals = store.signals(job_id).await?;
    let tasks = store.tasks(job_id).await?;
    let definition = store.protocol(&job.facts.protocol_id).await?;
    let graph = definition.and_then(|text| Protocol::read(&text).ok()?.graph().ok());
    let (attempts, signals, graph) = (&attempts[..], &signals[..], graph.as_ref());
    let seen = Seen { job, attempts, signals, tasks: &tasks, graph };
    Ok(explain(&seen, store.now().await?))
}

/// Explains a job at the store's time `now`.
pub fn explain(seen: &Seen<'_>, now: Millis) -> Explanation {
    let Seen { job, attempts, signals, .. } = *seen;
    let dispatched = attempts.iter().filter(|attempt| attempt.row.lease_id.is_some());
    let mut happened: Vec<String> = vec![submitted(job, now)];
    happened.extend(dispatched.map(|attempt| story(attempt, now)));
    happened.extend(signals.iter().map(|signal| said(signal, attempts, now)));
    if let Some(completed_at) = job.completed_at {
        happened.push(format!("The job ended {} {}.", job.row.state, ago(completed_at, now)));
    }
    let open = open(job, attempts);
    let next = next::next(seen, &open, now);
    let now = if open.is_empty() { over(job) } else { held(job, &open, now) };
    Explanation { happened, now, next }
}

/// What somebody has said, and which step has it.
fn said(view: &SignalView, attempts: &[AttemptView], now: Millis) -> String {
    let signal = &view.signal;
    let decision = match signal.decision {
        Decision::Approve => "approves",
        Decision::Reject => "rejects",
    };
    let by = signal.by.as_deref().unwrap_or("somebody");
    let why = signal.reason.as_ref().map_or(String::new(), |reason| format!(" ({reason})"));
    let taken = view.taken_by.and_then(|place| attempts.iter().find(|a| a.key.place() == place));
    let taken = taken.map_or_else(
        || "no step has taken it yet".to_owned(),
        |attempt| format!("step {} has it", attempt.step_id),
    );
    let (name, id, ago) = (&signal.name, &signal.signal_id, ago(view.received_at, now));
    format!("Signal {name} ({id}): {by} {decision}{why}, {ago}; {taken}.")
}

/// Whether it is parked for a signal.
fn is_parked(attempt: &AttemptView) -> bool {
    let is_free = attempt.owner.is_none() && !attempt.is_ready && attempt.row.ending.is_none();
    attempt.waits_for.is_some() && is_free && !attempt.row.state.is_terminal()
}

fn submitted(job: &JobView, now: Millis) -> String {
    let when = ago(job.created_at, now);
    match job.facts.parent() {
        Some((parent, _)) => format!(
            "Begun {when} as the child of job {}, for its step {}, attempt {}.",
            parent.job_id, parent.step_index, parent.attempt_no
        ),
        None => format!("Submitted {when}."),
    }
}

/// The attempts that hold the job: in a sequence the newest of the current step, in a graph all that are
/// open, those that somebody can go on with first.
fn open<'a>(job: &JobView, attempts: &'a [AttemptView]) -> Vec<&'a AttemptView> {
    if job.row.state.is_terminal() {
        return Vec::new();
    }
    if !job.row.is_graph {
        let is_current = |attempt: &&AttemptView| attempt.key.step_index == job.row.current_step;
        return attempts.iter().rfind(is_current).into_iter().collect();
    }
    let mut open: Vec<_> = attempts.iter().filter(|attempt| is_obligation(attempt)).collect();
    open.sort_by_key(|attempt| attempt.countdown > 0);
    open
}

/// Whether it is parked or activated, and has not settled.
fn is_obligation(attempt: &AttemptView) -> bool {
    let is_live = attempt.is_ready
        || attempt.is_in_line
        || attempt.timer_at.is_some()
        || attempt.owner.is_some()
        || attempt.countdown > 0
        || attempt.row.ledger.leg1_entries() > 0;
    let has_settled = attempt.row.ending.is_some_and(|ending| ending.guid.children_spawned());
    is_live && !has_settled && attempt.row.state != StepState::Cancelled
}

/// The most open obligations that are told one by one.
const TOLD: usize = 5;

fn held(job: &JobView, open: &[&AttemptView], now: Millis) -> String {
    let mut told: Vec<String> =
        open.iter().take(TOLD).map(|attempt| holds(job, attempt, now)).collect();
    if open.len() > TOLD {
        told.push(format!("And {} more are open.", open.len() - TOLD));
    }
    told.join(" ")
}

/// Where an attempt is, as far as that is not said by its step.
fn whereabouts(attempt: &AttemptView) -> String {
    let branch = match attempt.key.branch {
        0 => String::new(),
        branch => format!(" of branch {}", place::show(branch)),
    };
    match attempt.key.turn {
        0 => branch,
        turn => format!("{branch}, turn {turn}"),
    }
}

fn story(attempt: &AttemptView, now: Millis) -> String {
    let (step, place) = (&attempt.step_id, whereabouts(attempt));
    let name = format!("Step {step}{place}, attempt {}", attempt.key.attempt_no);
    let why = match &attempt.error {
        Some(error) => format!(" ({}: {})", error.code, error.message),
        None => String::new(),
    };
    let Some(ending) = attempt.row.ending else {
        let since = attempt.acked_at.or(attempt.sent_at).unwrap_or(attempt.updated_at);
        let (state, since) = (attempt.row.state, ago(since, now));
        return format!("{name}: {state}, since {since}.{}", committed(attempt, now));
    };
    let how = match ending.kind {
        EndingKind::Success => "succeeded",
        EndingKind::Retryable => "failed, worth another attempt",
        EndingKind::NonRetryable => "failed for good",
        EndingKind::AckTimeout => "was not acknowledged in time",
        EndingKind::LeaseExpired => "fell silent: its lease ran out",
        EndingKind::OwnerLost => "lost the engine that ran it",
        EndingKind::PublishFailed => "could not be published",
        EndingKind::Leg1Failed(_) => "could not be dispatched",
        EndingKind::Leg2Exhausted => "was entered too often",
        EndingKind::Cancel => "was cancelled before it started",
        EndingKind::Skip => "was skipped: its condition is false",
    };
    // What a failed attempt leaves is what was seen of it, such as the snapshot of a batch.
    let seen = match (ending.kind, &attempt.output) {
        (EndingKind::Success, _) | (_, None) => String::new(),
        (_, Some(output)) => format!(" It left: {output}"),
    };
    let child = attempt.child.map(|child| format!(" by child job {child}")).unwrap_or_default();
    let (ended, committed) = (ago(attempt.updated_at, now), committed(attempt, now));
    format!("{name}: {how}{child}{why}, {ended}.{committed}{seen}")
}

/// How far its batch is, by the journal.
fn committed(attempt: &AttemptView, now: Millis) -> String {
    let Some(BatchProgress { cursor, total, counts, commits, moved_at }) = attempt.batch else {
        return String::new();
    };
    let of = total.map_or(String::new(), |total| format!(" of {total}"));
    let parts = [
        (counts.success, "succeeded"),
        (counts.skip, "skipped"),
        (counts.fail, "failed"),
        (counts.cancel, "cancelled"),
    ];
    let parts = parts.iter().filter(|(count, _)| *count > 0);
    let parts: Vec<String> = parts.map(|(count, how)| format!("{count} {how}")).collect();
    let amount = if parts.is_empty() { String::new() } else { format!(" ({})", parts.join(", ")) };
    let moved = ago(moved_at, now);
    format!(
        " Its batch has {cursor}{of} items committed{amount}, in {commits} rows of its journal; \
         it last moved {moved}."
    )
}

fn holds(job: &JobView, attempt: &AttemptView, now: Millis) -> String {
    let step =
        format!("step {}{} of service {}", attempt.step_id, whereabouts(attempt), attempt.service);
    let cancelling = match job.row.state {
        JobState::Cancelling => "The job is being cancelled. ",
        JobState::Queued
        | JobState::Dispatching
        | JobState::InProgress
        | JobState::Succeeded
        | JobState::FailedFinal
        | JobState::Cancelled => "",
    };
    let what = match (attempt.row.state, attempt.timer_at) {
        (StepState::InProgress, _) if attempt.child.is_some() => {
            let child = attempt.child.map(|child| child.to_string()).unwrap_or_default();
            format!("The {step} waits for its child, job {child}.")
        }
        _ if attempt.countdown > 0 => {
            format!("The {step} is parked for {} others.", attempt.countdown)
        }
        _ if attempt.row.ending.is_some() => {
            format!("The attempt of {step} has ended; its message is being processed.")
        }
        _ if attempt.is_in_line => waits_in_line(attempt, now),
        _ if attempt.is_ready && attempt.is_paused => {
            format!("It waits in the queue: the service of {step} is paused.")
        }
        _ if attempt.is_ready && !is_served(attempt.served_at, now) => {
            let since = match attempt.served_at {
                Some(seen_at) => format!("since {}", ago(seen_at, now)),
                None => "so far".to_owned(),
            };
            format!(
                "It waits for a worker: {step} is in the queue, and nobody serves that service {since}."
            )
        }
        _ if attempt.is_ready => {
            format!("It waits for a free worker: {step} is in the queue and nobody has claimed it.")
        }
        (StepState::Pending | StepState::FailedRetry, due) if is_parked(attempt) => {
            let (name, until) = (attempt.waits_for.as_deref().unwrap_or_default(), due);
            let until =
                until.map_or(String::new(), |due| format!("; its time ends {}", ahead(due, now)));
            format!("It waits for signal {name}: {step}{until}.")
        }
        (StepState::Pending | StepState::FailedRetry, Some(due)) => {
            format!(
                "It waits for its time: attempt {} of {step} is due {}.",
                attempt.key.attempt_no,
                ahead(due, now)
            )
        }
        (StepState::Pending | StepState::FailedRetry, None) => {
            format!("An engine has taken up {step} and is about to dispatch it.")
        }
        (StepState::Dispatching, _) => format!("The directive of {step} waits to be published."),
        (StepState::AwaitingAck, due) => format!(
            "The directive of {step} is out; its acknowledgement is due {}.",
            ahead(due.unwrap_or(now), now)
        ),
        (StepState::InProgress, Some(due)) => {
            format!("A worker has {step}; its lease ends {}.", ahead(due, now))
        }
        (StepState::InProgress, None) => match attempt.owner {
            Some(engine) => format!("Engine {} runs {step}.", engine.0),
            None => format!("A worker has {step}."),
        },
        (
            StepState::Succeeded
            | StepState::FailedFinal
            | StepState::Cancelled
            | StepState::Skipped,
            _,
        ) => format!("The {step} is {}.", attempt.row.state),
    };
    match &attempt.progress {
        Some(progress) if attempt.row.ending.is_none() => {
            format!("{cancelling}{what} It last said: {progress}")
        }
        Some(_) | None => format!("{cancelling}{what}"),
    }
}

/// How many hold the limit that it waits for, and when the next may start.
fn waits_in_line(attempt: &AttemptView, now: Millis) -> String {
    let (name, max) = attempt.gate.as_ref().map_or(("", None), |(name, max)| (name, *max));
    let Some(gate) = &attempt.line else { return format!("It waits for its limit: `{name}`.") };
    let running = match max {
        Some(max) => format!("{} of {max} of `{name}` are running", gate.admitted),
        None => format!("`{name}` has a rate"),
    };
    let next = match gate.next_at.filter(|at| *at > now) {
        Some(at) => format!(", the next may start {}", ahead(at, now)),
        None => String::new(),
    };
    format!("It waits for its limit: {running}, {} stand in line{next}.", gate.waiting)
}

fn over(job: &JobView) -> String {
    match &job.error {
        Some(error) => format!("{}: {}: {}", job.row.state, error.code, error.message),
        None => job.row.state.name().to_owned(),
    }
}

fn ago(then: Millis, now: Millis) -> String {
    format!("{} ago", rounded(now.saturating_sub(then)))
}

fn ahead(then: Millis, now: Millis) -> String {
    if then <= now { "now".to_owned() } else { format!("in {}", rounded(then - now)) }
}

/// A duration without digits that nobody reads.
fn rounded(ms: Millis) -> String {
    let unit = match ms {
        0..10_000 => 1,
        10_000..600_000 => 1_000,
        _ => 60_000,
    };
    duration::show(ms / unit * unit)
}
