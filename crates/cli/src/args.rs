//! The command line as data. `docs/cli.md` is made from it.

use clap::{Parser, Subcommand};

use crate::commands::{
    canon, completions, docs, events, inbox, job, ledger, machines, move_store, plan, protocol,
    request, schedule, serve, service, signal, submit, tenant, token, verify, worker,
};
use crate::demo;
use crate::map::args::MapArgs;
use crate::worker_check::WorkerCheckArgs;

/// Sprag: a durable job engine whose state can only move forward.
#[derive(Debug, Parser)]
#[command(name = "sprag", version, max_term_width = 100, arg_required_else_help = true)]
#[command(after_help = "\
Exit codes: 0 done, 1 refused or failed, 2 wrong usage. An error is one line on stderr that starts
with a stable code; with --json it is {\"error_code\", \"message\", \"fields\"}. docs/errors.md lists them.")]
pub struct Args {
    /// Print answers and errors for programs.
    #[arg(long, global = true)]
    pub json: bool,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Show everything at once: a server, workers, failures on purpose, a kill, and the audit.
    Demo(demo::DemoArgs),
    /// Serve an engine over HTTP until a signal ends it.
    Serve(Box<serve::ServeArgs>),
    /// Submit a job to a server, and wait for its end if asked to.
    Submit(submit::SubmitArgs),
    /// Say something to a job that waits for it: approve, reject, or hand it data.
    Signal(signal::SignalArgs),
    /// Do the steps of a service for a server, with a command per step.
    Worker(worker::WorkerArgs),
    /// Check a worker of any kind against a server of its own: does it claim, report and fail as it should?
    WorkerCheck(WorkerCheckArgs),
    /// Create requests at a server, draft, confirm and run them.
    Request(request::RequestArgs),
    /// Say who may call a server.
    Token(token::TokenArgs),
    /// Show the state machines: every state, every legal move, and what causes it.
    Machines(machines::MachinesArgs),
    /// Read a 15-digit ledger.
    Ledger(ledger::LedgerArgs),
    /// Print the canonical text, the hash or the key of a JSON document from stdin.
    Canon(canon::CanonArgs),
    /// Cut entries from stdin into windows, and print the hash of the plan.
    Plan(plan::PlanArgs),
    /// Check a protocol, show the graph of its steps, and register it at a server.
    Protocol(protocol::ProtocolArgs),
    /// Look at jobs, watch them, cancel them or run them again, at a server or straight in a store.
    Job(job::JobArgs),
    /// Follow what happens to all jobs of a server.
    Events(events::EventsArgs),
    /// Pause and resume services, at a server or straight in a store.
    Service(service::ServiceArgs),
    /// Submit jobs by the clock, at a server or straight in a store.
    Schedule(schedule::ScheduleArgs),
    /// Limit how many open jobs a tenant may have, straight in a store.
    Tenant(tenant::TenantArgs),
    /// List what users have submitted inside of their own transactions, and what became of it.
    Inbox(inbox::InboxArgs),
    /// Move a stopped store from SQLite to Postgres and back.
    Move(move_store::MoveArgs),
    /// Audit a store: every invariant, in one snapshot.
    Verify(verify::VerifyArgs),
    /// Run a command per item, in parallel; results in order, resumed after a crash.
    Map(Box<MapArgs>),
    /// Write what a shell needs to complete this command line.
    Completions(completions::CompletionsArgs),
    /// Write the reference pages of this very binary.
    Docs(docs::DocsArgs),
}
