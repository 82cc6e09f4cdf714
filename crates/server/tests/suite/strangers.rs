//! Another tenant's token with our ids: everything of ours is as if it were not there. An operation that nobody
//! has thought about here fails the test.

use serde_json::{Value, json};

use super::contract::operations;
use super::house::{Answer, Caller, House, envelope};

/// An id that nothing has.
const ABSENT: &str = "01a1e170-a091-711c-9b51-cbe48e0b906f";

/// The name of our schedule.
const NIGHTLY: &str = "nightly-of-ours";

fn nightly() -> Value {
    json!({"schedule_id": NIGHTLY, "cron": "0 3 * * *", "envelope": envelope("t1", 9)})
}

/// What a caller of another tenant is told by an operation on something of ours.
enum Told {
    /// There is no such thing, word for word as of an id that nothing has.
    Absent(u16, &'static str),
    /// The operation is for callers of all tenants alone.
    ScopeMissing,
    /// The body names our tenant.
    Mismatch,
    /// A list in this field, without anything of ours.
    Nothing(&'static str),
    /// Nothing of a tenant is shown or changed by it.
    Shared,
}

fn told(operation: &str) -> Told {
    match operation {
        "GET /healthz"
        | "GET /readyz"
        | "GET /openapi.json"
        | "GET /v1/protocols"
        | "GET /v1/protocols/{id}" => Told::Shared,
        "GET /metrics"
        | "GET /v1/services"
        | "PUT /v1/protocols/{id}"
        | "POST /v1/services/{id}/pause"
        | "POST /v1/services/{id}/resume"
        | "POST /v1/tokens"
        | "GET /v1/tokens"
        | "DELETE /v1/tokens/{id}" => Told::ScopeMissing,
        "POST /v1/commands" | "POST /v1/requests" | "POST /v1/schedules" => Told::Mismatch,
        "GET /v1/jobs" | "GET /v1/requests" | "GET /v1/schedules" => Told::Nothing("items"),
        "POST /v1/claim" => Told::Nothing("directives"),
        // Of an attempt that is not there nobody can have a lease token.
        _ if operation.starts_with("POST /v1/callbacks/") => {
            Told::Absent(403, "LEASE_TOKEN_INVALID")
        }
        "GET /v1/events" => Told::Absent(404, "JOB_UNKNOWN"),
        _ if operation.contains(" /v1/jobs/{id}") => Told::Absent(404, "JOB_UNKNOWN"),
        _ if operation.contains(" /v1/requests/{id}") => Told::Absent(404, "REQUEST_UNKNOWN"),
        _ if operation.contains(" /v1/schedules/{id}") => Told::Absent(404, "SCHEDULE_UNKNOWN"),
        _ => panic!("say what another tenant is told by {operation}"),
    }
}

/// Ours, and a caller that it does not belong to.
struct Scene {
    job_id: String,
    request_id: String,
    directive: Value,
    stranger: Caller,
}

impl Scene {
    fn set(house: &House) -> Self {
        let admin = house.admin();
        let id = |answer: Answer, field: &str| answer.ok()[field].as_str().unwrap().to_owned();
        let worked = id(admin.post("/v1/commands", &envelope("t1", 1)), "jobId");
        let claim = json!({"claim_id": "ours", "services": ["reader"], "wait_s": 10});
        let directive = admin.post("/v1/claim", &claim).ok()["directives"][0].clone();
        assert_eq!(directive["jobId"], worked.as_str());
        let new = json!({"tenant_id": "t1", "request_type": "PAGES"});
        admin.post("/v1/schedules", &nightly()).ok();
        Self {
            // One that still waits, so that there is something to claim.
            job_id: id(admin.post("/v1/commands", &envelope("t1", 2)), "jobId"),
            request_id: id(admin.post("/v1/requests", &new), "requestId"),
            directive,
            stranger: house.caller(&["submit", "read", "work"], Some("t2")),
        }
    }

    /// The call with our ids, and the same with ids that nothing has.
    fn call(&self, method: &str, shape: &str) -> (Answer, Answer) {
        let id = match shape {
            _ if shape.contains("/requests/") => &self.request_id,
            _ if shape.contains("/schedules/") => NIGHTLY,
            _ => &self.job_id,
        };
        let mut said = self.directive.clone();
        said["status"] = "SUCCEEDED".into();
        said["input"] = "read".into();
        let body = match shape {
            "/v1/commands" => envelope("t1", 3),
            "/v1/schedules" => nightly(),
            "/v1/requests" => {
                json!({"tenant_id": "t1", "request_type": "PAGES", "requirement": "x"})
            }
            "/v1/claim" => json!({"claim_id": "ours", "services": ["reader", "printer"]}),
            "/v1/requests/{id}/retry" => json!({"run_no": 1}),
            "/v1/jobs/{id}/signals/{name}" => json!({"signal_id": "s"}),
            _ if shape.starts_with("/v1/callbacks/") => said.clone(),
            _ => Value::Null,
        };
        let query = if shape == "/v1/events" { "?job={id}" } else { "" };
        let send = |id: &str, body: &Value| {
            let path = format!("{shape}{query}").replace("{id}", id).replace("{name}", "go");
            let body = if body.is_null() { String::new() } else { body.to_string() };
            self.stranger.call(method, &path, body)
        };
        said["jobId"] = ABSENT.into();
        let nobodys = if shape.starts_with("/v1/callbacks/") { said } else { body.clone() };
        (send(id, &body), send(ABSENT, &nobodys))
    }
}

#[test]
fn what_belongs_to_another_tenant_is_not_there() {
    let house = House::open();
    let scene = Scene::set(&house);
    let document = house.admin().get("/openapi.json").ok();
    let mut tried = 0;
    for (method, _, shape) in operations(&document, "") {
        let operation = format!("{method} {shape}");
        if matches!(told(&operation), Told::Shared) {
            continue;
        }
        let (ours, nobodys) = scene.call(&method, &shape);
        match told(&operation) {
            Told::Absent(status, code) => {
                ours.refused(status, code);
                let same = |text: &str| {
                    let text = text.replace(&scene.job_id, "ID").replace(&scene.request_id, "ID");
                    text.replace(ABSENT, "ID").replace(NIGHTLY, "ID")
                };
                assert_eq!(same(&ours.text), same(&nobodys.text), "as if absent: {operation}");
            }
            Told::ScopeMissing => ours.refused(403, "SCOPE_MISSING"),
            Told::Mismatch => ours.refused(403, "TENANT_MISMATCH"),
            Told::Nothing(field) => assert_eq!(ours.ok()[field], json!([]), "{operation}"),
            Told::Shared => {}
        }
        tried += 1;
    }
    assert!(tried >= 30, "{tried}");
    scene.stranger.get("/v1/jobs?tenant=t1").refused(403, "TENANT_MISMATCH");
    scene.stranger.get("/v1/requests?tenant=t1").refused(403, "TENANT_MISMATCH");
    let job = house.admin().get(&format!("/v1/jobs/{}", scene.job_id)).ok();
    assert_eq!((&job["state"], &job["version"]), (&"QUEUED".into(), &1.into()), "nothing changed");
    house.close();
}

#[test]
fn a_worker_of_one_tenant_does_its_own_work_alone() {
    let house = House::open();
    let admin = house.admin();
    let worker = house.caller(&["work"], Some("t2"));
    for (n, tenant) in ["t1", "t2", "t1"].into_iter().enumerate() {
        admin.post("/v1/commands", &envelope(tenant, n as u64)).ok();
    }
    let claim = json!({"claim_id": "c", "services": ["reader"], "max": 10, "wait_s": 10});
    let claimed = worker.post("/v1/claim", &claim).ok();
    let directives = claimed["directives"].as_array().unwrap();
    assert_eq!((directives.len(), &directives[0]["tenant_id"]), (1, &"t2".into()));
    let mut said = directives[0].clone();
    said["status"] = "SUCCEEDED".into();
    worker.post("/v1/callbacks/heartbeat", &said).ok();
    worker.post("/v1/callbacks/result", &said).ok();
    let reader = house.caller(&["read"], Some("t1"));
    reader.post("/v1/claim", &claim).refused(403, "SCOPE_MISSING");
    let bound = json!({"scopes": ["admin"], "tenant_id": "t1"});
    admin.post("/v1/tokens", &bound).refused(400, "TOKEN_INVALID");
    house.close();
}
