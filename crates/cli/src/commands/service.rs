//! `sprag service`: pausing and resuming services, straight in a store.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::output::{Failure, Output};
use crate::stores::{Acting, Looking};

/// Arguments of `sprag service`.
#[derive(Debug, Args)]
pub struct ServiceArgs {
    #[command(subcommand)]
    command: ServiceCommand,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// List services that are paused, that steps wait for, or that somebody has served.
    List(StoreArgs),
    /// Start nothing more of a service, on any engine; what runs goes on. On a SQLite file no engine may be
    /// running.
    Pause(OneArgs),
    /// Go on with a service. On a SQLite file no engine may be running.
    Resume(OneArgs),
}

#[derive(Debug, Args)]
struct StoreArgs {
    /// The store: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL")]
    store: String,
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The service.
    service: String,
    #[command(flatten)]
    at: StoreArgs,
}

#[derive(Serialize)]
struct Shape<'a> {
    service: &'a str,
    paused_at: Option<u64>,
    ready: u64,
    seen_at: Option<u64>,
}

/// Runs `sprag service`.
pub fn run(args: &ServiceArgs, output: &mut Output) -> Result<(), Failure> {
    match &args.command {
        ServiceCommand::List(args) => list(args, output),
        ServiceCommand::Pause(args) => pause(args, true, output),
        ServiceCommand::Resume(args) => pause(args, false, output),
    }
}

fn list(args: &StoreArgs, output: &mut Output) -> Result<(), Failure> {
    let services = Looking::open(&args.store)?.services()?;
    if output.is_json() {
        #[derive(Serialize)]
        struct List<'a> {
            items: Vec<Shape<'a>>,
        }
        let items = services.iter().map(|view| Shape {
            service: &view.service,
            paused_at: view.paused_at,
            ready: view.ready,
            seen_at: view.seen_at,
        });
        return output.json(&List { items: items.collect() });
    }
    for view in &services {
        let state = if view.paused_at.is_some() { "paused" } else { "running" };
        output.line(format_args!("{:24}  {state:8}  {} waiting", view.service, view.ready))?;
    }
    Ok(())
}

fn pause(args: &OneArgs, pause: bool, output: &mut Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Told<'a> {
        service: &'a str,
        paused: bool,
    }
    Acting::open(&args.at.store)?.pause(&args.service, pause)?;
    if output.is_json() {
        return output.json(&Told { service: &args.service, paused: pause });
    }
    output.line(format_args!("{}  {}", args.service, if pause { "paused" } else { "resumed" }))
}
