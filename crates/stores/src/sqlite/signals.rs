//! Signals: kept, given to waits, read. The writer's transaction is the job's lock.

use rusqlite::{Row, params};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place};
use sprag_engine::signals::{
    Decision, Signal, SignalView, Signalled, Signals, WaitOutcome, WaitWrite,
};
use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::decide::signal::{self, JobNow, Receive, Wait, Waiting};
use sprag_kernel::keys::Hash;
use sprag_kernel::{JobState, Refusal};

use super::SqliteStore;
use super::engines::expect_alive;
use super::rows::{failed, key, state};
use super::writer::Tx;
use crate::AGEING_MS;

impl Signals for SqliteStore {
    async fn signal(
        &self,
        engine: EngineNo,
        job_id: JobId,
        signal: Signal,
    ) -> Answer<Option<Result<Signalled, Refusal>>> {
        self.writer.run(move |tx| receive(tx, engine, job_id, &signal)).await
    }

    async fn wait(&self, engine: EngineNo, writes: Vec<WaitWrite>) -> Answer<Vec<WaitOutcome>> {
        self.writer.run(move |tx| wait(tx, engine, &writes)).await
    }

    async fn signals(&self, job_id: JobId) -> Answer<Vec<SignalView>> {
        self.readers.run(move |tx| signals(tx, job_id)).await
    }

    async fn signal_of(&self, job_id: JobId, place: Place) -> Answer<Option<SignalView>> {
        self.readers.run(move |tx| signal_of(tx, job_id, place)).await
    }
}

fn receive(
    tx: &Tx<'_>,
    engine: EngineNo,
    job_id: JobId,
    signal: &Signal,
) -> Answer<Option<Result<Signalled, Refusal>>> {
    expect_alive(tx, engine)?;
    let Some(job) = job_now(tx, job_id)? else { return Ok(None) };
    let known = known(tx, job_id, &signal.signal_id)?;
    let sql = "SELECT count(*) FROM signal WHERE job_id = ?1";
    let kept = tx.find(sql, [job_id.as_bytes()], |row| row.get(0))?.unwrap_or(0);
    let content = signal.content();
    let known_content = known.as_ref().map(|(content, _)| Hash::from_bytes(*content));
    match signal::receive(job, known_content, content, kept) {
        Err(refusal) => Ok(Some(Err(refusal))),
        Ok(Receive::Repeat) => {
            let taken_by = known.and_then(|(_, taken_by)| taken_by);
            Ok(Some(Ok(Signalled { created: false, taken_by })))
        }
        Ok(Receive::Keep) => {
            let taken_by = keep(tx, job_id, (signal, content), kept + 1)?;
            Ok(Some(Ok(Signalled { created: true, taken_by })))
        }
    }
}

type Known = ([u8; 32], Option<Place>);

fn known(tx: &Tx<'_>, job_id: JobId, signal_id: &str) -> Answer<Option<Known>> {
    let sql = "SELECT content, step_index, branch, turn FROM signal
        WHERE job_id = ?1 AND signal_id = ?2";
    tx.find(sql, params![job_id.as_bytes(), signal_id], |row| Ok((row.get(0)?, place(row, 1)?)))
}

/// Keeps it; the first wait that is parked for it can be claimed.
fn keep(
    tx: &Tx<'_>,
    job_id: JobId,
    (signal, content): (&Signal, Hash),
    n: u32,
) -> Answer<Option<Place>> {
    let sql = include_str!("../../sql/sqlite/parked_wait.sql");
    let parked = tx.all(sql, params![job_id.as_bytes(), signal.name], key)?.into_iter().next();
    let taken_by = parked.as_ref().map(AttemptKey::place);
    tx.execute(
        "INSERT INTO signal (job_id, n, signal_id, name, decision, content, payload, said_by,
            reason, received_at, step_index, branch, turn)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        params![
            job_id.as_bytes(),
            n,
            signal.signal_id,
            signal.name,
            signal.decision.code(),
            content.as_bytes(),
            signal.payload,
            signal.by,
            signal.reason,
            tx.now,
            taken_by.map(|place| place.step_index),
            taken_by.map(|place| place.branch.cast_signed()),
            taken_by.map(|place| place.turn),
        ],
    )?;
    crash_point("signal.after_insert");
    if let Some(key) = parked {
        tx.execute(
            "UPDATE attempt SET ready_at = ?6 - priority * ?7, timer_at = NULL,
                 version = version + 1, updated_at = ?6
             WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4
                 AND attempt_no = ?5",
            params![
                key.job_id.as_bytes(),
                key.step_index,
                key.branch.cast_signed(),
                key.turn,
                key.attempt_no,
                tx.now,
                AGEING_MS,
            ],
        )?;
        crash_point("signal.after_wake");
    }
    let position = tx.next_position()?;
    tx.execute(
        "INSERT INTO event (pos, job_id, before, n, at, changes, note)
         SELECT ?4, job_id, last_event, events + 1, ?2, 'signal ', ?3 FROM job WHERE job_id = ?1",
        params![job_id.as_bytes(), tx.now, signal.note(), position],
    )?;
    crash_point("signal.after_event");
    tx.execute(
        "UPDATE job SET version = version + 1, events = events + 1, last_event = ?3, updated_at = ?2
         WHERE job_id = ?1",
        params![job_id.as_bytes(), tx.now, position],
    )?;
    Ok(taken_by)
}

fn wait(tx: &Tx<'_>, engine: EngineNo, writes: &[WaitWrite]) -> Answer<Vec<WaitOutcome>> {
    expect_alive(tx, engine)?;
    writes.iter().map(|write| wait_one(tx, engine, write)).collect()
}

fn wait_one(tx: &Tx<'_>, engine: EngineNo, write: &WaitWrite) -> Answer<WaitOutcome> {
    let key = &write.key;
    let found: Option<Option<u64>> = tx.find(
        "SELECT waits_until FROM attempt
         WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5
             AND version = ?6 AND +owner = ?7 AND lease_id IS NULL AND ending IS NULL",
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            write.version,
            engine.0,
        ],
        |row| row.get(0),
    )?;
    let (Some(until), Some(job)) = (found, job_now(tx, key.job_id)?) else {
        return Ok(WaitOutcome::Gone);
    };
    let has_one = signal_of(tx, key.job_id, key.place())?.is_some();
    let free: Option<u32> = tx.find(
        "SELECT n FROM signal WHERE job_id = ?1 AND name = ?2 AND step_index IS NULL
         ORDER BY n LIMIT 1",
        params![key.job_id.as_bytes(), write.signal],
        |row| row.get(0),
    )?;
    let has_signal = has_one || free.is_some();
    let waiting = Waiting { has_signal, until, timeout: write.timeout_ms };
    match signal::wait(job, waiting, tx.now.cast_unsigned()) {
        Wait::Ending => Ok(WaitOutcome::Ending),
        Wait::TimedOut => Ok(WaitOutcome::Runs),
        Wait::Signalled => {
            if let Some(n) = free.filter(|_| !has_one) {
                take(tx, key, n)?;
            }
            Ok(WaitOutcome::Runs)
        }
        Wait::Park { until } => park(tx, write, until).map(|()| WaitOutcome::Parked),
    }
}

fn take(tx: &Tx<'_>, key: &AttemptKey, n: u32) -> Answer<()> {
    tx.execute(
        "UPDATE signal SET step_index = ?3, branch = ?4, turn = ?5 WHERE job_id = ?1 AND n = ?2",
        params![key.job_id.as_bytes(), n, key.step_index, key.branch.cast_signed(), key.turn],
    )?;
    crash_point("wait.after_take");
    Ok(())
}

fn park(tx: &Tx<'_>, write: &WaitWrite, until: Option<u64>) -> Answer<()> {
    let key = &write.key;
    tx.execute(
        "UPDATE attempt SET owner = NULL, waits_for = ?6, waits_until = ?7, timer_at = ?7,
             version = version + 1, updated_at = ?8
         WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn = ?4 AND attempt_no = ?5",
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            write.signal,
            until.map(|until| i64::try_from(until).unwrap_or(i64::MAX / 2)),
            tx.now,
        ],
    )?;
    crash_point("wait.after_park");
    Ok(())
}

fn job_now(tx: &Tx<'_>, job_id: JobId) -> Answer<Option<JobNow>> {
    let found: Option<(u8, bool)> = tx.find(
        "SELECT state, verdict IS NOT NULL FROM job WHERE job_id = ?1",
        [job_id.as_bytes()],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )?;
    found
        .map(|(code, has_verdict)| {
            state::<JobState>(code).map(|state| JobNow { state, has_verdict })
        })
        .transpose()
}

/// The columns of a [`SignalView`], in the order in which they are read.
const VIEW: &str = "signal_id, name, decision, payload, said_by, reason, received_at, step_index,
    branch, turn";

fn signals(tx: &Tx<'_>, job_id: JobId) -> Answer<Vec<SignalView>> {
    let sql = format!("SELECT {VIEW} FROM signal WHERE job_id = ?1 ORDER BY n");
    tx.all(&sql, [job_id.as_bytes()], view)
}

fn signal_of(tx: &Tx<'_>, job_id: JobId, place: Place) -> Answer<Option<SignalView>> {
    let sql = format!(
        "SELECT {VIEW} FROM signal WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3
             AND turn = ?4"
    );
    let branch = place.branch.cast_signed();
    let asked = params![job_id.as_bytes(), place.step_index, branch, place.turn];
    Ok(tx.all(&sql, asked, view)?.into_iter().next())
}

fn view(row: &Row<'_>) -> Answer<SignalView> {
    let read = || -> rusqlite::Result<(i16, SignalView)> {
        let signal = Signal {
            signal_id: row.get(0)?,
            name: row.get(1)?,
            decision: Decision::Approve,
            payload: row.get(3)?,
            by: row.get(4)?,
            reason: row.get(5)?,
        };
        let (received_at, taken_by) = (row.get(6)?, place(row, 7)?);
        Ok((row.get(2)?, SignalView { signal, received_at, taken_by }))
    };
    let (code, mut view) = read().map_err(|error| failed(&error))?;
    let unknown = || StoreError::Poison("a signal has a decision that does not exist".to_owned());
    view.signal.decision = Decision::from_code(code).ok_or_else(unknown)?;
    Ok(view)
}

/// The place in three columns, if there is one.
fn place(row: &Row<'_>, at: usize) -> rusqlite::Result<Option<Place>> {
    let step_index: Option<u32> = row.get(at)?;
    let Some(step_index) = step_index else { return Ok(None) };
    let branch = row.get::<_, i64>(at + 1)?.cast_unsigned();
    Ok(Some(Place { step_index, branch, turn: row.get(at + 2)? }))
}
