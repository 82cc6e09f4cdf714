//! What a store keeps of requests, and the two ways to write it. A verb is decided under the row's lock
//! and written with the job that it creates, in one transaction; the status of a request that has a job is
//! never stored, it is read off the job.

use std::future::Future;

use sprag_kernel::decide::request::{RequestRow, project};
use sprag_kernel::keys::Hash;
use sprag_kernel::retry::Millis;
use sprag_kernel::{JobState, Refusal, RequestStatus};

use crate::ids::{EngineNo, JobId, RequestId};
use crate::store::{Answer, EventView, NewJob, Store};

/// What never changes about a request.
#[derive(Clone, Debug)]
pub struct RequestFacts {
    /// The request.
    pub request_id: RequestId,
    /// Whose it is.
    pub tenant_id: String,
    /// What is asked for.
    pub request_type: String,
    /// What makes it the same request in its tenant and type.
    pub key: Hash,
    /// The hash of what it was created with, besides the key.
    pub content: Hash,
    /// JSON text.
    pub inputs: String,
    /// What is wanted, in words, as given.
    pub requirement: String,
    /// The revision of the plan.
    pub plan_revision: String,
}

/// A request to create.
#[derive(Clone, Debug)]
pub struct NewRequest {
    /// What never changes.
    pub facts: RequestFacts,
    /// JSON text of what its jobs are submitted with.
    pub envelope: String,
}

/// A request as it is stored, with the job of its current run.
#[derive(Clone, Debug)]
pub struct RequestView {
    /// What never changes.
    pub facts: RequestFacts,
    /// JSON text of what its jobs are submitted with.
    pub envelope: String,
    /// JSON text of the plan preview.
    pub draft: Option<String>,
    /// The protocol of the preview; jobs are pinned to it.
    pub protocol_id: Option<String>,
    /// The status that is stored: how far it came without a job.
    pub stored: RequestStatus,
    /// Its own version.
    pub version: u64,
    /// The current run; 0 before the first.
    pub run_no: u32,
    /// The job of that run.
    pub run: Option<RunView>,
    /// When it was created.
    pub created_at: Millis,
    /// When it last changed by itself.
    pub updated_at: Millis,
}

/// The job of a request's current run.
#[derive(Clone, Debug)]
pub struct RunView {
    /// The job.
    pub job_id: JobId,
    /// Its state.
    pub state: JobState,
    /// Its version.
    pub version: u64,
    /// Why it failed.
    pub error_code: Option<String>,
}

impl RequestView {
    /// The status: that of the current job, where there is one.
    pub fn status(&self) -> RequestStatus {
        self.run.as_ref().map_or(self.stored, |run| project(run.state))
    }

    /// What the rules look at.
    pub fn row(&self) -> RequestRow {
        RequestRow { status: self.status(), version: self.version, run_no: self.run_no }
    }
}

/// What a verb writes.
#[derive(Clone, Debug)]
pub struct RequestWrite {
    /// The stored status afterwards.
    pub stored: RequestStatus,
    /// The version afterwards.
    pub version: u64,
    /// The current run afterwards.
    pub run_no: u32,
    /// The new envelope and preview, if the draft changed.
    pub draft: Option<DraftWrite>,
    /// One event each.
    pub changes: Vec<String>,
    /// The job of the run that begins.
    pub job: Option<NewJob>,
}

/// An envelope and the preview of what it leads to.
#[derive(Clone, Debug)]
pub struct DraftWrite {
    /// JSON text.
    pub envelope: String,
    /// JSON text.
    pub preview: String,
    /// The protocol that was found for it.
    pub protocol_id: Option<String>,
}

/// A decision under the request's lock. It may run more than once, if a transaction has to be repeated.
pub type DecideRequest<T> =
    Box<dyn FnMut(&RequestView) -> Result<(Option<RequestWrite>, T), Refusal> + Send>;

/// Which requests to list.
#[derive(Clone, Debug, Default)]
pub struct RequestFilter {
    /// Of this tenant.
    pub tenant_id: Option<String>,
    /// Of this type.
    pub request_type: Option<String>,
    /// Before this one (the newest come first).
    pub before: Option<RequestId>,
    /// At most so many.
    pub limit: u32,
}

/// Where requests are kept.
pub trait RequestStore: Store {
    /// Keeps a new request, or answers with the one that has its tenant, type and key. The id tells
    /// which.
    fn create_request(
        &self,
        request: NewRequest,
    ) -> impl Future<Output = Answer<RequestView>> + Send;

    /// Decides about a request under its lock, and writes what was decided, with the job, in the same
    /// transaction. `None` if there is no such request.
    fn amend_request<T: Send + 'static>(
        &self,
        engine: EngineNo,
        request_id: RequestId,
        decide: DecideRequest<T>,
    ) -> impl Future<Output = Answer<Option<Result<T, Refusal>>>> + Send;

    /// One request.
    fn request(
        &self,
        request_id: RequestId,
    ) -> impl Future<Output = Answer<Option<RequestView>>> + Send;

    /// Requests, the newest first.
    fn requests(
        &self,
        filter: RequestFilter,
    ) -> impl Future<Output = Answer<Vec<RequestView>>> + Send;

    /// The history of a request; that of its runs is the history of their jobs.
    fn request_events(
        &self,
        request_id: RequestId,
    ) -> impl Future<Output = Answer<Vec<EventView>>> + Send;
}
