//! Rows in and out: errors, codes, the attempt with its job.

use std::sync::Arc;

use rusqlite::types::FromSql;
use rusqlite::{Connection, Params, Row, params};
use sprag_engine::ids::{AttemptKey, JobId};
use sprag_engine::store::{Answer, Held, JobFacts, StoreError, ending_kind};
use sprag_kernel::decide::rows::{AttemptRow, Ending, JobRow, LeaseId};
use sprag_kernel::keys::{Hash, Mode, Route};
use sprag_kernel::ledger::Semaphore;
use sprag_kernel::machine::State;
use sprag_kernel::{ActivityLedger, GuidLedger};

/// What a failed statement means to the engine.
pub(crate) fn failed(error: &rusqlite::Error) -> StoreError {
    use rusqlite::ErrorCode;
    match error.sqlite_error_code() {
        // The row itself is at fault, or (no code) it cannot be decoded.
        None
        | Some(
            ErrorCode::ConstraintViolation
            | ErrorCode::TypeMismatch
            | ErrorCode::TooBig
            | ErrorCode::ParameterOutOfRange,
        ) => StoreError::Poison(error.to_string()),
        Some(_) => StoreError::Unavailable(error.to_string()),
    }
}

/// Column lists in the order in which `held` reads them.
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

/// Reads a row of [`HELD_COLUMNS`], and the outputs of the steps before it.
pub(super) fn held(connection: &Connection, row: &Row<'_>) -> Answer<Held> {
    let key = key(row)?;
    let job = job_row(row)?;
    // What a node of a graph can see is asked for by name.
    let inputs = if job.is_graph { Vec::new() } else { inputs(connection, &key)? };
    let (facts, damage) = job_facts(row, key.job_id);
    Ok(Held {
        key,
        attempt: attempt_row(row, &key)?,
        job,
        facts: Arc::new(facts),
        inputs,
        acked_at: read(|| row.get(14))?,
        item: read(|| row.get(44))?,
        output: read(|| row.get(45))?,
        waits_until: read(|| row.get(46))?,
        damage,
        is_unentered: false,
    })
}

/// The same, but a row whose states or digits cannot be read is passed over, so that it stops nobody else; the
/// audit shows it.
pub(super) fn held_if_readable(connection: &Connection, row: &Row<'_>) -> Answer<Option<Held>> {
    let read = held(connection, row);
    if let Err(error @ (StoreError::Poison(_) | StoreError::Refused(_))) = &read {
        tracing::error!(code = "ROW_UNREADABLE", %error, "an attempt is passed over");
        return Ok(None);
    }
    read.map(Some)
}

/// The five columns that name an attempt, as the first five parameters of a statement.
pub(super) fn place(key: &AttemptKey) -> impl Params {
    (*key.job_id.as_bytes(), key.step_index, key.branch.cast_signed(), key.turn, key.attempt_no)
}

pub(super) fn key(row: &Row<'_>) -> Answer<AttemptKey> {
    read(|| {
        Ok(AttemptKey {
            job_id: JobId::from_bytes(row.get(0)?),
            step_index: row.get(1)?,
            branch: row.get::<_, i64>(2)?.cast_unsigned(),
            turn: row.get(3)?,
            attempt_no: row.get(4)?,
        })
    })
}

fn read<T>(reader: impl FnOnce() -> rusqlite::Result<T>) -> Answer<T> {
    reader().map_err(|error| failed(&error))
}

pub(super) fn attempt_row(row: &Row<'_>, key: &AttemptKey) -> Answer<AttemptRow> {
    let ending = match read(|| row.get::<_, Option<i64>>(9))? {
        None => None,
        Some(code) => {
            let error_code: Option<String> = read(|| row.get(41))?;
            let content: Option<[u8; 32]> = read(|| row.get(10))?;
            Some(Ending {
                kind: ending_kind(code, error_code.as_deref())
                    .ok_or_else(|| undecodable("ending"))?,
                guid: GuidLedger::from_stored(read(|| row.get(8))?)?,
                content: content.map(Hash::from_bytes),
            })
        }
    };
    Ok(AttemptRow {
        step_index: key.step_index,
        attempt_no: key.attempt_no,
        state: state(read(|| row.get(5))?)?,
        version: read(|| row.get(6))?,
        lease_id: read(|| row.get::<_, Option<u64>>(11))?.map(LeaseId),
        ledger: ActivityLedger::from_stored(read(|| row.get(7))?)?,
        outbox: read(|| row.get::<_, Option<u8>>(12))?.map(state).transpose()?,
        publish_attempts: read(|| row.get(13))?,
        acked: read(|| row.get::<_, Option<i64>>(14))?.is_some(),
        deadline: read(|| row.get(15))?,
        losses: read(|| row.get(16))?,
        excused: read(|| row.get(47))?,
        got_ahead: false,
        ending,
    })
}

pub(super) fn job_row(row: &Row<'_>) -> Answer<JobRow> {
    Ok(JobRow {
        state: state(read(|| row.get(17))?)?,
        version: read(|| row.get(18))?,
        semaphore: Semaphore::new(read(|| row.get(19))?),
        current_step: read(|| row.get(20))?,
        steps: read(|| row.get(21))?,
        attempts_total: read(|| row.get(22))?,
        is_graph: read(|| row.get(42))?,
        verdict: read(|| row.get::<_, Option<u8>>(43))?.map(state).transpose()?,
    })
}

/// The facts of a job, and why some of them cannot be read: those are empty. One damaged row must not
/// take a whole slice with it.
pub(super) fn job_facts(row: &Row<'_>, job_id: JobId) -> (JobFacts, Option<String>) {
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
        hash: Hash::from_bytes(damaged.get(32)),
        doc_id: damaged.get(33),
        mode: if damaged.get::<i64>(34) == 0 { Mode::Default } else { Mode::Burst },
        route: Route { lane: damaged.get(35), key: damaged.get(36) },
        correlation_id: damaged.get(37),
        traceparent: damaged.get(38),
        priority: damaged.get(39),
        rerun_of: damaged.get::<Option<[u8; 16]>>(40).map(JobId::from_bytes),
    };
    (facts, damaged.damage)
}

/// A row of which not every value may be readable.
struct Damaged<'a> {
    row: &'a Row<'a>,
    damage: Option<String>,
}

impl Damaged<'_> {
    fn get<T: FromSql + Default>(&mut self, column: usize) -> T {
        self.row.get(column).unwrap_or_else(|error| {
            self.damage.get_or_insert_with(|| error.to_string());
            T::default()
        })
    }
}

/// The outputs of the steps before this one.
fn inputs(connection: &Connection, key: &AttemptKey) -> Answer<Vec<(u32, String)>> {
    if key.step_index == 0 {
        return Ok(Vec::new());
    }
    read(|| {
        connection
            .prepare_cached(
                "SELECT step_index, output FROM attempt
                 WHERE job_id = ?1 AND step_index < ?2 AND state = 4 AND output IS NOT NULL",
            )?
            .query_map(params![key.job_id.as_bytes(), key.step_index], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?
            .collect()
    })
}

/// A state from its code.
pub(super) fn state<S: State>(code: u8) -> Answer<S> {
    S::from_code(code).ok_or_else(|| undecodable(S::machine().name))
}

fn undecodable(what: &str) -> StoreError {
    StoreError::Poison(format!("the {what} of a row has a code that does not exist"))
}
