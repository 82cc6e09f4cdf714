//! A tour of the whole document: every operation is called at least once with success, and every answer is held
//! against the schema that the document has for it. An operation that nobody calls here fails the test.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::house::{Answer, Caller, House, envelope};
use super::jobs::stream;

/// Whoever goes round, and what was seen so far.
struct Tour {
    caller: Caller,
    document: Value,
    seen: BTreeSet<(String, String)>,
}

impl Tour {
    fn begin(house: &House) -> Self {
        let caller = house.admin();
        let document = caller.get("/openapi.json").ok();
        Self { caller, document, seen: BTreeSet::new() }
    }

    /// Calls an operation by its path in the document, whose gaps are filled in order.
    #[track_caller]
    fn call(&mut self, operation: &str, gaps: &[&str], body: &Value) -> Value {
        let text = if body.is_null() { String::new() } else { body.to_string() };
        self.send(operation, gaps, &[], &text).json()
    }

    #[track_caller]
    fn send(
        &mut self,
        operation: &str,
        gaps: &[&str],
        headers: &[(&str, &str)],
        body: &str,
    ) -> Answer {
        let (method, shape) = operation.split_once(' ').unwrap();
        let path = filled(shape, gaps);
        let answer = self.caller.call_with(method, &path, headers, body);
        assert!((200..300).contains(&answer.status), "{operation}: {answer:?}");
        self.hold_against_the_document(method, shape, &answer);
        answer
    }

    #[track_caller]
    fn hold_against_the_document(&mut self, method: &str, shape: &str, answer: &Answer) {
        let operation = &self.document["paths"][shape][method.to_lowercase()];
        assert!(operation.is_object(), "{method} {shape} is not in the document");
        let documented = &operation["responses"][answer.status.to_string()];
        assert!(documented.is_object(), "{method} {shape}: {} is not documented", answer.status);
        let kind = answer.kind.split(';').next().unwrap();
        let content = &documented["content"][kind];
        assert!(content.is_object(), "{method} {shape}: {kind} is not documented");
        if kind == "application/json" {
            let mut schema = content["schema"].clone();
            schema["components"] = self.document["components"].clone();
            let schema = jsonschema::validator_for(&schema).unwrap();
            let misfits: Vec<String> =
                schema.iter_errors(&answer.json()).map(|e| e.to_string()).collect();
            assert!(misfits.is_empty(), "{method} {shape}: {misfits:?} in {}", answer.text);
        }
        self.seen.insert((method.to_owned(), shape.to_owned()));
    }

    /// Every operation of the document was called.
    fn end(self) {
        let mut missing = Vec::new();
        for (path, methods) in self.document["paths"].as_object().unwrap() {
            for method in methods.as_object().unwrap().keys().map(|method| method.to_uppercase()) {
                if !self.seen.contains(&(method.clone(), path.clone())) {
                    missing.push(format!("{method} {path}"));
                }
            }
        }
        assert!(missing.is_empty(), "call these here too: {missing:?}");
    }
}

/// A path of the document with its gaps filled in order.
pub(crate) fn filled(shape: &str, gaps: &[&str]) -> String {
    let mut gaps = gaps.iter();
    let segments: Vec<&str> = shape
        .split('/')
        .map(|part| if part.starts_with('{') { gaps.next().expect("a gap") } else { part })
        .collect();
    assert!(gaps.next().is_none(), "{shape} has fewer gaps");
    segments.join("/")
}

#[test]
fn every_operation_is_exercised_and_answers_as_the_document_says() {
    let house = House::open();
    let mut tour = Tour::begin(&house);
    operations(&mut tour);
    let job_id = jobs(&mut tour);
    signals(&mut tour);
    requests(&mut tour);
    workers(&mut tour);
    protocols_services_tokens(&mut tour);
    schedules(&mut tour);
    let events = stream(&tour.caller, &format!("/v1/events?job={job_id}"), None, 1);
    assert_eq!(events[0].1["type"], "created");
    // Read as a stream above: it does not end by itself.
    tour.seen.insert(("GET".to_owned(), "/v1/events".to_owned()));
    tour.end();
    house.close();
}

fn operations(tour: &mut Tour) {
    assert_eq!(tour.call("GET /healthz", &[], &Value::Null)["ok"], true);
    assert_eq!(tour.call("GET /readyz", &[], &Value::Null)["ok"], true);
    assert!(tour.send("GET /metrics", &[], &[], "").text.contains("sprag_jobs"));
    assert!(tour.call("GET /openapi.json", &[], &Value::Null)["paths"].is_object());
}

/// A job that is submitted, looked at from all sides, cancelled and run again.
fn jobs(tour: &mut Tour) -> String {
    let made = tour.call("POST /v1/commands", &[], &envelope("t1", 1));
    let job_id = made["jobId"].as_str().unwrap().to_owned();
    let lines = format!("{}\n{}\n", envelope("t1", 1), envelope("t1", 2));
    let kind = [("content-type", "application/x-ndjson")];
    let answers = tour.send("POST /v1/commands", &[], &kind, &lines);
    assert_eq!(answers.text.lines().count(), 2);
    tour.call("GET /v1/jobs", &[], &Value::Null);
    for below in ["", "/steps", "/events", "/ledger", "/explain"] {
        tour.call(&format!("GET /v1/jobs/{{id}}{below}"), &[&job_id], &Value::Null);
    }
    tour.call("POST /v1/jobs/{id}/cancel", &[&job_id], &Value::Null);
    reaches(&tour.caller, &job_id, "CANCELLED");
    tour.call("POST /v1/jobs/{id}/rerun", &[&job_id], &json!({"n": 1}));
    job_id
}

fn signals(tour: &mut Tour) {
    let protocol = json!({
        "protocol_id": "asks.v1", "request_types": ["ASKS"],
        "steps": [{"step_id": "wait", "wait": {"signal": "go"}}],
    });
    tour.call("PUT /v1/protocols/{id}", &["asks.v1"], &protocol);
    let mut asks = envelope("t1", 1);
    asks["request_type"] = "ASKS".into();
    let made = tour.call("POST /v1/commands", &[], &asks);
    let job_id = made["jobId"].as_str().unwrap();
    let said =
        json!({"signal_id": "s1", "payload": {"yes": true}, "by": "me", "reason": "why not"});
    tour.call("POST /v1/jobs/{id}/signals/{name}", &[job_id, "go"], &said);
    let listed = tour.call("GET /v1/jobs/{id}/signals", &[job_id], &Value::Null);
    assert_eq!(listed["items"][0]["signal_id"], "s1");
    reaches(&tour.caller, job_id, "SUCCEEDED");
}

fn requests(tour: &mut Tour) {
    let new = json!({
        "tenant_id": "t1", "request_type": "PAGES", "inputs": {"fingerprint": "a"},
        "requirement": "read it", "plan_revision": 1, "envelope": {
            "input_ref": "in", "output_ref": "out", "payload": {}, "schema_version": "1"},
    });
    let made = tour.call("POST /v1/requests", &[], &new);
    tour.call("POST /v1/requests", &[], &new);
    let id = made["requestId"].as_str().unwrap().to_owned();
    tour.call("GET /v1/requests", &[], &Value::Null);
    tour.call("POST /v1/requests/{id}/draft", &[&id], &json!({}));
    tour.call("POST /v1/requests/{id}/confirm", &[&id], &json!({"run": false}));
    let ran = tour.call("POST /v1/requests/{id}/run", &[&id], &Value::Null);
    tour.call("POST /v1/requests/{id}/cancel", &[&id], &Value::Null);
    reaches(&tour.caller, ran["jobId"].as_str().unwrap(), "CANCELLED");
    let again = tour.call("POST /v1/requests/{id}/retry", &[&id], &json!({"run_no": 1}));
    assert_eq!(again["run_no"], 2);
    tour.call("GET /v1/requests/{id}", &[&id], &Value::Null);
    tour.call("GET /v1/requests/{id}/events", &[&id], &Value::Null);
}

fn workers(tour: &mut Tour) {
    let mut said = claimed(tour, "reader");
    tour.call("POST /v1/callbacks/ack", &[], &said);
    tour.call("POST /v1/callbacks/heartbeat", &[], &said);
    said["status"] = "SUCCEEDED".into();
    tour.call("POST /v1/callbacks/result", &[], &said);
    let mut said = claimed(tour, "printer");
    said["input"] = "read".into();
    tour.call("POST /v1/callbacks/input", &[], &said);
}

/// Claims from a service; returns what callbacks name of the directive.
fn claimed(tour: &mut Tour, service: &str) -> Value {
    let claim = json!({
        "claim_id": service, "services": [service], "max": 1, "wait_s": 10, "ack": "explicit"
    });
    let claimed = tour.call("POST /v1/claim", &[], &claim);
    let directive = &claimed["directives"][0];
    let mut said = json!({});
    for field in ["jobId", "stepId", "attempt_no", "lease_id", "lease_token"] {
        said[field] = directive[field].clone();
    }
    said
}

fn schedules(tour: &mut Tour) {
    let nightly = json!({
        "schedule_id": "nightly", "cron": "0 3 * * *", "zone": "Europe/Berlin", "missed": "skip",
        "envelope": envelope("t1", 1),
    });
    let added = tour.call("POST /v1/schedules", &[], &nightly);
    assert_eq!(tour.call("POST /v1/schedules", &[], &nightly), added, "the same again is a no-op");
    assert_eq!(added["tenant_id"], "t1");
    assert_eq!(tour.call("GET /v1/schedules", &[], &Value::Null)["items"], json!([added]));
    assert_eq!(tour.call("GET /v1/schedules/{id}", &["nightly"], &Value::Null), added);
    let paused = tour.call("POST /v1/schedules/{id}/pause", &["nightly"], &Value::Null);
    assert!(paused["paused_at"].is_u64());
    assert_eq!(tour.call("POST /v1/schedules/{id}/resume", &["nightly"], &Value::Null), added);
    let mut other = nightly.clone();
    other["cron"] = "0 4 * * *".into();
    tour.caller.post("/v1/schedules", &other).refused(409, "SCHEDULE_EXISTS");
    other["missed"] = "never".into();
    tour.caller.post("/v1/schedules", &other).refused(400, "SCHEDULE_INVALID");
    let theirs =
        json!({"schedule_id": "nightly", "cron": "0 3 * * *", "envelope": envelope("t2", 1)});
    tour.caller.post("/v1/schedules", &theirs).ok();
    tour.caller.get("/v1/schedules/nightly").refused(400, "CALL_INVALID");
    assert_eq!(tour.caller.get("/v1/schedules/nightly?tenant=t2").ok()["tenant_id"], "t2");
    assert_eq!(
        tour.caller.call("DELETE", "/v1/schedules/nightly?tenant=t2", "").ok()["missed"],
        "once"
    );
    tour.call("DELETE /v1/schedules/{id}", &["nightly"], &Value::Null);
    tour.caller.get("/v1/schedules/nightly").refused(404, "SCHEDULE_UNKNOWN");
}

fn protocols_services_tokens(tour: &mut Tour) {
    tour.call("GET /v1/protocols", &[], &Value::Null);
    tour.call("GET /v1/protocols/{id}", &["pages.v1"], &Value::Null);
    tour.call("POST /v1/services/{id}/pause", &["reader"], &Value::Null);
    tour.call("POST /v1/services/{id}/resume", &["reader"], &Value::Null);
    tour.call("GET /v1/services", &[], &Value::Null);
    let made = tour.call("POST /v1/tokens", &[], &json!({"scopes": ["read"], "label": "tour"}));
    tour.call("GET /v1/tokens", &[], &Value::Null);
    tour.call("DELETE /v1/tokens/{id}", &[made["token_id"].as_str().unwrap()], &Value::Null);
}

/// Waits until a job has come there.
#[track_caller]
pub(crate) fn reaches(caller: &Caller, job_id: &str, state: &str) -> Value {
    let path = format!("/v1/jobs/{job_id}");
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    loop {
        let job = caller.get(&path).ok();
        if job["state"] == state {
            return job;
        }
        assert!(std::time::Instant::now() < deadline, "{state} is not reached: {job}");
    }
}
