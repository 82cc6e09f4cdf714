//! Jobs per second, submit to closed.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sprag_engine::engine::EngineBuilder;
use sprag_engine::protocol::Protocol;
use sprag_engine::worker::Handler;
use sprag_stores::sqlite::{Durability, SqliteStore};

#[tokio::main]
async fn main() {
    for steps in [1, 3] {
        run(steps, 20_000).await;
    }
    lone().await;
}

async fn run(steps: usize, jobs: usize) {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("s.db"), Durability::Full).unwrap();
    let done = Arc::new(AtomicUsize::new(0));
    let counter = done.clone();
    let handler = Handler::new(move |_: serde_json::Value, _, _| {
        let counter = counter.clone();
        async move {
            counter.fetch_add(1, Ordering::Relaxed);
            Ok::<_, sprag_engine::directive::Failure>(serde_json::json!({"ok": true}))
        }
    });
    let mut protocol = Protocol::new("bench.v1", "BENCH");
    for n in 0..steps {
        protocol = protocol.step(&format!("s{n}"), "work");
    }
    let engine = Arc::new(
        EngineBuilder::new(store)
            .protocol(protocol)
            .service("work", 2_000, handler)
            .start()
            .await
            .unwrap(),
    );
    let start = Instant::now();
    let mut tasks = tokio::task::JoinSet::new();
    for part in 0..20 {
        let engine = engine.clone();
        tasks.spawn(async move {
            let mut inner = tokio::task::JoinSet::new();
            for n in 0..jobs / 20 {
                let engine = engine.clone();
                inner.spawn(async move {
                    let envelope = format!(
                        r#"{{"tenant_id":"t","request_type":"BENCH","input_ref":"in","output_ref":"out","payload":{{"n":{}}},"schema_version":"1"}}"#,
                        part * jobs + n
                    );
                    engine.submit(envelope.as_bytes()).await.unwrap()
                });
                if inner.len() > 200 {
                    inner.join_next().await;
                }
            }
            inner.join_all().await.len()
        });
    }
    tasks.join_all().await;
    while done.load(Ordering::Relaxed) < jobs * steps {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let engine = Arc::into_inner(engine).unwrap();
    engine.shutdown(Duration::from_secs(10)).await.unwrap();
    let elapsed = start.elapsed();
    println!("{steps} steps: {:.0} jobs/s", jobs as f64 / elapsed.as_secs_f64());
}

async fn lone() {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(&folder.path().join("s.db"), Durability::Full).unwrap();
    let (sender, mut receiver) = tokio::sync::mpsc::unbounded_channel();
    let handler = Handler::new(move |_: serde_json::Value, _, _| {
        let sender = sender.clone();
        async move {
            sender.send(()).unwrap();
            Ok::<_, sprag_engine::directive::Failure>(1)
        }
    });
    let engine = EngineBuilder::new(store)
        .protocol(Protocol::new("bench.v1", "BENCH").step("s", "work"))
        .service("work", 10, handler)
        .start()
        .await
        .unwrap();
    let mut times = Vec::new();
    for n in 0..300 {
        let start = Instant::now();
        let envelope = format!(
            r#"{{"tenant_id":"t","request_type":"BENCH","input_ref":"in","output_ref":"out","payload":{{"n":{n}}},"schema_version":"1"}}"#
        );
        engine.submit(envelope.as_bytes()).await.unwrap();
        receiver.recv().await.unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    println!("lone job, submit to handler: p50 {:?}", times[150]);
    engine.shutdown(Duration::from_secs(1)).await.unwrap();
}
