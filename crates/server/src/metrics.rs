//! What is counted, in the text form of Prometheus: calls by route and answer, and how long steps take: with workers,
//! from the directive that was handed out here to the report that was heard here; in the engine, as long as they run.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::http::{Method, StatusCode};
use sprag_engine::callback::Fence;
use sprag_engine::directive::Directive;

/// Upper ends of the buckets of how long calls take, in seconds.
const CALL_BUCKETS: [f64; 8] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0];
/// Upper ends of the buckets of how long steps take, in seconds.
const STEP_BUCKETS: [f64; 8] = [0.01, 0.1, 1.0, 10.0, 60.0, 300.0, 900.0, 3_600.0];
/// How many directives are remembered. What is handed out beyond that is not measured.
const MAX_HANDED: usize = 100_000;
/// How many kinds of steps are told apart. Protocols are named by the admin, who may have many.
const MAX_STEPS: usize = 1_000;

/// A line of text.
macro_rules! put {
    ($text:expr, $($part:tt)*) => {
        writeln!($text, $($part)*).expect("writing to a string does not fail")
    };
}
pub(crate) use put;

/// Everything that is counted in this process.
#[derive(Default)]
pub(crate) struct Metrics {
    /// By path, method and status. Paths are those of the routes, methods the known ones, so that no caller
    /// can make the table grow.
    calls: Mutex<BTreeMap<(String, &'static str, u16), Histogram>>,
    /// By lease.
    handed: Mutex<HashMap<u64, Handed>>,
    /// By protocol, step and outcome.
    steps: Mutex<BTreeMap<(String, String, &'static str), Histogram>>,
}

/// A directive that a worker has.
pub(crate) struct Handed {
    /// When it was handed out.
    pub(crate) at: Instant,
    /// The protocol of its job.
    pub(crate) protocol_id: String,
    /// Its step.
    pub(crate) step_id: String,
    /// The trace of its job.
    pub(crate) traceparent: Option<String>,
}

#[derive(Default)]
struct Histogram {
    count: u64,
    seconds: f64,
    buckets: [u64; 8],
}

impl Histogram {
    fn add(&mut self, took: Duration, ends: &[f64; 8]) {
        self.count += 1;
        self.seconds += took.as_secs_f64();
        for (bucket, end) in self.buckets.iter_mut().zip(ends) {
            *bucket += u64::from(took.as_secs_f64() <= *end);
        }
    }

    fn render(&self, name: &str, labels: &str, ends: &[f64; 8], text: &mut String) {
        for (count, end) in self.buckets.iter().zip(ends) {
            put!(text, "{name}_bucket{{{labels},le=\"{end}\"}} {count}");
        }
        put!(text, "{name}_bucket{{{labels},le=\"+Inf\"}} {}", self.count);
        put!(text, "{name}_sum{{{labels}}} {}", self.seconds);
        put!(text, "{name}_count{{{labels}}} {}", self.count);
    }
}

impl Metrics {
    pub(crate) fn answered(&self, method: &Method, path: &str, status: StatusCode, took: Duration) {
        let method = match method.as_str() {
            "GET" => "GET",
            "POST" => "POST",
            "PUT" => "PUT",
            "DELETE" => "DELETE",
            _ => "other",
        };
        let key = (path.to_owned(), method, status.as_u16());
        lock(&self.calls).entry(key).or_default().add(took, &CALL_BUCKETS);
    }

    /// A directive was handed to a worker.
    pub(crate) fn handed(&self, directive: &Directive) {
        let mut handed = lock(&self.handed);
        // Those whose workers were never heard of again make room for the others.
        if handed.len() >= MAX_HANDED {
            handed.clear();
        }
        let what = Handed {
            at: Instant::now(),
            protocol_id: directive.protocol_id.clone(),
            step_id: directive.step_id.clone(),
            traceparent: directive.traceparent.clone(),
        };
        handed.insert(directive.lease_id.0, what);
    }

    /// A report was stored: what it is about, if it was handed out here. A repeat is about nothing.
    pub(crate) fn reported(&self, fence: &Fence) -> Option<Handed> {
        lock(&self.handed).remove(&fence.lease_id.0)
    }

    /// An attempt at a step of a protocol went so.
    pub(crate) fn ran(
        &self,
        (protocol, step): (&str, &str),
        outcome: &'static str,
        took: Duration,
    ) {
        let mut steps = lock(&self.steps);
        let key = (protocol.to_owned(), step.to_owned(), outcome);
        if steps.len() < MAX_STEPS || steps.contains_key(&key) {
            steps.entry(key).or_default().add(took, &STEP_BUCKETS);
        }
    }

    /// All of it, as text.
    pub(crate) fn render(&self, text: &mut String) {
        put!(text, "# HELP sprag_http_seconds How long calls took.");
        put!(text, "# TYPE sprag_http_seconds histogram");
        for ((path, method, status), calls) in lock(&self.calls).iter() {
            let labels = format!("path=\"{path}\",method=\"{method}\",status=\"{status}\"");
            calls.render("sprag_http_seconds", &labels, &CALL_BUCKETS, text);
        }
        put!(
            text,
            "# HELP sprag_step_seconds How long steps took, with workers of this server or in its engine."
        );
        put!(text, "# TYPE sprag_step_seconds histogram");
        for ((protocol, step, outcome), taken) in lock(&self.steps).iter() {
            let (protocol, step) = (label(protocol), label(step));
            let labels = format!("protocol=\"{protocol}\",step=\"{step}\",outcome=\"{outcome}\"");
            taken.render("sprag_step_seconds", &labels, &STEP_BUCKETS, text);
        }
    }
}

/// A name as the value of a label.
pub(crate) fn label(name: &str) -> String {
    name.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn lock<T>(table: &Mutex<T>) -> MutexGuard<'_, T> {
    table.lock().unwrap_or_else(PoisonError::into_inner)
}
