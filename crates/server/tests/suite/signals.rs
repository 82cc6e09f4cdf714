//! Signals over HTTP: early, on time, repeated, rejected; and who may send them.

use serde_json::{Value, json};

use super::house::{Caller, House, at_once, envelope};
use super::tour::reaches;

/// A job of a protocol that waits for a yes, and then for a worker.
fn waiting_job(admin: &Caller, n: u64) -> String {
    let protocol = json!({
        "protocol_id": "asks.v1", "request_types": ["ASKS"],
        "steps": [
            {"step_id": "ask", "wait": {"signal": "approval", "schema": {
                "type": "object", "required": ["amount"]}}},
            {"step_id": "pay", "service": "payer"},
        ],
    });
    admin.call("PUT", "/v1/protocols/asks.v1", protocol.to_string()).ok();
    let mut envelope = envelope("t1", n);
    envelope["request_type"] = "ASKS".into();
    admin.post("/v1/commands", &envelope).ok()["jobId"].as_str().unwrap().to_owned()
}

fn say(caller: &Caller, job_id: &str, said: &Value) -> super::house::Answer {
    caller.post(&format!("/v1/jobs/{job_id}/signals/approval"), said)
}

#[test]
fn an_approval_is_handed_on_and_says_who_and_why() {
    let house = House::open();
    let admin = house.admin();
    let job_id = waiting_job(&admin, 1);
    let yes =
        json!({"signal_id": "s1", "payload": {"amount": 3}, "by": "ann", "reason": "it is due"});
    let first = say(&admin, &job_id, &yes);
    assert_eq!((first.status, &first.json()["created"]), (202, &true.into()));
    let claim = json!({"claim_id": "c", "services": ["payer"], "wait_s": 20});
    let directive = admin.post("/v1/claim", &claim).ok()["directives"][0].clone();
    assert_eq!(directive["inputs"]["ask"]["amount"], 3);
    let again = say(&admin, &job_id, &yes).ok();
    assert_eq!((&again["created"], &again["taken"]), (&false.into(), &true.into()));
    let listed = admin.get(&format!("/v1/jobs/{job_id}/signals")).ok();
    let kept = &listed["items"][0];
    assert_eq!((&kept["by"], &kept["reason"]), (&"ann".into(), &"it is due".into()));
    assert_eq!((&kept["decision"], &kept["step_index"]), (&"approve".into(), &0.into()));
    assert_eq!(listed["items"].as_array().unwrap().len(), 1, "{listed}");
    house.close();
}

#[test]
fn a_rejection_ends_the_job_with_its_reason() {
    let house = House::open();
    let admin = house.admin();
    let job_id = waiting_job(&admin, 1);
    let no = json!({"signal_id": "s1", "payload": {"amount": 3}, "decision": "reject", "reason": "no money"});
    say(&admin, &job_id, &no).ok();
    let job = reaches(&admin, &job_id, "FAILED_FINAL");
    assert!(job["error_message"].as_str().unwrap().contains("no money"), "{job}");
    let listed = admin.get(&format!("/v1/jobs/{job_id}/signals")).ok();
    assert!(listed["items"][0]["by"].is_string(), "the token's name stands for who: {listed}");
    house.close();
}

#[test]
fn a_signal_that_does_not_fit_is_refused_and_changes_nothing() {
    let house = House::open();
    let admin = house.admin();
    let job_id = waiting_job(&admin, 1);
    let reader = house.caller(&["read"], Some("t1"));
    let yes = json!({"signal_id": "s1", "payload": {"amount": 3}});
    say(&reader, &job_id, &yes).refused(403, "SCOPE_MISSING");
    for wrong in [
        json!({"signal_id": "s1", "payload": {"sum": 3}}),
        json!({"signal_id": "s1", "payload": {"amount": 3}, "decision": "perhaps"}),
        json!({"signal_id": "", "payload": {"amount": 3}}),
        json!({"payload": {"amount": 3}}),
        json!({"signal_id": "s1", "payload": {"amount": 3}, "extra": 1}),
    ] {
        let answer = say(&admin, &job_id, &wrong);
        assert!((400..500).contains(&answer.status), "{wrong}: {answer:?}");
        assert_eq!(answer.kind, "application/problem+json");
    }
    let other = format!("/v1/jobs/{job_id}/signals/nobody-waits-for-this");
    let unknown = admin.post(&other, &yes);
    assert!((400..500).contains(&unknown.status), "{unknown:?}");
    assert_eq!(admin.get(&format!("/v1/jobs/{job_id}/signals")).ok()["items"], json!([]));
    say(&admin, &job_id, &yes).ok();
    let changed = json!({"signal_id": "s1", "payload": {"amount": 4}});
    say(&admin, &job_id, &changed).refused(409, "SIGNAL_ID_REUSED");
    house.close();
}

#[test]
fn of_sixteen_signals_at_once_with_one_id_one_counts() {
    let house = House::open();
    let admin = house.admin();
    let job_id = waiting_job(&admin, 1);
    let (sender, to) = (house.caller(&["submit"], Some("t1")), job_id.clone());
    let yes = json!({"signal_id": "s1", "payload": {"amount": 3}});
    let answers = at_once(16, move |_| say(&sender, &to, &yes));
    let created = answers.iter().filter(|answer| answer.ok()["created"] == true).count();
    assert_eq!(created, 1);
    let claim = json!({"claim_id": "c", "services": ["payer"], "wait_s": 20, "max": 10});
    assert_eq!(admin.post("/v1/claim", &claim).ok()["directives"].as_array().unwrap().len(), 1);
    house.close();
}
