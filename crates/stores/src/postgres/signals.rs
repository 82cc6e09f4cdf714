//! Signals: kept, given to waits, read. Both a signal and a wait are decided under the job's lock. A wait has its
//! attempt locked before, as slices do it; a signal that finds its attempt locked lets go of the job and begins
//! again, so the two never wait for each other.

use std::collections::{HashMap, HashSet, VecDeque};

use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo, JobId, Place};
use sprag_engine::signals::{
    Decision, Signal, SignalView, Signalled, Signals, WaitOutcome, WaitWrite,
};
use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::Refusal;
use sprag_kernel::decide::signal::{self, JobNow, Receive, Wait, Waiting};
use sprag_kernel::keys::Hash;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::PostgresStore;
use super::failure::{Repeats, failed};
use super::hints::ring;
use super::legs::ordinal;
use super::pools::{Pools, begin, commit};
use super::rows::{get, key, state, time, unsigned, unsigned_long};
use super::slice::{Keys, column, signed, sorted, span};
use crate::AGEING_MS;

impl Signals for PostgresStore {
    async fn signal(
        &self,
        engine: EngineNo,
        job_id: JobId,
        signal: Signal,
    ) -> Answer<Option<Result<Signalled, Refusal>>> {
        receive(&self.pools, engine, job_id, &signal).await
    }

    async fn wait(&self, engine: EngineNo, writes: Vec<WaitWrite>) -> Answer<Vec<WaitOutcome>> {
        wait(&self.pools, engine, &writes).await
    }

    async fn signals(&self, job_id: JobId) -> Answer<Vec<SignalView>> {
        let sql = format!("SELECT {VIEW} FROM sprag.signal WHERE job_id = $1 ORDER BY n");
        let rows = self.pools.read(&sql, &[&job_id.uuid()]).await?;
        rows.iter().map(view).collect()
    }

    async fn signal_of(&self, job_id: JobId, at: Place) -> Answer<Option<SignalView>> {
        let sql = format!(
            "SELECT {VIEW} FROM sprag.signal WHERE job_id = $1 AND step_index = $2 AND branch = $3
                 AND turn = $4"
        );
        let (step, branch, turn) = columns(at);
        let rows = self.pools.run(&sql, &[&job_id.uuid(), &step, &branch, &turn]).await?;
        rows.first().map(view).transpose()
    }
}

/// Whether the engine may write, and the store's time. Locked first, as a takeover does it.
async fn alive(tx: &Transaction<'_>, pools: &Pools, engine: EngineNo) -> Answer<i64> {
    let sql = "SELECT sprag.now_ms($2) FROM sprag.engine WHERE engine_no = $1 AND dead = 0
        FOR KEY SHARE";
    let found = tx.query_opt(sql, &[&engine.0, &pools.test_now()]).await;
    let found = found.map_err(|error| failed(&error))?.ok_or(StoreError::Fenced)?;
    get(&found, 0)
}

async fn receive(
    pools: &Pools,
    engine: EngineNo,
    job_id: JobId,
    signal: &Signal,
) -> Answer<Received> {
    let mut client = pools.engine().await?;
    let mut repeats = Repeats::default();
    let received = loop {
        let tx = begin(&mut client).await?;
        match receive_in(&tx, pools, (engine, job_id), signal).await? {
            Ok(received) => {
                if let Some(Ok(Signalled { created: true, .. })) = received {
                    commit(tx).await.map_err(|error| failed(&error))?;
                }
                break received;
            }
            Err(error) if repeats.again(&error) => {
                drop(tx);
                repeats.pause().await;
            }
            Err(error) => return Err(failed(&error)),
        }
    };
    drop(client);
    if let Some(Ok(Signalled { created: true, taken_by: Some(_) })) = received {
        ring(pools).await;
    }
    Ok(received)
}

type Received = Option<Result<Signalled, Refusal>>;

/// One try; a signal that is new is to be committed. The inner error is that of giving the signal to its wait, which may be tried again.
async fn receive_in(
    tx: &Transaction<'_>,
    pools: &Pools,
    (engine, job_id): (EngineNo, JobId),
    signal: &Signal,
) -> Answer<Result<Received, tokio_postgres::Error>> {
    let now = alive(tx, pools, engine).await?;
    let lock = "SELECT state, verdict IS NOT NULL FROM sprag.job WHERE job_id = $1
        FOR NO KEY UPDATE";
    let found = tx.query_opt(lock, &[&job_id.uuid()]).await.map_err(|error| failed(&error))?;
    let Some(found) = found else { return Ok(Ok(None)) };
    let job = JobNow { state: state(&found, 0)?, has_verdict: get(&found, 1)? };
    crash_point("postgres.signal.after_lock");
    let sql = "SELECT content, step_index, branch, turn FROM sprag.signal
        WHERE job_id = $1 AND signal_id = $2";
    let known = tx.query_opt(sql, &[&job_id.uuid(), &signal.signal_id]).await;
    let known = known.map_err(|error| failed(&error))?;
    let known_content = known.as_ref().map(hash).transpose()?;
    let sql = "SELECT count(*) FROM sprag.signal WHERE job_id = $1";
    let kept = tx.query_one(sql, &[&job_id.uuid()]).await.map_err(|error| failed(&error))?;
    let kept = u32::try_from(get::<i64>(&kept, 0)?).unwrap_or(u32::MAX);
    let content = signal.content();
    match signal::receive(job, known_content, content, kept) {
        Err(refusal) => Ok(Ok(Some(Err(refusal)))),
        Ok(Receive::Repeat) => {
            let taken_by = known.as_ref().map(|row| place(row, 1)).transpose()?.flatten();
            Ok(Ok(Some(Ok(Signalled { created: false, taken_by }))))
        }
        Ok(Receive::Keep) => {
            let taken_by = match keep(tx, job_id, (signal, content), (kept + 1, now)).await? {
                Ok(taken_by) => taken_by,
                Err(error) => return Ok(Err(error)),
            };
            Ok(Ok(Some(Ok(Signalled { created: true, taken_by }))))
        }
    }
}

fn hash(row: &Row) -> Answer<Hash> {
    let content: &[u8] = get(row, 0)?;
    let damaged = |_| StoreError::Poison("a signal has a hash that is none".to_owned());
    content.try_into().map(Hash::from_bytes).map_err(damaged)
}

async fn keep(
    tx: &Transaction<'_>,
    job_id: JobId,
    (signal, content): (&Signal, Hash),
    (n, now): (u32, i64),
) -> Answer<Result<Option<Place>, tokio_postgres::Error>> {
    let sql = include_str!("../../sql/postgres/parked_wait.sql");
    let parked = match tx.query_opt(sql, &[&job_id.uuid(), &signal.name]).await {
        Ok(parked) => parked.as_ref().map(key).transpose()?,
        Err(error) => return Ok(Err(error)),
    };
    let taken_by = parked.as_ref().map(AttemptKey::place);
    let at = taken_by.map(columns);
    let kept = tx
        .execute(
            include_str!("../../sql/postgres/keep_signal.sql"),
            &[
                &job_id.uuid(),
                &signed(n),
                &signal.signal_id,
                &signal.name,
                &signal.decision.code(),
                &content.as_bytes().as_slice(),
                &signal.payload,
                &signal.by,
                &signal.reason,
                &now,
                &at.map(|(step_index, _, _)| step_index),
                &at.map(|(_, branch, _)| branch),
                &at.map(|(_, _, turn)| turn),
                &parked.map(|key| signed(key.attempt_no)),
                &AGEING_MS,
                &signal.note(),
            ],
        )
        .await;
    kept.map_err(|error| failed(&error))?;
    Ok(Ok(taken_by))
}

type Slice<'a> = [(usize, &'a WaitWrite)];

async fn wait(pools: &Pools, engine: EngineNo, writes: &[WaitWrite]) -> Answer<Vec<WaitOutcome>> {
    let mut outcomes = vec![WaitOutcome::Gone; writes.len()];
    let slice = sorted(writes, |write| (write.key, write.version));
    let mut client = pools.engine().await?;
    let tx = begin(&mut client).await?;
    let now = alive(&tx, pools, engine).await?;
    let found = found(&tx, engine, &slice).await?;
    crash_point("postgres.wait.after_lock");
    let decided = decide(&slice, found, now.cast_unsigned());
    write(&tx, &slice, &decided, now).await?;
    commit(tx).await.map_err(|error| failed(&error))?;
    for (n, verdict, _) in decided {
        outcomes[slice[n].0] = match verdict {
            Wait::Signalled | Wait::TimedOut => WaitOutcome::Runs,
            Wait::Park { .. } => WaitOutcome::Parked,
            Wait::Ending => WaitOutcome::Ending,
        };
    }
    Ok(outcomes)
}

/// What the waits of a slice find, under their locks.
struct Found {
    /// Those that are this engine's, by their place in the slice, and until when they wait.
    mine: Vec<(usize, Option<u64>)>,
    jobs: HashMap<JobId, JobNow>,
    /// Waits that have a signal.
    have: HashSet<(JobId, Place)>,
    /// Signals that nobody has, in their order.
    free: HashMap<(JobId, String), VecDeque<u32>>,
}

async fn found(tx: &Transaction<'_>, engine: EngineNo, slice: &Slice<'_>) -> Answer<Found> {
    let keys = Keys::of(slice.iter().map(|(_, write)| (&write.key, write.version)));
    let rows = tx
        .query(
            include_str!("../../sql/postgres/lock_waits.sql"),
            &[
                &engine.0,
                &keys.job_id,
                &keys.step_index,
                &keys.branch,
                &keys.turn,
                &keys.attempt_no,
                &keys.version,
            ],
        )
        .await
        .map_err(|error| failed(&error))?;
    let mine = rows.iter().map(|row| Ok((ordinal(get(row, 0)?), time(row, 1)?)));
    let mine = mine.collect::<Answer<Vec<_>>>()?;

    let lock = "SELECT job_id, state, verdict IS NOT NULL FROM sprag.job WHERE job_id = ANY ($1)
        ORDER BY job_id FOR NO KEY UPDATE";
    let rows = tx.query(lock, &[&keys.job_id]).await.map_err(|error| failed(&error))?;
    let mut jobs = HashMap::new();
    for row in &rows {
        let now = JobNow { state: state(row, 1)?, has_verdict: get(row, 2)? };
        jobs.insert(JobId::from(get::<Uuid>(row, 0)?), now);
    }

    // A statement of its own: it sees what was committed while the locks were waited for.
    let sql = include_str!("../../sql/postgres/signals_for.sql");
    let names = column(slice, |write| write.signal.as_str());
    let asked: super::pools::Params<'_> =
        &[&keys.job_id, &names, &keys.step_index, &keys.branch, &keys.turn];
    let rows = tx.query(sql, asked).await.map_err(|error| failed(&error))?;
    let (mut have, mut free) = (HashSet::new(), HashMap::<_, VecDeque<u32>>::new());
    for row in &rows {
        let job_id = JobId::from(get::<Uuid>(row, 0)?);
        match place(row, 3)? {
            Some(place) => {
                have.insert((job_id, place));
            }
            None => free.entry((job_id, get(row, 2)?)).or_default().push_back(unsigned(row, 1)?),
        }
    }
    Ok(Found { mine, jobs, have, free })
}

/// What becomes of each wait, and the signal that it is given.
type Decided = Vec<(usize, Wait, Option<u32>)>;

fn decide(slice: &Slice<'_>, mut found: Found, now: u64) -> Decided {
    let mut decided = Vec::with_capacity(found.mine.len());
    for (n, until) in found.mine {
        let (_, write) = slice[n];
        let Some(job) = found.jobs.get(&write.key.job_id) else { continue };
        let has_one = found.have.contains(&(write.key.job_id, write.key.place()));
        let free = found.free.get_mut(&(write.key.job_id, write.signal.clone()));
        let has_signal = has_one || free.as_ref().is_some_and(|free| !free.is_empty());
        let waiting = Waiting { has_signal, until, timeout: write.timeout_ms };
        let verdict = signal::wait(*job, waiting, now);
        let takes = verdict == Wait::Signalled && !has_one;
        let given = free.filter(|_| takes).and_then(VecDeque::pop_front);
        decided.push((n, verdict, given));
    }
    decided
}

async fn write(tx: &Transaction<'_>, slice: &Slice<'_>, decided: &Decided, now: i64) -> Answer<()> {
    let taking: Vec<(&WaitWrite, u32)> =
        decided.iter().filter_map(|(n, _, given)| Some((slice[*n].1, (*given)?))).collect();
    if !taking.is_empty() {
        let keys = Keys::of(taking.iter().map(|(write, _)| (&write.key, write.version)));
        let given: Vec<i32> = taking.iter().map(|(_, given)| signed(*given)).collect();
        let sql = include_str!("../../sql/postgres/take_signals.sql");
        let asked: super::pools::Params<'_> =
            &[&keys.job_id, &given, &keys.step_index, &keys.branch, &keys.turn];
        tx.execute(sql, asked).await.map_err(|error| failed(&error))?;
        crash_point("postgres.wait.after_take");
    }
    let parking: Vec<(&WaitWrite, Option<i64>)> = decided
        .iter()
        .filter_map(|(n, verdict, _)| match verdict {
            Wait::Park { until } => Some((slice[*n].1, until.map(span))),
            Wait::Signalled | Wait::TimedOut | Wait::Ending => None,
        })
        .collect();
    if !parking.is_empty() {
        let keys = Keys::of(parking.iter().map(|(write, _)| (&write.key, write.version)));
        let names: Vec<&str> = parking.iter().map(|(write, _)| write.signal.as_str()).collect();
        let until: Vec<Option<i64>> = parking.iter().map(|(_, until)| *until).collect();
        let parked = tx
            .execute(
                include_str!("../../sql/postgres/park_waits.sql"),
                &[
                    &keys.job_id,
                    &keys.step_index,
                    &keys.branch,
                    &keys.turn,
                    &keys.attempt_no,
                    &keys.version,
                    &names,
                    &until,
                    &now,
                ],
            )
            .await;
        parked.map_err(|error| failed(&error))?;
    }
    Ok(())
}

/// The columns of a [`SignalView`], in the order in which they are read.
const VIEW: &str = "signal_id, name, decision, payload, said_by, reason, received_at, step_index,
    branch, turn";

fn view(row: &Row) -> Answer<SignalView> {
    let unknown = || StoreError::Poison("a signal has a decision that does not exist".to_owned());
    Ok(SignalView {
        signal: Signal {
            signal_id: get(row, 0)?,
            name: get(row, 1)?,
            decision: Decision::from_code(get(row, 2)?).ok_or_else(unknown)?,
            payload: get(row, 3)?,
            by: get(row, 4)?,
            reason: get(row, 5)?,
        },
        received_at: unsigned_long(row, 6)?,
        taken_by: place(row, 7)?,
    })
}

/// The place in three columns, if there is one.
fn place(row: &Row, at: usize) -> Answer<Option<Place>> {
    let step_index: Option<i32> = get(row, at)?;
    if step_index.is_none() {
        return Ok(None);
    }
    let (step_index, turn) = (unsigned(row, at)?, unsigned(row, at + 2)?);
    Ok(Some(Place { step_index, branch: get::<i64>(row, at + 1)?.cast_unsigned(), turn }))
}

/// A place as three columns hold it.
fn columns(place: Place) -> (i32, i64, i32) {
    (signed(place.step_index), place.branch.cast_signed(), signed(place.turn))
}
