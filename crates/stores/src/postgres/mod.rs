//! Postgres: any number of engines on one database, in the schema `sprag`.
//!
//! A primitive is one statement over a slice, committed by itself: the arrays of the slice go in, what
//! came of each element comes out. Every write of an engine holds that engine's row, so that whoever
//! declares it dead waits for the write, and a write that comes later changes nothing. Guards stand in
//! the statements; so a call whose outcome is unknown may be made again. There are three pools: the
//! engine's, whose planner is told to go by index from the arrays to the rows, a plain one for lists and the
//! audit, and one for the work of transactional handlers.
//!
//! Locks are taken in one order: attempts by key, then jobs by id. What deadlocks in spite of it, or
//! fails to serialise, is run again whole.

mod amend;
mod batch;
mod children;
mod engines;
mod failure;
mod feed;
mod finish;
mod gates;
mod graph;
mod hints;
mod inbox;
mod legs;
mod limited;
mod open;
mod pair;
mod pools;
mod read;
mod requests;
mod rows;
mod schedules;
mod signals;
mod slice;
mod submit;
mod tls;
mod tokens;
mod upkeep;
mod work;
mod worker;

use std::time::Duration;

use sprag_engine::batch::store::{BatchWorked, BatchWrite};
use sprag_engine::gate::{GateView, Gates};
use sprag_engine::hints::Hint;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place};
use sprag_engine::inbox::{InboxFilter, InboxView, TakeIn, Waiting};
use sprag_engine::pairs::{Beginning, Begun, Over};
use sprag_engine::store::{
    Answer, AttemptFilter, AttemptView, Check, Cursor, Decide, DispatchOutcome, DispatchWrite, Due,
    EndOutcome, EndWrite, Ended, EventView, FeedEvent, FinishOutcome, FinishWrite, Held, JobFilter,
    JobView, NewJob, Pulse, RenewOutcome, RenewWrite, Signs, StaleCallback, StepPlace, Store,
    StoreError, Submitted, Wish, Worked,
};
use sprag_engine::upkeep::{
    Backlog, Counts, Delivery, Retired, ServiceView, Task, TaskView, TenantView, Upkeep,
};
use sprag_kernel::Refusal;
use sprag_kernel::retry::Millis;

use crate::TestClock;
use crate::versions::Schema;

pub use inbox::submit_in;
pub use open::PostgresOptions;
pub use work::{PostgresWork, WorkError, WorkFuture};

pub(crate) use failure::failed;

/// A connection of a store's own, with the planner's defaults.
pub(crate) async fn plain(store: &PostgresStore) -> Answer<deadpool_postgres::Object> {
    store.pools.plain().await
}

/// A store in a Postgres database.
pub struct PostgresStore {
    pools: pools::Pools,
}

impl PostgresStore {
    /// Opens a store, and creates or migrates its schema.
    pub async fn open(options: &PostgresOptions) -> Answer<Self> {
        Self::open_as(options, None, Self::schema()).await
    }

    /// Opens a store to look at it, beside running engines or without one. It must be there.
    pub async fn look(options: &PostgresOptions) -> Answer<Self> {
        Self::open_as(options, None, Self::schema().of_a_store()).await
    }

    /// Opens a store whose time a test owns.
    pub async fn open_with_clock(options: &PostgresOptions, clock: TestClock) -> Answer<Self> {
        Self::open_as(options, Some(clock), Self::schema()).await
    }

    /// Opens a store as a binary that knows this schema would.
    pub async fn open_as(
        options: &PostgresOptions,
        clock: Option<TestClock>,
        schema: Schema,
    ) -> Answer<Self> {
        open::open(options, clock, schema).await.map(|pools| Self { pools })
    }

    /// The schema that this binary knows.
    pub fn schema() -> Schema {
        open::schema()
    }
}

impl Store for PostgresStore {
    type Work = PostgresWork;

    async fn listen(&self, hint: Hint) -> StoreError {
        hints::listen(&self.pools, hint).await
    }

    async fn join(&self, name: &str) -> Answer<EngineNo> {
        engines::join(&self.pools, name).await
    }

    async fn beat(&self, engine: EngineNo, silent_ms: Option<Millis>) -> Answer<Signs> {
        engines::beat(&self.pools, engine, silent_ms).await
    }

    async fn take_over(&self, dead: EngineNo, heir: EngineNo) -> Answer<Vec<Held>> {
        engines::take_over(&self.pools, dead, heir).await
    }

    async fn due(&self, engine: EngineNo, limit: u32) -> Answer<Due> {
        engines::due(&self.pools, engine, limit).await
    }

    async fn put_protocol(&self, protocol_id: &str, definition: &str) -> Answer<()> {
        submit::put_protocol(&self.pools, protocol_id, definition).await
    }

    async fn protocol(&self, protocol_id: &str) -> Answer<Option<String>> {
        submit::protocol(&self.pools, protocol_id).await
    }

    async fn protocols(&self) -> Answer<Vec<String>> {
        submit::protocols(&self.pools).await
    }

    async fn now(&self) -> Answer<Millis> {
        engines::now(&self.pools).await
    }

    async fn leave(&self, engine: EngineNo) -> Answer<()> {
        engines::leave(&self.pools, engine).await
    }

    async fn submit(
        &self,
        engine: EngineNo,
        jobs: Vec<NewJob>,
    ) -> Answer<Vec<Result<Submitted, Refusal>>> {
        submit::submit(&self.pools, engine, &jobs).await
    }

    async fn submit_and_dispatch(
        &self,
        engine: EngineNo,
        beginnings: Vec<Beginning>,
    ) -> Answer<Vec<Begun>> {
        pair::submit_and_dispatch(&self.pools, engine, beginnings).await
    }

    async fn claim(&self, engine: EngineNo, wishes: Vec<Wish>) -> Answer<Vec<Held>> {
        legs::claim(&self.pools, engine, &wishes).await
    }

    async fn dispatch(
        &self,
        engine: EngineNo,
        writes: Vec<DispatchWrite>,
    ) -> Answer<Vec<DispatchOutcome>> {
        legs::dispatch(&self.pools, engine, &writes).await
    }

    async fn claimed(&self, claim_ids: Vec<String>) -> Answer<Vec<(String, Held)>> {
        worker::claimed(&self.pools, &claim_ids).await
    }

    async fn find(&self, places: Vec<StepPlace>) -> Answer<Vec<Option<Held>>> {
        worker::find(&self.pools, &places).await
    }

    async fn renew(&self, engine: EngineNo, writes: Vec<RenewWrite>) -> Answer<Vec<RenewOutcome>> {
        worker::renew(&self.pools, engine, &writes).await
    }

    async fn record_stale(&self, engine: EngineNo, callbacks: Vec<StaleCallback>) -> Answer<()> {
        worker::record_stale(&self.pools, engine, &callbacks).await
    }

    async fn release(&self, engine: EngineNo, activations: Vec<(AttemptKey, u64)>) -> Answer<()> {
        worker::release(&self.pools, engine, &activations).await
    }

    async fn unpublished(
        &self,
        engine: EngineNo,
        services: Vec<String>,
        limit: u32,
    ) -> Answer<Vec<Held>> {
        worker::unpublished(&self.pools, engine, &services, limit).await
    }

    async fn held_by(&self, engine: EngineNo) -> Answer<Vec<Held>> {
        worker::held_by(&self.pools, engine).await
    }

    async fn end(&self, engine: EngineNo, writes: Vec<EndWrite>) -> Answer<Vec<EndOutcome>> {
        legs::end(&self.pools, engine, &writes).await
    }

    async fn end_with(
        &self,
        engine: EngineNo,
        write: EndWrite,
        work: PostgresWork,
        limit: Duration,
    ) -> Answer<Worked> {
        work::end_with(&self.pools, engine, &write, (&work, limit)).await
    }

    async fn commit_batch_with(
        &self,
        engine: EngineNo,
        write: BatchWrite,
        work: PostgresWork,
        limit: Duration,
    ) -> Answer<BatchWorked> {
        batch::commit_with(&self.pools, engine, &write, (&work, limit)).await
    }

    async fn pulse(&self, engine: EngineNo, pulses: Vec<Pulse>) -> Answer<()> {
        legs::pulse(&self.pools, engine, &pulses).await
    }

    async fn children(&self, job_id: JobId, place: Option<Place>) -> Answer<Vec<JobId>> {
        children::open(&self.pools, job_id, place).await
    }

    async fn cancelling(&self, jobs: Vec<JobId>) -> Answer<Vec<JobId>> {
        legs::cancelling(&self.pools, &jobs).await
    }

    async fn finish(
        &self,
        engine: EngineNo,
        writes: Vec<FinishWrite>,
    ) -> Answer<Vec<FinishOutcome>> {
        finish::finish(&self.pools, engine, &writes).await
    }

    async fn end_and_finish(
        &self,
        engine: EngineNo,
        messages: Vec<(EndWrite, FinishWrite)>,
    ) -> Answer<Vec<Over>> {
        pair::end_and_finish(&self.pools, engine, messages).await
    }

    async fn amend<T: Send + 'static>(
        &self,
        engine: EngineNo,
        job_id: JobId,
        place: Option<Place>,
        mut decide: Decide<T>,
    ) -> Answer<Option<Result<T, Refusal>>> {
        amend::amend(&self.pools, engine, (job_id, place), &mut decide).await
    }

    async fn ends(&self, places: Vec<(JobId, Place)>) -> Answer<Vec<Option<Ended>>> {
        read::ends(submit::Runner::Alone(&self.pools), &places).await
    }

    async fn inbox_waiting(&self, limit: u32, max_bytes: usize) -> Answer<Vec<Waiting>> {
        inbox::waiting(&self.pools, limit, max_bytes).await
    }

    async fn take_in(&self, engine: EngineNo, entries: Vec<TakeIn>) -> Answer<usize> {
        inbox::take_in(&self.pools, engine, &entries).await
    }

    async fn inbox(&self, filter: InboxFilter) -> Answer<Vec<InboxView>> {
        inbox::list(&self.pools, &filter).await
    }

    async fn job(&self, job_id: JobId) -> Answer<Option<JobView>> {
        read::job(&self.pools, job_id).await
    }

    async fn attempts_by(&self, job_id: JobId, filter: AttemptFilter) -> Answer<Vec<AttemptView>> {
        read::attempts_by(&self.pools, job_id, &filter).await
    }

    async fn events_after(&self, job_id: JobId, n: u64, limit: u32) -> Answer<Vec<EventView>> {
        read::events_after(&self.pools, job_id, n, limit).await
    }

    async fn feed(&self, after: Cursor, limit: u32) -> Answer<Vec<FeedEvent>> {
        feed::feed(&self.pools, after, limit).await
    }

    async fn jobs(&self, filter: JobFilter) -> Answer<Vec<JobView>> {
        read::jobs(&self.pools, &filter).await
    }

    async fn open_jobs(&self) -> Answer<u64> {
        read::count_open(&self.pools).await
    }

    async fn audit(&self) -> Answer<Vec<Check>> {
        read::audit(&self.pools).await
    }
}

impl Gates for PostgresStore {
    async fn admit(&self, engine: EngineNo, gates: Vec<String>) -> Answer<usize> {
        gates::admit(&self.pools, engine, &gates).await
    }

    async fn lines(&self, after: Option<String>, limit: u32) -> Answer<Vec<String>> {
        gates::lines(&self.pools, after.as_deref(), limit).await
    }

    async fn gate(&self, gate: &str) -> Answer<GateView> {
        gates::gate(&self.pools, gate).await
    }
}

impl Upkeep for PostgresStore {
    async fn pause(&self, service: &str) -> Answer<()> {
        upkeep::pause(&self.pools, service).await
    }

    async fn resume(&self, service: &str) -> Answer<()> {
        upkeep::resume(&self.pools, service).await
    }

    async fn serve(&self, engine: EngineNo, services: Vec<String>) -> Answer<()> {
        upkeep::serve(&self.pools, engine, &services).await
    }

    async fn services(&self) -> Answer<Vec<ServiceView>> {
        upkeep::services(&self.pools).await
    }

    async fn limit_tenant(&self, tenant_id: &str, max_open: Option<u32>) -> Answer<()> {
        upkeep::limit_tenant(&self.pools, tenant_id, max_open).await
    }

    async fn tenants(&self) -> Answer<Vec<TenantView>> {
        upkeep::tenants(&self.pools).await
    }

    async fn claim_tasks(
        &self,
        engine: EngineNo,
        tasks: Vec<String>,
        max: u32,
        hold_ms: Millis,
    ) -> Answer<Vec<Task>> {
        upkeep::claim_tasks(&self.pools, engine, (&tasks, max), hold_ms).await
    }

    async fn settle_tasks(&self, engine: EngineNo, settled: Vec<(Task, Delivery)>) -> Answer<()> {
        upkeep::settle_tasks(&self.pools, engine, &settled).await
    }

    async fn undelivered(&self) -> Answer<u64> {
        upkeep::undelivered(&self.pools).await
    }

    async fn tasks(&self, job_id: JobId) -> Answer<Vec<TaskView>> {
        upkeep::tasks(&self.pools, job_id).await
    }

    async fn retire(
        &self,
        engine: EngineNo,
        keep_ms: Millis,
        after: Option<JobId>,
        limit: u32,
    ) -> Answer<Retired> {
        upkeep::retire(&self.pools, engine, keep_ms, (after, limit)).await
    }

    async fn forget(&self, engine: EngineNo, keep_ms: Millis, limit: u32) -> Answer<usize> {
        upkeep::forget(&self.pools, engine, keep_ms, limit).await
    }

    async fn backlog(&self, now: Millis, since: Millis) -> Answer<Backlog> {
        upkeep::backlog(&self.pools, now, since).await
    }

    async fn counts(&self) -> Answer<Counts> {
        upkeep::counts(&self.pools).await
    }
}
