//! Input that means harm gets a refusal quickly, and leaves others served.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use serde_json::json;
use sprag_server::folder::Folder;
use sprag_server::settings::Settings;

use super::house::{House, envelope};

/// How soon everybody is answered, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(5);
const GIBIBYTE: usize = 1 << 30;

fn raw(house: &House, bytes: &[u8]) -> String {
    let mut socket = TcpStream::connect(house.address()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let _ = socket.write_all(bytes);
    let mut answer = Vec::new();
    let _ = socket.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

/// Does harm while another caller goes on calling: every call of its is answered, and soon.
fn beside_another<T>(house: &House, harm: impl FnOnce() -> T) -> T {
    let over = Arc::new(AtomicBool::new(false));
    let (caller, is_over) = (house.admin(), over.clone());
    let other = std::thread::spawn(move || {
        let (mut calls, mut longest) = (0, Duration::ZERO);
        while !is_over.load(Ordering::Relaxed) || calls == 0 {
            let begun = Instant::now();
            caller.get("/v1/jobs?limit=1").ok();
            (calls, longest) = (calls + 1, longest.max(begun.elapsed()));
            std::thread::sleep(Duration::from_millis(5));
        }
        longest
    });
    let begun = Instant::now();
    let came = harm();
    let took = begun.elapsed();
    over.store(true, Ordering::Relaxed);
    let longest = other.join().expect("the other one is served");
    assert!(longest < SOON, "the other one waited for {longest:?}");
    assert!(took < 2 * SOON, "a refusal takes {took:?}");
    came
}

fn head(token: &str, path: &str, more: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\
         connection: close\r\n{more}\r\n\r\n"
    )
}

#[test]
fn a_body_of_a_gibibyte_is_refused_before_it_is_read() {
    let house = House::open();
    let token = house.admin().token.unwrap();
    for kind in ["application/json", "application/x-ndjson"] {
        let more = format!("content-type: {kind}\r\ncontent-length: 1073741824");
        for path in ["/v1/commands", "/v1/requests", "/v1/claim", "/v1/callbacks/result"] {
            let told = beside_another(&house, || raw(&house, head(&token, path, &more).as_bytes()));
            assert!(told.starts_with("HTTP/1.1 413") && told.contains("INPUT_TOO_LARGE"), "{told}");
        }
    }
    house.admin().post("/v1/commands", &envelope("t1", 1)).ok();
    house.close();
}

#[test]
fn a_body_of_a_gibibyte_that_does_not_say_so_is_cut_off() {
    let house = House::open();
    let token = house.admin().token.unwrap();
    let sent = beside_another(&house, || {
        let mut socket = TcpStream::connect(house.address()).unwrap();
        let more = "transfer-encoding: chunked";
        socket.write_all(head(&token, "/v1/commands", more).as_bytes()).unwrap();
        let mut chunk = b"10000\r\n".to_vec();
        chunk.resize(chunk.len() + 0x10000, b' ');
        chunk.extend_from_slice(b"\r\n");
        let is_sent = |_: &usize| socket.write_all(&chunk).is_ok();
        (0..GIBIBYTE / 0x10000).take_while(is_sent).count() * 0x10000
    });
    // The largest body, and what two sockets hold.
    assert!(sent < 64 << 20, "{sent} bytes were taken");
    house.admin().post("/v1/commands", &envelope("t1", 1)).ok();
    house.close();
}

#[test]
fn deep_json_and_nonsense_are_refused_by_code() {
    let house = House::open();
    let admin = house.admin();
    let job = admin.post("/v1/commands", &envelope("t1", 1)).ok();
    let signal = format!("/v1/jobs/{}/signals/go", job["jobId"].as_str().unwrap());
    for open in ["[", "{\"a\":"] {
        let deep = open.repeat(100_000);
        beside_another(&house, || {
            for path in ["/v1/commands", "/v1/requests", "/v1/claim", "/v1/tokens", &signal] {
                admin.call("POST", path, &deep).refused(400, "JSON_TOO_DEEP");
            }
            for path in ["ack", "heartbeat", "result"] {
                let path = format!("/v1/callbacks/{path}");
                admin.call("POST", &path, &deep).refused(400, "JSON_TOO_DEEP");
            }
            let kind = [("content-type", "application/x-ndjson")];
            let lines = admin.call_with("POST", "/v1/commands", &kind, &deep);
            let is_refused = |code: &str| lines.text.contains(code);
            assert!(is_refused("JSON_TOO_DEEP") || is_refused("ENVELOPE_INVALID"), "{lines:?}");
            // Read as YAML, whose reader has limits of its own.
            let protocol = admin.call("PUT", "/v1/protocols/deep", &deep);
            protocol.refused(400, "PROTOCOL_INVALID");
        });
    }
    for path in ["/v1/commands", "/v1/requests", "/v1/claim", "/v1/callbacks/result", "/v1/tokens"]
    {
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
fn a_protocol_that_grows_when_it_is_read_is_refused() {
    let house = House::open();
    let mut bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
    for n in 1..12 {
        let again = vec![format!("*a{}", n - 1); 9].join(", ");
        writeln!(bomb, "a{n}: &a{n} [{again}]").unwrap();
    }
    let answer = beside_another(&house, || house.admin().call("PUT", "/v1/protocols/bomb", &bomb));
    answer.refused(400, "PROTOCOL_INVALID");
    house.close();
}

#[test]
fn path_tricks_in_ids_find_nothing() {
    let house = House::open();
    let admin = house.admin();
    let long = "a".repeat(5_000);
    let tricks = [
        "..%2f..%2fetc",
        "%00",
        "1%20OR%201=1",
        "%ff",
        "'",
        "..",
        "%2e%2e",
        "%2F",
        "%5c",
        "*",
        "{id}",
        "01a1e170-a091-711c-9b51-cbe48e0b906f%00",
        long.as_str(),
    ];
    beside_another(&house, || {
        for id in tricks {
            for path in ["/v1/jobs/", "/v1/requests/", "/v1/tokens/"] {
                let method = if path == "/v1/tokens/" { "DELETE" } else { "GET" };
                let answer = admin.call(method, &format!("{path}{id}"), "");
                assert!((400..500).contains(&answer.status), "{path}{id} {answer:?}");
                assert_eq!(answer.kind, "application/problem+json");
            }
        }
    });
    admin.get("/v1/jobs/../tokens/").refused(404, "ROUTE_UNKNOWN");
    admin.get("//v1/tokens").refused(404, "ROUTE_UNKNOWN");
    house.close();
}

#[test]
fn refs_are_handed_on_and_never_opened_and_lead_no_workspace_astray() {
    let house = House::open();
    let admin = house.admin();
    let refs = ["../../etc/passwd", "file:///etc/passwd", "/etc/passwd", "http://169.254.169.254/"];
    for (n, path) in refs.into_iter().enumerate() {
        let mut tricky = envelope("../../etc", n as u64);
        tricky["input_ref"] = path.into();
        tricky["output_ref"] = json!({"uri": path});
        admin.post("/v1/commands", &tricky).ok();
        let claim = json!({"claim_id": n.to_string(), "services": ["reader"], "wait_s": 10});
        let directive = admin.post("/v1/claim", &claim).ok()["directives"][0].clone();
        assert_eq!(
            (&directive["input_ref"], &directive["output_ref"]["uri"]),
            (&path.into(), &path.into())
        );
        let workspace = directive["workspace_ref"].as_str().unwrap();
        assert!(!workspace.split('/').any(|part| part == ".."), "{workspace}");
    }
    for wrong in [json!(7), json!([]), json!({"path": "x"}), json!({"uri": 7})] {
        let mut envelope = envelope("t1", 100);
        envelope["input_ref"] = wrong.clone();
        let answer = admin.post("/v1/commands", &envelope);
        assert!((400..500).contains(&answer.status), "{wrong}: {answer:?}");
    }
    house.close();
}

#[test]
fn a_token_that_has_expired_is_refused_while_others_work() {
    let house = House::open();
    let made =
        house.admin().post("/v1/tokens", &json!({"scopes": ["read"], "lifetime_ms": 1})).ok();
    let late = super::house::Caller::new(&house.url, made["token"].as_str());
    beside_another(&house, || {
        let begun = Instant::now();
        while late.get("/v1/jobs").status == 200 {
            assert!(begun.elapsed() < SOON, "it has expired");
        }
        for path in ["/v1/jobs", "/v1/requests", "/v1/protocols", "/openapi.json"] {
            late.get(path).refused(401, "UNAUTHENTICATED");
        }
    });
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

/// Whether the other side ends the connection before this time is over.
fn is_ended(mut socket: TcpStream, within: Duration) -> bool {
    socket.set_read_timeout(Some(within)).unwrap();
    let mut answer = Vec::new();
    match socket.read_to_end(&mut answer) {
        Ok(_) => true,
        Err(error) => error.kind() == std::io::ErrorKind::ConnectionReset,
    }
}

#[test]
fn connections_that_say_nothing_make_room_for_others() {
    let house = House::open_with(|settings| {
        settings.head_timeout = Duration::from_millis(300);
        settings.max_connections = 3;
    });
    for words in ["", "PRI", "PRI * HTTP/2.0\r\n", "GET / HT"] {
        let silent: Vec<TcpStream> = (0..3)
            .map(|_| {
                let mut socket = TcpStream::connect(house.address()).unwrap();
                socket.write_all(words.as_bytes()).unwrap();
                socket
            })
            .collect();
        let begun = Instant::now();
        house.admin().get("/v1/jobs").ok();
        assert!(begun.elapsed() < SOON, "{words:?} keeps others out for {:?}", begun.elapsed());
        for socket in silent {
            assert!(is_ended(socket, SOON), "{words:?} is waited for");
        }
    }
    house.close();
}

#[test]
fn answers_that_nobody_reads_make_room_for_others() {
    let house = House::open_with(|settings| {
        settings.unread_timeout = Duration::from_millis(300);
        settings.max_connections = 3;
    });
    let token = house.admin().token.unwrap();
    let call = format!(
        "GET /openapi.json HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n\r\n"
    );
    let unread: Vec<TcpStream> = (0..3)
        .map(|_| {
            let mut socket = TcpStream::connect(house.address()).unwrap();
            socket.set_write_timeout(Some(Duration::from_millis(50))).unwrap();
            // More answers than any socket holds.
            for _ in 0..2_000 {
                if socket.write_all(call.as_bytes()).is_err() {
                    break;
                }
            }
            socket
        })
        .collect();
    let begun = Instant::now();
    house.admin().get("/v1/jobs").ok();
    assert!(begun.elapsed() < SOON, "others are kept out for {:?}", begun.elapsed());
    drop(unread);
    house.close();
}

#[test]
fn header_tricks_are_refused() {
    let house = House::open();
    let token = house.admin().token.unwrap();
    let auth = format!("authorization: Bearer {token}\r\n");
    let body = envelope("t1", 1).to_string();
    let length = body.len();
    let tricks = [
        ("many headers", "x-many: 1\r\n".repeat(200)),
        ("a long header", format!("x-long: {}\r\n", "a".repeat(100_000))),
        ("two lengths", format!("{auth}content-length: {length}\r\ncontent-length: 3\r\n")),
        ("a negative length", format!("{auth}content-length: -1\r\n")),
        ("a length that is no number", format!("{auth}content-length: +{length}\r\n")),
        ("a coding that nobody knows", format!("{auth}transfer-encoding: gzip\r\n")),
        ("a name with a space", format!("{auth}content-length : {length}\r\n")),
        ("a null", format!("{auth}x-null: a\0b\r\ncontent-length: {length}\r\n")),
        ("a folded header", format!("{auth}x-fold: a\r\n b\r\ncontent-length: {length}\r\n")),
        ("two hosts", format!("{auth}host: localhost\r\ncontent-length: {length}\r\n")),
        ("two tokens", format!("{auth}authorization: Bearer x\r\ncontent-length: {length}\r\n")),
        ("a token of bytes", "authorization: Bearer \u{fffd}\r\ncontent-length: 0\r\n".to_owned()),
    ];
    for (what, headers) in tricks {
        let call = format!(
            "POST /v1/commands HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\r\n{body}"
        );
        let told = beside_another(&house, || raw(&house, call.as_bytes()));
        let begin: String = told.chars().take(80).collect();
        assert!(told.starts_with("HTTP/1.1 4") || told.is_empty(), "{what}: {begin}");
    }
    // What two readers could read as two calls is read as one, or not at all.
    let smuggled = format!(
        "POST /v1/commands HTTP/1.1\r\nhost: localhost\r\n{auth}connection: close\r\ncontent-length: {length}\r\n\
         transfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/tokens HTTP/1.1\r\nhost: localhost\r\n{auth}\r\n"
    );
    let told = raw(&house, smuggled.as_bytes());
    assert!(told.matches("HTTP/1.1 ").count() <= 1, "{told}");
    assert_eq!(house.admin().get("/v1/jobs").ok()["items"], json!([]), "no trick has made a job");
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
