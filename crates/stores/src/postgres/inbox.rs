//! The inbox: `sprag.submit` writes to it inside of the user's transaction, engines take from it.

use std::collections::HashSet;

use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::inbox::{
    INBOX_KEPT_MS, INBOX_SLICE_BYTES, InboxFilter, InboxId, InboxView, TakeIn, Waiting,
};
use sprag_engine::store::{Answer, AttemptError, NewJob, StoreError, Submitted};
use sprag_kernel::Refusal;
use tokio_postgres::{Row, Transaction};
use uuid::Uuid;

use super::failure::failed;
use super::hints::ring;
use super::limited;
use super::pools::{Pools, begin, commit};
use super::rows::{get, time, unsigned_long};
use super::slice::span;

/// Submits an envelope as part of your own transaction: if that commits, an engine makes a job of it, once;
/// if not, nothing was ever there. Needs the right to execute `sprag.submit(text)` and no other.
pub async fn submit_in(
    tx: &Transaction<'_>,
    envelope: &str,
) -> Result<InboxId, tokio_postgres::Error> {
    tx.query_one("SELECT sprag.submit($1::text)", &[&envelope]).await?.try_get(0).map(InboxId)
}

pub(super) async fn waiting(pools: &Pools, limit: u32, max_bytes: usize) -> Answer<Vec<Waiting>> {
    let sql = include_str!("../../sql/postgres/inbox_waiting.sql");
    let [each, all] = [max_bytes, INBOX_SLICE_BYTES].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    let rows = pools.run(sql, &[&i64::from(limit), &each, &all]).await?;
    let waiting = |row: &Row| -> Answer<Waiting> {
        let (inbox_id, envelope, dedup_key) = (InboxId(get(row, 0)?), get(row, 1)?, get(row, 2)?);
        Ok(Waiting { inbox_id, envelope, dedup_key })
    };
    rows.iter().map(waiting).collect()
}

/// Creates the jobs and marks their rows, in one transaction. What another engine holds or has taken is
/// passed over.
pub(super) async fn take_in(pools: &Pools, engine: EngineNo, entries: &[TakeIn]) -> Answer<usize> {
    let mut client = pools.engine().await?;
    let tx = begin(&mut client).await?;
    let alive = "SELECT sprag.now_ms($2) FROM sprag.engine WHERE engine_no = $1 AND dead = 0
        FOR KEY SHARE";
    let alive = tx.query_opt(alive, &[&engine.0, &pools.test_now()]).await;
    let alive = alive.map_err(|error| failed(&error))?.ok_or(StoreError::Fenced)?;
    let now: i64 = get(&alive, 0)?;
    let ids: Vec<i64> = entries.iter().map(|entry| entry.inbox_id.0).collect();
    let lock = "SELECT inbox_id FROM sprag.inbox WHERE inbox_id = ANY ($1) AND taken_at IS NULL
        ORDER BY inbox_id FOR UPDATE SKIP LOCKED";
    let locked = tx.query(lock, &[&ids]).await.map_err(|error| failed(&error))?;
    let mine: HashSet<i64> = locked.iter().map(|row| get(row, 0)).collect::<Answer<_>>()?;
    let entries: Vec<&TakeIn> = entries.iter().filter(|e| mine.contains(&e.inbox_id.0)).collect();

    let jobs: Vec<NewJob> = entries.iter().filter_map(|entry| entry.job.clone().ok()).collect();
    let mut answers = vec![None; jobs.len()];
    if !jobs.is_empty() {
        limited::fill(&tx, pools.test_now(), (engine, &jobs), &mut answers).await?;
    }
    crash_point("postgres.take_in.after_jobs");
    let gone = || StoreError::Unavailable("a job went away while it was looked at".to_owned());
    let submitted =
        answers.into_iter().map(|answer| answer.ok_or_else(gone)).collect::<Answer<_>>()?;
    mark(&tx, &entries, submitted, now).await?;
    commit(tx).await.map_err(|error| failed(&error))?;
    drop(client);
    if !entries.is_empty() {
        ring(pools).await;
    }
    Ok(entries.len())
}

/// Notes on each row what became of it, and lets go of the oldest that were taken long ago.
async fn mark(
    tx: &Transaction<'_>,
    entries: &[&TakeIn],
    submitted: Vec<Result<Submitted, Refusal>>,
    now: i64,
) -> Answer<()> {
    let mut submitted = submitted.into_iter();
    let outcomes: Vec<Result<Submitted, Refusal>> = entries
        .iter()
        .map(|entry| match &entry.job {
            Ok(_) => submitted.next().expect("every job is answered"),
            Err(refusal) => Err(refusal.clone()),
        })
        .collect();
    let ids: Vec<i64> = entries.iter().map(|entry| entry.inbox_id.0).collect();
    let jobs: Vec<Option<Uuid>> =
        outcomes.iter().map(|o| o.as_ref().ok().map(|s| s.job_id.uuid())).collect();
    let codes: Vec<Option<&str>> =
        outcomes.iter().map(|o| o.as_ref().err().map(|refusal| refusal.code().name())).collect();
    let messages: Vec<Option<String>> =
        outcomes.iter().map(|o| o.as_ref().err().map(ToString::to_string)).collect();
    let sql = include_str!("../../sql/postgres/mark_inbox.sql");
    let marked = tx.execute(sql, &[&now, &ids, &jobs, &codes, &messages]).await;
    marked.map_err(|error| failed(&error))?;
    crash_point("postgres.take_in.after_mark");
    let old = "DELETE FROM sprag.inbox WHERE taken_at < $1 AND inbox_id IN
        (SELECT inbox_id FROM sprag.inbox ORDER BY inbox_id LIMIT 500 FOR UPDATE SKIP LOCKED)";
    tx.execute(old, &[&(now - span(INBOX_KEPT_MS))]).await.map_err(|error| failed(&error))?;
    Ok(())
}

pub(super) async fn list(pools: &Pools, filter: &InboxFilter) -> Answer<Vec<InboxView>> {
    let sql = "SELECT inbox_id, submitted_at, taken_at, job_id, error_code, error_message
        FROM sprag.inbox WHERE ($1::bigint IS NULL OR inbox_id < $1)
            AND (NOT $2::boolean OR error_code IS NOT NULL)
        ORDER BY inbox_id DESC LIMIT $3";
    let before = filter.before.map(|before| before.0);
    let rows = pools.read(sql, &[&before, &filter.refused, &i64::from(filter.limit)]).await?;
    rows.iter().map(inbox_view).collect()
}

fn inbox_view(row: &Row) -> Answer<InboxView> {
    let (code, message): (Option<String>, Option<String>) = (get(row, 4)?, get(row, 5)?);
    Ok(InboxView {
        inbox_id: InboxId(get(row, 0)?),
        submitted_at: unsigned_long(row, 1)?,
        taken_at: time(row, 2)?,
        job_id: get::<Option<Uuid>>(row, 3)?.map(JobId::from),
        error: code.map(|code| AttemptError { code, message: message.unwrap_or_default() }),
    })
}
