//! The hand: the `sprag` command. It reads arguments, calls the rules, and prints; it decides
//! nothing by itself.
//!
//! | module | what it does |
//! |---|---|
//! | [`args`] | the command line as data |
//! | [`client`] | calling a server |
//! | [`commands`] | one file per command |
//! | [`demo`] | `sprag demo`, everything at once |
//! | [`feed`] | a server's events as they happen |
//! | [`jobs`] | jobs, at a server or in a store |
//! | [`map`] | `sprag map`, which needs a folder of its own |
//! | [`output`] | answers to stdout, errors to stderr, for people or for programs |
//! | [`stage`] | a server and processes beside it, for a while |
//! | [`stores`] | looking at a store |
//! | [`table`] | columns |
//! | [`waiting`] | a job of a server, to its end |
//! | [`worker_check`] | `sprag worker-check`, a kit for workers |

pub mod args;
pub mod client;
pub mod commands;
pub mod demo;
pub mod feed;
pub mod jobs;
pub mod map;
pub mod output;
pub mod stage;
pub mod stores;
pub mod table;
pub mod waiting;
pub mod worker_check;

use std::process::ExitCode;

use clap::Parser;

use args::{Args, Command};
use output::{Failure, Output};

/// Runs the command line and says how it went: 0 done, 1 refused or failed, 2 wrong usage.
pub fn run(words: impl IntoIterator<Item = std::ffi::OsString>) -> ExitCode {
    let words: Vec<_> = words.into_iter().collect();
    let args = match Args::try_parse_from(&words) {
        Ok(args) => args,
        Err(error) => return output::report_usage(&error, words.iter().any(|w| w == "--json")),
    };
    if let Command::Demo(demo) = &args.command
        && let Some(code) = demo.played()
    {
        return code;
    }
    let mut output = Output::new(args.json);
    match dispatch(args.command, &mut output).and_then(|()| output.finish()) {
        Ok(()) | Err(Failure::ReaderGone) => ExitCode::SUCCESS,
        Err(Failure::Refused(refusal)) => output::report_refusal(&refusal, args.json),
    }
}

fn dispatch(command: Command, output: &mut Output) -> Result<(), Failure> {
    match command {
        Command::Demo(args) => demo::run(&args, output),
        Command::Serve(args) => commands::serve::run(&args, output),
        Command::Submit(args) => commands::submit::run(&args, output),
        Command::Signal(args) => commands::signal::run(&args, output),
        Command::Worker(args) => commands::worker::run(&args, output),
        Command::WorkerCheck(args) => worker_check::run(&args, output),
        Command::Request(args) => commands::request::run(&args, output),
        Command::Token(args) => commands::token::run(&args, output),
        Command::Machines(args) => commands::machines::run(&args, output),
        Command::Ledger(args) => commands::ledger::run(&args, output),
        Command::Canon(args) => commands::canon::run(&args, output),
        Command::Plan(args) => commands::plan::run(&args, output),
        Command::Protocol(args) => commands::protocol::run(&args, output),
        Command::Job(args) => commands::job::run(&args, output),
        Command::Events(args) => commands::events::run(&args, output),
        Command::Service(args) => commands::service::run(&args, output),
        Command::Schedule(args) => commands::schedule::run(&args, output),
        Command::Tenant(args) => commands::tenant::run(&args, output),
        Command::Inbox(args) => commands::inbox::run(&args, output),
        Command::Move(args) => commands::move_store::run(&args, output),
        Command::Verify(args) => commands::verify::run(&args, output),
        Command::Map(args) => map::run(&args, output),
        Command::Completions(args) => commands::completions::run(&args, output),
        Command::Docs(args) => commands::docs::run(&args, output),
    }
}
