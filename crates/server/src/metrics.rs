//! What is counted, in the text form of Prometheus.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::http::{Method, StatusCode};

/// Upper ends of the buckets of how long calls take, in seconds.
const BUCKETS: [f64; 8] = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 10.0];

/// Calls by what was called and how it was answered. Paths are those of the routes, methods the known
/// ones, so that no caller can make the table grow.
#[derive(Default)]
pub(crate) struct Metrics(Mutex<BTreeMap<(String, &'static str, u16), Calls>>);

#[derive(Default)]
struct Calls {
    count: u64,
    seconds: f64,
    buckets: [u64; BUCKETS.len()],
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
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = all.entry((path.to_owned(), method, status.as_u16())).or_default();
        calls.count += 1;
        calls.seconds += took.as_secs_f64();
        for (bucket, end) in calls.buckets.iter_mut().zip(BUCKETS) {
            *bucket += u64::from(took.as_secs_f64() <= end);
        }
    }

    /// All of it, as text.
    pub(crate) fn render(&self, text: &mut String) {
        macro_rules! put {
            ($($part:tt)*) => { writeln!(text, $($part)*).expect("writing to a string does not fail") };
        }
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        put!("# HELP sprag_http_seconds How long calls took.");
        put!("# TYPE sprag_http_seconds histogram");
        for ((path, method, status), calls) in all.iter() {
            let labels = format!("path=\"{path}\",method=\"{method}\",status=\"{status}\"");
            for (count, end) in calls.buckets.iter().zip(BUCKETS) {
                put!("sprag_http_seconds_bucket{{{labels},le=\"{end}\"}} {count}");
            }
            put!("sprag_http_seconds_bucket{{{labels},le=\"+Inf\"}} {}", calls.count);
            put!("sprag_http_seconds_sum{{{labels}}} {}", calls.seconds);
            put!("sprag_http_seconds_count{{{labels}}} {}", calls.count);
        }
    }
}
