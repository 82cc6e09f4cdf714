//! The worked examples, run to their end, twice: the second time everything is done already. The one that is there to be
//! killed is killed.

#![allow(dead_code)] // their `main` is not ours

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use sprag_kernel::JobState;

#[path = "../../../../examples/approval/main.rs"]
mod approval;
#[path = "../../../../examples/documents/main.rs"]
mod documents;
#[path = "../../../../examples/nightly/main.rs"]
mod nightly;
#[path = "../../../../examples/payments.rs"]
mod payments;

use crate::sprag;

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

fn expect_sound(folder: &Path) {
    expect_sound_store(&folder.join("sprag.db"));
}

fn expect_sound_store(path: &Path) {
    let url = format!("sqlite:{}", path.display());
    let said = sprag(&["verify", "--store", &url], "");
    assert_eq!(said.code, 0, "{}{}", said.stdout, said.stderr);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_document_pipeline_assembles_its_pages_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let found = documents::run(folder.path(), 20).await.unwrap();
    let book = std::fs::read_to_string(folder.path().join("book.jsonl")).unwrap();
    let pages = lines(&book);
    assert_eq!(
        pages.iter().map(|page| page["page"].as_u64().unwrap()).collect::<Vec<_>>(),
        (0..20).collect::<Vec<_>>()
    );
    for (n, page) in pages.iter().enumerate() {
        let summary = page["summary"].as_str().unwrap();
        assert!(documents::page(n).contains(summary), "page {n} does not say: {summary}");
    }
    let found = found.as_array().unwrap().clone();
    assert_eq!(found.len(), 3);
    for n in &found {
        let page = documents::page(usize::try_from(n.as_u64().unwrap()).unwrap());
        assert!(page.contains("LEASE"), "{page}");
    }
    assert_eq!(documents::run(folder.path(), 20).await.unwrap(), json!(found), "it is done");
    assert_eq!(std::fs::read_to_string(folder.path().join("book.jsonl")).unwrap(), book);
    expect_sound(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_approval_flow_pays_what_was_approved_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let told = approval::run(folder.path()).await.unwrap();
        let states: Vec<_> = told.iter().map(|(amount, state, _)| (*amount, *state)).collect();
        assert_eq!(
            states,
            [
                (90, JobState::Succeeded),
                (5_000, JobState::Succeeded),
                (1_000_000, JobState::FailedFinal),
            ]
        );
        let (.., story) = &told[1];
        assert!(story.iter().any(|line| line.contains("ada approves")), "{story:?}");
        let (.., story) = &told[2];
        assert!(
            story.iter().any(|line| line.contains("bob rejects (we have no such supplier)")),
            "{story:?}"
        );
        assert!(!story.iter().any(|line| line.contains("Step pay, attempt")), "{story:?}");
    }
    expect_sound(folder.path());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_nightly_batch_turns_until_nothing_is_left() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("day.jsonl"), nightly::records(2_345)).unwrap();
    let report = nightly::run(folder.path()).await.unwrap();
    let (mut expected, mut sum) = (String::new(), 0);
    for record in lines(&nightly::records(2_345)) {
        if let Some(amount @ 1..) = record["amount"].as_i64() {
            sum += amount;
            writeln!(expected, "{}", json!({"record": record["record"], "posted": amount}))
                .unwrap();
        }
    }
    let posted = |n| std::fs::read_to_string(folder.path().join(format!("posted-{n}.jsonl")));
    let all: String = (0..3).map(|n| posted(n).unwrap()).collect();
    assert!(all == expected, "the portions together are the day, in order");
    assert!(posted(3).is_err(), "three portions are enough");
    assert_eq!((&report["portions"], &report["sum"]), (&json!(3), &json!(sum)));
    assert_eq!(report["posted"], json!(expected.lines().count()));
    assert_eq!(nightly::run(folder.path()).await.unwrap(), report, "it is done");
    expect_sound(folder.path());
}

#[tokio::test]
async fn every_order_is_paid_for_once_however_often_the_program_runs() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("payments.db");
    for _ in 0..2 {
        assert_eq!(payments::run(&path).await.unwrap(), (20, 21_000));
    }
}

/// What the README shows first. It is run as whoever reads that would, in a folder of its own.
#[test]
fn three_steps_go_on_where_a_kill_has_left_them() {
    let source = include_str!("../../../../examples/three_steps.rs");
    assert!(source.lines().count() <= 60, "a program that is read in a minute");
    let program = Path::new(env!("CARGO_BIN_EXE_sprag")).with_file_name("examples/three_steps");
    assert!(program.exists(), "`cargo test` builds it, `cargo build --example three_steps` too");
    let folder = tempfile::tempdir().unwrap();
    let start = || {
        let mut program = Command::new(&program);
        program.current_dir(folder.path()).stdout(Stdio::piped()).spawn().unwrap()
    };
    let mut first = start();
    let mut said = BufReader::new(first.stdout.take().unwrap()).lines().map(Result::unwrap);
    let converted = said.find(|line| line.contains(": convert ")).expect("a page is converted");
    first.kill().unwrap();
    assert_eq!(first.wait().unwrap().code(), None, "it did not end by itself");

    let second = start().wait_with_output().unwrap();
    assert!(second.status.success());
    let said = String::from_utf8(second.stdout).unwrap();
    let (page, _) = converted.split_once(':').unwrap();
    assert!(!said.contains(&format!("{page}: fetch ")), "{page} was fetched before: {said}");
    assert!(said.contains(&format!("{page}: convert (attempt 2)")), "{said}");
    let done: BTreeSet<&str> =
        said.lines().filter_map(|line| line.strip_suffix(" is done")).collect();
    assert_eq!(done.len(), 8, "{said}");
    let path = folder.path().join("three_steps.db");
    let url = format!("sqlite:{}", path.display());
    let jobs = sprag(&["job", "list", "--store", &url, "--json"], "").json();
    let jobs = jobs["items"].as_array().unwrap().clone();
    assert!(jobs.iter().all(|job| job["state"] == "SUCCEEDED"), "{jobs:?}");
    assert_eq!(
        jobs.iter().map(|job| job["jobId"].as_str().unwrap()).collect::<BTreeSet<_>>(),
        done
    );
    expect_sound_store(&path);
}
