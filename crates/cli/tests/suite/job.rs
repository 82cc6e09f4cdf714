//! `sprag job` and `sprag verify` on a store that an engine has worked on.

use std::path::{Path, PathBuf};
use std::time::Duration;

use sprag_engine::directive::Failure;
use sprag_engine::engine::EngineBuilder;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_kernel::State;
use sprag_stores::sqlite::{Durability, SqliteStore};
use tempfile::TempDir;

use super::sprag;

/// A store with one job that succeeded, one that failed, and one that nobody serves.
struct Books {
    folder: TempDir,
    ids: [String; 3],
}

impl Books {
    fn path(&self) -> PathBuf {
        self.folder.path().join("books.db")
    }

    fn url(&self) -> String {
        format!("sqlite:{}", self.path().display())
    }
}

fn books() -> Books {
    let folder = tempfile::tempdir().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let ids = runtime.block_on(work(&folder.path().join("books.db")));
    Books { folder, ids }
}

async fn work(path: &Path) -> [String; 3] {
    let handler = Handler::new(|input: serde_json::Value, _, _| async move {
        if input["n"] == 1 { Err(Failure::fatal("BAD_PAGE", "page 1 is bad")) } else { Ok("done") }
    });
    let engine = EngineBuilder::new(SqliteStore::open(path, Durability::Process).unwrap())
        .protocol(Protocol::new("pages.v1", "PAGES").step("read", "reader"))
        .protocol(Protocol::new("prints.v1", "PRINTS").step("print", "printer"))
        .service("reader", 2, handler)
        .start()
        .await
        .unwrap();
    let mut ids = Vec::new();
    for (n, request_type) in [(0, "PAGES"), (1, "PAGES"), (2, "PRINTS")] {
        let envelope = serde_json::json!({
            "tenant_id": "t1", "request_type": request_type, "schema_version": "1",
            "input_ref": "in", "output_ref": "out", "payload": {"n": n},
        });
        let job_id = engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id;
        ids.push(job_id.to_string());
        while n < 2 && !engine.store().job(job_id).await.unwrap().unwrap().row.state.is_terminal() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
    engine.shutdown(Duration::from_secs(5)).await.unwrap();
    ids.try_into().unwrap()
}

#[test]
fn list_shows_the_newest_first_and_filters_by_state() {
    let books = books();
    let all = sprag(&["job", "list", "--store", &books.url(), "--json"], "").json();
    let states: Vec<_> = all["items"].as_array().unwrap().iter().map(|j| &j["state"]).collect();
    assert_eq!(states, ["QUEUED", "FAILED_FINAL", "SUCCEEDED"]);
    let args = ["job", "list", "--store", &books.url(), "--state", "QUEUED", "--json"];
    assert_eq!(sprag(&args, "").json()["items"][0]["jobId"], books.ids[2]);
    let args = ["job", "list", "--store", &books.url(), "--limit", "1", "--json"];
    assert_eq!(sprag(&args, "").json()["next"], books.ids[2], "more to come");
}

#[test]
fn show_has_the_job_with_its_steps_and_digits() {
    let books = books();
    let job = sprag(&["job", "show", &books.ids[0], "--store", &books.url(), "--json"], "").json();
    assert_eq!((&job["state"], &job["semaphore"]), (&"SUCCEEDED".into(), &0.into()));
    let step = &job["steps"][0];
    assert_eq!(step["ledger"], "001111100000001");
    assert_eq!(step["guid"], "000111100000001");
    assert_eq!(step["output"], "done");
}

#[test]
fn explain_says_why_a_job_failed_and_what_holds_one_that_waits() {
    let books = books();
    let failed = sprag(&["job", "explain", &books.ids[1], "--store", &books.url()], "");
    assert!(
        failed.stdout.contains("failed for good (BAD_PAGE: page 1 is bad)"),
        "{}",
        failed.stdout
    );
    let waits = sprag(&["job", "explain", &books.ids[2], "--store", &books.url()], "");
    let why =
        "step print of service printer is in the queue, and nobody serves that service so far";
    assert!(waits.stdout.contains(why), "{}", waits.stdout);
}

#[test]
fn events_are_numbered_from_1() {
    let books = books();
    let said = sprag(&["job", "events", &books.ids[0], "--store", &books.url(), "--json"], "");
    let events: Vec<serde_json::Value> =
        said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let numbers: Vec<_> = events.iter().map(|event| event["n"].as_u64().unwrap()).collect();
    assert_eq!(numbers, [1, 2, 3]);
    assert_eq!((&events[2]["type"], &events[2]["to"]), (&"job".into(), &"SUCCEEDED".into()));
    let args = ["job", "events", &books.ids[0], "--store", &books.url(), "--follow"];
    let followed = sprag(&args, "").stdout;
    assert_eq!(followed.lines().count(), 3, "it ends with the job: {followed}");
    assert!(followed.contains("job IN_PROGRESS > SUCCEEDED"), "{followed}");
}

#[test]
fn verify_is_content_with_the_engines_work_and_not_with_an_edited_store() {
    let books = books();
    let clean = sprag(&["verify", "--store", &books.url(), "--json"], "");
    assert_eq!((clean.code, &clean.json()["ok"]), (0, &true.into()));

    let edit = rusqlite::Connection::open(books.path()).unwrap();
    edit.execute("UPDATE attempt SET guid = guid - 100000000000 WHERE state = 4", []).unwrap();
    let broken = sprag(&["verify", "--store", &books.url(), "--json"], "");
    assert_eq!((broken.code, &broken.json()["ok"]), (1, &false.into()));
    assert_eq!(broken.error()["error_code"], "AUDIT_BROKEN");
    let violated: Vec<_> = broken.json()["checks"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|check| !check["violations"].as_array().unwrap().is_empty())
        .map(|check| check["name"].as_str().unwrap().to_owned())
        .collect();
    assert!(violated.contains(&"04_not_exactly_one_closing_message".to_owned()), "{violated:?}");

    // An id says whose it is.
    edit.execute_batch(
        "INSERT INTO request (request_id, status, version, run_no, events, created_at, updated_at, tenant_id,
             request_type, request_key, content_hash, plan_revision, requirement, inputs, envelope)
         VALUES (x'0123456789abcdef0123456789abcdef', 0, 1, 0, 7, 1, 1, 't1', 'TEST', x'', x'', '1', '', '{}', '{}')",
    )
    .unwrap();
    let checks = sprag(&["verify", "--store", &books.url(), "--json"], "").json()["checks"].take();
    let find = |name: &str| checks.as_array().unwrap().iter().find(|check| check["name"] == name);
    let of = |name: &str| find(name).unwrap()["violations"][0].clone();
    let request = of("19_request_events_with_gaps");
    assert_eq!(request["request_id"], "01234567-89ab-cdef-0123-456789abcdef");
    assert!(
        request["job_id"].is_null()
            && of("04_not_exactly_one_closing_message")["job_id"].is_string()
    );
    let people = sprag(&["verify", "--store", &books.url()], "").stdout;
    assert!(people.contains("request 01234567-89ab-cdef-0123-456789abcdef: "), "{people}");
}

#[test]
fn unknown_jobs_and_stores_are_refused() {
    let books = books();
    sprag(&["job", "show", "nonsense", "--store", &books.url()], "").refused("JOB_UNKNOWN");
    let other = "01a1e170-a091-711c-9b51-cbe48e0b906f";
    sprag(&["job", "show", other, "--store", &books.url()], "").refused("JOB_UNKNOWN");
    sprag(&["verify", "--store", "sqlite:no-such-file"], "").refused("INPUT_UNREADABLE");
    sprag(&["verify", "--store", "oracle:x"], "").refused("STORE_URL_INVALID");
}

#[test]
fn a_failed_job_is_run_again_and_the_rerun_is_cancelled() {
    let books = books();
    let store = books.url();
    let args = ["job", "rerun", &books.ids[1], "--store", &store, "--json"];
    let first = sprag(&args, "").json();
    assert_eq!((&first["state"], &first["created"]), (&"QUEUED".into(), &true.into()));
    assert_eq!(sprag(&args, "").json()["jobId"], first["jobId"], "asked twice, run once");
    let rerun = first["jobId"].as_str().unwrap();
    let shown = sprag(&["job", "show", rerun, "--store", &store, "--json"], "").json();
    assert_eq!(shown["rerun_of"], books.ids[1]);
    let args = ["job", "cancel", rerun, "--store", &store, "--json"];
    assert_eq!(sprag(&args, "").json()["state"], "CANCELLING");
    let refused = sprag(&["job", "rerun", &books.ids[0], "--store", &store], "");
    assert!(refused.stderr.starts_with("JOB_NOT_FAILED"), "{}", refused.stderr);
    let shown = sprag(&["job", "show", &books.ids[0], "--store", &store], "");
    assert!(shown.stdout.contains("\"done\""), "{}", shown.stdout);
}

#[test]
fn a_service_is_paused_listed_and_resumed() {
    let books = books();
    let store = books.url();
    sprag(&["service", "pause", "printer", "--store", &store, "--json"], "").json();
    let listed = sprag(&["service", "list", "--store", &store, "--json"], "").json();
    assert_eq!(
        (&listed["items"][0]["service"], &listed["items"][0]["ready"]),
        (&"printer".into(), &1.into())
    );
    assert!(listed["items"][0]["paused_at"].is_u64());
    let explained = sprag(&["job", "explain", &books.ids[2], "--store", &store], "");
    assert!(explained.stdout.contains("is paused"), "{}", explained.stdout);
    sprag(&["service", "resume", "printer", "--store", &store, "--json"], "").json();
    let listed = sprag(&["service", "list", "--store", &store, "--json"], "").json();
    assert!(listed["items"][0]["paused_at"].is_null());
}

#[test]
fn a_tenant_is_limited_listed_and_freed() {
    let books = books();
    let store = books.url();
    let limit = |limit: &str| {
        sprag(&["tenant", "limit", "t1", limit, "--store", &store, "--json"], "").json()
    };
    let list = || sprag(&["tenant", "list", "--store", &store, "--json"], "").json();
    assert_eq!(limit("0")["max_open"], 0);
    let listed = list();
    let (shown, items) = (&listed["items"][0], listed["items"].as_array().unwrap().len());
    assert_eq!((&shown["tenant_id"], &shown["max_open"], items), (&"t1".into(), &0.into(), 1));
    assert_eq!(shown["open_jobs"], 1, "what was open counts");
    let args = ["job", "rerun", &books.ids[1], "--store", &store];
    let refused = sprag(&args, "");
    assert!(refused.stderr.starts_with("TENANT_LIMIT"), "{}", refused.stderr);
    assert!(limit("none")["max_open"].is_null());
    assert!(list()["items"].as_array().unwrap().is_empty());
    assert_eq!(sprag(&args, "").code, 0);
    let wrong = sprag(&["tenant", "limit", "t1", "3000000000", "--store", &store], "");
    assert_eq!(wrong.code, 2, "{}", wrong.stderr);
    let wrong = sprag(&["tenant", "limit", "", "1", "--store", &store], "");
    assert!(wrong.stderr.starts_with("NAME_INVALID"), "{}", wrong.stderr);
}

#[test]
fn acting_on_a_file_that_an_engine_has_is_refused() {
    let books = books();
    let _engine = SqliteStore::open(&books.path(), Durability::Process).unwrap();
    let args = ["service", "pause", "printer", "--store", &books.url()];
    let refused = sprag(&args, "");
    assert!(refused.stderr.starts_with("STORE_IN_USE"), "{}", refused.stderr);
}
