//! Jobs over HTTP: submitted once, listed in parts, cancelled once, told as they happen.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::json;

use super::house::{Caller, House, at_once, envelope};

#[test]
fn sixteen_identical_submits_are_one_job() {
    let house = House::open();
    let caller = house.caller(&["submit"], Some("t1"));
    let answers = at_once(16, move |_| caller.post("/v1/commands", &envelope("t1", 1)));
    let ids: std::collections::BTreeSet<String> =
        answers.iter().map(|a| a.ok()["jobId"].to_string()).collect();
    assert_eq!(ids.len(), 1);
    assert!(answers.iter().all(|answer| answer.status == 202));
    let created = answers.iter().filter(|answer| answer.json()["created"] == true).count();
    assert_eq!(created, 1);
    house.close();
}

#[test]
fn lines_are_answered_line_by_line_and_a_bad_one_harms_no_other() {
    let house = House::open();
    let caller = house.caller(&["submit", "read"], Some("t1"));
    let mut body: Vec<String> = (0..1_200).map(|n| envelope("t1", n).to_string()).collect();
    body[7] = "{".to_owned();
    body[9] = envelope("t2", 9).to_string();
    let kind = [("content-type", "application/x-ndjson")];
    let answer = caller.call_with("POST", "/v1/commands", &kind, body.join("\n"));
    assert_eq!((answer.status, answer.kind.as_str()), (200, "application/x-ndjson"));
    let lines: Vec<serde_json::Value> =
        answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 1_200);
    assert_eq!(lines[7]["error_code"], "JSON_INVALID");
    assert_eq!(lines[9]["error_code"], "TENANT_MISMATCH");
    assert_eq!(lines.iter().filter(|line| line["created"] == true).count(), 1_198);
    let again = caller.call_with("POST", "/v1/commands", &kind, body.join("\n"));
    let again: Vec<serde_json::Value> =
        again.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(again.iter().zip(&lines).all(|(again, first)| again["jobId"] == first["jobId"]));
    house.close();
}

#[test]
fn lines_above_the_rate_of_a_tenant_are_refused_and_may_be_sent_again() {
    let house = House::open_with(|settings| (settings.rate, settings.burst) = (1, 100));
    let caller = house.caller(&["submit"], Some("t1"));
    let body: Vec<String> = (0..300).map(|n| envelope("t1", n).to_string()).collect();
    let kind = [("content-type", "application/x-ndjson")];
    let answer = caller.call_with("POST", "/v1/commands", &kind, body.join("\n"));
    assert_eq!(answer.status, 200);
    let lines: Vec<serde_json::Value> =
        answer.text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines.len(), 300);
    let created = lines.iter().filter(|line| line["created"] == true).count();
    let limited = lines.iter().filter(|line| line["error_code"] == "RATE_LIMITED").count();
    assert!((100..200).contains(&created), "{created}");
    assert_eq!(created + limited, 300);
    assert!(lines[..100].iter().all(|line| line["created"] == true), "the first ones pass");
    house.close();
}

#[test]
fn a_protocol_whose_hook_nobody_here_has_is_refused() {
    let house = House::open();
    let protocol = json!({
        "protocol_id": "told.v1", "request_types": ["TOLD"], "on_end": ["tell-the-archive"],
        "steps": [{"step_id": "only", "service": "reader"}],
    });
    let refused = house.admin().call("PUT", "/v1/protocols/told.v1", protocol.to_string());
    refused.refused(422, "HOOK_UNKNOWN");
    assert_eq!(refused.json()["fields"]["hook"], "tell-the-archive");
    house.admin().get("/v1/protocols/told.v1").refused(404, "PROTOCOL_NOT_FOUND");
    house.close();
}

#[test]
fn a_list_is_read_in_parts_and_filtered() {
    let house = House::open();
    let admin = house.admin();
    for n in 0..5 {
        let mut envelope = envelope(if n < 4 { "t1" } else { "t2" }, n);
        envelope["correlation_id"] = format!("order-{n}").into();
        admin.post("/v1/commands", &envelope).ok();
    }
    let mut seen = Vec::new();
    let mut path = "/v1/jobs?limit=2&tenant=t1".to_owned();
    loop {
        let part = admin.get(&path).ok();
        seen.extend(part["items"].as_array().unwrap().iter().map(|j| j["correlation_id"].clone()));
        let Some(next) = part["next"].as_str() else { break };
        path = format!("/v1/jobs?limit=2&tenant=t1&cursor={next}");
    }
    assert_eq!(seen, ["order-3", "order-2", "order-1", "order-0"]);
    let count = |query: &str| {
        admin.get(&format!("/v1/jobs?{query}")).ok()["items"].as_array().unwrap().len()
    };
    assert_eq!(count("text=order-4"), 1);
    assert_eq!(count("type=OTHER"), 0);
    assert_eq!(count("state=QUEUED&type=PAGES"), 5);
    assert_eq!(count("from=99999999999999"), 0);
    assert_eq!(count("to=99999999999999"), 5);
    assert_eq!(count("from=18446744073709551615"), 0, "later than any store can say");
    assert_eq!(count("to=18446744073709551615"), 5);
    admin.get("/v1/jobs?text=%00").refused(400, "CALL_INVALID");
    admin.get("/v1/jobs?stat=QUEUED").refused(400, "CALL_INVALID");
    admin.get("/v1/jobs?limit=0").refused(400, "CALL_INVALID");
    let own = house.caller(&["read"], Some("t2")).get("/v1/jobs").ok();
    assert_eq!(own["items"].as_array().unwrap().len(), 1, "a token sees its own tenant");
    house.close();
}

#[test]
fn a_job_has_an_etag_and_two_cancels_are_one() {
    let house = House::open();
    let admin = house.admin();
    let id =
        admin.post("/v1/commands", &envelope("t1", 1)).ok()["jobId"].as_str().unwrap().to_owned();
    let shown = admin.get(&format!("/v1/jobs/{id}"));
    assert_eq!(shown.etag.as_deref(), Some("\"1\""));
    let path = format!("/v1/jobs/{id}/cancel");
    let stale = admin.call_with("POST", &path, &[("if-match", "\"9\"")], "");
    stale.refused(409, "JOB_VERSION_CONFLICT");
    admin.call_with("POST", &path, &[("if-match", "9")], "").refused(400, "CALL_INVALID");
    let caller = admin.clone();
    let answers = at_once(4, move |_| caller.post(&path, &json!({})));
    assert!(answers.iter().all(|answer| answer.status == 202), "{answers:?}");
    let events = admin.get(&format!("/v1/jobs/{id}/events")).ok();
    let cancels = |event: &&serde_json::Value| event["to"] == "CANCELLING";
    assert_eq!(events["items"].as_array().unwrap().iter().filter(cancels).count(), 1, "{events}");
    house.close();
}

/// The lines of a stream.
fn lines(
    caller: &Caller,
    path: &str,
    last: Option<&str>,
) -> impl Iterator<Item = std::io::Result<String>> + use<> {
    let address = caller.url.strip_prefix("http://").unwrap();
    let mut socket = TcpStream::connect(address).unwrap();
    let token = caller.token.as_ref().unwrap();
    let last = last.map_or(String::new(), |last| format!("last-event-id: {last}\r\n"));
    write!(
        socket,
        "GET {path} HTTP/1.1\r\nhost: {address}\r\nauthorization: Bearer {token}\r\n{last}\r\n"
    )
    .unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    BufReader::new(socket).lines()
}

/// The `id` and `data` lines of a stream, until so many events were seen.
pub(crate) fn stream(
    caller: &Caller,
    path: &str,
    last: Option<&str>,
    count: usize,
) -> Vec<(String, serde_json::Value)> {
    let mut events = Vec::new();
    let mut id = String::new();
    for line in lines(caller, path, last) {
        let line = line.unwrap();
        if let Some(cursor) = line.strip_prefix("id: ") {
            id = cursor.to_owned();
        } else if let Some(data) = line.strip_prefix("data: ") {
            events.push((std::mem::take(&mut id), serde_json::from_str(data).unwrap()));
            if events.len() == count {
                break;
            }
        }
    }
    events
}

#[test]
fn a_stream_ends_when_its_token_is_taken_back_or_expires() {
    let house = House::open();
    let admin = house.admin();
    admin.post("/v1/commands", &envelope("t1", 1)).ok();
    for (lifetime_ms, is_revoked) in [(None, true), (Some(1_000), false)] {
        let made =
            admin.post("/v1/tokens", &json!({"scopes": ["read"], "lifetime_ms": lifetime_ms})).ok();
        let reader = Caller::new(&house.url, made["token"].as_str());
        let mut lines = lines(&reader, "/v1/events", None);
        let has_event = lines.by_ref().any(|line| line.unwrap().starts_with("data: "));
        assert!(has_event, "it reads while the token is good");
        if is_revoked {
            admin.call("DELETE", &format!("/v1/tokens/{}", made["token_id"].as_str().unwrap()), "");
        }
        // Ends, before the socket gives up waiting.
        lines.for_each(|line| drop(line.unwrap()));
        reader.get("/v1/jobs").refused(401, "UNAUTHENTICATED");
    }
    house.close();
}

#[test]
fn a_stream_that_is_resumed_misses_nothing_and_shows_no_other_tenant() {
    let house = House::open();
    let admin = house.admin();
    let reader = house.caller(&["read"], Some("t1"));
    for n in 0..6 {
        admin.post("/v1/commands", &envelope(if n % 2 == 0 { "t1" } else { "t2" }, n)).ok();
    }
    let all = stream(&admin, "/v1/events", None, 6);
    let first = stream(&admin, "/v1/events", None, 2);
    let rest = stream(&admin, "/v1/events", Some(&first[1].0), 4);
    assert_eq!([first, rest].concat(), all);
    let own = stream(&reader, "/v1/events", None, 3);
    assert!(own.iter().all(|(_, event)| event["tenant_id"] == "t1"), "{own:?}");
    let other = all.iter().find(|(_, event)| event["tenant_id"] == "t2").unwrap();
    let job = other.1["jobId"].as_str().unwrap();
    reader.get(&format!("/v1/events?job={job}")).refused(404, "JOB_UNKNOWN");
    admin.get("/v1/events?after=nonsense").refused(400, "CURSOR_INVALID");
    let one = stream(&admin, &format!("/v1/events?job={job}"), None, 1);
    assert_eq!(one[0].1["type"], "created");
    house.close();
}
