//! Reading: jobs, attempts, events, and the audit.

use rusqlite::{Row, params};
use sprag_engine::ids::{EngineNo, JobId, Place};
use sprag_engine::store::{
    Answer, AttemptError, AttemptFilter, AttemptView, Check, Ended, EventView, JobFilter, JobView,
};
use sprag_kernel::machine::State;

use super::eras;
use super::rows::{HELD_COLUMNS, HELD_WIDTH, attempt_row, failed, job_facts, job_row, key, state};
use super::writer::Tx;
use crate::MAX_LINES;
use crate::audit::{CHECKS, FOLDS, Fold, SQLITE_CHECKS, violation};
use crate::countdowns::{self, Countdowns, Spot};
use crate::outcomes::{self, Found};
use crate::protocols::{self, Protocols};

fn job_view(row: &Row<'_>) -> Answer<JobView> {
    let key = key(row)?;
    let view = |row: &Row<'_>| -> rusqlite::Result<_> {
        Ok((
            row.get(HELD_WIDTH)?,
            row.get(HELD_WIDTH + 1)?,
            row.get(HELD_WIDTH + 2)?,
            row.get(HELD_WIDTH + 3)?,
            row.get(HELD_WIDTH + 4)?,
        ))
    };
    let (code, message, created_at, updated_at, completed_at) =
        view(row).map_err(|error| failed(&error))?;
    Ok(JobView {
        facts: job_facts(row, key.job_id).0,
        row: job_row(row)?,
        error: attempt_error(code, message),
        created_at,
        updated_at,
        completed_at,
    })
}

pub(super) fn attempt_error(code: Option<String>, message: Option<String>) -> Option<AttemptError> {
    code.map(|code| AttemptError { code, message: message.unwrap_or_default() })
}

const JOB_SELECT: &str = "j.error_code, j.error_message, j.created_at, j.updated_at, \
    j.completed_at FROM job j JOIN attempt a ON a.job_id = j.job_id AND a.step_index = 0 \
    AND a.branch = 0 AND a.turn = 0 AND a.attempt_no = 1";

pub(super) fn job(tx: &Tx<'_>, job_id: JobId) -> Answer<Option<JobView>> {
    let sql = format!("SELECT {HELD_COLUMNS}, {JOB_SELECT} WHERE j.job_id = ?1");
    let mut all = tx.all(&sql, params![job_id.as_bytes()], job_view)?;
    Ok(all.pop())
}

pub(super) fn jobs(tx: &Tx<'_>, filter: &JobFilter) -> Answer<Vec<JobView>> {
    let sql = format!(
        "SELECT {HELD_COLUMNS}, {JOB_SELECT}
         WHERE (?1 IS NULL OR j.tenant_id = ?1) AND (?2 IS NULL OR j.state = ?2)
             AND (?3 IS NULL OR j.job_id < ?3) AND (?5 IS NULL OR j.request_type = ?5)
             AND (?6 IS NULL OR j.created_at >= ?6) AND (?7 IS NULL OR j.created_at < ?7)
             AND (?8 IS NULL OR instr(coalesce(j.correlation_id, '') || char(10)
                 || coalesce(j.doc_id, '') || char(10) || coalesce(j.idempotency_key, '') || char(10)
                 || coalesce(j.error_code, '') || char(10) || coalesce(j.error_message, ''), ?8) > 0)
         ORDER BY j.job_id DESC LIMIT ?4"
    );
    let before = filter.before.as_ref().map(JobId::as_bytes);
    let state = filter.state.map(State::code);
    let time = |at: Option<u64>| at.map(|at| i64::try_from(at).unwrap_or(i64::MAX));
    let asked = params![
        filter.tenant_id,
        state,
        before,
        filter.limit,
        filter.request_type,
        time(filter.from),
        time(filter.to),
        filter.text,
    ];
    tx.all(&sql, asked, job_view)
}

pub(super) fn attempts_by(
    tx: &Tx<'_>,
    job_id: JobId,
    filter: &AttemptFilter,
) -> Answer<Vec<AttemptView>> {
    // Bare, so that it is a place in the index and not a question to every row.
    let behind = match filter.after {
        Some(_) => "AND (a.step_index, a.branch, a.turn, a.attempt_no) > (?2, ?3, ?4, ?5)",
        None => "",
    };
    let sql = format!(
        "SELECT {HELD_COLUMNS}, a.step_id, a.service, a.owner, a.ready_at, a.timer_at,
             CASE WHEN ?8 IS NULL OR length(CAST(a.output AS BLOB)) <= ?8 THEN a.output END,
             a.error_message, a.sent_at, a.acked_at, a.updated_at, s.paused_at IS NOT NULL,
             a.progress, a.countdown, v.seen_at, a.waits_for, a.gate, a.gate_max, a.admitted_at,
             a.child_id, length(CAST(a.output AS BLOB))
         FROM attempt a JOIN job j ON j.job_id = a.job_id
             LEFT JOIN service s ON s.service = a.service
             LEFT JOIN served v ON v.service = a.service
         WHERE a.job_id = ?1
             {behind}
             AND (NOT ?6 OR NOT EXISTS (SELECT 1 FROM attempt n
                 WHERE n.job_id = a.job_id AND n.step_index = a.step_index AND n.branch = a.branch
                     AND n.turn = a.turn AND n.attempt_no > a.attempt_no))
         ORDER BY a.step_index, a.branch, a.turn, a.attempt_no LIMIT ?7"
    );
    let after = filter.after;
    let asked = params![
        job_id.as_bytes(),
        after.map(|key| key.step_index),
        after.map(|key| key.branch.cast_signed()),
        after.map(|key| key.turn),
        after.map(|key| key.attempt_no),
        filter.newest,
        filter.limit.map_or(-1, i64::from),
        filter.max_output,
    ];
    let mut views = tx.all(&sql, asked, attempt_view)?;
    for view in views.iter_mut().filter(|view| view.is_in_line).take(MAX_LINES) {
        if let Some((gate, _)) = &view.gate {
            view.line = Some(super::gates::gate(tx, gate)?);
        }
    }
    for (key, batch) in super::batch::progress(tx, job_id)? {
        if let Some(view) = views.iter_mut().find(|view| view.key == key) {
            view.batch = Some(batch);
        }
    }
    Ok(views)
}

fn attempt_view(row: &Row<'_>) -> Answer<AttemptView> {
    let key = key(row)?;
    let attempt = attempt_row(row, &key)?;
    let view = || -> rusqlite::Result<AttemptView> {
        let gate = row.get::<_, Option<String>>(HELD_WIDTH + 15)?;
        let is_due = row.get::<_, Option<i64>>(HELD_WIDTH + 3)?.is_some();
        let is_admitted = row.get::<_, Option<i64>>(HELD_WIDTH + 17)?.is_some();
        let gate_max = row.get(HELD_WIDTH + 16)?;
        Ok(AttemptView {
            key,
            row: attempt,
            step_id: row.get(HELD_WIDTH)?,
            service: row.get(HELD_WIDTH + 1)?,
            owner: row.get::<_, Option<i64>>(HELD_WIDTH + 2)?.map(EngineNo),
            is_ready: is_due && (gate.is_none() || is_admitted),
            is_in_line: is_due && gate.is_some() && !is_admitted,
            line: None,
            gate: gate.map(|gate| (gate, gate_max)),
            is_paused: row.get(HELD_WIDTH + 10)?,
            timer_at: row.get(HELD_WIDTH + 4)?,
            output: row.get(HELD_WIDTH + 5)?,
            output_bytes: row.get(HELD_WIDTH + 19)?,
            error: attempt_error(row.get(41)?, row.get(HELD_WIDTH + 6)?),
            sent_at: row.get(HELD_WIDTH + 7)?,
            acked_at: row.get(HELD_WIDTH + 8)?,
            updated_at: row.get(HELD_WIDTH + 9)?,
            progress: row.get(HELD_WIDTH + 11)?,
            countdown: row.get(HELD_WIDTH + 12)?,
            served_at: row.get(HELD_WIDTH + 13)?,
            waits_for: row.get(HELD_WIDTH + 14)?,
            batch: None,
            child: row.get::<_, Option<[u8; 16]>>(HELD_WIDTH + 18)?.map(JobId::from_bytes),
        })
    };
    view().map_err(|error| failed(&error))
}

/// How activities have ended, each the newest attempt at its place.
pub(super) fn ends(tx: &Tx<'_>, places: &[(JobId, Place)]) -> Answer<Vec<Option<Ended>>> {
    places.iter().map(|(job_id, place)| end(tx, *job_id, *place)).collect()
}

fn end(tx: &Tx<'_>, job_id: JobId, place: Place) -> Answer<Option<Ended>> {
    let found = tx.all(
        "SELECT state, output, error_code, error_message FROM attempt
         WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3 AND turn <= ?4
         ORDER BY turn DESC, attempt_no DESC LIMIT 1",
        params![job_id.as_bytes(), place.step_index, place.branch.cast_signed(), place.turn],
        |row| {
            let code: u8 = row.get(0).map_err(|error| failed(&error))?;
            let text = |column| row.get(column).map_err(|error| failed(&error));
            let error = attempt_error(text(2)?, text(3)?);
            Ok(Ended { state: state(code)?, output: text(1)?, error })
        },
    )?;
    Ok(found.into_iter().next().filter(|ended| ended.state.is_terminal()))
}

pub(super) fn events_after(
    tx: &Tx<'_>,
    job_id: JobId,
    n: u64,
    limit: u32,
) -> Answer<Vec<EventView>> {
    let sql = include_str!("../../sql/sqlite/events_after.sql");
    let n = i64::try_from(n).unwrap_or(i64::MAX);
    tx.all(sql, params![job_id.as_bytes(), n, limit], |row| {
        let view = || -> rusqlite::Result<EventView> {
            let step: Option<u32> = row.get(2)?;
            let attempt: Option<u32> = row.get(3)?;
            Ok(EventView {
                n: row.get(0)?,
                at: row.get(1)?,
                attempt: step.zip(attempt),
                changes: row.get(4)?,
                note: row.get(5)?,
                branch: row.get::<_, i64>(6)?.cast_unsigned(),
                turn: row.get(7)?,
            })
        };
        view().map_err(|error| failed(&error))
    })
}

/// All checks in the reader's transaction, which is one snapshot.
pub(super) fn audit(tx: &Tx<'_>) -> Answer<Vec<Check>> {
    let mut checks = Vec::new();
    for (name, sql) in CHECKS.iter().chain(SQLITE_CHECKS) {
        let violations = tx.all(sql, [], |row| {
            let read = || {
                let id: Option<[u8; 16]> = row.get(0)?;
                let column = row.as_ref().column_name(0)?;
                Ok(violation(column, id.map(JobId::from_bytes), row.get(1)?))
            };
            read().map_err(|error| failed(&error))
        })?;
        checks.push(Check { name: (*name).to_owned(), violations });
    }
    for fold in FOLDS {
        checks.push(folded(tx, fold)?);
    }
    let texts = tx.all(protocols::SQL, [], |row| {
        let read = || Ok((row.get(0)?, row.get(1)?));
        read().map_err(|error| failed(&error))
    })?;
    let mut protocols = Protocols::of(texts);
    checks.push(countdowns(tx, &mut protocols)?);
    checks.push(outcomes(tx, &mut protocols)?);
    checks.push(eras::denied(tx)?);
    Ok(checks)
}

/// Whoever is parked waits for as many as are not over, and whoever has begun for none.
fn countdowns(tx: &Tx<'_>, protocols: &mut Protocols) -> Answer<Check> {
    let mut countdowns = Countdowns::by(protocols);
    each(tx, countdowns::SQL, |row| {
        let (step_index, turn) = (row.get(2)?, row.get(4)?);
        let place = Place { step_index, branch: row.get::<_, i64>(3)?.cast_unsigned(), turn };
        let (countdown, is_over, has_begun) = (row.get(5)?, row.get(6)?, row.get(7)?);
        let spot = Spot { place, countdown, is_over, has_begun };
        let protocol_id = row.get_ref(1)?.as_str()?;
        countdowns.take(JobId::from_bytes(row.get(0)?), protocol_id, spot);
        Ok(())
    })?;
    Ok(countdowns.end())
}

/// Jobs have ended as their steps have.
fn outcomes(tx: &Tx<'_>, protocols: &mut Protocols) -> Answer<Check> {
    let mut violations = Vec::new();
    each(tx, outcomes::SQL, |row| {
        let (protocol_id, node): (Option<String>, Option<u32>) = (row.get(2)?, row.get(3)?);
        let (job_id, detail) = (JobId::from_bytes(row.get(0)?), row.get(1)?);
        let found = Found { job_id, detail, failure: protocol_id.zip(node) };
        violations.extend(outcomes::judge(protocols, found));
        Ok(())
    })?;
    Ok(Check { name: outcomes::NAME.to_owned(), violations })
}

/// What a check that folds finds.
fn folded(tx: &Tx<'_>, (name, sql, fold): &Fold) -> Answer<Check> {
    let mut violations = Vec::new();
    each(tx, sql, |row| {
        let (found, told) = (row.get_ref(1)?.as_str()?, row.get_ref(2)?.as_str_or_null()?);
        if let Err(detail) = fold(found, told.unwrap_or_default()) {
            let column = row.as_ref().column_name(0)?;
            violations.push(violation(column, Some(JobId::from_bytes(row.get(0)?)), detail));
        }
        Ok(())
    })?;
    Ok(Check { name: (*name).to_owned(), violations })
}

/// Hands over row after row, of which there may be many.
fn each(
    tx: &Tx<'_>,
    sql: &str,
    mut take: impl FnMut(&Row<'_>) -> rusqlite::Result<()>,
) -> Answer<()> {
    let mut read = || {
        let mut statement = tx.connection.prepare(sql)?;
        let mut rows = statement.query([])?;
        while let Some(row) = rows.next()? {
            take(row)?;
        }
        Ok(())
    };
    read().map_err(|error| failed(&error))
}

/// How many jobs are open.
pub(super) fn count_open(tx: &Tx<'_>) -> Answer<u64> {
    let counts = super::upkeep::counts(tx)?;
    Ok(counts.iter().filter(|(state, _)| !state.is_terminal()).map(|(_, jobs)| jobs).sum())
}
