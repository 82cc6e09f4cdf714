//! An engine whose connections break, at any request and on either side of it: it goes on, nothing that it was told
//! or had done is lost, and nothing is taken up twice.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use sprag_conformance::cluster::Cluster;
use sprag_conformance::cutter::{Cutter, Side};
use sprag_engine::directive::Failure;
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::ids::JobId;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_kernel::{JobState, State};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};

use super::world::{assert_clean, envelope, protocol};

/// More than an engine asks for the jobs of one round.
const REQUESTS: u32 = 18;
const JOBS: usize = 6;

/// How a job ends, looked at by a way that nobody cuts.
async fn ended(store: &PostgresStore, job_id: JobId) -> JobState {
    for _ in 0..4_000 {
        let state = store.job(job_id).await.unwrap().unwrap().row.state;
        if state.is_terminal() {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the job does not close: {:?}", store.attempts(job_id).await);
}

/// A handler that is done at once, so that a job may be over before a lost answer is asked for again: the heart
/// then met its own job as one that had ended, and ended itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_engine_lives_on_whichever_answer_gets_lost() {
    let cluster = Cluster::shared();
    let database = cluster.database().await;
    let name = database.rsplit_once('=').unwrap().1;
    let cutter = Cutter::before(&cluster);
    let straight = PostgresStore::open(&PostgresOptions::new(&database)).await.unwrap();
    let store = PostgresStore::open(&PostgresOptions::new(&cutter.url(name))).await.unwrap();
    let config = EngineConfig { poll: Duration::from_millis(20), ..EngineConfig::default() };
    let ran = Arc::new(AtomicU32::new(0));
    let counted = ran.clone();
    let work = Handler::new(move |_: serde_json::Value, _, _| {
        counted.fetch_add(1, Ordering::SeqCst);
        async { Ok::<_, Failure>(1) }
    });
    let engine = EngineBuilder::new(store).config(config).protocol(protocol(&["a", "b"]));
    let engine = engine.service("a", 4, work.clone()).service("b", 4, work).start().await.unwrap();
    let engine = Arc::new(engine);
    let (mut n, mut cuts) = (0, 0);
    for request in 1..=REQUESTS {
        for side in [Side::There, Side::Back] {
            cutter.arm(request, side);
            let submits = (0..JOBS).map(|i| {
                let (engine, envelope) = (engine.clone(), envelope(n + i));
                tokio::spawn(async move { engine.submit(&envelope).await.unwrap().job_id })
            });
            for submitted in submits.collect::<Vec<_>>() {
                let state = ended(&straight, submitted.await.unwrap()).await;
                assert_eq!(state, JobState::Succeeded, "cut at {request}, {side:?}");
            }
            n += JOBS;
            cuts += u32::from(cutter.disarm());
        }
    }
    assert!(cuts > REQUESTS, "most of them were cut: {cuts}");
    let ran = usize::try_from(ran.load(Ordering::SeqCst)).unwrap();
    assert!(ran >= 2 * n, "every step has run: {ran} of {}", 2 * n);
    assert_clean(&straight).await;
    let engine = Arc::into_inner(engine).unwrap();
    engine.shutdown(Duration::from_secs(5)).await.expect("it has lived to the end");
}
