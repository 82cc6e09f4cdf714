//! One job through everything that can die under it.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{House, PATIENCE, Running, appears, envelope};
use crate::sprag;

const PAGES: &str = "
protocol_id: pages.v1
request_types: [PAGES]
steps:
  - step_id: fetch
    service: fetcher
    timeouts: {lease: 1s}
    retry: {backoff: [10ms]}
  - step_id: convert
    service: converter
    timeouts: {lease: 1s}
    retry: {backoff: [10ms]}
  - step_id: publish
    service: publisher
    timeouts: {lease: 1s}
    retry: {backoff: [10ms]}
";

#[test]
fn a_job_outlives_a_killed_worker_and_a_killed_server() {
    let mut house = House::open();
    let put = house.json(&["protocol", "put", &house.write("pages.yaml", PAGES)], "");
    assert_eq!(put["protocol_id"], "pages.v1");
    let listed = house.sprag(&["protocol", "list"], "");
    assert_eq!(listed.stdout, "pages.v1  PAGES  3 steps\n");

    let file = house.write("envelope.json", &envelope("PAGES", 7));
    let mut waiting = house.command(&["submit", &file, "--key", "k1", "--wait", "--json"]);
    let waiting = Running::start(waiting.stdout(fs::File::create(house.file("waited")).unwrap()));
    let fetcher = house.worker("fetcher", "cat > fetched; echo '{\"pages\": 3}'");
    // It ends when its worker does.
    let forever = "touch converting; while kill -0 $PPID 2>/dev/null; do sleep 0.05; done";
    let doomed = house.worker("converter", forever);
    appears(&house.file("converting"));
    doomed.kill();
    house.server.take().unwrap().kill();
    house.serve();
    let converter = house.worker("converter", "cat > converted; echo 4");
    let publisher = house.worker("publisher", "cat > published");

    assert!(waiting.end().success());
    let waited = fs::read_to_string(house.file("waited")).unwrap();
    let waited: serde_json::Value = serde_json::from_str(&waited).unwrap();
    assert_eq!(waited["state"], "SUCCEEDED");
    let job_id = waited["jobId"].as_str().unwrap();
    let again = house.json(&["submit", "-", "--key", "k1"], &envelope("PAGES", 7));
    assert_eq!((again["jobId"].as_str(), &again["created"]), (Some(job_id), &false.into()));
    assert_eq!(house.job(job_id)["attempts_total"], 4, "the killed worker's step was tried again");
    let told = fs::read_to_string(house.file("published")).unwrap();
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(
        (&told["inputs"]["fetch"]["pages"], &told["inputs"]["convert"]),
        (&3.into(), &4.into())
    );
    for worker in [fetcher, converter, publisher] {
        assert!(worker.stop().success(), "an idle worker ends by itself");
    }
    house.close();
}

#[test]
fn the_first_start_makes_a_folder_that_nobody_else_can_read() {
    let house = House::open();
    let mode = |path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(house.data()), 0o700);
    for name in ["root.key", "admin.token"] {
        assert_eq!(mode(house.data().join(name)), 0o600, "{name}");
    }
    let log = fs::read_to_string(house.file("log")).unwrap();
    let lines = log.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let codes: Vec<_> = lines.map(|line| line["fields"]["code"].clone()).collect();
    assert!(codes.contains(&"SERVER_LISTENS".into()), "{log}");
    house.close();
}

#[test]
fn a_token_is_made_used_and_taken_back() {
    let house = House::open();
    let token = ["token", "create", "--scope", "submit,read", "--tenant", "t1", "--label", "shop"];
    let made = house.json(&token, "");
    let (id, text) = (made["token_id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let list =
        |token: &str| sprag(&["protocol", "list", "--server", &house.url(), "--token", token], "");
    assert_eq!(list(text).code, 0);
    let put = house.write("p.yaml", &super::single("printer"));
    let said = sprag(&["protocol", "put", &put, "--server", &house.url(), "--token", text], "");
    said.refused("SCOPE_MISSING");
    assert_eq!(house.sprag(&["token", "revoke", id], "").code, 0);
    list(text).refused("UNAUTHENTICATED");
    let listed = house.sprag(&["token", "list"], "").stdout;
    let line = listed.lines().find(|line| line.starts_with(id)).unwrap();
    assert!(line.contains("revoked") && line.contains("shop"), "{line}");
    house.close();
}

#[test]
fn a_second_signal_does_not_wait() {
    let mut house = House::open();
    let server = house.server.take().unwrap();
    // A call whose body does not come is under way for as long as the server is ready to wait.
    let token = fs::read_to_string(house.data().join("admin.token")).unwrap();
    let mut call = TcpStream::connect(("127.0.0.1", house.port)).unwrap();
    let head = format!(
        "POST /v1/commands HTTP/1.1\r\nhost: 127.0.0.1\r\nauthorization: Bearer {}\r\n\
         content-type: application/json\r\nexpect: 100-continue\r\ncontent-length: 9\r\n\r\n",
        token.trim()
    );
    call.write_all(head.as_bytes()).unwrap();
    let mut answer = [0; 12];
    call.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"HTTP/1.1 100", "it waits for the body");
    server.signal(Signal::TERM);
    let begun = Instant::now();
    while !fs::read_to_string(house.file("log")).unwrap().contains("SERVER_STOPPING") {
        assert!(begun.elapsed() < PATIENCE, "it does not hear the first signal");
        std::thread::sleep(Duration::from_millis(10));
    }
    server.signal(Signal::INT);
    assert_eq!(server.end().code(), Some(130));
    house.serve();
    house.close();
}

#[test]
fn a_server_that_was_stopped_is_not_reported_as_one_that_fell_silent() {
    let mut house = House::open();
    assert!(house.server.take().unwrap().stop().success());
    house.serve();
    let begun = std::time::Instant::now();
    let line = loop {
        let log = std::fs::read_to_string(house.file("log")).unwrap();
        if let Some(line) = log.lines().find(|line| line.contains("ENGINE_TAKEN_OVER")) {
            break serde_json::from_str::<serde_json::Value>(line).unwrap();
        }
        assert!(begun.elapsed() < PATIENCE, "{log}");
    };
    assert_eq!(line["level"], "INFO", "{line}");
    house.close();
}
