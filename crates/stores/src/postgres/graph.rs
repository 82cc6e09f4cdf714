//! Steps 1 to 3 of messages of graphs, many in one statement. All three plans of each message go in; the
//! statement takes one by the job's state under its lock.

use sprag_engine::ids::{EngineNo, Place};
use sprag_engine::store::{
    Answer, FinishOutcome, FinishPlan, FinishWrite, FollowWrite, GraphFinish,
};
use sprag_kernel::JobState;

use super::finish::{delay, losses, tasks};
use super::legs::ordinal;
use super::pools::Pools;
use super::rows::{get, state, unsigned_long};
use super::slice::{Keys, code, column, signed, span};
use super::submit::{Runner, begins, gate_gap, gate_max};
use crate::AGEING_MS;

type Slice<'a> = Vec<(usize, &'a FinishWrite)>;

/// Finishes them, in as few statements as may be; says whether any was finished.
pub(super) async fn finish(
    pools: &Pools,
    engine: EngineNo,
    writes: Slice<'_>,
    outcomes: &mut [FinishOutcome],
) -> Answer<bool> {
    let mut is_any_done = false;
    for slice in waves(writes) {
        is_any_done |= finish_slice(Runner::Alone(pools), engine, &slice, outcomes).await?;
    }
    Ok(is_any_done)
}

/// A message that makes its job's end certain closes what others of the slice may just have opened, and a
/// row is written once by a statement; so it has a statement without others of its job.
fn waves(writes: Slice<'_>) -> Vec<Slice<'_>> {
    let pins = |write: &FinishWrite| graph_of(write).pins.is_some();
    let (alone, together): (Slice<'_>, Slice<'_>) =
        writes.into_iter().partition(|(_, write)| pins(write));
    let mut waves = vec![together];
    for (place, write) in alone {
        // The first wave has other messages of any job; of two that fail at once the second finds it so.
        let is_free = |wave: &&mut Slice<'_>| {
            wave.iter().all(|(_, other)| other.key.job_id != write.key.job_id)
        };
        match waves[1..].iter_mut().find(is_free) {
            Some(wave) => wave.push((place, write)),
            None => waves.push(vec![(place, write)]),
        }
    }
    waves.retain(|wave| !wave.is_empty());
    waves
}

#[allow(clippy::too_many_lines)] // one line per column of the statement
pub(super) async fn finish_slice(
    runner: Runner<'_>,
    engine: EngineNo,
    slice: &Slice<'_>,
    outcomes: &mut [FinishOutcome],
) -> Answer<bool> {
    let keys = Keys::of(slice.iter().map(|(_, write)| (&write.key, write.version)));
    let activates = Places::of(slice, |graph| graph.duties.activates.iter().copied());
    let counts_down = Places::of(slice, |graph| {
        let duties = &graph.duties;
        duties.counts_down.iter().chain(&duties.lets_in).copied()
    });
    let opens = Places::of(slice, |graph| graph.duties.inserts.iter().map(|row| row.place));
    let rows: Vec<_> = slice
        .iter()
        .flat_map(|(_, write)| {
            let duties = &graph_of(write).duties;
            let step = |row: &Place| &duties.steps[row.step_index as usize];
            duties.inserts.iter().map(move |row| (row, step(&row.place)))
        })
        .collect();
    let found = runner
        .run(
            include_str!("../../sql/postgres/finish_graph.sql"),
            &[
                &engine.0,
                &runner.test_now(),
                &keys.job_id,
                &keys.step_index,
                &keys.branch,
                &keys.turn,
                &keys.attempt_no,
                &keys.version,
                &code(JobState::Cancelling),
                &column(slice, |write| follows(write.open.follows)),
                &column(slice, |write| signed(children(write))),
                &column(slice, |write| graph_of(write).pins.map(code)),
                &column(slice, |write| code(graph_of(write).closes_to)),
                &per_plan(slice, |plan| code(plan.step_to)),
                &per_end(slice, |plan| {
                    [plan.ledger, plan.ledger_closing].map(|l| l.get().cast_signed())
                }),
                &per_end(slice, |plan| {
                    [plan.guid, plan.guid_closing].map(|g| g.get().cast_signed())
                }),
                &column(slice, |write| losses(write.open.follows).0),
                &column(slice, |write| delay(write.open.follows)),
                &AGEING_MS,
                &activates.ends,
                &activates.step_index,
                &activates.branch,
                &activates.turn,
                &counts_down.ends,
                &counts_down.step_index,
                &counts_down.branch,
                &counts_down.turn,
                &opens.ends,
                &opens.step_index,
                &opens.branch,
                &opens.turn,
                &rows.iter().map(|(row, _)| row.item.as_deref()).collect::<Vec<_>>(),
                &rows.iter().map(|(row, _)| begins(row.begins)).collect::<Vec<_>>(),
                &rows.iter().map(|(row, _)| signed(row.begins.countdown())).collect::<Vec<_>>(),
                &rows.iter().map(|(row, _)| row.priority).collect::<Vec<_>>(),
                &rows.iter().map(|(row, _)| span(row.delay_ms)).collect::<Vec<_>>(),
                &rows.iter().map(|(_, step)| step.step_id.as_str()).collect::<Vec<_>>(),
                &rows.iter().map(|(_, step)| step.step_type.as_str()).collect::<Vec<_>>(),
                &rows.iter().map(|(_, step)| step.service.as_str()).collect::<Vec<_>>(),
                &per_plan(slice, |plan| code(plan.job_closed)),
                &per_plan(slice, |plan| plan.changes.as_str()),
                &column(slice, |write| tasks(&write.tasks)),
                &rows.iter().map(|(row, _)| row.gate.as_deref()).collect::<Vec<_>>(),
                &rows.iter().map(|(_, step)| gate_max(step)).collect::<Vec<_>>(),
                &rows.iter().map(|(_, step)| gate_gap(step)).collect::<Vec<_>>(),
                &column(slice, |write| losses(write.open.follows).1),
                &column(slice, |write| code(graph_of(write).closes_outbox_to)),
            ],
        )
        .await?;
    for row in &found {
        let (place, _) = slice[ordinal(get::<i32>(row, 0)?.into())];
        let (job, job_version) = (state(row, 1)?, unsigned_long(row, 2)?);
        outcomes[place] = FinishOutcome::Done { job, job_version, entered_next: false };
    }
    Ok(!found.is_empty())
}

/// Places of all messages, one message after the other.
#[derive(Default)]
struct Places {
    /// How many there are up to the end of each message.
    ends: Vec<i32>,
    step_index: Vec<i32>,
    branch: Vec<i64>,
    turn: Vec<i32>,
}

impl Places {
    fn of<'a, I: Iterator<Item = Place>>(
        slice: &Slice<'a>,
        places: impl Fn(&'a GraphFinish) -> I,
    ) -> Self {
        let mut this = Self::default();
        for (_, write) in slice {
            for place in places(graph_of(write)) {
                this.step_index.push(signed(place.step_index));
                this.branch.push(place.branch.cast_signed());
                this.turn.push(signed(place.turn));
            }
            this.ends.push(i32::try_from(this.turn.len()).expect("a slice fits into memory"));
        }
        this
    }
}

fn graph_of(write: &FinishWrite) -> &GraphFinish {
    write.graph.as_ref().expect("only messages of graphs come here")
}

/// Three values per message: of the plan for a job that goes on, that has failed, that is being cancelled.
fn per_plan<'a, C>(slice: &Slice<'a>, value: impl Fn(&'a FinishPlan) -> C) -> Vec<C> {
    slice.iter().flat_map(|(_, write)| plans(write)).map(value).collect()
}

/// Six values per message: of each plan, for one that leaves the job open and for one that closes it.
fn per_end<C>(slice: &Slice<'_>, values: impl Fn(&FinishPlan) -> [C; 2]) -> Vec<C> {
    slice.iter().flat_map(|(_, write)| plans(write)).flat_map(values).collect()
}

fn plans(write: &FinishWrite) -> [&FinishPlan; 3] {
    [&write.open, &graph_of(write).failing, &write.cancelling]
}

/// What the statement calls what follows.
fn follows(follows: FollowWrite) -> i16 {
    match follows {
        FollowWrite::Nothing => 0,
        FollowWrite::Duty => 1,
        FollowWrite::NextAttempt { .. } => 2,
        FollowWrite::NextStep => unreachable!("a graph has no next step"),
    }
}

fn children(write: &FinishWrite) -> u32 {
    match write.open.follows {
        FollowWrite::Nothing | FollowWrite::NextStep => 0,
        FollowWrite::NextAttempt { .. } => 1,
        FollowWrite::Duty => graph_of(write).duties.children(),
    }
}
