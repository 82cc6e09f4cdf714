//! The victim: an engine on the store in a folder. It submits jobs for as long as it lives and says on
//! stdout which ones were accepted; each handler appends a line to a log. With `drain` it submits nothing
//! and ends when every job has ended.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sprag_engine::directive::Failure;
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_engine::worker::Handler;
use sprag_stores::sqlite::{Durability, SqliteStore};

const STEPS: [&str; 3] = ["fetch", "convert", "store"];

pub(crate) fn run(folder: &Path) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(live(folder));
}

async fn live(folder: &Path) {
    let store = SqliteStore::open(&folder.join("store.db"), Durability::Process).unwrap();
    let mut protocol = Protocol::new("kill.v1", "KILL");
    for step in STEPS {
        protocol = protocol.step(step, step);
    }
    for step in &mut protocol.steps {
        // A kill is never the step's fault, however often it comes.
        step.retry.max_losses = Some(1_000_000);
    }
    let config = EngineConfig { poll: Duration::from_millis(5), ..EngineConfig::default() };
    let mut builder = EngineBuilder::new(store).config(config).protocol(protocol);
    for step in STEPS {
        builder = builder.service(step, 8, handler(folder.join("effects.log")));
    }
    let engine = Arc::new(builder.start().await.unwrap());
    if std::env::var("SPRAG_DRAIN").is_ok() {
        while engine.store().open_jobs().await.unwrap() > 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Arc::into_inner(engine).unwrap().shutdown(Duration::from_secs(5)).await.unwrap();
        return;
    }
    let round = std::env::var("SPRAG_ROUND").unwrap();
    for n in 0.. {
        let envelope = format!(
            r#"{{"tenant_id":"t","request_type":"KILL","input_ref":"i","output_ref":"o",
                "payload":{{"n":{n}}},"schema_version":"1","idempotency_key":"{round}-{n}"}}"#
        );
        let engine = engine.clone();
        let submitted = tokio::spawn(async move {
            let submitted = engine.submit(envelope.as_bytes()).await.unwrap();
            println!("{}", submitted.job_id);
        });
        if n % 4 == 3 {
            submitted.await.unwrap();
        }
    }
}

fn handler(log: PathBuf) -> Handler {
    Handler::new(move |_: serde_json::Value, directive, _| {
        let mut log = OpenOptions::new().create(true).append(true).open(&log).unwrap();
        async move {
            let line = format!("{} {}\n", directive.effect_key, directive.attempt_no);
            log.write_all(line.as_bytes()).map_err(|error| Failure::retryable("LOG", error))?;
            Ok(directive.attempt_no)
        }
    })
}
