//! Whichever store a URL names: `sqlite:PATH` or `postgres://...`. The store trait cannot be a trait
//! object, so this is the one place where a process chooses; everything is handed on as it is.

use std::path::Path;
use std::time::Duration;

use sprag_engine::batch::store::{
    BatchOutcome, BatchPlace, BatchPoint, BatchView, BatchWorked, BatchWrite, Batches, JournalRow,
};
use sprag_engine::directive::Failure;
use sprag_engine::gate::{GateView, Gates};
use sprag_engine::hints::Hint;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, RequestId};
use sprag_engine::inbox::{InboxFilter, InboxView, TakeIn, Waiting};
use sprag_engine::pairs::{Beginning, Begun, Over};
use sprag_engine::requests::{DecideRequest, NewRequest, RequestFilter, RequestStore, RequestView};
use sprag_engine::schedules::{Rest, Schedule, ScheduleView, Schedules, TickWrite};
use sprag_engine::signals::{Signal, SignalView, Signalled, Signals, WaitOutcome, WaitWrite};
use sprag_engine::store::{
    Answer, AttemptFilter, AttemptView, Check, Cursor, Decide, DispatchOutcome, DispatchWrite, Due,
    EndOutcome, EndWrite, Ended, EventView, FeedEvent, FinishOutcome, FinishWrite, Held, JobFilter,
    JobView, NewJob, Pulse, RenewOutcome, RenewWrite, Signs, StaleCallback, StepPlace, Store,
    StoreError, Submitted, Wish, Worked,
};
use sprag_engine::tokens::{NewToken, TokenStore, TokenView};
use sprag_engine::upkeep::{
    Backlog, Counts, Delivery, Retired, ServiceView, Task, TaskView, TenantView, Upkeep,
};
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Cause, Code, Refusal};

use crate::postgres::{PostgresOptions, PostgresStore, PostgresWork};
use crate::sqlite::{Durability, SqliteStore, SqliteWork};

/// A store of either kind.
pub enum AnyStore {
    /// In one file.
    Sqlite(SqliteStore),
    /// In a database.
    Postgres(PostgresStore),
}

/// Where a URL points to.
pub(crate) enum Place<'a> {
    File(&'a Path),
    Database(&'a str),
}

pub(crate) fn place(url: &str) -> Answer<Place<'_>> {
    match url.split_once(':') {
        Some(("sqlite", path)) if !path.is_empty() => Ok(Place::File(Path::new(path))),
        Some(("postgres" | "postgresql", _)) => Ok(Place::Database(url)),
        Some(_) | None => Err(StoreError::Refused(
            Refusal::new(Code::StoreUrlInvalid).with("given", url.to_owned()),
        )),
    }
}

impl AnyStore {
    /// Opens or creates the store of a URL for an engine.
    pub async fn open(url: &str) -> Answer<Self> {
        match place(url)? {
            Place::File(path) => SqliteStore::open(path, Durability::Full).map(Self::Sqlite),
            Place::Database(url) => {
                PostgresStore::open(&PostgresOptions::new(url)).await.map(Self::Postgres)
            }
        }
    }

    /// Opens the store of a URL to look at it, beside a running engine or without one. It must be there.
    pub async fn look(url: &str) -> Answer<Self> {
        match place(url)? {
            Place::File(path) => SqliteStore::look(path).map(Self::Sqlite),
            Place::Database(url) => {
                PostgresStore::look(&PostgresOptions::new(url)).await.map(Self::Postgres)
            }
        }
    }
}

/// Asks whichever store it is.
macro_rules! ask {
    ($this:ident.$call:ident($($argument:expr),*)) => {
        match $this {
            Self::Sqlite(store) => store.$call($($argument),*).await,
            Self::Postgres(store) => store.$call($($argument),*).await,
        }
    };
}

/// Work for a store of either kind.
#[derive(Clone)]
pub enum AnyWork {
    /// For a file.
    Sqlite(SqliteWork),
    /// For a database.
    Postgres(PostgresWork),
}

impl Store for AnyStore {
    type Work = AnyWork;

    fn is_exclusive(&self) -> bool {
        match self {
            Self::Sqlite(store) => store.is_exclusive(),
            Self::Postgres(store) => store.is_exclusive(),
        }
    }

    async fn listen(&self, hint: Hint) -> StoreError {
        ask!(self.listen(hint))
    }

    async fn join(&self, name: &str) -> Answer<EngineNo> {
        ask!(self.join(name))
    }

    async fn beat(&self, engine: EngineNo, silent_ms: Option<Millis>) -> Answer<Signs> {
        ask!(self.beat(engine, silent_ms))
    }

    async fn take_over(&self, dead: EngineNo, heir: EngineNo) -> Answer<Vec<Held>> {
        ask!(self.take_over(dead, heir))
    }

    async fn due(&self, engine: EngineNo, limit: u32) -> Answer<Due> {
        ask!(self.due(engine, limit))
    }

    async fn put_protocol(&self, protocol_id: &str, definition: &str) -> Answer<()> {
        ask!(self.put_protocol(protocol_id, definition))
    }

    async fn protocol(&self, protocol_id: &str) -> Answer<Option<String>> {
        ask!(self.protocol(protocol_id))
    }

    async fn protocols(&self) -> Answer<Vec<String>> {
        ask!(self.protocols())
    }

    async fn now(&self) -> Answer<Millis> {
        ask!(self.now())
    }

    async fn leave(&self, engine: EngineNo) -> Answer<()> {
        ask!(self.leave(engine))
    }

    async fn submit(
        &self,
        engine: EngineNo,
        jobs: Vec<NewJob>,
    ) -> Answer<Vec<Result<Submitted, Refusal>>> {
        ask!(self.submit(engine, jobs))
    }

    async fn claim(&self, engine: EngineNo, wishes: Vec<Wish>) -> Answer<Vec<Held>> {
        ask!(self.claim(engine, wishes))
    }

    async fn dispatch(
        &self,
        engine: EngineNo,
        writes: Vec<DispatchWrite>,
    ) -> Answer<Vec<DispatchOutcome>> {
        ask!(self.dispatch(engine, writes))
    }

    async fn claimed(&self, claim_ids: Vec<String>) -> Answer<Vec<(String, Held)>> {
        ask!(self.claimed(claim_ids))
    }

    async fn find(&self, places: Vec<StepPlace>) -> Answer<Vec<Option<Held>>> {
        ask!(self.find(places))
    }

    async fn renew(&self, engine: EngineNo, writes: Vec<RenewWrite>) -> Answer<Vec<RenewOutcome>> {
        ask!(self.renew(engine, writes))
    }

    async fn record_stale(&self, engine: EngineNo, callbacks: Vec<StaleCallback>) -> Answer<()> {
        ask!(self.record_stale(engine, callbacks))
    }

    async fn release(&self, engine: EngineNo, activations: Vec<(AttemptKey, u64)>) -> Answer<()> {
        ask!(self.release(engine, activations))
    }

    async fn unpublished(
        &self,
        engine: EngineNo,
        services: Vec<String>,
        limit: u32,
    ) -> Answer<Vec<Held>> {
        ask!(self.unpublished(engine, services, limit))
    }

    async fn held_by(&self, engine: EngineNo) -> Answer<Vec<Held>> {
        ask!(self.held_by(engine))
    }

    async fn end(&self, engine: EngineNo, writes: Vec<EndWrite>) -> Answer<Vec<EndOutcome>> {
        ask!(self.end(engine, writes))
    }

    async fn end_and_finish(
        &self,
        engine: EngineNo,
        messages: Vec<(EndWrite, FinishWrite)>,
    ) -> Answer<Vec<Over>> {
        ask!(self.end_and_finish(engine, messages))
    }

    async fn submit_and_dispatch(
        &self,
        engine: EngineNo,
        beginnings: Vec<Beginning>,
    ) -> Answer<Vec<Begun>> {
        ask!(self.submit_and_dispatch(engine, beginnings))
    }

    async fn end_with(
        &self,
        engine: EngineNo,
        write: EndWrite,
        work: AnyWork,
        limit: Duration,
    ) -> Answer<Worked> {
        match (self, work) {
            (Self::Sqlite(store), AnyWork::Sqlite(work)) => {
                store.end_with(engine, write, work, limit).await
            }
            (Self::Postgres(store), AnyWork::Postgres(work)) => {
                store.end_with(engine, write, work, limit).await
            }
            (Self::Sqlite(_), AnyWork::Postgres(_)) | (Self::Postgres(_), AnyWork::Sqlite(_)) => {
                let message = "the work is for another kind of store";
                Ok(Worked::Failed(Failure::fatal(Cause::WorkFailed.name(), message)))
            }
        }
    }

    async fn commit_batch_with(
        &self,
        engine: EngineNo,
        write: BatchWrite,
        work: AnyWork,
        limit: Duration,
    ) -> Answer<BatchWorked> {
        match (self, work) {
            (Self::Sqlite(store), AnyWork::Sqlite(work)) => {
                store.commit_batch_with(engine, write, work, limit).await
            }
            (Self::Postgres(store), AnyWork::Postgres(work)) => {
                store.commit_batch_with(engine, write, work, limit).await
            }
            (Self::Sqlite(_), AnyWork::Postgres(_)) | (Self::Postgres(_), AnyWork::Sqlite(_)) => {
                let message = "the work is for another kind of store";
                Ok(BatchWorked::Failed(Failure::fatal(Cause::WorkFailed.name(), message)))
            }
        }
    }

    async fn pulse(&self, engine: EngineNo, pulses: Vec<Pulse>) -> Answer<()> {
        ask!(self.pulse(engine, pulses))
    }

    async fn children(
        &self,
        job_id: JobId,
        place: Option<sprag_engine::ids::Place>,
    ) -> Answer<Vec<JobId>> {
        ask!(self.children(job_id, place))
    }

    async fn cancelling(&self, jobs: Vec<JobId>) -> Answer<Vec<JobId>> {
        ask!(self.cancelling(jobs))
    }

    async fn finish(
        &self,
        engine: EngineNo,
        writes: Vec<FinishWrite>,
    ) -> Answer<Vec<FinishOutcome>> {
        ask!(self.finish(engine, writes))
    }

    async fn amend<T: Send + 'static>(
        &self,
        engine: EngineNo,
        job_id: JobId,
        place: Option<sprag_engine::ids::Place>,
        decide: Decide<T>,
    ) -> Answer<Option<Result<T, Refusal>>> {
        ask!(self.amend(engine, job_id, place, decide))
    }

    async fn ends(
        &self,
        places: Vec<(JobId, sprag_engine::ids::Place)>,
    ) -> Answer<Vec<Option<Ended>>> {
        ask!(self.ends(places))
    }

    async fn inbox_waiting(&self, limit: u32, max_bytes: usize) -> Answer<Vec<Waiting>> {
        ask!(self.inbox_waiting(limit, max_bytes))
    }

    async fn take_in(&self, engine: EngineNo, entries: Vec<TakeIn>) -> Answer<usize> {
        ask!(self.take_in(engine, entries))
    }

    async fn inbox(&self, filter: InboxFilter) -> Answer<Vec<InboxView>> {
        ask!(self.inbox(filter))
    }

    async fn job(&self, job_id: JobId) -> Answer<Option<JobView>> {
        ask!(self.job(job_id))
    }

    async fn attempts_by(&self, job_id: JobId, filter: AttemptFilter) -> Answer<Vec<AttemptView>> {
        ask!(self.attempts_by(job_id, filter))
    }

    async fn events_after(&self, job_id: JobId, n: u64, limit: u32) -> Answer<Vec<EventView>> {
        ask!(self.events_after(job_id, n, limit))
    }

    async fn feed(&self, after: Cursor, limit: u32) -> Answer<Vec<FeedEvent>> {
        ask!(self.feed(after, limit))
    }

    async fn jobs(&self, filter: JobFilter) -> Answer<Vec<JobView>> {
        ask!(self.jobs(filter))
    }

    async fn open_jobs(&self) -> Answer<u64> {
        ask!(self.open_jobs())
    }

    async fn audit(&self) -> Answer<Vec<Check>> {
        ask!(self.audit())
    }
}

impl Batches for AnyStore {
    async fn open_batch(
        &self,
        engine: EngineNo,
        key: AttemptKey,
        lease_id: LeaseId,
    ) -> Answer<Option<BatchPoint>> {
        ask!(self.open_batch(engine, key, lease_id))
    }

    async fn commit_batch(&self, engine: EngineNo, write: BatchWrite) -> Answer<BatchOutcome> {
        ask!(self.commit_batch(engine, write))
    }

    async fn batch(&self, place: BatchPlace) -> Answer<Option<BatchView>> {
        ask!(self.batch(place))
    }

    async fn batch_journal(
        &self,
        place: BatchPlace,
        from_seq: u64,
        limit: u32,
    ) -> Answer<Vec<JournalRow>> {
        ask!(self.batch_journal(place, from_seq, limit))
    }
}

impl Signals for AnyStore {
    async fn signal(
        &self,
        engine: EngineNo,
        job_id: JobId,
        signal: Signal,
    ) -> Answer<Option<Result<Signalled, Refusal>>> {
        ask!(self.signal(engine, job_id, signal))
    }

    async fn wait(&self, engine: EngineNo, writes: Vec<WaitWrite>) -> Answer<Vec<WaitOutcome>> {
        ask!(self.wait(engine, writes))
    }

    async fn signals(&self, job_id: JobId) -> Answer<Vec<SignalView>> {
        ask!(self.signals(job_id))
    }

    async fn signal_of(
        &self,
        job_id: JobId,
        place: sprag_engine::ids::Place,
    ) -> Answer<Option<SignalView>> {
        ask!(self.signal_of(job_id, place))
    }
}

impl RequestStore for AnyStore {
    async fn create_request(&self, request: NewRequest) -> Answer<RequestView> {
        ask!(self.create_request(request))
    }

    async fn amend_request<T: Send + 'static>(
        &self,
        engine: EngineNo,
        request_id: RequestId,
        decide: DecideRequest<T>,
    ) -> Answer<Option<Result<T, Refusal>>> {
        ask!(self.amend_request(engine, request_id, decide))
    }

    async fn request(&self, request_id: RequestId) -> Answer<Option<RequestView>> {
        ask!(self.request(request_id))
    }

    async fn requests(&self, filter: RequestFilter) -> Answer<Vec<RequestView>> {
        ask!(self.requests(filter))
    }

    async fn request_events(&self, request_id: RequestId) -> Answer<Vec<EventView>> {
        ask!(self.request_events(request_id))
    }
}

impl Gates for AnyStore {
    async fn admit(&self, engine: EngineNo, gates: Vec<String>) -> Answer<usize> {
        ask!(self.admit(engine, gates))
    }

    async fn lines(&self, after: Option<String>, limit: u32) -> Answer<Vec<String>> {
        ask!(self.lines(after, limit))
    }

    async fn gate(&self, gate: &str) -> Answer<GateView> {
        ask!(self.gate(gate))
    }
}

impl Upkeep for AnyStore {
    async fn pause(&self, service: &str) -> Answer<()> {
        ask!(self.pause(service))
    }

    async fn resume(&self, service: &str) -> Answer<()> {
        ask!(self.resume(service))
    }

    async fn serve(&self, engine: EngineNo, services: Vec<String>) -> Answer<()> {
        ask!(self.serve(engine, services))
    }

    async fn services(&self) -> Answer<Vec<ServiceView>> {
        ask!(self.services())
    }

    async fn limit_tenant(&self, tenant_id: &str, max_open: Option<u32>) -> Answer<()> {
        ask!(self.limit_tenant(tenant_id, max_open))
    }

    async fn tenants(&self) -> Answer<Vec<TenantView>> {
        ask!(self.tenants())
    }

    async fn claim_tasks(
        &self,
        engine: EngineNo,
        tasks: Vec<String>,
        max: u32,
        hold_ms: Millis,
    ) -> Answer<Vec<Task>> {
        ask!(self.claim_tasks(engine, tasks, max, hold_ms))
    }

    async fn settle_tasks(&self, engine: EngineNo, settled: Vec<(Task, Delivery)>) -> Answer<()> {
        ask!(self.settle_tasks(engine, settled))
    }

    async fn undelivered(&self) -> Answer<u64> {
        ask!(self.undelivered())
    }

    async fn tasks(&self, job_id: JobId) -> Answer<Vec<TaskView>> {
        ask!(self.tasks(job_id))
    }

    async fn retire(
        &self,
        engine: EngineNo,
        keep_ms: Millis,
        after: Option<JobId>,
        limit: u32,
    ) -> Answer<Retired> {
        ask!(self.retire(engine, keep_ms, after, limit))
    }

    async fn forget(&self, engine: EngineNo, keep_ms: Millis, limit: u32) -> Answer<usize> {
        ask!(self.forget(engine, keep_ms, limit))
    }

    async fn backlog(&self, now: Millis, since: Millis) -> Answer<Backlog> {
        ask!(self.backlog(now, since))
    }

    async fn counts(&self) -> Answer<Counts> {
        ask!(self.counts())
    }
}

impl TokenStore for AnyStore {
    async fn put_token(&self, token: NewToken) -> Answer<TokenView> {
        ask!(self.put_token(token))
    }

    async fn token(&self, token_id: &str) -> Answer<Option<TokenView>> {
        ask!(self.token(token_id))
    }

    async fn tokens(&self) -> Answer<Vec<TokenView>> {
        ask!(self.tokens())
    }

    async fn revoke_token(&self, token_id: &str) -> Answer<Option<TokenView>> {
        ask!(self.revoke_token(token_id))
    }
}

impl Schedules for AnyStore {
    async fn put_schedule(
        &self,
        schedule: Schedule,
        next_at: Option<Millis>,
    ) -> Answer<ScheduleView> {
        ask!(self.put_schedule(schedule, next_at))
    }

    async fn schedule(&self, tenant_id: &str, schedule_id: &str) -> Answer<Option<ScheduleView>> {
        ask!(self.schedule(tenant_id, schedule_id))
    }

    async fn schedules(&self, tenant_id: Option<&str>) -> Answer<Vec<ScheduleView>> {
        ask!(self.schedules(tenant_id))
    }

    async fn remove_schedule(&self, tenant_id: &str, schedule_id: &str) -> Answer<bool> {
        ask!(self.remove_schedule(tenant_id, schedule_id))
    }

    async fn rest_schedule(&self, tenant_id: &str, schedule_id: &str, rest: Rest) -> Answer<()> {
        ask!(self.rest_schedule(tenant_id, schedule_id, rest))
    }

    async fn next_schedules(&self, limit: u32) -> Answer<Vec<ScheduleView>> {
        ask!(self.next_schedules(limit))
    }

    async fn tick(&self, write: TickWrite) -> Answer<bool> {
        ask!(self.tick(write))
    }
}
