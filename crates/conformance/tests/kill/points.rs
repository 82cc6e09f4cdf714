//! Every crash point there is, by the store whose run must pass it. A test compares these lists with the
//! source, and the crash test fails if the process never died at one of them: whoever adds a point lists
//! it here, and lets the script in `victim.rs` pass it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// In the heart, whatever the store.
pub(crate) const HEART: &[&str] = &[
    "batch.after_commit",
    "batch.after_open",
    "batch.before_commit",
    "heart.after_callback_reply",
    "heart.after_claim_reply",
    "heart.after_handler",
    "heart.after_publish",
    "heart.after_reply",
    "heart.before_callback_reply",
    "heart.before_claim_reply",
    "heart.before_handler",
    "heart.before_publish",
    "heart.before_reply",
    "hooks.after_call",
];

/// Around every call of the seam that writes, by `seam.rs`: before it begins, and after its commit.
pub(crate) const SEAM: &[&str] = &[
    "admit",
    "amend",
    "amend_request",
    "beat",
    "claim",
    "claim_tasks",
    "commit_batch",
    "commit_batch_with",
    "create_request",
    "dispatch",
    "due",
    "end",
    "end_and_finish",
    "end_with",
    "finish",
    "forget",
    "join",
    "leave",
    "limit_tenant",
    "open_batch",
    "pause",
    "protocol",
    "pulse",
    "put_protocol",
    "put_schedule",
    "put_token",
    "record_stale",
    "release",
    "remove_schedule",
    "renew",
    "rest_schedule",
    "resume",
    "retire",
    "revoke_token",
    "serve",
    "settle_tasks",
    "signal",
    "submit",
    "submit_and_dispatch",
    "take_in",
    "take_over",
    "tick",
    "unpublished",
    "wait",
];

/// Between the statements of the SQLite store.
pub(crate) const SQLITE: &[&str] = &[
    "admit.after_arrival",
    "admit.after_row",
    "amend.after_attempt",
    "amend.after_event",
    "amend_request.after_job",
    "amend_request.after_row",
    "claim.after_entry",
    "claim_tasks.after_claim",
    "commit_batch.after_statement",
    "create_request.after_row",
    "dispatch.after_attempt",
    "dispatch.after_child",
    "dispatch.after_job",
    "end.after_attempt",
    "eras.after_begin",
    "eras.after_filter",
    "eras.after_writer",
    "finish.after_statement",
    "finish.after_telling",
    "finish_graph.after_statement",
    "forget.after_keys",
    "inbox.after_job",
    "inbox.after_mark",
    "inbox.after_sweep",
    "join.after_burial",
    "open_batch.after_row",
    "pulse.after_row",
    "record_stale.after_row",
    "release.after_row",
    "renew.after_attempt",
    "renew.after_event",
    "retire.after_job",
    "retire.after_key",
    "retire.after_rows",
    "schedule.after_envelope",
    "schedule.after_move",
    "serve.after_row",
    "settle_tasks.after_task",
    "signal.after_event",
    "signal.after_insert",
    "signal.after_wake",
    "sqlite.after_answer",
    "sqlite.after_commit",
    "sqlite.after_execute",
    "sqlite.after_sync",
    "sqlite.before_begin",
    "sqlite.before_commit",
    "sqlite.between_calls",
    "submit.after_attempts",
    "submit.after_job",
    "submit.after_slot",
    "take_over.after_death",
    "take_over.after_hand_over",
    "take_over.after_release",
    "take_over.after_row",
    "unpublished.after_taking",
    "wait.after_park",
    "wait.after_take",
    "work.after_closure",
];

/// Between the statements of the Postgres store. Most primitives are one statement that commits by
/// itself; those that are several have a point around each.
pub(crate) const POSTGRES: &[&str] = &[
    "postgres.after_commit",
    "postgres.after_statement",
    "postgres.amend.after_attempt",
    "postgres.amend.after_lock",
    "postgres.amend_request.after_job",
    "postgres.amend_request.after_lock",
    "postgres.before_begin",
    "postgres.before_commit",
    "postgres.before_statement",
    "postgres.commit_batch.after_statement",
    "postgres.commit_batch.after_work",
    "postgres.dispatch.after_child",
    "postgres.finish.after_telling",
    "postgres.limit_tenant.after_lock",
    "postgres.retire.after_deletion",
    "postgres.signal.after_lock",
    "postgres.submit.after_jobs",
    "postgres.submit.after_slots",
    "postgres.submit.after_tenant",
    "postgres.take_in.after_jobs",
    "postgres.take_in.after_mark",
    "postgres.take_over.after_death",
    "postgres.take_over.after_release",
    "postgres.wait.after_lock",
    "postgres.wait.after_take",
    "postgres.work.after_closure",
    "postgres.work.after_message",
];

/// The two points around a call of the seam.
pub(crate) fn around(operation: &str) -> [String; 2] {
    [format!("seam.{operation}.before"), format!("seam.{operation}.after")]
}

/// All that a run on one store must pass, those of the store being `own`.
pub(crate) fn all(own: &[&str]) -> Vec<String> {
    let named = HEART.iter().chain(own).map(ToString::to_string);
    named.chain(SEAM.iter().flat_map(|operation| around(operation))).collect()
}

/// Whether it is one that stands at every statement, transaction or call of its store: `sqlite.before_commit`, but not
/// `postgres.wait.after_lock`. What there is to see differs from pass to pass.
pub(crate) fn is_everywhere(point: &str) -> bool {
    point
        .split_once('.')
        .is_some_and(|(of, at)| ["sqlite", "postgres"].contains(&of) && !at.contains('.'))
}

/// What is between `open` and `close` wherever it occurs in the Rust files below a folder.
fn named(folder: &Path, open: &str, close: char) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders: Vec<PathBuf> = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let text = fs::read_to_string(&path).unwrap();
                let names = text.split(open).skip(1).filter_map(|rest| rest.split_once(close));
                // This file names what it looks for, which is no point.
                let is_name = |name: &&str| {
                    name.bytes().all(|b| b.is_ascii_lowercase() || b"._".contains(&b))
                };
                found.extend(names.map(|(name, _)| name).filter(is_name).map(ToOwned::to_owned));
            }
        }
    }
    found
}

/// The lists are those of the source.
pub(crate) fn expect_complete() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let listed = |names: &[&str]| names.iter().map(ToString::to_string).collect::<BTreeSet<_>>();
    let point = "crash_point(\"";
    let in_source = |folder: &str| named(&crates.join(folder), point, '"');
    assert_eq!(in_source("engine/src"), listed(HEART));
    assert_eq!(in_source("stores/src/sqlite"), listed(SQLITE));
    assert_eq!(in_source("stores/src/postgres"), listed(POSTGRES));
    let seam = named(&crates.join("conformance/tests/kill"), "around!(self.", '(');
    assert_eq!(seam, listed(SEAM));
}
