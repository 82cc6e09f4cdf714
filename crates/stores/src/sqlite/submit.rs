//! Submitting jobs, and the protocols they follow.

use rusqlite::params;
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::{Answer, Begins, NewJob, NewStep, StoreError, Submitted};
use sprag_kernel::decide::submit::{Known, Slots, submit as decide};
use sprag_kernel::keys::{DedupKey, Hash, Mode};
use sprag_kernel::{ActivityLedger, Code, JobState, Refusal};

use super::engines::expect_alive;
use super::filters::Mark;
use super::rows::{failed, state};
use super::upkeep::Exceptions;
use super::writer::Tx;
use crate::{AGEING_MS, MAX_PROTOCOLS};

pub(super) fn put_protocol(tx: &Tx<'_>, protocol_id: &str, definition: &str) -> Answer<()> {
    match protocol(tx, protocol_id)? {
        Some(known) if known == definition => Ok(()),
        Some(_) => Err(StoreError::Refused(
            Refusal::new(Code::ProtocolChanged).with("protocol_id", protocol_id.to_owned()),
        )),
        None => {
            let row = params![protocol_id, definition, tx.now];
            tx.execute("INSERT INTO protocol VALUES (?1, ?2, ?3)", row).map(|_| ())
        }
    }
}

pub(super) fn protocol(tx: &Tx<'_>, protocol_id: &str) -> Answer<Option<String>> {
    let sql = "SELECT definition FROM protocol WHERE protocol_id = ?1";
    tx.find(sql, [protocol_id], |row| row.get(0))
}

pub(super) fn protocols(tx: &Tx<'_>) -> Answer<Vec<String>> {
    let sql = "SELECT definition FROM protocol ORDER BY created_at DESC, protocol_id DESC LIMIT ?1";
    tx.all(sql, [MAX_PROTOCOLS], |row| row.get(0).map_err(|error| failed(&error)))
}

pub(super) fn submit(
    tx: &Tx<'_>,
    engine: EngineNo,
    jobs: &[NewJob],
) -> Answer<Vec<Result<Submitted, Refusal>>> {
    expect_alive(tx, engine)?;
    let slice = Slice::begin(tx, engine)?;
    jobs.iter().map(|job| slice.submit(job)).collect()
}

/// A job that is part of something else.
pub(super) fn submit_one(
    tx: &Tx<'_>,
    engine: EngineNo,
    job: &NewJob,
) -> Answer<Result<Submitted, Refusal>> {
    Slice::begin(tx, engine)?.submit(job)
}

/// What holds for all jobs of a slice.
struct Slice<'a> {
    tx: &'a Tx<'a>,
    engine: EngineNo,
    exceptions: Exceptions,
    /// What new keys belong to.
    era: i64,
}

impl<'a> Slice<'a> {
    fn begin(tx: &'a Tx<'a>, engine: EngineNo) -> Answer<Self> {
        let (exceptions, era) = (Exceptions::look(tx)?, tx.eras().catch_up(tx)?);
        Ok(Self { tx, engine, exceptions, era })
    }

    fn submit(&self, job: &NewJob) -> Answer<Result<Submitted, Refusal>> {
        let mark = Mark::of(job.facts.tenant_id.as_bytes(), job.facts.dedup_key.as_bytes());
        if let Some((job_id, hash, state)) = self.find(job, mark)? {
            let known = Known { job_id: &job_id.to_string(), hash };
            return Ok(decide(Some(known), job.facts.hash).map(|_| {
                // The id tells a repeat of this very call, after its outcome was lost.
                Submitted { job_id, state, created: job_id == job.facts.job_id }
            }));
        }
        if self.exceptions.is_any_limited
            && let Err(refusal) = take_slot(self.tx, job)?
        {
            return Ok(Err(refusal));
        }
        self.insert(job)?;
        self.tx.eras().added(self.era, mark);
        let job_id = job.facts.job_id;
        Ok(Ok(Submitted { job_id, state: JobState::Queued, created: true }))
    }

    /// Who has the key of a job: nearly always nobody, and then no row is looked at.
    fn find(&self, job: &NewJob, mark: Mark) -> Answer<Option<(JobId, Hash, JobState)>> {
        let sql = include_str!("../../sql/sqlite/find_known.sql");
        for era in self.tx.eras().may_have(mark) {
            let named = params![era, job.facts.dedup_key, job.facts.tenant_id];
            let found: Option<([u8; 16], [u8; 32], u8)> =
                self.tx.find(sql, named, |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
            if let Some((id, hash, code)) = found {
                let known = (JobId::from_bytes(id), Hash::from_bytes(hash), state(code)?);
                return Ok(Some(known));
            }
        }
        Ok(None)
    }

    /// Writes a job, which has a key that nobody has.
    fn insert(&self, job: &NewJob) -> Answer<()> {
        let (tx, may_enter) = (self.tx, job.enter && !self.exceptions.is_any_paused);
        let facts = &job.facts;
        let created = tx.next_position()?;
        tx.execute(
            include_str!("../../sql/sqlite/insert_job.sql"),
            params![
                facts.job_id.as_bytes(),
                tx.now,
                job.steps.len(),
                facts.tenant_id,
                facts.request_type,
                facts.protocol_id,
                facts.dedup_key,
                facts.idempotency_key,
                facts.hash.as_bytes(),
                i64::from(facts.mode == Mode::Burst),
                facts.doc_id,
                facts.route.lane,
                facts.route.key,
                facts.priority,
                facts.correlation_id,
                facts.traceparent,
                facts.rerun_of.as_ref().map(JobId::as_bytes),
                facts.schema_version,
                facts.input_ref,
                facts.output_ref,
                facts.payload,
                job.initial(),
                job.is_graph,
                created,
                self.era,
            ],
        )?;
        tx.tally.born(JobState::Queued);
        crash_point("submit.after_job");
        let born = |(_, step): &(usize, &NewStep)| step.begins != Begins::Unborn;
        for (index, step) in job.steps.iter().enumerate().filter(born) {
            let first = Activation::of(tx, self.engine, job, (index, may_enter));
            tx.execute(
                include_str!("../../sql/sqlite/insert_attempt.sql"),
                params![
                    facts.job_id.as_bytes(),
                    index,
                    first.ledger.get(),
                    first.owner,
                    first.ready_at,
                    first.timer_at,
                    tx.now,
                    facts.priority + step.priority,
                    step.step_id,
                    step.step_type,
                    step.service,
                    step.begins.countdown(),
                    i64::try_from(step.delay_ms).unwrap_or(i64::MAX / 2),
                    job.gate(index),
                    step.limit.and_then(|limit| limit.max),
                    step.limit.and_then(|limit| limit.gap_us),
                ],
            )?;
        }
        crash_point("submit.after_attempts");
        let sql =
            "INSERT INTO event (pos, job_id, n, at, changes) VALUES (?1, ?2, 1, ?3, 'created')";
        tx.execute(sql, params![created, facts.job_id.as_bytes(), tx.now]).map(|_| ())
    }
}

/// A slot of the tenant, if it has a limit and the job counts against it.
fn take_slot(tx: &Tx<'_>, job: &NewJob) -> Answer<Result<(), Refusal>> {
    let tenant_id = &job.facts.tenant_id;
    if !DedupKey::takes_slot(&job.facts.dedup_key) {
        return Ok(Ok(()));
    }
    let sql = "SELECT max_open, open_jobs FROM tenant WHERE tenant_id = ?1";
    let slots = tx.find(sql, [tenant_id], |row| {
        Ok(Slots { max_open: row.get(0)?, open_jobs: row.get(1)? })
    })?;
    let Some(mut slots) = slots else { return Ok(Ok(())) };
    if let Err(refusal) = slots.take(tenant_id) {
        return Ok(Err(refusal));
    }
    let sql = "UPDATE tenant SET open_jobs = ?2 WHERE tenant_id = ?1";
    tx.execute(sql, params![tenant_id, slots.open_jobs])?;
    crash_point("submit.after_slot");
    Ok(Ok(()))
}

/// How the first attempt of a step begins: if it is activated, it is entered, ready or waiting for its
/// time.
struct Activation {
    ledger: ActivityLedger,
    owner: Option<i64>,
    ready_at: Option<i64>,
    timer_at: Option<i64>,
}

impl Activation {
    fn of(tx: &Tx<'_>, engine: EngineNo, job: &NewJob, (index, may_enter): (usize, bool)) -> Self {
        let mut this =
            Self { ledger: ActivityLedger::FRESH, owner: None, ready_at: None, timer_at: None };
        let step = &job.steps[index];
        if step.begins != Begins::Ready {
            return this;
        }
        let not_before = job.not_before.map(|due| i64::try_from(due).unwrap_or(i64::MAX));
        let delay = i64::try_from(step.delay_ms).unwrap_or(i64::MAX / 2);
        let due = not_before.max((delay > 0).then_some(tx.now + delay));
        if let Some(due) = due.filter(|due| *due > tx.now) {
            this.timer_at = Some(due);
        } else if may_enter && step.limit.is_none() {
            this.ledger = this.ledger.enter_leg1().expect("a fresh ledger is below its ceiling");
            this.owner = Some(engine.0);
        } else {
            let priority = i64::from(job.facts.priority + step.priority);
            this.ready_at = Some(tx.now - priority * AGEING_MS);
        }
        this
    }
}
