//! The OpenAPI document and the server are one: every operation of it is called, with no token, with a
//! token of no use, and with that of another tenant.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::house::{House, envelope};

const OPEN: &str = "/healthz";
/// Every scope but the one that has them all.
const SCOPES: [&str; 3] = ["submit", "work", "read"];

/// Every operation of the document, with ids filled in: method, path as called, path as documented.
pub(crate) fn operations(document: &Value, id: &str) -> Vec<(String, String, String)> {
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for method in methods.as_object().unwrap().keys() {
            let called = path.replace("{id}", id).replace("{name}", "go");
            all.push((method.to_uppercase(), called, path.clone()));
        }
    }
    all
}

#[test]
fn the_document_is_openapi_3_1_and_names_every_path_of_the_design() {
    let house = House::open();
    let document = house.admin().get("/openapi.json").ok();
    assert!(document["openapi"].as_str().unwrap().starts_with("3.1"));
    for path in [
        "/v1/commands",
        "/v1/jobs",
        "/v1/jobs/{id}",
        "/v1/jobs/{id}/steps",
        "/v1/jobs/{id}/events",
        "/v1/jobs/{id}/ledger",
        "/v1/jobs/{id}/explain",
        "/v1/jobs/{id}/cancel",
        "/v1/jobs/{id}/rerun",
        "/v1/jobs/{id}/signals",
        "/v1/jobs/{id}/signals/{name}",
        "/v1/services/{id}/pause",
        "/v1/services/{id}/resume",
        "/v1/requests",
        "/v1/requests/{id}",
        "/v1/requests/{id}/draft",
        "/v1/requests/{id}/confirm",
        "/v1/requests/{id}/run",
        "/v1/requests/{id}/retry",
        "/v1/claim",
        "/v1/callbacks/ack",
        "/v1/callbacks/heartbeat",
        "/v1/callbacks/input",
        "/v1/callbacks/result",
        "/v1/events",
        "/v1/protocols",
        "/v1/protocols/{id}",
        "/v1/schedules",
        "/v1/schedules/{id}",
        "/v1/schedules/{id}/pause",
        "/v1/schedules/{id}/resume",
        "/v1/tokens",
        "/v1/tokens/{id}",
        "/healthz",
        "/readyz",
        "/metrics",
        "/openapi.json",
    ] {
        assert!(document["paths"][path].is_object(), "{path}");
    }
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    house.close();
}

#[test]
fn every_operation_needs_a_token_and_the_scope_that_the_document_says() {
    let house = House::open();
    let admin = house.admin();
    let id =
        admin.post("/v1/commands", &envelope("t1", 1)).ok()["jobId"].as_str().unwrap().to_owned();
    let document = admin.get("/openapi.json").ok();
    // One token for each scope that has all the others.
    let without = |scope: &str| {
        let others: Vec<&str> = SCOPES.into_iter().filter(|other| *other != scope).collect();
        house.caller(&others, None)
    };
    let callers: Vec<_> = SCOPES.iter().map(|scope| (*scope, without(scope))).collect();
    let everything_but_admin = house.caller(&SCOPES, None);
    for (method, path, shape) in operations(&document, &id) {
        let bare = house.nobody().call(&method, &path, "");
        if path == OPEN {
            bare.ok();
            continue;
        }
        bare.refused(401, "UNAUTHENTICATED");
        let security = &document["paths"][&shape][method.to_lowercase()]["security"];
        let scope = security[0]["token"][0].as_str();
        let caller = match scope {
            Some("admin") => &everything_but_admin,
            Some(scope) => &callers.iter().find(|(name, _)| *name == scope).unwrap().1,
            None => {
                assert!(["/readyz", "/openapi.json"].contains(&path.as_str()), "{method} {shape}");
                continue;
            }
        };
        caller.call(&method, &path, "{}").refused(403, "SCOPE_MISSING");
    }
    house.close();
}

#[test]
fn every_get_answers_as_documented() {
    let house = House::open();
    let admin = house.admin();
    let job =
        admin.post("/v1/commands", &envelope("t1", 1)).ok()["jobId"].as_str().unwrap().to_owned();
    for path in ["", "/steps", "/events", "/ledger", "/explain"] {
        admin.get(&format!("/v1/jobs/{job}{path}")).ok();
    }
    assert_eq!(admin.get("/readyz").ok()["ok"], true);
    let metrics = admin.get("/metrics");
    assert!(metrics.text.contains("sprag_http_seconds_count{path=\"/readyz\""), "{metrics:?}");
    assert_eq!(admin.get("/v1/protocols").ok()["items"][0]["protocol_id"], "pages.v1");
    assert_eq!(admin.get("/v1/protocols/pages.v1").ok()["steps"][0]["step_id"], "read");
    admin.get("/v1/protocols/none").refused(404, "PROTOCOL_NOT_FOUND");
    let yaml = "protocol_id: late.v1\nrequest_types: [LATE]\nsteps: [{step_id: a, service: s}]\n";
    assert_eq!(admin.call("PUT", "/v1/protocols/late.v1", yaml).ok()["steps"][0]["service"], "s");
    admin.call("PUT", "/v1/protocols/late.v1", yaml).ok();
    let other = yaml.replace("service: s", "service: t");
    admin.call("PUT", "/v1/protocols/late.v1", &other).refused(409, "PROTOCOL_CHANGED");
    admin.call("PUT", "/v1/protocols/other.v1", yaml).refused(400, "CALL_INVALID");
    let mut late = envelope("t1", 2);
    late["request_type"] = "LATE".into();
    assert_eq!(admin.post("/v1/commands", &late).status, 202, "registered while the server runs");
    admin.get("/v1/nothing").refused(404, "ROUTE_UNKNOWN");
    admin.call("DELETE", "/v1/jobs", "").refused(405, "METHOD_REFUSED");
    house.close();
}

#[test]
fn a_paused_service_hands_out_nothing_until_it_is_resumed() {
    let house = House::open();
    let (admin, worker) = (house.admin(), house.caller(&["work"], None));
    admin.post("/v1/services/reader/pause", &json!({})).ok();
    admin.post("/v1/commands", &envelope("t1", 1)).ok();
    let claim = |id: &str, wait: u32| {
        let body = json!({"claim_id": id, "services": ["reader"], "wait_s": wait});
        worker.post("/v1/claim", &body).ok()["directives"].as_array().unwrap().len()
    };
    assert_eq!(claim("a", 0), 0);
    let listed = admin.get("/v1/services").ok();
    assert_eq!(listed["items"][0]["service"], "reader");
    assert!(listed["items"][0]["paused_at"].is_u64(), "{listed}");
    let metrics = admin.get("/metrics").text;
    assert!(metrics.contains("sprag_paused{service=\"reader\"} 1"), "{metrics}");
    assert!(metrics.contains("sprag_jobs{state=\"QUEUED\"} 1"), "{metrics}");
    admin.post("/v1/services/reader/resume", &json!({})).ok();
    assert_eq!(claim("b", 5), 1);
    house.close();
}

#[test]
fn a_service_that_nobody_serves_is_told_of_by_the_metrics() {
    let house = House::open();
    let (admin, worker) = (house.admin(), house.caller(&["work"], None));
    admin.post("/v1/commands", &envelope("t1", 1)).ok();
    admin.post("/v1/commands", &envelope("t1", 2)).ok();
    let says = |lines: [&str; 2]| {
        let metrics = admin.get("/metrics").text;
        lines.iter().all(|line| metrics.lines().any(|there| there == *line))
    };
    let waits = ["sprag_ready{service=\"reader\"} 2", "sprag_served{service=\"reader\"} 0"];
    assert!(says(waits), "{}", admin.get("/metrics").text);
    let claim = json!({"claim_id": "a", "services": ["reader"], "wait_s": 5});
    assert_eq!(worker.post("/v1/claim", &claim).ok()["directives"].as_array().unwrap().len(), 1);
    // Who has asked is told of with the next beat.
    let served = ["sprag_ready{service=\"reader\"} 1", "sprag_served{service=\"reader\"} 1"];
    let begun = Instant::now();
    while !says(served) {
        assert!(begun.elapsed().as_secs() < 20, "{}", admin.get("/metrics").text);
        std::thread::sleep(Duration::from_millis(20));
    }
    house.close();
}

#[test]
fn a_job_that_ended_badly_is_run_again_once_per_number() {
    let house = House::open();
    let admin = house.admin();
    let id =
        admin.post("/v1/commands", &envelope("t1", 1)).ok()["jobId"].as_str().unwrap().to_owned();
    let rerun = format!("/v1/jobs/{id}/rerun");
    assert_eq!(admin.post(&rerun, &json!({"n": 1})).status, 409, "it has not ended");
    let directive = admin
        .post("/v1/claim", &json!({"claim_id": "c", "services": ["reader"], "wait_s": 5}))
        .ok()["directives"][0]
        .clone();
    let mut said = directive.clone();
    said["status"] = "FAILED".into();
    said["failure_class"] = "NON_RETRYABLE".into();
    admin.post("/v1/callbacks/result", &said).ok();
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while admin.get(&format!("/v1/jobs/{id}")).ok()["state"] != "FAILED_FINAL" {
        assert!(std::time::Instant::now() < deadline);
    }
    let again = admin.post(&rerun, &json!({"n": 1})).ok();
    assert_eq!(admin.post(&rerun, &json!({"n": 1})).ok()["jobId"], again["jobId"]);
    let shown = admin.get(&format!("/v1/jobs/{}", again["jobId"].as_str().unwrap())).ok();
    assert_eq!(shown["rerun_of"], id);
    house.close();
}

#[test]
fn tokens_are_made_shown_once_and_taken_back() {
    let house = House::open();
    let admin = house.admin();
    let made = admin
        .post("/v1/tokens", &json!({"scopes": ["read"], "tenant_id": "t1", "label": "b"}))
        .ok();
    let (id, text) = (made["token_id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let caller = super::house::Caller::new(&house.url, Some(text));
    caller.get("/v1/jobs").ok();
    let listed = admin.get("/v1/tokens");
    assert!(listed.text.contains(id) && !listed.text.contains(text), "{listed:?}");
    let file = std::fs::read(house.folder.path().join("data/sprag.db-wal")).unwrap_or_default();
    assert!(!file.windows(text.len()).any(|w| w == text.as_bytes()), "only the hash is stored");
    admin.call("DELETE", &format!("/v1/tokens/{id}"), "").ok();
    caller.get("/v1/jobs").refused(401, "UNAUTHENTICATED");
    admin.call("DELETE", "/v1/tokens/000000000000", "").refused(404, "TOKEN_UNKNOWN");
    let short = admin.post("/v1/tokens", &json!({"scopes": ["read"], "lifetime_ms": 1})).ok();
    std::thread::sleep(std::time::Duration::from_millis(5));
    super::house::Caller::new(&house.url, short["token"].as_str())
        .get("/v1/jobs")
        .refused(401, "UNAUTHENTICATED");
    for wrong in [
        json!({"scopes": []}),
        json!({"scopes": ["all"]}),
        json!({"scopes": ["admin"], "tenant_id": "t"}),
    ] {
        admin.post("/v1/tokens", &wrong).refused(400, "TOKEN_INVALID");
    }
    house.close();
}
