//! A property-based fuzzer from outside (Schemathesis) on the real server: whatever the OpenAPI document allows,
//! and much that it does not, is answered as the document says, and never with an error of the server.

use std::path::PathBuf;
use std::process::Command;

use super::{House, envelope, single};

const CHECKS: [&str; 7] = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "unsupported_method",
    "ignored_auth",
];
/// Calls per operation and phase.
const EXAMPLES: &str = "20";
const SEED: &str = "7";
/// Fuzzes again and again for so many seconds instead of once; `scripts/long` sets it.
const SECONDS: &str = "SPRAG_FUZZ_SECONDS";

/// The fuzzer, where `scripts/test` has put it. Without it nothing is known, so that is a failure.
fn fuzzer() -> PathBuf {
    let program = concat!(env!("CARGO_TARGET_TMPDIR"), "/../fuzzer/bin/schemathesis");
    let program = PathBuf::from(program);
    assert!(
        program.exists(),
        "the fuzzer is not at {}: run scripts/test, which installs it there from PyPI",
        program.display()
    );
    program
}

/// A job that is taken, and the names that its worker would report with.
fn known(house: &House) -> [(&'static str, String); 3] {
    house.json(&["protocol", "put", &house.write("p.yaml", &single("reader"))], "");
    let job = house.json(&["submit", "-"], &envelope("READER", 1));
    let new = r#"{"tenant_id": "t1", "request_type": "READER", "inputs": {"fingerprint": "a"}}"#;
    let request = house.json(&["request", "new", "-"], new);
    let token = std::fs::read_to_string(house.data().join("admin.token")).unwrap();
    let client = sprag::client::Client::at(&house.url(), token.trim());
    let claim = br#"{"claim_id": "fuzz", "services": ["reader"], "wait_s": 20}"#;
    let claimed = client.call("POST", "/v1/claim", claim).unwrap();
    let text = |field: &str| claimed["directives"][0][field].as_str().unwrap().to_owned();
    let callback = [text("jobId"), text("lease_token"), text("lease_id")].join(" ");
    [
        ("KNOWN_JOB", job["jobId"].as_str().unwrap().to_owned()),
        ("KNOWN_REQUEST", request["requestId"].as_str().unwrap().to_owned()),
        ("KNOWN_CALLBACK", callback),
    ]
}

#[test]
fn a_fuzzer_finds_no_server_error_and_no_answer_that_the_document_does_not_have() {
    fuzz(House::open());
}

#[test]
fn nor_does_it_on_postgres() {
    let (house, _cluster) = super::postgres::house();
    fuzz(house);
}

/// The number on the line of the fuzzer's summary that this finds.
fn number(said: &str, find: impl Fn(&str) -> Option<&str>) -> usize {
    let found = said.lines().find_map(|line| find(line.trim()));
    found.and_then(|number| number.trim().parse().ok()).unwrap_or_else(|| panic!("{said}"))
}

/// How many operations the document has.
fn operations() -> usize {
    let document = serde_json::to_value(sprag_server::app::openapi()).unwrap();
    let paths = document["paths"].as_object().unwrap().values();
    let methods = ["get", "put", "post", "delete"];
    paths.map(|path| methods.iter().filter(|method| path[**method].is_object()).count()).sum()
}

fn fuzz(house: House) {
    let fuzzer = fuzzer();
    let hooks = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/suite/door/fuzz_hooks.py");
    std::fs::copy(hooks, house.file("fuzz_hooks.py")).unwrap();
    let token = std::fs::read_to_string(house.data().join("admin.token")).unwrap();
    let mut fuzzer = Command::new(fuzzer);
    fuzzer
        .current_dir(house.folder.path())
        .envs(known(&house))
        .env("SCHEMATHESIS_HOOKS", "fuzz_hooks")
        .args(["run", &format!("{}/openapi.json", house.url())])
        .args(["-H", &format!("Authorization: Bearer {}", token.trim())])
        // A stream that does not end by itself; `server/tests` reads it.
        .args(["--exclude-path", "/v1/events"])
        .args(["--checks", &CHECKS.join(",")])
        .args(["--phases", "examples,coverage,fuzzing"])
        // One worker: two at a time make some versions of Python fail over their own parser.
        .args(["--max-examples", EXAMPLES, "--seed", SEED, "--workers", "1", "--no-color"])
        .args(["--generation-database", "none", "--request-timeout", "20"]);
    if let Ok(seconds) = std::env::var(SECONDS) {
        fuzzer.args(["--max-time", &seconds]);
    }
    let done = fuzzer.output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{said}\n{}", String::from_utf8_lossy(&done.stderr));
    // All that the document has but two, and every one of them often: the stream is left out above, and the fuzzer
    // leaves out the one that it has the document from.
    let operations = operations() - 2;
    assert_eq!(number(&said, |line| line.strip_prefix("Tested: ")), operations, "{said}");
    let cases = number(&said, |line| line.split_once(" generated,").map(|(number, _)| number));
    assert!(cases >= operations * 10, "{cases} cases for {operations} operations: {said}");
    house.close();
}
