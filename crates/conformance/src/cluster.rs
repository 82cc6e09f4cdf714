//! A private Postgres server in a temporary folder, for as long as somebody holds it.
//!
//! It listens on a socket in that folder only and syncs like a real one. It can be killed in the middle
//! of its work and started again. A small shell process stands between: it holds the server and reads
//! from a pipe of this process, so that the server is stopped when the pipe closes, however this process
//! ends. As root, the server runs as another user, because it refuses to run as root.

#![allow(clippy::unwrap_used)] // a test that cannot have its server ends here

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// How long a server may take to start; recovery after a kill is part of it.
const START: Duration = Duration::from_secs(30);
/// Everything else as a fresh installation has it, above all `fsync` and `synchronous_commit`.
const SETTINGS: &[&str] = &["listen_addresses=", "max_connections=200", "shared_buffers=256MB"];
const SUPERVISE: &str = r#"server=$1; shift
"$server" "$@" >>log 2>&1 & child=$!
read -r _
kill -QUIT "$child" 2>/dev/null
wait "$child""#;

/// A server of our own.
pub struct Cluster {
    folder: TempDir,
    server: Mutex<Option<Child>>,
    databases: AtomicU32,
    port: u16,
    /// What this server is told beyond [`SETTINGS`].
    settings: Vec<String>,
}

impl Cluster {
    /// The one server that the tests of this process share while they need it.
    pub fn shared() -> Arc<Self> {
        static SHARED: Mutex<Weak<Cluster>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(PoisonError::into_inner);
        shared.upgrade().unwrap_or_else(|| {
            let cluster = Arc::new(Self::start());
            *shared = Arc::downgrade(&cluster);
            cluster
        })
    }

    /// A new server.
    pub fn start() -> Self {
        Self::start_with(5432, Vec::new(), &[])
    }

    /// A new server with this port (its socket has it in its name too), these settings more, and these files
    /// in its folder that nobody else may read.
    pub fn start_with(port: u16, settings: Vec<String>, files: &[(&str, &str)]) -> Self {
        let folder = tempfile::Builder::new().prefix("sprag-pg").tempdir().unwrap();
        let (server, databases) = (Mutex::new(None), AtomicU32::new(0));
        let cluster = Self { folder, server, databases, port, settings };
        for (name, content) in files {
            let path = cluster.folder.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            if let Some((_, uid, gid)) = other_user() {
                chown(&path, Some(uid), Some(gid)).unwrap();
            }
        }
        if let Some((_, uid, gid)) = other_user() {
            chown(cluster.folder.path(), Some(uid), Some(gid)).unwrap();
        }
        let made = command(&binary("initdb"))
            .args([
                "--no-sync",
                "--auth=trust",
                "--username=sprag",
                "--encoding=UTF8",
                "--locale=C",
            ])
            .arg("--pgdata=data")
            .current_dir(cluster.folder.path())
            .output()
            .unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        cluster.restart();
        cluster
    }

    /// Starts the server again after [`Self::kill`].
    pub fn restart(&self) {
        let mut server = self.server.lock().unwrap();
        assert!(server.is_none(), "the server runs already");
        let folder = self.folder.path();
        let more = self.settings.iter().map(String::as_str);
        let settings = SETTINGS.iter().copied().chain(more).flat_map(|setting| ["-c", setting]);
        let child = command(Path::new("/bin/sh"))
            .args(["-c", SUPERVISE, "sh"])
            .arg(binary("postgres"))
            .args(["-D", "data", "-k"])
            .arg(folder)
            .args(["-p", &self.port.to_string()])
            .args(settings)
            .current_dir(folder)
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        *server = Some(child);
        let deadline = Instant::now() + START;
        while !self.answers() {
            let log = || fs::read_to_string(folder.join("log")).unwrap_or_default();
            assert!(Instant::now() < deadline, "the server did not start: {}", log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    fn answers(&self) -> bool {
        let mut asked = Command::new(binary("pg_isready"));
        asked.args(["-q", "-p", &self.port.to_string(), "-h"]).arg(self.folder.path());
        asked.status().is_ok_and(|status| status.success())
    }

    /// Stops the server at once: nothing is finished, nothing is flushed.
    pub fn kill(&self) {
        let child = self.server.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(mut child) = child {
            drop(child.stdin.take());
            child.wait().unwrap();
        }
    }

    /// Ends every process of the server at once, as the kernel does when memory runs out.
    pub fn crash(&self) {
        let data = self.folder.path().join("data").canonicalize().unwrap();
        let pid_file = data.join("postmaster.pid");
        let postmaster = fs::read_to_string(pid_file).unwrap().lines().next().unwrap().to_owned();
        // The postmaster first, or it would start new ones.
        let mut doomed = vec![postmaster];
        doomed.extend(processes(&data));
        // Again until nobody is left: one that was just being started holds the server's memory, and the next server
        // would refuse to start beside it.
        while !doomed.is_empty() {
            let mut end = Command::new("kill");
            end.arg("-KILL").args(&doomed).stderr(Stdio::null()).status().unwrap();
            thread::sleep(Duration::from_millis(5));
            doomed = processes(&data);
        }
        self.kill();
    }

    /// The URL of a new, empty database.
    pub async fn database(&self) -> String {
        let name = format!("test_{}", self.databases.fetch_add(1, Ordering::Relaxed));
        let (client, connection) =
            tokio_postgres::connect(&self.url("postgres"), tokio_postgres::NoTls).await.unwrap();
        let connection = tokio::spawn(connection);
        client.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        drop(client);
        connection.await.unwrap().unwrap();
        self.url(&name)
    }

    /// The folder that the server has its socket in.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The URL of a database of this server.
    pub fn url(&self, database: &str) -> String {
        format!("host={} user=sprag dbname={database}", self.folder.path().display())
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The processes that are at home in this folder, as all of a server are in that of its data. Those that merely wait
/// to be reaped are nowhere.
fn processes(home: &Path) -> Vec<String> {
    let is_at_home = |folder: &Path| fs::read_link(folder.join("cwd")).is_ok_and(|cwd| cwd == home);
    let all = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok().map(|e| e.path()));
    all.filter(|folder| is_at_home(folder))
        .filter_map(|folder| Some(folder.file_name()?.to_str()?.to_owned()))
        .collect()
}

/// A command that runs as the user who may run a server.
fn command(program: &Path) -> Command {
    match other_user() {
        None => Command::new(program),
        Some((name, ..)) => {
            let mut command = Command::new("setpriv");
            command.args([format!("--reuid={name}"), format!("--regid={name}")]);
            command.args(["--clear-groups", "--"]).arg(program);
            command
        }
    }
}

/// As root: the name and numbers of somebody else, `postgres` rather than `nobody`.
fn other_user() -> Option<(String, u32, u32)> {
    if fs::metadata("/proc/self").ok()?.uid() != 0 {
        return None;
    }
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let user = |name: &str| {
        let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2);
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        Some((name.to_owned(), uid, gid))
    };
    Some(user("postgres").or_else(|| user("nobody")).expect("there is a user other than root"))
}

/// A program of the newest installed server.
fn binary(name: &str) -> PathBuf {
    newest().map_or_else(|_| PathBuf::from(name), |folder| folder.join(name))
}

fn newest() -> io::Result<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql")?.filter_map(|entry| {
        let entry = entry.ok()?;
        let number: u32 = entry.file_name().to_str()?.parse().ok()?;
        let folder = entry.path().join("bin");
        folder.join("postgres").exists().then_some((number, folder))
    });
    versions.max().map(|(_, folder)| folder).ok_or_else(|| io::ErrorKind::NotFound.into())
}
