//! `sprag docs`: the reference pages, made from the rules themselves so that they cannot drift.

use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;

use clap::{Args, CommandFactory};
use sprag_kernel::machine::Sheet;
use sprag_kernel::machines::sheets;
use sprag_kernel::{Cause, Code};

use super::machines::{mermaid, word};
use crate::output::{Failure, Output, unreadable};

macro_rules! put {
    ($text:expr, $($format:tt)*) => {
        writeln!($text, $($format)*).expect("writing to a string does not fail")
    };
}

mod http;

const ORIGIN: &str =
    "<!-- Made by `sprag docs`. Do not edit: change the code, then run it again. -->";

/// Arguments of `sprag docs`.
#[derive(Debug, Args)]
pub struct DocsArgs {
    /// The folder to write to.
    #[arg(default_value = "docs")]
    folder: PathBuf,
}

/// A reference page.
#[derive(Debug)]
pub struct Page {
    /// Its file name.
    pub name: &'static str,
    /// Its text.
    pub text: String,
}

/// Runs `sprag docs`.
pub fn run(args: &DocsArgs, output: &mut Output) -> Result<(), Failure> {
    fs::create_dir_all(&args.folder).map_err(|error| unreadable(args.folder.display(), &error))?;
    let mut written = Vec::new();
    for page in pages() {
        let path = args.folder.join(page.name);
        fs::write(&path, page.text).map_err(|error| unreadable(path.display(), &error))?;
        written.push(path.display().to_string());
    }
    if output.is_json() {
        return output.json(&serde_json::json!({"pages": written}));
    }
    written.iter().try_for_each(|path| output.line(path))
}

/// All reference pages.
pub fn pages() -> Vec<Page> {
    vec![
        Page { name: "machines.md", text: machines_page() },
        Page { name: "errors.md", text: errors_page() },
        Page { name: "cli.md", text: cli_page() },
        Page { name: "configuration.md", text: configuration_page() },
        Page { name: "http.md", text: http::page() },
    ]
}

fn machines_page() -> String {
    let mut text = format!(
        "# The five machines\n\n{ORIGIN}\n\n\
         No state changes in any other way than these tables list. A terminal state is one that nothing\n\
         leaves. `addition` marks a move that the timeouts need, `extension` one that exists for graphs.\n"
    );
    for sheet in sheets() {
        machine_section(&sheet, &mut text);
    }
    text
}

fn machine_section(sheet: &Sheet, text: &mut String) {
    put!(text, "\n## {}\n", sheet.name);
    put!(text, "```mermaid\n{}```\n", mermaid(sheet));
    put!(text, "- states: {}", code_list(&sheet.states));
    put!(text, "- first: `{}`; terminal: {}", sheet.initial, code_list(&sheet.terminal));
    put!(text, "- the same state again: {}", word(&sheet.policy.same_state));
    put!(text, "- an illegal move: {}\n", word(&sheet.policy.illegal));
    put!(text, "| from | to | triggers | if | origin |\n|---|---|---|---|---|");
    for row in &sheet.transitions {
        let triggers = code_list(&row.triggers);
        let origin = word(&row.origin);
        put!(
            text,
            "| `{}` | `{}` | {triggers} | {} | {origin} |",
            row.from,
            row.to,
            row.precondition
        );
    }
}

fn code_list(names: &[&str]) -> String {
    names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

fn errors_page() -> String {
    let mut text = format!(
        "# Error codes\n\n{ORIGIN}\n\n\
         Codes are stable. The class says what to make of an error: `rejected`: your request is wrong;\n\
         `conflict`: something else was first, nothing happened; `unavailable`: try again later, the\n\
         outcome may be unknown; `corrupt`: stop, what is stored contradicts itself.\n\n\
         | code | class | HTTP | what happened | what to do |\n|---|---|---|---|---|\n"
    );
    for code in Code::ALL {
        let (class, http) = (code.class().name(), code.http_status());
        put!(text, "| `{code}` | {class} | {http} | {} | {} |", code.what(), code.todo());
    }
    causes_section(&mut text);
    text
}

fn causes_section(text: &mut String) {
    put!(
        text,
        "\n## Codes of failed attempts\n\n\
         Why an attempt failed, and so what the `error_code` of a job is most often. These are given by the engine,\n\
         its stores and its own workers; `N` stands for a number. An attempt may also fail with a code of the\n\
         first table, such as `EXPRESSION_FAILED`. A worker may send any code of its own: what that means its\n\
         author knows. `again` says whether the step is tried again, as far as it has attempts left.\n\n\
         | code | again | what happened | what to do |\n|---|---|---|---|"
    );
    for cause in Cause::ALL {
        let again = cause.again().name();
        put!(text, "| `{cause}` | {again} | {} | {} |", cause.what(), cause.todo());
    }
}

fn cli_page() -> String {
    let mut text = format!("# The command line\n\n{ORIGIN}\n");
    let mut command = crate::args::Args::command().term_width(100);
    command.build();
    command_section(&mut command, &mut text);
    text
}

fn configuration_page() -> String {
    let mut text = format!(
        "# Configuration of a server\n\n{ORIGIN}\n\n\
         `sprag serve` takes a setting from its flag, else from the environment, else from the YAML file that\n\
         `--config` names, else it is the default. A key that the file may not have is refused.\n\n\
         | flag | environment | in the file | what |\n|---|---|---|---|\n"
    );
    let command = crate::args::Args::command();
    let serve = command.find_subcommand("serve").expect("there is `sprag serve`");
    for argument in serve.get_arguments() {
        let (Some(flag), Some(variable)) = (argument.get_long(), argument.get_env()) else {
            continue;
        };
        let key = match flag {
            "config" => String::new(),
            _ => format!("`{}`", flag.replace('-', "_")),
        };
        let what = argument.get_help().map(ToString::to_string).unwrap_or_default();
        put!(text, "| `--{flag}` | `{}` | {key} | {what} |", variable.display());
    }
    text
}

fn command_section(command: &mut clap::Command, text: &mut String) {
    let name = command.get_bin_name().unwrap_or("sprag").to_owned();
    let help = command.render_long_help().to_string();
    let lines: Vec<&str> = help.lines().map(str::trim_end).collect();
    put!(text, "\n## {name}\n\n```text\n{}\n```", lines.join("\n").trim_end());
    for subcommand in command.get_subcommands_mut().filter(|c| c.get_name() != "help") {
        command_section(subcommand, text);
    }
}
