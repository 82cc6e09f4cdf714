//! `sprag worker`: a command per directive. It gets the directive as JSON on stdin and answers with JSON on
//! stdout; its exit code says how it went. The worker claims, shows signs of life, and reports; a report
//! that the server did not hear is sent again until it is heard or comes too late.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use serde_json::{Value, json};
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sprag_engine::command::{Finished, Running};
use sprag_engine::directive::Failure;
use sprag_engine::ids::JobId;
use sprag_kernel::{Cause, Code, Refusal};

use crate::client::{Client, ServerArgs, passes};
use crate::output::{self, Output, unreadable};

/// How long the worker waits before it calls a server again that did not answer.
const AWAY: Duration = Duration::from_millis(500);
/// How many seconds a claim waits at the server; as long as a signal may wait for a claim.
const CLAIM_WAIT_S: u32 = 2;
/// The shortest time between two signs of life.
const MIN_BEAT: Duration = Duration::from_millis(200);
/// Arguments of `sprag worker`.
#[derive(Debug, Args)]
#[command(after_help = "\
The command is run by sh, with the directive as JSON on stdin. Exit 0: succeeded, and stdout is the output
(JSON, or nothing). Exit 64 or 65: failed for good. Any other exit, or a signal: failed, and another attempt
may help; what it wrote to stderr is kept as the reason. When the job is cancelled, or the attempt has passed to
another worker, the command gets SIGTERM, and SIGKILL five seconds later. SIGTERM or Ctrl-C to the worker: it
claims no more, and ends when its commands have; a second one ends the commands too and gives their steps back.

Examples:
  sprag worker --service reader --exec 'jq \"{pages: .payload.n}\"' -j 4
  sprag worker --service mailer,printer --exec ./send.py --server https://sprag.example:7070")]
pub struct WorkerArgs {
    /// What it does; several services with commas.
    #[arg(long, value_name = "NAME", required = true, value_delimiter = ',')]
    service: Vec<String>,
    /// The command.
    #[arg(long, value_name = "CMD")]
    exec: String,
    /// Commands at a time.
    #[arg(short, long, value_name = "N", default_value_t = 1)]
    jobs: u16,
    /// At most so many seconds between signs of life; a third of the lease if that is less.
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    heartbeat: u64,
    #[command(flatten)]
    server: ServerArgs,
}

/// Runs `sprag worker`.
pub fn run(args: &WorkerArgs, _output: &mut Output) -> Result<(), output::Failure> {
    let signals = Arc::new(AtomicU32::new(0));
    count_signals(&signals)?;
    let worker = Worker {
        client: Client::find(&args.server)?,
        services: args.service.clone(),
        exec: args.exec.clone(),
        beat: Duration::from_secs(args.heartbeat).max(MIN_BEAT),
        signals,
    };
    let outcomes: Vec<Result<(), Refusal>> = thread::scope(|scope| {
        let lanes: Vec<_> = (0..args.jobs.max(1)).map(|_| scope.spawn(|| worker.work())).collect();
        let ended = |lane: thread::ScopedJoinHandle<'_, _>| lane.join().expect("a lane returns");
        lanes.into_iter().map(ended).collect()
    });
    Ok(outcomes.into_iter().collect::<Result<_, _>>()?)
}

/// Counts SIGTERM and SIGINT from here on.
fn count_signals(count: &Arc<AtomicU32>) -> Result<(), Refusal> {
    let mut signals =
        Signals::new([SIGTERM, SIGINT]).map_err(|error| unreadable("signals", &error))?;
    let count = count.clone();
    thread::spawn(move || {
        for _ in signals.forever() {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    Ok(())
}

struct Worker {
    client: Client,
    services: Vec<String>,
    exec: String,
    beat: Duration,
    signals: Arc<AtomicU32>,
}

impl Worker {
    /// Claims no more.
    fn is_stopping(&self) -> bool {
        self.signals.load(Ordering::Relaxed) > 0
    }

    /// Ends its commands too.
    fn is_hurried(&self) -> bool {
        self.signals.load(Ordering::Relaxed) > 1
    }

    /// Claims and runs, one directive at a time, until it is told to stop.
    fn work(&self) -> Result<(), Refusal> {
        let mut claim_id = JobId::new().to_string();
        while !self.is_stopping() {
            let claim = json!({
                "claim_id": claim_id, "services": self.services, "max": 1, "wait_s": CLAIM_WAIT_S,
            });
            match self.client.call("POST", "/v1/claim", claim.to_string().as_bytes()) {
                Ok(answer) => {
                    // Heard: the next claim is another one. Until then the same claim gets the same work.
                    claim_id = JobId::new().to_string();
                    if let Some(directive) = answer["directives"].get(0) {
                        self.run(directive);
                    }
                }
                Err(refusal) if passes(&refusal) => {
                    self.client.waits(&refusal);
                    thread::sleep(AWAY);
                }
                Err(refusal) => {
                    // The other lanes would hear the same.
                    self.signals.fetch_add(1, Ordering::Relaxed);
                    return Err(refusal);
                }
            }
        }
        Ok(())
    }

    fn run(&self, directive: &Value) {
        let whole = match self.with_all_inputs(directive) {
            Ok(whole) => whole,
            Err(report) => {
                self.tell(directive, report);
                return;
            }
        };
        let mut command = Command::new("/bin/sh");
        command.args(["-c", &self.exec]);
        let report = match Running::start(command, whole.to_string()) {
            Ok(running) => self.watch(running, directive),
            Err(error) => Some(report(Err(Failure::retryable(Cause::ExecFailed.name(), error)))),
        };
        if let Some(report) = report {
            self.tell(directive, report);
        }
    }

    /// The directive with those inputs, too, that were too large to be handed over.
    fn with_all_inputs(&self, directive: &Value) -> Result<Value, Value> {
        let mut whole = directive.clone();
        let Some(large) = whole.as_object_mut().and_then(|fields| fields.remove("large_inputs"))
        else {
            return Ok(whole);
        };
        for name in large.as_object().into_iter().flat_map(|large| large.keys()) {
            let text = self.read_input(directive, name)?;
            let read = serde_json::from_str(&text);
            let broken = |error| {
                failed("RETRYABLE", Code::InputUnreadable.name(), &format!("{name}: {error}"))
            };
            whole["inputs"][name] = read.map_err(broken)?;
        }
        Ok(whole)
    }

    /// The text of an input, read page by page. While the server is away it is asked again.
    fn read_input(&self, directive: &Value, name: &str) -> Result<String, Value> {
        let (mut text, mut offset) = (String::new(), json!(0));
        while !offset.is_null() {
            let body = callback(directive, json!({"input": name, "offset": offset})).to_string();
            match self.client.call("POST", "/v1/callbacks/input", body.as_bytes()) {
                Ok(page) => {
                    text.push_str(page["text"].as_str().unwrap_or_default());
                    offset = page["next_offset"].clone();
                }
                Err(refusal) if passes(&refusal) && !self.is_stopping() => {
                    self.client.waits(&refusal);
                    thread::sleep(AWAY);
                }
                Err(refusal) => {
                    return Err(failed(
                        "RETRYABLE",
                        Code::InputUnreadable.name(),
                        &refusal.to_string(),
                    ));
                }
            }
        }
        Ok(text)
    }

    /// Waits for the command, with signs of life. None if the attempt is not ours any more.
    fn watch(&self, running: Running, directive: &Value) -> Option<Value> {
        let mut beat = self.beat_within(&directive["lease_expires_at"]);
        let mut beaten = Instant::now();
        let finished = running.finish(|| {
            let mut why = self.is_hurried().then_some(Ended::Stopped);
            if why.is_none() && beaten.elapsed() >= beat {
                beaten = Instant::now();
                (why, beat) = self.show_life(directive, beat);
            }
            why
        });
        match finished {
            Finished::Told(Ended::Lost) => None,
            Finished::Told(Ended::Cancelled) => {
                Some(failed("RETRYABLE", Cause::Cancelled.name(), "the job was cancelled"))
            }
            Finished::Told(Ended::Stopped) => {
                Some(failed("RETRYABLE", Cause::WorkerStopped.name(), "the worker was told to end"))
            }
            Finished::ByItself(result) => Some(report(result)),
        }
    }

    /// How long until the next sign of life, for a lease that ends then by the store's clock.
    fn beat_within(&self, lease_expires_at: &Value) -> Duration {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        match lease_expires_at.as_u64() {
            Some(end) if end > 0 => {
                let left = Duration::from_millis(end).saturating_sub(now);
                (left / 3).clamp(MIN_BEAT, self.beat)
            }
            Some(_) | None => self.beat,
        }
    }

    /// A sign of life; says if the command is to end, and when the next one is due.
    fn show_life(&self, directive: &Value, beat: Duration) -> (Option<Ended>, Duration) {
        let body = callback(directive, json!({})).to_string();
        match self.client.call("POST", "/v1/callbacks/heartbeat", body.as_bytes()) {
            Ok(alive) => {
                let why = (alive["cancel"] == true).then_some(Ended::Cancelled);
                (why, self.beat_within(&alive["lease_expires_at"]))
            }
            Err(refusal) if passes(&refusal) => (None, beat),
            Err(_) => (Some(Ended::Lost), beat),
        }
    }

    /// Reports until it is heard. A success that is refused becomes a failure, so that the step does not
    /// wait for its lease to end; if a newer attempt owns the step that is refused too.
    fn tell(&self, directive: &Value, report: Value) {
        let is_success = report["status"] == "SUCCEEDED";
        let body = callback(directive, report).to_string();
        loop {
            match self.client.call("POST", "/v1/callbacks/result", body.as_bytes()) {
                Ok(_) => return,
                Err(refusal) if passes(&refusal) && !self.is_hurried() => {
                    self.client.waits(&refusal);
                    thread::sleep(AWAY);
                }
                Err(refusal) => {
                    let _ = writeln!(std::io::stderr(), "{refusal}");
                    if is_success && !passes(&refusal) {
                        let reason = refusal.to_string();
                        self.tell(
                            directive,
                            failed("NON_RETRYABLE", Cause::OutputRefused.name(), &reason),
                        );
                    }
                    return;
                }
            }
        }
    }
}

/// Why a command is told to end.
#[derive(Clone, Copy)]
enum Ended {
    /// Its job is being cancelled.
    Cancelled,
    /// Its attempt is over.
    Lost,
    /// The worker ends.
    Stopped,
}

/// What a callback names of its directive, and what it says.
fn callback(directive: &Value, mut said: Value) -> Value {
    for field in
        ["jobId", "stepId", "step_index", "branch", "turn", "attempt_no", "lease_id", "lease_token"]
    {
        said[field] = directive[field].clone();
    }
    said
}

fn failed(class: &str, code: &str, message: &str) -> Value {
    json!({"status": "FAILED", "failure_class": class, "error": {"code": code, "message": message}})
}

/// What a command comes to, as a RESULT says it.
fn report(result: Result<Value, Failure>) -> Value {
    match result {
        Ok(output) => json!({"status": "SUCCEEDED", "output": output}),
        Err(Failure { retryable, code, message }) => {
            failed(if retryable { "RETRYABLE" } else { "NON_RETRYABLE" }, &code, &message)
        }
    }
}
