//! A three-step protocol, its handlers, and jobs that survive a kill: start it, end it with `kill -9`
//! while it works, and start it again. It goes on where it was.
//!
//!     cargo run --example three_steps

use std::path::Path;
use std::time::Duration;

use sprag_engine::directive::Failure;
use sprag_engine::engine::EngineBuilder;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_kernel::State;
use sprag_stores::sqlite::{Durability, SqliteStore};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let protocol = Protocol::new("pages.v1", "PAGES")
        .step("fetch", "fetcher")
        .step("convert", "converter")
        .step("publish", "publisher");
    let store = SqliteStore::open(Path::new("three_steps.db"), Durability::Full)?;
    let engine = EngineBuilder::new(store)
        .protocol(protocol)
        .service("fetcher", 4, worker())
        .service("converter", 2, worker())
        .service("publisher", 1, worker())
        .start()
        .await?;
    let mut jobs = Vec::new();
    for page in 1..=8 {
        // The same page is the same job, in this run and in every other.
        let envelope = serde_json::json!({
            "tenant_id": "demo", "request_type": "PAGES", "schema_version": "1",
            "input_ref": format!("page-{page}"), "output_ref": "site", "payload": {"page": page},
        });
        jobs.push(engine.submit(envelope.to_string().as_bytes()).await?.job_id);
    }
    for job_id in jobs {
        while !engine.store().job(job_id).await?.ok_or("lost")?.row.state.is_terminal() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        println!("{job_id} is done");
    }
    engine.shutdown(Duration::from_secs(5)).await?;
    Ok(())
}

/// Takes a while, and says what it does.
fn worker() -> Handler {
    Handler::new(|input: serde_json::Value, directive, _| async move {
        println!(
            "page {}: {} (attempt {})",
            input["page"], directive.step_id, directive.attempt_no
        );
        tokio::time::sleep(Duration::from_millis(500)).await;
        Ok::<_, Failure>(format!("{} of {}", directive.step_id, input["page"]))
    })
}
