//! SQLite: one file, one writer thread, group commit.
//!
//! Everything that writes or decides goes to the writer. It takes what has queued up, runs it
//! in one transaction, and answers when that transaction is durable: an idle store commits at
//! once, a loaded one commits groups. The writer is the only one who writes, so what it reads in its
//! transaction stays true until it commits. What is only looked at goes to readers beside it. One engine
//! process owns a file, by a lock on a file beside it.

mod amend;
mod batch;
mod checkpoints;
mod children;
mod clock;
mod engines;
mod eras;
mod feed;
mod filters;
mod finish;
mod gates;
mod graph;
mod inbox;
mod legs;
mod log;
mod open;
mod pair;
mod positions;
mod read;
mod readers;
mod requests;
mod rows;
mod schedules;
mod signals;
mod statements;
mod submit;
mod tally;
mod tokens;
mod upkeep;
mod work;
mod worker;
mod writer;

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;
use std::time::Duration;

use sprag_engine::batch::store::{BatchWorked, BatchWrite};
use sprag_engine::gate::{GateView, Gates};
use sprag_engine::hints::Hint;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place};
use sprag_engine::inbox::{InboxFilter, InboxView, TakeIn, Waiting};
use sprag_engine::pairs::{Beginning, Begun, Over, Seconds};
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

use crate::TAKEN;
pub use crate::test_clock::TestClock;
use crate::versions::Schema;
pub use inbox::submit_in;
pub use open::Durability;
pub use work::{SqliteWork, WorkError};

pub(crate) use eras::divide;
pub(crate) use open::{expect_file, own as own_file};
pub(crate) use rows::failed;

/// How often the file is asked whether somebody beside the engine has written to it: an envelope for the inbox, a
/// command of the operator. It costs no transaction of the disk's.
const FOREIGN: Duration = Duration::from_millis(250);

/// A connection to a file of this binary's schema.
pub(crate) fn open_file(path: &Path, durability: Durability) -> Answer<rusqlite::Connection> {
    open::open(path, durability, &open::schema()).map(|(connection, _)| connection)
}

/// The same to a file that must hold a store already.
pub(crate) fn open_store(path: &Path, durability: Durability) -> Answer<rusqlite::Connection> {
    open::open(path, durability, &open::schema().of_a_store()).map(|(connection, _)| connection)
}

/// The newest version of the schema that this binary knows.
pub(crate) fn known_version() -> i64 {
    open::schema().version()
}

/// The tables of that version.
pub(crate) fn known_tables() -> rusqlite::Result<BTreeSet<String>> {
    let pattern = rusqlite::Connection::open_in_memory()?;
    for step in open::schema().missing(0) {
        pattern.execute_batch(step.sql)?;
    }
    let mut names = pattern.prepare("SELECT name FROM sqlite_master WHERE type = 'table'")?;
    names.query_map([], |row| row.get(0))?.collect()
}

/// Every invariant, on a connection that nobody else writes beside.
pub(crate) fn audit_of(connection: &rusqlite::Connection) -> Answer<Vec<Check>> {
    read::audit(&writer::Tx::reading(connection, 0))
}

/// A store in one SQLite file.
pub struct SqliteStore {
    /// Closed first: whoever is the last to close the file copies the log into it, and readers cannot.
    readers: readers::Readers,
    writer: writer::Writer,
    /// Held by an engine, not by those who only look.
    lock: Option<File>,
    /// The schema that this binary knows.
    version: i64,
}

/// How much a store gathers before it goes on to something else.
#[derive(Clone, Copy)]
struct Sizes {
    era_keys: usize,
    log_pages: i32,
}

const USUAL: Sizes = Sizes { era_keys: eras::KEYS, log_pages: checkpoints::LONG };
/// In a test.
const SMALL: Sizes = Sizes { era_keys: eras::FEW, log_pages: checkpoints::SHORT };

impl SqliteStore {
    /// Opens or creates a store for an engine. Another engine process on the same file is refused.
    pub fn open(path: &Path, durability: Durability) -> Answer<Self> {
        Self::open_as(path, durability, None, &Self::schema())
    }

    /// Opens a store to look at it, beside a running engine or without one. It must be there.
    pub fn look(path: &Path) -> Answer<Self> {
        open::expect_file(path)?;
        let schema = Self::schema().of_a_store();
        Self::start(path, Durability::Full, None, (&schema, USUAL), None)
    }

    /// Opens a store to look at it, with a time that a test owns and short eras of keys, of which it sees many.
    pub fn look_with_clock(path: &Path, clock: TestClock) -> Answer<Self> {
        Self::start(path, Durability::Process, Some(clock), (&Self::schema(), SMALL), None)
    }

    /// Opens a store whose time a test owns, and whose eras of keys are as short.
    pub fn open_with_clock(path: &Path, clock: TestClock) -> Answer<Self> {
        let (schema, lock) = (Self::schema(), Some(open::own(path)?));
        Self::start(path, Durability::Process, Some(clock), (&schema, SMALL), lock)
    }

    /// Opens a store whose keys begin a new era every few jobs and whose log is copied while it is short, so that a test
    /// sees many eras and many copies.
    pub fn open_in_short_eras(path: &Path, durability: Durability) -> Answer<Self> {
        let (schema, lock) = (Self::schema(), Some(open::own(path)?));
        Self::start(path, durability, None, (&schema, SMALL), lock)
    }

    /// Opens a store as a binary that knows this schema would.
    pub fn open_as(
        path: &Path,
        durability: Durability,
        clock: Option<TestClock>,
        schema: &Schema,
    ) -> Answer<Self> {
        Self::start(path, durability, clock, (schema, USUAL), Some(open::own(path)?))
    }

    /// Rows written and transactions committed since it was opened, as SQLite counts them: what triggers
    /// write is counted too.
    pub async fn written(&self) -> Answer<(u64, u64)> {
        let rows = self.writer.run(|tx| Ok(tx.connection.total_changes())).await?;
        Ok((rows, self.writer.commits()))
    }

    /// The schema that this binary knows.
    pub fn schema() -> Schema {
        open::schema()
    }

    fn start(
        path: &Path,
        durability: Durability,
        clock: Option<TestClock>,
        (schema, sizes): (&Schema, Sizes),
        lock: Option<File>,
    ) -> Answer<Self> {
        let (mut connection, since) = open::open(path, durability, schema)?;
        checkpoints::keep(&mut connection, path, durability, sizes.log_pages)
            .map_err(|error| failed(&error))?;
        let clock = clock.map_or(since, clock::Clock::Test);
        let log = log::Log::start(open::unsynced(&connection, durability)?);
        let readers = readers::Readers::of(path, clock.clone(), log.durable());
        let eras = eras::Eras::of(sizes.era_keys);
        let writer = writer::Writer::start(connection, clock, eras, log)?;
        Ok(Self { writer, readers, lock, version: schema.version() })
    }
}

impl Store for SqliteStore {
    type Work = SqliteWork;

    fn is_exclusive(&self) -> bool {
        self.lock.is_some()
    }

    async fn listen(&self, hint: Hint) -> StoreError {
        if self.readers.is_tested() {
            // Whoever owns the time moves it without telling.
            return std::future::pending().await;
        }
        let mut known = None;
        loop {
            match self.writer.run(engines::foreign_writes).await {
                Ok(found) if found == known => {}
                Ok(found) => {
                    known = found;
                    hint();
                }
                Err(error) => return error,
            }
            tokio::time::sleep(FOREIGN).await;
        }
    }

    async fn join(&self, name: &str) -> Answer<EngineNo> {
        let name = name.to_owned();
        self.writer.run(move |tx| engines::join(tx, &name)).await
    }

    async fn beat(&self, engine: EngineNo, silent_ms: Option<Millis>) -> Answer<Signs> {
        let version = self.version;
        self.writer.run(move |tx| engines::beat(tx, engine, silent_ms, version)).await
    }

    async fn take_over(&self, dead: EngineNo, heir: EngineNo) -> Answer<Vec<Held>> {
        let mut passed_on = Vec::new();
        loop {
            let slice = self.writer.run(move |tx| engines::take_over(tx, dead, heir)).await?;
            passed_on.extend(slice.0);
            if slice.1 < TAKEN {
                return Ok(passed_on);
            }
        }
    }

    async fn due(&self, engine: EngineNo, limit: u32) -> Answer<Due> {
        self.writer.run(move |tx| engines::due(tx, engine, limit)).await
    }

    async fn put_protocol(&self, protocol_id: &str, definition: &str) -> Answer<()> {
        let (id, definition) = (protocol_id.to_owned(), definition.to_owned());
        self.writer.run(move |tx| submit::put_protocol(tx, &id, &definition)).await
    }

    async fn protocol(&self, protocol_id: &str) -> Answer<Option<String>> {
        let id = protocol_id.to_owned();
        self.writer.run(move |tx| submit::protocol(tx, &id)).await
    }

    async fn protocols(&self) -> Answer<Vec<String>> {
        self.readers.run(submit::protocols).await
    }

    async fn now(&self) -> Answer<Millis> {
        Ok(self.readers.now().cast_unsigned())
    }

    async fn leave(&self, engine: EngineNo) -> Answer<()> {
        self.writer.run(move |tx| engines::leave(tx, engine)).await
    }

    async fn submit(
        &self,
        engine: EngineNo,
        jobs: Vec<NewJob>,
    ) -> Answer<Vec<Result<Submitted, Refusal>>> {
        self.writer.run(move |tx| submit::submit(tx, engine, &jobs)).await
    }

    async fn submit_and_dispatch(
        &self,
        engine: EngineNo,
        beginnings: Vec<Beginning>,
    ) -> Answer<Vec<Begun>> {
        let (jobs, writes): (Vec<_>, Vec<_>) = beginnings.into_iter().unzip();
        let second = move |tx: &writer::Tx<'_>, submitted: &Vec<_>| {
            let seconds = Seconds::of_created(submitted, &writes);
            Ok(seconds.spread(legs::dispatch(tx, engine, &seconds.writes)?))
        };
        let first = move |tx: &writer::Tx<'_>| submit::submit(tx, engine, &jobs);
        let (submitted, dispatched) = self.writer.run_both(first, second).await?;
        Ok(submitted.into_iter().zip(dispatched).collect())
    }

    async fn claim(&self, engine: EngineNo, wishes: Vec<Wish>) -> Answer<Vec<Held>> {
        self.writer.run(move |tx| legs::claim(tx, engine, &wishes)).await
    }

    async fn dispatch(
        &self,
        engine: EngineNo,
        writes: Vec<DispatchWrite>,
    ) -> Answer<Vec<DispatchOutcome>> {
        self.writer.run(move |tx| legs::dispatch(tx, engine, &writes)).await
    }

    async fn claimed(&self, claim_ids: Vec<String>) -> Answer<Vec<(String, Held)>> {
        self.writer.run(move |tx| worker::claimed(tx, &claim_ids)).await
    }

    async fn find(&self, places: Vec<StepPlace>) -> Answer<Vec<Option<Held>>> {
        self.writer.run(move |tx| worker::find(tx, &places)).await
    }

    async fn renew(&self, engine: EngineNo, writes: Vec<RenewWrite>) -> Answer<Vec<RenewOutcome>> {
        self.writer.run(move |tx| worker::renew(tx, engine, &writes)).await
    }

    async fn record_stale(&self, engine: EngineNo, callbacks: Vec<StaleCallback>) -> Answer<()> {
        self.writer.run(move |tx| worker::record_stale(tx, engine, &callbacks)).await
    }

    async fn release(&self, engine: EngineNo, activations: Vec<(AttemptKey, u64)>) -> Answer<()> {
        self.writer.run(move |tx| worker::release(tx, engine, &activations)).await
    }

    async fn unpublished(
        &self,
        engine: EngineNo,
        services: Vec<String>,
        limit: u32,
    ) -> Answer<Vec<Held>> {
        self.writer.run(move |tx| worker::unpublished(tx, engine, &services, limit)).await
    }

    async fn held_by(&self, engine: EngineNo) -> Answer<Vec<Held>> {
        self.writer.run(move |tx| worker::held_by(tx, engine)).await
    }

    async fn end(&self, engine: EngineNo, writes: Vec<EndWrite>) -> Answer<Vec<EndOutcome>> {
        self.writer.run(move |tx| legs::end(tx, engine, &writes)).await
    }

    async fn end_and_finish(
        &self,
        engine: EngineNo,
        messages: Vec<(EndWrite, FinishWrite)>,
    ) -> Answer<Vec<Over>> {
        let (ends, finishes): (Vec<_>, Vec<_>) = messages.into_iter().unzip();
        let second = move |tx: &writer::Tx<'_>, ended: &Vec<EndOutcome>| {
            let seconds = Seconds::of_entered(ended, &finishes);
            Ok(seconds.spread(finish::finish(tx, engine, &seconds.writes)?))
        };
        let first = move |tx: &writer::Tx<'_>| legs::end(tx, engine, &ends);
        let (ended, outcomes) = self.writer.run_both(first, second).await?;
        Ok(ended.into_iter().zip(outcomes).collect())
    }

    async fn end_with(
        &self,
        engine: EngineNo,
        write: EndWrite,
        work: SqliteWork,
        limit: Duration,
    ) -> Answer<Worked> {
        let keeps = |worked: &Worked| !matches!(worked, Worked::Failed(_));
        let call = move |tx: &writer::Tx<'_>| work::end_with(tx, engine, &write, (&work, limit));
        self.writer.work(call, keeps).await
    }

    async fn commit_batch_with(
        &self,
        engine: EngineNo,
        write: BatchWrite,
        work: SqliteWork,
        limit: Duration,
    ) -> Answer<BatchWorked> {
        let keeps = |worked: &BatchWorked| !matches!(worked, BatchWorked::Failed(_));
        let call =
            move |tx: &writer::Tx<'_>| batch::commit_with(tx, engine, &write, (&work, limit));
        self.writer.work(call, keeps).await
    }

    async fn pulse(&self, engine: EngineNo, pulses: Vec<Pulse>) -> Answer<()> {
        self.writer.run(move |tx| legs::pulse(tx, engine, &pulses)).await
    }

    async fn children(&self, job_id: JobId, place: Option<Place>) -> Answer<Vec<JobId>> {
        self.readers.run(move |tx| children::open(tx, job_id, place)).await
    }

    async fn cancelling(&self, jobs: Vec<JobId>) -> Answer<Vec<JobId>> {
        self.readers.run(move |tx| legs::cancelling(tx, jobs)).await
    }

    async fn finish(
        &self,
        engine: EngineNo,
        writes: Vec<FinishWrite>,
    ) -> Answer<Vec<FinishOutcome>> {
        self.writer.run(move |tx| finish::finish(tx, engine, &writes)).await
    }

    async fn amend<T: Send + 'static>(
        &self,
        engine: EngineNo,
        job_id: JobId,
        place: Option<Place>,
        mut decide: Decide<T>,
    ) -> Answer<Option<Result<T, Refusal>>> {
        self.writer.run(move |tx| amend::amend(tx, engine, (job_id, place), &mut decide)).await
    }

    async fn ends(&self, places: Vec<(JobId, Place)>) -> Answer<Vec<Option<Ended>>> {
        self.readers.run(move |tx| read::ends(tx, &places)).await
    }

    async fn inbox_waiting(&self, limit: u32, max_bytes: usize) -> Answer<Vec<Waiting>> {
        self.readers.run(move |tx| inbox::waiting(tx, limit, max_bytes)).await
    }

    async fn take_in(&self, engine: EngineNo, entries: Vec<TakeIn>) -> Answer<usize> {
        self.writer.run(move |tx| inbox::take_in(tx, engine, &entries)).await
    }

    async fn inbox(&self, filter: InboxFilter) -> Answer<Vec<InboxView>> {
        self.readers.run(move |tx| inbox::list(tx, &filter)).await
    }

    async fn job(&self, job_id: JobId) -> Answer<Option<JobView>> {
        self.readers.run(move |tx| read::job(tx, job_id)).await
    }

    async fn attempts_by(&self, job_id: JobId, filter: AttemptFilter) -> Answer<Vec<AttemptView>> {
        self.readers.run(move |tx| read::attempts_by(tx, job_id, &filter)).await
    }

    async fn events_after(&self, job_id: JobId, n: u64, limit: u32) -> Answer<Vec<EventView>> {
        self.readers.run(move |tx| read::events_after(tx, job_id, n, limit)).await
    }

    async fn feed(&self, after: Cursor, limit: u32) -> Answer<Vec<FeedEvent>> {
        self.readers.run(move |tx| feed::feed(tx, after, limit)).await
    }

    async fn jobs(&self, filter: JobFilter) -> Answer<Vec<JobView>> {
        self.readers.run(move |tx| read::jobs(tx, &filter)).await
    }

    async fn open_jobs(&self) -> Answer<u64> {
        self.readers.run(read::count_open).await
    }

    async fn audit(&self) -> Answer<Vec<Check>> {
        self.readers.run(read::audit).await
    }
}

impl Gates for SqliteStore {
    async fn admit(&self, engine: EngineNo, gates: Vec<String>) -> Answer<usize> {
        self.writer.run(move |tx| gates::admit(tx, engine, &gates)).await
    }

    async fn lines(&self, after: Option<String>, limit: u32) -> Answer<Vec<String>> {
        self.readers.run(move |tx| gates::lines(tx, after.as_deref(), limit)).await
    }

    async fn gate(&self, gate: &str) -> Answer<GateView> {
        let gate = gate.to_owned();
        self.readers.run(move |tx| gates::gate(tx, &gate)).await
    }
}

impl Upkeep for SqliteStore {
    async fn pause(&self, service: &str) -> Answer<()> {
        let service = service.to_owned();
        self.writer.run(move |tx| upkeep::pause(tx, &service)).await
    }

    async fn resume(&self, service: &str) -> Answer<()> {
        let service = service.to_owned();
        self.writer.run(move |tx| upkeep::resume(tx, &service)).await
    }

    async fn serve(&self, engine: EngineNo, services: Vec<String>) -> Answer<()> {
        self.writer.run(move |tx| upkeep::serve(tx, engine, &services)).await
    }

    async fn services(&self) -> Answer<Vec<ServiceView>> {
        self.readers.run(upkeep::services).await
    }

    async fn limit_tenant(&self, tenant_id: &str, max_open: Option<u32>) -> Answer<()> {
        let tenant_id = tenant_id.to_owned();
        self.writer.run(move |tx| upkeep::limit_tenant(tx, &tenant_id, max_open)).await
    }

    async fn tenants(&self) -> Answer<Vec<TenantView>> {
        self.readers.run(upkeep::tenants).await
    }

    async fn claim_tasks(
        &self,
        engine: EngineNo,
        tasks: Vec<String>,
        max: u32,
        hold_ms: Millis,
    ) -> Answer<Vec<Task>> {
        self.writer.run(move |tx| upkeep::claim_tasks(tx, engine, (&tasks, max), hold_ms)).await
    }

    async fn settle_tasks(&self, engine: EngineNo, settled: Vec<(Task, Delivery)>) -> Answer<()> {
        self.writer.run(move |tx| upkeep::settle_tasks(tx, engine, &settled)).await
    }

    async fn undelivered(&self) -> Answer<u64> {
        self.readers.run(upkeep::undelivered).await
    }

    async fn tasks(&self, job_id: JobId) -> Answer<Vec<TaskView>> {
        self.readers.run(move |tx| upkeep::tasks(tx, job_id)).await
    }

    async fn retire(
        &self,
        engine: EngineNo,
        keep_ms: Millis,
        after: Option<JobId>,
        limit: u32,
    ) -> Answer<Retired> {
        self.writer.run(move |tx| upkeep::retire(tx, engine, keep_ms, (after, limit))).await
    }

    async fn forget(&self, engine: EngineNo, keep_ms: Millis, limit: u32) -> Answer<usize> {
        self.writer.run(move |tx| upkeep::forget(tx, engine, keep_ms, limit)).await
    }

    async fn backlog(&self, now: Millis, since: Millis) -> Answer<Backlog> {
        self.readers.run(move |tx| upkeep::backlog(tx, now, since)).await
    }

    async fn counts(&self) -> Answer<Counts> {
        self.readers.run(upkeep::counts).await
    }
}
