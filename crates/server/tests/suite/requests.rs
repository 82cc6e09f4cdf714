//! Group Q over HTTP: the same verbs and the same codes that the conformance suite asks the library for.

use serde_json::{Value, json};
use sprag_kernel::decide::request as law;
use sprag_kernel::machine::State;
use sprag_kernel::{Refusal, RequestStatus};

use RequestStatus::{Confirmed, Created, DraftReady, Failed, Queued, Running, Succeeded};

use super::house::{Answer, Caller, House, at_once};

const ALL: [RequestStatus; 7] =
    [Created, DraftReady, Confirmed, Queued, Running, Succeeded, Failed];

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
fn a_draft_whose_payload_the_protocol_does_not_take_is_not_confirmed_until_it_is_mended() {
    let house = House::open();
    let caller = house.admin();
    let protocol = json!({
        "protocol_id": "sums.v1", "request_types": ["SUMS"],
        "steps": [{"step_id": "add", "service": "adder", "payload_schema": {"required": ["num"]}}],
    });
    caller.call("PUT", "/v1/protocols/sums.v1", protocol.to_string()).ok();
    let mut document = new("a");
    document["request_type"] = "SUMS".into();
    let id = caller.post("/v1/requests", &document).ok()["requestId"].as_str().unwrap().to_owned();
    let draft = caller.post(&format!("/v1/requests/{id}/draft"), &json!({})).ok();
    let check = &draft["draft"]["checks"][2];
    assert_eq!((&check["name"], &check["passed"]), (&"payload".into(), &false.into()), "{draft}");
    assert!(check["reason"].as_str().unwrap().starts_with("PAYLOAD_INVALID"), "{draft}");
    for run in [false, true] {
        let refused = caller.post(&format!("/v1/requests/{id}/confirm"), &json!({"run": run}));
        refused.refused(422, "DRAFT_BLOCKED");
        assert_eq!(refused.json()["fields"]["check"], "payload");
    }
    document["envelope"]["payload"] = json!({"num": 1});
    let edit = json!({"envelope": document["envelope"]});
    caller.post(&format!("/v1/requests/{id}/draft"), &edit).ok();
    let ran = caller.post(&format!("/v1/requests/{id}/confirm"), &json!({})).ok();
    assert_eq!(ran["status"], "queued");
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

/// A house where requests of the type ONE are run step by step by the test itself.
struct Desk {
    house: House,
    caller: Caller,
    made: std::cell::Cell<u32>,
}

impl Desk {
    fn open() -> Self {
        let house = House::open();
        let caller = house.admin();
        for name in ["wait", "one"] {
            let protocol = json!({
                "protocol_id": format!("{name}.v1"), "request_types": [name.to_uppercase()],
                "steps": [{"step_id": "only", "service": name}],
            });
            caller.call("PUT", &format!("/v1/protocols/{name}.v1"), protocol.to_string()).ok();
        }
        Self { house, caller, made: std::cell::Cell::new(0) }
    }

    fn verb(&self, id: &str, verb: &str, body: &Value) -> Answer {
        self.caller.post(&format!("/v1/requests/{id}/{verb}"), body)
    }

    fn show(&self, id: &str) -> Value {
        self.caller.get(&format!("/v1/requests/{id}")).ok()
    }

    /// What a verb that changes nothing leaves as it is.
    fn seen(&self, id: &str) -> [Value; 5] {
        let view = self.show(id);
        ["status", "version", "run_no", "jobId", "updated_at"].map(|field| view[field].clone())
    }

    /// A new request in this status.
    fn in_status(&self, status: RequestStatus) -> String {
        self.made.set(self.made.get() + 1);
        let mut new = new(&self.made.get().to_string());
        let is_worked = matches!(status, Running | Succeeded | Failed);
        new["request_type"] = if is_worked { "ONE".into() } else { "WAIT".into() };
        let made = self.caller.post("/v1/requests", &new).ok();
        let id = made["requestId"].as_str().unwrap().to_owned();
        if status != Created {
            self.verb(&id, "draft", &json!({})).ok();
        }
        if status != Created && status != DraftReady {
            self.verb(&id, "confirm", &json!({"run": status != Confirmed})).ok();
        }
        if is_worked {
            self.work(&id, status);
        }
        let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
        while self.show(&id)["status"] != status.name() {
            assert!(std::time::Instant::now() < deadline, "{status}: {}", self.show(&id));
        }
        id
    }

    /// Takes the run of a request, and leaves it as this status wants it.
    fn work(&self, id: &str, status: RequestStatus) {
        let job_id = self.show(id)["jobId"].clone();
        // What other requests have left in the queue is taken and let be.
        let mut said = (0..100)
            .map(|n| {
                let claim_id = format!("{id} {n}");
                let claim = json!({"claim_id": claim_id, "services": ["one"], "wait_s": 20});
                self.caller.post("/v1/claim", &claim).ok()["directives"][0].clone()
            })
            .find(|directive| directive["jobId"] == job_id)
            .unwrap();
        if status == Running {
            return;
        }
        if status == Succeeded {
            said["status"] = "SUCCEEDED".into();
        } else {
            said["status"] = "FAILED".into();
            said["failure_class"] = "NON_RETRYABLE".into();
        }
        self.caller.post("/v1/callbacks/result", &said).ok();
    }
}

#[test]
fn q2_q3_q7_q30_every_verb_in_every_status_is_answered_as_the_law_says() {
    let desk = Desk::open();
    let (mut refused, mut same) = (0, 0);
    for status in ALL {
        for verb in ["draft", "confirm", "run", "retry", "cancel"] {
            let id = desk.in_status(status);
            let before = desk.seen(&id);
            let run_no = before[2].as_u64().unwrap();
            let row = law::RequestRow {
                status,
                version: before[1].as_u64().unwrap(),
                run_no: u32::try_from(run_no).unwrap(),
            };
            let ruled: Result<Option<law::Verb>, Refusal> = match verb {
                "draft" => law::draft(&row, None, false).map(Some),
                "confirm" => law::confirm(&row, None, true, None).map(Some),
                "run" => law::run(&row, None).map(Some),
                "retry" => law::retry(&row, None, 1).map(Some),
                _ => law::cancel(&row).map(|()| None),
            };
            let body = if verb == "retry" { json!({"run_no": 1}) } else { json!({}) };
            let answer = desk.verb(&id, verb, &body);
            match ruled {
                Err(refusal) => {
                    answer.refused(refusal.code().http_status(), refusal.code().name());
                    if refusal.code().name() == "JOB_ILLEGAL_TRANSITION" {
                        let fields = answer.json()["fields"].clone();
                        assert_eq!(fields["from"], status.name(), "{verb} in {status}");
                        assert!(fields["to"].is_string() && fields["machine"] == "request");
                    }
                    assert_eq!(desk.seen(&id), before, "nothing written: {verb} in {status}");
                    refused += 1;
                }
                Ok(Some(law::Verb::NoOp)) => {
                    answer.ok();
                    assert_eq!(desk.seen(&id), before, "nothing written: {verb} in {status}");
                    same += 1;
                }
                Ok(_) => drop(answer.ok()),
            }
        }
    }
    assert!(refused >= 14 && same >= 8, "{refused} {same}");
    desk.house.close();
}

#[test]
fn q5_confirm_queues_through_confirmed_with_two_events_and_one_job() {
    let desk = Desk::open();
    let id = desk.in_status(DraftReady);
    let queued = desk.verb(&id, "confirm", &json!({})).ok();
    assert_eq!((&queued["status"], &queued["run_no"]), (&"queued".into(), &1.into()));
    assert_eq!(queued["version"], 4, "one more for each of the two");
    let events = desk.caller.get(&format!("/v1/requests/{id}/events")).ok();
    let to: Vec<_> = events["items"].as_array().unwrap().iter().map(|e| e["to"].clone()).collect();
    assert_eq!(to[2..], ["confirmed", "queued"]);
    let job = desk.caller.get(&format!("/v1/jobs/{}", queued["jobId"].as_str().unwrap())).ok();
    assert_eq!((&job["state"], &job["requestId"]), (&"QUEUED".into(), &id.as_str().into()));
    desk.house.close();
}

#[test]
fn q9_of_two_writers_with_one_version_exactly_one_conflicts() {
    let desk = Desk::open();
    let id = desk.in_status(DraftReady);
    let (caller, path) = (desk.caller.clone(), format!("/v1/requests/{id}/draft"));
    let answers = at_once(2, move |n| {
        let edit = json!({"envelope": {"input_ref": "in", "output_ref": "out", "payload": n,
            "schema_version": "1"}});
        caller.call_with("POST", &path, &[("if-match", "\"2\"")], edit.to_string())
    });
    let mut statuses: Vec<u16> = answers.iter().map(|answer| answer.status).collect();
    statuses.sort_unstable();
    assert_eq!(statuses, [200, 409]);
    let lost = answers.iter().find(|answer| answer.status == 409).unwrap();
    lost.refused(409, "JOB_VERSION_CONFLICT");
    assert_eq!(lost.json()["fields"], json!({"expected": 2, "actual": 3}));
    assert_eq!(desk.show(&id)["version"], 3);
    desk.house.close();
}

#[test]
fn q10_a_stale_caller_whose_wish_is_fulfilled_gets_the_latest_state() {
    let desk = Desk::open();
    let id = desk.in_status(Queued);
    let path = format!("/v1/requests/{id}/confirm");
    let late = desk.caller.call_with("POST", &path, &[("if-match", "\"2\"")], "").ok();
    assert_eq!((&late["status"], &late["version"]), (&"queued".into(), &4.into()));
    desk.house.close();
}

#[test]
fn q11_q13_a_retry_is_a_new_job_and_that_of_a_success_is_none() {
    let desk = Desk::open();
    let id = desk.in_status(Failed);
    let first = desk.show(&id)["jobId"].as_str().unwrap().to_owned();
    let old = desk.caller.get(&format!("/v1/jobs/{first}")).ok();
    let again = desk.verb(&id, "retry", &json!({"run_no": 1})).ok();
    assert_eq!((&again["status"], &again["run_no"]), (&"queued".into(), &2.into()));
    assert_ne!(again["jobId"], first.as_str());
    let late = desk.verb(&id, "retry", &json!({"run_no": 1})).ok();
    assert_eq!((&late["run_no"], &late["jobId"]), (&2.into(), &again["jobId"]), "a delayed repeat");
    desk.verb(&id, "retry", &json!({"run_no": 9})).refused(409, "RUN_MISMATCH");
    assert_eq!(desk.caller.get(&format!("/v1/jobs/{first}")).ok(), old, "as it was");
    let good = desk.in_status(Succeeded);
    let before = desk.seen(&good);
    desk.verb(&good, "retry", &json!({"run_no": 1})).ok();
    assert_eq!(desk.seen(&good), before);
    desk.house.close();
}

#[test]
fn q15_the_status_follows_the_job_and_a_cancelled_one_has_failed() {
    let desk = Desk::open();
    for (status, states) in [
        (Queued, &["QUEUED"][..]),
        (Running, &["DISPATCHING", "IN_PROGRESS"]),
        (Succeeded, &["SUCCEEDED"]),
        (Failed, &["FAILED_FINAL"]),
    ] {
        let id = desk.in_status(status);
        let job_id = desk.show(&id)["jobId"].as_str().unwrap().to_owned();
        let job = desk.caller.get(&format!("/v1/jobs/{job_id}")).ok();
        assert!(states.contains(&job["state"].as_str().unwrap()), "{status}: {job}");
    }
    let id = desk.in_status(Queued);
    let cancelled = desk.verb(&id, "cancel", &json!({})).ok();
    super::tour::reaches(&desk.caller, cancelled["jobId"].as_str().unwrap(), "CANCELLED");
    let shown = desk.show(&id);
    assert_eq!((&shown["status"], &shown["error_code"]), (&"failed".into(), &"CANCELLED".into()));
    desk.house.close();
}

#[test]
fn q19_to_q27_the_key_of_a_request_is_the_same_for_every_caller() {
    let house = House::open();
    let cases: Value =
        serde_json::from_str(include_str!("../../../kernel/tests/fixtures/request-key.json"))
            .unwrap();
    let cases = cases.as_array().unwrap();
    for (n, case) in cases.iter().enumerate() {
        let request = json!({
            "tenant_id": format!("t{n}"), "request_type": "PAGES",
            "plan_revision": case["plan_revision"], "inputs": {"fingerprint": case["fingerprint"]},
            "requirement": case["requirement"],
        });
        assert_eq!(house.admin().post("/v1/requests", &request).ok()["key"], case["key"], "{case}");
    }
    assert!(cases.len() >= 8);
    house.close();
}

#[test]
fn q28_an_edit_is_one_more_version_until_the_plan_is_frozen() {
    let desk = Desk::open();
    let edit = json!({"envelope": {"input_ref": "in", "output_ref": "out", "payload": {"n": 2},
        "schema_version": "1"}});
    let id = desk.in_status(DraftReady);
    let edited = desk.verb(&id, "draft", &edit).ok();
    assert_eq!((&edited["status"], &edited["version"]), (&"draft_ready".into(), &3.into()));
    assert_eq!(edited["envelope"]["payload"]["n"], 2);
    for status in [Confirmed, Queued, Running, Succeeded, Failed] {
        let id = desk.in_status(status);
        let before = desk.seen(&id);
        desk.verb(&id, "draft", &edit).refused(409, "DRAFT_FROZEN");
        assert_eq!(desk.seen(&id), before, "{status}");
    }
    desk.house.close();
}
