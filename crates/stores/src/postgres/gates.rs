//! Gates: who stands in line and may start. A gate is locked by its name for the length of a transaction; it
//! needs no row, so that keys may have any number of values. What is counted under the lock is seen by a
//! statement that begins after it, and the kernel decides.

use std::collections::{BTreeMap, BTreeSet};

use deadpool_postgres::Transaction;
use sprag_engine::gate::{GateView, MAX_GATES};
use sprag_engine::ids::{AttemptKey, EngineNo};
use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::decide::gate::{Gate, Limit};
use sprag_kernel::retry::Millis;
use tokio_postgres::{Error, Row};

use super::failure::{Repeats, failed};
use super::hints::ring;
use super::pools::{Pools, begin, commit};
use super::rows::{get, key, unsigned_long};
use super::slice::{Keys, span};
use crate::LINE;

/// Keeps the locks of gates apart from all others in the database.
const LOCKS: i32 = 0x5370_6761;

pub(super) async fn admit(pools: &Pools, engine: EngineNo, gates: &[String]) -> Answer<usize> {
    assert!(gates.len() <= MAX_GATES, "gates come in pages");
    let mut client = pools.engine().await?;
    let mut repeats = Repeats::default();
    let admitted = loop {
        let tx = begin(&mut client).await?;
        let Some((now, rows, idle)) = (match look(&tx, pools.test_now(), engine, gates).await {
            Ok(found) => found,
            Err(error) if repeats.again(&error) => {
                repeats.pause().await;
                continue;
            }
            Err(error) => return Err(failed(&error)),
        }) else {
            return Err(StoreError::Fenced);
        };
        let starts = Starts::of(now, &rows, &idle)?;
        if starts.at.is_empty() {
            return Ok(0);
        }
        let written = match write(&tx, now, &starts).await {
            Ok(count) => commit(tx).await.map(|()| count),
            Err(error) => Err(error),
        };
        match written {
            Ok(count) => break count,
            Err(error) if repeats.again(&error) => repeats.pause().await,
            Err(error) => return Err(failed(&error)),
        }
    };
    drop(client);
    ring(pools).await;
    Ok(usize::try_from(admitted).unwrap_or(0))
}

/// Locks the gates, always in one order, and reads the heads of their lines, and of those with a rate since when
/// somebody who is admitted, and whose time has come, waits to be claimed. Nothing if the engine is dead.
async fn look(
    tx: &Transaction<'_>,
    test_now: Option<i64>,
    engine: EngineNo,
    gates: &[String],
) -> Result<Option<(i64, Vec<Row>, Vec<Row>)>, Error> {
    let alive = "SELECT sprag.now_ms($2) FROM sprag.engine WHERE engine_no = $1 AND dead = 0
        FOR KEY SHARE";
    let alive = tx.prepare_cached(alive).await?;
    let Some(row) = tx.query_opt(&alive, &[&engine.0, &test_now]).await? else { return Ok(None) };
    let lock = "SELECT pg_advisory_xact_lock($1, h) FROM (SELECT DISTINCT hashtext(gate) AS h
        FROM unnest($2::text[]) AS u (gate) ORDER BY h) AS gates";
    let lock = tx.prepare_cached(lock).await?;
    tx.query(&lock, &[&LOCKS, &gates]).await?;
    let line = tx.prepare_cached(include_str!("../../sql/postgres/line.sql")).await?;
    let rows = tx.query(&line, &[&gates, &LINE]).await?;
    let mut rates = BTreeSet::new();
    for row in &rows {
        if row.try_get::<_, Option<i64>>(7)?.is_some() {
            rates.insert(row.try_get::<_, &str>(8)?);
        }
    }
    let idle = if rates.is_empty() {
        Vec::new()
    } else {
        let sql = "SELECT gate, min(admitted_at) FROM sprag.attempt
            WHERE gate = ANY ($1::text[]) AND admitted_at IS NOT NULL AND ready_at IS NOT NULL GROUP BY gate";
        let idle = tx.prepare_cached(sql).await?;
        tx.query(&idle, &[&rates.into_iter().collect::<Vec<_>>()]).await?
    };
    Ok(Some((row.try_get(0)?, rows, idle)))
}

async fn write(tx: &Transaction<'_>, now: i64, starts: &Starts) -> Result<i64, Error> {
    let keys = Keys::of(starts.at.iter().map(|(key, (version, _))| (key, *version)));
    let at: Vec<i64> = starts.at.values().map(|(_, at)| span(*at)).collect();
    let (gates, arrivals): (Vec<&str>, Vec<i64>) =
        starts.arrivals.iter().map(|(gate, arrival)| (gate.as_str(), span(*arrival))).unzip();
    let admit = tx.prepare_cached(include_str!("../../sql/postgres/admit.sql")).await?;
    let row = tx
        .query_one(
            &admit,
            &[
                &now,
                &keys.job_id,
                &keys.step_index,
                &keys.branch,
                &keys.turn,
                &keys.attempt_no,
                &keys.version,
                &at,
                &gates,
                &arrivals,
            ],
        )
        .await?;
    row.try_get(0)
}

/// Who may start and when, in the order of their keys, and what that leaves of the gates with a rate.
#[derive(Default)]
struct Starts {
    at: BTreeMap<AttemptKey, (u64, Millis)>,
    arrivals: Vec<(String, u64)>,
}

impl Starts {
    fn of(now: i64, rows: &[Row], idle: &[Row]) -> Answer<Self> {
        let mut this = Self::default();
        let mut since: BTreeMap<&str, u64> = BTreeMap::new();
        for row in idle {
            since.insert(get(row, 0)?, unsigned_long(row, 1)?);
        }
        let mut lines: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in rows {
            lines.entry(get(row, 8)?).or_default().push(row);
        }
        for (name, line) in lines {
            let admitted = u32::try_from(unsigned_long(line[0], 9)?).unwrap_or(u32::MAX);
            let idle_since = since.get(name).copied();
            let mut gate = Gate { admitted, arrival_us: unsigned_long(line[0], 10)?, idle_since };
            let before = gate.arrival_us;
            let limits = line.iter().map(|row| limit(row)).collect::<Answer<Vec<_>>>()?;
            let starts = gate.admit(now.cast_unsigned(), limits);
            for (row, start) in line.iter().zip(starts) {
                this.at.insert(key(row)?, (unsigned_long(row, 5)?, start));
            }
            if gate.arrival_us != before {
                this.arrivals.push((name.to_owned(), gate.arrival_us));
            }
        }
        Ok(this)
    }
}

fn limit(row: &Row) -> Answer<Limit> {
    let max = get::<Option<i32>>(row, 6)?.map(i32::cast_unsigned);
    Ok(Limit { max, gap_us: get::<Option<i64>>(row, 7)?.map(i64::cast_unsigned) })
}

pub(super) async fn lines(pools: &Pools, after: Option<&str>, limit: u32) -> Answer<Vec<String>> {
    let sql = include_str!("../../sql/postgres/lines.sql");
    let rows = pools.run(sql, &[&after.unwrap_or_default(), &i64::from(limit)]).await?;
    rows.iter().map(|row| get(row, 0)).collect()
}

pub(super) async fn gate(pools: &Pools, gate: &str) -> Answer<GateView> {
    let rows = pools.read(include_str!("../../sql/upkeep/gate.sql"), &[&gate]).await?;
    let row = rows.first().ok_or_else(|| StoreError::Unavailable("no gate".to_owned()))?;
    let next_at = get::<Option<i64>>(row, 2)?.map(|us| us.cast_unsigned().div_ceil(1_000));
    Ok(GateView { admitted: unsigned_long(row, 0)?, waiting: unsigned_long(row, 1)?, next_at })
}
