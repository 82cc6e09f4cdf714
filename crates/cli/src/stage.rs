//! A server and processes beside it, in a folder of their own, as anybody would start them. All of them end with
//! this process, unless it is killed itself, and the folder goes with them unless it is kept. The first process is
//! the server.

use std::fs::{self, DirBuilder};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{
    Pid, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, waitid,
};
use serde_json::Value;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sprag_engine::ids::JobId;
use sprag_kernel::Refusal;

use crate::client::Client;
use crate::output::unreadable;

/// How long the server may take to end.
const GRACE: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(5);
/// Where the processes beside the server write what goes wrong.
const WORKERS_LOG: &str = "workers.log";
/// The exit code of a command that a signal ended.
const INTERRUPTED: i32 = 130;

/// A server with what runs beside it.
pub struct Stage {
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
    pub fn open(name: &str, keep: bool) -> Result<Self, Refusal> {
        let program = std::env::current_exe().map_err(|e| unreadable("this program", &e))?;
        let folder = std::env::temp_dir().join(format!("sprag-{name}-{}", JobId::new()));
        let made = DirBuilder::new().mode(0o700).create(&folder);
        made.map_err(|error| unreadable(folder.display(), &error))?;
        let children = Children::default();
        let mut stage = Self { folder, program, url: String::new(), children, keep };
        stage.end_with_signals()?;
        stage.serve("127.0.0.1:0")?;
        Ok(stage)
    }

    /// The folder of all of it.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The server's data folder.
    pub fn data(&self) -> PathBuf {
        self.folder.join("data")
    }

    /// Where the server listens.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The store of the server.
    pub fn store(&self) -> String {
        format!("sqlite:{}", self.data().join("sprag.db").display())
    }

    /// A caller with the admin's token.
    pub fn client(&self) -> Result<Client, Refusal> {
        let file = self.data().join("admin.token");
        let token = fs::read_to_string(&file).map_err(|e| unreadable(file.display(), &e))?;
        Ok(Client::at(&self.url, token.trim()))
    }

    /// Starts the server, and waits until it says where it listens.
    fn serve(&mut self, listen: &str) -> Result<(), Refusal> {
        let mut command = self.command();
        command.args(["serve", "--json", "--log", "json", "--listen", listen]);
        command.arg("--data").arg(self.data()).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = command
            .stderr(self.log("server.log")?)
            .process_group(0)
            .spawn()
            .map_err(|error| unreadable("the server", &error))?;
        let stdout = server.stdout.take().expect("a pipe");
        // Ours from here on, so that a signal finds it too.
        self.lock().insert(0, server);
        let mut line = String::new();
        let read = BufReader::new(stdout).read_line(&mut line);
        read.map_err(|error| unreadable("the server", &error))?;
        let said: Value = serde_json::from_str(&line).unwrap_or_default();
        let log = || fs::read_to_string(self.folder.join("server.log")).unwrap_or_default();
        let url = said["url"].as_str().ok_or_else(|| broken(&log()))?;
        url.clone_into(&mut self.url);
        Ok(())
    }

    /// SIGKILL to the server, and another one in its place.
    pub fn restart(&mut self) -> Result<(), Refusal> {
        if let Some(mut server) = self.take_server() {
            let killed = server.kill().and_then(|()| server.wait());
            killed.map_err(|error| unreadable("the server", &error))?;
        }
        let address = self.url.trim_start_matches("http://").to_owned();
        self.serve(&address)
    }

    /// This program, without settings of the caller's that are meant for another server.
    pub fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        without_settings(&mut command);
        command
    }

    /// This program as a word for sh.
    pub fn program(&self) -> String {
        format!("'{}'", self.program.display().to_string().replace('\'', "'\\''"))
    }

    /// Starts a process beside the server, and says its number. What it starts in turn ends with it.
    pub fn start(&self, command: &mut Command) -> Result<u32, Refusal> {
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(self.log(WORKERS_LOG)?)
            .process_group(0)
            .spawn()
            .map_err(|error| unreadable("a process", &error))?;
        let id = child.id();
        self.lock().push(child);
        Ok(id)
    }

    /// Whether a process beside the server has ended by itself. It keeps its number until the stage ends.
    pub fn has_ended(&self, process: u32) -> bool {
        let ended = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let asked = group(process).map(|process| waitid(WaitId::Pid(process), ended));
        matches!(asked, Some(Ok(Some(_))))
    }

    /// The last lines that the processes beside the server have written to stderr.
    pub fn last_words(&self, lines: usize) -> String {
        let text = fs::read(self.folder.join(WORKERS_LOG)).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let all: Vec<&str> = text.lines().collect();
        all[all.len().saturating_sub(lines)..].join("\n")
    }

    /// Ends everything as its admin would.
    pub fn close(self) -> Result<(), Refusal> {
        let Some(mut server) = self.take_server() else { return Ok(()) };
        signal(server.id(), Signal::TERM);
        let begun = Instant::now();
        loop {
            match server.try_wait() {
                Ok(Some(status)) if status.success() => return Ok(()),
                Ok(Some(status)) => return Err(broken(&format!("it ended with {status}"))),
                Ok(None) if begun.elapsed() < GRACE => std::thread::sleep(LOOK),
                Ok(None) => {
                    let _ = server.kill();
                    return Err(broken("it did not end"));
                }
                Err(error) => return Err(unreadable("the server", &error)),
            }
        }
    }

    /// The server, to be waited for. After that its number may be another's, so it is not one of ours any more.
    fn take_server(&self) -> Option<Child> {
        let mut children = self.lock();
        (!children.is_empty()).then(|| children.remove(0))
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
        // It may have ended already; its group is its own for as long as it was not waited for.
        let _ = group(child.id()).map(|group| kill_process_group(group, Signal::KILL));
        let _ = child.wait();
    }
    children.clear();
    if !keep {
        // What cannot be removed is in the system's folder for what may be lost.
        let _ = fs::remove_dir_all(folder);
    }
}

/// Without settings of the caller's that are meant for another server.
pub fn without_settings(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SPRAG_") {
            command.env_remove(name);
        }
    }
}

/// A signal to a process that was started here.
pub fn signal(process: u32, signal: Signal) {
    // A process that was not waited for keeps its number, so this reaches no other.
    let _ = group(process).map(|process| kill_process(process, signal));
}

/// A process, which is also the name of the group that it began.
fn group(process: u32) -> Option<Pid> {
    i32::try_from(process).ok().and_then(Pid::from_raw)
}

fn broken(reason: &str) -> Refusal {
    unreadable("the server", &std::io::Error::other(reason.to_owned()))
}
