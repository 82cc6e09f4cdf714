//! Submit: the same request is the same job.

use super::rows::{AttemptRow, JobRow};
use crate::error::{Code, Refusal};
use crate::keys::Hash;
use crate::ledger::Semaphore;
use crate::machines::JobState;

/// The job that has the dedup key already, in whatever state, even if only its key is left.
#[derive(Clone, Copy, Debug)]
pub struct Known<'a> {
    /// Its id.
    pub job_id: &'a str,
    /// The hash of the content it was submitted with.
    pub hash: Hash,
}

/// What a submit must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Submit<'a> {
    /// Create the job.
    Create,
    /// Answer with this one and create nothing.
    Known(&'a str),
}

/// Looks at who has the dedup key. A failed job keeps it: only an explicit rerun runs again.
pub fn submit(known: Option<Known<'_>>, hash: Hash) -> Result<Submit<'_>, Refusal> {
    match known {
        None => Ok(Submit::Create),
        Some(known) if known.hash == hash => Ok(Submit::Known(known.job_id)),
        Some(known) => Err(Refusal::new(Code::IdempotencyKeyReused)
            .with("job_id", known.job_id.to_owned())
            .with("known_hash", known.hash.to_string())
            .with("hash", hash.to_string())),
    }
}

/// How many open jobs a tenant may have, and has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slots {
    /// At most so many.
    pub max_open: u32,
    /// So many are open.
    pub open_jobs: u32,
}

impl Slots {
    /// Takes one for a new job, or says why there is none.
    pub fn take(&mut self, tenant_id: &str) -> Result<(), Refusal> {
        if self.open_jobs >= self.max_open {
            return Err(Refusal::new(Code::TenantLimit)
                .with("tenant_id", tenant_id.to_owned())
                .with("limit", self.max_open)
                .with("open", self.open_jobs));
        }
        self.open_jobs += 1;
        Ok(())
    }
}

/// A sequential job as it is born: QUEUED, one obligation, every step PENDING. The activation of
/// step 0 is its attempt row; the others wait for theirs.
pub fn create(steps: u32) -> (JobRow, Vec<AttemptRow>) {
    assert!(steps > 0, "a protocol has at least one step");
    let job = JobRow {
        state: JobState::Queued,
        version: 1,
        semaphore: Semaphore::new(1),
        current_step: 0,
        steps,
        attempts_total: 0,
        is_graph: false,
        verdict: None,
    };
    (job, (0..steps).map(AttemptRow::first).collect())
}

/// A graph as it is born: QUEUED, and an obligation for each node that can begin and each that is parked
/// until those before it are over.
pub fn create_graph(nodes: u32, roots: u32, parked: u32) -> JobRow {
    assert!(roots > 0 && roots + parked <= nodes, "somebody begins, and nobody is counted twice");
    let (job, _) = create(1);
    JobRow { semaphore: Semaphore::new(roots + parked), steps: nodes, is_graph: true, ..job }
}
