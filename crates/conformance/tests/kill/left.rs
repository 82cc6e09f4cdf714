//! Jobs of the script for a service that nobody has: another engine claims them, gives them back in one call and leaves;
//! then they are cancelled.

use sprag_engine::engine::Engine;
use sprag_engine::held::{Pick, Wish};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{Answer, JobView, Store, StoreError};
use sprag_kernel::JobState;

/// Whose they are.
const TENANT: &str = "left";
/// More than one, so that a life can end between them.
const JOBS: u32 = 2;
const SERVICE: &str = "left";

pub(crate) fn protocol() -> Protocol {
    Protocol::new("left.v1", "LEFT").step("only", SERVICE)
}

/// In each life, for as many as are still open and not held by an engine that died with them.
pub(crate) async fn give_back<S: Store>(engine: &Engine<S>) {
    let mut jobs = Vec::new();
    for n in 0..JOBS {
        let envelope = format!(
            r#"{{"tenant_id":"{TENANT}","request_type":"LEFT","input_ref":"i","output_ref":"o",
                "payload":{{}},"schema_version":"1","idempotency_key":"{n}"}}"#
        );
        jobs.push(engine.submit(envelope.as_bytes()).await.unwrap().job_id);
    }
    let given_back = claim_and_release(engine.store()).await;
    // It does not beat: where that took long it counts as dead, and what it held is taken over.
    let is_fenced = matches!(given_back, Err(StoreError::Fenced));
    assert!(given_back.is_ok() || is_fenced, "{given_back:?}");
    for job_id in jobs {
        engine.cancel(job_id, None).await.unwrap();
    }
}

async fn claim_and_release<S: Store>(store: &S) -> Answer<()> {
    let giver = store.join("giver").await?;
    let service = SERVICE.to_owned();
    let wish = Wish { service, max: JOBS, pick: Pick::Any, tenant_id: None };
    let held = store.claim(giver, vec![wish]).await?;
    let activations = held.iter().map(|held| (held.key, held.attempt.version)).collect();
    store.release(giver, activations).await?;
    store.leave(giver).await
}

pub(crate) fn is_left(job: &JobView) -> bool {
    job.facts.tenant_id == TENANT
}

/// All have ended as they must.
pub(crate) fn look(left: &[JobView], points: &[String]) {
    assert_eq!(left.len(), JOBS as usize, "{points:?}");
    for job in left {
        assert_eq!(job.row.state, JobState::Cancelled, "{points:?}");
    }
}
