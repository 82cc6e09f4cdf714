//! Traces: what a collector is told about a caller that has a trace, and that nobody waits for it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use super::house::{House, envelope};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const SPAN: &str = "00f067aa0ba902b7";

/// A collector that takes everything, and what it was told.
fn collector() -> (String, Arc<Mutex<Vec<Value>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let told = Arc::new(Mutex::new(Vec::new()));
    let heard = told.clone();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = BufReader::new(stream.unwrap());
            let mut length = 0;
            let mut line = String::new();
            while stream.read_line(&mut line).unwrap() > 2 {
                if let Some(told) = line.to_lowercase().strip_prefix("content-length:") {
                    length = told.trim().parse().unwrap();
                }
                line.clear();
            }
            let mut body = vec![0; length];
            stream.read_exact(&mut body).unwrap();
            heard.lock().unwrap().push(serde_json::from_slice(&body).unwrap());
            let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\n{}";
            stream.get_mut().write_all(answer).unwrap();
        }
    });
    (url, told)
}

/// All spans that a collector was told of.
fn spans(told: &Mutex<Vec<Value>>) -> Vec<Value> {
    let told = told.lock().unwrap();
    let spans = |call: &Value| call["resourceSpans"][0]["scopeSpans"][0]["spans"].clone();
    told.iter().flat_map(|call| spans(call).as_array().unwrap().clone()).collect()
}

#[test]
fn calls_and_attempts_join_the_trace_of_the_caller() {
    let (url, told) = collector();
    let house = House::open_with(|settings| settings.traces = Some(url));
    let admin = house.admin();
    let header = format!("00-{TRACE}-{SPAN}-01");
    let traced = [("traceparent", header.as_str())];
    let submitted =
        admin.call_with("POST", "/v1/commands", &traced, envelope("t1", 1).to_string()).ok();
    let path = format!("/v1/jobs/{}", submitted["jobId"].as_str().unwrap());
    assert_eq!(admin.get(&path).ok()["traceparent"], header, "the job belongs to the trace");
    let claim = json!({"claim_id": "c", "services": ["reader"], "wait_s": 10});
    let mut said = admin.post("/v1/claim", &claim).ok()["directives"][0].clone();
    assert_eq!(said["traceparent"], header, "and its worker may go on with it");
    said["status"] = "SUCCEEDED".into();
    admin.post("/v1/callbacks/result", &said).ok();
    admin.get(&path).ok();
    // It sends what is left before it ends.
    house.close();
    let spans = spans(&told);
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["POST /v1/commands", "step read"], "nothing of calls without a trace");
    for span in &spans {
        assert_eq!((&span["traceId"], &span["parentSpanId"]), (&TRACE.into(), &SPAN.into()));
        let at = |field: &str| span[field].as_str().unwrap().parse::<u128>().unwrap();
        assert!(at("startTimeUnixNano") <= at("endTimeUnixNano"), "{span}");
        assert_eq!(span["spanId"].as_str().unwrap().len(), 16);
    }
    let attributes = spans[1]["attributes"].to_string();
    assert!(attributes.contains(submitted["jobId"].as_str().unwrap()), "{attributes}");
}

#[test]
fn steps_that_the_engine_runs_are_counted_and_leave_spans_too() {
    let (url, told) = collector();
    let house = House::open_with(|settings| settings.traces = Some(url));
    let admin = house.admin();
    let protocol = json!({"protocol_id": "own.v1", "request_types": ["OWN"], "steps": [
        {"step_id": "fine", "exec": {"command": ["true"]}},
        {"step_id": "broken", "exec": {"command": ["false"]}, "retry": {"max_attempts": 1}},
    ]});
    admin.call_with("PUT", "/v1/protocols/own.v1", &[], protocol.to_string()).ok();
    let mut envelope = envelope("t1", 1);
    envelope["request_type"] = "OWN".into();
    envelope["traceparent"] = format!("00-{TRACE}-{SPAN}-01").into();
    let job = admin.post("/v1/commands", &envelope).ok();
    let path = format!("/v1/jobs/{}", job["jobId"].as_str().unwrap());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while admin.get(&path).ok()["state"] != "FAILED_FINAL" {
        assert!(std::time::Instant::now() < deadline, "{}", admin.get(&path).text);
    }
    let metrics = admin.get("/metrics").text;
    for (step, outcome) in [("fine", "succeeded"), ("broken", "retryable")] {
        let labels = format!("protocol=\"own.v1\",step=\"{step}\",outcome=\"{outcome}\"");
        let line = format!("sprag_step_seconds_count{{{labels}}} 1");
        assert!(metrics.contains(&line), "{line}: {metrics}");
    }
    house.close();
    let spans = spans(&told);
    let names: Vec<&str> = spans.iter().map(|span| span["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["step fine", "step broken"]);
    assert!(spans.iter().all(|span| span["parentSpanId"] == SPAN), "{spans:?}");
}

#[test]
fn an_envelope_keeps_its_own_trace_and_one_that_nobody_samples_is_handed_on_unseen() {
    let (url, told) = collector();
    let house = House::open_with(|settings| settings.traces = Some(url));
    let admin = house.admin();
    let own = format!("00-{}-{SPAN}-00", "a".repeat(32));
    let mut envelope = envelope("t1", 1);
    envelope["traceparent"] = own.clone().into();
    let other = format!("00-{TRACE}-{SPAN}-00");
    let headers = [("traceparent", other.as_str())];
    let made = admin.call_with("POST", "/v1/commands", &headers, envelope.to_string()).ok();
    let path = format!("/v1/jobs/{}", made["jobId"].as_str().unwrap());
    assert_eq!(admin.get(&path).ok()["traceparent"], own);
    let nonsense = [("traceparent", "00-nonsense")];
    admin.call_with("GET", &path, &nonsense, "").ok();
    house.close();
    assert_eq!(spans(&told), [Value::Null; 0]);
}

#[test]
fn a_collector_that_is_away_holds_nobody_up() {
    let house =
        House::open_with(|settings| settings.traces = Some("http://127.0.0.1:1".to_owned()));
    let admin = house.admin();
    let header = format!("00-{TRACE}-{SPAN}-01");
    for _ in 0..50 {
        admin.call_with("GET", "/v1/jobs", &[("traceparent", header.as_str())], "").ok();
    }
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !admin.get("/metrics").text.contains("sprag_spans_dropped_total 50") {
        assert!(std::time::Instant::now() < deadline, "they are counted");
    }
    house.close();
}
