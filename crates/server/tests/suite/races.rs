//! A report against the end of its lease, many times around the very moment: one of the two counts, and whoever
//! asks hears which.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use super::house::{Answer, Caller, House, at_once, envelope};
use super::tour::reaches;

const JOBS: u64 = 40;

fn now_ms() -> u64 {
    u64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_millis()).unwrap()
}

fn report(worker: &Caller, directive: &Value) -> Answer {
    let mut said = directive.clone();
    said["status"] = "SUCCEEDED".into();
    said["output"] = json!({"by": directive["lease_id"]});
    worker.post("/v1/callbacks/result", &said)
}

#[test]
fn a_result_against_the_end_of_its_lease_has_one_winner() {
    let house = House::open();
    let admin = house.admin();
    let protocol = json!({
        "protocol_id": "short.v1", "request_types": ["SHORT"], "steps": [{
            "step_id": "only", "service": "short", "timeouts": {"lease": "3s"},
            "retry": {"max_attempts": 3, "backoff": ["1ms"]},
        }],
    });
    admin.call("PUT", "/v1/protocols/short.v1", protocol.to_string()).ok();
    for n in 0..JOBS {
        let mut envelope = envelope("t1", n);
        envelope["request_type"] = "SHORT".into();
        admin.post("/v1/commands", &envelope).ok();
    }
    let claim = json!({"claim_id": "c", "services": ["short"], "max": JOBS, "wait_s": 20});
    let claimed = admin.post("/v1/claim", &claim).ok()["directives"].as_array().unwrap().clone();
    assert_eq!(claimed.len() as u64, JOBS);
    let (worker, directives) = (admin.clone(), claimed.clone());
    // From well before the end to well after it; most of them in the 30 ms around it.
    let answers = at_once(claimed.len(), move |n| {
        let directive = &directives[n];
        let around = i64::try_from(n).unwrap() - 15;
        let shift = match n {
            0 => -2_500,
            39 => 1_500,
            _ => around,
        };
        let end = directive["lease_expires_at"].as_u64().unwrap();
        let at = end.saturating_add_signed(shift);
        std::thread::sleep(Duration::from_millis(at.saturating_sub(now_ms())));
        report(&worker, directive)
    });
    let mut won = 0;
    for (directive, answer) in claimed.iter().zip(&answers) {
        won += u64::from(answer.status == 200);
        holds(&admin, directive, answer);
    }
    assert!(answers[0].status == 200 && answers[39].status == 409, "{answers:?}");
    assert!(won > 0 && won < JOBS, "{won}");
    house.close();
}

/// What was answered is what the job says, and the same report again is answered the same.
fn holds(admin: &Caller, directive: &Value, answer: &Answer) {
    let job_id = directive["jobId"].as_str().unwrap();
    if answer.status == 200 {
        let job = reaches(admin, job_id, "SUCCEEDED");
        assert_eq!(job["attempts_total"], 1, "its lease did not end it too: {job}");
        report(admin, directive).ok();
        let ledger = admin.get(&format!("/v1/jobs/{job_id}/ledger")).ok();
        assert_eq!(ledger["items"][0]["output"]["by"], directive["lease_id"], "{ledger}");
        return;
    }
    answer.refused(409, "STALE_FENCE");
    report(admin, directive).refused(409, "STALE_FENCE");
    let deadline = std::time::Instant::now() + Duration::from_secs(20);
    let ledger = loop {
        let ledger = admin.get(&format!("/v1/jobs/{job_id}/ledger")).ok();
        // The end of the lease has been entered; what follows from it may take a moment.
        if ledger["items"].as_array().unwrap().len() == 2 {
            break ledger;
        }
        assert!(std::time::Instant::now() < deadline, "no other attempt: {ledger}");
    };
    let first = &ledger["items"][0];
    assert_eq!(first["last_error_code"], "LEASE_EXPIRED", "{ledger}");
    assert_eq!(first["output"], Value::Null, "{ledger}");
}
