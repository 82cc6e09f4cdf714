//! A server under load from another process, this one: submits per second, one by one and in bulk, jobs per second
//! that workers over HTTP claim, report and close, the 99th percentile of each, and the memory of the server, beside
//! what the same connections get when no store is asked. Prints Markdown. SPRAG_JOBS says how many jobs of each kind.
//! The store is a SQLite file that syncs every commit. Run it with `bench/http` on a quiet machine: client and
//! server share its processors.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

/// Connections that submit at a time.
const CALLERS: usize = 64;
/// Workers that claim and report at a time, each on a connection of its own.
const WORKERS: usize = 16;
/// Directives of one claim.
const CLAIM: usize = 50;
/// Lines of one bulk call.
const LINES: usize = 2_000;

fn main() {
    let jobs = std::env::var("SPRAG_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(20_000);
    let server = Server::start();
    println!("| what | per second | of bare calls | p50 ms | p99 ms |\n|---|---|---|---|---|");
    let bare = Figure::of("bare calls (/healthz), 64 connections", || (jobs, bare(&server, jobs)));
    let print = |figure: Figure| figure.print(bare.per_second);
    bare.print(bare.per_second);
    print(Figure::of("single submits, 64 connections", || (jobs, single(&server, jobs))));
    let bulk = "jobs by bulk submit, 2,000 lines per call";
    print(Figure::of(bulk, || (jobs, in_bulk(&server, jobs))));
    let done = |total, most| {
        let taken = work(&server, total, most);
        (taken.len(), taken)
    };
    print(Figure::of("jobs by 16 workers, 50 per claim; a report", || done(jobs, CLAIM)));
    let cycle = "jobs by 16 workers, one per claim; claim to report";
    print(Figure::of(cycle, || done(2 * jobs, 1)));
    println!("\nMemory of the server at its peak: {} MiB.", server.peak_mib());
}

/// One line of the table.
struct Figure {
    what: &'static str,
    per_second: f64,
    taken: Vec<Duration>,
}

impl Figure {
    /// Runs something that says how much it has done, and how long each call took.
    fn of(what: &'static str, run: impl FnOnce() -> (usize, Vec<Duration>)) -> Self {
        let begun = Instant::now();
        let (count, mut taken) = run();
        let per_second = count as f64 / begun.elapsed().as_secs_f64();
        taken.sort_unstable();
        Self { what, per_second, taken }
    }

    fn print(&self, bare: f64) {
        let at = |percent: usize| {
            let taken = self.taken[(self.taken.len() - 1) * percent / 100];
            taken.as_secs_f64() * 1_000.0
        };
        print!("| {} | {:.0} | {:.2} ", self.what, self.per_second, self.per_second / bare);
        println!("| {:.1} | {:.1} |", at(50), at(99));
    }
}

/// The server, and what a caller needs.
struct Server {
    child: Child,
    address: String,
    token: String,
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let data = folder.path().join("data");
        let mut child = Command::new(env!("CARGO_BIN_EXE_sprag"))
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--rate", "1000000"])
            .args(["--burst", "1000000", "--data"])
            .arg(&data)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: Value = serde_json::from_str(&line).unwrap();
        let address = said["url"].as_str().unwrap().strip_prefix("http://").unwrap().to_owned();
        let token = std::fs::read_to_string(data.join("admin.token")).unwrap().trim().to_owned();
        let server = Self { child, address, token, _folder: folder };
        let protocol = json!({
            "protocol_id": "bench.v1", "request_types": ["BENCH"],
            "steps": [{"step_id": "only", "service": "bench"}],
        });
        server.connect().call("PUT", "/v1/protocols/bench.v1", &protocol.to_string());
        server
    }

    fn connect(&self) -> Connection {
        let stream = TcpStream::connect(&self.address).unwrap();
        stream.set_nodelay(true).unwrap();
        Connection { stream: BufReader::new(stream), token: self.token.clone() }
    }

    /// How many jobs are over.
    fn succeeded(&self) -> usize {
        let metrics = self.connect().call("GET", "/metrics", "");
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix("sprag_jobs{state=\"SUCCEEDED\"} "));
        count.map_or(0, |count| count.parse().unwrap())
    }

    fn peak_mib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1_024
    }
}

/// A connection that stays open. As little of a client as will do: it shares the processors with the server.
struct Connection {
    stream: BufReader<TcpStream>,
    token: String,
}

impl Connection {
    fn call(&mut self, method: &str, path: &str, body: &str) -> String {
        let kind = if body.contains('\n') { "application/x-ndjson" } else { "application/json" };
        let call = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {}\r\n\
             content-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
            self.token,
            body.len()
        );
        self.stream.get_mut().write_all(call.as_bytes()).unwrap();
        let mut line = String::new();
        self.stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 2"), "{line}");
        let mut length = 0;
        loop {
            line.clear();
            self.stream.read_line(&mut line).unwrap();
            let head = line.trim_end().to_ascii_lowercase();
            if head.is_empty() {
                break;
            }
            if let Some(told) = head.strip_prefix("content-length: ") {
                length = told.parse().unwrap();
            }
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).unwrap();
        String::from_utf8(answer).unwrap()
    }
}

fn envelope(kind: &str, n: usize) -> String {
    format!(
        r#"{{"tenant_id":"t1","request_type":"BENCH","input_ref":"in","output_ref":"out","payload":{{"n":{n}}},"schema_version":"1","idempotency_key":"{kind}-{n}"}}"#
    )
}

/// Runs the same on so many threads, and gathers how long each call took.
fn at_once(count: usize, run: impl Fn() -> Vec<Duration> + Sync) -> Vec<Duration> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count).map(|_| scope.spawn(&run)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    })
}

fn bare(server: &Server, calls: usize) -> Vec<Duration> {
    one_by_one(server, calls, |connection, _| connection.call("GET", "/healthz", ""))
}

fn single(server: &Server, jobs: usize) -> Vec<Duration> {
    one_by_one(server, jobs, |connection, n| {
        connection.call("POST", "/v1/commands", &envelope("single", n))
    })
}

/// So many calls over all connections, each with its number.
fn one_by_one(
    server: &Server,
    calls: usize,
    call: impl Fn(&mut Connection, usize) -> String + Sync,
) -> Vec<Duration> {
    let next = AtomicUsize::new(0);
    at_once(CALLERS, || {
        let (mut connection, mut taken) = (server.connect(), Vec::new());
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= calls {
                return taken;
            }
            let begun = Instant::now();
            call(&mut connection, n);
            taken.push(begun.elapsed());
        }
    })
}

fn in_bulk(server: &Server, jobs: usize) -> Vec<Duration> {
    let next = AtomicUsize::new(0);
    at_once(2, || {
        let (mut connection, mut taken) = (server.connect(), Vec::new());
        loop {
            let from = next.fetch_add(LINES, Ordering::Relaxed);
            if from >= jobs {
                return taken;
            }
            let lines: Vec<_> =
                (from..jobs.min(from + LINES)).map(|n| envelope("bulk", n)).collect();
            let begun = Instant::now();
            let answer = connection.call("POST", "/v1/commands", &(lines.join("\n") + "\n"));
            taken.push(begun.elapsed());
            assert_eq!(answer.matches("\"created\":true").count(), lines.len());
        }
    })
}

/// Works jobs off, each with a report of its own, until so many are closed in all.
fn work(server: &Server, total: usize, most: usize) -> Vec<Duration> {
    let done = AtomicUsize::new(server.succeeded());
    let taken = at_once(WORKERS, || {
        let (mut connection, mut taken) = (server.connect(), Vec::new());
        while done.load(Ordering::Relaxed) < total {
            let mut begun = Instant::now();
            for directive in claim(&mut connection, most) {
                if most > 1 {
                    begun = Instant::now();
                }
                connection.call("POST", "/v1/callbacks/result", &report(&directive));
                taken.push(begun.elapsed());
                done.fetch_add(1, Ordering::Relaxed);
            }
        }
        taken
    });
    while server.succeeded() < done.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    taken
}

fn claim(connection: &mut Connection, most: usize) -> Vec<Value> {
    static CLAIMS: AtomicUsize = AtomicUsize::new(0);
    let claim_id = format!("c{}", CLAIMS.fetch_add(1, Ordering::Relaxed));
    let claim = json!({"claim_id": claim_id, "services": ["bench"], "max": most});
    let answer = connection.call("POST", "/v1/claim", &claim.to_string());
    let mut answer: Value = serde_json::from_str(&answer).unwrap();
    serde_json::from_value(answer["directives"].take()).unwrap()
}

fn report(directive: &Value) -> String {
    let mut said = json!({"status": "SUCCEEDED", "output": null});
    for name in
        ["jobId", "stepId", "step_index", "branch", "turn", "attempt_no", "lease_id", "lease_token"]
    {
        said[name] = directive[name].clone();
    }
    said.to_string()
}
