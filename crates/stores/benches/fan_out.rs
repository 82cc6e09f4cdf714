//! A fan-out of no-op branches with a join, submit to closed, on both stores: branches per second, what
//! 10,000 cost beside 1,000 and 30,000 beside 10,000, and how often the job's row is written. Prints Markdown.
//! `cargo bench --bench fan_out -- postgres` runs one store only; `SPRAG_ROUNDS` sets the rounds, of which the best
//! counts.

#![allow(clippy::unwrap_used, unreachable_pub)]

use std::time::{Duration, Instant};

use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::EngineBuilder;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_kernel::{JobState, State};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::{Durability, SqliteStore};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const SIZES: [usize; 3] = [1_000, 10_000, 30_000];
/// Cost may grow by so much from the first size to the second, which is ten times as large.
const MOST: f64 = 12.0;

#[tokio::main]
async fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|arg| arg == name);
    println!("| store | branches | seconds | branches/s | job versions per branch |");
    println!("|---|---|---|---|---|");
    if is_wanted("sqlite") {
        let folder = tempfile::tempdir().unwrap();
        let mut number = 0;
        let mut taken = Vec::new();
        for size in SIZES {
            let mut best = f64::MAX;
            for _ in 0..rounds() {
                number += 1;
                let file = folder.path().join(format!("{number}.db"));
                let store = SqliteStore::open(&file, Durability::Full).unwrap();
                best = best.min(round("SQLite, FULL", store, size).await);
            }
            taken.push(best);
        }
        tell_growth("SQLite", &taken);
    }
    if is_wanted("postgres") {
        let cluster = sprag_conformance::cluster::Cluster::start();
        let mut taken = Vec::new();
        for size in SIZES {
            let mut best = f64::MAX;
            for _ in 0..rounds() {
                let options = PostgresOptions::new(&cluster.database().await);
                let store = PostgresStore::open(&options).await.unwrap();
                best = best.min(round("Postgres", store, size).await);
            }
            taken.push(best);
        }
        tell_growth("Postgres", &taken);
    }
}

fn rounds() -> usize {
    std::env::var("SPRAG_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(3)
}

fn tell_growth(store: &str, taken: &[f64]) {
    let growth = taken[1] / taken[0];
    let verdict = if growth <= MOST { "linear" } else { "more than linear" };
    println!("\n{store}: ten times the branches take {growth:.1} times as long: {verdict}");
    println!("{store}: three times as many again take {:.1} times as long\n", taken[2] / taken[1]);
}

/// One job of so many branches, from its submit to its end; returns seconds.
async fn round<S: Store>(name: &str, store: S, branches: usize) -> f64 {
    let handler = Handler::new(move |_: serde_json::Value, directive: Directive, _| async move {
        let count = if directive.step_id == "list" { branches } else { 1 };
        Ok::<_, Failure>((0..count).collect::<Vec<_>>())
    });
    let steps = "  - {step_id: list, service: work}\n  \
        - {step_id: each, for_each: steps.list.output, service: work}\n  \
        - {step_id: after, service: work}\n";
    let text = format!("protocol_id: fan.v1\nrequest_types: [FAN]\nsteps:\n{steps}");
    let engine = EngineBuilder::new(store)
        .protocol(Protocol::read(&text).unwrap())
        .service("work", 2_000, handler)
        .start()
        .await
        .unwrap();
    let envelope = serde_json::json!({
        "tenant_id": "t", "request_type": "FAN", "input_ref": "in", "output_ref": "out",
        "payload": {}, "schema_version": "1",
    });
    let start = Instant::now();
    let job_id = engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id;
    let job = loop {
        let job = engine.store().job(job_id).await.unwrap().unwrap();
        if job.row.state.is_terminal() {
            break job;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    };
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(job.row.state, JobState::Succeeded);
    let (rate, versions) = (branches as f64 / seconds, job.row.version as f64 / branches as f64);
    println!("| {name} | {branches} | {seconds:.3} | {rate:.0} | {versions:.2} |");
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    seconds
}
