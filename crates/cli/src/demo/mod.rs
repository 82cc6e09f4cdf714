//! `sprag demo`: everything at once, on an embedded store, in a folder of its own. A server and workers are
//! started as real processes, documents are submitted (twice), steps fail on purpose, a worker is killed with
//! SIGKILL; and in the end the store is asked whether anything was lost or done twice.
//!
//! The script ([`act`]) says which document meets which mishap, so that the end ([`summary`]) is checked and not
//! only shown: the demo fails if anything is not as the script says.

mod act;
mod crew;
mod summary;
mod watch;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;
use sprag_engine::protocol::Protocol;
use sprag_kernel::Refusal;

use crate::client::Client;
use crate::output::{Failure, Output};
use crate::stage::Stage;
use act::Part;
use crew::failed;
use summary::Summary;

const PROTOCOL: &str = include_str!("protocol.yaml");
/// Names the demo's folder to what its workers run.
const FOLDER: &str = "SPRAG_DEMO_FOLDER";
/// How long the documents may take. A slow machine is no failure; one that makes no progress is.
const LIMIT: Duration = Duration::from_secs(240);
/// The most documents: a demonstration is no benchmark.
const MAX_DOCUMENTS: u64 = 5_000;
/// Commands at a time of each worker.
const LANES: u16 = 3;

/// Arguments of `sprag demo`.
#[derive(Debug, Args)]
#[command(after_help = "\
It needs nothing but this program, listens on a free port of this machine alone, and leaves nothing behind unless
it is told to keep it. Exit 0 means: every document ended as the script says, nothing was published twice, and the
audit of the store is clean.

Examples:
  sprag demo                    some hundred documents, less than a minute
  sprag demo --keep             and then look at it with `sprag job list` from another terminal")]
pub struct DemoArgs {
    /// How many documents.
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u64).range(1..=MAX_DOCUMENTS))]
    documents: u64,
    /// Leave server and workers running until Ctrl-C, and the folder there after that.
    #[arg(long)]
    keep: bool,
    /// Do a step; for the demo's own workers.
    #[arg(long, value_enum, hide = true)]
    act: Option<Part>,
}

impl DemoArgs {
    /// What a worker of the demo asks for: one step, whose exit code is the answer.
    pub fn played(&self) -> Option<ExitCode> {
        let folder = std::env::var_os(FOLDER).map(PathBuf::from);
        self.act.map(|part| act::play(part, &folder.unwrap_or_default()))
    }
}

fn protocol() -> Result<Protocol, Refusal> {
    Protocol::read(PROTOCOL)
}

/// Runs `sprag demo`.
pub fn run(args: &DemoArgs, output: &mut Output) -> Result<(), Failure> {
    let begun = Instant::now();
    let is_quiet = output.is_json();
    let say = |line: &str| {
        if !is_quiet {
            eprintln!("{line}");
        }
    };
    let stage = Stage::open("demo", args.keep)?;
    crew::prepare(&stage)?;
    say(&format!("A server with an embedded store listens on {}.", stage.url()));
    let client = stage.client()?;
    let protocol = protocol()?;
    let body = serde_json::to_vec(&protocol).expect("protocols have string keys");
    client.call("PUT", &format!("/v1/protocols/{}", protocol.protocol_id), &body)?;
    say(
        "The protocol documents.v1: split, read all pages in parallel, publish. Its leases and waits are",
    );
    say("those of a demonstration: a lease of 2 s, another attempt after 200 ms.");

    let repeated = submit_twice(&client, args.documents)?;
    say(&format!("{} documents submitted, and all of them once more.", args.documents));
    crew::start(&stage, "splitter", Part::Splitter, LANES)?;
    crew::start(&stage, "publisher", Part::Publisher, LANES)?;
    crew::start(&stage, "reader", Part::Reader, LANES)?;
    let doomed = crew::start(&stage, "reader", Part::Reader, LANES)?;
    say(
        "Four workers run. Some steps fail, and some publishers die after their work, all on purpose.\n",
    );
    watch::watch(&client, args.documents, LIMIT, |watched| {
        crew::kill_at_work(&stage, doomed)?;
        if !is_quiet {
            watched.say(&format!("SIGKILL to worker {doomed}, which had work in hand."));
        }
        Ok(())
    })?;

    let summary = Summary::read(&stage, args.documents, repeated)?;
    summary.print(begun.elapsed(), output)?;
    output.finish()?;
    let wrong = summary.wrong();
    if !wrong.is_empty() {
        return Err(failed(&wrong.join("; ")).into());
    }
    if args.keep {
        keep(&stage);
    }
    Ok(stage.close()?)
}

/// Submits all documents, and then all of them again. How many of the repeats were recognised.
fn submit_twice(client: &Client, documents: u64) -> Result<u64, Refusal> {
    let lines: Vec<String> = (1..=documents)
        .map(|number| {
            let envelope = json!({
                "tenant_id": "demo", "request_type": "DOCUMENT", "schema_version": "1",
                "input_ref": format!("scan://{number}"), "output_ref": format!("archive://{number}"),
                "payload": {"number": number}, "idempotency_key": format!("document-{number}"),
            });
            envelope.to_string()
        })
        .collect();
    let lines = lines.join("\n");
    let created = |answers: &str| {
        answers.lines().filter(|line| line.contains("\"created\":true")).count() as u64
    };
    let first = client.submit_lines(lines.as_bytes())?;
    if created(&first) != documents {
        return Err(failed(first.lines().next().unwrap_or("no document was accepted")));
    }
    let again = client.submit_lines(lines.as_bytes())?;
    // The same lines in the same order: all but the new ones were recognised.
    Ok(again.lines().count() as u64 - created(&again))
}

fn keep(stage: &Stage) -> ! {
    eprintln!("\nServer and workers go on at {}. In another terminal:", stage.url());
    eprintln!("  export SPRAG_DATA={}", stage.data().display());
    eprintln!("  sprag job list --store {}", stage.store());
    eprintln!("Ctrl-C ends them; the folder stays.");
    // The thread that waits for signals ends the process.
    loop {
        std::thread::park();
    }
}
