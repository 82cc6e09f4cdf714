//! A batch step of 100,000 items of about 10 us each, submit to closed on SQLite, beside the same items on lanes
//! without a store. Rounds alternate, the best of each counts. Prints Markdown. `SPRAG_ITEMS` and `SPRAG_ROUNDS`
//! set how many.

#![allow(clippy::unwrap_used, unreachable_pub)]

use std::hint::black_box;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sprag_engine::batch::{Item, ItemContext, ItemOutcome};
use sprag_engine::engine::{EngineBuilder, EngineConfig};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_kernel::JobState;
use sprag_lanes::{Batch, Config, Context, Entry, Items, Lanes, Outcome, Verdict};
use sprag_stores::sqlite::{Durability, SqliteStore};

/// As the binary has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const THREADS: usize = 2;
/// What an item takes on one thread.
const WORK: Duration = Duration::from_micros(10);
/// Of what lanes reach alone, a batch step is to reach so much.
const LEAST: f64 = 0.8;

#[tokio::main]
async fn main() {
    let (items, rounds) = (number("SPRAG_ITEMS", 100_000), number("SPRAG_ROUNDS", 5));
    let folder = tempfile::tempdir().unwrap();
    let lines: Vec<String> = (0..items).map(|n| format!("{{\"n\":{n}}}\n")).collect();
    let lines = lines.concat();
    std::fs::write(folder.path().join("in.jsonl"), &lines).unwrap();
    let turns = calibrated();
    let (mut alone, mut stored) = (f64::MAX, f64::MAX);
    for round in 0..rounds {
        alone = alone.min(on_lanes(&lines, items, turns));
        let (file, name) = (folder.path(), format!("{round}.db"));
        stored = stored.min(as_step(file, &name, items, turns).await);
    }
    println!("| {items} items of {WORK:?} | seconds | items/s |\n|---|---|---|");
    for (name, seconds) in [("lanes without a store", alone), ("batch step, SQLite FULL", stored)] {
        println!("| {name} | {seconds:.3} | {:.0} |", items as f64 / seconds);
    }
    let share = alone / stored;
    let verdict = if share >= LEAST { "enough" } else { "too little" };
    println!(
        "\nThe batch step reaches {share:.2} of the lanes alone, {LEAST} are asked for: {verdict}"
    );
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// Work of the processor, not of the clock: who waits for a core has not worked. It stays in registers: through
/// memory, a turn takes a fifth longer or not as the stack of the thread happens to lie.
fn work(turns: u32) -> u64 {
    let (first, turns) = (black_box(1), black_box(turns));
    (0..turns).fold(first, |sum: u64, turn| sum.rotate_left(7) ^ u64::from(turn))
}

/// How many turns take as long as an item should, best of some tries.
fn calibrated() -> u32 {
    let turns = 1_000_000;
    let took = |_| {
        let begun = Instant::now();
        black_box(work(turns));
        begun.elapsed()
    };
    let best = (0..9).map(took).min().unwrap();
    let turns = u128::from(turns) * WORK.as_nanos() / best.as_nanos().max(1);
    u32::try_from(turns).unwrap()
}

/// What comes out of an item: small, and made of what went in.
fn made(value: &Value, turns: u32) -> Value {
    black_box(work(turns));
    json!({"n": value["n"], "squared": value["n"].as_u64().map(|n| n * n)})
}

fn on_lanes(lines: &str, items: usize, turns: u32) -> f64 {
    let texts: Vec<String> = lines.lines().map(ToOwned::to_owned).collect();
    let source = Items::of(texts)
        .entry(|text: &String| Entry { cost: 1, bytes: text.len() as u64 })
        .content(|text: &String| text.as_bytes());
    let compute = move |text: &String, _: &Context<'_>| {
        let value: Value = serde_json::from_str(text).unwrap();
        Outcome::Success(made(&value, turns).to_string())
    };
    let mut bytes = 0;
    let sink = move |batch: &mut Batch<String>| {
        for (_, envelope) in batch.iter() {
            if let Verdict::Success(output) = envelope.verdict {
                bytes += output.len();
            }
        }
        black_box(bytes);
        Ok(())
    };
    let config = Config { threads: THREADS, ..Config::default() };
    let begun = Instant::now();
    let report = Lanes::new(config).run(source, compute, sink).unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(report.summary.counts.success, items as u64);
    seconds
}

async fn as_step(folder: &Path, name: &str, items: usize, turns: u32) -> f64 {
    let steps = "[{step_id: items, service: items, batch: {file: \"'in.jsonl'\"}}]";
    let text = format!("protocol_id: batch.v1\nrequest_types: [BATCH]\nsteps: {steps}");
    let config = EngineConfig { files: Some(folder.to_owned()), ..EngineConfig::default() };
    let handler =
        move |item: Item, _: &ItemContext<'_>| Ok(ItemOutcome::Success(made(&item.value, turns)));
    let engine =
        EngineBuilder::new(SqliteStore::open(&folder.join(name), Durability::Full).unwrap())
            .config(config)
            .protocol(Protocol::read(&text).unwrap())
            .batch_service("items", THREADS, handler)
            .start()
            .await
            .unwrap();
    let envelope = json!({
        "tenant_id": "t", "request_type": "BATCH", "input_ref": "in", "output_ref": "out",
        "payload": {}, "schema_version": "1",
    });
    let begun = Instant::now();
    let job_id = engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id;
    let job = engine.closed(job_id).await.unwrap();
    let seconds = begun.elapsed().as_secs_f64();
    assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
    let attempts = engine.store().attempts(job_id).await.unwrap();
    let output: Value = serde_json::from_str(attempts[0].output.as_deref().unwrap()).unwrap();
    assert_eq!(output["success"], json!(items));
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    seconds
}
