//! Steps 1 to 3 of messages of sequences; `graph.rs` has those of graphs.

use rusqlite::params;
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{AttemptKey, EngineNo};
use sprag_engine::store::{
    Answer, FinishOutcome, FinishPlan, FinishWrite, FollowWrite, StoreError,
};
use sprag_kernel::ledger::Semaphore;
use sprag_kernel::machine::State;
use sprag_kernel::{JobState, StepState};

use super::children;
use super::engines::expect_alive;
use super::graph;
use super::legs::{JobNow, attempt_now, event_behind, job_now};
use super::upkeep::Exceptions;
use super::writer::Tx;
use crate::AGEING_MS;
use crate::repeat;

pub(super) fn finish(
    tx: &Tx<'_>,
    engine: EngineNo,
    writes: &[FinishWrite],
) -> Answer<Vec<FinishOutcome>> {
    expect_alive(tx, engine)?;
    // Which message closes a job is settled in the order of the keys, however the slice was handed in.
    let mut order: Vec<usize> = (0..writes.len()).collect();
    order.sort_by_key(|n| writes[*n].key);
    let mut outcomes = vec![FinishOutcome::Gone; writes.len()];
    let exceptions = Exceptions::look(tx)?;
    for n in order {
        outcomes[n] = finish_one(tx, engine, &writes[n], exceptions)?;
    }
    Ok(outcomes)
}

fn finish_one(
    tx: &Tx<'_>,
    engine: EngineNo,
    write: &FinishWrite,
    exceptions: Exceptions,
) -> Answer<FinishOutcome> {
    let outcome = finish_steps(tx, engine, write, exceptions)?;
    if let (FinishOutcome::Done { job, .. }, Some(tells)) = (outcome, &write.tells)
        && job.is_terminal()
    {
        children::tell(tx, engine, (write.key.job_id, job), tells)?;
    }
    Ok(outcome)
}

fn finish_steps(
    tx: &Tx<'_>,
    engine: EngineNo,
    write: &FinishWrite,
    exceptions: Exceptions,
) -> Answer<FinishOutcome> {
    let Some(job) = job_now(tx, &write.key)? else { return Ok(FinishOutcome::Gone) };
    if let Some(graph) = &write.graph {
        return graph::finish(tx, write, graph, &job);
    }
    let cancelling = job.state == JobState::Cancelling;
    let plan = if cancelling { &write.cancelling } else { &write.open };
    let children = u32::from(plan.follows != FollowWrite::Nothing);
    let Ok(settled) = job.semaphore.settle(children) else {
        // The job is closed, perhaps by this very message.
        return repeated_finish(tx, engine, write, &job);
    };
    let enters_next =
        write.enter_next && plan.follows == FollowWrite::NextStep && !exceptions.is_any_paused;
    let state = if settled.hit { plan.job_closed } else { job.state };
    let (after, event) = (settled.after, tx.next_position()?);
    let message = Message { engine, write, plan, job: &job, after, state, enters_next, event };
    let may_be_plain = !settled.hit || write.tasks.is_empty() && !exceptions.is_any_limited;
    let is_written = may_be_plain && message.write_plain(tx)? || message.write_more(tx)?;
    crash_point("finish.after_statement");
    if !is_written {
        return repeated_finish(tx, engine, write, &job);
    }
    event_behind(tx, &write.key, (&job, event), &message.changes())?;
    tx.tally.moved(job.state, state);
    Ok(FinishOutcome::Done { job: state, job_version: job.version + 1, entered_next: enters_next })
}

/// The same write again, after its outcome was lost: what it had done.
fn repeated_finish(
    tx: &Tx<'_>,
    engine: EngineNo,
    write: &FinishWrite,
    job: &JobNow,
) -> Answer<FinishOutcome> {
    if !write.repeats || !repeat::finished(attempt_now(tx, &write.key)?, write) {
        return Ok(FinishOutcome::Gone);
    }
    let next = AttemptKey { step_index: write.key.step_index + 1, attempt_no: 1, ..write.key };
    let owner: Option<Option<i64>> = tx.find(
        "SELECT owner FROM attempt WHERE job_id = ?1 AND step_index = ?2 AND branch = ?3
             AND turn = ?4 AND attempt_no = 1 AND lease_id IS NULL",
        params![next.job_id.as_bytes(), next.step_index, next.branch.cast_signed(), next.turn],
        |row| row.get(0),
    )?;
    let entered_next = owner.flatten() == Some(engine.0);
    Ok(FinishOutcome::Done { job: job.state, job_version: job.version, entered_next })
}

/// A message whose plan is chosen.
struct Message<'a> {
    engine: EngineNo,
    write: &'a FinishWrite,
    plan: &'a FinishPlan,
    job: &'a JobNow,
    /// The semaphore and the job's state afterwards.
    after: Semaphore,
    state: JobState,
    /// Whether the next step is entered for this engine.
    enters_next: bool,
    /// The position of its event.
    event: i64,
}

impl Message<'_> {
    fn closes(&self) -> bool {
        self.after.get() == 0
    }

    /// The digits of the attempt and of the message.
    fn ledgers(&self) -> (u64, u64) {
        if self.closes() {
            (self.plan.ledger_closing.get(), self.plan.guid_closing.get())
        } else {
            (self.plan.ledger.get(), self.plan.guid.get())
        }
    }

    /// What the event row says.
    fn changes(&self) -> String {
        if self.closes() {
            let (from, to) = (self.job.state.code(), self.plan.job_closed.code());
            format!("{}J{from}>{to} ", self.plan.changes)
        } else {
            self.plan.changes.clone()
        }
    }

    /// Steps 1 to 3 of a message with nothing out of the common, if it is one; says whether they are done.
    fn write_plain(&self, tx: &Tx<'_>) -> Answer<bool> {
        let (sql, rows) = match (self.plan.follows, self.enters_next) {
            (FollowWrite::Nothing, _) => (include_str!("../../sql/sqlite/finish.sql"), 2),
            (FollowWrite::NextStep, true) => (include_str!("../../sql/sqlite/advance.sql"), 3),
            (FollowWrite::NextStep | FollowWrite::NextAttempt { .. } | FollowWrite::Duty, _) => {
                return Ok(false);
            }
        };
        if self.plan.step_to != StepState::Succeeded || self.plan.waiting_to.is_some() {
            return Ok(false);
        }
        let (key, (ledger, guid)) = (&self.write.key, self.ledgers());
        let before = tx.connection.total_changes();
        tx.execute(
            sql,
            params![
                key.job_id.as_bytes(),
                key.step_index,
                key.branch.cast_signed(),
                key.turn,
                key.attempt_no,
                self.write.version,
                self.job.version,
                tx.now,
                self.plan.step_to.code(),
                ledger,
                guid,
                self.after.get(),
                self.state.code(),
                self.closes().then_some(tx.now),
                self.engine.0,
                self.event,
            ],
        )?;
        match tx.connection.total_changes() - before {
            0 => Ok(false),
            written if written == rows => Ok(true),
            _ => Err(StoreError::Poison("a message was finished in part".to_owned())),
        }
    }

    /// Steps 1 to 3 of any message; says whether they were not done before.
    fn write_more(&self, tx: &Tx<'_>) -> Answer<bool> {
        let (follows, due, (losses, excused)) = match self.plan.follows {
            FollowWrite::Nothing => (0, None, (0, 0)),
            FollowWrite::NextStep => (1, None, (0, 0)),
            FollowWrite::Duty => unreachable!("a sequence has no duties"),
            FollowWrite::NextAttempt { delay_ms, losses, excused } => {
                let due = tx.now + i64::try_from(delay_ms).unwrap_or(i64::MAX / 2);
                (2, Some(due), (losses, excused))
            }
        };
        let (key, (ledger, guid)) = (&self.write.key, self.ledgers());
        let before = tx.connection.total_changes();
        tx.execute(
            include_str!("../../sql/sqlite/finish_more.sql"),
            params![
                key.job_id.as_bytes(),
                key.step_index,
                key.branch.cast_signed(),
                key.turn,
                key.attempt_no,
                self.write.version,
                self.job.version,
                tx.now,
                self.plan.step_to.code(),
                ledger,
                guid,
                u32::from(follows > 0),
                self.after.get(),
                self.state.code(),
                self.plan.waiting_to.map(State::code),
                follows,
                self.enters_next,
                self.engine.0,
                AGEING_MS,
                due,
                losses,
                excused,
                tasks(&self.write.tasks),
                self.event,
            ],
        )?;
        Ok(tx.connection.total_changes() > before)
    }
}

/// Completion tasks as the statement takes them; nothing for the many jobs that have none.
pub(super) fn tasks(tasks: &[String]) -> Option<String> {
    let text = || serde_json::to_string(tasks).expect("a list of text is JSON");
    (!tasks.is_empty()).then(text)
}
