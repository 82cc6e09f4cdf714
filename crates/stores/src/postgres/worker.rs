//! Attempts that workers outside hold: found by claim or by place, moved along, given back.

use std::collections::HashSet;

use sprag_engine::graph::CONTROL;
use sprag_engine::ids::{AttemptKey, EngineNo};
use sprag_engine::store::{
    Answer, Held, RenewOutcome, RenewWrite, Renewal, StaleCallback, StepPlace,
};
use sprag_kernel::{JobState, OutboxState};
use uuid::Uuid;

use super::hints::ring;
use super::legs::ordinal;
use super::pools::Pools;
use super::rows::{HELD_WIDTH, get, held, held_of_each, unsigned_long, with_held};
use super::slice::{Keys, code, column, signed, sorted, span};
use crate::AGEING_MS;

/// What was handed out under these claims and is still under its lease.
pub(super) async fn claimed(pools: &Pools, claim_ids: &[String]) -> Answer<Vec<(String, Held)>> {
    let sql = with_held(
        "SELECT {held}, a.claim_id FROM sprag.attempt a JOIN sprag.job j ON j.job_id = a.job_id
         WHERE a.claim_id = ANY ($1::text[]) AND a.timer_at IS NOT NULL
             AND a.timer_at > sprag.now_ms($2)
         ORDER BY a.job_id, a.step_index, a.branch, a.turn, a.attempt_no",
    );
    let rows = pools.run(&sql, &[&claim_ids, &pools.test_now()]).await?;
    let all = held_of_each(pools, &rows).await?;
    all.into_iter().map(|(held, row)| Ok((get(row, HELD_WIDTH)?, held))).collect()
}

/// At each place the newest attempt that has a lease, or else the one that waits for it.
pub(super) async fn find(pools: &Pools, places: &[StepPlace]) -> Answer<Vec<Option<Held>>> {
    let jobs: Vec<Uuid> = places.iter().map(|place| place.job_id.uuid()).collect();
    let steps: Vec<&str> = places.iter().map(|place| place.step_id.as_str()).collect();
    let lowest: Vec<i32> = places.iter().map(|place| place.step_index.map_or(0, signed)).collect();
    let highest: Vec<i32> =
        places.iter().map(|place| place.step_index.map_or(i32::MAX, signed)).collect();
    let branches: Vec<i64> = places.iter().map(|place| place.branch.cast_signed()).collect();
    let turns: Vec<i32> = places.iter().map(|place| signed(place.turn)).collect();
    let sql = with_held(include_str!("../../sql/postgres/find.sql"));
    let rows = pools.run(&sql, &[&jobs, &steps, &lowest, &highest, &branches, &turns]).await?;
    let all = held_of_each(pools, &rows).await?;
    let mut found: Vec<Option<Held>> = places.iter().map(|_| None).collect();
    for (held, row) in all {
        found[ordinal(get(row, HELD_WIDTH)?)] = Some(held);
    }
    Ok(found)
}

pub(super) async fn renew(
    pools: &Pools,
    engine: EngineNo,
    writes: &[RenewWrite],
) -> Answer<Vec<RenewOutcome>> {
    let mut outcomes = vec![RenewOutcome::Gone; writes.len()];
    let mut left = sorted(writes, |write| (write.key, write.version));
    let mut is_any_done = false;
    while !left.is_empty() {
        // A statement writes a row once: another ACK in the same job goes with the next one.
        let mut jobs = HashSet::new();
        let (now, later) = left.into_iter().partition::<Vec<_>, _>(|(_, write)| {
            write.changes.is_empty() || jobs.insert(write.key.job_id)
        });
        is_any_done |= renew_slice(pools, engine, &now, &mut outcomes).await?;
        left = later;
    }
    if !is_any_done && !writes.is_empty() {
        pools.expect_alive(engine).await?;
    }
    Ok(outcomes)
}

async fn renew_slice(
    pools: &Pools,
    engine: EngineNo,
    slice: &[(usize, &RenewWrite)],
    outcomes: &mut [RenewOutcome],
) -> Answer<bool> {
    let keys = Keys::of(slice.iter().map(|(_, write)| (&write.key, write.version)));
    let sent = |write: &RenewWrite| write.renewal == Renewal::Sent;
    let rows = pools
        .run(
            include_str!("../../sql/postgres/renew.sql"),
            &[
                &engine.0,
                &pools.test_now(),
                &keys.job_id,
                &keys.step_index,
                &keys.branch,
                &keys.turn,
                &keys.attempt_no,
                &keys.version,
                &column(slice, |write| write.lease_id.0.cast_signed()),
                &column(slice, |write| code(write.step_to)),
                &column(slice, |write| sent(write).then(|| code(OutboxState::Sent))),
                &column(slice, |write| write.renewal == Renewal::Acked),
                &column(slice, |write| span(write.timer_ms)),
                &column(slice, |write| write.job.map(|(from, _)| code(from))),
                &column(slice, |write| write.job.map(|(_, to)| code(to))),
                &column(slice, |write| sent(write).then_some(engine.0)),
                &column(slice, |write| write.progress.as_deref()),
                &column(slice, |write| write.changes.as_str()),
                &column(slice, |write| write.ends_at.map(span)),
            ],
        )
        .await?;
    for row in &rows {
        let (place, _) = slice[ordinal(get(row, 0)?)];
        let (version, deadline) = (unsigned_long(row, 1)?, unsigned_long(row, 2)?);
        outcomes[place] = RenewOutcome::Done { version, deadline };
    }
    Ok(!rows.is_empty())
}

pub(super) async fn record_stale(
    pools: &Pools,
    engine: EngineNo,
    callbacks: &[StaleCallback],
) -> Answer<()> {
    let keys = Keys::of(callbacks.iter().map(|stale| (&stale.key, 0)));
    let names: Vec<&str> = callbacks.iter().map(|stale| stale.callback).collect();
    let codes: Vec<&str> = callbacks.iter().map(|stale| stale.code.name()).collect();
    let leases: Vec<i64> = callbacks.iter().map(|stale| stale.lease_id.0.cast_signed()).collect();
    let written = pools
        .run(
            include_str!("../../sql/postgres/record_stale.sql"),
            &[
                &engine.0,
                &pools.test_now(),
                &keys.job_id,
                &keys.step_index,
                &keys.branch,
                &keys.turn,
                &keys.attempt_no,
                &names,
                &codes,
                &leases,
            ],
        )
        .await?;
    if written.is_empty() { pools.expect_alive(engine).await } else { Ok(()) }
}

pub(super) async fn release(
    pools: &Pools,
    engine: EngineNo,
    activations: &[(AttemptKey, u64)],
) -> Answer<()> {
    let sorted = sorted(activations, |activation| *activation);
    let keys = Keys::of(sorted.iter().map(|(_, (key, version))| (key, *version)));
    let written = pools
        .run(
            include_str!("../../sql/postgres/release.sql"),
            &[
                &engine.0,
                &pools.test_now(),
                &keys.job_id,
                &keys.step_index,
                &keys.branch,
                &keys.turn,
                &keys.attempt_no,
                &keys.version,
                &AGEING_MS,
                &code(JobState::Cancelling),
                &CONTROL,
            ],
        )
        .await?;
    if written.is_empty() {
        return pools.expect_alive(engine).await;
    }
    ring(pools).await;
    Ok(())
}

/// Directives whose time to be published has come pass to this engine.
pub(super) async fn unpublished(
    pools: &Pools,
    engine: EngineNo,
    services: &[String],
    limit: u32,
) -> Answer<Vec<Held>> {
    let sql = with_held(include_str!("../../sql/postgres/take_unpublished.sql"));
    let (now, limit) = (pools.test_now(), i64::from(limit));
    let rows = pools.run(&sql, &[&engine.0, &now, &services, &limit]).await?;
    if rows.is_empty() {
        pools.expect_alive(engine).await?;
    }
    let mut taken = held(pools, &rows).await?;
    taken.sort_by_key(|held| held.key);
    Ok(taken)
}

pub(super) async fn held_by(pools: &Pools, engine: EngineNo) -> Answer<Vec<Held>> {
    let sql = with_held(
        "SELECT {held} FROM sprag.attempt a JOIN sprag.job j ON j.job_id = a.job_id WHERE a.owner = $1",
    );
    let rows = pools.run(&sql, &[&engine.0]).await?;
    let mut all = held(pools, &rows).await?;
    all.sort_by_key(|held| held.key);
    Ok(all)
}
