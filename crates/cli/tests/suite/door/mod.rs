//! The server and all that calls it, as real processes that are really killed.

mod check;
mod end_to_end;
mod fuzz;
mod jobs;
mod kills;
mod manual;
mod postgres;
mod refusals;
mod workers;

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::TempDir;

use super::{Said, sprag};

/// Longer than anything here takes on the slowest machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process that does not outlive its test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Self {
        Self(command.spawn().unwrap())
    }

    /// SIGKILL: nothing is said, nothing is tidied up.
    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(i32::try_from(self.0.id()).unwrap()).unwrap();
        kill_process(pid, signal).unwrap();
    }

    /// SIGTERM, and the end.
    fn stop(self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.end()
    }

    fn end(mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// Where a server that was just started says that it listens.
fn announced(server: &mut Running) -> Option<String> {
    let mut line = String::new();
    BufReader::new(server.0.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    let said: Value = serde_json::from_str(&line).ok()?;
    said["url"].as_str().map(str::to_owned)
}

/// A server with a folder of its own.
struct House {
    folder: TempDir,
    port: u16,
    /// A database, if its store is not the file in its folder.
    database: Option<String>,
    /// A file of settings.
    config: Option<PathBuf>,
    server: Option<Running>,
}

impl House {
    fn open() -> Self {
        Self::open_on(None)
    }

    /// A house on this store.
    fn open_on(database: Option<String>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Kept over a restart, so that callers find the server again.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut house = Self { folder, port, database, config: None, server: None };
        house.serve();
        house
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    fn store(&self) -> String {
        let file = || format!("sqlite:{}", self.data().join("sprag.db").display());
        self.database.clone().unwrap_or_else(file)
    }

    /// Starts the server, and waits until it says that it listens.
    fn serve(&mut self) {
        let mut command = self.command(&["serve", "--json", "--log", "json"]);
        command.env("SPRAG_LISTEN", format!("127.0.0.1:{}", self.port));
        command.env("SPRAG_STORE", self.store());
        if let Some(config) = &self.config {
            command.env("SPRAG_CONFIG", config);
        }
        let log = fs::File::options().create(true).append(true).open(self.file("log")).unwrap();
        let mut server = Running::start(command.stdout(Stdio::piped()).stderr(log));
        let log = || fs::read_to_string(self.file("log")).unwrap();
        assert_eq!(announced(&mut server), Some(self.url()), "{}", log());
        self.server = Some(server);
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_sprag"));
        command.args(args).env("SPRAG_DATA", self.data()).stdin(Stdio::null());
        command
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.file(name), text).unwrap();
        self.file(name).display().to_string()
    }

    /// Calls the server as a user would.
    fn sprag(&self, args: &[&str], stdin: &str) -> Said {
        let data = self.data().display().to_string();
        sprag(&[args, &["--data", &data]].concat(), stdin)
    }

    /// The same, for programs; it must succeed.
    #[track_caller]
    fn json(&self, args: &[&str], stdin: &str) -> Value {
        let said = self.sprag(&[args, &["--json"]].concat(), stdin);
        assert_eq!(said.code, 0, "{args:?}: {}", said.stderr);
        said.json()
    }

    /// A job straight from the store, beside the server.
    fn job(&self, job_id: &str) -> Value {
        let said = sprag(&["job", "show", job_id, "--store", &self.store(), "--json"], "");
        assert_eq!(said.code, 0, "{}", said.stderr);
        said.json()
    }

    fn worker(&self, service: &str, exec: &str) -> Running {
        let args = ["worker", "--service", service, "--exec", exec];
        Running::start(self.command(&args).current_dir(self.folder.path()))
    }

    /// Stops the server as its admin would, and audits what it leaves.
    fn close(mut self) {
        assert!(self.server.take().unwrap().stop().success());
        let said = sprag(&["verify", "--store", &self.store()], "");
        assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
    }
}

/// The Python program of the workers' manual that has this text in it.
fn program(text: &str) -> &'static str {
    let manual = include_str!("../../../../../docs/workers.md");
    let programs = manual.split("```python\n").skip(1);
    let mut programs = programs.map(|program| program.split("```").next().unwrap());
    programs.find(|program| program.contains(text)).unwrap()
}

/// Waits until a file is there.
#[track_caller]
fn appears(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < PATIENCE, "{} does not appear", path.display());
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn envelope(request_type: &str, n: u64) -> String {
    serde_json::json!({
        "tenant_id": "t1", "request_type": request_type, "schema_version": "1",
        "input_ref": "in", "output_ref": "out", "payload": {"n": n},
    })
    .to_string()
}

/// A protocol of one step that is tried again at once.
fn single(service: &str) -> String {
    format!(
        "protocol_id: {service}.v1\nrequest_types: [{}]\nsteps:\n  - step_id: only\n    service: {service}\n\
         \x20   retry: {{max_attempts: 3, backoff: [10ms]}}\n    timeouts: {{lease: 2s}}\n",
        service.to_uppercase()
    )
}

/// An envelope with a key of its own.
fn keyed(request_type: &str, key: &str) -> String {
    serde_json::json!({
        "tenant_id": "t1", "request_type": request_type, "schema_version": "1",
        "input_ref": "in", "output_ref": "out", "payload": {"key": key}, "idempotency_key": key,
    })
    .to_string()
}
