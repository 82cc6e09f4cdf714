//! `sprag tenant`: limits of tenants, straight in a store.

use clap::{Args, Subcommand};
use serde::Serialize;

use crate::output::{Failure, Output};
use crate::stores::{Acting, Looking};

/// Arguments of `sprag tenant`.
#[derive(Debug, Args)]
pub struct TenantArgs {
    #[command(subcommand)]
    command: TenantCommand,
}

#[derive(Debug, Subcommand)]
enum TenantCommand {
    /// List tenants that have a limit.
    List(StoreArgs),
    /// Set or lift the limit of a tenant's open jobs. Those that are open count, even above the limit. On a
    /// SQLite file no engine may be running.
    #[command(after_help = "Examples:
  sprag tenant limit acme 100 --store sqlite:sprag.db
  sprag tenant limit acme none --store postgres://localhost/sprag --json")]
    Limit(LimitArgs),
}

#[derive(Debug, Args)]
struct StoreArgs {
    /// The store: sqlite:FILE or postgres://...
    #[arg(long, value_name = "URL")]
    store: String,
}

#[derive(Debug, Args)]
struct LimitArgs {
    /// The tenant.
    tenant: String,
    /// How many jobs may be open at once, or `none` for no limit.
    #[arg(value_name = "N|none", value_parser = read_limit)]
    limit: Limit,
    #[command(flatten)]
    at: StoreArgs,
}

#[derive(Clone, Copy, Debug)]
struct Limit(Option<u32>);

/// The store keeps limits as positive 32-bit integers.
fn read_limit(text: &str) -> Result<Limit, String> {
    if text == "none" {
        return Ok(Limit(None));
    }
    let max_open = text.parse().ok().filter(|max_open| i32::try_from(*max_open).is_ok());
    let expected = || format!("a number up to {} or `none` is expected", i32::MAX);
    max_open.map(|max_open| Limit(Some(max_open))).ok_or_else(expected)
}

#[derive(Serialize)]
struct Shape<'a> {
    tenant_id: &'a str,
    max_open: u32,
    open_jobs: u32,
}

/// Runs `sprag tenant`.
pub fn run(args: &TenantArgs, output: &mut Output) -> Result<(), Failure> {
    match &args.command {
        TenantCommand::List(args) => list(args, output),
        TenantCommand::Limit(args) => limit(args, output),
    }
}

fn list(args: &StoreArgs, output: &mut Output) -> Result<(), Failure> {
    let tenants = Looking::open(&args.store)?.tenants()?;
    if output.is_json() {
        #[derive(Serialize)]
        struct List<'a> {
            items: Vec<Shape<'a>>,
        }
        let items = tenants.iter().map(|view| Shape {
            tenant_id: &view.tenant_id,
            max_open: view.max_open,
            open_jobs: view.open_jobs,
        });
        return output.json(&List { items: items.collect() });
    }
    for view in &tenants {
        let (open, most) = (view.open_jobs, view.max_open);
        output.line(format_args!("{:24}  {open} of {most} open", view.tenant_id))?;
    }
    Ok(())
}

fn limit(args: &LimitArgs, output: &mut Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Told<'a> {
        tenant_id: &'a str,
        max_open: Option<u32>,
    }
    let (tenant, Limit(max_open)) = (&args.tenant, args.limit);
    Acting::open(&args.at.store)?.limit_tenant(tenant, max_open)?;
    if output.is_json() {
        return output.json(&Told { tenant_id: tenant, max_open });
    }
    match max_open {
        Some(most) => output.line(format_args!("{tenant}  at most {most} open")),
        None => output.line(format_args!("{tenant}  no limit")),
    }
}
