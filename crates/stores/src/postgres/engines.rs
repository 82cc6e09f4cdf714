//! Engines: joining, beating, and taking over what a dead one held.

use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::{Answer, Due, Held, StoreError};
use sprag_kernel::retry::Millis;
use tokio_postgres::Row;

use super::failure::{Repeats, failed};
use super::pools::{Pools, begin, commit};
use super::rows::{HELD_WIDTH, get, held, key, with_held};
use super::slice::span;
use crate::AGEING_MS;
use crate::moving::{CLOSED, closed};
use crate::versions::{admit, version_of};

pub(super) async fn join(pools: &Pools, name: &str) -> Answer<EngineNo> {
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

/// A sign of life. What comes back is the oldest version that the store still admits: an engine below it
/// must go.
pub(super) async fn beat(pools: &Pools, engine: EngineNo, low: Option<JobId>) -> Answer<()> {
    let sql = "UPDATE sprag.engine SET beat_at = sprag.now_ms($2), low = $3
        WHERE engine_no = $1 AND dead = 0
        RETURNING (SELECT value FROM sprag.meta WHERE key = 'oldest_compatible')";
    let low = low.map(JobId::uuid);
    let beaten = pools.run(sql, &[&engine.0, &pools.test_now(), &low]).await?;
    let oldest: Option<&str> = get(beaten.first().ok_or(StoreError::Fenced)?, 0)?;
    admit(pools.version, version_of(oldest.unwrap_or_default())?)
}

pub(super) async fn silent(pools: &Pools, timeout_ms: Millis) -> Answer<Vec<EngineNo>> {
    let sql = "SELECT engine_no FROM sprag.engine
        WHERE dead = 0 AND beat_at <= sprag.now_ms($1) - $2::bigint ORDER BY engine_no";
    let rows = pools.run(sql, &[&pools.test_now(), &span(timeout_ms)]).await?;
    rows.iter().map(|row| get(row, 0).map(EngineNo)).collect()
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

/// Marks the engine dead, frees its activations, and hands its attempts and messages to the heir. The
/// lock on the dead engine's row waits for the write it may have under way.
pub(super) async fn take_over(pools: &Pools, dead: EngineNo, heir: EngineNo) -> Answer<Vec<Held>> {
    let mut repeats = Repeats::default();
    let mut client = pools.plain().await?;
    let rows = loop {
        let tx = begin(&mut client).await?;
        match take_over_in(&tx, pools.test_now(), dead, heir).await {
            Ok(None) => return Err(StoreError::Fenced),
            Ok(Some(rows)) => match commit(tx).await {
                Ok(()) => break rows,
                Err(error) if repeats.again(&error) => {}
                Err(error) => return Err(failed(&error)),
            },
            // The transaction is rolled back as it is dropped.
            Err(error) if repeats.again(&error) => {}
            Err(error) => return Err(failed(&error)),
        }
    };
    let mut passed_on = Vec::with_capacity(rows.len());
    for row in rows {
        if !get::<bool>(&row, HELD_WIDTH)? {
            passed_on.push((key(&row)?, row));
        }
    }
    passed_on.sort_by_key(|(key, _)| *key);
    let rows: Vec<Row> = passed_on.into_iter().map(|(_, row)| row).collect();
    held(pools, &rows).await
}

/// The rows that were taken over, or nothing if the heir itself is dead.
async fn take_over_in(
    tx: &deadpool_postgres::Transaction<'_>,
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
    let sql = with_held(include_str!("../../sql/postgres/take_over.sql"));
    tx.query(&sql, &[&dead.0, &heir.0, &now, &AGEING_MS]).await.map(Some)
}

/// Activations whose time has come are made claimable; the rest is returned, but for directives that wait to
/// be published (state 1), which only a publisher takes.
pub(super) async fn due(pools: &Pools, engine: EngineNo, limit: u32) -> Answer<Due> {
    let limit = i64::from(limit);
    let promote = include_str!("../../sql/postgres/promote_due.sql");
    let promoted = pools.run(promote, &[&engine.0, &pools.test_now(), &AGEING_MS, &limit]).await?;
    let now = "SELECT sprag.now_ms($2) FROM sprag.engine WHERE engine_no = $1 AND dead = 0";
    let now = pools.run(now, &[&engine.0, &pools.test_now()]).await?;
    let now: i64 = get(now.first().ok_or(StoreError::Fenced)?, 0)?;
    let sql = with_held(
        "SELECT {held} FROM sprag.attempt a JOIN sprag.job j ON j.job_id = a.job_id
         WHERE a.timer_at <= $1 AND a.state <> 1 ORDER BY a.timer_at, a.job_id, a.step_index LIMIT $2",
    );
    let rows = pools.run(&sql, &[&now, &limit]).await?;
    let held = held(pools, &rows).await?;
    Ok(Due { promoted: promoted.len(), held, now: now.cast_unsigned() })
}
