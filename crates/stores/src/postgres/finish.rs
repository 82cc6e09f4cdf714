//! Steps 1 to 3 of a slice of messages, in one statement. Both plans of each message go in; the statement
//! takes one by the job's state, to which it holds the job.

use std::collections::HashSet;

use sprag_engine::ids::EngineNo;
use sprag_engine::store::{Answer, FinishOutcome, FinishPlan, FinishWrite, FollowWrite};
use sprag_kernel::JobState;
use sprag_kernel::machine::State;
use tokio_postgres::Row;

use super::children;
use super::graph;
use super::hints::ring;
use super::legs::{attempts_now, ordinal};
use super::pools::{Asked, Pools, columns};
use super::rows::{get, state, unsigned_long};
use super::slice::{Keys, Kinds, code, signed, sorted, span};
use super::submit::Runner;
use crate::AGEING_MS;
use crate::repeat;

type Slice<'a> = [(usize, &'a FinishWrite)];

pub(super) async fn finish(
    pools: &Pools,
    engine: EngineNo,
    writes: &[FinishWrite],
) -> Answer<Vec<FinishOutcome>> {
    let mut outcomes = vec![FinishOutcome::Gone; writes.len()];
    let all = sorted(writes, |write| (write.key, write.version));
    let (tellers, all): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, write)| write.tells.is_some());
    let (graphs, slice): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, write)| write.graph.is_some());
    let mut is_any_done = graph::finish(pools, engine, graphs, &mut outcomes).await?;
    let mut left = slice;
    while !left.is_empty() {
        // A sequence has one message at a time. Should there be two of a job, the second finds what the first has done.
        let mut jobs = HashSet::with_capacity(left.len());
        let (now, later): (Vec<_>, Vec<_>) =
            left.into_iter().partition(|(_, write)| jobs.insert(write.key.job_id));
        is_any_done |= finish_slice(Runner::Alone(pools), engine, &now, &mut outcomes).await?;
        left = later;
    }
    for (place, write) in tellers {
        let Some(tells) = &write.tells else { unreachable!("these tell somebody") };
        outcomes[place] = children::finish(pools, engine, write, tells).await?;
        is_any_done |= outcomes[place] != FinishOutcome::Gone;
    }
    if !is_any_done && !writes.is_empty() {
        pools.expect_alive(engine).await?;
    }
    if writes.iter().any(|write| write.repeats) {
        tell_repeated(pools, engine, writes, &mut outcomes).await?;
    }
    tell_of_work(pools, writes.iter().zip(outcomes.iter().copied())).await;
    Ok(outcomes)
}

/// Tells other engines if any of these has left them something.
pub(super) async fn tell_of_work(
    pools: &Pools,
    mut done: impl Iterator<Item = (&FinishWrite, FinishOutcome)>,
) {
    if done.any(|(write, outcome)| leaves_work(write, outcome)) {
        ring(pools).await;
    }
}

/// Whether there may be something now that another engine can take: a step that was not entered for this one,
/// or hooks to be called.
fn leaves_work(write: &FinishWrite, outcome: FinishOutcome) -> bool {
    match outcome {
        FinishOutcome::Gone => false,
        FinishOutcome::Done { job, .. } if job.is_terminal() => !write.tasks.is_empty(),
        FinishOutcome::Done { entered_next, .. } => {
            write.graph.is_some() || (write.open.follows == FollowWrite::NextStep && !entered_next)
        }
    }
}

/// The messages of sequences, each of another job.
pub(super) async fn finish_slice(
    runner: Runner<'_>,
    engine: EngineNo,
    slice: &Slice<'_>,
    outcomes: &mut [FinishOutcome],
) -> Answer<bool> {
    let rows = runner.ask(&finishing((engine, runner.test_now()), slice, None)).await?;
    for (place, outcome) in finished(&rows, slice)? {
        outcomes[place] = outcome;
    }
    Ok(!rows.is_empty())
}

/// What a statement says has been finished, at its places in the slice.
pub(super) fn finished(rows: &[Row], slice: &Slice<'_>) -> Answer<Vec<(usize, FinishOutcome)>> {
    let read = |row| {
        let (place, _) = slice[ordinal(get::<i32>(row, 0)?.into())];
        let job: JobState = state(row, 1)?;
        debug_assert!(job.code() <= JobState::Cancelled.code());
        let (job_version, entered_next) = (unsigned_long(row, 2)?, get(row, 3)?);
        Ok((place, FinishOutcome::Done { job, job_version, entered_next }))
    };
    rows.iter().map(read).collect()
}

/// Steps 1 to 3 of a slice; with a mark, of those messages that have just left it.
pub(super) fn finishing<'a>(
    at: (EngineNo, Option<i64>),
    slice: &[(usize, &'a FinishWrite)],
    mark: Option<&'a str>,
) -> Asked<'a> {
    let keys = Keys::of(slice.iter().map(|(_, write)| (&write.key, write.version)));
    let (kind, kinds) = Kinds::of(slice, are_alike);
    let mut columns = keys.columns(at);
    columns.extend(columns![
        code(JobState::Cancelling),
        per_plan(&kinds, |plan| follows(plan.follows)),
        per_plan(&kinds, |plan| code(plan.step_to)),
        per_end(&kinds, |plan| {
            [plan.ledger, plan.ledger_closing].map(|l| l.get().cast_signed())
        }),
        per_end(&kinds, |plan| [plan.guid, plan.guid_closing].map(|g| g.get().cast_signed())),
        kinds.column(|write| write.enter_next),
        AGEING_MS,
        per_plan(&kinds, |plan| losses(plan.follows).0),
        per_plan(&kinds, |plan| delay(plan.follows)),
        per_plan(&kinds, |plan| code(plan.job_closed)),
        kind,
        per_plan(&kinds, |plan| plan.changes.as_str()),
        kinds.column(|write| write.cancelling.waiting_to.map(code)),
        kinds.column(|write| tasks(&write.tasks)),
        per_plan(&kinds, |plan| losses(plan.follows).1),
        mark,
    ]);
    Asked::new(include_str!("../../sql/postgres/finish.sql"), columns)
}

/// Recognises writes that are committed already, and says what they had done.
async fn tell_repeated(
    pools: &Pools,
    engine: EngineNo,
    writes: &[FinishWrite],
    outcomes: &mut [FinishOutcome],
) -> Answer<()> {
    let now = attempts_now(pools, writes.iter().map(|write| &write.key)).await?;
    for (write, outcome) in writes.iter().zip(outcomes) {
        let repeated = write.repeats && repeat::finished(now.get(&write.key).copied(), write);
        if *outcome == FinishOutcome::Gone && repeated {
            let sql = include_str!("../../sql/postgres/finished.sql");
            let key = &write.key;
            let (job_id, branch) = (key.job_id.uuid(), key.branch.cast_signed());
            let (next, turn) = (signed(key.step_index + 1), signed(key.turn));
            let rows = pools.run(sql, &[&job_id, &next, &branch, &turn, &engine.0]).await?;
            if let Some(row) = rows.first() {
                let (job, job_version) = (state(row, 0)?, unsigned_long(row, 1)?);
                let entered_next = write.graph.is_none() && get(row, 2)?;
                *outcome = FinishOutcome::Done { job, job_version, entered_next };
            }
        }
    }
    Ok(())
}

/// Whether two messages are planned alike.
fn are_alike(one: &FinishWrite, other: &FinishWrite) -> bool {
    one.enter_next == other.enter_next
        && one.open == other.open
        && one.cancelling == other.cancelling
        && one.tasks == other.tasks
}

/// Two values per kind: of the plan for an open job, of that for a job that is being cancelled.
fn per_plan<'a, C>(kinds: &Kinds<'a, FinishWrite>, value: impl Fn(&'a FinishPlan) -> C) -> Vec<C> {
    kinds.columns(|write| [&write.open, &write.cancelling].map(&value))
}

/// Four values per kind: of each plan, for a message that leaves the job open and for one that closes it.
fn per_end<C>(kinds: &Kinds<'_, FinishWrite>, values: impl Fn(&FinishPlan) -> [C; 2]) -> Vec<C> {
    kinds.columns(|write| [&write.open, &write.cancelling].into_iter().flat_map(&values))
}

/// Completion tasks as the statement takes them, one per line; nothing for the many jobs that have none.
pub(super) fn tasks(tasks: &[String]) -> Option<String> {
    (!tasks.is_empty()).then(|| tasks.join("\n"))
}

/// What the statement calls what follows.
fn follows(follows: FollowWrite) -> i16 {
    match follows {
        FollowWrite::Nothing => 0,
        FollowWrite::NextStep => 1,
        FollowWrite::NextAttempt { .. } => 2,
        FollowWrite::Duty => unreachable!("a sequence has no duties"),
    }
}

/// Lost engines, and those that are held against nobody.
pub(super) fn losses(follows: FollowWrite) -> (i32, i32) {
    match follows {
        FollowWrite::NextAttempt { losses, excused, .. } => (signed(losses), signed(excused)),
        FollowWrite::Nothing | FollowWrite::NextStep | FollowWrite::Duty => (0, 0),
    }
}

pub(super) fn delay(follows: FollowWrite) -> i64 {
    match follows {
        FollowWrite::NextAttempt { delay_ms, .. } => span(delay_ms),
        FollowWrite::Nothing | FollowWrite::NextStep | FollowWrite::Duty => 0,
    }
}
