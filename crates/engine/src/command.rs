//! Commands: a program gets JSON on stdin and answers with JSON on stdout; its exit code says how it went. So
//! `exec` steps run, and `sprag worker --exec`.
//!
//! A command leads a process group of its own, so that ending it ends what it has started. It is told to end by
//! SIGTERM and made to by SIGKILL a while later; what it left behind in its group ends with it, for it would hold
//! the pipes open. All of this blocks: it is for threads that may.

use std::io::{self, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::{Value, json};
use sprag_kernel::Cause;
use sprag_lanes::ErrorClass;

use crate::batch::{BatchHandler, Item, ItemContext, ItemFailure, ItemOutcome};
use crate::context::{Context, StopReason};
use crate::directive::{Directive, Failure};
use crate::graph::keys::Exec;

/// How often a running command is looked at: soon at first, for most of a batch's are short.
const FIRST_LOOK: Duration = Duration::from_millis(1);
const LOOK: Duration = Duration::from_millis(20);
/// How long a command may take to end after it was told to.
pub const GRACE: Duration = Duration::from_secs(5);
/// How much of a command's stdout is taken, and of its stderr shown.
const MAX_STDOUT: u64 = 4 << 20;
const MAX_STDERR: u64 = 2_000;
/// Exit codes that no other attempt can mend: wrong usage and wrong data, as sysexits.h has them.
const FATAL: [i32; 2] = [64, 65];
/// Commands of one batch at a time, if its step does not say so.
const ITEMS_AT_A_TIME: usize = 4;

/// How a command has ended.
pub enum Finished<W> {
    /// By itself: what it comes to.
    ByItself(Result<Value, Failure>),
    /// It was told to, for this reason; what it said then does not count.
    Told(W),
}

/// A command that runs.
pub struct Running {
    child: Child,
    stdout: JoinHandle<Vec<u8>>,
    stderr: JoinHandle<Vec<u8>>,
}

impl Running {
    /// Starts a command with its input.
    pub fn start(mut command: Command, input: String) -> io::Result<Self> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let mut stdin = child.stdin.take().expect("a pipe");
        // A command that does not read its input is free not to.
        thread::spawn(move || drop(stdin.write_all(input.as_bytes())));
        let stdout = collect(child.stdout.take().expect("a pipe"), MAX_STDOUT);
        let stderr = collect(child.stderr.take().expect("a pipe"), MAX_STDERR);
        Ok(Self { child, stdout, stderr })
    }

    /// Waits for its end. `why` is asked again and again, until it has a reason to end the command.
    pub fn finish<W>(mut self, why: impl FnMut() -> Option<W>) -> Finished<W> {
        let (status, told) = self.wait(why);
        signal(&self.child, Signal::KILL);
        let stdout = self.stdout.join().unwrap_or_default();
        let stderr = self.stderr.join().unwrap_or_default();
        match (told, status) {
            (Some(why), _) => Finished::Told(why),
            (None, Ok(status)) => {
                Finished::ByItself(outcome(status, &stdout, &String::from_utf8_lossy(&stderr)))
            }
            (None, Err(error)) => {
                Finished::ByItself(Err(Failure::retryable(Cause::ExecFailed.name(), error)))
            }
        }
    }

    fn wait<W>(
        &mut self,
        mut why: impl FnMut() -> Option<W>,
    ) -> (io::Result<ExitStatus>, Option<W>) {
        let mut told: Option<(W, Instant)> = None;
        let mut look = FIRST_LOOK;
        loop {
            match self.child.try_wait() {
                Ok(None) => {}
                Ok(Some(status)) => return (Ok(status), told.map(|(why, _)| why)),
                Err(error) => return (Err(error), told.map(|(why, _)| why)),
            }
            match &told {
                Some((_, since)) if since.elapsed() >= GRACE => signal(&self.child, Signal::KILL),
                Some(_) => {}
                None => {
                    if let Some(why) = why() {
                        told = Some((why, Instant::now()));
                        signal(&self.child, Signal::TERM);
                    }
                }
            }
            thread::sleep(look);
            look = (look * 2).min(LOOK);
        }
    }
}

/// Reads a pipe to its end, and keeps the beginning.
fn collect(mut pipe: impl Read + Send + 'static, limit: u64) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut kept = Vec::new();
        let _ = pipe.by_ref().take(limit).read_to_end(&mut kept);
        let _ = io::copy(&mut pipe, &mut io::sink());
        kept
    })
}

fn signal(child: &Child, signal: Signal) {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    // It may have ended in this moment.
    let _ = group.map(|group| kill_process_group(group, signal));
}

/// What an exit code and its output say.
fn outcome(status: ExitStatus, stdout: &[u8], stderr: &str) -> Result<Value, Failure> {
    match status.code() {
        Some(0) if stdout.trim_ascii().is_empty() => Ok(Value::Null),
        Some(0) => serde_json::from_slice(stdout)
            .map_err(|error| Failure::fatal(Cause::OutputInvalid.name(), error)),
        Some(code) if FATAL.contains(&code) => {
            Err(Failure::fatal(&Cause::Exit.numbered(code), stderr.trim()))
        }
        Some(code) => Err(Failure::retryable(&Cause::Exit.numbered(code), stderr.trim())),
        None => {
            let signal = status.signal().unwrap_or_default();
            Err(Failure::retryable(&Cause::Signal.numbered(signal), stderr.trim()))
        }
    }
}

fn start(exec: &Exec, input: String) -> Result<Running, Failure> {
    let Some((program, arguments)) = exec.command.split_first() else {
        return Err(Failure::fatal(Cause::ExecFailed.name(), "the step has no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments).envs(&exec.env);
    Running::start(command, input).map_err(|error| {
        Failure::retryable(Cause::ExecFailed.name(), format!("{program}: {error}"))
    })
}

/// Runs the command of an `exec` step to its end, or until the engine wants it to end.
pub(crate) fn run(exec: &Exec, directive: &Directive, context: &Context) -> Result<Value, Failure> {
    let input = serde_json::to_string(directive).expect("a directive has string keys");
    let running = start(exec, input)?;
    match running.finish(|| context.stop_reason()) {
        Finished::ByItself(result) => result,
        Finished::Told(StopReason::Cancelled) => {
            Err(Failure::retryable(Cause::Cancelled.name(), "the job was cancelled"))
        }
        Finished::Told(StopReason::TimedOut) => Err(Failure::retryable(
            Cause::StepTimeout.name(),
            "the command took longer than its step may",
        )),
        Finished::Told(StopReason::Shutdown) => {
            Err(Failure::retryable(Cause::WorkerStopped.name(), "the engine was told to end"))
        }
    }
}

/// The command of an `exec` step as what computes the items of a batch: one process for each, with the item on
/// stdin.
pub(crate) fn for_items(exec: Exec) -> BatchHandler {
    BatchHandler::new(ITEMS_AT_A_TIME, move |item: Item, context: &ItemContext<'_>| {
        let refused = |failure: Failure| {
            let class = if failure.retryable {
                ErrorClass::RetryableTransient
            } else {
                ErrorClass::NonRetryableInput
            };
            ItemFailure { class, message: format!("{}: {}", failure.code, failure.message) }
        };
        let input = json!({
            "seq": item.seq, "item": item.value, "effect_key": item.effect_key,
            "retries": context.retries(),
        });
        let running = start(&exec, input.to_string()).map_err(refused)?;
        match running.finish(|| context.should_end().then_some(())) {
            Finished::ByItself(result) => result.map(ItemOutcome::Success).map_err(refused),
            Finished::Told(()) => Err(ItemFailure::given_up("the batch was told to end")),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, why: impl FnMut() -> Option<()>) -> Finished<()> {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Running::start(command, r#"{"n":1}"#.to_owned()).unwrap().finish(why)
    }

    #[test]
    fn an_exit_code_says_how_it_went() {
        let ended = |script: &str| match shell(script, || None) {
            Finished::ByItself(result) => result,
            Finished::Told(()) => panic!("nobody told it to"),
        };
        assert_eq!(ended("cat").unwrap(), serde_json::json!({"n": 1}));
        assert_eq!(ended("exit 0").unwrap(), Value::Null);
        let failed = |script: &str| {
            let failure = ended(script).unwrap_err();
            (failure.retryable, failure.code, failure.message)
        };
        assert_eq!(failed("echo why >&2; exit 3"), (true, "EXIT_3".into(), "why".into()));
        assert_eq!(failed("exit 64"), (false, "EXIT_64".into(), String::new()));
        assert_eq!(failed("kill -9 $$"), (true, "SIGNAL_9".into(), String::new()));
        assert_eq!(failed("echo no json").1, "OUTPUT_INVALID");
    }

    #[test]
    fn what_it_has_started_ends_with_it() {
        let folder = std::env::temp_dir().join(format!("sprag-{}", std::process::id()));
        let file = folder.display();
        // Named when it is written: with no number in it `/proc//stat` would be asked, which is always there.
        let script = format!(
            "(sleep 60; echo x > {file}) & echo $! > {file}.new; mv {file}.new {file}.pid; wait"
        );
        let pid_file = folder.with_extension("pid");
        let finished = shell(&script, || pid_file.is_file().then_some(()));
        assert!(matches!(finished, Finished::Told(())));
        let pid = std::fs::read_to_string(&pid_file).unwrap();
        let _ = std::fs::remove_file(&pid_file);
        let is_there = || std::fs::read_to_string(format!("/proc/{}/stat", pid.trim()));
        let lives = || is_there().is_ok_and(|stat| !stat.contains(") Z "));
        let since = Instant::now();
        while lives() {
            assert!(since.elapsed() < GRACE, "it lives on");
            thread::yield_now();
        }
    }
}
