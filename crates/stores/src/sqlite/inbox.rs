//! The inbox: users write to it in transactions of their own connections, the engine takes from it.

use rusqlite::{Connection, OptionalExtension, Row, params};
use sprag_engine::crash::crash_point;
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::inbox::{
    INBOX_KEPT_MS, INBOX_SLICE_BYTES, InboxFilter, InboxId, InboxView, TakeIn, Waiting,
};
use sprag_engine::store::{Answer, AttemptError};

use super::engines::expect_alive;
use super::rows::failed;
use super::submit::submit_one;
use super::writer::Tx;
use crate::moving::OPEN;

/// Submits an envelope as part of your own transaction on the store's file: if that commits, the engine makes
/// a job of it, once; if not, nothing was ever there. The transaction holds the file's only write lock, so
/// keep it short.
pub fn submit_in(tx: &Connection, envelope: &str) -> rusqlite::Result<InboxId> {
    let sql = "INSERT INTO inbox (envelope, submitted_at)
        SELECT ?1, CAST(unixepoch('subsec') * 1000 AS INTEGER)
        WHERE EXISTS (SELECT 1 FROM meta WHERE key = ?2) RETURNING inbox_id";
    let written = tx.query_row(sql, [envelope, OPEN], |row| row.get(0).map(InboxId)).optional()?;
    written.ok_or_else(|| {
        let told = "STORE_CLOSED: this store takes nothing more, it is being moved or was moved";
        let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
        rusqlite::Error::SqliteFailure(code, Some(told.to_owned()))
    })
}

pub(super) fn waiting(tx: &Tx<'_>, limit: u32, max_bytes: usize) -> Answer<Vec<Waiting>> {
    let sql = include_str!("../../sql/sqlite/inbox_waiting.sql");
    let [each, all] = [max_bytes, INBOX_SLICE_BYTES].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
    tx.all(sql, [limit.into(), each, all], |row| {
        let read = || -> rusqlite::Result<Waiting> {
            Ok(Waiting {
                inbox_id: InboxId(row.get(0)?),
                envelope: row.get(1)?,
                dedup_key: row.get(2)?,
            })
        };
        read().map_err(|error| failed(&error))
    })
}

/// Creates the jobs and marks their rows, in the writer's transaction.
pub(super) fn take_in(tx: &Tx<'_>, engine: EngineNo, entries: &[TakeIn]) -> Answer<usize> {
    expect_alive(tx, engine)?;
    let mut taken = 0;
    for entry in entries {
        let waits = "SELECT 1 FROM inbox WHERE inbox_id = ?1 AND taken_at IS NULL";
        if tx.find(waits, [entry.inbox_id.0], |_| Ok(()))?.is_none() {
            continue;
        }
        let outcome = match &entry.job {
            Ok(job) => submit_one(tx, engine, job)?,
            Err(refusal) => Err(refusal.clone()),
        };
        crash_point("inbox.after_job");
        let job_id = outcome.as_ref().ok().map(|submitted| submitted.job_id);
        let refusal = outcome.as_ref().err();
        tx.execute(
            "UPDATE inbox SET taken_at = ?2, job_id = ?3, error_code = ?4, error_message = ?5
             WHERE inbox_id = ?1",
            params![
                entry.inbox_id.0,
                tx.now,
                job_id.as_ref().map(JobId::as_bytes),
                refusal.map(|refusal| refusal.code().name()),
                refusal.map(ToString::to_string),
            ],
        )?;
        crash_point("inbox.after_mark");
        taken += 1;
    }
    let kept = i64::try_from(INBOX_KEPT_MS).unwrap_or(i64::MAX);
    let old = "DELETE FROM inbox WHERE taken_at < ?1 AND inbox_id IN
        (SELECT inbox_id FROM inbox ORDER BY inbox_id LIMIT 500)";
    tx.execute(old, [tx.now - kept])?;
    crash_point("inbox.after_sweep");
    Ok(taken)
}

pub(super) fn list(tx: &Tx<'_>, filter: &InboxFilter) -> Answer<Vec<InboxView>> {
    let sql =
        "SELECT inbox_id, submitted_at, taken_at, job_id, error_code, error_message FROM inbox
        WHERE (?1 IS NULL OR inbox_id < ?1) AND (NOT ?2 OR error_code IS NOT NULL)
        ORDER BY inbox_id DESC LIMIT ?3";
    let before = filter.before.map(|before| before.0);
    tx.all(sql, params![before, filter.refused, filter.limit], |row| {
        inbox_view(row).map_err(|error| failed(&error))
    })
}

fn inbox_view(row: &Row<'_>) -> rusqlite::Result<InboxView> {
    let (code, message): (Option<String>, Option<String>) = (row.get(4)?, row.get(5)?);
    Ok(InboxView {
        inbox_id: InboxId(row.get(0)?),
        submitted_at: row.get(1)?,
        taken_at: row.get(2)?,
        job_id: row.get::<_, Option<[u8; 16]>>(3)?.map(JobId::from_bytes),
        error: code.map(|code| AttemptError { code, message: message.unwrap_or_default() }),
    })
}
