//! What is refused before anything listens, and who is told that nobody does.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::sprag;

#[test]
fn a_server_that_would_be_unsafe_does_not_start() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data").display().to_string();
    sprag(&["serve", "--data", &data, "--listen", "0.0.0.0:0"], "").refused("LISTEN_UNSAFE");
    let half = ["serve", "--data", &data, "--tls-cert", "c.pem"];
    sprag(&half, "").refused("CONFIG_INVALID");
    let open = folder.path().join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    let open = open.display().to_string();
    sprag(&["serve", "--data", &open, "--listen", "127.0.0.1:0"], "").refused("CONFIG_INVALID");
}

#[test]
fn a_configuration_file_is_read_and_its_mistakes_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("sprag.yaml");
    let path = file.display().to_string();
    fs::write(&file, "listen: 0.0.0.0:7070\n").unwrap();
    sprag(&["serve", "--config", &path], "").refused("LISTEN_UNSAFE");
    fs::write(&file, "lissten: 127.0.0.1:7070\n").unwrap();
    let said = sprag(&["serve", "--config", &path], "");
    said.refused("CONFIG_INVALID");
    assert!(said.stderr.contains("lissten"), "{}", said.stderr);
}

#[test]
fn sizes_that_no_call_could_bring_are_refused() {
    let refused = |given: &[&str], reason: &str| {
        let said = sprag(&[&["serve", "--listen", "127.0.0.1:0"], given].concat(), "");
        said.refused("CONFIG_INVALID");
        assert!(said.stderr.contains(reason), "{}", said.stderr);
    };
    refused(&["--max-envelope-bytes", "5000000"], "max_body_bytes, which is 4194304");
    refused(&["--max-output-bytes", "5000000"], "max_body_bytes, which is 4194304");
    refused(&["--max-envelope-bytes", "2000", "--max-body-bytes", "1000"], "which is 1000");
    refused(&["--max-output-bytes", "0"], "nothing would fit");
}

#[test]
fn a_caller_without_a_server_is_told_so() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    sprag(&["submit", "-", "--data", &data], "{}").refused("SERVER_UNREACHABLE");
    let nobody = ["protocol", "list", "--server", "http://127.0.0.1:1", "--token", "t"];
    sprag(&nobody, "").refused("SERVER_UNREACHABLE");
}

#[test]
fn the_token_of_a_folder_is_shown_to_the_server_of_that_folder_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().display().to_string();
    fs::write(folder.path().join("server.url"), "http://127.0.0.1:1\n").unwrap();
    fs::write(folder.path().join("admin.token"), "secret\n").unwrap();
    let at = |server: &str| sprag(&["protocol", "list", "--data", &data, "--server", server], "");
    for other in ["http://127.0.0.1:2", "https://127.0.0.1:1", "http://localhost:1"] {
        let said = at(other);
        said.refused("UNAUTHENTICATED");
        assert!(said.stderr.contains("SPRAG_TOKEN"), "{}", said.stderr);
    }
    // It was called: nobody is there.
    for own in ["http://127.0.0.1:1", "http://127.0.0.1:1/"] {
        at(own).refused("SERVER_UNREACHABLE");
    }
}

#[test]
fn an_address_that_can_never_answer_is_refused_at_once() {
    for server in ["127.0.0.1:7070", "localhost", "ftp://127.0.0.1", "http://", "http://a b"] {
        for command in [&["protocol", "list"][..], &["worker", "--service", "s", "--exec", "cat"]] {
            let said = sprag(&[command, &["--server", server, "--token", "t"]].concat(), "");
            said.refused("CONFIG_INVALID");
        }
    }
}

#[test]
fn an_address_that_is_taken_is_noticed_before_an_engine_is_started() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let said = sprag(&["serve", "--data", &data.display().to_string(), "--listen", &address], "");
    said.refused("CONFIG_INVALID");
    assert!(!data.join("sprag.db").exists(), "no store was opened");
}
