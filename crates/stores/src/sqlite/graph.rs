//! Steps 1 to 3 of a message of a graph. What the job looks like is read in the writer's transaction, so it
//! holds until the statement is done; which of the plans that were handed in it takes follows from that.

use std::fmt::Write as _;

use rusqlite::params;
use serde_json::{Value, json};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, Place};
use sprag_engine::store::{
    Answer, Begins, Duties, FinishOutcome, FinishPlan, FinishWrite, FollowWrite, GraphFinish,
};
use sprag_kernel::JobState;
use sprag_kernel::ledger::Settled;
use sprag_kernel::machine::State;

use super::finish::tasks;
use super::legs::{JobNow, attempt_now};
use super::writer::Tx;
use crate::{AGEING_MS, repeat};

/// What the statement writes of the plans that were handed in.
struct Chosen<'a> {
    plan: &'a FinishPlan,
    /// How the job will end, if this message makes it certain.
    pins: Option<JobState>,
    /// Whether the job is ending, so that what nobody has begun is closed.
    is_ending: bool,
    /// Obligations that are opened, and closed besides its own.
    children: u32,
    closed: u32,
}

pub(super) fn finish(
    tx: &Tx<'_>,
    write: &FinishWrite,
    graph: &GraphFinish,
    job: &JobNow,
) -> Answer<FinishOutcome> {
    let chosen = choose(tx, write, graph, job)?;
    let settled = job.semaphore.settle_against(chosen.children, chosen.closed, 0);
    let Ok(settled) = settled else { return repeated(tx, write, job) };
    let before = tx.connection.total_changes();
    insert_op(tx, write, (graph, &chosen), (job, settled))?;
    crash_point("finish_graph.after_statement");
    if tx.connection.total_changes() == before {
        return repeated(tx, write, job);
    }
    let state = if settled.hit { chosen.plan.job_closed } else { job.state };
    tx.tally.moved(job.state, state);
    Ok(FinishOutcome::Done { job: state, job_version: job.version + 1, entered_next: false })
}

fn choose<'a>(
    tx: &Tx<'_>,
    write: &'a FinishWrite,
    graph: &'a GraphFinish,
    job: &JobNow,
) -> Answer<Chosen<'a>> {
    let (plan, pins) = match (job.state, job.verdict) {
        (JobState::Cancelling, _) => (&write.cancelling, None),
        (_, Some(_)) => (&graph.failing, None),
        (_, None) => (&write.open, graph.pins),
    };
    let is_ending = job.is_ending() || pins.is_some();
    let children = match plan.follows {
        FollowWrite::Nothing => 0,
        FollowWrite::NextAttempt { .. } => 1,
        FollowWrite::Duty => graph.duties.children(),
        FollowWrite::NextStep => unreachable!("a graph has no next step"),
    };
    let closed = if is_ending { count_waiting(tx, &write.key)? } else { 0 };
    Ok(Chosen { plan, pins, is_ending, children, closed })
}

/// The obligations that nobody has begun.
fn count_waiting(tx: &Tx<'_>, key: &AttemptKey) -> Answer<u32> {
    let sql =
        "SELECT count(*) FROM attempt WHERE job_id = ?1 AND state IN (0, 1, 5) AND ending IS NULL
        AND (ready_at IS NOT NULL OR timer_at IS NOT NULL OR owner IS NOT NULL OR countdown > 0
            OR ledger >= 1000000000000)";
    tx.find(sql, [key.job_id.as_bytes()], |row| row.get(0)).map(Option::unwrap_or_default)
}

/// The same write again, after its outcome was lost: what it had done.
fn repeated(tx: &Tx<'_>, write: &FinishWrite, job: &JobNow) -> Answer<FinishOutcome> {
    if !write.repeats || !repeat::finished(attempt_now(tx, &write.key)?, write) {
        return Ok(FinishOutcome::Gone);
    }
    Ok(FinishOutcome::Done { job: job.state, job_version: job.version, entered_next: false })
}

fn insert_op(
    tx: &Tx<'_>,
    write: &FinishWrite,
    (graph, chosen): (&GraphFinish, &Chosen<'_>),
    (job, settled): (&JobNow, Settled),
) -> Answer<usize> {
    let (key, plan) = (&write.key, chosen.plan);
    let none = Duties::default();
    let duties = if plan.follows == FollowWrite::Duty { &graph.duties } else { &none };
    let (due, losses, excused) = match plan.follows {
        FollowWrite::NextAttempt { delay_ms, losses, excused } => {
            let due = tx.now + i64::try_from(delay_ms).unwrap_or(i64::MAX / 2);
            (Some(due), losses, excused)
        }
        FollowWrite::Nothing | FollowWrite::Duty | FollowWrite::NextStep => (None, 0, 0),
    };
    let mut changes = plan.changes.clone();
    if settled.hit {
        let (from, to) = (job.state.code(), plan.job_closed.code());
        write!(changes, "J{from}>{to} ").expect("writing to a string does not fail");
    }
    tx.execute(
        include_str!("../../sql/sqlite/finish_graph.sql"),
        params![
            key.job_id.as_bytes(),
            key.step_index,
            key.branch.cast_signed(),
            key.turn,
            key.attempt_no,
            write.version,
            job.version,
            tx.now,
            plan.step_to.code(),
            if settled.hit { plan.ledger_closing.get() } else { plan.ledger.get() },
            if settled.hit { plan.guid_closing.get() } else { plan.guid.get() },
            chosen.children,
            chosen.closed,
            settled.after.get(),
            if settled.hit { plan.job_closed.code() } else { job.state.code() },
            chosen.pins.map(State::code),
            chosen.is_ending.then_some(graph.closes_to.code()),
            plan.waiting_to.is_some(),
            places(&duties.activates),
            places(&duties.counts_down),
            places(&duties.lets_in),
            inserts(duties),
            due,
            losses,
            excused,
            AGEING_MS,
            changes,
            tasks(&write.tasks),
            graph.closes_outbox_to.code(),
            tx.next_position()?,
        ],
    )
}

fn places(places: &[Place]) -> String {
    let place = |place: &Place| json!([place.step_index, place.branch, place.turn]);
    Value::Array(places.iter().map(place).collect()).to_string()
}

fn inserts(duties: &Duties) -> String {
    let rows = duties.inserts.iter().map(|row| {
        let step = &duties.steps[row.place.step_index as usize];
        let Place { step_index, branch, turn } = row.place;
        let is_open = row.begins != Begins::Dormant;
        json!([
            step_index,
            branch,
            turn,
            row.item,
            is_open,
            row.begins.countdown(),
            row.priority,
            row.delay_ms,
            step.step_id,
            step.step_type,
            step.service,
            row.gate,
            step.limit.and_then(|limit| limit.max),
            step.limit.and_then(|limit| limit.gap_us),
        ])
    });
    Value::Array(rows.collect()).to_string()
}
