//! `sprag schedule`: jobs by the clock, at a server or straight in a store.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::value::RawValue;
use serde_json::{Value, json};
use sprag_engine::schedules::{Schedule, ScheduleView, written};
use sprag_kernel::decide::schedule::Missed;
use sprag_kernel::{Code, Refusal};
use sprag_server::shapes::{List, ScheduleShape};

use super::read_file;
use crate::client::segment;
use crate::jobs::{AtArgs, Jobs};
use crate::output::{Failure, Output};
use crate::stores::{Acting, Looking};
use crate::table::Table;

const MAX_ENVELOPE_BYTES: u64 = 64 << 20;

/// Arguments of `sprag schedule`.
#[derive(Debug, Args)]
pub struct ScheduleArgs {
    #[command(subcommand)]
    command: ScheduleCommand,
    #[command(flatten)]
    at: AtArgs,
}

#[derive(Debug, Subcommand)]
enum ScheduleCommand {
    /// Submit an envelope at every tick. The same again is a no-op. With --store on a SQLite file no engine may
    /// be running.
    #[command(after_help = "\
Examples:
  sprag schedule add nightly --cron '0 3 * * *' --zone Europe/Berlin envelope.json
  sprag schedule add poll --cron '*/10 * * * * *' --missed skip - < envelope.json     every ten seconds")]
    Add(AddArgs),
    /// List schedules: when they ticked and when they will.
    List {
        /// Only of this tenant.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Make no jobs until it is resumed. With --store on a SQLite file no engine may be running.
    Pause(OneArgs),
    /// Go on with the next tick; what it would have done meanwhile is not made up for. With --store on a SQLite
    /// file no engine may be running.
    Resume(OneArgs),
    /// Forget a schedule; its jobs stay. With --store on a SQLite file no engine may be running.
    Remove(OneArgs),
}

#[derive(Debug, Args)]
struct AddArgs {
    /// Its name, among those of the envelope's tenant.
    schedule: String,
    /// When: minute, hour, day, month and weekday, or seconds before them.
    #[arg(long)]
    cron: String,
    /// The time zone of the expression.
    #[arg(long, default_value = "UTC")]
    zone: String,
    /// What becomes of ticks that were missed, because no engine ran.
    #[arg(long, value_enum, default_value_t = MissedArg::Once)]
    missed: MissedArg,
    /// The envelope as a file, or - for standard input.
    file: PathBuf,
}

#[derive(Debug, Args)]
struct OneArgs {
    /// The schedule.
    schedule: String,
    /// Whose it is, if several tenants have one of this name.
    #[arg(long)]
    tenant: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum MissedArg {
    /// Nothing.
    Skip,
    /// One job for all of them.
    Once,
    /// A job for each.
    All,
}

impl From<MissedArg> for Missed {
    fn from(missed: MissedArg) -> Self {
        match missed {
            MissedArg::Skip => Self::Skip,
            MissedArg::Once => Self::Once,
            MissedArg::All => Self::All,
        }
    }
}

/// Runs `sprag schedule`.
pub fn run(args: &ScheduleArgs, output: &mut Output) -> Result<(), Failure> {
    let at = Jobs::find(&args.at)?;
    match &args.command {
        ScheduleCommand::Add(args) => show(&add(&at, args)?, output),
        ScheduleCommand::List { tenant } => list(&at, tenant.as_deref(), output),
        ScheduleCommand::Pause(args) => show(&change(&at, args, Change::Pause)?, output),
        ScheduleCommand::Resume(args) => show(&change(&at, args, Change::Resume)?, output),
        ScheduleCommand::Remove(args) => show(&change(&at, args, Change::Remove)?, output),
    }
}

fn shape(view: &ScheduleView) -> Result<Value, Refusal> {
    serde_json::to_value(ScheduleShape::of(view)).map_err(|error| unreadable(&error))
}

fn unreadable(error: &serde_json::Error) -> Refusal {
    Refusal::new(Code::EnvelopeInvalid).with("reason", error.to_string())
}

fn add(at: &Jobs, args: &AddArgs) -> Result<Value, Failure> {
    let envelope = read_file(&args.file, MAX_ENVELOPE_BYTES)?;
    let envelope: Box<RawValue> =
        serde_json::from_slice(&envelope).map_err(|error| unreadable(&error))?;
    let missed = Missed::from(args.missed);
    match at {
        Jobs::Server(client) => {
            let body = json!({
                "schedule_id": args.schedule, "cron": args.cron, "zone": args.zone,
                "missed": missed.name(), "envelope": envelope,
            });
            Ok(client.call("POST", "/v1/schedules", body.to_string().as_bytes())?)
        }
        Jobs::Store(url) => {
            let read: Value =
                serde_json::from_str(envelope.get()).map_err(|error| unreadable(&error))?;
            let schedule = Schedule {
                tenant_id: read["tenant_id"].as_str().unwrap_or_default().to_owned(),
                schedule_id: args.schedule.clone(),
                cron: args.cron.clone(),
                zone: args.zone.clone(),
                missed,
                envelope: envelope.get().to_owned(),
            };
            Ok(shape(&Acting::open(url)?.add_schedule(schedule)?)?)
        }
    }
}

fn list(at: &Jobs, tenant: Option<&str>, output: &mut Output) -> Result<(), Failure> {
    let list = match at {
        Jobs::Server(client) => {
            let query = tenant.map(|tenant| format!("?tenant={}", segment(tenant)));
            client.call("GET", &format!("/v1/schedules{}", query.unwrap_or_default()), b"")?
        }
        Jobs::Store(url) => {
            let views = Looking::open(url)?.schedules(tenant)?;
            let items = views.iter().map(ScheduleShape::of).collect();
            let list = List::<ScheduleShape> { items, next: None };
            serde_json::to_value(list).map_err(|error| unreadable(&error))?
        }
    };
    if output.is_json() {
        return output.json(&list);
    }
    let mut table =
        Table::new(["SCHEDULE", "TENANT", "CRON", "ZONE", "MISSED", "LAST TICK", "NEXT TICK"]);
    for schedule in list["items"].as_array().into_iter().flatten() {
        table.row(cells(schedule));
    }
    table.print(output)
}

/// What becomes of a schedule.
#[derive(Clone, Copy)]
enum Change {
    Pause,
    Resume,
    Remove,
}

fn change(at: &Jobs, args: &OneArgs, change: Change) -> Result<Value, Failure> {
    match at {
        Jobs::Server(client) => {
            let query = args.tenant.as_ref().map(|tenant| format!("?tenant={}", segment(tenant)));
            let (method, verb) = match change {
                Change::Pause => ("POST", "/pause"),
                Change::Resume => ("POST", "/resume"),
                Change::Remove => ("DELETE", ""),
            };
            let name = segment(&args.schedule);
            let path = format!("/v1/schedules/{name}{verb}{}", query.unwrap_or_default());
            Ok(client.call(method, &path, b"")?)
        }
        Jobs::Store(url) => {
            let view = Looking::open(url)?.schedule(args.tenant.as_deref(), &args.schedule)?;
            let (tenant, name) = (&view.schedule.tenant_id, &args.schedule);
            let acting = Acting::open(url)?;
            match change {
                Change::Pause => Ok(shape(&acting.rest_schedule(tenant, name, true)?)?),
                Change::Resume => Ok(shape(&acting.rest_schedule(tenant, name, false)?)?),
                Change::Remove => {
                    acting.remove_schedule(tenant, name)?;
                    Ok(shape(&view)?)
                }
            }
        }
    }
}

fn show(schedule: &Value, output: &mut Output) -> Result<(), Failure> {
    if output.is_json() {
        return output.json(schedule);
    }
    output.line(cells(schedule).join("  "))
}

fn cells(schedule: &Value) -> [String; 7] {
    let text = |field: &str| schedule[field].as_str().unwrap_or_default().to_owned();
    let time = |field: &str| {
        let time = schedule[field].as_u64().and_then(|time| written(time, &text("zone")));
        time.unwrap_or_else(|| "-".to_owned())
    };
    let next = if schedule["paused_at"].is_u64() { "paused".to_owned() } else { time("next_at") };
    let [name, tenant, cron] = ["schedule_id", "tenant_id", "cron"].map(text);
    [name, tenant, cron, text("zone"), text("missed"), time("last_tick"), next]
}
