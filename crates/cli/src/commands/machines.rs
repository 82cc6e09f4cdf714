//! `sprag machines`: the tables of the kernel, for people, programs and diagrams.

use std::fmt::Write as _;

use clap::{Args, ValueEnum};
use serde::Serialize;
use sprag_kernel::machine::{Origin, Sheet};
use sprag_kernel::machines::sheets;

use crate::output::{Failure, Output};

/// Arguments of `sprag machines`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  sprag machines                      all five tables
  sprag machines job                  one of them
  sprag machines step --format mermaid    a diagram for any Mermaid viewer
  sprag machines --json | jq '.machines[].name'")]
pub struct MachinesArgs {
    /// Only this machine.
    name: Option<MachineName>,
    /// How to print it.
    #[arg(long, value_enum, default_value_t = Format::Table)]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MachineName {
    Request,
    Job,
    Step,
    Outbox,
    Seq,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Columns.
    Table,
    /// One JSON document.
    Json,
    /// A state diagram.
    Mermaid,
}

#[derive(Serialize)]
struct Machines {
    machines: Vec<Sheet>,
}

/// Runs `sprag machines`.
pub fn run(args: &MachinesArgs, output: &mut Output) -> Result<(), Failure> {
    let format = if output.is_json() { Format::Json } else { args.format };
    let machines = chosen(args.name);
    if format == Format::Json {
        return output.json(&Machines { machines });
    }
    for (position, sheet) in machines.iter().enumerate() {
        let gap = if position == 0 { "" } else { "\n" };
        let text = match format {
            Format::Table => table(sheet),
            Format::Mermaid => mermaid(sheet),
            Format::Json => unreachable!("printed above"),
        };
        output.line(format_args!("{gap}{}", text.trim_end()))?;
    }
    Ok(())
}

fn chosen(name: Option<MachineName>) -> Vec<Sheet> {
    let all = sheets();
    match name {
        None => all.to_vec(),
        Some(name) => vec![all[name as usize].clone()],
    }
}

/// A machine as columns.
fn table(sheet: &Sheet) -> String {
    let mut text = format!(
        "{}: starts {}; ends {}\n  the same state again: {}; an illegal move: {}\n",
        sheet.name,
        sheet.initial,
        sheet.terminal.join(", "),
        word(&sheet.policy.same_state),
        word(&sheet.policy.illegal),
    );
    let width = sheet.states.iter().map(|state| state.len()).max().unwrap_or(0);
    for row in &sheet.transitions {
        let note = match row.origin {
            Origin::Spec => "",
            Origin::Addition => " [addition]",
            Origin::Extension => " [extension]",
        };
        let triggers = row.triggers.join(", ");
        writeln!(text, "  {:width$} > {:width$}  {triggers}{note}", row.from, row.to)
            .expect("writing to a string does not fail");
        writeln!(text, "  {:width$}   {:width$}    if {}", "", "", row.precondition)
            .expect("writing to a string does not fail");
    }
    text
}

/// A machine as a Mermaid state diagram.
pub(super) fn mermaid(sheet: &Sheet) -> String {
    let mut text = format!("stateDiagram-v2\n    [*] --> {}\n", sheet.initial);
    for row in &sheet.transitions {
        let triggers = row.triggers.join(", ");
        writeln!(text, "    {} --> {}: {triggers}", row.from, row.to)
            .expect("writing to a string does not fail");
    }
    for state in &sheet.terminal {
        writeln!(text, "    {state} --> [*]").expect("writing to a string does not fail");
    }
    text
}

/// The JSON word of a policy, without its quotes.
pub(super) fn word(value: &impl Serialize) -> String {
    let json = serde_json::to_string(value).expect("a policy is one word");
    json.trim_matches('"').to_owned()
}
