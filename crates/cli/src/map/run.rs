//! One run, from the plan to the exit code.
//!
//! Order of the start: listen to signals, hold the journal, hold the lock that commands inherit, cut
//! the output back; only then does a command start. Order of the end: no command is left, everything
//! handed over is written, the journal is closed.

use std::fs;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use serde::Serialize;
use sprag_kernel::{Code, Refusal};
use sprag_lanes::journal::{self, Journal, Replay, RunState, Settings};
use sprag_lanes::{Control, Counts, Lanes, Resume, Source};

use super::args::RunArgs;
use super::command::Limits;
use super::groups::Groups;
use super::lanes::{Commands, Failures, ItemSource, Results};
use super::orphans::{CommandsLock, Orphans};
use super::outlet::Outlet;
use super::plan::{Plan, same_file};
use super::render::{Format, hex};
use super::screen::Screen;
use super::signals::{Listener, Reach};
use super::writer::{Target, WriteFailure, Writer, WriterThread};
use crate::output::{Failure, Output, unreadable};

const PROGRESS_MS: u64 = 100;

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Ending {
    Complete,
    Cancelled,
    Stopped,
    Halted,
}

/// What `--summary` prints.
#[derive(Debug, Serialize)]
struct Report {
    ending: Ending,
    run_id: String,
    /// Items committed, by this process and those before it.
    total: u64,
    counts: Counts,
    /// Retries of this process.
    retries: u64,
    resumed_at: u64,
    output_bytes: u64,
    plan_hash: String,
    outcome_hash: String,
    elapsed_ms: u64,
}

/// Where the lanes left the run.
struct Left {
    ending: Ending,
    point: Resume,
    retries: u64,
}

/// What signals and the parts of a run share.
#[derive(Default)]
struct Shared {
    control: Control,
    groups: Arc<Groups>,
    outlet: Arc<Outlet>,
    stop: Arc<AtomicBool>,
    cut_short: Arc<AtomicBool>,
    halted: Arc<AtomicBool>,
}

/// A run that is about to start its first command.
struct Prepared {
    source: ItemSource,
    lanes: Lanes,
    writer: Writer,
    lock: Option<CommandsLock>,
    screen: Screen,
    resumed_at: u64,
}

/// Runs `sprag map`.
pub(super) fn run(args: &RunArgs, output: &mut Output) -> Result<(), Failure> {
    let plan = Plan::new(args)?;
    if args.dry_run {
        return plan.print(output);
    }
    let shared = Shared::default();
    listen(args, output.is_json(), &shared)?;
    let done = begin(&plan, &shared).and_then(|ready| ready.finish(&plan, &shared));
    journal::fault::report();
    let report = done?;
    print_summary(&report, args, output.is_json())?;
    verdict(&report)
}

fn begin(plan: &Plan<'_>, shared: &Shared) -> Result<Prepared, Failure> {
    let begun = Instant::now();
    let args = plan.args;
    let (journal, found) = open_journal(plan)?.unzip();
    let lock = take_commands_lock(args, shared)?;
    let source = plan.source(&shared.stop, &shared.cut_short)?;
    let committed = found.as_ref().map(|found| &found.state);
    let resumed_at = committed.map_or(0, RunState::cursor);
    let written = committed.map_or(0, |state| state.last.mark);
    let screen = screen(args, resumed_at, source.total());
    let target = match &args.out {
        Some(path) => Target::file(path, written)?,
        None => Target::Stdout,
    };
    let sync = args.sync.into();
    let outlet = Arc::clone(&shared.outlet);
    let writer = Writer { target, journal, sync, written, screen: screen.clone(), outlet, begun };
    let lanes = Lanes::new(plan.config.clone()).control(&shared.control);
    let lanes = match committed {
        Some(state) => lanes.resume_journal(state),
        None => lanes,
    };
    Ok(Prepared { source, lanes, writer, lock, screen, resumed_at })
}

impl Prepared {
    fn finish(self, plan: &Plan<'_>, shared: &Shared) -> Result<Report, Failure> {
        let begun = self.writer.begun;
        let failures = Arc::<Failures>::default();
        let refused = self.source.again.as_ref().map(|again| Arc::clone(&again.refused));
        let commands = commands(plan, shared, &failures);
        let (sender, thread) = self.writer.start();
        let results = Results { format: Format::new(plan.args), failures, writer: sender };
        let screen = self.screen.clone();
        let ran = self.lanes.progress(PROGRESS_MS, move |now| screen.show(now)).run(
            self.source,
            move |item, context| commands.attempt(item, context),
            results,
        );
        // Whatever the lanes gave up on ends before the journal is let go.
        shared.groups.end_all();
        let left = match ran {
            Ok(report) => Ok(shared.left(&report.summary)),
            Err(failure) => match refused.and_then(|refused| lock(&refused).take()) {
                Some(refusal) => Err(refusal),
                None => shared.forgive(*failure),
            },
        };
        self.screen.clear();
        let written = close(thread, left.as_ref().ok(), self.lock)?;
        let left = left?;
        Ok(Report {
            ending: left.ending,
            run_id: hex(&plan.identity.run_id.0),
            total: left.point.cursor,
            counts: left.point.counts,
            retries: left.retries,
            resumed_at: self.resumed_at,
            output_bytes: written,
            plan_hash: hex(&left.point.input_hash),
            outcome_hash: format!("{:016x}", left.point.outcome_hash),
            elapsed_ms: u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX),
        })
    }
}

impl Shared {
    fn left(&self, summary: &sprag_lanes::Summary) -> Left {
        let ending = match summary.ending {
            // The items have not ended, only the reading of them.
            sprag_lanes::Ending::Complete if self.is_cut_short() => self.stopped(),
            sprag_lanes::Ending::Complete => Ending::Complete,
            sprag_lanes::Ending::Cancelled => Ending::Cancelled,
            sprag_lanes::Ending::Stopped => self.stopped(),
        };
        Left { ending, point: summary.resume(), retries: summary.retries.total() }
    }

    /// A run that was stopped while it read the committed part of its input again has not found it short.
    fn forgive(&self, failure: sprag_lanes::Failure) -> Result<Left, Refusal> {
        if failure.code() != Code::PlanChanged || !self.is_cut_short() {
            return Err(failure.refusal);
        }
        let retries = failure.snapshot.map_or(0, |snapshot| snapshot.retries.total());
        Ok(Left { ending: self.stopped(), point: failure.resume, retries })
    }

    fn stopped(&self) -> Ending {
        if self.halted.load(Ordering::SeqCst) { Ending::Halted } else { Ending::Stopped }
    }

    fn was_interrupted(&self) -> bool {
        self.stop.load(Ordering::SeqCst)
    }

    fn is_cut_short(&self) -> bool {
        self.cut_short.load(Ordering::SeqCst)
    }
}

fn listen(args: &RunArgs, json: bool, shared: &Shared) -> Result<(), Refusal> {
    Listener::start(Reach {
        control: shared.control.clone(),
        groups: Arc::clone(&shared.groups),
        stop: Arc::clone(&shared.stop),
        outlet: Arc::clone(&shared.outlet),
        grace: Duration::from_millis(args.grace),
        cancel: args.cancel_on_interrupt,
        json,
    })
    .map_err(|error| unreadable("signals", &error))
}

fn open_journal(plan: &Plan<'_>) -> Result<Option<(Journal, Replay)>, Refusal> {
    let Some(path) = &plan.args.journal else { return Ok(None) };
    let taken = [&plan.args.out, &plan.args.retry_failed];
    if taken.into_iter().flatten().any(|other| same_file(path, other)) {
        let reason = "the journal needs a file of its own";
        return Err(Refusal::new(Code::Usage).with("reason", reason));
    }
    let settings = Settings { sync: plan.args.sync.into(), ..Settings::default() };
    let (journal, found) = Journal::open_or_create(path, &plan.identity, settings)?;
    if let Some(torn) = found.torn {
        let _ = writeln!(
            std::io::stderr(),
            "sprag: the journal had a torn tail: {} bytes at offset {}, record {} were cut",
            torn.bytes,
            torn.offset,
            torn.record
        );
    }
    Ok(Some((journal, found)))
}

fn take_commands_lock(args: &RunArgs, shared: &Shared) -> Result<Option<CommandsLock>, Refusal> {
    let Some(journal) = &args.journal else { return Ok(None) };
    let orphans = if args.end_orphans { Orphans::End } else { Orphans::Wait };
    let waits = |left: &[rustix::process::Pid]| {
        let list: Vec<_> = left.iter().map(|pid| pid.as_raw_nonzero().to_string()).collect();
        let _ = writeln!(
            std::io::stderr(),
            "sprag: waiting for commands of a killed run (process {}); --end-orphans ends them",
            list.join(", ")
        );
    };
    let taken = CommandsLock::take(journal, orphans, waits, || shared.was_interrupted());
    match taken.map_err(|error| unreadable(journal.display(), &error))? {
        Some(lock) => Ok(Some(lock)),
        None => Err(Refusal::new(Code::RunStopped).with("reason", "interrupted while waiting")),
    }
}

fn commands(plan: &Plan<'_>, shared: &Shared, failures: &Arc<Failures>) -> Commands {
    let args = plan.args;
    Commands {
        template: plan.template.clone(),
        limits: Limits { timeout: args.timeout.map(Duration::from_millis), stderr: args.stderr },
        retry_exit: args.retry_exit.clone(),
        retries: args.retries,
        halt: args.halt,
        grace: Duration::from_millis(args.grace),
        format: Format::new(args),
        groups: Arc::clone(&shared.groups),
        control: shared.control.clone(),
        stop: Arc::clone(&shared.stop),
        failures: Arc::clone(failures),
        halted: Arc::clone(&shared.halted),
        succeeded: 0.into(),
        failed: 0.into(),
    }
}

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

fn screen(args: &RunArgs, position: u64, total: Option<u64>) -> Screen {
    if args.quiet || !std::io::stderr().is_terminal() {
        return Screen::default();
    }
    Screen::bar(position, total)
}

/// Waits for the writer and ends the journal; returns the bytes of output. What the writer has to say
/// comes before what the lanes made of it.
fn close(
    thread: WriterThread,
    left: Option<&Left>,
    lock: Option<CommandsLock>,
) -> Result<u64, Failure> {
    let writer = thread.finish().map_err(|failure| match failure {
        WriteFailure::ReaderGone => Failure::ReaderGone,
        WriteFailure::Refused(refusal) => Failure::Refused(refusal),
    })?;
    let written = writer.written;
    let complete = left.is_some_and(|left| match left.ending {
        Ending::Complete | Ending::Cancelled => true,
        Ending::Stopped | Ending::Halted => false,
    });
    if !complete {
        // The lock file stays: a command that outlived its end still holds it.
        writer.close(journal::Ending::Stopped)?;
        return Ok(written);
    }
    if let Some(lock) = lock {
        lock.remove().map_err(|error| unreadable("the lock of the commands", &error))?;
    }
    writer.close(journal::Ending::Complete)?;
    Ok(written)
}

fn print_summary(report: &Report, args: &RunArgs, json: bool) -> Result<(), Refusal> {
    let line = serde_json::to_string(report).expect("string keys");
    match &args.summary {
        Some(path) if path.as_os_str() != "-" => {
            fs::write(path, line + "\n").map_err(|error| unreadable(path.display(), &error))
        }
        Some(_) => writeln!(std::io::stderr(), "{line}").or(Ok(())),
        None if json => writeln!(std::io::stderr(), "{line}").or(Ok(())),
        None => Ok(()),
    }
}

/// The exit code: whether it came to its end, and whether every item did well.
fn verdict(report: &Report) -> Result<(), Failure> {
    let bad = report.counts.fail + report.counts.cancel;
    let refusal = match report.ending {
        Ending::Complete | Ending::Cancelled if bad == 0 => return Ok(()),
        Ending::Complete | Ending::Cancelled => Refusal::new(Code::ItemsFailed)
            .with("failed", report.counts.fail)
            .with("cancelled", report.counts.cancel)
            .with("items", report.total),
        Ending::Stopped => Refusal::new(Code::RunStopped).with("committed", report.total),
        Ending::Halted => Refusal::new(Code::RunStopped)
            .with("reason", "--halt")
            .with("failed", report.counts.fail)
            .with("committed", report.total),
    };
    Err(refusal.into())
}
