//! What is shown of jobs, steps, events and requests, the same on every surface.

use serde::Serialize;
use serde_json::Value;
use sprag_engine::requests::RequestView;
use sprag_engine::schedules::ScheduleView;
use sprag_engine::signals::{Decision, SignalView};
use sprag_engine::store::{AttemptView, EventView, JobView};
use sprag_engine::tokens::TokenView;
use sprag_kernel::keys::Mode;
use sprag_kernel::machine::State;
use sprag_kernel::{Cause, JobState, OutboxState, RequestStatus, StepState};
use utoipa::ToSchema;

/// A job.
#[derive(Debug, Serialize, ToSchema)]
pub struct JobShape {
    /// The job.
    #[serde(rename = "jobId")]
    pub job_id: String,
    /// Whose it is.
    pub tenant_id: String,
    /// What was asked for.
    pub request_type: String,
    /// The protocol it is pinned to.
    pub protocol_id: String,
    /// Where it is.
    pub state: &'static str,
    /// The ETag.
    pub version: u64,
    /// How many obligations are open.
    pub semaphore: u32,
    /// The step whose turn it is.
    pub current_step_index: u32,
    /// How many directives were written.
    pub attempts_total: u32,
    /// `DEFAULT` or `BURST`.
    pub mode: &'static str,
    /// Where its directives go.
    pub lane: u32,
    /// What the lane is made from.
    pub routing_key: String,
    /// Which document, in mode BURST.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub doc_id: Option<String>,
    /// The caller's own key.
    pub idempotency_key: Option<String>,
    /// The hash of what was asked for.
    pub idempotency_hash: String,
    /// Why it failed.
    pub error_code: Option<String>,
    /// Why it failed, in words.
    pub error_message: Option<String>,
    /// The request it is a run of.
    #[serde(rename = "requestId", skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Handed through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<String>,
    /// Handed through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub traceparent: Option<String>,
    /// The job it runs again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rerun_of: Option<String>,
    /// Milliseconds since 1970.
    pub created_at: u64,
    /// Milliseconds since 1970.
    pub updated_at: u64,
    /// Milliseconds since 1970.
    pub completed_at: Option<u64>,
    /// Its steps, where they are asked for.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub steps: Vec<StepShape>,
}

impl JobShape {
    /// A job, with its steps.
    pub fn of(job: &JobView, attempts: &[AttemptView]) -> Self {
        let facts = &job.facts;
        Self {
            job_id: facts.job_id.to_string(),
            tenant_id: facts.tenant_id.clone(),
            request_type: facts.request_type.clone(),
            protocol_id: facts.protocol_id.clone(),
            state: job.row.state.name(),
            version: job.row.version,
            semaphore: job.row.semaphore.get(),
            current_step_index: job.row.current_step,
            attempts_total: job.row.attempts_total,
            mode: match facts.mode {
                Mode::Default => "DEFAULT",
                Mode::Burst => "BURST",
            },
            lane: facts.route.lane,
            routing_key: facts.route.key.clone(),
            doc_id: facts.doc_id.clone(),
            idempotency_key: facts.idempotency_key.clone(),
            idempotency_hash: facts.hash.to_string(),
            error_code: job.error.as_ref().map(|error| error.code.clone()),
            error_message: job.error.as_ref().map(|error| error.message.clone()),
            request_id: facts.request_id().map(str::to_owned),
            correlation_id: facts.correlation_id.clone(),
            traceparent: facts.traceparent.clone(),
            rerun_of: facts.rerun_of.map(|job_id| job_id.to_string()),
            created_at: job.created_at,
            updated_at: job.updated_at,
            completed_at: job.completed_at,
            steps: attempts.iter().map(StepShape::of).collect(),
        }
    }
}

/// A step, as its attempt shows it.
#[derive(Debug, Serialize, ToSchema)]
pub struct StepShape {
    /// Its name in the protocol.
    #[serde(rename = "stepId")]
    pub step_id: String,
    /// Where it is in the protocol.
    pub step_index: u32,
    /// The branch of a fan-out, a number as text: it can be too large for the numbers of some languages.
    pub branch: String,
    /// The turn of a cycle.
    pub turn: u32,
    /// Where it is.
    pub state: &'static str,
    /// The attempt; 0 before the first directive.
    pub attempt_no: u32,
    /// Who does it.
    pub service: String,
    /// The lease that the attempt was handed out with.
    pub lease_id: Option<String>,
    /// The fifteen digits of the attempt.
    pub ledger: String,
    /// The fifteen digits of the message that ended it.
    pub guid: Option<String>,
    /// What it produced; absent if it is larger than what was asked for.
    pub output: Option<Value>,
    /// How many bytes that has as text.
    pub output_bytes: Option<u64>,
    /// Why it failed.
    pub last_error_code: Option<String>,
    /// Why it failed, in words.
    pub last_error_message: Option<String>,
    /// When something about it is due, in milliseconds since 1970.
    pub due_at: Option<u64>,
    /// Milliseconds since 1970.
    pub updated_at: u64,
}

impl StepShape {
    /// An attempt.
    pub fn of(attempt: &AttemptView) -> Self {
        let row = &attempt.row;
        Self {
            step_id: attempt.step_id.clone(),
            step_index: attempt.key.step_index,
            branch: attempt.key.branch.to_string(),
            turn: attempt.key.turn,
            state: row.state.name(),
            attempt_no: row.shown_attempt_no(),
            service: attempt.service.clone(),
            lease_id: row.lease_id.map(|lease| lease.0.to_string()),
            ledger: row.ledger.to_string(),
            guid: row.ending.map(|ending| ending.guid.to_string()),
            output: attempt.output.as_deref().and_then(|text| serde_json::from_str(text).ok()),
            output_bytes: attempt.output_bytes,
            last_error_code: attempt.error.as_ref().map(|error| error.code.clone()),
            last_error_message: attempt.error.as_ref().map(|error| error.message.clone()),
            due_at: attempt.timer_at,
            updated_at: attempt.updated_at,
        }
    }
}

/// One event: what changed in one commit.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventShape {
    /// Its number, from 1, without gaps.
    pub n: u64,
    /// When, in milliseconds since 1970.
    pub at: u64,
    /// What it is about: `created`, `edited`, or the machine that moved, the outermost if several did.
    #[serde(rename = "type")]
    pub kind: String,
    /// The state that was left.
    pub from: Option<String>,
    /// The state that was reached.
    pub to: Option<String>,
    /// The rest of it.
    pub data: EventData,
}

/// The rest of an event.
#[derive(Debug, Serialize, ToSchema)]
pub struct EventData {
    /// The step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub step_index: Option<u32>,
    /// The attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempt_no: Option<u32>,
    /// The branch of a fan-out, as steps show it; absent if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// The turn of a cycle; absent for the first, and where there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub turn: Option<u32>,
    /// Every move of the commit, in order.
    pub changes: Vec<ChangeShape>,
    /// What else is to be said, such as who sent a signal and why.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub note: Option<serde_json::Value>,
}

/// One move of one machine.
#[derive(Clone, Debug, Serialize, ToSchema)]
pub struct ChangeShape {
    /// The machine.
    pub machine: &'static str,
    /// The state that was left.
    pub from: String,
    /// The state that was reached.
    pub to: String,
}

impl EventShape {
    /// An event of a job or of a request.
    pub fn of(event: &EventView) -> Self {
        let changes: Vec<_> = event.changes.split_whitespace().filter_map(change).collect();
        let rank = |change: &&ChangeShape| match change.machine {
            "job" | "request" => 0,
            "step" => 1,
            _ => 2,
        };
        // Of equal rank the last: where the commit ended.
        let told = changes.iter().rev().min_by_key(rank).cloned();
        let word = event.changes.split_whitespace().next().unwrap_or("note");
        Self {
            n: event.n,
            at: event.at,
            kind: told.as_ref().map_or(word, |change| change.machine).to_owned(),
            from: told.as_ref().map(|change| change.from.clone()),
            to: told.map(|change| change.to),
            data: EventData {
                step_index: event.attempt.map(|(step, _)| step),
                attempt_no: event.attempt.map(|(_, attempt)| attempt),
                branch: (event.branch != 0).then(|| event.branch.to_string()),
                turn: (event.turn != 0).then_some(event.turn),
                changes,
                note: event.note.as_deref().and_then(|note| serde_json::from_str(note).ok()),
            },
        }
    }
}

/// `J0>1` in words.
fn change(text: &str) -> Option<ChangeShape> {
    let (letter, codes) = text.split_at_checked(1)?;
    let (from, to) = codes.split_once('>')?;
    let (from, to) = (from.parse().ok()?, to.parse().ok()?);
    match letter {
        "J" => named::<JobState>(from, to),
        "S" => named::<StepState>(from, to),
        "O" => named::<OutboxState>(from, to),
        "R" => named::<RequestStatus>(from, to),
        _ => None,
    }
}

fn named<S: State>(from: u8, to: u8) -> Option<ChangeShape> {
    let name = |code| S::from_code(code).map(|state: S| state.name().to_owned());
    Some(ChangeShape { machine: S::machine().name, from: name(from)?, to: name(to)? })
}

/// A request.
#[derive(Debug, Serialize, ToSchema)]
pub struct RequestShape {
    /// The request.
    #[serde(rename = "requestId")]
    pub request_id: String,
    /// Where it is; with a job, where the job is.
    pub status: &'static str,
    /// Its own version; the ETag joins it with that of the job.
    pub version: u64,
    /// The current run; 0 before the first.
    pub run_no: u32,
    /// The job of that run.
    #[serde(rename = "jobId")]
    pub job_id: Option<String>,
    /// Whose it is.
    pub tenant_id: String,
    /// What is asked for.
    pub request_type: String,
    /// What makes it this request.
    pub key: String,
    /// As given.
    pub inputs: Value,
    /// As given.
    pub requirement: String,
    /// As given.
    pub plan_revision: String,
    /// What its jobs are submitted with.
    pub envelope: Value,
    /// The protocol of the draft.
    pub protocol_id: Option<String>,
    /// The plan preview: protocol, steps with payloads, checks.
    pub draft: Option<Value>,
    /// Why the current run failed.
    pub error_code: Option<String>,
    /// Milliseconds since 1970.
    pub created_at: u64,
    /// Milliseconds since 1970.
    pub updated_at: u64,
}

impl RequestShape {
    /// A request.
    pub fn of(view: &RequestView) -> Self {
        let json = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let run = view.run.as_ref();
        let error = run.and_then(|run| match run.state {
            JobState::Cancelled => Some(Cause::Cancelled.name().to_owned()),
            JobState::Queued
            | JobState::Dispatching
            | JobState::InProgress
            | JobState::Cancelling
            | JobState::Succeeded
            | JobState::FailedFinal => run.error_code.clone(),
        });
        Self {
            request_id: view.facts.request_id.to_string(),
            status: view.status().name(),
            version: view.version,
            run_no: view.run_no,
            job_id: run.map(|run| run.job_id.to_string()),
            tenant_id: view.facts.tenant_id.clone(),
            request_type: view.facts.request_type.clone(),
            key: view.facts.key.to_string(),
            inputs: json(&view.facts.inputs),
            requirement: view.facts.requirement.clone(),
            plan_revision: view.facts.plan_revision.clone(),
            envelope: json(&view.envelope),
            protocol_id: view.protocol_id.clone(),
            draft: view.draft.as_deref().map(json),
            error_code: error,
            created_at: view.created_at,
            updated_at: view.updated_at,
        }
    }
}

/// A signal as it is shown.
#[derive(Debug, Serialize, ToSchema)]
pub struct SignalShape {
    /// Its name.
    pub signal: String,
    /// Its id.
    pub signal_id: String,
    /// `approve` or `reject`.
    #[schema(value_type = String)]
    pub decision: Decision,
    /// What it carries.
    pub payload: Value,
    /// Who.
    pub by: Option<String>,
    /// Why.
    pub reason: Option<String>,
    /// When it came.
    pub received_at: u64,
    /// The step that has it.
    pub step_index: Option<u32>,
}

impl SignalShape {
    /// A signal.
    pub fn of(view: &SignalView) -> Self {
        Self {
            payload: serde_json::from_str(&view.signal.payload).unwrap_or(Value::Null),
            signal: view.signal.name.clone(),
            signal_id: view.signal.signal_id.clone(),
            decision: view.signal.decision,
            by: view.signal.by.clone(),
            reason: view.signal.reason.clone(),
            received_at: view.received_at,
            step_index: view.taken_by.as_ref().map(|place| place.step_index),
        }
    }
}

/// A token, without its text.
#[derive(Debug, Serialize, ToSchema)]
pub struct TokenShape {
    /// Names it.
    pub token_id: String,
    /// What it allows.
    pub scopes: Vec<&'static str>,
    /// For whom; every tenant if absent.
    pub tenant_id: Option<String>,
    /// What it is for.
    pub label: String,
    /// Milliseconds since 1970.
    pub created_at: u64,
    /// Milliseconds since 1970.
    pub expires_at: Option<u64>,
    /// Milliseconds since 1970.
    pub revoked_at: Option<u64>,
}

impl TokenShape {
    /// A token.
    pub fn of(token: &TokenView) -> Self {
        Self {
            token_id: token.token_id.clone(),
            scopes: token.scopes.names(),
            tenant_id: token.tenant_id.clone(),
            label: token.label.clone(),
            created_at: token.created_at,
            expires_at: token.expires_at,
            revoked_at: token.revoked_at,
        }
    }
}

/// Jobs by the clock.
#[derive(Debug, Serialize, ToSchema)]
pub struct ScheduleShape {
    /// Whose jobs it makes.
    pub tenant_id: String,
    /// Its name, among those of the tenant.
    pub schedule_id: String,
    /// Five fields, or six with seconds first.
    pub cron: String,
    /// The time zone of the expression.
    pub zone: String,
    /// What becomes of ticks that were missed: `skip`, `once` or `all`.
    pub missed: &'static str,
    /// Its next tick, in milliseconds since 1970.
    pub next_at: Option<u64>,
    /// The newest tick that is done with, in milliseconds since 1970. The job of a tick has the dedup key
    /// `s:schedule_id:tick`.
    pub last_tick: Option<u64>,
    /// Since when it makes no jobs, in milliseconds since 1970.
    pub paused_at: Option<u64>,
    /// What is submitted at each tick.
    #[schema(value_type = Object)]
    pub envelope: Value,
}

impl ScheduleShape {
    /// A schedule.
    pub fn of(view: &ScheduleView) -> Self {
        let schedule = &view.schedule;
        Self {
            tenant_id: schedule.tenant_id.clone(),
            schedule_id: schedule.schedule_id.clone(),
            cron: schedule.cron.clone(),
            zone: schedule.zone.clone(),
            missed: schedule.missed.name(),
            next_at: view.next_at,
            last_tick: view.last_tick,
            paused_at: view.paused_at,
            // It was read as JSON before it was kept.
            envelope: serde_json::from_str(&schedule.envelope).unwrap_or_default(),
        }
    }
}

/// All there is of something.
#[derive(Debug, Serialize, ToSchema)]
pub struct Items<T> {
    /// In order.
    pub items: Vec<T>,
}

/// A part of a list, and where the next part begins.
#[derive(Debug, Serialize, ToSchema)]
pub struct List<T> {
    /// In the order of the list.
    pub items: Vec<T>,
    /// Ask for what comes after with this as `cursor`; absent at the end.
    pub next: Option<String>,
}

impl<T> List<T> {
    /// The part that was found when so many were asked for: a full one may have another one after it.
    pub(crate) fn part<V>(
        found: &[V],
        limit: u32,
        shape: impl Fn(&V) -> T,
        id: impl Fn(&V) -> String,
    ) -> Self {
        let is_full = found.len() == limit as usize;
        let next = found.last().filter(|_| is_full).map(id);
        Self { items: found.iter().map(shape).collect(), next }
    }
}
