//! What a long line at one tenant's gate costs another tenant: the time of a claim with 100,000 jobs of the
//! first at limit 1, beside the same without them. Prints Markdown. `SPRAG_JOBS` sets the length of the line.

#![allow(clippy::unwrap_used, unreachable_pub)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::{Begins, JobFacts, NewJob, NewStep, Pick, Store, Wish};
use sprag_kernel::decide::gate::Limit;
use sprag_kernel::keys::{Hash, Mode, route};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Claims of which the median counts.
const CLAIMS: usize = 200;
/// Jobs of one submit.
const SLICE: usize = 500;
const GATE: &str = "work[tenant = many]";

#[tokio::main]
async fn main() {
    println!(
        "| store | jobs in line | claim without them | claim beside them | ratio | admit one |"
    );
    println!("|---|---|---|---|---|---|");
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("gates.db"), Durability::Full).unwrap();
    measure("SQLite, FULL", store).await;
    let cluster = sprag_conformance::cluster::Cluster::start();
    let options = PostgresOptions::new(&cluster.database().await);
    measure("Postgres", PostgresStore::open(&options).await.unwrap()).await;
}

async fn measure<S: Store>(name: &str, store: S) {
    let waiting =
        std::env::var("SPRAG_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(100_000);
    store.put_protocol("gates.v1", "{}").await.unwrap();
    let engine = store.join("bench").await.unwrap();
    let before = claim(&store, engine).await;
    for from in (0..waiting).step_by(SLICE) {
        let jobs = (0..SLICE.min(waiting - from)).map(|_| job("many", Some(GATE))).collect();
        store.submit(engine, jobs).await.unwrap();
    }
    let begin = Instant::now();
    assert_eq!(store.admit(engine, vec![GATE.to_owned()]).await.unwrap(), 1);
    let admit = begin.elapsed();
    let after = claim(&store, engine).await;
    let ratio = after.as_secs_f64() / before.as_secs_f64();
    println!("| {name} | {waiting} | {before:.0?} | {after:.0?} | {ratio:.2} | {admit:.0?} |");
}

/// The median time of a claim of one job of a tenant without a limit, with a batch of others behind it.
async fn claim<S: Store>(store: &S, engine: EngineNo) -> Duration {
    let jobs = (0..CLAIMS).map(|_| job("other", None)).collect();
    store.submit(engine, jobs).await.unwrap();
    let mut times = Vec::with_capacity(CLAIMS);
    for _ in 0..CLAIMS {
        let service = "work".to_owned();
        let wish = Wish { service, max: 1, pick: Pick::Any, tenant_id: None };
        let begin = Instant::now();
        assert_eq!(store.claim(engine, vec![wish]).await.unwrap().len(), 1);
        times.push(begin.elapsed());
    }
    times.sort_unstable();
    times[CLAIMS / 2]
}

fn job(tenant: &str, gate: Option<&str>) -> NewJob {
    let job_id = JobId::new();
    let facts = JobFacts {
        job_id,
        tenant_id: tenant.to_owned(),
        request_type: "BENCH".to_owned(),
        protocol_id: "gates.v1".to_owned(),
        input_ref: "null".to_owned(),
        output_ref: "null".to_owned(),
        payload: "{}".to_owned(),
        schema_version: "1".to_owned(),
        idempotency_key: None,
        dedup_key: format!("k:{job_id}"),
        hash: Hash::of(b"bench"),
        doc_id: None,
        mode: Mode::Default,
        route: route(tenant, Mode::Default, None).unwrap(),
        correlation_id: None,
        traceparent: None,
        priority: 0,
        rerun_of: None,
    };
    let step = NewStep {
        step_id: "a".to_owned(),
        step_type: "a".to_owned(),
        service: "work".to_owned(),
        priority: 0,
        delay_ms: 0,
        limit: gate.map(|_| Limit { max: Some(1), gap_us: None }),
        begins: Begins::Ready,
    };
    NewJob {
        facts: Arc::new(facts),
        steps: [step].into(),
        gates: vec![gate.map(str::to_owned)],
        is_graph: false,
        not_before: None,
        enter: false,
    }
}
