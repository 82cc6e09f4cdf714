//! Engines: joining, beating, and taking over what a dead one held.

use deadpool_postgres::{Object, Transaction};
use sprag_engine::crash::crash_point;
use sprag_engine::graph::CONTROL;
use sprag_engine::ids::EngineNo;
use sprag_engine::store::{Answer, Due, Held, Signs, StoreError};
use sprag_kernel::JobState;
use sprag_kernel::decide::rows::LONE_DELIVERY;
use sprag_kernel::retry::Millis;
use tokio_postgres::Row;

use super::failure::{Repeats, failed};
use super::hints::ring;
use super::pools::{Params, Pools, begin, commit};
use super::rows::{HELD_WIDTH, get, held, held_of_each, key, time, with_held};
use super::slice::{code, span};
use crate::moving::{CLOSED, closed};
use crate::versions::{admit, version_of};
use crate::{AGEING_MS, BURIED, DEAD_KEPT_MS, TAKEN};

/// A new life; on this occasion old ones that are over are let go.
pub(super) async fn join(pools: &Pools, name: &str) -> Answer<EngineNo> {
    let sql = include_str!("../../sql/postgres/bury.sql");
    pools.run(sql, &[&pools.test_now(), &DEAD_KEPT_MS, &BURIED]).await?;
    let sql = "INSERT INTO sprag.engine (name, joined_at, beat_at)
        SELECT $1, now, now FROM sprag.now_ms($2) AS now
        WHERE NOT EXISTS (SELECT 1 FROM sprag.meta WHERE key = $3) RETURNING engine_no";
    let rows = pools.run(sql, &[&name, &pools.test_now(), &CLOSED]).await?;
    if let Some(row) = rows.first() {
        return get(row, 0).map(EngineNo);
    }
    let why = pools.run("SELECT value FROM sprag.meta WHERE key = $1", &[&CLOSED]).await?;
    Err(closed(why.first().map(|row| get(row, 0)).transpose()?.unwrap_or_default()))
}

/// A sign of life, and what others show. An engine that the store does not admit any more must go.
pub(super) async fn beat(
    pools: &Pools,
    engine: EngineNo,
    silent_ms: Option<Millis>,
) -> Answer<Signs> {
    let sql = include_str!("../../sql/postgres/beat.sql");
    let beaten = pools.run(sql, &[&engine.0, &pools.test_now(), &silent_ms.map(span)]).await?;
    let beaten = beaten.first().ok_or(StoreError::Fenced)?;
    let oldest: Option<&str> = get(beaten, 0)?;
    pools.bell.note_peers(get(beaten, 1)?);
    admit(pools.version, version_of(oldest.unwrap_or_default())?)?;
    let silent = get::<Vec<i64>>(beaten, 3)?.into_iter().map(EngineNo).collect();
    Ok(Signs { silent, has_mail: get(beaten, 2)? })
}

pub(super) async fn now(pools: &Pools) -> Answer<Millis> {
    let rows = pools.run("SELECT sprag.now_ms($1)", &[&pools.test_now()]).await?;
    let row = rows.first().ok_or_else(|| StoreError::Unavailable("no time".to_owned()))?;
    get::<i64>(row, 0).map(i64::cast_unsigned)
}

/// The engine beats no more. What it holds is found by whoever looks for the silent.
pub(super) async fn leave(pools: &Pools, engine: EngineNo) -> Answer<()> {
    let sql = "UPDATE sprag.engine SET beat_at = 0 WHERE engine_no = $1 AND dead = 0";
    pools.run(sql, &[&engine.0]).await.map(|_| ())
}

/// Takes over what a dead engine held, slice by slice. If that ends in the middle, the rest is found with a later
/// beat, and what has passed on already when the heir next compares the books.
pub(super) async fn take_over(pools: &Pools, dead: EngineNo, heir: EngineNo) -> Answer<Vec<Held>> {
    let mut client = pools.engine().await?;
    let mut passed_on = Vec::new();
    loop {
        let rows = match take_slice(&mut client, pools.test_now(), dead, heir).await {
            // The books are compared after a store that was away.
            Err(StoreError::Poison(reason)) if !passed_on.is_empty() => {
                return Err(StoreError::Unavailable(reason));
            }
            rows => rows?,
        };
        let is_last = rows.len() < TAKEN;
        for row in rows {
            if !get::<bool>(&row, HELD_WIDTH)? {
                passed_on.push((key(&row)?, row));
            }
        }
        if is_last {
            break;
        }
    }
    drop(client);
    passed_on.sort_by_key(|(key, _)| *key);
    let rows: Vec<Row> = passed_on.into_iter().map(|(_, row)| row).collect();
    ring(pools).await;
    let mut taken = Vec::with_capacity(rows.len());
    for (held, row) in held_of_each(pools, &rows).await? {
        taken.push(Held { is_unentered: get(row, HELD_WIDTH + 1)?, ..held });
    }
    Ok(taken)
}

/// Marks the engine dead, and takes over some of what it held.
async fn take_slice(
    client: &mut Object,
    test_now: Option<i64>,
    dead: EngineNo,
    heir: EngineNo,
) -> Answer<Vec<Row>> {
    let mut repeats = Repeats::default();
    loop {
        let tx = begin(client).await?;
        match take_over_in(&tx, test_now, dead, heir).await {
            Ok(None) => return Err(StoreError::Fenced),
            Ok(Some(rows)) => match commit(tx).await {
                Ok(()) => return Ok(rows),
                Err(error) if repeats.again(&error) => repeats.pause().await,
                Err(error) => return Err(failed(&error)),
            },
            // The transaction is rolled back as it is dropped.
            Err(error) if repeats.again(&error) => repeats.pause().await,
            Err(error) => return Err(failed(&error)),
        }
    }
}

/// The rows that were taken over, or nothing if the heir itself is dead. The lock on the dead engine's row waits
/// for the write it may have under way.
async fn take_over_in(
    tx: &Transaction<'_>,
    test_now: Option<i64>,
    dead: EngineNo,
    heir: EngineNo,
) -> Result<Option<Vec<Row>>, tokio_postgres::Error> {
    let lock = "SELECT sprag.now_ms($2) FROM sprag.engine WHERE engine_no = $1 AND dead = 0
        FOR KEY SHARE";
    let Some(alive) = tx.query_opt(lock, &[&heir.0, &test_now]).await? else { return Ok(None) };
    let now: i64 = alive.try_get(0)?;
    tx.execute("SELECT 1 FROM sprag.engine WHERE engine_no = $1 FOR UPDATE", &[&dead.0]).await?;
    tx.execute("UPDATE sprag.engine SET dead = 1 WHERE engine_no = $1 AND dead = 0", &[&dead.0])
        .await?;
    crash_point("postgres.take_over.after_death");
    let free = "UPDATE sprag.completion SET due_at = $2, owner = NULL
        WHERE due_at IS NOT NULL AND owner = $1";
    tx.execute(free, &[&dead.0, &now]).await?;
    crash_point("postgres.take_over.after_release");
    let sql = with_held(include_str!("../../sql/postgres/take_over.sql"));
    let most = i64::try_from(TAKEN).unwrap_or(i64::MAX);
    let lone = i64::from(LONE_DELIVERY);
    let cancelling = code(JobState::Cancelling);
    let values: Params<'_> =
        &[&dead.0, &heir.0, &now, &AGEING_MS, &most, &lone, &cancelling, &CONTROL];
    tx.query(&sql, values).await.map(Some)
}

/// Activations whose time has come are made claimable; the rest is returned, but for directives that wait to
/// be published (state 1), which only a publisher takes.
pub(super) async fn due(pools: &Pools, engine: EngineNo, limit: u32) -> Answer<Due> {
    let limit = i64::from(limit);
    let sql = include_str!("../../sql/postgres/due.sql");
    let looked = pools.run(sql, &[&engine.0, &pools.test_now(), &AGEING_MS, &limit]).await?;
    let looked = looked.first().ok_or(StoreError::Fenced)?;
    let now: i64 = get(looked, 0)?;
    let promoted = usize::try_from(get::<i64>(looked, 1)?).unwrap_or_default();
    if promoted > 0 {
        ring(pools).await;
    }
    let held = if get(looked, 2)? { overdue(pools, now, limit).await? } else { Vec::new() };
    Ok(Due { promoted, held, now: now.cast_unsigned(), next: time(looked, 3)? })
}

/// What runs against a deadline that has passed.
async fn overdue(pools: &Pools, now: i64, limit: i64) -> Answer<Vec<Held>> {
    let sql = with_held(
        "SELECT {held} FROM sprag.attempt a JOIN sprag.job j ON j.job_id = a.job_id
         WHERE a.timer_at <= $1 AND a.state <> 1 ORDER BY a.timer_at, a.job_id, a.step_index LIMIT $2",
    );
    let rows = pools.run(&sql, &[&now, &limit]).await?;
    held(pools, &rows).await
}
