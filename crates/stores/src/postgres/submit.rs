//! Submitting jobs, and the protocols they follow.

use std::collections::HashSet;
use std::sync::Arc;

use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::{Answer, Begins, NewJob, NewStep, StoreError, Submitted};
use sprag_kernel::decide::submit::{Known, Submit, submit as decide};
use sprag_kernel::keys::{Hash, Mode};
use sprag_kernel::{Code, JobState, Refusal};
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::failure::failed;
use super::hints::ring;
use super::limited;
use super::pools::{Asked, Params, Pools, columns};
use super::rows::{get, hash, state};
use super::slice::{signed, span};
use crate::{AGEING_MS, MAX_PROTOCOLS};

pub(super) async fn put_protocol(pools: &Pools, id: &str, definition: &str) -> Answer<()> {
    let sql = "INSERT INTO sprag.protocol VALUES ($1, $2, sprag.now_ms($3)) ON CONFLICT DO NOTHING";
    pools.run(sql, &[&id, &definition, &pools.test_now()]).await?;
    match protocol(pools, id).await? {
        Some(known) if known == definition => Ok(()),
        Some(_) | None => Err(StoreError::Refused(
            Refusal::new(Code::ProtocolChanged).with("protocol_id", id.to_owned()),
        )),
    }
}

pub(super) async fn protocol(pools: &Pools, id: &str) -> Answer<Option<String>> {
    let sql = "SELECT definition FROM sprag.protocol WHERE protocol_id = $1";
    pools.run(sql, &[&id]).await?.first().map(|row| get(row, 0)).transpose()
}

pub(super) async fn protocols(pools: &Pools) -> Answer<Vec<String>> {
    let sql = "SELECT definition FROM sprag.protocol
        ORDER BY created_at DESC, protocol_id DESC LIMIT $1";
    pools.read(sql, &[&MAX_PROTOCOLS]).await?.iter().map(|row| get(row, 0)).collect()
}

/// The answers to a slice, as far as they are known.
pub(super) type Answers = [Option<Result<Submitted, Refusal>>];

/// Where a statement runs: by itself, or within a transaction that writes more than it.
#[derive(Clone, Copy)]
pub(super) enum Runner<'a> {
    /// As a transaction of its own.
    Alone(&'a Pools),
    /// In this one, at this time if it is a test's.
    Within(&'a Transaction<'a>, Option<i64>),
}

/// Which jobs an insert may create.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Slot {
    /// Those of tenants without a limit.
    Unlimited,
    /// All: the slots of the others are locked and taken.
    Held,
}

impl Runner<'_> {
    pub(super) fn test_now(&self) -> Option<i64> {
        match self {
            Self::Alone(pools) => pools.test_now(),
            Self::Within(_, now) => *now,
        }
    }

    pub(super) async fn ask(&self, asked: &Asked<'_>) -> Answer<Vec<Row>> {
        self.run(asked.sql, &asked.params()).await
    }

    pub(super) async fn run(&self, sql: &str, params: Params<'_>) -> Answer<Vec<Row>> {
        match self {
            Self::Alone(pools) => pools.run(sql, params).await,
            Self::Within(tx, _) => tx.query(sql, params).await.map_err(|error| failed(&error)),
        }
    }
}

pub(super) async fn submit(
    pools: &Pools,
    engine: EngineNo,
    jobs: &[NewJob],
) -> Answer<Vec<Result<Submitted, Refusal>>> {
    if jobs.is_empty() {
        return Ok(Vec::new());
    }
    let created = insert(Runner::Alone(pools), engine, jobs, Slot::Unlimited).await?;
    submitted(pools, engine, jobs, &created).await
}

/// The answers to a slice of which what was new has been created. What was not is looked at now: its creator has committed,
/// because the insert has waited for that, and dedup keys are never given away; a transaction around the two
/// statements would add nothing. What is neither belongs to a tenant with a limit.
pub(super) async fn submitted(
    pools: &Pools,
    engine: EngineNo,
    jobs: &[NewJob],
    created: &HashSet<JobId>,
) -> Answer<Vec<Result<Submitted, Refusal>>> {
    if created.is_empty() {
        pools.expect_alive(engine).await?;
    }
    let mut answers: Vec<Option<Result<Submitted, Refusal>>> = jobs
        .iter()
        .map(|NewJob { facts, .. }| {
            created.contains(&facts.job_id).then_some(Ok(Submitted {
                job_id: facts.job_id,
                state: JobState::Queued,
                created: true,
            }))
        })
        .collect();
    if created.len() < jobs.len() {
        answer_known(Runner::Alone(pools), jobs, &mut answers).await?;
    }
    if answers.iter().any(Option::is_none) {
        limited::submit(pools, engine, jobs, &mut answers).await?;
    }
    let is_new = |answer: &Option<Result<Submitted, Refusal>>| {
        matches!(answer, Some(Ok(Submitted { created: true, .. })))
    };
    if jobs.iter().zip(&answers).any(|(job, answer)| !job.enter && is_new(answer)) {
        ring(pools).await;
    }
    let gone = || StoreError::Unavailable("a job went away while it was looked at".to_owned());
    answers.into_iter().map(|answer| answer.ok_or_else(gone)).collect()
}

/// Fills in what was not created, as the kernel decides about the job that has the key.
pub(super) async fn answer_known(
    runner: Runner<'_>,
    jobs: &[NewJob],
    answers: &mut Answers,
) -> Answer<()> {
    let open: Vec<usize> = (0..jobs.len()).filter(|n| answers[*n].is_none()).collect();
    let place: Vec<i32> = open.iter().map(|n| i32::try_from(*n).unwrap_or(i32::MAX)).collect();
    let tenant: Vec<&str> = open.iter().map(|n| jobs[*n].facts.tenant_id.as_str()).collect();
    let dedup: Vec<&str> = open.iter().map(|n| jobs[*n].facts.dedup_key.as_str()).collect();
    let sql = include_str!("../../sql/postgres/find_known.sql");
    for row in runner.run(sql, &[&place, &tenant, &dedup]).await? {
        let n = usize::try_from(get::<i32>(&row, 0)?).unwrap_or(usize::MAX);
        let job_id = JobId::from(get::<Uuid>(&row, 1)?);
        let known = (job_id, hash(get(&row, 2)?)?, state(&row, 3)?);
        answers[n] = Some(answer_for(&jobs[n], known));
    }
    Ok(())
}

fn answer_for(
    job: &NewJob,
    (job_id, hash, state): (JobId, Hash, JobState),
) -> Result<Submitted, Refusal> {
    let known_id = job_id.to_string();
    match decide(Some(Known { job_id: &known_id, hash }), job.facts.hash)? {
        Submit::Known(_) => Ok(Submitted { job_id, state, created: job_id == job.facts.job_id }),
        Submit::Create => unreachable!("a key that somebody has is not free"),
    }
}

/// The rows of a slice that belong to jobs but are not columns of theirs.
struct Beginnings<'a> {
    /// Sorted, for a binary search.
    job_id: Vec<Uuid>,
    shape: Vec<i32>,
    not_before: Vec<i64>,
    enter: Vec<bool>,
    /// So many for each job: as many as the longest has steps, if any has a gate at all.
    gates: Vec<Option<String>>,
    gates_each: i32,
    /// Every different list of steps, with the protocol that it belongs to.
    shapes: Vec<(&'a str, &'a Arc<[NewStep]>)>,
}

impl<'a> Beginnings<'a> {
    fn of(jobs: &'a [NewJob]) -> Self {
        let mut sorted: Vec<&NewJob> = jobs.iter().collect();
        sorted.sort_by_key(|job| job.facts.job_id);
        let mut shapes: Vec<(&str, &Arc<[NewStep]>)> = Vec::new();
        let shape = sorted.iter().map(|job| {
            let id = job.facts.protocol_id.as_str();
            let is_known =
                |(known, steps): &(&str, &_)| *known == id && Arc::ptr_eq(steps, &job.steps);
            shapes.iter().position(is_known).unwrap_or_else(|| {
                shapes.push((id, &job.steps));
                shapes.len() - 1
            })
        });
        let shape = shape.map(|n| i32::try_from(n).unwrap_or(i32::MAX)).collect();
        let most = sorted.iter().map(|job| job.gates.len()).max().unwrap_or(0);
        let gates_of = |job: &&NewJob| (0..most).map(|n| job.gate(n).map(str::to_owned)).collect();
        Self {
            job_id: sorted.iter().map(|job| job.facts.job_id.uuid()).collect(),
            shape,
            not_before: sorted
                .iter()
                .map(|job| i64::try_from(job.not_before.unwrap_or(0)).unwrap_or(i64::MAX))
                .collect(),
            enter: sorted.iter().map(|job| job.enter).collect(),
            gates: sorted.iter().flat_map::<Vec<_>, _>(gates_of).collect(),
            gates_each: i32::try_from(most).unwrap_or(i32::MAX),
            shapes,
        }
    }

    /// Every step of every shape, with the number and the protocol of its shape.
    fn steps(&self) -> Vec<(i32, &'a str, i32, &'a NewStep)> {
        let small = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
        let shapes = self.shapes.iter().enumerate();
        shapes
            .flat_map(|(shape, (protocol_id, steps))| {
                let born = |(_, step): &(usize, &NewStep)| step.begins != Begins::Unborn;
                let steps = steps.iter().enumerate().filter(born);
                steps.map(move |(n, step)| (small(shape), *protocol_id, small(n), step))
            })
            .collect()
    }
}

pub(super) async fn insert(
    runner: Runner<'_>,
    engine: EngineNo,
    jobs: &[NewJob],
    slot: Slot,
) -> Answer<HashSet<JobId>> {
    created(&runner.ask(&insertion((engine, runner.test_now()), jobs, slot)).await?)
}

/// The jobs that an insertion has created.
pub(super) fn created(rows: &[Row]) -> Answer<HashSet<JobId>> {
    rows.iter().map(|row| get::<Uuid>(row, 0).map(JobId::from)).collect()
}

#[allow(clippy::too_many_lines)] // one line per column of the statement
pub(super) fn insertion(
    (engine, test_now): (EngineNo, Option<i64>),
    jobs: &[NewJob],
    slot: Slot,
) -> Asked<'_> {
    let mut sorted: Vec<&NewJob> = jobs.iter().collect();
    sorted.sort_by_key(|job| (&job.facts.tenant_id, &job.facts.dedup_key));
    let begin = Beginnings::of(jobs);
    let steps = begin.steps();
    macro_rules! column {
        ($job:ident => $value:expr) => {
            sorted.iter().map(|$job| $value).collect::<Vec<_>>()
        };
    }
    let columns = columns![
        engine.0,
        test_now,
        column!(job => job.facts.job_id.uuid()),
        column!(job => i32::try_from(job.steps.len()).unwrap_or(i32::MAX)),
        column!(job => job.facts.tenant_id.as_str()),
        column!(job => job.facts.request_type.as_str()),
        column!(job => job.facts.protocol_id.as_str()),
        column!(job => job.facts.dedup_key.as_str()),
        column!(job => job.facts.idempotency_key.as_deref()),
        column!(job => job.facts.hash.as_bytes().as_slice()),
        column!(job => i16::from(job.facts.mode == Mode::Burst)),
        column!(job => job.facts.doc_id.as_deref()),
        column!(job => signed(job.facts.route.lane)),
        column!(job => job.facts.route.key.as_str()),
        column!(job => job.facts.priority),
        column!(job => job.facts.correlation_id.as_deref()),
        column!(job => job.facts.traceparent.as_deref()),
        column!(job => job.facts.rerun_of.map(JobId::uuid)),
        column!(job => job.facts.schema_version.as_str()),
        column!(job => job.facts.input_ref.as_str()),
        column!(job => job.facts.output_ref.as_str()),
        column!(job => job.facts.payload.as_str()),
        AGEING_MS,
        begin.job_id,
        begin.shape,
        begin.not_before,
        begin.enter,
        steps.iter().map(|(shape, ..)| *shape).collect::<Vec<_>>(),
        steps.iter().map(|(_, _, index, _)| *index).collect::<Vec<_>>(),
        steps.iter().map(|(.., step)| step.step_id.as_str()).collect::<Vec<_>>(),
        steps.iter().map(|(.., step)| step.step_type.as_str()).collect::<Vec<_>>(),
        steps.iter().map(|(.., step)| step.service.as_str()).collect::<Vec<_>>(),
        steps.iter().map(|(.., step)| step.priority).collect::<Vec<_>>(),
        steps.iter().map(|(_, id, ..)| *id).collect::<Vec<_>>(),
        slot == Slot::Held,
        column!(job => signed(job.initial())),
        column!(job => i16::from(job.is_graph)),
        steps.iter().map(|(.., step)| begins(step.begins)).collect::<Vec<_>>(),
        steps.iter().map(|(.., s)| signed(s.begins.countdown())).collect::<Vec<_>>(),
        steps.iter().map(|(.., step)| span(step.delay_ms)).collect::<Vec<_>>(),
        steps.iter().map(|(.., step)| gate_max(step)).collect::<Vec<_>>(),
        steps.iter().map(|(.., step)| gate_gap(step)).collect::<Vec<_>>(),
        begin.gates,
        begin.gates_each,
    ];
    Asked::new(include_str!("../../sql/postgres/submit.sql"), columns)
}

/// How many may run at the gate of a step.
pub(super) fn gate_max(step: &NewStep) -> Option<i32> {
    step.limit?.max.map(signed)
}

/// From one start at the gate of a step to the next, in microseconds.
pub(super) fn gate_gap(step: &NewStep) -> Option<i64> {
    step.limit?.gap_us.map(span)
}

/// What a statement calls the beginning of a row: 1 if it is activated, 0 if it waits for others.
pub(super) fn begins(begins: Begins) -> i16 {
    match begins {
        Begins::Ready => 1,
        Begins::Parked(_) | Begins::Dormant | Begins::Unborn => 0,
    }
}
