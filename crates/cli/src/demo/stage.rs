//! The processes of a demo and their folder: a server and workers, as anybody would start them. All of them
//! end with the demo, however it ends, and the folder goes with them unless it is kept.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sprag_kernel::{Code, Refusal};

use super::act::{self, Part};
use crate::client::Client;
use crate::output::unreadable;

/// How long a worker may be without work before it counts as stuck.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long the server may take to end.
const GRACE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);
/// The exit code of a demo that a signal ended.
const INTERRUPTED: i32 = 130;

/// A server with its workers.
pub(super) struct Stage {
    folder: PathBuf,
    program: PathBuf,
    url: String,
    children: Children,
    keep: bool,
}

/// Every process that was started and has not been waited for.
type Children = Arc<Mutex<Vec<Child>>>;

impl Stage {
    /// Makes the folder and starts the server.
    pub(super) fn open(keep: bool) -> Result<Self, Refusal> {
        let program = std::env::current_exe().map_err(|e| unreadable("this program", &e))?;
        let folder = std::env::temp_dir().join(format!("sprag-demo-{}", uuid()));
        let make = |path: &Path| DirBuilder::new().mode(0o700).create(path);
        make(&folder)
            .and_then(|()| make(&act::published(&folder)))
            .and_then(|()| make(&act::recognised(&folder)))
            .map_err(|error| unreadable(folder.display(), &error))?;
        let children = Children::default();
        let mut stage = Self { folder, program, url: String::new(), children, keep };
        stage.end_with_signals()?;
        stage.serve()?;
        Ok(stage)
    }

    /// The folder of the demo.
    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// The server's data folder.
    pub(super) fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Where the server listens.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// The store of the server.
    pub(super) fn store(&self) -> String {
        format!("sqlite:{}", self.data().join("sprag.db").display())
    }

    /// A caller with the admin's token.
    pub(super) fn client(&self) -> Result<Client, Refusal> {
        let file = self.data().join("admin.token");
        let token = fs::read_to_string(&file).map_err(|e| unreadable(file.display(), &e))?;
        Ok(Client::at(&self.url, token.trim()))
    }

    fn serve(&mut self) -> Result<(), Refusal> {
        let log = self.log("server.log")?;
        let mut command = Command::new(&self.program);
        command.args(["serve", "--json", "--log", "json", "--listen", "127.0.0.1:0"]);
        command.arg("--data").arg(self.data()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = clean(&mut command)
            .stderr(log)
            .spawn()
            .map_err(|error| unreadable("the server", &error))?;
        let stdout = server.stdout.take().expect("a pipe");
        self.lock().push(server);
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(|error| unreadable("the server", &error))?;
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        let log = || fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
        let url = said["url"].as_str();
        let url = url.ok_or_else(|| failed(&format!("the server did not start: {}", log())))?;
        url.clone_into(&mut self.url);
        Ok(())
    }

    /// Starts a worker, and says its process.
    pub(super) fn worker(&self, service: &str, part: Part, lanes: u16) -> Result<u32, Refusal> {
        let program = self.program.display().to_string();
        let part = clap::ValueEnum::to_possible_value(&part).expect("every part has a name");
        let exec = format!("exec {} demo --act {}", quoted(&program), quoted(part.get_name()));
        let mut command = Command::new(&self.program);
        command.args(["worker", "--service", service, "--exec", &exec]);
        command.args(["-j", &lanes.to_string()]).arg("--data").arg(self.data());
        let worker = clean(&mut command)
            .env(super::FOLDER, &self.folder)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.log("workers.log")?)
            .spawn()
            .map_err(|error| unreadable("a worker", &error))?;
        let id = worker.id();
        self.lock().push(worker);
        Ok(id)
    }

    /// SIGKILL to a worker while it has work in hand. It is stopped first: what runs under a stopped worker
    /// has not been reported, and never will be.
    pub(super) fn kill_at_work(&self, worker: u32) -> Result<(), Refusal> {
        let begun = Instant::now();
        loop {
            signal(worker, Signal::STOP);
            let is_busy = act::is_busy(&self.folder, worker);
            if is_busy.map_err(|error| unreadable(self.folder.display(), &error))? {
                signal(worker, Signal::KILL);
                return Ok(());
            }
            signal(worker, Signal::CONT);
            if begun.elapsed() > PATIENCE {
                return Err(failed("the worker that was to be killed had nothing to do"));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Ends everything as its admin would.
    pub(super) fn close(self) -> Result<(), Refusal> {
        let server = self.lock().first().map(Child::id);
        if let Some(server) = server {
            signal(server, Signal::TERM);
        }
        let begun = Instant::now();
        loop {
            let ended = self.lock().first_mut().map(Child::try_wait);
            match ended {
                Some(Ok(Some(status))) if !status.success() => {
                    return Err(failed(&format!("the server ended with {status}")));
                }
                None | Some(Ok(Some(_))) => return Ok(()),
                Some(Ok(None)) if begun.elapsed() < GRACE => std::thread::sleep(LOOK),
                Some(Ok(None)) => return Err(failed("the server did not end")),
                Some(Err(error)) => return Err(unreadable("the server", &error)),
            }
        }
    }

    /// Ctrl-C and SIGTERM take everything with them.
    fn end_with_signals(&self) -> Result<(), Refusal> {
        let mut signals =
            Signals::new([SIGTERM, SIGINT]).map_err(|error| unreadable("signals", &error))?;
        let (children, folder, keep) = (self.children.clone(), self.folder.clone(), self.keep);
        std::thread::spawn(move || {
            if signals.forever().next().is_some() {
                end(&children, &folder, keep);
                std::process::exit(if keep { 0 } else { INTERRUPTED });
            }
        });
        Ok(())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Child>> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn log(&self, name: &str) -> Result<fs::File, Refusal> {
        let path = self.folder.join(name);
        let file = fs::File::options().create(true).append(true).open(&path);
        file.map_err(|error| unreadable(path.display(), &error))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        end(&self.children, &self.folder, self.keep);
    }
}

fn end(children: &Children, folder: &Path, keep: bool) {
    let mut children = children.lock().unwrap_or_else(PoisonError::into_inner);
    for child in children.iter_mut() {
        // It may have ended already.
        let _ = child.kill();
        let _ = child.wait();
    }
    children.clear();
    if !keep {
        // What cannot be removed is in the system's folder for what may be lost.
        let _ = fs::remove_dir_all(folder);
    }
}

/// Without settings of the caller's that are meant for another server.
fn clean(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SPRAG_") {
            command.env_remove(name);
        }
    }
    command
}

fn signal(process: u32, signal: Signal) {
    let process = i32::try_from(process).ok().and_then(Pid::from_raw);
    // A process that was not waited for keeps its number, so this reaches no other.
    let _ = process.map(|process| kill_process(process, signal));
}

/// A word for sh.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn uuid() -> String {
    sprag_engine::ids::JobId::new().to_string()
}

/// The demo did not go as its script says.
pub(super) fn failed(reason: &str) -> Refusal {
    Refusal::new(Code::DemoFailed).with("reason", reason.to_owned())
}
