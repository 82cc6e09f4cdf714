//! `sprag protocol`: checks a protocol before any job meets it, shows the graph it compiles to, and registers
//! it at a server.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use serde_json::Value;
use sprag_engine::graph::Graph;
use sprag_engine::protocol::Protocol;
use sprag_kernel::{Code, Refusal};

use super::read_all;
use crate::client::{Client, ServerArgs, segment};
use crate::output::{Failure, Output, unreadable};
use crate::table::Table;

/// A protocol has at most a thousand steps.
const MAX_PROTOCOL_BYTES: u64 = 4 << 20;

/// Arguments of `sprag protocol`.
#[derive(Debug, Args)]
pub struct ProtocolArgs {
    #[command(subcommand)]
    command: ProtocolCommand,
}

#[derive(Debug, Subcommand)]
enum ProtocolCommand {
    /// Refuse what no job could follow, naming the place: unknown steps, circles, expressions.
    Check(FileArgs),
    /// Print the graph of its steps.
    #[command(after_help = "\
Examples:
  sprag protocol show pages.yaml                      one line per step
  sprag protocol show pages.yaml --format mermaid     a flowchart for any Mermaid viewer")]
    Show(ShowArgs),
    /// Register a protocol at a server. The same again is a no-op; other content needs another id.
    #[command(after_help = "\
Examples:
  sprag protocol put pages.yaml
  sprag protocol put pages.json --server https://sprag.example --token $TOKEN")]
    Put(PutArgs),
    /// List the protocols of a server, the newest first.
    List(ServerArgs),
    /// Print a protocol of a server, as it is registered.
    #[command(after_help = "\
Examples:
  sprag protocol get pages.v1
  sprag protocol get pages.v1 > pages.json && sprag protocol show pages.json")]
    Get(GetArgs),
}

#[derive(Debug, Args)]
struct GetArgs {
    /// Its id.
    protocol_id: String,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Debug, Args)]
struct FileArgs {
    /// The protocol, as YAML or JSON.
    file: PathBuf,
}

#[derive(Debug, Args)]
struct ShowArgs {
    /// The protocol, as YAML or JSON.
    file: PathBuf,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Debug, Args)]
struct PutArgs {
    /// The protocol, as YAML or JSON.
    file: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// One line per step.
    Text,
    /// A flowchart.
    Mermaid,
}

#[derive(Serialize)]
struct Checked<'a> {
    protocol_id: &'a str,
    request_types: &'a [String],
    nodes: Vec<ShownNode<'a>>,
}

#[derive(Serialize)]
struct ShownNode<'a> {
    step_id: &'a str,
    service: &'a str,
    scope: usize,
    needs: Vec<&'a str>,
}

/// Runs `sprag protocol`.
pub fn run(args: &ProtocolArgs, output: &mut Output) -> Result<(), Failure> {
    match &args.command {
        ProtocolCommand::Check(args) => show(&args.file, None, output),
        ProtocolCommand::Show(args) => show(&args.file, Some(args.format), output),
        ProtocolCommand::Put(args) => put(args, output),
        ProtocolCommand::List(server) => list(server, output),
        ProtocolCommand::Get(args) => get(args, output),
    }
}

fn put(args: &PutArgs, output: &mut Output) -> Result<(), Failure> {
    // Checked here first, so that a wrong one is refused with its place and without a server.
    let protocol = read(&args.file)?;
    let body = serde_json::to_vec(&protocol).expect("protocols have string keys");
    let path = format!("/v1/protocols/{}", segment(&protocol.protocol_id));
    let kept = Client::find(&args.server)?.call("PUT", &path, &body)?;
    if output.is_json() { output.json(&kept) } else { output.line(cells(&kept).join("  ")) }
}

fn list(server: &ServerArgs, output: &mut Output) -> Result<(), Failure> {
    let list = Client::find(server)?.call("GET", "/v1/protocols", b"")?;
    if output.is_json() {
        return output.json(&list);
    }
    let mut table = Table::new(["PROTOCOL", "REQUEST TYPES", "STEPS"]);
    for kept in list["items"].as_array().into_iter().flatten() {
        table.row(cells(kept));
    }
    table.print(output)
}

fn get(args: &GetArgs, output: &mut Output) -> Result<(), Failure> {
    let path = format!("/v1/protocols/{}", segment(&args.protocol_id));
    let kept = Client::find(&args.server)?.call("GET", &path, b"")?;
    if output.is_json() { output.json(&kept) } else { output.line(format_args!("{kept:#}")) }
}

fn cells(protocol: &Value) -> [String; 3] {
    let list = |field: &str| protocol[field].as_array().cloned().unwrap_or_default();
    let types = list("request_types");
    let types: Vec<&str> = types.iter().filter_map(Value::as_str).collect();
    let id = protocol["protocol_id"].as_str().unwrap_or("-");
    [id.to_owned(), types.join(","), format!("{} steps", list("steps").len())]
}

fn show(file: &Path, format: Option<Format>, output: &mut Output) -> Result<(), Failure> {
    let protocol = read(file)?;
    let graph = protocol.graph()?;
    if output.is_json() {
        return output.json(&checked(&protocol, &graph));
    }
    match format {
        None => {
            let (id, count) = (&protocol.protocol_id, graph.nodes().len());
            let shape = if graph.is_sequence() { "a sequence" } else { "a graph" };
            output.line(format_args!("{id} is sound: {shape} of {count} nodes"))
        }
        Some(Format::Text) => output.line(graph.to_text().trim_end()),
        Some(Format::Mermaid) => output.line(graph.to_mermaid().trim_end()),
    }
}

fn read(path: &Path) -> Result<Protocol, Refusal> {
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| unreadable(&name, &error))?;
    let text = read_all(file, &name, MAX_PROTOCOL_BYTES)?;
    let text = String::from_utf8(text).map_err(|_| {
        Refusal::new(Code::ProtocolInvalid).with("place", name).with("reason", "is not UTF-8")
    })?;
    Protocol::read(&text)
}

fn checked<'a>(protocol: &'a Protocol, graph: &'a Graph) -> Checked<'a> {
    let nodes = graph.nodes().iter().map(|node| ShownNode {
        step_id: &node.step_id,
        service: &node.service,
        scope: node.scope,
        needs: node.needs.iter().map(|need| graph.node(*need).step_id.as_str()).collect(),
    });
    Checked {
        protocol_id: &protocol.protocol_id,
        request_types: &protocol.request_types,
        nodes: nodes.collect(),
    }
}
