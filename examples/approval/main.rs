//! An approval flow: small payments go through, larger ones wait for somebody who says yes or no. What was said,
//! by whom and why is kept with the job. Here two people answer at once; at a server they would run
//! `sprag signal JOB_ID approval --by ada` or `--reject`, hours later and after as many restarts as you like.
//!
//!     cargo run --example approval [FOLDER]

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder};
use sprag_engine::explain::explained;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::signals::{Decision, Signal};
use sprag_engine::store::{AttemptFilter, Store};
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::JobState;
use sprag_stores::sqlite::{Durability, SqliteStore};

/// From here on somebody is asked.
const LIMIT: u64 = 1_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "approval-data".to_owned());
    for (amount, state, story) in run(Path::new(&folder)).await? {
        println!("Payment of {amount}: {state}");
        for sentence in story {
            println!("  {sentence}");
        }
    }
    Ok(())
}

/// How a payment ended, and what is told of it.
pub(crate) type Told = (u64, JobState, Vec<String>);

/// Three payments: one that nobody need look at, one that ada approves, one that bob rejects.
pub(crate) async fn run(folder: &Path) -> Result<Vec<Told>, Box<dyn Error>> {
    std::fs::create_dir_all(folder)?;
    let store = SqliteStore::open(&folder.join("sprag.db"), Durability::Full)?;
    let engine = EngineBuilder::new(store)
        .protocol(Protocol::read(include_str!("protocol.yaml"))?)
        .service("assessor", 2, assessor())
        .service("bank", 2, bank())
        .start()
        .await?;
    let small = submit(&engine, 90).await?;
    let large = submit(&engine, 5_000).await?;
    let strange = submit(&engine, 1_000_000).await?;
    let yes = Signal {
        by: Some("ada".to_owned()),
        ..Signal::new("ada-1", "approval", &json!({"limit": 10_000}))
    };
    // The same signal again counts once, and one that comes before its step waits is kept.
    engine.signal(large, yes.clone()).await?;
    engine.signal(large, yes).await?;
    let no = Signal {
        decision: Decision::Reject,
        by: Some("bob".to_owned()),
        reason: Some("we have no such supplier".to_owned()),
        ..Signal::new("bob-1", "approval", &Value::Null)
    };
    engine.signal(strange, no).await?;
    let mut told = Vec::new();
    for (amount, job_id) in [(90, small), (5_000, large), (1_000_000, strange)] {
        let job = engine.closed(job_id).await?;
        let happened = explained(engine.store(), &job, AttemptFilter::default()).await?.happened;
        told.push((amount, job.row.state, happened));
    }
    engine.shutdown(Duration::from_secs(5)).await?;
    Ok(told)
}

async fn submit<S: Store>(engine: &Engine<S>, amount: u64) -> Result<JobId, Box<dyn Error>> {
    let envelope = json!({
        "tenant_id": "accounts", "request_type": "PAYMENT", "schema_version": "1",
        "input_ref": "invoice", "output_ref": "ledger", "payload": {"amount": amount},
    });
    Ok(engine.submit(envelope.to_string().as_bytes()).await?.job_id)
}

fn assessor() -> Handler {
    Handler::new(|input: Value, _: Directive, _: Context| async move {
        let amount = input["amount"].as_u64().unwrap_or(0);
        Ok::<_, Failure>(json!({"needs_approval": amount >= LIMIT}))
    })
}

/// Pays once: the other side knows an effect key that it has seen. What ada allowed is an earlier output.
fn bank() -> Handler {
    Handler::new(|input: Value, directive: Directive, _: Context| async move {
        let amount = input["amount"].as_u64().unwrap_or(0);
        let allowed = directive.inputs.get("approve").and_then(|yes| yes["limit"].as_u64());
        if amount > allowed.unwrap_or(LIMIT) {
            return Err(Failure::fatal("LIMIT", "more than was allowed"));
        }
        Ok(json!({"paid": amount, "once_by": directive.effect_key}))
    })
}
