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

/// All parts of a list.
fn parts(caller: &Caller, path: &str) -> Vec<Value> {
    let mut items = Vec::new();
    let mut next = path.to_owned();
    loop {
        let part = caller.get(&next).ok();
        items.extend(part["items"].as_array().unwrap().clone());
        let Some(cursor) = part["next"].as_str() else { return items };
        next = format!("{path}&cursor={cursor}");
    }
}

#[test]
fn inputs_that_are_too_large_to_be_handed_over_are_read_by_the_page() {
    let house = House::open();
    let (admin, worker) = (house.admin(), house.caller(&["work"], None));
    let protocol = json!({
        "protocol_id": "fan.v1", "request_types": ["FAN"],
        "steps": [
            {"step_id": "few", "service": "few"},
            {"step_id": "all", "service": "fan", "for_each": "input.items"},
            {"step_id": "last", "service": "last"},
        ],
    });
    admin.call("PUT", "/v1/protocols/fan.v1", protocol.to_string()).ok();
    let mut fan = envelope("t1", 1);
    fan["request_type"] = "FAN".into();
    fan["payload"] = json!({"items": (0..6).collect::<Vec<_>>()});
    admin.post("/v1/commands", &fan).ok();
    let report = |directive: &Value, output: &Value| {
        let (branch, turn) = (&directive["branch"], &directive["turn"]);
        let done = json!({"status": "SUCCEEDED", "output": output, "branch": branch, "turn": turn});
        worker.post("/v1/callbacks/result", &callback(directive, done)).ok();
    };
    let few = claim(&worker, "c1", "few");
    assert_eq!(few[0].get("large_inputs"), None);
    report(&few[0], &json!([1, 2]));
    // Characters of two bytes at odd places: a page may not end within one.
    let text = |index: &Value| {
        format!(
            "{}{}",
            "x".repeat(usize::try_from(index.as_u64().unwrap()).unwrap()),
            "\u{e4}".repeat(450_000)
        )
    };
    let mut left = 6;
    while left > 0 {
        for directive in claim(&worker, &format!("fan-{left}"), "fan") {
            report(&directive, &text(&directive["index"]).into());
            left -= 1;
        }
    }
    let directive = claim(&worker, "c2", "last").swap_remove(0);
    assert_eq!(directive["inputs"], json!({"few": [1, 2]}));
    let bytes = directive["large_inputs"]["all"]["bytes"].as_u64().unwrap();
    let page = |input: &str, offset: &Value| {
        let said = callback(&directive, json!({"input": input, "offset": offset}));
        worker.post("/v1/callbacks/input", &said)
    };
    let (mut whole, mut offset, mut pages) = (String::new(), json!(0), 0);
    while !offset.is_null() {
        let read = page("all", &offset).ok();
        assert_eq!(read["bytes"], bytes);
        whole.push_str(read["text"].as_str().unwrap());
        offset = read["next_offset"].clone();
        pages += 1;
    }
    assert_eq!((whole.len() as u64, pages), (bytes, 2));
    let expected: Vec<String> = (0..6).map(|index| text(&index.into())).collect();
    assert_eq!(serde_json::from_str::<Vec<String>>(&whole).unwrap(), expected);
    let small = page("few", &json!(0)).ok();
    assert_eq!(small, json!({"text": "[1,2]", "next_offset": null, "bytes": 5}));
    page("last", &json!(0)).refused(400, "CALL_INVALID");
    page("all", &json!(bytes + 1)).refused(400, "CALL_INVALID");
    let stranger = house.caller(&["work"], Some("t2"));
    let said = callback(&directive, json!({"input": "all"}));
    stranger.post("/v1/callbacks/input", &said).refused(403, "LEASE_TOKEN_INVALID");
    report(&directive, &Value::Null);
    house.close();
}

#[test]
fn what_is_below_a_job_is_read_in_parts_and_large_outputs_when_they_are_asked_for() {
    let house = House::open();
    let (admin, worker) = (house.admin(), house.caller(&["work"], None));
    let protocol = json!({
        "protocol_id": "fan.v1", "request_types": ["FAN"],
        "steps": [{"step_id": "all", "service": "fan", "for_each": "input.items"}],
    });
    admin.call("PUT", "/v1/protocols/fan.v1", protocol.to_string()).ok();
    let mut fan = envelope("t1", 1);
    fan["request_type"] = "FAN".into();
    fan["payload"] = json!({"items": (0..120).collect::<Vec<_>>()});
    let id = admin.post("/v1/commands", &fan).ok()["jobId"].as_str().unwrap().to_owned();
    let directive = claim(&worker, "c1", "fan").swap_remove(0);
    let text = "x".repeat(20_000);
    let done = json!({
        "status": "SUCCEEDED", "output": text, "branch": directive["branch"], "turn": directive["turn"],
    });
    worker.post("/v1/callbacks/result", &callback(&directive, done)).ok();

    let path = format!("/v1/jobs/{id}");
    let begun = std::time::Instant::now();
    let is_over = |step: &Value| step["output_bytes"] == 20_002 && step["state"] == "SUCCEEDED";
    while !parts(&admin, &format!("{path}/steps?limit=500")).iter().any(is_over) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(10), "the branch is over");
    }
    let first = admin.get(&format!("{path}/steps")).ok();
    assert_eq!(first["items"].as_array().unwrap().len(), 50, "a part, if nothing is said");
    let steps = parts(&admin, &format!("{path}/steps?limit=40"));
    let key = |step: &Value| (step["step_index"].as_u64(), step["branch"].to_string());
    let branches: std::collections::BTreeSet<_> = steps.iter().map(key).collect();
    assert_eq!(branches.len(), steps.len(), "none comes twice");
    assert!(steps.len() >= 120, "{}", steps.len());
    assert_eq!(steps, parts(&admin, &format!("{path}/steps?limit=500")));
    assert_eq!(steps, parts(&admin, &format!("{path}/ledger?limit=33")), "one attempt each");

    let large = |outputs: &str| {
        let mut steps = parts(&admin, &format!("{path}/steps?limit=50&outputs={outputs}"));
        steps.retain(|step| step["output_bytes"] == 20_002);
        assert_eq!(steps.len(), 1);
        steps.swap_remove(0)["output"].clone()
    };
    assert_eq!((large("none"), large("small")), (Value::Null, Value::Null));
    assert_eq!(large("all"), text);
    for wrong in
        ["steps?outputs=some", "steps?outputs=all&limit=51", "steps?cursor=1.2", "events?cursor=x"]
    {
        admin.get(&format!("{path}/{wrong}")).refused(400, "CALL_INVALID");
    }
    let events = parts(&admin, &format!("{path}/events?limit=2"));
    let numbers: Vec<_> = events.iter().map(|event| event["n"].as_u64().unwrap()).collect();
    assert!(
        numbers.len() > 2 && numbers.iter().copied().eq(1..=numbers.len() as u64),
        "{numbers:?}"
    );
    house.close();
}
