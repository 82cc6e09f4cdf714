//! Jobs, attempts and events as they are shown, and what an audit finds.

use sprag_kernel::JobState;
use sprag_kernel::decide::rows::{AttemptRow, JobRow};
use sprag_kernel::retry::Millis;

use crate::batch::store::BatchProgress;
use crate::gate::GateView;
use crate::ids::{AttemptKey, EngineNo, JobId};
use crate::store::{AttemptError, JobFacts};

/// A job as it is shown.
#[derive(Clone, Debug)]
pub struct JobView {
    /// What never changes.
    pub facts: JobFacts,
    /// What the rules look at.
    pub row: JobRow,
    /// Why it failed.
    pub error: Option<AttemptError>,
    /// When it was submitted.
    pub created_at: Millis,
    /// When it last changed.
    pub updated_at: Millis,
    /// When it ended.
    pub completed_at: Option<Millis>,
}

/// Which attempts of a job are read, in the order of their keys; all of them by default.
#[derive(Clone, Copy, Debug, Default)]
pub struct AttemptFilter {
    /// Behind this one.
    pub after: Option<AttemptKey>,
    /// At most so many.
    pub limit: Option<u32>,
    /// Only the newest attempt at each place.
    pub newest: bool,
    /// Outputs of more bytes than this are left where they are.
    pub max_output: Option<u32>,
}

/// An attempt as it is shown.
#[derive(Clone, Debug)]
pub struct AttemptView {
    /// Which attempt.
    pub key: AttemptKey,
    /// What the rules look at.
    pub row: AttemptRow,
    /// The step's name.
    pub step_id: String,
    /// Who does it.
    pub service: String,
    /// The engine that holds it.
    pub owner: Option<EngineNo>,
    /// Whether it can be claimed.
    pub is_ready: bool,
    /// Where it waits until it may start, and how many may run there.
    pub gate: Option<(String, Option<u32>)>,
    /// Whether it stands in line there.
    pub is_in_line: bool,
    /// How that gate stands; only for the first few that a job stands at.
    pub line: Option<GateView>,
    /// Whether its service is paused, so that nobody claims it.
    pub is_paused: bool,
    /// For how many others it is parked.
    pub countdown: u32,
    /// When somebody last offered itself for its service.
    pub served_at: Option<Millis>,
    /// The signal that it waits or has waited for.
    pub waits_for: Option<String>,
    /// The child job that does its work.
    pub child: Option<JobId>,
    /// How far its batch is, if it has one and no newer attempt has taken that up.
    pub batch: Option<BatchProgress>,
    /// When something about it is due.
    pub timer_at: Option<Millis>,
    /// JSON text of what it produced.
    pub output: Option<String>,
    /// How long that text is, also if it was left where it is.
    pub output_bytes: Option<u64>,
    /// JSON text of how far its handler said it was.
    pub progress: Option<String>,
    /// Why it failed.
    pub error: Option<AttemptError>,
    /// When its directive went out.
    pub sent_at: Option<Millis>,
    /// When a worker acknowledged.
    pub acked_at: Option<Millis>,
    /// When it last changed.
    pub updated_at: Millis,
}

/// One row of a job's history.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventView {
    /// Its number in the job, from 1, without gaps.
    pub n: u64,
    /// When.
    pub at: Millis,
    /// The step and attempt it is about.
    pub attempt: Option<(u32, u32)>,
    /// The branch of that step.
    pub branch: u64,
    /// The turn of that step.
    pub turn: u32,
    /// What changed.
    pub changes: String,
    /// JSON text of what else is to be said.
    pub note: Option<String>,
}

/// Which jobs to list.
#[derive(Clone, Debug, Default)]
pub struct JobFilter {
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// In this state.
    pub state: Option<JobState>,
    /// Of this type.
    pub request_type: Option<String>,
    /// Submitted at this time or later.
    pub from: Option<Millis>,
    /// Submitted before this time.
    pub to: Option<Millis>,
    /// With this text in its correlation id, document, idempotency key or error.
    pub text: Option<String>,
    /// Before this one (the newest come first).
    pub before: Option<JobId>,
    /// At most so many.
    pub limit: u32,
}

/// One broken invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// The job, unless it is about a request or a count over many.
    pub job_id: Option<JobId>,
    /// The request, if it is about one.
    pub request_id: Option<JobId>,
    /// What is wrong, from the rows.
    pub detail: String,
}

impl Violation {
    /// One of a job.
    pub fn of_job(job_id: JobId, detail: String) -> Self {
        Self { job_id: Some(job_id), request_id: None, detail }
    }
}

/// One question of the audit and what it found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Check {
    /// The invariant.
    pub name: String,
    /// Where it does not hold.
    pub violations: Vec<Violation>,
}
