//! `sprag protocol`: checks a protocol before any job meets it, and shows the graph it compiles to.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use sprag_engine::graph::Graph;
use sprag_engine::protocol::Protocol;
use sprag_kernel::{Code, Refusal};

use super::read_all;
use crate::output::{Failure, Output, unreadable};

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
    let (file, format) = match &args.command {
        ProtocolCommand::Check(args) => (&args.file, None),
        ProtocolCommand::Show(args) => (&args.file, Some(args.format)),
    };
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
