//! A store as commands have it: looked at beside whoever works on it, or acted on, one call at a time.

use std::future::Future;

use sprag_engine::batch::output::{self, OutputItem};
use sprag_engine::control;
use sprag_engine::explain::{self, Explanation};
use sprag_engine::ids::{AttemptKey, EngineNo, JobId};
use sprag_engine::inbox::{InboxFilter, InboxView};
use sprag_engine::schedules::{self, Schedule, ScheduleView, Schedules as _};
use sprag_engine::signals::{SignalView, Signals as _};
use sprag_engine::store::{
    Answer, AttemptFilter, AttemptView, Check, EventView, JobFilter, JobView, Store, Submitted,
};
use sprag_engine::upkeep::{ServiceView, TenantView, Upkeep};
use sprag_kernel::{JobState, Refusal};
use sprag_stores::AnyStore;
use tokio::runtime::{Builder, Runtime};

/// A store that is looked at.
pub struct Looking {
    runtime: Runtime,
    store: AnyStore,
}

/// A store that is acted on, in the name of an engine that runs nothing.
pub struct Acting {
    looking: Looking,
    engine: EngineNo,
}

impl Acting {
    /// Opens the store of a URL. A file must be there already, and no engine may have it.
    pub fn open(url: &str) -> Result<Self, Refusal> {
        let Looking { runtime, store } = Looking::open(url)?;
        drop(store);
        let store = runtime.block_on(AnyStore::open(url))?;
        let looking = Looking { runtime, store };
        let engine = looking.wait(looking.store.join("command line"))?;
        Ok(Self { looking, engine })
    }

    /// Does something, and leaves: what the act has begun is gone on with by whoever runs.
    fn act<T>(
        self,
        act: impl AsyncFnOnce(&AnyStore, EngineNo) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let Self { looking: Looking { runtime, store }, engine } = self;
        let answer = runtime.block_on(act(&store, engine));
        runtime.block_on(store.leave(engine))?;
        answer
    }

    /// Asks a job to stop, if it has this version.
    pub fn cancel(self, job_id: JobId, version: Option<u64>) -> Result<JobState, Refusal> {
        let cancel =
            async |store: &AnyStore, engine| control::cancel(store, engine, job_id, version).await;
        self.act(cancel).map(|(state, _)| state)
    }

    /// Runs a job that ended badly again.
    pub fn rerun(self, job_id: JobId, n: Option<u32>) -> Result<Submitted, Refusal> {
        self.act(async |store: &AnyStore, engine| control::rerun(store, engine, job_id, n).await)
    }

    /// Sets or lifts the limit of a tenant's open jobs.
    pub fn limit_tenant(self, tenant_id: &str, max_open: Option<u32>) -> Result<(), Refusal> {
        self.act(async |store: &AnyStore, _| {
            control::limit_tenant(store, tenant_id, max_open).await
        })
    }

    /// Adds a schedule.
    pub fn add_schedule(self, schedule: Schedule) -> Result<ScheduleView, Refusal> {
        self.act(async |store: &AnyStore, _| schedules::add(store, schedule).await)
    }

    /// Has a schedule rest, or go on.
    pub fn rest_schedule(
        self,
        tenant_id: &str,
        schedule_id: &str,
        rests: bool,
    ) -> Result<ScheduleView, Refusal> {
        self.act(async |store: &AnyStore, _| {
            if rests {
                schedules::pause(store, tenant_id, schedule_id).await
            } else {
                schedules::resume(store, tenant_id, schedule_id).await
            }
        })
    }

    /// Forgets a schedule.
    pub fn remove_schedule(self, tenant_id: &str, schedule_id: &str) -> Result<(), Refusal> {
        self.act(async |store: &AnyStore, _| schedules::remove(store, tenant_id, schedule_id).await)
    }

    /// Pauses or resumes a service.
    pub fn pause(self, service: &str, pause: bool) -> Result<(), Refusal> {
        self.act(async |store: &AnyStore, _| {
            if pause {
                control::pause(store, service).await
            } else {
                control::resume(store, service).await
            }
        })
    }
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

    /// What happened to a job, what holds it now, and what comes next.
    pub fn explain(&self, job: &JobView) -> Result<Explanation, Refusal> {
        self.wait(explain::explained(&self.store, job, AttemptFilter::default()))
    }

    /// Items of the ordered output of a batch.
    pub fn batch_output(
        &self,
        key: &AttemptKey,
        from_seq: u64,
        limit: usize,
    ) -> Result<Vec<OutputItem>, Refusal> {
        self.wait(output::page(&self.store, key.into(), from_seq, limit))
    }

    /// The history of a job.
    pub fn events(&self, job_id: JobId) -> Result<Vec<EventView>, Refusal> {
        self.wait(self.store.events(job_id))
    }

    /// What was said to a job.
    pub fn signals(&self, job_id: JobId) -> Result<Vec<SignalView>, Refusal> {
        self.wait(self.store.signals(job_id))
    }

    /// Jobs, the newest first.
    pub fn jobs(&self, filter: JobFilter) -> Result<Vec<JobView>, Refusal> {
        self.wait(self.store.jobs(filter))
    }

    /// Schedules, of one tenant or of all.
    pub fn schedules(&self, tenant_id: Option<&str>) -> Result<Vec<ScheduleView>, Refusal> {
        self.wait(self.store.schedules(tenant_id))
    }

    /// The schedule of a name, of this tenant or the only one.
    pub fn schedule(&self, tenant: Option<&str>, name: &str) -> Result<ScheduleView, Refusal> {
        self.runtime.block_on(schedules::find_named(&self.store, tenant, name))
    }

    /// Services that are paused or waited for.
    pub fn services(&self) -> Result<Vec<ServiceView>, Refusal> {
        self.wait(self.store.services())
    }

    /// Tenants that have a limit.
    pub fn tenants(&self) -> Result<Vec<TenantView>, Refusal> {
        self.wait(self.store.tenants())
    }

    /// Rows of the inbox, the newest first.
    pub fn inbox(&self, filter: InboxFilter) -> Result<Vec<InboxView>, Refusal> {
        self.wait(self.store.inbox(filter))
    }

    /// Every invariant.
    pub fn audit(&self) -> Result<Vec<Check>, Refusal> {
        self.wait(self.store.audit())
    }
}
