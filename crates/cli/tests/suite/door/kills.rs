//! `kill -9` of the server under load, again and again. The clients are processes of their own that send again
//! what was not answered; whatever was answered with success must hold afterwards, and for ever.

use std::collections::HashMap;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;
use sprag::stores::Looking;
use sprag_engine::store::AttemptView;
use sprag_kernel::JobState;

use super::{House, PATIENCE, Running};

const PROTOCOL: &str = "
protocol_id: pages.v1
request_types: [PAGES]
steps:
  - step_id: read
    service: reader
    timeouts: {lease: 2s}
    retry: {max_attempts: 10, backoff: [10ms]}
  - step_id: print
    service: printer
    timeouts: {lease: 2s}
    retry: {max_attempts: 10, backoff: [10ms]}
";
const WAITS: &str = "
protocol_id: waits.v1
request_types: [WAITS]
steps:
  - {step_id: wait, wait: {signal: go}}
";
const KILLS: u32 = 50;
/// How much the clients must have heard between two kills: each kill finds them at work.
const HEARD_BYTES: u64 = 1_000;
const CLIENTS: [(&str, &str); 9] = [
    ("submit", "s1"),
    ("submit", "s2"),
    ("work", "w1"),
    ("work", "w2"),
    ("work", "w3"),
    ("request", "r1"),
    ("bulk", "b1"),
    ("signal", "g1"),
    ("keep", "k1"),
];

fn client(house: &House, role: &str, name: &str) -> Running {
    let program = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/door/client.py");
    let token = fs::read_to_string(house.data().join("admin.token")).unwrap();
    let mut python = Command::new("python3");
    python.arg(program).args([role, name, &house.port.to_string(), token.trim()]);
    Running::start(python.arg(house.folder.path()))
}

/// How much the clients have heard so far.
fn heard(house: &House) -> u64 {
    let length = |(_, name): &(&str, &str)| {
        fs::metadata(house.file(&format!("said.{name}"))).map_or(0, |file| file.len())
    };
    CLIENTS.iter().map(length).sum()
}

fn hear_more(house: &House) {
    let (begun, before) = (Instant::now(), heard(house));
    while heard(house) < before + HEARD_BYTES {
        assert!(begun.elapsed() < PATIENCE, "the clients are not answered");
        std::thread::sleep(Duration::from_millis(2));
    }
}

#[test]
fn no_answer_is_forgotten_by_a_server_that_is_killed_fifty_times_under_load() {
    kill_under_load(House::open(), KILLS);
}

/// Kills the server so often while the clients call it, and asks whether everything that they heard still holds.
pub(super) fn kill_under_load(mut house: House, kills: u32) {
    house.json(&["protocol", "put", &house.write("pages.yaml", PROTOCOL)], "");
    house.json(&["protocol", "put", &house.write("waits.yaml", WAITS)], "");
    let clients: Vec<_> = CLIENTS.iter().map(|(role, name)| client(&house, role, name)).collect();
    for kill in 0..kills {
        hear_more(&house);
        // Not always right after an answer.
        std::thread::sleep(Duration::from_millis(u64::from(kill * 7 % 40)));
        house.server.take().unwrap().kill();
        house.serve();
    }
    hear_more(&house);
    fs::write(house.file("over"), "").unwrap();
    for client in clients {
        assert!(client.end().success(), "a client failed");
    }
    let said = said(&house);
    let wrong: Vec<_> = said.iter().filter(|line| line["kind"] == "wrong").collect();
    assert!(wrong.is_empty(), "{wrong:#?}");
    still_holds(&house, &said, kills / 5);
    house.close();
}

fn said(house: &House) -> Vec<Value> {
    let read = |(_, name): &(&str, &str)| fs::read_to_string(house.file(&format!("said.{name}")));
    let logs: Vec<String> = CLIENTS.iter().map(|client| read(client).unwrap()).collect();
    logs.iter()
        .flat_map(|log| log.lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

/// Asks for every answer of 2xx whether the store still says the same.
fn still_holds(house: &House, said: &[Value], least: u32) {
    let store = Looking::open(&house.store()).unwrap();
    let mut known: HashMap<String, (JobState, Vec<AttemptView>)> = HashMap::new();
    let mut job = |line: &Value| {
        let job_id = line["jobId"].as_str().unwrap();
        let found = known.entry(job_id.to_owned()).or_insert_with(|| {
            let job_id = job_id.parse().unwrap();
            let job = store.job(job_id).unwrap().unwrap_or_else(|| panic!("forgotten: {line}"));
            (job.row.state, store.attempts(job_id).unwrap())
        });
        found.clone()
    };
    let mut counts: HashMap<&str, u32> = HashMap::new();
    let mut keys: Vec<(&Value, String)> = Vec::new();
    for line in said {
        let kind = line["kind"].as_str().unwrap();
        *counts.entry(kind).or_default() += 1;
        if matches!(kind, "schedule" | "token") {
            continue;
        }
        let (state, attempts) = job(line);
        match kind {
            "submit" => keys.push((line, super::keyed("PAGES", line["key"].as_str().unwrap()))),
            "cancel" => {
                let before = line["state"].as_str().unwrap();
                let stays = before == "SUCCEEDED" || before == "FAILED_FINAL";
                let is_cancelled = matches!(state, JobState::Cancelling | JobState::Cancelled);
                assert!(stays || is_cancelled, "{state}: {line}");
            }
            "result" => {
                let told = |a: &&AttemptView| {
                    line["stepId"] == a.step_id.as_str() && line["attempt_no"] == a.key.attempt_no
                };
                let attempt = attempts.iter().find(told).unwrap_or_else(|| panic!("{line}"));
                let output = attempt
                    .output
                    .as_deref()
                    .map_or(Value::Null, |text| serde_json::from_str(text).unwrap());
                assert_eq!(output, line["output"], "another result than the one that was heard");
            }
            "signal" => {
                let signals =
                    store.signals(line["jobId"].as_str().unwrap().parse().unwrap()).unwrap();
                let said: Vec<(&str, Value)> = signals
                    .iter()
                    .map(|view| &view.signal)
                    .map(|s| (s.signal_id.as_str(), serde_json::from_str(&s.payload).unwrap()))
                    .collect();
                let (id, payload) = (line["signal_id"].as_str().unwrap(), line["payload"].clone());
                assert_eq!(said, [(id, payload)], "{line}");
            }
            "confirm" => {}
            other => panic!("{other}"),
        }
    }
    for kind in ["submit", "cancel", "result", "confirm", "signal", "schedule", "token"] {
        assert!(counts.get(kind).is_some_and(|count| *count >= least), "{counts:?}");
    }
    for kind in ["schedule", "token"] {
        kept(house, said, kind);
    }
    let lines: Vec<_> = keys.iter().map(|(_, envelope)| envelope.as_str()).collect();
    let again = house.sprag(&["submit", "--bulk", "-", "--json"], &lines.join("\n"));
    assert_eq!(again.code, 0, "{}", again.stderr);
    for ((line, _), again) in keys.iter().zip(again.stdout.lines()) {
        let again: Value = serde_json::from_str(again).unwrap();
        assert_eq!((&again["jobId"], &again["created"]), (&line["jobId"], &false.into()), "{line}");
    }
    assert_eq!(again.stdout.lines().count(), keys.len());
}

/// Whether schedules and tokens are there, or gone, as was answered.
fn kept(house: &House, said: &[Value], kind: &str) {
    let list = house.json(&[kind, "list"], "");
    let name = if kind == "token" { "token_id" } else { "schedule_id" };
    let is_there = |shown: &&Value| shown["revoked_at"].is_null();
    let there: Vec<&Value> = list["items"]
        .as_array()
        .unwrap()
        .iter()
        .filter(is_there)
        .map(|shown| &shown[name])
        .collect();
    for line in said.iter().filter(|line| line["kind"] == kind) {
        let id = if kind == "token" { &line["token_id"] } else { &line["name"] };
        assert_eq!(there.contains(&id), line["goes"] == false, "{line}");
    }
}
