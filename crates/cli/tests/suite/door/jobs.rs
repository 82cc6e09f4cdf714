//! Jobs of a server, looked at and acted on from the command line.

use std::fs;

use super::{House, PATIENCE, Running, envelope, keyed, single};
use crate::sprag;

#[test]
fn every_operation_of_the_server_has_a_command() {
    let house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let kept = house.json(&["protocol", "get", "reader.v1"], "");
    assert_eq!(kept["steps"][0]["step_id"], "only");
    let printed = house.sprag(&["protocol", "get", "reader.v1"], "").stdout;
    assert_eq!(
        sprag(&["protocol", "check", &house.write("kept.json", &printed), "--json"], "").json()["nodes"]
            [0]["step_id"],
        "only"
    );

    let request = r#"{"tenant_id": "t1", "request_type": "READER", "envelope": {"input_ref": "in",
        "output_ref": "out", "payload": {}, "schema_version": "1"}}"#;
    let made = house.json(&["request", "new", "-"], request);
    let id = made["requestId"].as_str().unwrap();
    let listed = house.json(&["request", "list", "--type", "READER", "--limit", "5"], "");
    assert_eq!(listed["items"][0]["requestId"], *id);
    assert_eq!(house.sprag(&["request", "list", "--type", "OTHER"], "").stdout, "");
    let stale = house.sprag(&["request", "draft", id, "--if-match", "7", "--json"], "");
    let error = stale.error();
    assert_eq!(error["error_code"], "JOB_VERSION_CONFLICT");
    assert_eq!(
        error["fields"],
        serde_json::json!({"expected": 7, "actual": 1}),
        "as the server said"
    );
    house.json(&["request", "draft", id, "--if-match", "1"], "");
    let ran = house.json(&["request", "confirm", id, "--if-match", "2"], "");
    let told = house.sprag(&["request", "events", id], "").stdout;
    assert_eq!(told.lines().count(), 4, "{told}");

    let job_id = ran["jobId"].as_str().unwrap();
    assert_eq!(house.json(&["job", "signals", job_id], "")["items"], serde_json::json!([]));
    let at = ran["updated_at"].as_u64().unwrap();
    let count = |flag: &str, at: u64| {
        let list = house.json(&["job", "list", flag, &at.to_string()], "");
        list["items"].as_array().unwrap().len()
    };
    assert_eq!((count("--from", at + 600_000), count("--to", at + 600_000)), (0, 1));
    house.sprag(&["job", "cancel", job_id, "--if-match", "99"], "").refused("JOB_VERSION_CONFLICT");
    house.json(&["job", "cancel", job_id], "");
    house.sprag(&["job", "rerun", job_id, "--if-match", "99"], "").refused("JOB_VERSION_CONFLICT");

    let first = house.json(&["events", "--limit", "1"], "");
    assert_eq!((&first["jobId"], &first["type"]), (&job_id.into(), &"created".into()));
    let after = first["id"].as_str().unwrap();
    let second = house.json(&["events", "--limit", "1", "--after", after], "");
    assert_eq!(second["n"], 2, "{second}");
    house.close();
}

#[test]
fn a_job_of_a_server_is_listed_shown_explained_and_cancelled() {
    let house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let job = house.json(&["submit", "-"], &envelope("READER", 1));
    let id = job["jobId"].as_str().unwrap();
    let listed = house.json(&["job", "list", "--state", "QUEUED", "--type", "READER"], "");
    assert_eq!(listed["items"][0]["jobId"], id);
    assert!(
        house.json(&["job", "list", "--tenant", "nobody"], "")["items"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    let line = house.sprag(&["job", "list"], "").stdout;
    assert_eq!(line, format!("{id}  QUEUED  t1  reader.v1\n"));
    let explained = house.sprag(&["job", "explain", id], "").stdout;
    assert!(explained.contains("step only of service reader is in the queue"), "{explained}");
    let (at_server, in_store) = (house.json(&["job", "show", id], ""), house.job(id));
    assert_eq!(at_server["steps"][0]["ledger"], in_store["steps"][0]["ledger"]);
    assert_eq!(at_server["idempotency_hash"], in_store["idempotency_hash"]);
    let told = house.json(&["job", "cancel", id], "");
    assert!(["CANCELLING", "CANCELLED"].contains(&told["state"].as_str().unwrap()), "{told}");
    let worker = house.worker("reader", "cat");
    let followed = house.sprag(&["job", "events", id, "--follow"], "").stdout;
    assert!(followed.lines().last().unwrap().contains("> CANCELLED"), "{followed}");
    assert_eq!(house.json(&["job", "rerun", id], "")["created"], true);
    assert_eq!(house.sprag(&["job", "output", id, "only"], "").code, 2, "it needs a store");
    house
        .sprag(&["job", "show", "01a1e170-a091-711c-9b51-cbe48e0b906f"], "")
        .refused("JOB_UNKNOWN");
    assert!(worker.stop().success());
    let paused = house.sprag(&["service", "pause", "reader"], "").stdout;
    assert_eq!(paused, "reader  paused\n");
    assert!(house.sprag(&["service", "list"], "").stdout.contains("paused"), "at the server");
    house.sprag(&["service", "resume", "reader"], "");
    house.close();
}

#[test]
fn a_job_is_followed_by_another_process_through_a_killed_server() {
    let mut house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let job = house.json(&["submit", "-"], &envelope("READER", 2));
    let id = job["jobId"].as_str().unwrap();
    let mut follower = house.command(&["job", "events", id, "--follow", "--json"]);
    let told = fs::File::create(house.file("followed")).unwrap();
    let follower = Running::start(follower.stdout(told));
    house.server.take().unwrap().kill();
    house.serve();
    let worker = house.worker("reader", "cat");
    assert!(house.sprag(&["job", "watch", id, "--timeout", "60"], "").stdout.contains("SUCCEEDED"));
    assert!(follower.end().success());
    let told = fs::read_to_string(house.file("followed")).unwrap();
    let numbers: Vec<u64> = told
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["n"].as_u64().unwrap())
        .collect();
    assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<_>>(), "each once, in order");
    assert!(worker.stop().success());
    house.close();
}

#[test]
fn waiting_ends_with_the_time_given() {
    let house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("nobody"))], "");
    let waited = house.sprag(&["submit", "-", "--wait", "--timeout", "1"], &envelope("NOBODY", 1));
    waited.refused("WAIT_TIMEOUT");
    house.close();
}

#[test]
fn many_envelopes_are_submitted_line_by_line_and_the_wrong_ones_are_named() {
    let house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let mut lines: Vec<String> = (0..2_500).map(|n| keyed("READER", &format!("k{n}"))).collect();
    let file = house.write("all.ndjson", &lines.join("\n"));
    let first = house.sprag(&["submit", "--bulk", &file, "--json"], "");
    assert_eq!((first.code, first.stdout.lines().count()), (0, 2_500), "{}", first.stderr);
    assert!(first.stdout.lines().all(|line| line.contains("\"created\":true")));
    lines[1] = envelope("NOTHING", 1);
    lines[2] = "{".to_owned();
    let again = house.sprag(&["submit", "--bulk", "-"], &lines.join("\n"));
    assert_eq!(again.code, 1);
    assert!(again.stderr.starts_with("SUBMITS_REFUSED"), "{}", again.stderr);
    let told: Vec<&str> = again.stdout.lines().collect();
    assert!(
        told[1].starts_with("line 2: ") && told[2].starts_with("line 3: JSON_INVALID"),
        "{told:?}"
    );
    let id = |line: &str| serde_json::from_str::<serde_json::Value>(line).unwrap()["jobId"].clone();
    let known = id(first.stdout.lines().last().unwrap());
    assert!(told[2_499].starts_with(known.as_str().unwrap()), "the same line is the same job");
    house.close();
}

#[test]
fn shells_learn_the_command_line() {
    for (shell, part) in
        [("bash", "_sprag"), ("zsh", "#compdef sprag"), ("fish", "complete -c sprag")]
    {
        let said = sprag(&["completions", shell], "");
        assert!(said.code == 0 && said.stdout.contains(part), "{shell}");
        assert!(said.stdout.contains("submit"), "{shell}");
    }
}

#[test]
fn a_finished_job_is_gone_after_its_time_and_its_key_is_still_known() {
    let mut house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let worker = house.worker("reader", "cat");
    let done = house.json(&["submit", "-", "--wait", "--key", "k"], &envelope("READER", 1));
    let job_id = done["jobId"].as_str().unwrap();
    assert!(worker.stop().success());
    assert!(house.server.take().unwrap().stop().success());
    house.write("sprag.yaml", "retention: 1s\nkey_retention: 30d\n");
    house.config = Some(house.file("sprag.yaml"));
    house.serve();
    // The newest job stays, for the sake of those who read events.
    house.json(&["submit", "-"], &envelope("READER", 2));
    let begun = std::time::Instant::now();
    while house.sprag(&["job", "show", job_id], "").code == 0 {
        assert!(begun.elapsed() < PATIENCE, "it is kept for ever");
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    house.sprag(&["job", "show", job_id], "").refused("JOB_UNKNOWN");
    let again = house.json(&["submit", "-", "--key", "k"], &envelope("READER", 1));
    assert_eq!((&again["jobId"], &again["created"]), (&done["jobId"], &false.into()));
    house.close();
}

#[test]
fn a_larger_envelope_and_a_larger_output_are_taken_where_the_server_is_told_so() {
    let mut house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let mut large: serde_json::Value = serde_json::from_str(&envelope("READER", 1)).unwrap();
    large["payload"]["text"] = "x".repeat(1 << 20).into();
    let large = large.to_string();
    let refused = house.sprag(&["submit", "-", "--json"], &large);
    let error = refused.error();
    assert_eq!(error["error_code"], "INPUT_TOO_LARGE");
    assert_eq!(error["fields"]["limit_bytes"], 1 << 20);
    assert!(house.server.take().unwrap().stop().success());
    house.write("sprag.yaml", "max_envelope_bytes: 3000000\nmax_output_bytes: 3000000\n");
    house.config = Some(house.file("sprag.yaml"));
    house.serve();
    // Its output is the directive, with the payload in it.
    let worker = house.worker("reader", "cat");
    let done = house.json(&["submit", "-", "--wait"], &large);
    assert_eq!(done["state"], "SUCCEEDED", "{}", done["error_message"]);
    assert!(worker.stop().success());
    house.close();
}
