//! Jobs of the script that ended long ago, as the books say: their times are set back once they are over, so that the
//! engine's retention deletes them while everything else of the script stays. So are those of the keys that are left,
//! but for one, so that they are forgotten.

use std::path::Path;
use std::time::Duration;

use sprag_engine::engine::Engine;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{JobFilter, JobView, Store};
use sprag_kernel::{JobState, State};

/// Whose they are.
const TENANT: &str = "old";
/// How many there are. One of them may have the newest event of all, and then it stays.
const JOBS: usize = 3;
/// What tells apart a job that was set back.
const LONG_AGO: u64 = 1;
const PATIENCE: Duration = Duration::from_secs(60);

/// They do nothing for a moment, so that they leave no effect behind.
pub(crate) fn protocol() -> Protocol {
    let text = "{protocol_id: old.v1, request_types: [OLD], steps: [{step_id: rest, sleep: 1ms}]}";
    Protocol::read(text).unwrap()
}

/// Submits them, again in each life: the last one is still known, even if it is deleted.
pub(crate) async fn submit<S: Store>(engine: &Engine<S>) {
    for n in 0..JOBS {
        let envelope = format!(
            r#"{{"tenant_id":"{TENANT}","request_type":"OLD","input_ref":"i","output_ref":"o",
                "payload":{{}},"schema_version":"1","idempotency_key":"{n}"}}"#
        );
        engine.submit(envelope.as_bytes()).await.unwrap();
    }
}

pub(crate) fn is_old(job: &JobView) -> bool {
    job.facts.tenant_id == TENANT
}

/// Whether there are more jobs or keys than may stay. Sets back those that are over.
pub(crate) async fn is_any_left<S: Store>(store: &S, folder: &Path) -> bool {
    let tenant_id = Some(TENANT.to_owned());
    let filter = JobFilter { tenant_id, limit: 100, ..JobFilter::default() };
    let jobs = store.jobs(filter).await.unwrap();
    let is_over = |job: &JobView| job.row.state.is_terminal() && job.created_at != LONG_AGO;
    if jobs.iter().any(is_over) {
        let times = format!("created_at = {LONG_AGO}, completed_at = {LONG_AGO}");
        set_back(folder, "job", &times, "completed_at IS NOT NULL").await;
    }
    let last = JOBS - 1;
    let time = format!("retired_at = {LONG_AGO}");
    let keys = set_back(folder, "retired", &time, &format!("dedup_key <> 'k:{last}'")).await;
    jobs.len() > 1 || keys > 0
}

/// Says how many rows it has set back.
async fn set_back(folder: &Path, table: &str, times: &str, which: &str) -> u64 {
    let sql = format!("UPDATE {table} SET {times} WHERE tenant_id = '{TENANT}' AND {which}");
    if let Ok(url) = std::env::var("SPRAG_PG") {
        let (client, connection) =
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        client.execute(&sql.replace("UPDATE ", "UPDATE sprag."), &[]).await.unwrap()
    } else {
        let user = rusqlite::Connection::open(folder.join("store.db")).unwrap();
        user.busy_timeout(PATIENCE).unwrap();
        user.execute(&sql, []).unwrap() as u64
    }
}

/// What is left of them has ended as it must.
pub(crate) fn look(left: &[JobView], points: &[String]) {
    assert!(left.len() <= 1, "{points:?}: {} are left", left.len());
    for job in left {
        assert_eq!(job.row.state, JobState::Succeeded, "{points:?}");
    }
}
