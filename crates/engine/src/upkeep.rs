//! The second half of the store seam: what is done beside jobs. Pausing services, limiting tenants, delivering
//! what closing commits have left to do, deleting what was kept long enough, counting.
//!
//! A completion task is text whose first part says what it is: `hook:NAME` is a hook of the user's. The
//! closing commit records it once; whoever claims it delivers it, and settles it afterwards. A claim holds
//! for a time only and ends with the engine that has it, so that a delivery that nobody heard of again is
//! made again: at least once, each time with the same effect key.

use std::future::Future;
use std::time::Duration;

use sprag_kernel::JobState;
use sprag_kernel::retry::Millis;

use crate::ids::{EngineNo, JobId};
use crate::store::Answer;

/// A service as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceView {
    /// Its name.
    pub service: String,
    /// Since when nothing of it is started.
    pub paused_at: Option<Millis>,
    /// How many activations wait for a worker.
    pub ready: u64,
    /// When an engine or a worker last offered itself for it.
    pub seen_at: Option<Millis>,
    /// Since when the activation waits that is claimed next.
    pub ready_since: Option<Millis>,
}

/// Whoever has not offered itself for so long is gone. Engines say so for themselves and for the workers that
/// claim from them, several times in this time.
pub const UNSEEN_MS: Millis = 60_000;

/// Whether somebody serves a service that was seen then.
pub fn is_served(seen_at: Option<Millis>, now: Millis) -> bool {
    seen_at.is_some_and(|seen_at| now.saturating_sub(seen_at) < UNSEEN_MS)
}

/// A tenant with a limit, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TenantView {
    /// Whose it is.
    pub tenant_id: String,
    /// How many open jobs it may have.
    pub max_open: u32,
    /// How many it has.
    pub open_jobs: u32,
}

/// A completion task that this engine delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// The job that has ended.
    pub job_id: JobId,
    /// What is to be done.
    pub task: String,
    /// The how manieth delivery this is, from 1.
    pub delivery: u32,
}

/// A completion task that is not delivered yet, as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskView {
    /// What is to be done.
    pub task: String,
    /// How often that was begun.
    pub deliveries: u32,
    /// When it is to be begun again.
    pub due_at: Millis,
    /// Whether somebody is at it.
    pub is_claimed: bool,
    /// What happened the last time.
    pub error: Option<String>,
}

/// How a delivery went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// It need not be made again.
    Done,
    /// It is to be made again.
    Failed {
        /// After this wait.
        delay_ms: Millis,
        /// What happened.
        message: String,
    },
}

impl Delivery {
    /// The wait before it is made again, if it is.
    pub fn waits(&self) -> Option<Duration> {
        match self {
            Self::Done => None,
            Self::Failed { delay_ms, .. } => Some(Duration::from_millis(*delay_ms)),
        }
    }
}

/// What a look at finished jobs found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retired {
    /// How many jobs it has deleted.
    pub deleted: usize,
    /// Where to look next; from the oldest again if there is nothing.
    pub next: Option<JobId>,
}

/// What waits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Timers whose time has come and that no engine has acted on.
    pub timers_due: u64,
    /// Directives that wait for a publisher.
    pub unpublished: u64,
    /// Attempts that wait for their time after another one has failed.
    pub retries_waiting: u64,
    /// Jobs with a step that nobody has taken for too long, though its service is not paused.
    pub stuck_jobs: u64,
}

/// How many jobs are in a state.
pub type Counts = Vec<(JobState, u64)>;

/// What is done beside jobs.
pub trait Upkeep: Send + Sync + 'static {
    /// From now on nothing of this service is claimed or entered; what runs goes on.
    fn pause(&self, service: &str) -> impl Future<Output = Answer<()>> + Send;

    /// The service goes on.
    fn resume(&self, service: &str) -> impl Future<Output = Answer<()>> + Send;

    /// Notes that an engine, or a worker that asks it, offers itself for these services now.
    fn serve(
        &self,
        engine: EngineNo,
        services: Vec<String>,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Services that are paused, that somebody waits for or that somebody has served, by name.
    fn services(&self) -> impl Future<Output = Answer<Vec<ServiceView>>> + Send;

    /// Sets or lifts the limit of a tenant's open jobs. Those that are open count, even above the limit.
    fn limit_tenant(
        &self,
        tenant_id: &str,
        max_open: Option<u32>,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// Tenants that have a limit, by name.
    fn tenants(&self) -> impl Future<Output = Answer<Vec<TenantView>>> + Send;

    /// Takes completion tasks of these kinds that are due, at most `max`. If they are not settled within
    /// `hold_ms` they are due again.
    fn claim_tasks(
        &self,
        engine: EngineNo,
        tasks: Vec<String>,
        max: u32,
        hold_ms: Millis,
    ) -> impl Future<Output = Answer<Vec<Task>>> + Send;

    /// Says how deliveries went. One that was claimed by somebody else since is left to it.
    fn settle_tasks(
        &self,
        engine: EngineNo,
        settled: Vec<(Task, Delivery)>,
    ) -> impl Future<Output = Answer<()>> + Send;

    /// How many completion tasks are not delivered yet.
    fn undelivered(&self) -> impl Future<Output = Answer<u64>> + Send;

    /// The completion tasks of a job that are not delivered yet, by name.
    fn tasks(&self, job_id: JobId) -> impl Future<Output = Answer<Vec<TaskView>>> + Send;

    /// Looks at the next `limit` jobs after this one, the oldest first, and deletes those that have ended
    /// at least `keep_ms` ago and have no task left to deliver. Their dedup keys stay. The job of the newest
    /// event is kept until there is a newer one, so that readers of the feed find the end where it was.
    fn retire(
        &self,
        engine: EngineNo,
        keep_ms: Millis,
        after: Option<JobId>,
        limit: u32,
    ) -> impl Future<Output = Answer<Retired>> + Send;

    /// Deletes dedup keys of jobs that were deleted at least `keep_ms` ago, at most `limit`.
    fn forget(
        &self,
        engine: EngineNo,
        keep_ms: Millis,
        limit: u32,
    ) -> impl Future<Output = Answer<usize>> + Send;

    /// What waits at the time `now`; what nobody has taken since `since` counts as stuck.
    fn backlog(&self, now: Millis, since: Millis) -> impl Future<Output = Answer<Backlog>> + Send;

    /// How many jobs are in which state, without looking at jobs.
    fn counts(&self) -> impl Future<Output = Answer<Counts>> + Send;
}
