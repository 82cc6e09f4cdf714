//! Jobs in a transaction that locks the slots of their tenants: those of tenants with a limit, and those of
//! requests, which write more than a job. Slots are locked before the statements that look at them begin, so
//! that what is counted is what is there; all else is as for other jobs.

use std::collections::{BTreeSet, HashMap};

use sprag_engine::crash::crash_point;
use sprag_engine::ids::EngineNo;
use sprag_engine::store::{Answer, NewJob, StoreError, Submitted};
use sprag_kernel::JobState;
use sprag_kernel::decide::submit::Slots;
use sprag_kernel::keys::DedupKey;
use tokio_postgres::Transaction;

use super::failure::failed;
use super::pools::{Pools, begin, commit};
use super::rows::{get, unsigned};
use super::slice::signed;
use super::submit::{Answers, Runner, Slot, answer_known, insert};

/// How often a slice that lost a race is tried again. What is committed already is found as known.
const TRIES: u32 = 5;

/// Fills in the answers that are not known yet.
pub(super) async fn submit(
    pools: &Pools,
    engine: EngineNo,
    jobs: &[NewJob],
    answers: &mut Answers,
) -> Answer<()> {
    let mut client = pools.engine().await?;
    let mut tries = 0;
    loop {
        tries += 1;
        let tx = begin(&mut client).await?;
        let mut found = answers.to_vec();
        let done = match fill(&tx, pools.test_now(), (engine, jobs), &mut found).await {
            Ok(()) => commit(tx).await.map_err(|error| failed(&error)),
            Err(error) => Err(error),
        };
        match done {
            Ok(()) => {
                answers.clone_from_slice(&found);
                return Ok(());
            }
            Err(StoreError::Unavailable(_)) if tries < TRIES => {}
            Err(error) => return Err(error),
        }
    }
}

pub(super) async fn fill(
    tx: &Transaction<'_>,
    test_now: Option<i64>,
    (engine, jobs): (EngineNo, &[NewJob]),
    answers: &mut Answers,
) -> Answer<()> {
    // Whoever gives a tenant its first limit counts its jobs under a lock that waits for this one.
    let counted = tx.batch_execute("LOCK TABLE sprag.job IN ROW EXCLUSIVE MODE").await;
    counted.map_err(|error| failed(&error))?;
    let mut slots = lock(tx, jobs, answers).await?;
    crash_point("postgres.submit.after_slots");
    answer_known(Runner::Within(tx, test_now), jobs, answers).await?;
    let mut chosen = Vec::new();
    let mut keys = BTreeSet::new();
    for (job, answer) in jobs.iter().zip(answers.iter_mut()).filter(|(_, a)| a.is_none()) {
        let tenant_id = &job.facts.tenant_id;
        if !keys.insert((tenant_id, &job.facts.dedup_key)) {
            // The same once more in one slice: known once the first is there.
            continue;
        }
        match slots_of(&mut slots, job).map_or(Ok(()), |slots| slots.take(tenant_id)) {
            Ok(()) => chosen.push(job.clone()),
            Err(refusal) => *answer = Some(Err(refusal)),
        }
    }
    let created = insert(Runner::Within(tx, test_now), engine, &chosen, Slot::Held).await?;
    crash_point("postgres.submit.after_jobs");
    if created.len() < chosen.len() {
        // The engine is dead, or a limit was lifted and the job created by somebody else meanwhile.
        return Err(StoreError::Unavailable("the slots of a tenant have moved on".to_owned()));
    }
    for (tenant_id, slots) in &slots {
        let sql = "UPDATE sprag.tenant SET open_jobs = $2 WHERE tenant_id = $1";
        let written = tx.execute(sql, &[tenant_id, &signed(slots.open_jobs)]).await;
        written.map_err(|error| failed(&error))?;
        crash_point("postgres.submit.after_tenant");
    }
    for (job, answer) in jobs.iter().zip(answers.iter_mut()) {
        let job_id = job.facts.job_id;
        if created.contains(&job_id) {
            *answer = Some(Ok(Submitted { job_id, state: JobState::Queued, created: true }));
        }
    }
    answer_refused_twins(jobs, answers);
    answer_known(Runner::Within(tx, test_now), jobs, answers).await
}

/// The slots that a job counts against, if its tenant has a limit.
fn slots_of<'a>(slots: &'a mut HashMap<String, Slots>, job: &NewJob) -> Option<&'a mut Slots> {
    let takes_slot = DedupKey::takes_slot(&job.facts.dedup_key);
    slots.get_mut(&job.facts.tenant_id).filter(|_| takes_slot)
}

/// What was refused once in a slice is refused each time.
fn answer_refused_twins(jobs: &[NewJob], answers: &mut Answers) {
    let key = |job: &NewJob| (job.facts.tenant_id.clone(), job.facts.dedup_key.clone());
    let refused: HashMap<_, _> = jobs
        .iter()
        .zip(answers.iter())
        .filter_map(|(job, answer)| match answer {
            Some(Err(refusal)) => Some((key(job), refusal.clone())),
            Some(Ok(_)) | None => None,
        })
        .collect();
    for (job, answer) in jobs.iter().zip(answers.iter_mut()).filter(|(_, a)| a.is_none()) {
        *answer = refused.get(&key(job)).cloned().map(Err);
    }
}

/// Locks the slots of all tenants that have unanswered jobs, in the order of their names.
async fn lock(
    tx: &Transaction<'_>,
    jobs: &[NewJob],
    answers: &Answers,
) -> Answer<HashMap<String, Slots>> {
    let open = jobs.iter().zip(answers).filter(|(_, answer)| answer.is_none());
    let tenants: BTreeSet<&str> = open.map(|(job, _)| job.facts.tenant_id.as_str()).collect();
    let tenants: Vec<&str> = tenants.into_iter().collect();
    let sql = "SELECT tenant_id, max_open, open_jobs FROM sprag.tenant
        WHERE tenant_id = ANY ($1) ORDER BY tenant_id FOR UPDATE";
    let rows = tx.query(sql, &[&tenants]).await.map_err(|error| failed(&error))?;
    rows.iter()
        .map(|row| {
            let slots = Slots { max_open: unsigned(row, 1)?, open_jobs: unsigned(row, 2)? };
            Ok((get(row, 0)?, slots))
        })
        .collect()
}
