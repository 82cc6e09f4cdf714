//! Traces for OpenTelemetry, joined to those of the caller. A call that carries a sampled `traceparent` leaves a span
//! below it; a job that is submitted by such a call, or whose envelope names a trace, leaves a span per attempt that
//! a worker of this server reports or its engine runs. Without a trace of the caller's there is nothing to join, and nothing is sent.
//!
//! Spans go to a collector as OTLP over HTTP, in its JSON form, from a thread of their own. What the collector does
//! not take is dropped and counted: a trace is never worth a call that waits. The JSON form is a small part of a
//! stable specification, so it is written here; the usual crates would bring Protocol Buffers and another HTTP
//! client for it.

use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use sprag_kernel::{Code, Refusal};

use crate::secret::random_hex;

/// How many spans wait for the collector; beyond that they are dropped.
const MAX_WAITING: usize = 10_000;
/// How many spans one call to the collector carries.
const AT_A_TIME: usize = 500;
/// How long a span waits for others to go with.
const GATHER: Duration = Duration::from_secs(1);
/// How long the collector may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The place in a caller's trace that something belongs below: a `traceparent`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parent {
    trace_id: String,
    span_id: String,
    /// Whether the caller wants to see it.
    is_sampled: bool,
}

impl FromStr for Parent {
    type Err = ();

    /// Reads version 00 of W3C Trace Context.
    fn from_str(text: &str) -> Result<Self, ()> {
        let is_hex = |part: &str, length: usize| {
            part.len() == length && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
        };
        let is_id = |part: &str, length| is_hex(part, length) && part.bytes().any(|b| b != b'0');
        let parts: Vec<&str> = text.trim().split('-').collect();
        let ["00", trace_id, span_id, flags] = parts[..] else { return Err(()) };
        if !is_id(trace_id, 32) || !is_id(span_id, 16) || !is_hex(flags, 2) {
            return Err(());
        }
        let is_sampled = u8::from_str_radix(flags, 16).is_ok_and(|flags| flags & 1 == 1);
        Ok(Self { trace_id: trace_id.to_owned(), span_id: span_id.to_owned(), is_sampled })
    }
}

/// Who did what a span is about.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Role {
    /// This server, for a caller.
    Server,
    /// A worker, for a job.
    Consumer,
}

/// Something that took time.
#[derive(Debug)]
pub(crate) struct Span {
    pub(crate) parent: Parent,
    pub(crate) name: String,
    pub(crate) role: Role,
    pub(crate) took: Duration,
    pub(crate) failed: bool,
    pub(crate) attributes: Vec<(&'static str, Value)>,
}

/// Where spans go.
pub(crate) struct Traces {
    /// The spans, each with the time of its end.
    sender: Option<SyncSender<(SystemTime, Span)>>,
    exporter: Mutex<Option<JoinHandle<()>>>,
    dropped: Arc<AtomicU64>,
}

impl Traces {
    /// To the collector with this URL, or to nobody.
    pub(crate) fn to(collector: Option<&str>) -> Result<Self, Refusal> {
        let dropped = Arc::new(AtomicU64::new(0));
        let Some(collector) = collector else {
            return Ok(Self { sender: None, exporter: Mutex::new(None), dropped });
        };
        let (sender, spans) = sync_channel(MAX_WAITING);
        let exporter = Exporter::new(collector, spans, dropped.clone());
        let thread = std::thread::Builder::new().name("traces".to_owned());
        let thread = thread.spawn(move || exporter.run()).map_err(|error| {
            Refusal::new(Code::ConfigInvalid).with("reason", format!("no thread: {error}"))
        })?;
        Ok(Self { sender: Some(sender), exporter: Mutex::new(Some(thread)), dropped })
    }

    /// The place that a `traceparent` names, if anybody wants to hear of it.
    pub(crate) fn parent(&self, traceparent: Option<&str>) -> Option<Parent> {
        self.sender.as_ref()?;
        traceparent?.parse().ok().filter(|parent: &Parent| parent.is_sampled)
    }

    /// Sends a span that ends now, unless too many wait already.
    pub(crate) fn send(&self, span: Span) {
        if let Some(sender) = &self.sender
            && sender.try_send((SystemTime::now(), span)).is_err()
        {
            self.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// How many spans nobody has taken.
    pub(crate) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl Drop for Traces {
    fn drop(&mut self) {
        // The exporter ends when it has sent what is there; it waits for no collector for long.
        self.sender = None;
        let exporter = self.exporter.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(exporter) = exporter {
            let _ = exporter.join();
        }
    }
}

/// The thread that calls the collector.
struct Exporter {
    agent: ureq::Agent,
    url: String,
    spans: Receiver<(SystemTime, Span)>,
    dropped: Arc<AtomicU64>,
}

impl Exporter {
    fn new(collector: &str, spans: Receiver<(SystemTime, Span)>, dropped: Arc<AtomicU64>) -> Self {
        let config = ureq::Agent::config_builder().timeout_global(Some(PATIENCE)).build();
        let url = format!("{}/v1/traces", collector.trim_end_matches('/'));
        Self { agent: config.into(), url, spans, dropped }
    }

    fn run(self) {
        loop {
            let (group, is_over) = self.gather();
            if !group.is_empty()
                && let Err(error) = self.post(&group)
            {
                self.dropped.fetch_add(group.len() as u64, Ordering::Relaxed);
                let spans = group.len();
                tracing::warn!(code = "TRACES_DROPPED", %error, spans, "the collector did not take them");
            }
            if is_over {
                return;
            }
        }
    }

    /// The next group of spans, and whether it is the last.
    fn gather(&self) -> (Vec<Value>, bool) {
        let mut group = Vec::new();
        let mut until = Instant::now() + GATHER;
        while group.len() < AT_A_TIME {
            match self.spans.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((ended, span)) => group.push(shown(&span, ended)),
                Err(RecvTimeoutError::Timeout) if group.is_empty() => {
                    until = Instant::now() + GATHER;
                }
                Err(RecvTimeoutError::Timeout) => break,
                Err(RecvTimeoutError::Disconnected) => return (group, true),
            }
        }
        (group, false)
    }

    fn post(&self, spans: &[Value]) -> Result<(), ureq::Error> {
        let body = json!({"resourceSpans": [{
            "resource": {"attributes": [attribute("service.name", &"sprag".into())]},
            "scopeSpans": [{"scope": {"name": "sprag"}, "spans": spans}],
        }]});
        let call = self.agent.post(&self.url).header("content-type", "application/json");
        call.send(body.to_string()).map(drop)
    }
}

/// A span in the JSON form of OTLP.
fn shown(span: &Span, ended: SystemTime) -> Value {
    let nanoseconds =
        |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_nanos().to_string();
    let attributes: Vec<Value> =
        span.attributes.iter().map(|(name, value)| attribute(name, value)).collect();
    json!({
        "traceId": span.parent.trace_id, "spanId": random_hex::<8>(),
        "parentSpanId": span.parent.span_id, "name": span.name,
        "kind": match span.role { Role::Server => 2, Role::Consumer => 5 },
        "startTimeUnixNano": nanoseconds(ended.checked_sub(span.took).unwrap_or(ended)),
        "endTimeUnixNano": nanoseconds(ended),
        "status": {"code": if span.failed { 2 } else { 0 }},
        "attributes": attributes,
    })
}

fn attribute(name: &str, value: &Value) -> Value {
    match value {
        Value::Number(number) => json!({"key": name, "value": {"intValue": number.to_string()}}),
        Value::String(text) => json!({"key": name, "value": {"stringValue": text}}),
        other => json!({"key": name, "value": {"stringValue": other.to_string()}}),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_as_the_standard_has_it() {
        let (trace, span) = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7");
        let parent: Parent = format!("00-{trace}-{span}-01").parse().unwrap();
        assert_eq!((parent.trace_id.as_str(), parent.span_id.as_str()), (trace, span));
        assert!(parent.is_sampled);
        assert!(!format!("00-{trace}-{span}-00").parse::<Parent>().unwrap().is_sampled);
        for wrong in [
            format!("01-{trace}-{span}-01"),
            format!("00-{}-{span}-01", "0".repeat(32)),
            format!("00-{trace}-{}-01", "0".repeat(16)),
            format!("00-{}-{span}-01", trace.to_uppercase()),
            format!("00-{trace}-{span}-01-more"),
            format!("00-{trace}-{span}"),
            String::new(),
        ] {
            assert_eq!(wrong.parse::<Parent>(), Err(()), "{wrong}");
        }
    }
}
