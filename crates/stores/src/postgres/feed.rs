//! The feed of all events: by transaction, then by position in it.

use sprag_engine::feed::MAX_FEED_EVENTS;
use sprag_engine::ids::JobId;
use sprag_engine::store::{Answer, Cursor, EventView, FeedEvent, StoreError};
use tokio_postgres::Row;
use uuid::Uuid;

use super::pools::Pools;
use super::rows::{get, unsigned, unsigned_long};

pub(super) async fn feed(pools: &Pools, after: Cursor, limit: u32) -> Answer<Vec<FeedEvent>> {
    let (transaction, position) = after.parts();
    let sql = include_str!("../../sql/postgres/feed.sql");
    let limit = i64::from(limit.min(MAX_FEED_EVENTS));
    let (transaction, position) = (transaction.to_string(), position.cast_signed());
    let rows = pools.read(sql, &[&transaction, &position, &limit]).await?;
    rows.iter().map(feed_event).collect()
}

fn feed_event(row: &Row) -> Answer<FeedEvent> {
    let count = |column| -> Answer<Option<u32>> {
        Ok(get::<Option<i32>>(row, column)?.and_then(|count| u32::try_from(count).ok()))
    };
    let transaction = get::<&str>(row, 0)?.parse();
    let transaction =
        transaction.map_err(|_| StoreError::Poison("an event without a transaction".to_owned()))?;
    Ok(FeedEvent {
        cursor: Cursor::new(transaction, unsigned_long(row, 1)?),
        job_id: JobId::from(get::<Uuid>(row, 2)?),
        tenant_id: get(row, 3)?,
        event: EventView {
            n: unsigned_long(row, 4)?,
            at: unsigned_long(row, 5)?,
            attempt: count(6)?.zip(count(7)?),
            changes: get(row, 8)?,
            note: get(row, 9)?,
            branch: get::<i64>(row, 10)?.cast_unsigned(),
            turn: unsigned(row, 11)?,
        },
    })
}
