//! The life of a batch inside its attempt: open, resume on lanes, and what its end means to the attempt.

use std::path::PathBuf;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::Value;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{Cause, Code, Refusal};
use sprag_lanes::{Config, Control, Ending, ErrorClass, Lanes, PlanConfig};
use tokio::runtime::Handle;

use super::items::{Texts, below};
use super::keys::{BatchPlan, ItemsPlan};
use super::output::OutFile;
use super::sink::{Ended, LedgerSink, Output, Refused};
use super::store::BatchPoint;
use super::{BatchHandler, OutputHandler};
use crate::context::{Context, StopReason};
use crate::crash::crash_point;
use crate::directive::Directive;
use crate::engine::Pinned;
use crate::ids::EngineNo;
use crate::plan;
use crate::store::{AttemptError, Held, Store, StoreError};

/// How long a store that was away is left alone.
const AWAY: Duration = Duration::from_millis(200);
/// The most bytes of outputs in one journal row, unless a single output is larger.
const MAX_ROW_BYTES: u64 = 4 << 20;
/// Threads besides those that compute: the one that commits waits for the store.
const COMMITTERS: usize = 1;

/// How a batch ended, to its attempt.
pub(crate) enum BatchEnd {
    /// Its last commit has stored the message that ends the attempt.
    Stored {
        /// The attempt, with the message in.
        held: Box<Held>,
        /// What it put out.
        output: Option<String>,
    },
    /// This is to be stored.
    Report {
        /// How it went.
        report: Report,
        /// JSON text: of a failure, the run as it was.
        output: Option<String>,
        /// Why it failed.
        error: AttemptError,
    },
    /// It was told to stop. The committed prefix stands, and another attempt goes on behind it.
    Stopped,
    /// Another attempt has the batch, or this one is over: there is nothing to say.
    Superseded,
}

/// A batch about to run.
pub(crate) struct BatchRun<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) engine: EngineNo,
    pub(crate) held: Held,
    pub(crate) pinned: Arc<Pinned>,
    pub(crate) directive: Directive,
    pub(crate) plan: BatchPlan,
    pub(crate) handler: BatchHandler,
    /// What writes the ordered output beside the journal, and how long it may take.
    pub(crate) output: Option<OutputHandler<S::Work>>,
    pub(crate) work_limit: Duration,
    /// Where files of items and outputs are, if anywhere.
    pub(crate) files: Option<PathBuf>,
    pub(crate) context: Context,
}

impl<S: Store> BatchRun<S> {
    /// Runs it to its end, or to where it is told to stop.
    pub(crate) async fn run(mut self) -> BatchEnd {
        let point = match self.open().await {
            Ok(point) => point,
            Err(end) => return end,
        };
        crash_point("batch.after_open");
        let (control, runtime) = (Control::new(), Handle::current());
        let mut context = self.context.clone();
        let ours = control.clone();
        let mut running = tokio::task::spawn_blocking(move || self.on_lanes(point, &ours, runtime));
        let joined = tokio::select! {
            joined = &mut running => joined,
            () = context.stopped() => {
                match context.stop_reason() {
                    Some(StopReason::Cancelled) => control.cancel(),
                    // Without a reason the heart is gone, and nothing that comes out counts any more.
                    Some(StopReason::TimedOut | StopReason::Shutdown) | None => control.stop(),
                }
                running.await
            }
        };
        joined.unwrap_or_else(|error| failed(Cause::HandlerPanic.name(), error.to_string(), true))
    }

    /// Takes up the batch; asks a store that is away again until it is told to stop.
    async fn open(&mut self) -> Result<BatchPoint, BatchEnd> {
        let lease_id = plan::fence(&self.held.attempt).lease_id;
        loop {
            match self.store.open_batch(self.engine, self.held.key, lease_id).await {
                Ok(Some(point)) => return Ok(point),
                Ok(None) | Err(StoreError::Fenced) => return Err(BatchEnd::Superseded),
                Err(error @ (StoreError::Poison(_) | StoreError::Refused(_))) => {
                    return Err(failed(Code::MessagePoison.name(), error.to_string(), false));
                }
                Err(StoreError::Unavailable(_)) => {}
            }
            if tokio::time::timeout(AWAY, self.context.stopped()).await.is_ok() {
                return Err(BatchEnd::Stopped);
            }
        }
    }

    /// The run itself, on a thread that may block.
    fn on_lanes(self, point: BatchPoint, control: &Control, runtime: Handle) -> BatchEnd {
        let (items, out_path) = match self.resolve() {
            Ok(resolved) => resolved,
            Err(refusal) => return refused(&refusal),
        };
        let file = match out_path.map(|path| OutFile::open(&path).map(|file| (file, path))) {
            None => None,
            Some(Ok((file, path))) => Some((file, path.display().to_string())),
            Some(Err(error)) => return failed(Cause::OutputFile.name(), error.to_string(), true),
        };
        let (ended, refused) = (Ended::default(), Refused::default());
        let effect = self.directive.effect_key;
        let output = match (self.plan.out_handler, self.output) {
            (false, _) => None,
            (true, Some(handler)) => Some(Output {
                handler,
                limit: self.work_limit,
                effect_key: effect.clone(),
                refused: refused.clone(),
            }),
            (true, None) => {
                let reason = "the output goes to a handler, and the service has none".to_owned();
                return failed(Cause::ServiceMismatch.name(), reason, false);
            }
        };
        let sink = LedgerSink {
            store: self.store,
            engine: self.engine,
            runtime,
            control: control.clone(),
            held: self.held,
            tolerated: self.plan.tolerated,
            total: sprag_lanes::Source::total(&items),
            point,
            file,
            output,
            ended: ended.clone(),
        };
        if let Err(error) = sink.restore_file() {
            return failed(Cause::OutputFile.name(), error.message, error.class.is_retryable());
        }
        let handler = self.handler.clone();
        let compute = move |text: &String, context: &sprag_lanes::Context<'_>| {
            handler.compute(text, &effect, context)
        };
        let config = config(self.plan.threads, self.handler.threads, self.plan.retries);
        let run = Lanes::new(config).control(control).resume(point.resume);
        let end = match run.run(items, compute, sink) {
            Ok(report) => over(report.summary.ending, report.sink),
            Err(failure) => broken(&failure),
        };
        if let Some(failure) = refused.lock().unwrap_or_else(PoisonError::into_inner).take() {
            return failed(&failure.code, failure.message, failure.retryable);
        }
        // Whatever else is found: a message that is stored is the end.
        let stored = ended.lock().unwrap_or_else(PoisonError::into_inner).take();
        stored.map_or(end, |(held, output)| BatchEnd::Stored { held: Box::new(held), output })
    }

    /// The items, and the path of the output file if there is one.
    fn resolve(&self) -> Result<(Texts, Option<PathBuf>), Refusal> {
        let sight = self.pinned.graph.sight(&self.held);
        let invalid = |reason: String| {
            Refusal::new(Code::EnvelopeInvalid).with("field", "batch").with("reason", reason)
        };
        let files = self.files.as_deref();
        let items = match &self.plan.items {
            ItemsPlan::List(items) => Texts::list(items.list(&sight).map_err(invalid)?),
            ItemsPlan::File(path) => {
                Texts::read(&below(files, &path.evaluate(&sight).map_err(invalid)?)?)?
            }
        };
        let out = self.plan.out_file.as_ref().map(|path| path.evaluate(&sight).map_err(invalid));
        let out: Option<Value> = out.transpose()?;
        Ok((items, out.map(|path| below(files, &path)).transpose()?))
    }
}

/// The run came to its end. If its last commit could not say so, that is said now.
fn over<S: Store>(ending: Ending, mut sink: LedgerSink<S>) -> BatchEnd {
    let closed = match ending {
        Ending::Stopped => return BatchEnd::Stopped,
        Ending::Complete | Ending::Cancelled => sink.close(),
    };
    match closed {
        // The message is stored, and the caller has it from the sink.
        Ok(()) => BatchEnd::Superseded,
        Err(error) if error.class == ErrorClass::NonRetryableCancellation => BatchEnd::Superseded,
        Err(error) if error.class.is_retryable() => BatchEnd::Stopped,
        Err(error) => failed(Code::SinkFailed.name(), error.message, false),
    }
}

/// The run could not go on. What is kept is all that is known of it.
fn broken(failure: &sprag_lanes::Failure) -> BatchEnd {
    match failure.class() {
        Some(ErrorClass::NonRetryableCancellation) => return BatchEnd::Superseded,
        Some(class) if class.is_retryable() => return BatchEnd::Stopped,
        Some(_) | None => {}
    }
    BatchEnd::Report {
        report: Report::NonRetryable,
        output: serde_json::to_string(failure).ok(),
        error: AttemptError {
            code: failure.code().name().to_owned(),
            message: failure.refusal.to_string(),
        },
    }
}

fn refused(refusal: &Refusal) -> BatchEnd {
    let is_away = refusal.code() == Code::InputUnreadable;
    failed(refusal.code().name(), refusal.to_string(), is_away)
}

fn failed(code: &str, message: String, retryable: bool) -> BatchEnd {
    let report = if retryable { Report::Retryable } else { Report::NonRetryable };
    BatchEnd::Report {
        report,
        output: None,
        error: AttemptError { code: code.to_owned(), message },
    }
}

/// How its lanes run. The plan of windows is part of what a resumed run must have in common with the one
/// before it, so it is written out here and does not follow the defaults of the runtime.
fn config(threads: Option<u32>, of_service: usize, retries: Option<u32>) -> Config {
    let default = Config::default();
    let threads = threads.map_or(of_service, |threads| threads as usize).max(1);
    Config {
        threads: (threads + COMMITTERS).min(sprag_lanes::MAX_THREADS),
        plan: PlanConfig {
            max_bytes: 256 << 20,
            max_span: 4_096,
            min_entries: 1,
            max_entries: 4_096,
            adaptive: false,
            ..default.plan
        },
        max_retries: retries.unwrap_or(default.max_retries).min(sprag_lanes::MAX_RETRIES),
        max_batch_bytes: MAX_ROW_BYTES,
        ..default
    }
}
