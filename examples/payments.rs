//! A transactional handler: what it writes to your own table commits with the step, exactly once. End it with
//! `kill -9` at any moment and start it again: every order is paid for once.
//!
//!     cargo run --example payments

use std::error::Error;
use std::path::Path;
use std::time::Duration;

use rusqlite::Connection;
use serde_json::{Value, json};
use sprag_engine::engine::EngineBuilder;
use sprag_engine::protocol::Protocol;
use sprag_engine::worker::TransactionalHandler;
use sprag_stores::sqlite::{Durability, SqliteStore, SqliteWork};

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let (payments, cents) = run(Path::new("payments.db")).await?;
    println!("{payments} payments, {cents} cents");
    Ok(())
}

/// How many payments there are in the end, and what they sum up to.
pub(crate) async fn run(path: &Path) -> Result<(u32, u32), Box<dyn Error>> {
    let store = SqliteStore::open(path, Durability::Full)?;
    // Your own table, in the same file.
    let own = Connection::open(path)?;
    own.busy_timeout(Duration::from_secs(5))?;
    own.execute_batch("CREATE TABLE IF NOT EXISTS payment (order_no INTEGER, cents INTEGER)")?;
    let engine = EngineBuilder::new(store)
        .protocol(Protocol::new("orders.v1", "ORDER").step("pay", "payments"))
        .service("payments", 4, pay())
        .start()
        .await?;
    for order_no in 1..=20 {
        // The same order is the same job, in this run and in every other.
        let envelope = json!({
            "tenant_id": "demo", "request_type": "ORDER", "schema_version": "1", "input_ref": "shop",
            "output_ref": "bank", "payload": {"order_no": order_no, "cents": 100 * order_no},
        });
        let job_id = engine.submit(envelope.to_string().as_bytes()).await?.job_id;
        engine.closed(job_id).await?;
    }
    engine.shutdown(Duration::from_secs(5)).await?;
    let sum = "SELECT count(*), sum(cents) FROM payment";
    Ok(own.query_row(sum, [], |row| Ok((row.get(0)?, row.get(1)?)))?)
}

/// The output, and the work for the transaction that stores it. A handler that fails leaves nothing of it.
fn pay() -> TransactionalHandler<SqliteWork> {
    TransactionalHandler::new(|order: Value, _, _| async move {
        let (order_no, cents) = (order["order_no"].as_u64(), order["cents"].as_u64());
        let work = SqliteWork::new(move |connection| {
            connection.execute("INSERT INTO payment VALUES (?1, ?2)", (order_no, cents))?;
            Ok(())
        });
        Ok((json!({"paid": cents}), work))
    })
}
