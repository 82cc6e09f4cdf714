//! The feed of all events: by position.

use rusqlite::{Row, params};
use sprag_engine::feed::MAX_FEED_EVENTS;
use sprag_engine::ids::JobId;
use sprag_engine::store::{Answer, Cursor, EventView, FeedEvent};

use super::rows::failed;
use super::writer::Tx;

pub(super) fn feed(tx: &Tx<'_>, after: Cursor, limit: u32) -> Answer<Vec<FeedEvent>> {
    let (_, position) = after.parts();
    let sql = include_str!("../../sql/sqlite/feed.sql");
    tx.all(sql, params![position, limit.min(MAX_FEED_EVENTS)], |row| {
        feed_event(row).map_err(|error| failed(&error))
    })
}

fn feed_event(row: &Row<'_>) -> rusqlite::Result<FeedEvent> {
    let (step, attempt): (Option<u32>, Option<u32>) = (row.get(5)?, row.get(6)?);
    Ok(FeedEvent {
        cursor: Cursor::new(0, row.get(0)?),
        job_id: JobId::from_bytes(row.get(1)?),
        tenant_id: row.get(2)?,
        event: EventView {
            n: row.get(3)?,
            at: row.get(4)?,
            attempt: step.zip(attempt),
            changes: row.get(7)?,
            note: row.get(8)?,
            branch: row.get::<_, i64>(9)?.cast_unsigned(),
            turn: row.get(10)?,
        },
    })
}
