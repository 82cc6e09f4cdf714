//! Rows out: codes, the attempt with its job.

use std::collections::HashMap;
use std::sync::Arc;

use sprag_engine::ids::{AttemptKey, JobId};
use sprag_engine::store::{Answer, Held, JobFacts, StoreError, ending_kind};
use sprag_kernel::decide::rows::{AttemptRow, Ending, JobRow, LeaseId};
use sprag_kernel::keys::{Hash, Mode, Route};
use sprag_kernel::ledger::Semaphore;
use sprag_kernel::machine::State;
use sprag_kernel::{ActivityLedger, GuidLedger};
use tokio_postgres::Row;
use tokio_postgres::types::FromSql;
use uuid::Uuid;

use super::failure::undecodable;
use super::pools::Pools;

/// Columns in the order in which `held` reads them, of attempt `a` and its job `j`.
pub(super) const HELD_COLUMNS: &str = "a.job_id, a.step_index, a.branch, a.turn, a.attempt_no, \
    a.state, a.version, a.ledger, a.guid, a.ending, a.content, a.lease_id, a.outbox, \
    a.publish_attempts, a.acked_at, coalesce(a.timer_at, a.lease_expires_at), a.losses, \
    j.state, j.version, j.semaphore, j.current_step, j.steps, j.attempts_total, \
    j.tenant_id, j.request_type, j.protocol_id, j.input_ref, j.output_ref, j.payload, \
    j.schema_version, j.idempotency_key, j.dedup_key, j.idempotency_hash, j.doc_id, j.mode, j.lane, \
    j.routing_key, j.correlation_id, j.traceparent, j.priority, j.rerun_of, a.error_code, \
    j.is_graph, j.verdict, a.item, a.output, a.waits_until, \
    a.excused";
/// The number of those columns: where a statement's own ones begin.
pub(super) const HELD_WIDTH: usize = 48;

/// A statement with the columns of `held` filled in.
pub(super) fn with_held(sql: &str) -> String {
    sql.replace("{held}", HELD_COLUMNS)
}

/// The outputs of all steps of some jobs.
pub(super) const OUTPUTS: &str = "SELECT job_id, step_index, output FROM sprag.attempt \
    WHERE job_id = ANY ($1::uuid[]) AND state = 4 AND output IS NOT NULL ORDER BY job_id, step_index";

/// Reads rows of [`HELD_COLUMNS`], and then the outputs of the steps before them. A row whose states
/// cannot be read is passed over, so that it stops nobody else; the audit shows it.
pub(super) async fn held(pools: &Pools, rows: &[Row]) -> Answer<Vec<Held>> {
    let all = held_of_each(pools, rows).await?;
    Ok(all.into_iter().map(|(held, _)| held).collect())
}

/// The same, each with the row that it was read from.
pub(super) async fn held_of_each<'a>(
    pools: &Pools,
    rows: &'a [Row],
) -> Answer<Vec<(Held, &'a Row)>> {
    let (mut all, mut read) = (Vec::with_capacity(rows.len()), Vec::with_capacity(rows.len()));
    for row in rows {
        match held_row(row) {
            Ok(held) => {
                all.push(held);
                read.push(row);
            }
            Err(error) => {
                tracing::error!(code = "ROW_UNREADABLE", %error, "an attempt is passed over");
            }
        }
    }
    let later: Vec<Uuid> = all
        .iter()
        .filter(|held| held.key.step_index > 0 && !held.job.is_graph)
        .map(|held| held.key.job_id.uuid())
        .collect();
    if !later.is_empty() {
        let outputs = pools.run(OUTPUTS, &[&later]).await?;
        add_inputs(&mut all, &outputs)?;
    }
    Ok(all.into_iter().zip(read).collect())
}

/// Gives each attempt the outputs of the steps before it, from rows of [`OUTPUTS`].
pub(super) fn add_inputs(all: &mut [Held], rows: &[Row]) -> Answer<()> {
    let mut outputs: HashMap<JobId, Vec<(u32, String)>> = HashMap::new();
    for row in rows {
        let job_id = JobId::from(get::<Uuid>(row, 0)?);
        outputs.entry(job_id).or_default().push((unsigned(row, 1)?, get(row, 2)?));
    }
    for held in all.iter_mut().filter(|held| !held.job.is_graph) {
        let before = outputs.get(&held.key.job_id).into_iter().flatten();
        held.inputs = before.filter(|(step, _)| *step < held.key.step_index).cloned().collect();
    }
    Ok(())
}

/// Reads a row of [`HELD_COLUMNS`] without the outputs of earlier steps.
pub(super) fn held_row(row: &Row) -> Answer<Held> {
    let key = key(row)?;
    let (facts, damage) = facts(row, key.job_id);
    Ok(Held {
        key,
        attempt: attempt_row(row, &key)?,
        job: job_row(row)?,
        facts: Arc::new(facts),
        inputs: Vec::new(),
        acked_at: time(row, 14)?,
        item: get(row, 44)?,
        output: get(row, 45)?,
        waits_until: time(row, 46)?,
        damage,
        is_unentered: false,
    })
}

pub(super) fn key(row: &Row) -> Answer<AttemptKey> {
    Ok(AttemptKey {
        job_id: JobId::from(get::<Uuid>(row, 0)?),
        step_index: unsigned(row, 1)?,
        branch: get::<i64>(row, 2)?.cast_unsigned(),
        turn: unsigned(row, 3)?,
        attempt_no: unsigned(row, 4)?,
    })
}

pub(super) fn attempt_row(row: &Row, key: &AttemptKey) -> Answer<AttemptRow> {
    Ok(AttemptRow {
        step_index: key.step_index,
        attempt_no: key.attempt_no,
        state: state(row, 5)?,
        version: unsigned_long(row, 6)?,
        lease_id: get::<Option<i64>>(row, 11)?.map(|id| LeaseId(id.cast_unsigned())),
        ledger: ActivityLedger::from_stored(unsigned_long(row, 7)?)?,
        outbox: get::<Option<i16>>(row, 12)?.map(state_of).transpose()?,
        publish_attempts: unsigned(row, 13)?,
        acked: get::<Option<i64>>(row, 14)?.is_some(),
        deadline: time(row, 15)?,
        losses: unsigned(row, 16)?,
        excused: unsigned(row, 47)?,
        got_ahead: false,
        ending: ending(row)?,
    })
}

fn ending(row: &Row) -> Answer<Option<Ending>> {
    let Some(code) = get::<Option<i16>>(row, 9)? else { return Ok(None) };
    let error_code: Option<&str> = get(row, 41)?;
    let content: Option<&[u8]> = get(row, 10)?;
    let kind = ending_kind(code.into(), error_code).ok_or_else(|| unknown("ending"))?;
    let guid = GuidLedger::from_stored(unsigned_long(row, 8)?)?;
    Ok(Some(Ending { kind, guid, content: content.map(hash).transpose()? }))
}

pub(super) fn job_row(row: &Row) -> Answer<JobRow> {
    Ok(JobRow {
        state: state(row, 17)?,
        version: unsigned_long(row, 18)?,
        semaphore: Semaphore::new(unsigned(row, 19)?),
        current_step: unsigned(row, 20)?,
        steps: unsigned(row, 21)?,
        attempts_total: unsigned(row, 22)?,
        is_graph: get::<i16>(row, 42)? == 1,
        verdict: get::<Option<i16>>(row, 43)?.map(state_of).transpose()?,
    })
}

/// The facts of a job, and why some of them cannot be read: those are empty. One damaged row must not
/// take a whole slice with it.
pub(super) fn facts(row: &Row, job_id: JobId) -> (JobFacts, Option<String>) {
    let mut damaged = Damaged { row, damage: None };
    let facts = JobFacts {
        job_id,
        tenant_id: damaged.get(23),
        request_type: damaged.get(24),
        protocol_id: damaged.get(25),
        input_ref: damaged.get(26),
        output_ref: damaged.get(27),
        payload: damaged.get(28),
        schema_version: damaged.get(29),
        idempotency_key: damaged.get(30),
        dedup_key: damaged.get(31),
        hash: damaged.hash(32),
        doc_id: damaged.get(33),
        mode: if damaged.get::<i16>(34) == 0 { Mode::Default } else { Mode::Burst },
        route: Route { lane: damaged.get::<i32>(35).cast_unsigned(), key: damaged.get(36) },
        correlation_id: damaged.get(37),
        traceparent: damaged.get(38),
        priority: damaged.get(39),
        rerun_of: damaged.get::<Option<Uuid>>(40).map(JobId::from),
    };
    (facts, damaged.damage)
}

/// A row of which not every value may be readable.
struct Damaged<'a> {
    row: &'a Row,
    damage: Option<String>,
}

impl<'a> Damaged<'a> {
    fn get<T: FromSql<'a> + Default>(&mut self, column: usize) -> T {
        let value = get(self.row, column);
        self.or_empty(value)
    }

    fn hash(&mut self, column: usize) -> Hash {
        let value = get(self.row, column).and_then(hash);
        Hash::from_bytes(self.or_empty(value.map(|hash| *hash.as_bytes())))
    }

    fn or_empty<T: Default>(&mut self, value: Answer<T>) -> T {
        value.unwrap_or_else(|error| {
            self.damage.get_or_insert_with(|| error.to_string());
            T::default()
        })
    }
}

/// A value of a row; one that cannot be read makes the row poison.
pub(super) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: usize) -> Answer<T> {
    row.try_get(column).map_err(|error| undecodable(&error))
}

/// A count that is never negative.
pub(super) fn unsigned(row: &Row, column: usize) -> Answer<u32> {
    u32::try_from(get::<i32>(row, column)?).map_err(|_| unknown("count"))
}

/// A long count that is never negative.
pub(super) fn unsigned_long(row: &Row, column: usize) -> Answer<u64> {
    u64::try_from(get::<i64>(row, column)?).map_err(|_| unknown("count"))
}

/// A time, if there is one.
pub(super) fn time(row: &Row, column: usize) -> Answer<Option<u64>> {
    get::<Option<i64>>(row, column)?
        .map(|at| u64::try_from(at).map_err(|_| unknown("time")))
        .transpose()
}

pub(super) fn hash(bytes: &[u8]) -> Answer<Hash> {
    bytes.try_into().map(Hash::from_bytes).map_err(|_| unknown("hash"))
}

/// A state from its code.
pub(super) fn state<S: State>(row: &Row, column: usize) -> Answer<S> {
    state_of(get(row, column)?)
}

fn state_of<S: State>(code: i16) -> Answer<S> {
    u8::try_from(code).ok().and_then(S::from_code).ok_or_else(|| unknown(S::machine().name))
}

fn unknown(what: &str) -> StoreError {
    StoreError::Poison(format!("the {what} of a row has a value that does not exist"))
}
