//! The writer: one thread, one connection, one transaction for all calls that have queued up. What it has committed
//! [`Log`] brings to disk and answers.
//!
//! A call's failure takes nothing else with it. Failures are rare and savepoints are dear (under one, SQLite
//! walks all pages it has kept at the end of every statement), so a group first runs without them; if a call
//! fails, all is rolled back and the group runs again, each call under a savepoint. A group with a user's work
//! in it runs under savepoints at once: such work is not run twice.
//!
//! Two things of a user's work take the whole transaction along, because SQLite has it so: a write that is
//! ended because it took too long, and a deferred constraint that the COMMIT finds broken. The other calls of
//! that group are then answered as if the store had been away, and are made again; after a COMMIT that was
//! refused the writer runs each call alone for a while, so that only the culprit is refused the next time.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rusqlite::{Connection, OptionalExtension, Params, Row, Statement};
use sprag_engine::crash::crash_point;
use sprag_engine::store::{Answer, StoreError};
use tokio::sync::oneshot;

use super::clock::Clock;
use super::eras::Eras;
use super::log::{Answering, Log};
use super::pair::Pair;
use super::positions::Positions;
use super::rows::failed;
use super::statements::{Prepared, Statements};
use super::tally::Tally;

/// How many calls may wait; each is a slice, so this bounds memory, not throughput.
const QUEUE: usize = 1_024;
/// How many calls one transaction takes, so that the first of them does not wait for ever.
const GROUP: usize = 64;

/// How many transactions have one call each, after a group could not be committed for what is in it.
const ALONE: usize = GROUP;
/// How many instructions SQLite runs between two looks at the time limit.
const LOOK: i32 = 1_000;

/// What a call sees: the connection inside the transaction, and the time of that transaction.
pub(super) struct Tx<'a> {
    pub(super) connection: &'a Connection,
    pub(super) now: i64,
    pub(super) tally: Tally,
    pub(super) positions: Positions,
    prepared: &'a dyn Prepared,
    eras: Option<&'a Eras>,
    limit: Option<&'a Limit>,
}

impl<'a> Tx<'a> {
    /// What a call sees that only reads.
    pub(super) fn reading(connection: &'a Connection, now: i64) -> Self {
        let (tally, positions) = (Tally::default(), Positions::default());
        let (eras, limit) = (None, None);
        Self { connection, now, tally, positions, prepared: connection, eras, limit }
    }
}

/// The time until which statements may run, if there is a limit. SQLite looks at it as it goes.
#[derive(Default)]
pub(super) struct Limit(Mutex<Option<Instant>>);

impl Limit {
    fn set(&self, until: Option<Instant>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = until;
    }

    fn is_over(&self) -> bool {
        let until = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        until.is_some_and(|until| Instant::now() >= until)
    }
}

impl Tx<'_> {
    /// What is known of the eras of keys.
    pub(super) fn eras(&self) -> &Eras {
        self.eras.expect("the writer adds and deletes keys, nobody else")
    }

    /// Runs something whose statements are ended after `limit`. Says whether it took longer, too.
    pub(super) fn limited<T>(&self, limit: Duration, run: impl FnOnce() -> T) -> (T, bool) {
        let until = Instant::now() + limit;
        let set = |until| self.limit.iter().for_each(|limit| limit.set(until));
        set(Some(until));
        let result = run();
        set(None);
        (result, Instant::now() >= until)
    }

    /// Runs a statement; says how many rows it wrote.
    pub(super) fn execute(&self, sql: &'static str, params: impl Params) -> Answer<usize> {
        let written = self.with(sql, |statement| statement.execute(params));
        crash_point("sqlite.after_execute");
        written.map_err(|error| failed(&error))
    }

    /// Reads at most one row.
    pub(super) fn find<T>(
        &self,
        sql: &'static str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Option<T>> {
        let found = self.with(sql, |statement| statement.query_row(params, read).optional());
        found.map_err(|error| failed(&error))
    }

    /// Runs something once on the statement of this text.
    fn with<T>(
        &self,
        sql: &'static str,
        run: impl FnOnce(&mut Statement<'_>) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let (mut run, mut result) = (Some(run), None);
        self.prepared.lend(sql, &mut |statement| {
            result = run.take().map(|run| run(statement));
        })?;
        result.expect("a statement is lent once")
    }

    /// Reads all rows.
    pub(super) fn all<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl Fn(&Row<'_>) -> Answer<T>,
    ) -> Answer<Vec<T>> {
        let mut statement = self.connection.prepare_cached(sql).map_err(|error| failed(&error))?;
        let mut rows = statement.query(params).map_err(|error| failed(&error))?;
        let mut all = Vec::new();
        while let Some(row) = rows.next().map_err(|error| failed(&error))? {
            all.push(read(row)?);
        }
        Ok(all)
    }
}

/// A call in the queue: answered once, from its last run.
pub(super) trait Call: Send {
    /// Whether it runs at most once.
    fn is_work(&self) -> bool;
    /// Runs it; says whether its writes are to be kept.
    fn run(&mut self, tx: &Tx<'_>) -> bool;
    /// Whether it has a second part, which runs in the next transaction, now that this one is committed.
    fn goes_on(&mut self) -> bool;
    /// Answers it, with its own result or with the failure of the transaction.
    fn answer(self: Box<Self>, failure: Option<&StoreError>);
}

struct Pending<T, F> {
    call: F,
    result: Option<Answer<T>>,
    /// For a user's work: whether what it has written is part of its answer.
    keeps: Option<fn(&T) -> bool>,
    /// Whether the call itself has ended the transaction: a user's work can do that.
    has_ended_it: bool,
    reply: oneshot::Sender<Answer<T>>,
}

impl<T: Send, F: FnMut(&Tx<'_>) -> Answer<T> + Send> Call for Pending<T, F> {
    fn is_work(&self) -> bool {
        self.keeps.is_some()
    }

    fn goes_on(&mut self) -> bool {
        false
    }

    fn run(&mut self, tx: &Tx<'_>) -> bool {
        let result = caught(|| (self.call)(tx));
        let keep = result.as_ref().is_ok_and(|value| self.keeps.is_none_or(|keeps| keeps(value)));
        self.has_ended_it = tx.connection.is_autocommit();
        self.result = Some(result);
        keep
    }

    fn answer(self: Box<Self>, failure: Option<&StoreError>) {
        let result = match (failure, self.result) {
            (None, Some(result)) => result,
            // It knew that when it answered, and would do the same again.
            (Some(_), Some(result)) if self.has_ended_it => result,
            (Some(failure), _) => Err(failed_with(failure)),
            (None, None) => Err(StoreError::Unavailable("the call did not run".to_owned())),
        };
        // A caller that has gone away needs no answer.
        let _ = self.reply.send(result);
    }
}

/// Runs a part of a call. A panic is a fault of this one call: the writer, and with it the store, lives on.
pub(super) fn caught<T>(run: impl FnOnce() -> Answer<T>) -> Answer<T> {
    let panicked = |_| Err(StoreError::Poison("a call to the store has panicked".to_owned()));
    catch_unwind(AssertUnwindSafe(run)).unwrap_or_else(panicked)
}

/// What a call is told whose transaction has failed.
pub(super) fn failed_with(failure: &StoreError) -> StoreError {
    match failure {
        StoreError::Poison(reason) => StoreError::Poison(reason.clone()),
        failure => StoreError::Unavailable(failure.to_string()),
    }
}

pub(super) struct Writer {
    commits: Arc<AtomicU64>,
    calls: Option<SyncSender<Box<dyn Call>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(
        connection: Connection,
        clock: Clock,
        eras: Eras,
        log: Log,
    ) -> Result<Self, StoreError> {
        let (calls, queue) = sync_channel(QUEUE);
        let limit = Arc::new(Limit::default());
        let looked_at = limit.clone();
        let commits = Arc::<AtomicU64>::default();
        let counted = commits.clone();
        let mut connection = connection;
        connection
            .progress_handler(LOOK, Some(move || looked_at.is_over()))
            .map_err(|error| failed(&error))?;
        let thread = std::thread::Builder::new()
            .name("sprag-sqlite".into())
            .spawn(move || {
                let prepared = Statements::of(&connection);
                let (connection, prepared) = (&connection, &prepared);
                let (clock, eras, limit, log) = (&clock, &eras, &*limit, &log);
                let disk = Disk { connection, prepared, clock, eras, limit, log };
                write(&disk, &counted, &queue);
            })
            .expect("a thread can be started");
        Ok(Self { commits, calls: Some(calls), thread: Some(thread) })
    }

    /// How many transactions it has committed.
    pub(super) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Relaxed)
    }

    /// Runs a call in the writer's next transaction and answers when that is durable. It may run twice: what it
    /// wrote the first time is rolled back then.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        call: impl FnMut(&Tx<'_>) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        self.queue(call, None).await
    }

    /// The same, for a call with a user's work in it: it runs once, and may answer and still have nothing of its
    /// writes kept.
    pub(super) async fn work<T: Send + 'static>(
        &self,
        call: impl FnMut(&Tx<'_>) -> Answer<T> + Send + 'static,
        keeps: fn(&T) -> bool,
    ) -> Answer<T> {
        self.queue(call, Some(keeps)).await
    }

    async fn queue<T: Send + 'static>(
        &self,
        call: impl FnMut(&Tx<'_>) -> Answer<T> + Send + 'static,
        keeps: Option<fn(&T) -> bool>,
    ) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        self.send(
            Box::new(Pending { call, result: None, keeps, has_ended_it: false, reply }),
            answer,
        )
        .await
    }

    /// Runs a call in two parts, each in a transaction of its own, the second one next after the first. It answers when
    /// both are durable. If the first fails, there is no second.
    pub(super) async fn run_both<A: Send + 'static, B: Send + 'static>(
        &self,
        first: impl FnMut(&Tx<'_>) -> Answer<A> + Send + 'static,
        second: impl FnMut(&Tx<'_>, &A) -> Answer<B> + Send + 'static,
    ) -> Answer<(A, B)> {
        let (reply, answer) = oneshot::channel();
        self.send(Box::new(Pair::new(first, second, reply)), answer).await
    }

    async fn send<T>(
        &self,
        call: Box<dyn Call>,
        answer: oneshot::Receiver<Answer<T>>,
    ) -> Answer<T> {
        let stopped = || StoreError::Unavailable("the store is closed".to_owned());
        self.calls.as_ref().ok_or_else(stopped)?.send(call).map_err(|_| stopped())?;
        answer.await.map_err(|_| stopped())?
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.calls = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What a transaction is made on.
struct Disk<'a> {
    connection: &'a Connection,
    prepared: &'a dyn Prepared,
    clock: &'a Clock,
    eras: &'a Eras,
    limit: &'a Limit,
    log: &'a Log,
}

fn write(disk: &Disk<'_>, commits: &AtomicU64, queue: &Receiver<Box<dyn Call>>) {
    let mut alone = 0;
    let mut next = queue.recv().ok();
    let mut group: Vec<Box<dyn Call>> = Vec::new();
    while next.is_some() || !group.is_empty() {
        let most = if alone > 0 { 1 } else { GROUP };
        alone -= usize::from(alone > 0);
        let goes_on = !group.is_empty();
        while group.len() < most {
            match next.take().or_else(|| queue.try_recv().ok()) {
                // Whoever reads waits for what goes on to be durable, and should not for somebody's work.
                Some(work) if goes_on && work.is_work() => {
                    next = Some(work);
                    break;
                }
                Some(call) => group.push(call),
                None => break,
            }
        }
        let over = transaction(disk, group);
        match over.ended {
            Ended::Committed => {
                commits.fetch_add(1, Ordering::Relaxed);
            }
            Ended::Away => {}
            Ended::Refused => alone = ALONE,
        }
        // Those that go on are the first of the next one.
        group = over.going_on;
        next = next.or_else(|| queue.try_recv().ok());
        match over.answering {
            Some(answering) if next.is_some() || !group.is_empty() => {
                disk.log.answer_later(answering);
            }
            Some(answering) => disk.log.answer(answering),
            None => {}
        }
        if next.is_none() && group.is_empty() {
            next = queue.recv().ok();
        }
    }
}

/// A transaction that is over.
struct Transacted {
    /// Those that are to be answered when it is durable, if there are any.
    answering: Option<Answering>,
    /// Those that have more to do.
    going_on: Vec<Box<dyn Call>>,
    ended: Ended,
}

/// How a transaction ended, for the next one.
enum Ended {
    Committed,
    /// The store was away, or a call alone could not be committed.
    Away,
    /// What one of several calls has written cannot be committed.
    Refused,
}

/// Runs a group in one transaction.
fn transaction(disk: &Disk<'_>, mut group: Vec<Box<dyn Call>>) -> Transacted {
    let failure = match disk.log.failure() {
        None => commit(disk, &mut group).err().map(|error| failed(&error)),
        lost => lost,
    };
    crash_point("sqlite.after_commit");
    let (failure, ended) = match failure {
        Some(StoreError::Poison(reason)) if group.len() > 1 => {
            (Some(StoreError::Unavailable(reason)), Ended::Refused)
        }
        None => (None, Ended::Committed),
        failure => (failure, Ended::Away),
    };
    let (mut going_on, mut over) = (Vec::new(), Vec::new());
    for mut call in group {
        let goes_on = failure.is_none() && call.goes_on();
        if goes_on { going_on.push(call) } else { over.push(call) }
    }
    let has_over = !over.is_empty();
    let answering = move |lost: Option<&StoreError>| {
        for call in over {
            call.answer(failure.as_ref().or(lost));
            crash_point("sqlite.after_answer");
        }
    };
    Transacted {
        answering: has_over.then(|| -> Answering { Box::new(answering) }),
        going_on,
        ended,
    }
}

/// Runs a group and commits it, without savepoints if that goes well.
fn commit(disk: &Disk<'_>, group: &mut [Box<dyn Call>]) -> rusqlite::Result<()> {
    let has_work = group.iter().any(|call| call.is_work());
    let all = |tx: &Tx<'_>| Ok(group.iter_mut().all(|call| bare(tx, call.as_mut())));
    if !has_work && began(disk, has_work, all)? {
        return Ok(());
    }
    let guard = |tx: &Tx<'_>| {
        for call in group {
            savepoint(tx, call.as_mut())?;
            crash_point("sqlite.between_calls");
        }
        Ok(true)
    };
    began(disk, has_work, guard).map(|_| ())
}

/// Begins a transaction, and commits it if `run` says that what it wrote is to be kept; says so, too.
fn began(
    Disk { connection, prepared, clock, eras, limit, log }: &Disk<'_>,
    has_work: bool,
    run: impl FnOnce(&Tx<'_>) -> rusqlite::Result<bool>,
) -> rusqlite::Result<bool> {
    crash_point("sqlite.before_begin");
    let before = connection.total_changes();
    let outcome = connection.execute_batch("BEGIN IMMEDIATE").and_then(|()| {
        let now = clock.now();
        let (tally, positions) = (Tally::default(), Positions::default());
        let (eras, limit) = (Some(*eras), Some(*limit));
        let tx = Tx { connection, now, tally, positions, prepared: *prepared, eras, limit };
        let is_kept = run(&tx)?;
        if is_kept {
            tx.tally.write(connection)?;
            crash_point("sqlite.before_commit");
            // What a user's work has changed need not be rows.
            if has_work || connection.total_changes() > before {
                log.commits();
            }
            sprag_wal::in_long_pieces(|| connection.execute_batch("COMMIT"))?;
        }
        Ok(is_kept)
    });
    if !connection.is_autocommit() {
        // If even this fails the connection is gone, and so is the transaction.
        let _ = connection.execute_batch("ROLLBACK");
    }
    match outcome {
        Ok(true) => eras.committed(),
        Ok(false) | Err(_) => eras.rolled_back(),
    }
    outcome
}

/// Runs one call of a group in which none has failed yet.
fn bare(tx: &Tx<'_>, call: &mut dyn Call) -> bool {
    let is_kept = call.run(tx);
    crash_point("sqlite.between_calls");
    is_kept
}

/// Runs one call so that its failure takes nothing else with it. What it counted is written with it: a user's
/// work behind it may end the transaction.
fn savepoint(tx: &Tx<'_>, call: &mut dyn Call) -> rusqlite::Result<()> {
    let run = |sql| tx.connection.prepare_cached(sql)?.execute([]);
    run("SAVEPOINT call")?;
    if call.run(tx) {
        tx.tally.write(tx.connection)?;
    } else {
        tx.tally.forget();
        tx.eras().rolled_back();
        run("ROLLBACK TO call")?;
    }
    run("RELEASE call")?;
    Ok(())
}
