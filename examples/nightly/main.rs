//! A nightly batch with a cycle until done: records that came in during the day are posted in portions, in their
//! order, each once. End it with `kill -9` and start it again: it goes on behind what is posted.
//!
//!     cargo run --example nightly [FOLDER]

use std::error::Error;
use std::fmt::Write;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::batch::{Item, ItemFailure, ItemOutcome};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::{Context, Handler};
use sprag_stores::sqlite::{Durability, SqliteStore};

/// Records of one portion.
const PORTION: usize = 1_000;

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).unwrap_or_else(|| "nightly-data".to_owned());
    let folder = Path::new(&folder);
    let day = folder.join("day.jsonl");
    std::fs::create_dir_all(folder)?;
    std::fs::write(&day, records(3_500))?;
    println!("{:#}", run(folder).await?);
    Ok(())
}

/// What came in during a day; a few amounts are unreadable.
pub(crate) fn records(count: usize) -> String {
    let mut text = String::new();
    for n in 0..count {
        let amount = if n % 1_500 == 700 { json!("?") } else { json!(n % 97) };
        writeln!(text, "{}", json!({"record": n, "amount": amount})).expect("text takes text");
    }
    text
}

/// Posts the records in `day.jsonl`. The same night again is the same job: it is done.
pub(crate) async fn run(folder: &Path) -> Result<Value, Box<dyn Error>> {
    let store = SqliteStore::open(&folder.join("sprag.db"), Durability::Full)?;
    let config = EngineConfig { files: Some(folder.to_owned()), ..EngineConfig::default() };
    let engine = EngineBuilder::new(store)
        .config(config)
        .protocol(Protocol::read(include_str!("protocol.yaml"))?)
        .service("taker", 1, taker(folder))
        .batch_service("poster", 2, |item, _| post(&item))
        .service("reporter", 1, reporter(folder))
        .start()
        .await?;
    let envelope = json!({
        "tenant_id": "books", "request_type": "NIGHT", "schema_version": "1", "payload": {},
        "input_ref": "day.jsonl", "output_ref": "posted", "idempotency_key": "2031-05-04",
    });
    let job_id = engine.submit(envelope.to_string().as_bytes()).await?.job_id;
    let job = engine.closed(job_id).await?;
    let attempts = engine.store().attempts(job_id).await?;
    engine.shutdown(Duration::from_secs(5)).await?;
    if let Some(error) = job.error {
        return Err(format!("{}: {}", error.code, error.message).into());
    }
    let last = attempts.iter().rfind(|attempt| attempt.step_id == "report");
    Ok(serde_json::from_str(last.and_then(|report| report.output.as_deref()).unwrap_or("null"))?)
}

/// The portion of a turn, as a file of its own. Which one that is follows from the turn alone, so that the same
/// turn after a crash is the same portion.
fn taker(folder: &Path) -> Handler {
    let folder = folder.to_owned();
    Handler::new(move |_: Value, directive: Directive, _: Context| {
        let folder = folder.clone();
        async move {
            let unreadable = |error| Failure::retryable("UNREADABLE", error);
            let day = std::fs::read_to_string(folder.join("day.jsonl")).map_err(unreadable)?;
            let before = directive.turn as usize * PORTION;
            let portion: Vec<&str> = day.lines().skip(before).take(PORTION).collect();
            let left = day.lines().count().saturating_sub(before + portion.len());
            let file = format!("portion-{}.jsonl", directive.turn);
            let text = portion.into_iter().flat_map(|line| [line, "\n"]).collect::<String>();
            std::fs::write(folder.join(&file), text).map_err(unreadable)?;
            Ok(json!({"file": file, "left": left}))
        }
    })
}

fn post(item: &Item) -> Result<ItemOutcome, ItemFailure> {
    match (item.value["amount"].as_i64(), &item.value["record"]) {
        (Some(0), _) => Ok(ItemOutcome::Skip("nothing to post".to_owned())),
        (Some(amount), record) => {
            Ok(ItemOutcome::Success(json!({"record": record, "posted": amount})))
        }
        (None, _) => Err(ItemFailure::input("the amount is no number")),
    }
}

/// What the night amounts to, from what it has posted.
fn reporter(folder: &Path) -> Handler {
    let folder = folder.to_owned();
    Handler::new(move |_: Value, directive: Directive, _: Context| {
        let folder = folder.clone();
        async move {
            let unreadable = |error| Failure::retryable("UNREADABLE", error);
            let (mut posted, mut sum, mut portions) = (0, 0, 0);
            while let Ok(text) =
                std::fs::read_to_string(folder.join(format!("posted-{portions}.jsonl")))
            {
                portions += 1;
                for line in text.lines() {
                    let line: Value = serde_json::from_str(line)
                        .map_err(|e| unreadable(std::io::Error::other(e)))?;
                    posted += 1;
                    sum += line["posted"].as_i64().unwrap_or(0);
                }
            }
            let last = &directive.inputs["night"];
            Ok::<_, Failure>(
                json!({"portions": portions, "posted": posted, "sum": sum, "last": last}),
            )
        }
    })
}
