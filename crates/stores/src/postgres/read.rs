//! Reading: jobs, attempts, events, and the audit.

use deadpool_postgres::Object;
use sprag_engine::ids::{EngineNo, JobId, Place};
use sprag_engine::store::{
    Answer, AttemptError, AttemptFilter, AttemptView, Check, Ended, EventView, JobFilter, JobView,
    Violation,
};
use sprag_kernel::machine::State;
use tokio_postgres::types::ToSql;
use tokio_postgres::{IsolationLevel, Row, Transaction};
use uuid::Uuid;

use super::failure::failed;
use super::legs::ordinal;
use super::pools::Pools;
use super::rows::{
    HELD_COLUMNS, HELD_WIDTH, attempt_row, facts, get, job_row, key, state, time, unsigned,
    unsigned_long,
};
use super::slice::{code, signed, span};
use super::submit::Runner;
use crate::MAX_LINES;
use crate::audit::{CHECKS, FOLDS, Fold, violation};
use crate::countdowns::{self, Countdowns, Spot};
use crate::outcomes::{self, Found};
use crate::protocols::{self, Protocols};

fn job_view(row: &Row) -> Answer<JobView> {
    let key = key(row)?;
    Ok(JobView {
        facts: facts(row, key.job_id).0,
        row: job_row(row)?,
        error: attempt_error(get(row, HELD_WIDTH)?, get(row, HELD_WIDTH + 1)?),
        created_at: unsigned_long(row, HELD_WIDTH + 2)?,
        updated_at: unsigned_long(row, HELD_WIDTH + 3)?,
        completed_at: time(row, HELD_WIDTH + 4)?,
    })
}

pub(super) fn attempt_error(code: Option<String>, message: Option<String>) -> Option<AttemptError> {
    code.map(|code| AttemptError { code, message: message.unwrap_or_default() })
}

const JOB_SELECT: &str = "j.error_code, j.error_message, j.created_at, j.updated_at, \
    j.completed_at FROM sprag.job j JOIN sprag.attempt a ON a.job_id = j.job_id \
    AND a.step_index = 0 AND a.branch = 0 AND a.turn = 0 AND a.attempt_no = 1";

pub(super) async fn job(pools: &Pools, job_id: JobId) -> Answer<Option<JobView>> {
    let sql = format!("SELECT {HELD_COLUMNS}, {JOB_SELECT} WHERE j.job_id = $1");
    pools.read(&sql, &[&job_id.uuid()]).await?.first().map(job_view).transpose()
}

pub(super) async fn jobs(pools: &Pools, filter: &JobFilter) -> Answer<Vec<JobView>> {
    let sql = format!(
        "SELECT {HELD_COLUMNS}, {JOB_SELECT}
         WHERE ($1::text IS NULL OR j.tenant_id = $1) AND ($2::smallint IS NULL OR j.state = $2)
             AND ($3::uuid IS NULL OR j.job_id < $3) AND ($5::text IS NULL OR j.request_type = $5)
             AND ($6::bigint IS NULL OR j.created_at >= $6)
             AND ($7::bigint IS NULL OR j.created_at < $7)
             AND ($8::text IS NULL OR strpos(concat_ws(chr(10), j.correlation_id, j.doc_id,
                 j.idempotency_key, j.error_code, j.error_message), $8) > 0)
         ORDER BY j.job_id DESC LIMIT $4"
    );
    let before = filter.before.map(JobId::uuid);
    let state = filter.state.map(code);
    let limit = i64::from(filter.limit);
    let time = |at: Option<u64>| at.map(|at| i64::try_from(at).unwrap_or(i64::MAX));
    let rows = pools
        .read(
            &sql,
            &[
                &filter.tenant_id,
                &state,
                &before,
                &limit,
                &filter.request_type,
                &time(filter.from),
                &time(filter.to),
                &filter.text,
            ],
        )
        .await?;
    rows.iter().map(job_view).collect()
}

pub(super) async fn attempts_by(
    pools: &Pools,
    job_id: JobId,
    filter: &AttemptFilter,
) -> Answer<Vec<AttemptView>> {
    // What is not shown is not sent: each row would bring the payload of the job along.
    let held = HELD_COLUMNS
        .replace("j.payload", "NULL::text")
        .replace("a.item, a.output", "NULL::text, NULL::text");
    let sql = format!(
        "SELECT {held}, a.step_id, a.service, a.owner, a.ready_at, a.timer_at,
             CASE WHEN $8::bigint IS NULL OR octet_length(a.output) <= $8 THEN a.output END,
             a.error_message, a.sent_at, a.acked_at, a.updated_at, s.paused_at IS NOT NULL,
             a.progress, a.countdown, v.seen_at, a.waits_for, a.gate, a.gate_max, a.admitted_at,
             a.child_id, octet_length(a.output)::bigint
         FROM sprag.attempt a JOIN sprag.job j ON j.job_id = a.job_id
             LEFT JOIN sprag.service s ON s.service = a.service
             LEFT JOIN sprag.served v ON v.service = a.service
         WHERE a.job_id = $1
             AND ($2::int IS NULL OR (a.step_index, a.branch, a.turn, a.attempt_no) > ($2, $3::bigint, $4::int, $5::int))
             AND (NOT $6::boolean OR NOT EXISTS (SELECT 1 FROM sprag.attempt n
                 WHERE n.job_id = a.job_id AND n.step_index = a.step_index AND n.branch = a.branch
                     AND n.turn = a.turn AND n.attempt_no > a.attempt_no))
         ORDER BY a.step_index, a.branch, a.turn, a.attempt_no LIMIT $7::bigint"
    );
    let after = filter.after;
    let (step, branch) =
        (after.map(|key| key.step_index.cast_signed()), after.map(|key| key.branch.cast_signed()));
    let (turn, attempt_no) =
        (after.map(|key| key.turn.cast_signed()), after.map(|key| key.attempt_no.cast_signed()));
    let (limit, max_output) = (filter.limit.map(i64::from), filter.max_output.map(i64::from));
    let asked: [&(dyn ToSql + Sync); 8] =
        [&job_id.uuid(), &step, &branch, &turn, &attempt_no, &filter.newest, &limit, &max_output];
    let rows = pools.read(&sql, &asked).await?;
    let mut views = rows.iter().map(attempt_view).collect::<Answer<Vec<_>>>()?;
    for view in views.iter_mut().filter(|view| view.is_in_line).take(MAX_LINES) {
        if let Some((gate, _)) = &view.gate {
            view.line = Some(super::gates::gate(pools, gate).await?);
        }
    }
    for (key, batch) in super::batch::progress(pools, job_id).await? {
        if let Some(view) = views.iter_mut().find(|view| view.key == key) {
            view.batch = Some(batch);
        }
    }
    Ok(views)
}

fn attempt_view(row: &Row) -> Answer<AttemptView> {
    let key = key(row)?;
    let gate = get::<Option<String>>(row, HELD_WIDTH + 15)?;
    let is_due = get::<Option<i64>>(row, HELD_WIDTH + 3)?.is_some();
    let is_admitted = get::<Option<i64>>(row, HELD_WIDTH + 17)?.is_some();
    let gate_max = get::<Option<i32>>(row, HELD_WIDTH + 16)?.map(i32::cast_unsigned);
    Ok(AttemptView {
        key,
        row: attempt_row(row, &key)?,
        step_id: get(row, HELD_WIDTH)?,
        service: get(row, HELD_WIDTH + 1)?,
        owner: get::<Option<i64>>(row, HELD_WIDTH + 2)?.map(EngineNo),
        is_ready: is_due && (gate.is_none() || is_admitted),
        is_in_line: is_due && gate.is_some() && !is_admitted,
        line: None,
        gate: gate.map(|gate| (gate, gate_max)),
        is_paused: get(row, HELD_WIDTH + 10)?,
        timer_at: time(row, HELD_WIDTH + 4)?,
        output: get(row, HELD_WIDTH + 5)?,
        output_bytes: time(row, HELD_WIDTH + 19)?,
        error: attempt_error(get(row, 41)?, get(row, HELD_WIDTH + 6)?),
        sent_at: time(row, HELD_WIDTH + 7)?,
        acked_at: time(row, HELD_WIDTH + 8)?,
        updated_at: unsigned_long(row, HELD_WIDTH + 9)?,
        progress: get(row, HELD_WIDTH + 11)?,
        countdown: get::<i32>(row, HELD_WIDTH + 12)?.cast_unsigned(),
        served_at: time(row, HELD_WIDTH + 13)?,
        waits_for: get(row, HELD_WIDTH + 14)?,
        batch: None,
        child: get::<Option<Uuid>>(row, HELD_WIDTH + 18)?.map(JobId::from),
    })
}

pub(super) async fn events_after(
    pools: &Pools,
    job_id: JobId,
    n: u64,
    limit: u32,
) -> Answer<Vec<EventView>> {
    let sql = "SELECT n::bigint, at, step_index, attempt_no, changes, note, branch, turn
        FROM sprag.event WHERE job_id = $1 AND n > $2::bigint ORDER BY n LIMIT $3::bigint";
    let rows = pools.read(sql, &[&job_id.uuid(), &span(n), &i64::from(limit)]).await?;
    let count = |row: &Row, column| -> Answer<Option<u32>> {
        Ok(get::<Option<i32>>(row, column)?.and_then(|count| u32::try_from(count).ok()))
    };
    rows.iter()
        .map(|row| {
            Ok(EventView {
                n: unsigned_long(row, 0)?,
                at: unsigned_long(row, 1)?,
                attempt: count(row, 2)?.zip(count(row, 3)?),
                changes: get(row, 4)?,
                note: get(row, 5)?,
                branch: get::<i64>(row, 6)?.cast_unsigned(),
                turn: unsigned(row, 7)?,
            })
        })
        .collect()
}

/// All checks in one snapshot that sees no half of anything.
pub(super) async fn audit(pools: &Pools) -> Answer<Vec<Check>> {
    let mut client: Object = pools.plain().await?;
    let tx = client
        .build_transaction()
        .isolation_level(IsolationLevel::RepeatableRead)
        .read_only(true)
        .start()
        .await
        .map_err(|error| failed(&error))?;
    let mut checks = Vec::new();
    for (name, sql) in CHECKS {
        let rows = tx.query(*sql, &[]).await.map_err(|error| failed(&error))?;
        let violations = rows.iter().map(read_violation).collect::<Answer<_>>()?;
        checks.push(Check { name: (*name).to_owned(), violations });
    }
    for fold in FOLDS {
        checks.push(folded(&tx, fold).await?);
    }
    let texts = tx.query(protocols::SQL, &[]).await.map_err(|error| failed(&error))?;
    let texts = texts.iter().map(|row| Ok((get(row, 0)?, get(row, 1)?)));
    let mut protocols = Protocols::of(texts.collect::<Answer<Vec<_>>>()?);
    checks.push(countdowns(&tx, &mut protocols).await?);
    checks.push(outcomes(&tx, &mut protocols).await?);
    Ok(checks)
}

fn read_violation(row: &Row) -> Answer<Violation> {
    // A count over many jobs names none, and a NULL without a type is not a uuid to Postgres.
    let id = row.try_get::<_, Option<Uuid>>(0).ok().flatten().map(JobId::from);
    Ok(violation(row.columns()[0].name(), id, get(row, 1)?))
}

/// Whoever is parked waits for as many as are not over, and whoever has begun for none.
async fn countdowns(tx: &Transaction<'_>, protocols: &mut Protocols) -> Answer<Check> {
    let mut countdowns = Countdowns::by(protocols);
    by_the_page(tx, countdowns::SQL, |row| {
        let (step_index, turn) = (unsigned(row, 2)?, unsigned(row, 4)?);
        let spot = Spot {
            place: Place { step_index, branch: get::<i64>(row, 3)?.cast_unsigned(), turn },
            countdown: unsigned(row, 5)?,
            is_over: get::<i32>(row, 6)? == 1,
            has_begun: get::<i32>(row, 7)? == 1,
        };
        countdowns.take(JobId::from(get::<Uuid>(row, 0)?), get(row, 1)?, spot);
        Ok(())
    })
    .await?;
    Ok(countdowns.end())
}

/// Jobs have ended as their steps have.
async fn outcomes(tx: &Transaction<'_>, protocols: &mut Protocols) -> Answer<Check> {
    let mut violations = Vec::new();
    by_the_page(tx, outcomes::SQL, |row| {
        let (protocol_id, node): (Option<String>, Option<i32>) = (get(row, 2)?, get(row, 3)?);
        let node = node.and_then(|node| u32::try_from(node).ok());
        let (job_id, detail) = (JobId::from(get::<Uuid>(row, 0)?), get(row, 1)?);
        let found = Found { job_id, detail, failure: protocol_id.zip(node) };
        violations.extend(outcomes::judge(protocols, found));
        Ok(())
    })
    .await?;
    Ok(Check { name: outcomes::NAME.to_owned(), violations })
}

/// What a check that folds finds.
async fn folded(tx: &Transaction<'_>, (name, sql, fold): &Fold) -> Answer<Check> {
    let mut violations = Vec::new();
    by_the_page(tx, sql, |row| {
        let (found, told): (&str, Option<&str>) = (get(row, 1)?, get(row, 2)?);
        if let Err(detail) = fold(found, told.unwrap_or_default()) {
            let id = JobId::from(get::<Uuid>(row, 0)?);
            violations.push(violation(row.columns()[0].name(), Some(id), detail));
        }
        Ok(())
    })
    .await?;
    Ok(Check { name: (*name).to_owned(), violations })
}

/// How many rows of the audit are fetched at a time. While they are judged the transaction is idle, which the server
/// bears for some seconds only; and there may be too many to have them all.
const PAGE: i32 = 256;

/// Hands over row after row, a page at a time.
async fn by_the_page(
    tx: &Transaction<'_>,
    sql: &str,
    mut take: impl FnMut(&Row) -> Answer<()>,
) -> Answer<()> {
    let portal = tx.bind(sql, &[]).await.map_err(|error| failed(&error))?;
    loop {
        let page = tx.query_portal(&portal, PAGE).await.map_err(|error| failed(&error))?;
        page.iter().try_for_each(&mut take)?;
        if page.len() < PAGE.unsigned_abs() as usize {
            return Ok(());
        }
    }
}

/// How many jobs are open.
pub(super) async fn count_open(pools: &Pools) -> Answer<u64> {
    let counts = super::upkeep::counts(pools).await?;
    Ok(counts.iter().filter(|(state, _)| !state.is_terminal()).map(|(_, jobs)| jobs).sum())
}

/// How activities have ended, each the newest attempt at its place.
pub(super) async fn ends(
    runner: Runner<'_>,
    places: &[(JobId, Place)],
) -> Answer<Vec<Option<Ended>>> {
    let job_id: Vec<Uuid> = places.iter().map(|(job_id, _)| job_id.uuid()).collect();
    let step_index: Vec<i32> = places.iter().map(|(_, place)| signed(place.step_index)).collect();
    let branch: Vec<i64> = places.iter().map(|(_, place)| place.branch.cast_signed()).collect();
    let turn: Vec<i32> = places.iter().map(|(_, place)| signed(place.turn)).collect();
    let sql = include_str!("../../sql/postgres/ends.sql");
    // On the engine's own connections: their settings look rows up one by one, and nothing is stale.
    let rows = runner.run(sql, &[&job_id, &step_index, &branch, &turn]).await?;
    let mut ends = vec![None; places.len()];
    for row in &rows {
        let ended = Ended {
            state: state(row, 1)?,
            output: get(row, 2)?,
            error: attempt_error(get(row, 3)?, get(row, 4)?),
        };
        ends[ordinal(get(row, 0)?)] = Some(ended).filter(|ended| ended.state.is_terminal());
    }
    Ok(ends)
}
