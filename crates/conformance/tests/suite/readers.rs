//! Looking at a SQLite store while somebody holds its only write lock: readers do not wait for it.

use std::time::Duration;

use rusqlite::Connection;
use sprag_engine::store::{JobFilter, Store};
use sprag_stores::TestClock;
use sprag_stores::sqlite::SqliteStore;

use crate::play::{BEGIN_MS, facts, new_job};

#[tokio::test]
async fn looking_waits_for_no_writer_and_sees_what_was_answered() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.db");
    let store = SqliteStore::open_with_clock(&path, TestClock::at(BEGIN_MS)).unwrap();
    store.put_protocol("test.v1", "{}").await.unwrap();
    let engine = store.join("first").await.unwrap();
    let job = new_job(facts("t1", None, "a"), 2);
    let job_id = store.submit(engine, vec![job]).await.unwrap()[0].clone().unwrap().job_id;

    let writer = Connection::open(&path).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE; UPDATE job SET state = 1").unwrap();
    let looked = tokio::time::timeout(Duration::from_secs(5), async {
        let job = store.job(job_id).await.unwrap().unwrap();
        assert_eq!(job.row.version, 1, "what is not committed is not seen");
        assert_eq!(store.attempts(job_id).await.unwrap().len(), 2);
        assert_eq!(store.events(job_id).await.unwrap().len(), 1);
        let filter = JobFilter { limit: 10, ..JobFilter::default() };
        assert_eq!(store.jobs(filter).await.unwrap().len(), 1);
        assert_eq!(store.open_jobs().await.unwrap(), 1);
        assert!(store.audit().await.unwrap().iter().all(|check| check.violations.is_empty()));
    });
    looked.await.expect("a look does not wait for the lock");
    writer.execute_batch("ROLLBACK").unwrap();
    store.beat(engine, None).await.unwrap();
}
