//! A world for a test: a store in a temporary folder and an engine on it.

use std::path::PathBuf;
use std::time::Duration;

use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{JobView, Store};
use sprag_engine::worker::Handler;
use sprag_stores::sqlite::{Durability, SqliteStore};
use tempfile::TempDir;

pub(crate) struct World {
    folder: TempDir,
}

impl World {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.folder.path().join("store.db")
    }

    pub(crate) fn builder(&self) -> EngineBuilder<SqliteStore> {
        let store = SqliteStore::open(&self.path(), Durability::Process).unwrap();
        let config = EngineConfig {
            beat: Duration::from_millis(50),
            takeover: Duration::from_millis(300),
            poll: Duration::from_millis(5),
            ..EngineConfig::default()
        };
        EngineBuilder::new(store).config(config)
    }
}

/// A protocol whose retries wait for milliseconds.
pub(crate) fn protocol(steps: &[&str]) -> Protocol {
    let mut protocol = Protocol::new("test.v1", "TEST");
    for step in steps {
        protocol = protocol.step(step, step);
    }
    for step in &mut protocol.steps {
        step.retry.backoff = Some(vec![1]);
    }
    protocol
}

pub(crate) fn envelope(n: usize) -> Vec<u8> {
    format!(
        r#"{{"tenant_id":"t1","request_type":"TEST","input_ref":"in","output_ref":"out",
            "payload":{{"n":{n}}},"schema_version":"1"}}"#
    )
    .into_bytes()
}

/// A handler that answers with its step and the payload's number.
pub(crate) fn echo() -> Handler {
    Handler::new(|input: serde_json::Value, directive, _| async move {
        Ok::<_, sprag_engine::directive::Failure>(
            serde_json::json!({"step": directive.step_id, "n": input["n"], "saw": directive.inputs}),
        )
    })
}

/// Waits until the job is over.
pub(crate) async fn closed<S: Store>(engine: &Engine<S>, job_id: JobId) -> JobView {
    let ended = tokio::time::timeout(Duration::from_secs(20), engine.closed(job_id)).await;
    let Ok(job) = ended else {
        panic!("the job does not close: {:?}", engine.store().attempts(job_id).await)
    };
    job.unwrap()
}

/// Asserts that no invariant is broken.
pub(crate) async fn assert_clean<S: Store>(store: &S) {
    for check in store.audit().await.unwrap() {
        assert_eq!(check.violations, [], "{}", check.name);
    }
}
