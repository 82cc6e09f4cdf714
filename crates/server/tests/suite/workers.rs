//! Workers over HTTP: claim, ack, heartbeat, result, and who may not.

use serde_json::{Value, json};

use super::house::{Caller, House, at_once, envelope};

fn claim(worker: &Caller, claim_id: &str, service: &str) -> Vec<Value> {
    let body = json!({"claim_id": claim_id, "services": [service], "max": 10, "wait_s": 5});
    worker.post("/v1/claim", &body).ok()["directives"].as_array().unwrap().clone()
}

/// What a callback names of a directive.
fn callback(directive: &Value, more: Value) -> Value {
    let mut said = json!({});
    for field in ["jobId", "stepId", "attempt_no", "lease_id", "lease_token"] {
        said[field] = directive[field].clone();
    }
    said.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    said
}

#[test]
fn a_job_is_done_by_two_workers_that_speak_http() {
    let house = House::open();
    let (admin, worker) = (house.admin(), house.caller(&["work"], None));
    let id = admin.post("/v1/commands", &envelope("t1", 1)).ok()["jobId"].clone();
    let read = claim(&worker, "c1", "reader");
    assert_eq!((read.len(), &read[0]["jobId"], &read[0]["payload"]["n"]), (1, &id, &1.into()));
    assert_eq!(claim(&worker, "c1", "reader"), read, "the same claim, the same directives");
    let beat =
        worker.post("/v1/callbacks/heartbeat", &callback(&read[0], json!({"progress": 1}))).ok();
    assert_eq!(beat["cancel"], false);
    let done = callback(&read[0], json!({"status": "SUCCEEDED", "output": {"pages": 3}}));
    worker.post("/v1/callbacks/result", &done).ok();
    worker.post("/v1/callbacks/result", &done).ok();
    let other = callback(&read[0], json!({"status": "SUCCEEDED", "output": 4}));
    worker.post("/v1/callbacks/result", &other).refused(409, "STALE_FENCE");
    let print = claim(&worker, "c2", "printer");
    assert_eq!(print[0]["inputs"]["read"]["pages"], 3);
    let failed = callback(
        &print[0],
        json!({"status": "FAILED", "failure_class": "RETRYABLE",
        "error": {"code": "JAM", "message": "paper"}}),
    );
    worker.post("/v1/callbacks/result", &failed).ok();
    let print = claim(&worker, "c3", "printer");
    assert_eq!(print[0]["attempt_no"], 2);
    worker
        .post("/v1/callbacks/result", &callback(&print[0], json!({"status": "FAILED"})))
        .refused(400, "RESULT_INVALID");
    worker.post("/v1/callbacks/result", &callback(&print[0], json!({"status": "SUCCEEDED"}))).ok();
    let path = format!("/v1/jobs/{}", id.as_str().unwrap());
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while admin.get(&path).ok()["state"] != "SUCCEEDED" {
        assert!(std::time::Instant::now() < deadline, "{:?}", admin.get(&path));
    }
    let ledger = admin.get(&format!("{path}/ledger")).ok();
    assert_eq!(ledger["items"].as_array().unwrap().len(), 3);
    assert_eq!(ledger["items"][2]["ledger"], "001111100000001");
    assert_eq!(admin.get(&format!("{path}/steps")).ok()["items"].as_array().unwrap().len(), 2);
    assert!(
        admin.get(&format!("{path}/explain")).ok()["now"].as_str().unwrap().contains("SUCCEEDED")
    );
    house.close();
}

#[test]
fn a_forged_lease_token_is_refused_and_changes_nothing() {
    let house = House::open();
    let (admin, worker) = (house.admin(), house.caller(&["work"], None));
    admin.post("/v1/commands", &envelope("t1", 1)).ok();
    let read = claim(&worker, "c1", "reader");
    let result = json!({"status": "SUCCEEDED"});
    for (field, value) in [
        ("lease_token", json!("7431.00")),
        ("lease_token", json!("")),
        ("attempt_no", json!(2)),
        ("stepId", json!("print")),
        ("lease_id", json!("1")),
        ("jobId", json!("01a1e170-a091-711c-9b51-cbe48e0b906f")),
    ] {
        let mut said = callback(&read[0], result.clone());
        said[field] = value;
        for path in ["ack", "heartbeat", "result"] {
            let answer = worker.post(&format!("/v1/callbacks/{path}"), &said);
            answer.refused(403, "LEASE_TOKEN_INVALID");
        }
    }
    worker.post("/v1/callbacks/result", &callback(&read[0], result)).ok();
    house.close();
}

#[test]
fn an_explicit_ack_is_needed_before_a_result() {
    let house = House::open();
    let (admin, worker) = (house.admin(), house.caller(&["work"], None));
    admin.post("/v1/commands", &envelope("t1", 1)).ok();
    let body = json!({"claim_id": "c", "services": ["reader"], "ack": "explicit"});
    let directive = worker.post("/v1/claim", &body).ok()["directives"][0].clone();
    let done = callback(&directive, json!({"status": "SUCCEEDED"}));
    worker.post("/v1/callbacks/result", &done).refused(409, "NOT_YET");
    worker.post("/v1/callbacks/ack", &callback(&directive, json!({}))).ok();
    worker.post("/v1/callbacks/result", &done).ok();
    house.close();
}

#[test]
fn of_many_equal_results_at_once_one_counts() {
    let house = House::open();
    let (admin, worker) = (house.admin(), house.caller(&["work"], None));
    admin.post("/v1/commands", &envelope("t1", 1)).ok();
    let done =
        callback(&claim(&worker, "c", "reader")[0], json!({"status": "SUCCEEDED", "output": 1}));
    let racer = worker.clone();
    let answers = at_once(8, move |_| racer.post("/v1/callbacks/result", &done));
    assert!(answers.iter().all(|answer| answer.status == 200), "{answers:?}");
    assert_eq!(claim(&worker, "d", "printer").len(), 1);
    house.close();
}

#[test]
fn a_claim_that_waits_ends_with_the_server() {
    let house = House::open();
    let worker = house.caller(&["work"], None);
    let waiting = std::thread::spawn(move || {
        worker.post("/v1/claim", &json!({"claim_id": "c", "services": ["reader"], "wait_s": 60}))
    });
    std::thread::sleep(std::time::Duration::from_millis(300));
    house.close();
    assert_eq!(waiting.join().unwrap().ok()["directives"], json!([]));
}
