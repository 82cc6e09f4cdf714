//! A job to create: what never changes about it, its steps, and how each begins.

use std::sync::Arc;

use sprag_kernel::JobState;
use sprag_kernel::decide::gate::Limit;
use sprag_kernel::keys::{Hash, Mode, Route};
use sprag_kernel::retry::Millis;

use crate::ids::{AttemptKey, JobId};

/// What never changes about a job.
#[derive(Clone, Debug)]
pub struct JobFacts {
    /// The job.
    pub job_id: JobId,
    /// Whose it is.
    pub tenant_id: String,
    /// What was asked for.
    pub request_type: String,
    /// The protocol it is pinned to.
    pub protocol_id: String,
    /// JSON text.
    pub input_ref: String,
    /// JSON text.
    pub output_ref: String,
    /// JSON text.
    pub payload: String,
    /// The version of the payload's schema.
    pub schema_version: String,
    /// The caller's key, if it gave one.
    pub idempotency_key: Option<String>,
    /// Unique in the tenant.
    pub dedup_key: String,
    /// The hash of the content.
    pub hash: Hash,
    /// Which document.
    pub doc_id: Option<String>,
    /// How it was routed.
    pub mode: Mode,
    /// The lane and the key it comes from.
    pub route: Route,
    /// Handed through.
    pub correlation_id: Option<String>,
    /// Handed through.
    pub traceparent: Option<String>,
    /// Higher goes first.
    pub priority: i32,
    /// The job this one runs again.
    pub rerun_of: Option<JobId>,
}

impl JobFacts {
    /// The request that this job is a run of.
    pub fn request_id(&self) -> Option<&str> {
        self.dedup_key.strip_prefix("r:")?.rsplit_once(':').map(|(request_id, _)| request_id)
    }

    /// The attempt that waits for this job, and how many jobs are above this one, if it is a child.
    pub fn parent(&self) -> Option<(AttemptKey, u32)> {
        let mut parts = self.dedup_key.strip_prefix("c:")?.split(':');
        let job_id = parts.next()?.parse().ok()?;
        let step_index = parts.next()?.parse().ok()?;
        let branch = parts.next()?.parse().ok()?;
        let turn = parts.next()?.parse().ok()?;
        let attempt_no = parts.next()?.parse().ok()?;
        let depth = parts.next()?.parse().ok()?;
        Some((AttemptKey { job_id, step_index, branch, turn, attempt_no }, depth))
    }

    /// Who owns the effects of its steps: the request, so that another run has the same, else the job.
    pub fn effect_owner(&self) -> String {
        self.request_id().map_or_else(|| self.job_id.to_string(), str::to_owned)
    }
}

/// A job to create.
#[derive(Clone, Debug)]
pub struct NewJob {
    /// What never changes.
    pub facts: Arc<JobFacts>,
    /// Its steps, by their index.
    pub steps: Arc<[NewStep]>,
    /// The gates of its steps, by their index; empty if no step has one.
    pub gates: Vec<Option<String>>,
    /// Whether they are a graph.
    pub is_graph: bool,
    /// Not to start before this time.
    pub not_before: Option<Millis>,
    /// Whether the submitting engine has a free slot for the first step and enters Leg1 at once.
    pub enter: bool,
}

/// A step to create.
#[derive(Clone, Debug)]
pub struct NewStep {
    /// Its name in the protocol.
    pub step_id: String,
    /// The kind of work.
    pub step_type: String,
    /// Who does it.
    pub service: String,
    /// Higher goes first.
    pub priority: i32,
    /// From its activation to the time it is due.
    pub delay_ms: Millis,
    /// The limit that it brings to its gate, if it has one.
    pub limit: Option<Limit>,
    /// How it begins with the job.
    pub begins: Begins,
}

impl NewJob {
    /// The obligations that it is born with.
    pub fn initial(&self) -> u32 {
        let open = self.steps.iter().filter(|step| step.begins.is_open()).count();
        u32::try_from(open).expect("steps are limited")
    }

    /// Where a step waits until it may start.
    pub fn gate(&self, step_index: usize) -> Option<&str> {
        self.gates.get(step_index)?.as_deref()
    }
}

/// How the first attempt at a place begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begins {
    /// Activated: it can be claimed, or waits for its delay.
    Ready,
    /// Parked until so many others are over.
    Parked(u32),
    /// There, to be activated by the one it follows.
    Dormant,
    /// Not there yet: whoever opens its scope inserts it.
    Unborn,
}

impl Begins {
    /// Whether it is an obligation of the job.
    pub fn is_open(self) -> bool {
        match self {
            Self::Ready | Self::Parked(_) => true,
            Self::Dormant | Self::Unborn => false,
        }
    }

    /// How many others it is parked for.
    pub fn countdown(self) -> u32 {
        match self {
            Self::Parked(count) => count,
            Self::Ready | Self::Dormant | Self::Unborn => 0,
        }
    }
}

/// The answer to one submit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Submitted {
    /// The new job, or the one that was there.
    pub job_id: JobId,
    /// Its present state.
    pub state: JobState,
    /// Whether this call created it.
    pub created: bool,
}
