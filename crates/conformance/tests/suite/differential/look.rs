//! All that can be read of a store, as text without what may differ.

use std::collections::BTreeSet;

use sprag_engine::batch::store::BatchPlace;
use sprag_engine::ids::{JobId, Place};
use sprag_engine::inbox::InboxFilter;
use sprag_engine::requests::{RequestFilter, RequestStore};
use sprag_engine::store::{JobFilter, Store};
use sprag_engine::tokens::TokenStore;

use super::command::{SCHEDULER, sorted, told};

/// All that can be read of one job.
pub async fn read<S: Store>(store: &S, job_id: JobId) -> String {
    let attempts = store.attempts(job_id).await;
    let places: BTreeSet<Place> =
        attempts.iter().flatten().map(|attempt| attempt.key.place()).collect();
    let ends = places.iter().map(|place| (job_id, *place)).collect();
    let mut text = [
        told(&store.job(job_id).await),
        told(&attempts),
        told(&store.events(job_id).await),
        told(&store.signals(job_id).await),
        told(&store.tasks(job_id).await),
        told(&store.children(job_id, None).await),
        told(&store.cancelling(vec![job_id]).await),
        told(&store.ends(ends).await),
    ]
    .join("\n");
    for place in places {
        let Place { step_index, branch, turn } = place;
        let batch = BatchPlace { job_id, step_index, branch, turn };
        text += &told(&store.batch(batch).await);
        text += &told(&store.batch_journal(batch, 0, 10).await);
        text += &told(&store.signal_of(job_id, place).await);
        text += &told(&store.children(job_id, Some(place)).await);
    }
    text
}

/// All that can be read beside jobs.
pub async fn look<S: RequestStore + TokenStore>(store: &S) -> String {
    let now = store.now().await.unwrap();
    let gates = store.lines(None, 10).await;
    let mut text = [
        told(&store.protocols().await),
        told(&store.protocol("test.v1").await),
        told(&store.jobs(JobFilter { limit: 20, ..JobFilter::default() }).await),
        told(&store.open_jobs().await),
        told(&store.inbox_waiting(10, usize::MAX).await),
        told(&store.inbox_waiting(10, 8).await),
        told(&store.inbox(InboxFilter { limit: 20, ..InboxFilter::default() }).await),
        told(&store.services().await),
        told(&store.tenants().await),
        told(&store.undelivered().await),
        told(&store.backlog(now, now - 60_000).await),
        told(&store.counts().await),
        told(&gates),
        told(&store.schedules(None).await),
        // Of those with the same time any may be the first.
        sorted(&store.next_schedules(10).await),
        told(&store.schedule(SCHEDULER, "s0").await),
        told(&store.tokens().await),
        told(&store.token("k0").await),
        sorted(&store.claimed(vec!["claim".to_owned()]).await),
    ]
    .join("\n");
    for gate in gates.into_iter().flatten() {
        text += &told(&store.gate(&gate).await);
    }
    let requests = store.requests(RequestFilter { limit: 20, ..RequestFilter::default() }).await;
    text += &told(&requests);
    for request in requests.into_iter().flatten() {
        text += &told(&store.request_events(request.facts.request_id).await);
    }
    text
}
