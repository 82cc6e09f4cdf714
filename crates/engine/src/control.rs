//! What an operator does to jobs and services: cancel, rerun, pause, resume. Each is a function on a store
//! in the name of an engine, so that a command line can do it without running one.

use std::sync::Arc;

use sprag_kernel::decide::rerun;
use sprag_kernel::keys::DedupKey;
use sprag_kernel::{Code, JobState, Refusal};

use crate::engine::{Engine, Pinned};
use crate::ids::{EngineNo, JobId, Place};
use crate::names::check_name;
use crate::plan;
use crate::protocol::Protocol;
use crate::store::{Held, JobFacts, JobView, NewJob, Store, StoreError, Submitted};

/// How often one job may be run again.
pub const MAX_RERUNS: u32 = 1_000;

/// Jobs that were asked to stop, each with the message if that entered one.
pub type Asked = Vec<(JobId, Option<Held>)>;

/// Asks a job to stop, and its children with it. Answers with its state. If this dies on the way, whoever
/// looks after the children of the job goes on.
pub async fn cancel<S: Store>(
    store: &S,
    engine: EngineNo,
    job_id: JobId,
    version: Option<u64>,
) -> Result<(JobState, Asked), Refusal> {
    let (state, entered) = cancel_one(store, engine, job_id, version).await?;
    let mut asked = vec![(job_id, entered)];
    if state == JobState::Cancelling {
        asked.extend(cancel_children(store, engine, (job_id, None)).await?);
    }
    Ok((state, asked))
}

/// Asks all below a job, or below the step at a place of it, to stop that nobody has asked yet. A child that
/// is gone meanwhile is no fault.
pub(crate) async fn cancel_children<S: Store>(
    store: &S,
    engine: EngineNo,
    (job_id, place): (JobId, Option<Place>),
) -> Result<Asked, StoreError> {
    let (mut asked, mut left) = (Vec::new(), store.children(job_id, place).await?);
    while let Some(child) = left.pop() {
        match cancel_one(store, engine, child, None).await {
            Ok((_, entered)) => asked.push((child, entered)),
            Err(refusal) if refusal.code() == Code::JobUnknown => continue,
            Err(refusal) => return Err(StoreError::Unavailable(refusal.to_string())),
        }
        left.extend(store.children(child, None).await?);
    }
    Ok(asked)
}

async fn cancel_one<S: Store>(
    store: &S,
    engine: EngineNo,
    job_id: JobId,
    version: Option<u64>,
) -> Result<(JobState, Option<Held>), Refusal> {
    let decide = Box::new(move |held: &Held, _now| plan::cancel(held, version));
    let found = store.amend(engine, job_id, None, decide).await?;
    found.ok_or_else(|| unknown(job_id))?
}

/// Runs a job that ended badly again, as a new job with the same content under the same protocol. Each
/// rerun has a number, and the same number is the same job. Without one it is the first that does not exist
/// or has not ended badly: whoever asks twice gets one.
pub async fn rerun<S: Store>(
    store: &S,
    engine: EngineNo,
    job_id: JobId,
    n: Option<u32>,
) -> Result<Submitted, Refusal> {
    let job = store.job(job_id).await?.ok_or_else(|| unknown(job_id))?;
    rerun::rerun(job.row.state, &job.facts.dedup_key)?;
    let definition = store.protocol(&job.facts.protocol_id).await?;
    let gone =
        || Refusal::new(Code::ProtocolUnknown).with("protocol_id", job.facts.protocol_id.clone());
    let pinned = Pinned::new(Protocol::read(&definition.ok_or_else(gone)?)?);
    let numbers = n.map_or(1..=MAX_RERUNS, |n| n..=n);
    let is_last = |number: u32| Some(number) == n || number == MAX_RERUNS;
    for number in numbers {
        let job = rerun_of(&job, number, &pinned);
        let mut answers = store.submit(engine, vec![job]).await?;
        let none = || StoreError::Unavailable("no answer to a submit".to_owned());
        let submitted = answers.pop().ok_or_else(none)??;
        if !rerun::has_ended_badly(submitted.state) || is_last(number) {
            return Ok(submitted);
        }
    }
    Err(Refusal::new(Code::NumberRange).with("field", "n").with("limit", MAX_RERUNS))
}

fn rerun_of(job: &JobView, n: u32, pinned: &Pinned) -> NewJob {
    let job_id = job.facts.job_id;
    let facts = JobFacts {
        job_id: JobId::new(),
        dedup_key: DedupKey::Rerun { job_id: &job_id.to_string(), n }.to_string(),
        idempotency_key: None,
        rerun_of: Some(job_id),
        ..job.facts.clone()
    };
    let is_graph = !pinned.graph.is_sequence();
    let gates = pinned.graph.gates(&facts);
    let (facts, steps) = (Arc::new(facts), pinned.steps.clone());
    NewJob { facts, steps, gates, is_graph, not_before: None, enter: false }
}

/// Nothing of the service is started until it is resumed; what runs goes on.
pub async fn pause<S: Store>(store: &S, service: &str) -> Result<(), Refusal> {
    check_name("service", service)?;
    Ok(store.pause(service).await?)
}

/// The service goes on.
pub async fn resume<S: Store>(store: &S, service: &str) -> Result<(), Refusal> {
    check_name("service", service)?;
    Ok(store.resume(service).await?)
}

/// Sets or lifts the limit of a tenant's open jobs.
pub async fn limit_tenant<S: Store>(
    store: &S,
    tenant_id: &str,
    max_open: Option<u32>,
) -> Result<(), Refusal> {
    check_name("tenant_id", tenant_id)?;
    Ok(store.limit_tenant(tenant_id, max_open).await?)
}

fn unknown(job_id: JobId) -> Refusal {
    Refusal::new(Code::JobUnknown).with("job_id", job_id.to_string())
}

impl<S: Store> Engine<S> {
    /// Runs a job that ended badly again; see [`rerun`].
    pub async fn rerun(&self, job_id: JobId, n: Option<u32>) -> Result<Submitted, Refusal> {
        let submitted = rerun(self.store(), self.number(), job_id, n).await?;
        self.wake();
        Ok(submitted)
    }

    /// Nothing of the service is started, by any engine, until it is resumed; what runs goes on.
    pub async fn pause(&self, service: &str) -> Result<(), Refusal> {
        pause(self.store(), service).await
    }

    /// The service goes on.
    pub async fn resume(&self, service: &str) -> Result<(), Refusal> {
        resume(self.store(), service).await?;
        self.wake();
        Ok(())
    }

    /// Sets or lifts the limit of a tenant's open jobs.
    pub async fn limit_tenant(
        &self,
        tenant_id: &str,
        max_open: Option<u32>,
    ) -> Result<(), Refusal> {
        limit_tenant(self.store(), tenant_id, max_open).await
    }
}
