//! Group Q over HTTP: the same verbs, the same codes.

use serde_json::{Value, json};

use super::house::{Caller, House, at_once};

fn new(fingerprint: &str) -> Value {
    json!({
        "tenant_id": "t1", "request_type": "PAGES", "inputs": {"fingerprint": fingerprint},
        "requirement": "read it", "envelope": {"input_ref": "in", "output_ref": "out", "payload": {},
        "schema_version": "1"},
    })
}

fn create(caller: &Caller, fingerprint: &str) -> String {
    let made = caller.post("/v1/requests", &new(fingerprint));
    made.ok()["requestId"].as_str().unwrap().to_owned()
}

#[test]
fn q1_a_request_goes_from_created_to_queued_and_shows_its_plan() {
    let house = House::open();
    let caller = house.caller(&["submit", "read"], Some("t1"));
    let made = caller.post("/v1/requests", &new("a"));
    assert_eq!((made.status, made.json()["status"].as_str()), (201, Some("created")));
    assert_eq!(caller.post("/v1/requests", &new("a")).status, 200, "the same again");
    let id = create(&caller, "a");
    let draft = caller.post(&format!("/v1/requests/{id}/draft"), &json!({}));
    assert_eq!(draft.etag.as_deref(), Some("\"2\""));
    let plan = draft.ok()["draft"].clone();
    assert_eq!(
        (&plan["protocol_id"], plan["steps"].as_array().unwrap().len()),
        (&"pages.v1".into(), 2)
    );
    assert_eq!(plan["checks"][0]["passed"], true);
    let rests = caller.post(&format!("/v1/requests/{id}/confirm"), &json!({"run": false})).ok();
    assert_eq!((&rests["status"], &rests["jobId"]), (&"confirmed".into(), &Value::Null));
    let ran =
        caller.call_with("POST", &format!("/v1/requests/{id}/run"), &[("if-match", "\"3\"")], "");
    assert_eq!(ran.etag.as_deref(), Some("\"4.1\""), "joined with the job's");
    assert_eq!((&ran.ok()["status"], &ran.json()["run_no"]), (&"queued".into(), &1.into()));
    let events = caller.get(&format!("/v1/requests/{id}/events")).ok();
    let to: Vec<_> = events["items"].as_array().unwrap().iter().map(|e| &e["to"]).collect();
    assert_eq!(to, [&Value::Null, &"draft_ready".into(), &"confirmed".into(), &"queued".into()]);
    house.close();
}

#[test]
fn q4_q18_illegal_moves_have_the_codes_of_the_library() {
    let house = House::open();
    let caller = house.caller(&["submit", "read"], Some("t1"));
    let id = create(&caller, "a");
    for (verb, body) in [
        ("run", json!({})),
        ("confirm", json!({})),
        ("retry", json!({"run_no": 1})),
        ("cancel", json!({})),
    ] {
        let answer = caller.post(&format!("/v1/requests/{id}/{verb}"), &body);
        answer.refused(409, "JOB_ILLEGAL_TRANSITION");
        assert_eq!(answer.json()["fields"]["from"], "created");
        assert_eq!(answer.json()["fields"]["machine"], "request");
    }
    let stale =
        caller.call_with("POST", &format!("/v1/requests/{id}/draft"), &[("if-match", "\"5\"")], "");
    stale.refused(409, "JOB_VERSION_CONFLICT");
    assert_eq!(stale.json()["fields"], json!({"expected": 5, "actual": 1}));
    let mut other = new("a");
    other["envelope"]["payload"] = 9.into();
    caller.post("/v1/requests", &other).refused(409, "IDEMPOTENCY_KEY_REUSED");
    house.close();
}

#[test]
fn of_many_confirms_at_once_one_makes_the_job() {
    let house = House::open();
    let caller = house.caller(&["submit", "read"], Some("t1"));
    let id = create(&caller, "a");
    caller.post(&format!("/v1/requests/{id}/draft"), &json!({})).ok();
    let racer = caller.clone();
    let answers =
        at_once(8, move |_| racer.post(&format!("/v1/requests/{id}/confirm"), &json!({})));
    let jobs: std::collections::BTreeSet<String> =
        answers.iter().map(|answer| answer.ok()["jobId"].to_string()).collect();
    assert_eq!(jobs.len(), 1);
    assert_eq!(caller.get("/v1/jobs").ok()["items"].as_array().unwrap().len(), 1);
    house.close();
}
