//! The seam with a crash point on either side of every call that writes. A primitive that is added to the
//! seam does not compile until it stands here too.

use std::time::Duration;

use sprag_engine::batch::store::{
    BatchOutcome, BatchPlace, BatchPoint, BatchView, BatchWorked, BatchWrite, Batches, JournalRow,
};
use sprag_engine::crash::crash_point;
use sprag_engine::feed::{Cursor, FeedEvent};
use sprag_engine::gate::{GateView, Gates};
use sprag_engine::hints::Hint;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place, RequestId};
use sprag_engine::inbox::{InboxFilter, InboxView, TakeIn, Waiting};
use sprag_engine::pairs::{Beginning, Begun, Over};
use sprag_engine::requests::{DecideRequest, NewRequest, RequestFilter, RequestStore, RequestView};
use sprag_engine::schedules::{Rest, Schedule, ScheduleView, Schedules, TickWrite};
use sprag_engine::signals::{Signal, SignalView, Signalled, Signals, WaitOutcome, WaitWrite};
use sprag_engine::store::{
    Answer, AttemptFilter, AttemptView, Check, Decide, DispatchOutcome, DispatchWrite, Due,
    EndOutcome, EndWrite, Ended, EventView, FinishOutcome, FinishWrite, Held, JobFilter, JobView,
    NewJob, Pulse, RenewOutcome, RenewWrite, Signs, StaleCallback, StepPlace, Store, StoreError,
    Submitted, Wish, Worked,
};
use sprag_engine::tokens::{NewToken, TokenStore, TokenView};
use sprag_engine::upkeep::{
    Backlog, Counts, Delivery, Retired, ServiceView, Task, TaskView, TenantView, Upkeep,
};
use sprag_kernel::Refusal;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::Millis;

/// A store whose callers can die right before and right after each write.
pub(crate) struct Seam<S>(pub(crate) S);

/// A call between its two points, which are named for it.
macro_rules! around {
    ($this:ident.$call:ident($($argument:expr),*)) => {{
        crash_point(concat!("seam.", stringify!($call), ".before"));
        let answer = $this.0.$call($($argument),*).await;
        crash_point(concat!("seam.", stringify!($call), ".after"));
        answer
    }};
}

impl<S: Store> Batches for Seam<S> {
    async fn open_batch(
        &self,
        engine: EngineNo,
        key: AttemptKey,
        lease_id: LeaseId,
    ) -> Answer<Option<BatchPoint>> {
        around!(self.open_batch(engine, key, lease_id))
    }

    async fn commit_batch(&self, engine: EngineNo, write: BatchWrite) -> Answer<BatchOutcome> {
        around!(self.commit_batch(engine, write))
    }

    async fn batch(&self, place: BatchPlace) -> Answer<Option<BatchView>> {
        self.0.batch(place).await
    }

    async fn batch_journal(
        &self,
        place: BatchPlace,
        from_seq: u64,
        limit: u32,
    ) -> Answer<Vec<JournalRow>> {
        self.0.batch_journal(place, from_seq, limit).await
    }
}

impl<S: Store> Signals for Seam<S> {
    async fn signal(
        &self,
        engine: EngineNo,
        job_id: JobId,
        signal: Signal,
    ) -> Answer<Option<Result<Signalled, Refusal>>> {
        around!(self.signal(engine, job_id, signal))
    }

    async fn wait(&self, engine: EngineNo, writes: Vec<WaitWrite>) -> Answer<Vec<WaitOutcome>> {
        around!(self.wait(engine, writes))
    }

    async fn signals(&self, job_id: JobId) -> Answer<Vec<SignalView>> {
        self.0.signals(job_id).await
    }

    async fn signal_of(&self, job_id: JobId, place: Place) -> Answer<Option<SignalView>> {
        self.0.signal_of(job_id, place).await
    }
}

impl<S: Store> Store for Seam<S> {
    type Work = S::Work;

    fn is_exclusive(&self) -> bool {
        self.0.is_exclusive()
    }

    async fn listen(&self, hint: Hint) -> StoreError {
        self.0.listen(hint).await
    }

    async fn join(&self, name: &str) -> Answer<EngineNo> {
        around!(self.join(name))
    }

    async fn beat(&self, engine: EngineNo, silent_ms: Option<Millis>) -> Answer<Signs> {
        around!(self.beat(engine, silent_ms))
    }

    async fn take_over(&self, dead: EngineNo, heir: EngineNo) -> Answer<Vec<Held>> {
        around!(self.take_over(dead, heir))
    }

    async fn due(&self, engine: EngineNo, limit: u32) -> Answer<Due> {
        around!(self.due(engine, limit))
    }

    async fn put_protocol(&self, protocol_id: &str, definition: &str) -> Answer<()> {
        around!(self.put_protocol(protocol_id, definition))
    }

    async fn protocol(&self, protocol_id: &str) -> Answer<Option<String>> {
        around!(self.protocol(protocol_id))
    }

    async fn leave(&self, engine: EngineNo) -> Answer<()> {
        around!(self.leave(engine))
    }

    async fn submit(
        &self,
        engine: EngineNo,
        jobs: Vec<NewJob>,
    ) -> Answer<Vec<Result<Submitted, Refusal>>> {
        around!(self.submit(engine, jobs))
    }

    async fn claim(&self, engine: EngineNo, wishes: Vec<Wish>) -> Answer<Vec<Held>> {
        around!(self.claim(engine, wishes))
    }

    async fn dispatch(
        &self,
        engine: EngineNo,
        writes: Vec<DispatchWrite>,
    ) -> Answer<Vec<DispatchOutcome>> {
        around!(self.dispatch(engine, writes))
    }

    async fn renew(&self, engine: EngineNo, writes: Vec<RenewWrite>) -> Answer<Vec<RenewOutcome>> {
        around!(self.renew(engine, writes))
    }

    async fn record_stale(&self, engine: EngineNo, callbacks: Vec<StaleCallback>) -> Answer<()> {
        around!(self.record_stale(engine, callbacks))
    }

    async fn release(&self, engine: EngineNo, activations: Vec<(AttemptKey, u64)>) -> Answer<()> {
        around!(self.release(engine, activations))
    }

    async fn end(&self, engine: EngineNo, writes: Vec<EndWrite>) -> Answer<Vec<EndOutcome>> {
        around!(self.end(engine, writes))
    }

    async fn end_and_finish(
        &self,
        engine: EngineNo,
        messages: Vec<(EndWrite, FinishWrite)>,
    ) -> Answer<Vec<Over>> {
        around!(self.end_and_finish(engine, messages))
    }

    async fn submit_and_dispatch(
        &self,
        engine: EngineNo,
        beginnings: Vec<Beginning>,
    ) -> Answer<Vec<Begun>> {
        around!(self.submit_and_dispatch(engine, beginnings))
    }

    async fn end_with(
        &self,
        engine: EngineNo,
        write: EndWrite,
        work: S::Work,
        limit: Duration,
    ) -> Answer<Worked> {
        around!(self.end_with(engine, write, work, limit))
    }

    async fn commit_batch_with(
        &self,
        engine: EngineNo,
        write: BatchWrite,
        work: S::Work,
        limit: Duration,
    ) -> Answer<BatchWorked> {
        around!(self.commit_batch_with(engine, write, work, limit))
    }

    async fn pulse(&self, engine: EngineNo, pulses: Vec<Pulse>) -> Answer<()> {
        around!(self.pulse(engine, pulses))
    }

    async fn finish(
        &self,
        engine: EngineNo,
        writes: Vec<FinishWrite>,
    ) -> Answer<Vec<FinishOutcome>> {
        around!(self.finish(engine, writes))
    }

    async fn amend<T: Send + 'static>(
        &self,
        engine: EngineNo,
        job_id: JobId,
        place: Option<Place>,
        decide: Decide<T>,
    ) -> Answer<Option<Result<T, Refusal>>> {
        around!(self.amend(engine, job_id, place, decide))
    }

    async fn take_in(&self, engine: EngineNo, entries: Vec<TakeIn>) -> Answer<usize> {
        around!(self.take_in(engine, entries))
    }

    // What only reads leaves nothing behind.

    async fn ends(&self, places: Vec<(JobId, Place)>) -> Answer<Vec<Option<Ended>>> {
        self.0.ends(places).await
    }

    async fn protocols(&self) -> Answer<Vec<String>> {
        self.0.protocols().await
    }

    async fn claimed(&self, claim_ids: Vec<String>) -> Answer<Vec<(String, Held)>> {
        self.0.claimed(claim_ids).await
    }

    async fn find(&self, places: Vec<StepPlace>) -> Answer<Vec<Option<Held>>> {
        self.0.find(places).await
    }

    async fn unpublished(
        &self,
        engine: EngineNo,
        services: Vec<String>,
        limit: u32,
    ) -> Answer<Vec<Held>> {
        around!(self.unpublished(engine, services, limit))
    }

    async fn held_by(&self, engine: EngineNo) -> Answer<Vec<Held>> {
        self.0.held_by(engine).await
    }

    async fn inbox_waiting(&self, limit: u32, max_bytes: usize) -> Answer<Vec<Waiting>> {
        self.0.inbox_waiting(limit, max_bytes).await
    }

    async fn inbox(&self, filter: InboxFilter) -> Answer<Vec<InboxView>> {
        self.0.inbox(filter).await
    }

    async fn children(&self, job_id: JobId, place: Option<Place>) -> Answer<Vec<JobId>> {
        self.0.children(job_id, place).await
    }

    async fn cancelling(&self, jobs: Vec<JobId>) -> Answer<Vec<JobId>> {
        self.0.cancelling(jobs).await
    }

    async fn now(&self) -> Answer<Millis> {
        self.0.now().await
    }

    async fn job(&self, job_id: JobId) -> Answer<Option<JobView>> {
        self.0.job(job_id).await
    }

    async fn attempts_by(&self, job_id: JobId, filter: AttemptFilter) -> Answer<Vec<AttemptView>> {
        self.0.attempts_by(job_id, filter).await
    }

    async fn events_after(&self, job_id: JobId, n: u64, limit: u32) -> Answer<Vec<EventView>> {
        self.0.events_after(job_id, n, limit).await
    }

    async fn feed(&self, after: Cursor, limit: u32) -> Answer<Vec<FeedEvent>> {
        self.0.feed(after, limit).await
    }

    async fn jobs(&self, filter: JobFilter) -> Answer<Vec<JobView>> {
        self.0.jobs(filter).await
    }

    async fn open_jobs(&self) -> Answer<u64> {
        self.0.open_jobs().await
    }

    async fn audit(&self) -> Answer<Vec<Check>> {
        self.0.audit().await
    }
}

impl<S: Store> Gates for Seam<S> {
    async fn admit(&self, engine: EngineNo, gates: Vec<String>) -> Answer<usize> {
        around!(self.admit(engine, gates))
    }

    async fn lines(&self, after: Option<String>, limit: u32) -> Answer<Vec<String>> {
        self.0.lines(after, limit).await
    }

    async fn gate(&self, gate: &str) -> Answer<GateView> {
        self.0.gate(gate).await
    }
}

impl<S: Store> Upkeep for Seam<S> {
    async fn pause(&self, service: &str) -> Answer<()> {
        around!(self.pause(service))
    }

    async fn resume(&self, service: &str) -> Answer<()> {
        around!(self.resume(service))
    }

    async fn serve(&self, engine: EngineNo, services: Vec<String>) -> Answer<()> {
        around!(self.serve(engine, services))
    }

    async fn services(&self) -> Answer<Vec<ServiceView>> {
        self.0.services().await
    }

    async fn limit_tenant(&self, tenant_id: &str, max_open: Option<u32>) -> Answer<()> {
        around!(self.limit_tenant(tenant_id, max_open))
    }

    async fn tenants(&self) -> Answer<Vec<TenantView>> {
        self.0.tenants().await
    }

    async fn claim_tasks(
        &self,
        engine: EngineNo,
        tasks: Vec<String>,
        max: u32,
        hold_ms: Millis,
    ) -> Answer<Vec<Task>> {
        around!(self.claim_tasks(engine, tasks, max, hold_ms))
    }

    async fn settle_tasks(&self, engine: EngineNo, settled: Vec<(Task, Delivery)>) -> Answer<()> {
        around!(self.settle_tasks(engine, settled))
    }

    async fn undelivered(&self) -> Answer<u64> {
        self.0.undelivered().await
    }

    async fn tasks(&self, job_id: JobId) -> Answer<Vec<TaskView>> {
        self.0.tasks(job_id).await
    }

    async fn retire(
        &self,
        engine: EngineNo,
        keep_ms: Millis,
        after: Option<JobId>,
        limit: u32,
    ) -> Answer<Retired> {
        around!(self.retire(engine, keep_ms, after, limit))
    }

    async fn forget(&self, engine: EngineNo, keep_ms: Millis, limit: u32) -> Answer<usize> {
        around!(self.forget(engine, keep_ms, limit))
    }

    async fn backlog(&self, now: Millis, since: Millis) -> Answer<Backlog> {
        self.0.backlog(now, since).await
    }

    async fn counts(&self) -> Answer<Counts> {
        self.0.counts().await
    }
}

impl<S: Store> Schedules for Seam<S> {
    async fn put_schedule(
        &self,
        schedule: Schedule,
        next_at: Option<Millis>,
    ) -> Answer<ScheduleView> {
        around!(self.put_schedule(schedule, next_at))
    }

    async fn schedule(&self, tenant_id: &str, schedule_id: &str) -> Answer<Option<ScheduleView>> {
        self.0.schedule(tenant_id, schedule_id).await
    }

    async fn schedules(&self, tenant_id: Option<&str>) -> Answer<Vec<ScheduleView>> {
        self.0.schedules(tenant_id).await
    }

    async fn remove_schedule(&self, tenant_id: &str, schedule_id: &str) -> Answer<bool> {
        around!(self.remove_schedule(tenant_id, schedule_id))
    }

    async fn rest_schedule(&self, tenant_id: &str, schedule_id: &str, rest: Rest) -> Answer<()> {
        around!(self.rest_schedule(tenant_id, schedule_id, rest))
    }

    async fn next_schedules(&self, limit: u32) -> Answer<Vec<ScheduleView>> {
        self.0.next_schedules(limit).await
    }

    async fn tick(&self, write: TickWrite) -> Answer<bool> {
        around!(self.tick(write))
    }
}

impl<S: RequestStore> RequestStore for Seam<S> {
    async fn create_request(&self, request: NewRequest) -> Answer<RequestView> {
        around!(self.create_request(request))
    }

    async fn amend_request<T: Send + 'static>(
        &self,
        engine: EngineNo,
        request_id: RequestId,
        decide: DecideRequest<T>,
    ) -> Answer<Option<Result<T, Refusal>>> {
        around!(self.amend_request(engine, request_id, decide))
    }

    async fn request(&self, request_id: RequestId) -> Answer<Option<RequestView>> {
        self.0.request(request_id).await
    }

    async fn requests(&self, filter: RequestFilter) -> Answer<Vec<RequestView>> {
        self.0.requests(filter).await
    }

    async fn request_events(&self, request_id: RequestId) -> Answer<Vec<EventView>> {
        self.0.request_events(request_id).await
    }
}

impl<S: TokenStore> TokenStore for Seam<S> {
    async fn put_token(&self, token: NewToken) -> Answer<TokenView> {
        around!(self.put_token(token))
    }

    async fn token(&self, token_id: &str) -> Answer<Option<TokenView>> {
        self.0.token(token_id).await
    }

    async fn tokens(&self) -> Answer<Vec<TokenView>> {
        self.0.tokens().await
    }

    async fn revoke_token(&self, token_id: &str) -> Answer<Option<TokenView>> {
        around!(self.revoke_token(token_id))
    }
}
