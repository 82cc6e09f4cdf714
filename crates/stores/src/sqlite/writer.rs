//! The writer: one thread, one connection, one transaction for all calls that have queued up.

use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

use rusqlite::{Connection, OptionalExtension, Params, Row};
use sprag_engine::crash::crash_point;
use sprag_engine::store::{Answer, StoreError};
use tokio::sync::oneshot;

use super::clock::Clock;
use super::rows::failed;

/// How many calls may wait; each is a slice, so this bounds memory, not throughput.
const QUEUE: usize = 1_024;
/// How many calls one transaction takes, so that the first of them does not wait for ever.
const GROUP: usize = 64;

/// What a call sees: the connection inside the transaction, and the time of that transaction.
pub(super) struct Tx<'a> {
    pub(super) connection: &'a Connection,
    pub(super) now: i64,
}

impl Tx<'_> {
    /// Runs a statement; says how many rows it wrote.
    pub(super) fn execute(&self, sql: &str, params: impl Params) -> Answer<usize> {
        let run = || self.connection.prepare_cached(sql)?.execute(params);
        run().map_err(|error| failed(&error))
    }

    /// Reads at most one row.
    pub(super) fn find<T>(
        &self,
        sql: &str,
        params: impl Params,
        read: impl FnOnce(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Answer<Option<T>> {
        let run = || self.connection.prepare_cached(sql)?.query_row(params, read).optional();
        run().map_err(|error| failed(&error))
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

/// A call in the queue: run once at most, answered once.
trait Call: Send {
    /// Runs it; says whether its writes are to be kept.
    fn run(&mut self, tx: &Tx<'_>) -> bool;
    /// Answers it, with its own result or with the failure of the transaction.
    fn answer(self: Box<Self>, failure: Option<&StoreError>);
}

struct Pending<T, F> {
    call: Option<F>,
    result: Option<Answer<T>>,
    reply: oneshot::Sender<Answer<T>>,
}

impl<T: Send, F: FnOnce(&Tx<'_>) -> Answer<T> + Send> Call for Pending<T, F> {
    fn run(&mut self, tx: &Tx<'_>) -> bool {
        let call = self.call.take().expect("a call runs once");
        let result = call(tx);
        let keep = result.is_ok();
        self.result = Some(result);
        keep
    }

    fn answer(self: Box<Self>, failure: Option<&StoreError>) {
        let result = match (failure, self.result) {
            (None, Some(result)) => result,
            (Some(failure), _) => Err(StoreError::Unavailable(failure.to_string())),
            (None, None) => Err(StoreError::Unavailable("the call did not run".to_owned())),
        };
        // A caller that has gone away needs no answer.
        let _ = self.reply.send(result);
    }
}

pub(super) struct Writer {
    calls: Option<SyncSender<Box<dyn Call>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(super) fn start(connection: Connection, clock: Clock) -> Self {
        let (calls, queue) = sync_channel(QUEUE);
        let thread = std::thread::Builder::new()
            .name("sprag-sqlite".into())
            .spawn(move || write(&connection, &clock, &queue))
            .expect("a thread can be started");
        Self { calls: Some(calls), thread: Some(thread) }
    }

    /// Runs a call in the writer's next transaction and answers when that is durable.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce(&Tx<'_>) -> Answer<T> + Send + 'static,
    ) -> Answer<T> {
        let (reply, answer) = oneshot::channel();
        let call = Box::new(Pending { call: Some(call), result: None, reply });
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

fn write(connection: &Connection, clock: &Clock, queue: &Receiver<Box<dyn Call>>) {
    while let Ok(first) = queue.recv() {
        let mut group = vec![first];
        while group.len() < GROUP {
            match queue.try_recv() {
                Ok(call) => group.push(call),
                Err(_) => break,
            }
        }
        transaction(connection, clock, group);
    }
}

fn transaction(connection: &Connection, clock: &Clock, mut group: Vec<Box<dyn Call>>) {
    crash_point("sqlite.before_begin");
    let outcome = connection.execute_batch("BEGIN IMMEDIATE").and_then(|()| {
        let tx = Tx { connection, now: clock.now() };
        for call in &mut group {
            savepoint(&tx, call.as_mut())?;
            crash_point("sqlite.between_calls");
        }
        crash_point("sqlite.before_commit");
        connection.execute_batch("COMMIT")
    });
    if outcome.is_err() && !connection.is_autocommit() {
        // If even this fails the connection is gone, and so is the transaction.
        let _ = connection.execute_batch("ROLLBACK");
    }
    crash_point("sqlite.after_commit");
    let failure = outcome.err().map(|error| failed(&error));
    for call in group {
        call.answer(failure.as_ref());
        crash_point("sqlite.after_answer");
    }
}

/// Runs one call so that its failure takes nothing else with it.
fn savepoint(tx: &Tx<'_>, call: &mut dyn Call) -> rusqlite::Result<()> {
    let run = |sql| tx.connection.prepare_cached(sql)?.execute([]);
    run("SAVEPOINT call")?;
    if !call.run(tx) {
        run("ROLLBACK TO call")?;
    }
    run("RELEASE call")?;
    Ok(())
}
