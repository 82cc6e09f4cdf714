//! `sprag service`: pausing and resuming services, at a server or straight in a store.

use clap::{Args, Subcommand};
use serde_json::{Value, json};

use crate::client::{Client, segment};
use crate::jobs::{AtArgs, Jobs};
use crate::output::{Failure, Output};
use crate::stores::{Acting, Looking};
use crate::table::Table;

/// Arguments of `sprag service`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag service list
  sprag service pause reader       nothing more of it starts, anywhere
  sprag service resume reader")]
pub struct ServiceArgs {
    #[command(subcommand)]
    command: ServiceCommand,
    #[command(flatten)]
    at: AtArgs,
}

#[derive(Debug, Subcommand)]
enum ServiceCommand {
    /// List services that are paused, that steps wait for, or that somebody has served.
    List,
    /// Start nothing more of a service, on any engine; what runs goes on. With --store on a SQLite file no
    /// engine may be running.
    Pause(OneArgs),
    /// Go on with a service. With --store on a SQLite file no engine may be running.
    Resume(OneArgs),
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The service.
    service: String,
}

/// Runs `sprag service`.
pub fn run(args: &ServiceArgs, output: &mut Output) -> Result<(), Failure> {
    let at = Jobs::find(&args.at)?;
    match &args.command {
        ServiceCommand::List => list(&at, output),
        ServiceCommand::Pause(args) => pause(&at, &args.service, true, output),
        ServiceCommand::Resume(args) => pause(&at, &args.service, false, output),
    }
}

fn list(at: &Jobs, output: &mut Output) -> Result<(), Failure> {
    let list = match at {
        Jobs::Server(client) => client.call("GET", "/v1/services", b"")?,
        Jobs::Store(url) => {
            let services = Looking::open(url)?.services()?;
            let shape = |view: &sprag_engine::upkeep::ServiceView| json!({"service": view.service, "paused_at": view.paused_at, "ready": view.ready, "seen_at": view.seen_at, "ready_since": view.ready_since});
            json!({"items": services.iter().map(shape).collect::<Vec<_>>()})
        }
    };
    if output.is_json() {
        return output.json(&list);
    }
    let mut table = Table::new(["SERVICE", "STATE", "WAITING"]);
    for view in list["items"].as_array().into_iter().flatten() {
        let state = match (view["paused_at"].is_u64(), view["seen_at"].is_u64()) {
            (true, _) => "paused",
            (false, true) => "running",
            (false, false) => "never served",
        };
        let service = view["service"].as_str().unwrap_or_default();
        table.row([service.to_owned(), state.to_owned(), format!("{} waiting", view["ready"])]);
    }
    table.print(output)
}

fn pause(at: &Jobs, service: &str, pause: bool, output: &mut Output) -> Result<(), Failure> {
    let verb = if pause { "pause" } else { "resume" };
    let ask = |client: &Client| -> Result<Value, _> {
        client.call("POST", &format!("/v1/services/{}/{verb}", segment(service)), b"")
    };
    match at {
        Jobs::Server(client) => drop(ask(client)?),
        Jobs::Store(url) => Acting::open(url)?.pause(service, pause)?,
    }
    if output.is_json() {
        return output.json(&json!({"service": service, "paused": pause}));
    }
    output.line(format_args!("{service}  {verb}d"))
}
