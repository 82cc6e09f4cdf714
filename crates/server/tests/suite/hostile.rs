//! Input that means harm gets a refusal quickly, and leaves others served.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use serde_json::json;
use sprag_server::folder::Folder;
use sprag_server::settings::Settings;

use super::house::{House, envelope};

fn raw(house: &House, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(house.url.strip_prefix("http://").unwrap()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

#[test]
fn a_body_that_is_too_large_is_refused_before_it_is_read() {
    let house = House::open();
    let token = house.admin().token.unwrap();
    let head = |length: &str| {
        format!(
            "POST /v1/commands HTTP/1.1\r\nhost: localhost\r\n\
        authorization: Bearer {token}\r\nconnection: close\r\n{length}\r\n\r\n"
        )
    };
    let begun = Instant::now();
    let told = raw(&house, head("content-length: 1073741824").as_bytes());
    assert!(told.starts_with("HTTP/1.1 413") && told.contains("INPUT_TOO_LARGE"), "{told}");
    let mut chunked = head("transfer-encoding: chunked").into_bytes();
    for _ in 0..80 {
        chunked.extend_from_slice(b"10000\r\n");
        chunked.extend_from_slice(&vec![b' '; 0x10000]);
        chunked.extend_from_slice(b"\r\n");
    }
    let told = raw(&house, &chunked);
    assert!(told.is_empty() || told.starts_with("HTTP/1.1 413"), "{told}");
    assert!(begun.elapsed() < Duration::from_secs(5));
    house.admin().post("/v1/commands", &envelope("t1", 1)).ok();
    house.close();
}

#[test]
fn deep_json_and_nonsense_are_refused_by_code() {
    let house = House::open();
    let admin = house.admin();
    let deep = "[".repeat(100_000);
    for path in ["/v1/commands", "/v1/requests", "/v1/claim", "/v1/callbacks/result", "/v1/tokens"]
    {
        admin.call("POST", path, &deep).refused(400, "JSON_TOO_DEEP");
        admin.call("POST", path, "{\"a\":").refused(400, "JSON_INVALID");
        admin.call("POST", path, [0xff, 0xfe]).refused(400, "JSON_INVALID");
        let answer = admin.call("POST", path, "[]");
        assert_eq!(answer.status, 400, "{path} {answer:?}");
    }
    admin
        .post("/v1/claim", &json!({"claim_id": "c", "services": [], "max": 1}))
        .refused(400, "CLAIM_INVALID");
    house.close();
}

#[test]
fn path_tricks_find_nothing() {
    let house = House::open();
    let admin = house.admin();
    for id in ["..%2f..%2fetc", "%00", "1%20OR%201=1", "%ff", "'", "a".repeat(5_000).as_str()] {
        let answer = admin.get(&format!("/v1/jobs/{id}"));
        assert!((400..500).contains(&answer.status), "{id} {answer:?}");
        assert_eq!(answer.kind, "application/problem+json");
    }
    admin.get("/v1/jobs/../tokens/").refused(404, "ROUTE_UNKNOWN");
    house.close();
}

#[test]
fn slow_callers_are_cut_off_and_others_are_served_meanwhile() {
    let house = House::open_with(|settings| {
        settings.head_timeout = Duration::from_millis(300);
        settings.body_timeout = Duration::from_millis(300);
    });
    let token = house.admin().token.unwrap();
    let address = house.url.strip_prefix("http://").unwrap().to_owned();
    let head = "POST /v1/commands HTTP/1.1\r\nhost: localhost\r\n";
    let mut slow: Vec<TcpStream> = (0..50).map(|_| TcpStream::connect(&address).unwrap()).collect();
    for (n, socket) in slow.iter_mut().enumerate() {
        // Half of them never end their head, half never send their body.
        let body = format!("authorization: Bearer {token}\r\ncontent-length: 100\r\n\r\n{{");
        write!(socket, "{head}{}", if n % 2 == 0 { "x-slow: 1\r\n" } else { &body }).unwrap();
    }
    house.admin().post("/v1/commands", &envelope("t1", 1)).ok();
    for (n, socket) in slow.iter_mut().enumerate() {
        socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let mut answer = String::new();
        let _ = socket.read_to_string(&mut answer);
        let cut = if n % 2 == 0 {
            answer.is_empty() || answer.contains("408")
        } else {
            answer.contains("TOO_SLOW")
        };
        assert!(cut, "{n}: {answer}");
    }
    house.close();
}

#[test]
fn headers_have_limits() {
    let house = House::open();
    let many = "x-many: 1\r\n".repeat(200);
    let long = format!("x-long: {}\r\n", "a".repeat(100_000));
    for headers in [many, long] {
        let told = raw(
            &house,
            format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n").as_bytes(),
        );
        assert!(
            told.starts_with("HTTP/1.1 4") || told.is_empty(),
            "{}",
            &told[..told.len().min(80)]
        );
    }
    house.close();
}

#[test]
fn another_name_or_origin_is_refused() {
    let house = House::open();
    let token = house.admin().token.unwrap();
    let call = |headers: &str| {
        raw(
            &house,
            format!(
                "GET /v1/jobs HTTP/1.1\r\nauthorization: Bearer {token}\r\n\
        connection: close\r\n{headers}\r\n\r\n"
            )
            .as_bytes(),
        )
    };
    assert!(call("host: evil.example").contains("ORIGIN_REFUSED"));
    assert!(call("host: localhost\r\norigin: http://evil.example").contains("ORIGIN_REFUSED"));
    assert!(call("host: localhost\r\norigin: null").contains("ORIGIN_REFUSED"));
    let own = call("host: localhost:1\r\norigin: http://localhost:1");
    assert!(own.starts_with("HTTP/1.1 200"), "{own}");
    assert!(!own.to_lowercase().contains("access-control"), "no CORS: {own}");
    house.close();
}

#[test]
fn a_tenant_that_calls_too_often_waits_and_others_do_not() {
    let house = House::open_with(|settings| {
        settings.rate = 1;
        settings.burst = 5;
    });
    let (greedy, other) =
        (house.caller(&["read"], Some("t1")), house.caller(&["read"], Some("t2")));
    let answers: Vec<_> = (0..8).map(|_| greedy.get("/v1/jobs")).collect();
    assert!(answers[..5].iter().all(|answer| answer.status == 200));
    answers[7].refused(429, "RATE_LIMITED");
    other.get("/v1/jobs").ok();
    house.close();
}

#[test]
fn tokens_that_are_almost_right_are_refused() {
    let house = House::open();
    let token = house.admin().token.unwrap();
    let mut other = token.clone();
    let last = if other.pop() == Some('0') { '1' } else { '0' };
    other.push(last);
    for wrong in [other.as_str(), &token[..token.len() - 1], "", "sprag_000000000000_00", "Basic x"]
    {
        super::house::Caller::new(&house.url, Some(wrong))
            .get("/v1/jobs")
            .refused(401, "UNAUTHENTICATED");
    }
    house.close();
}

#[test]
fn secrets_are_files_that_nobody_else_may_read() {
    let house = House::open();
    let data = house.folder.path().join("data");
    let mode =
        |name: &str| std::fs::metadata(data.join(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(""), mode("root.key"), mode("admin.token")), (0o700, 0o600, 0o600));
    let folder = Folder::open(&data).unwrap();
    assert_eq!(folder.root_key().unwrap(), folder.root_key().unwrap(), "made once");
    std::fs::set_permissions(data.join("root.key"), std::fs::Permissions::from_mode(0o644))
        .unwrap();
    assert!(folder.root_key().is_err());
    std::fs::set_permissions(&data, std::fs::Permissions::from_mode(0o755)).unwrap();
    assert!(Folder::open(&data).is_err());
    house.close();
}

#[test]
fn an_address_that_others_reach_needs_tls_or_a_proxy() {
    let everyone = Settings { listen: ([0, 0, 0, 0], 0).into(), ..Settings::default() };
    assert_eq!(everyone.check().unwrap_err().code().name(), "LISTEN_UNSAFE");
    Settings { behind_proxy: true, ..everyone.clone() }.check().unwrap();
    Settings { tls: Some(("c".into(), "k".into())), ..everyone }.check().unwrap();
    Settings::default().check().unwrap();
}
