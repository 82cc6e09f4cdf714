//! Looking at a store: one call at a time, for commands that only read.

use std::future::Future;

use sprag_engine::ids::JobId;
use sprag_engine::store::{Answer, AttemptView, Check, EventView, JobFilter, JobView, Store};
use sprag_kernel::Refusal;
use sprag_kernel::retry::Millis;
use sprag_stores::AnyStore;
use tokio::runtime::{Builder, Runtime};

/// A store that is looked at.
pub struct Looking {
    runtime: Runtime,
    store: AnyStore,
}

impl Looking {
    /// Opens the store of a URL. A file must be there already.
    pub fn open(url: &str) -> Result<Self, Refusal> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| crate::output::unreadable("a thread", &error))?;
        let store = runtime.block_on(AnyStore::look(url))?;
        Ok(Self { runtime, store })
    }

    fn wait<T>(&self, answer: impl Future<Output = Answer<T>>) -> Result<T, Refusal> {
        Ok(self.runtime.block_on(answer)?)
    }

    /// One job.
    pub fn job(&self, job_id: JobId) -> Result<Option<JobView>, Refusal> {
        self.wait(self.store.job(job_id))
    }

    /// All attempts of a job.
    pub fn attempts(&self, job_id: JobId) -> Result<Vec<AttemptView>, Refusal> {
        self.wait(self.store.attempts(job_id))
    }

    /// The history of a job.
    pub fn events(&self, job_id: JobId) -> Result<Vec<EventView>, Refusal> {
        self.wait(self.store.events(job_id))
    }

    /// Jobs, the newest first.
    pub fn jobs(&self, filter: JobFilter) -> Result<Vec<JobView>, Refusal> {
        self.wait(self.store.jobs(filter))
    }

    /// Every invariant.
    pub fn audit(&self) -> Result<Vec<Check>, Refusal> {
        self.wait(self.store.audit())
    }

    /// The store's time.
    pub fn now(&self) -> Result<Millis, Refusal> {
        self.wait(self.store.now())
    }
}
