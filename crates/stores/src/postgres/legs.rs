//! The two legs up to the entry of Leg2: claim, the work of Leg1, messages that end attempts.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use sprag_engine::ids::{AttemptKey, EngineNo, JobId};
use sprag_engine::store::{
    Answer, DispatchOutcome, DispatchWrite, EndOutcome, EndWrite, HandOff, Held, JobFacts, Pulse,
    Wish, ending_code,
};
use sprag_kernel::decide::rows::{LONE_DELIVERY, LeaseId};
use sprag_kernel::{JobState, OutboxState};
use tokio_postgres::Row;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::children;
use super::pools::{Asked, Pools, columns};
use super::rows::{HELD_WIDTH, get, held_of_each, key, state, unsigned_long, with_held};
use super::slice::{Keys, Kinds, code, column, sorted, span};
use super::submit::Runner;
use crate::SHARED_BYTES;
use crate::repeat::{self, AttemptNow};

pub(super) async fn claim(pools: &Pools, engine: EngineNo, wishes: &[Wish]) -> Answer<Vec<Held>> {
    let services: Vec<&str> = wishes.iter().map(|wish| wish.service.as_str()).collect();
    let most: Vec<i64> = wishes.iter().map(|wish| wish.max.into()).collect();
    let sql = without_shared(&with_held(include_str!("../../sql/postgres/claim.sql")));
    let lone = i64::from(LONE_DELIVERY) - 1;
    let pick: Vec<i16> = wishes.iter().map(|wish| wish.pick.code()).collect();
    let tenants: Vec<Option<&str>> = wishes.iter().map(|w| w.tenant_id.as_deref()).collect();
    let now = pools.test_now();
    let wishes: [&(dyn ToSql + Sync); 7] =
        [&engine.0, &now, &services, &most, &lone, &pick, &tenants];
    let mut rows = pools.run(&sql, &wishes).await?;
    if rows.is_empty() {
        pools.expect_alive(engine).await?;
    }
    // An update returns rows as it meets them.
    rows.sort_by_key(|row| {
        let urgency: (i64, i64) = (row.get(HELD_WIDTH), row.get(HELD_WIDTH + 1));
        (urgency, row.get::<_, Uuid>(0), row.get::<_, i32>(1))
    });
    let mut claimed = Vec::with_capacity(rows.len());
    for (held, row) in held_of_each(pools, &rows).await? {
        claimed.push(Held { is_unentered: get(row, HELD_WIDTH + 2)?, ..held });
    }
    add_shared(pools, &mut claimed).await?;
    Ok(claimed)
}

/// A statement that leaves out large payloads of branches.
fn without_shared(sql: &str) -> String {
    let payload = format!(
        "CASE WHEN a.branch = 0 OR octet_length(j.payload) <= {SHARED_BYTES} THEN j.payload ELSE '' END,"
    );
    sql.replacen("j.payload,", &payload, 1)
}

/// Reads the payloads that were left out, each once, and has the branches of a job share its facts.
async fn add_shared(pools: &Pools, claimed: &mut [Held]) -> Answer<()> {
    let is_left_out = |held: &&Held| held.facts.payload.is_empty() && held.damage.is_none();
    let jobs: BTreeSet<Uuid> =
        claimed.iter().filter(is_left_out).map(|held| held.key.job_id.uuid()).collect();
    if jobs.is_empty() {
        return Ok(());
    }
    let jobs: Vec<Uuid> = jobs.into_iter().collect();
    let sql = "SELECT job_id, payload FROM sprag.job WHERE job_id = ANY ($1::uuid[])";
    for row in pools.run(sql, &[&jobs]).await? {
        let job_id = JobId::from(get::<Uuid>(&row, 0)?);
        let own = |held: &&mut Held| held.key.job_id == job_id && held.facts.payload.is_empty();
        let mut branches = claimed.iter_mut().filter(own);
        if let Some(first) = branches.next() {
            let payload = get(&row, 1)?;
            first.facts = Arc::new(JobFacts { payload, ..(*first.facts).clone() });
            branches.for_each(|held| held.facts = first.facts.clone());
        }
    }
    Ok(())
}

pub(super) async fn dispatch(
    pools: &Pools,
    engine: EngineNo,
    writes: &[DispatchWrite],
) -> Answer<Vec<DispatchOutcome>> {
    let mut outcomes = vec![DispatchOutcome::Gone; writes.len()];
    let mut is_any_done = false;
    let (parents, others): (Wave<'_>, Wave<'_>) =
        sorted(writes, |write| (write.key, write.version))
            .into_iter()
            .partition(|(_, write)| write.child.is_some());
    for wave in waves(others) {
        is_any_done |= dispatch_slice(Runner::Alone(pools), engine, &wave, &mut outcomes).await?;
    }
    for (place, write) in parents {
        let Some(child) = &write.child else { unreachable!("these have one") };
        outcomes[place] = children::dispatch(pools, engine, write, child).await?;
        is_any_done |= outcomes[place] != DispatchOutcome::Gone;
    }
    if !is_any_done && !writes.is_empty() {
        pools.expect_alive(engine).await?;
    }
    if outcomes.contains(&DispatchOutcome::Gone) {
        if writes.iter().any(|write| write.repeats) {
            tell_repeated(pools, writes, &mut outcomes).await?;
        }
        tell_moved(pools, writes, &mut outcomes).await?;
    }
    Ok(outcomes)
}

type Wave<'a> = Vec<(usize, &'a DispatchWrite)>;

/// One statement moves a job once. Attempts that leave it where it is go together; another one that moves
/// it goes with the next statement.
fn waves(writes: Wave<'_>) -> Vec<Wave<'_>> {
    let mut waves: Vec<Wave<'_>> = Vec::new();
    let mut left = writes;
    while !left.is_empty() {
        let mut jobs: HashMap<JobId, bool> = HashMap::with_capacity(left.len());
        let (now, later) = left.into_iter().partition::<Wave<'_>, _>(|(_, write)| {
            let stays = write.job_from == write.job_to;
            if let Some(all_stay) = jobs.get(&write.key.job_id) {
                return *all_stay && stays;
            }
            jobs.insert(write.key.job_id, stays);
            true
        });
        waves.push(now);
        left = later;
    }
    waves
}

pub(super) async fn dispatch_slice(
    runner: Runner<'_>,
    engine: EngineNo,
    slice: &[(usize, &DispatchWrite)],
    outcomes: &mut [DispatchOutcome],
) -> Answer<bool> {
    let rows = runner.ask(&dispatching((engine, runner.test_now()), slice)).await?;
    for (place, outcome) in dispatched(&rows, slice)? {
        outcomes[place] = outcome;
    }
    Ok(!rows.is_empty())
}

/// What a statement says has been dispatched, at its places in the slice.
pub(super) fn dispatched(
    rows: &[Row],
    slice: &[(usize, &DispatchWrite)],
) -> Answer<Vec<(usize, DispatchOutcome)>> {
    let read = |row| {
        let (place, _) = slice[ordinal(get(row, 0)?)];
        let (version, lease_expires_at) = (unsigned_long(row, 1)?, unsigned_long(row, 2)?);
        Ok((place, DispatchOutcome::Done { version, lease_expires_at }))
    };
    rows.iter().map(read).collect()
}

pub(super) fn dispatching<'a>(
    at: (EngineNo, Option<i64>),
    slice: &[(usize, &'a DispatchWrite)],
) -> Asked<'a> {
    let keys = Keys::of(slice.iter().map(|(_, write)| (&write.key, write.version)));
    // Keys are sorted, so attempts of one job are neighbours.
    let shares_a_job = slice.windows(2).any(|two| two[0].1.key.job_id == two[1].1.key.job_id);
    let statement = if shares_a_job {
        include_str!("../../sql/postgres/dispatch_many.sql")
    } else {
        include_str!("../../sql/postgres/dispatch.sql")
    };
    let (kind, kinds) = Kinds::of(slice, are_alike);
    let mut columns = keys.columns(at);
    columns.extend(columns![
        column(slice, |write| write.lease_id.0.cast_signed()),
        kind,
        kinds.column(|write| span(write.lease_ms)),
        kinds.column(|write| span(write.ack_timeout_ms)),
        kinds.column(|write| outbox(write.hand_off)),
        kinds.column(|write| is_acked(write.hand_off)),
        kinds.column(|write| timer(write.hand_off)),
        kinds.column(|write| code(write.step_to)),
        kinds.column(|write| code(write.job_to)),
        kinds.column(|write| write.ledger.get().cast_signed()),
        kinds.column(|write| write.changes.as_str()),
        kinds.column(|write| code(write.job_from)),
        kinds.column(|write| write.claim_id.as_deref()),
    ]);
    Asked::new(statement, columns)
}

/// Whether two directives differ in whom they are about only.
fn are_alike(one: &DispatchWrite, other: &DispatchWrite) -> bool {
    let common = |write: &DispatchWrite| {
        let states = (write.step_to, write.job_from, write.job_to);
        (write.lease_ms, write.ack_timeout_ms, write.hand_off, states, write.ledger)
    };
    common(one) == common(other) && one.changes == other.changes && one.claim_id == other.claim_id
}

fn outbox(hand_off: HandOff) -> i16 {
    match hand_off {
        HandOff::InProcess | HandOff::Pulled | HandOff::PulledUnacked => code(OutboxState::Sent),
        HandOff::Outbox => code(OutboxState::Pending),
    }
}

fn is_acked(hand_off: HandOff) -> bool {
    match hand_off {
        HandOff::InProcess | HandOff::Pulled => true,
        HandOff::PulledUnacked | HandOff::Outbox => false,
    }
}

/// What the statement calls the timer: none, since this engine has it; the lease's end; the ACK deadline.
fn timer(hand_off: HandOff) -> i16 {
    match hand_off {
        HandOff::InProcess | HandOff::Outbox => 0,
        HandOff::Pulled => 1,
        HandOff::PulledUnacked => 2,
    }
}

/// Recognises writes that are committed already.
async fn tell_repeated(
    pools: &Pools,
    writes: &[DispatchWrite],
    outcomes: &mut [DispatchOutcome],
) -> Answer<()> {
    let now = attempts_now(pools, writes.iter().map(|write| &write.key)).await?;
    for (write, outcome) in writes.iter().zip(outcomes) {
        if write.repeats && *outcome == DispatchOutcome::Gone {
            *outcome = repeat::dispatched(now.get(&write.key).copied(), write);
        }
    }
    Ok(())
}

/// What repeated writes look at to know themselves.
pub(super) async fn attempts_now<'a>(
    pools: &Pools,
    keys: impl Iterator<Item = &'a AttemptKey>,
) -> Answer<HashMap<AttemptKey, AttemptNow>> {
    let keys = Keys::of(keys.map(|key| (key, 0)));
    let sql = include_str!("../../sql/postgres/attempts_now.sql");
    let rows = pools
        .run(sql, &[&keys.job_id, &keys.step_index, &keys.branch, &keys.turn, &keys.attempt_no])
        .await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in &rows {
        let content: Option<&[u8]> = get(row, 8)?;
        let now = AttemptNow {
            version: unsigned_long(row, 5)?,
            lease_id: get::<Option<i64>>(row, 6)?.map(|lease| LeaseId(lease.cast_unsigned())),
            guid: get::<Option<i64>>(row, 7)?.map(i64::cast_unsigned),
            content: content.and_then(|content| content.try_into().ok()),
            lease_expires_at: get::<Option<i64>>(row, 9)?.map(i64::cast_unsigned),
        };
        found.insert(key(row)?, now);
    }
    Ok(found)
}

/// Tells apart why a write was refused.
async fn tell_moved(
    pools: &Pools,
    writes: &[DispatchWrite],
    outcomes: &mut [DispatchOutcome],
) -> Answer<()> {
    let refused = || writes.iter().zip(&*outcomes).filter(|(_, o)| **o == DispatchOutcome::Gone);
    let jobs: Vec<Uuid> = refused().map(|(write, _)| write.key.job_id.uuid()).collect();
    let sql =
        "SELECT job_id, state, verdict IS NOT NULL FROM sprag.job WHERE job_id = ANY ($1::uuid[])";
    let mut now: HashMap<JobId, (JobState, bool)> = HashMap::new();
    for row in pools.run(sql, &[&jobs]).await? {
        now.insert(JobId::from(get::<Uuid>(&row, 0)?), (state(&row, 1)?, get(&row, 2)?));
    }
    for (write, outcome) in writes.iter().zip(outcomes) {
        if *outcome != DispatchOutcome::Gone {
            continue;
        }
        match now.get(&write.key.job_id) {
            Some((JobState::Cancelling, _) | (_, true)) => *outcome = DispatchOutcome::Ending,
            Some((state, false)) if *state != write.job_from => {
                *outcome = DispatchOutcome::Moved(*state);
            }
            Some(_) | None => {}
        }
    }
    Ok(())
}

pub(super) async fn end(
    pools: &Pools,
    engine: EngineNo,
    writes: &[EndWrite],
) -> Answer<Vec<EndOutcome>> {
    let slice = sorted(writes, |write| (write.key, write.version));
    let asked = ending((engine, pools.test_now()), &slice, None);
    let rows = pools.run(asked.sql, &asked.params()).await?;
    ended(pools, engine, (writes, &slice), &rows).await
}

/// What became of messages, by what the statement has said.
pub(super) async fn ended(
    pools: &Pools,
    engine: EngineNo,
    (writes, slice): (&[EndWrite], &[(usize, &EndWrite)]),
    rows: &[Row],
) -> Answer<Vec<EndOutcome>> {
    if rows.is_empty() && !writes.is_empty() {
        pools.expect_alive(engine).await?;
    }
    let mut outcomes = vec![EndOutcome::Stale; writes.len()];
    for row in rows {
        let (place, _) = slice[ordinal(get(row, 0)?)];
        outcomes[place] = EndOutcome::Entered { version: unsigned_long(row, 1)? };
    }
    if writes.iter().any(|write| write.repeats) {
        let now = attempts_now(pools, writes.iter().map(|write| &write.key)).await?;
        for (write, outcome) in writes.iter().zip(&mut outcomes) {
            if write.repeats && *outcome == EndOutcome::Stale {
                *outcome = repeat::ended(now.get(&write.key).copied(), write);
            }
        }
    }
    Ok(outcomes)
}

/// Messages enter Leg2, and leave a mark for Steps 1 to 3 if those are on their way already.
pub(super) fn ending<'a>(
    at: (EngineNo, Option<i64>),
    slice: &[(usize, &'a EndWrite)],
    mark: Option<&'a str>,
) -> Asked<'a> {
    let keys = Keys::of(slice.iter().map(|(_, write)| (&write.key, write.version)));
    let (kind, kinds) = Kinds::of(slice, end_alike);
    let mut columns = keys.columns(at);
    columns.extend(columns![
        column(slice, |write| write.lease_id.map(|lease| lease.0.cast_signed())),
        column(slice, |write| {
            write.ending.content.as_ref().map(|hash| hash.as_bytes().as_slice())
        }),
        column(slice, |write| write.output.as_deref()),
        kind,
        kinds.column(ending_number),
        kinds.column(|write| write.ending.guid.get().cast_signed()),
        kinds.column(|write| write.ledger.get().cast_signed()),
        kinds.column(|write| Some(write.error.as_ref()?.code.as_str())),
        kinds.column(|write| Some(write.error.as_ref()?.message.as_str())),
        kinds.column(|write| write.output_ref.as_deref()),
        mark,
    ]);
    Asked::new(include_str!("../../sql/postgres/end.sql"), columns)
}

/// Whether two messages say the same but for what they carry.
fn end_alike(one: &EndWrite, other: &EndWrite) -> bool {
    let common = |write: &EndWrite| (write.ending.kind, write.ending.guid, write.ledger);
    common(one) == common(other) && one.error == other.error && one.output_ref == other.output_ref
}

pub(super) async fn pulse(pools: &Pools, engine: EngineNo, pulses: &[Pulse]) -> Answer<()> {
    let slice = sorted(pulses, |pulse| (pulse.key, 0));
    let keys = Keys::of(slice.iter().map(|(_, pulse)| (&pulse.key, 0)));
    let written = pools
        .run(
            include_str!("../../sql/postgres/pulse.sql"),
            &[
                &engine.0,
                &pools.test_now(),
                &keys.job_id,
                &keys.step_index,
                &keys.branch,
                &keys.turn,
                &keys.attempt_no,
                &column(&slice, |pulse| pulse.lease_id.0.cast_signed()),
                &column(&slice, |pulse| span(pulse.lease_ms)),
                &column(&slice, |pulse| pulse.progress.as_deref()),
            ],
        )
        .await?;
    if written.is_empty() { pools.expect_alive(engine).await } else { Ok(()) }
}

pub(super) async fn cancelling(pools: &Pools, jobs: &[JobId]) -> Answer<Vec<JobId>> {
    let jobs: Vec<Uuid> = jobs.iter().map(|job_id| job_id.uuid()).collect();
    let sql = include_str!("../../sql/postgres/cancelling.sql");
    let rows = pools.run(sql, &[&jobs, &code(JobState::Cancelling)]).await?;
    rows.iter().map(|row| get::<Uuid>(row, 0).map(JobId::from)).collect()
}

fn ending_number(write: &EndWrite) -> i16 {
    i16::try_from(ending_code(write.ending.kind)).expect("codes of endings are below 100")
}

/// The index of an element from its ordinal in an array.
pub(super) fn ordinal(n: i64) -> usize {
    usize::try_from(n - 1).expect("ordinals begin at 1")
}
