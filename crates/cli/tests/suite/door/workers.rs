//! Workers of all kinds: commands that end in every way, and the one of the manual.

use std::io::BufRead;
use std::process::Command;

use rustix::process::Signal;

use super::{House, Running, appears, envelope, program, single};

#[test]
fn the_python_worker_of_the_manual_works() {
    let house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let token = house.sprag(&["token", "create", "--scope", "work"], "").stdout;
    let program = house.write("worker.py", program("def run("));
    let mut python = Command::new("python3");
    python.arg(program).env("SPRAG_SERVER", house.url()).env("SERVICE", "reader");
    let python = Running::start(python.env("SPRAG_TOKEN", token.trim()));
    let job = house.json(&["submit", "-", "--wait"], &envelope("READER", 21));
    assert_eq!(job["state"], "SUCCEEDED");
    let shown = house.job(job["jobId"].as_str().unwrap());
    assert!(shown["steps"].to_string().contains("42"), "{shown}");
    python.kill();
    house.close();
}

#[test]
fn an_exit_code_says_whether_another_attempt_may_help() {
    let house = House::open();
    for service in ["fatal", "shaky", "babbler"] {
        house.json(&["protocol", "put", &house.write("p.yaml", &single(service))], "");
    }
    let workers = [
        house.worker("fatal", "echo no such page >&2; exit 65"),
        house.worker("shaky", "test -e tried && exec echo '\"fine\"'; touch tried; exit 1"),
        house.worker("babbler", "echo this is no JSON"),
    ];
    let wait = |request_type: &str| {
        house.sprag(&["submit", "-", "--wait", "--json"], &envelope(request_type, 1))
    };
    let fatal = wait("FATAL");
    assert_eq!((fatal.code, &fatal.error()["error_code"]), (1, &"JOB_FAILED".into()));
    let job = fatal.json();
    assert_eq!(
        (&job["state"], &job["attempts_total"]),
        (&"FAILED_FINAL".into(), &1.into()),
        "{job}"
    );
    assert_eq!(job["error_code"], "EXIT_65");
    assert!(job["error_message"].as_str().unwrap().contains("no such page"), "{job}");
    let shaky = wait("SHAKY");
    assert_eq!((shaky.code, &shaky.json()["attempts_total"]), (0, &2.into()), "{}", shaky.stderr);
    assert_eq!(wait("BABBLER").json()["error_code"], "OUTPUT_INVALID");
    for worker in workers {
        assert!(worker.stop().success());
    }
    house.close();
}

#[test]
fn a_command_that_outlasts_its_lease_keeps_it_and_is_waited_for_by_its_worker() {
    let house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("slow"))], "");
    let worker = house.worker("slow", "touch begun; sleep 3; echo 1");
    let job = house.json(&["submit", "-"], &envelope("SLOW", 1));
    appears(&house.file("begun"));
    assert!(worker.stop().success(), "it ends after its command");
    let job = house.job(job["jobId"].as_str().unwrap());
    assert_eq!((&job["state"], &job["attempts_total"]), (&"SUCCEEDED".into(), &1.into()), "{job}");
    house.close();
}

#[test]
fn a_worker_in_a_hurry_ends_its_commands_and_gives_their_steps_back() {
    let house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("stuck"))], "");
    let hurried = house.worker("stuck", "touch begun; sleep 600");
    let submitted = house.json(&["submit", "-"], &envelope("STUCK", 1));
    appears(&house.file("begun"));
    hurried.signal(Signal::TERM);
    // Signals that come at the same time are one.
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert!(hurried.stop().success());
    let other = house.worker("stuck", "echo 1");
    let job = house.json(&["submit", "-", "--wait"], &envelope("STUCK", 1));
    assert_eq!((&job["jobId"], &job["attempts_total"]), (&submitted["jobId"], &2.into()), "{job}");
    other.kill();
    house.close();
}

#[test]
fn a_request_is_drafted_confirmed_and_cancelled_and_its_command_hears_of_it() {
    let house = House::open();
    house.json(&["protocol", "put", &house.write("p.yaml", &single("long"))], "");
    let new = serde_json::json!({
        "tenant_id": "t1", "request_type": "LONG", "inputs": {"fingerprint": "a"},
        "requirement": "read it", "envelope": {
            "input_ref": "in", "output_ref": "out", "payload": {}, "schema_version": "1"},
    });
    let made = house.json(&["request", "new", "-"], &new.to_string());
    let id = made["requestId"].as_str().unwrap().to_owned();
    assert_eq!(house.json(&["request", "draft", &id], "")["status"], "draft_ready");
    let shown = house.sprag(&["request", "show", &id], "").stdout;
    assert!(shown.contains("draft_ready") && shown.contains("by long"), "{shown}");
    let rests = house.json(&["request", "confirm", &id, "--no-run"], "");
    assert_eq!(rests["status"], "confirmed");
    house.json(&["request", "run", &id], "");
    let trap = "trap 'touch heard; exit 1' TERM; touch begun; while :; do sleep 0.05; done";
    let worker = house.worker("long", trap);
    appears(&house.file("begun"));
    house.json(&["request", "cancel", &id], "");
    appears(&house.file("heard"));
    assert!(worker.stop().success());
    let job_id = house.json(&["request", "show", &id], "")["jobId"].as_str().unwrap().to_owned();
    assert_eq!(house.job(&job_id)["state"], "CANCELLED");
    house.close();
}

#[test]
fn inputs_too_large_for_a_directive_are_read_by_the_worker_and_by_that_of_the_manual() {
    let house = House::open();
    let protocol = "protocol_id: wide.v1\nrequest_types: [WIDE]\nsteps:\n\
        - {step_id: each, service: wide, for_each: '[1, 2, 3, 4, 5, 6]'}\n\
        - {step_id: command, service: command}\n\
        - {step_id: manual, service: manual}\n";
    house.json(&["protocol", "put", &house.write("wide.yaml", protocol)], "");
    house.write("wide.py", "print('\"' + 'x' * 900_000 + '\"')");
    house.write(
        "sum.py",
        "import json, sys\nprint(sum(map(len, json.load(sys.stdin)['inputs']['each'])))",
    );
    house.write("worker.py", program("def run("));
    house.write("pages.py", program("def read_input("));
    let manual = house.write(
        "manual.py",
        "from worker import run\nfrom pages import read_input\n\
         run(lambda directive: sum(map(len, read_input(directive, 'each'))))",
    );
    let token = house.sprag(&["token", "create", "--scope", "work"], "").stdout;
    let mut python = Command::new("python3");
    python.arg(manual).env("SPRAG_SERVER", house.url()).env("SERVICE", "manual");
    let python = Running::start(python.env("SPRAG_TOKEN", token.trim()));
    let workers =
        [house.worker("wide", "python3 wide.py"), house.worker("command", "python3 sum.py")];
    let job = house.json(&["submit", "-", "--wait"], &envelope("WIDE", 1));
    assert_eq!(job["state"], "SUCCEEDED");
    let shown = house.job(job["jobId"].as_str().unwrap());
    let output = |step: &str| {
        let steps = shown["steps"].as_array().unwrap();
        steps.iter().find(|shown| shown["stepId"] == step).unwrap()["output"].clone()
    };
    assert_eq!((output("command"), output("manual")), (5_400_000.into(), 5_400_000.into()));
    python.kill();
    for worker in workers {
        assert!(worker.stop().success());
    }
    house.close();
}

#[test]
fn a_worker_says_that_its_server_is_away_and_when_it_is_back() {
    let mut house = House::open();
    house.server.take().unwrap().kill();
    let mut worker = house.command(&["worker", "--service", "reader", "--exec", "cat"]);
    let mut worker = Running::start(worker.stderr(std::process::Stdio::piped()));
    let mut said = std::io::BufReader::new(worker.0.stderr.take().unwrap()).lines();
    let first = said.next().unwrap().unwrap();
    assert!(first.starts_with("SERVER_UNREACHABLE"), "{first}");
    house.serve();
    let last = said.map(Result::unwrap).find(|line| line.contains("answers again"));
    assert!(last.is_some());
    assert!(worker.stop().success());
    house.close();
}
