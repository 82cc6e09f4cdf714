//! Damage to what stands beside jobs: requests, counts, signals, batches, gates, the inbox and schedules.

use sprag_engine::ids::JobId;
use sprag_kernel::JobState;

use super::{
    ADMITTED, AHEAD, Books, COUNTDOWN, COUNTS, CURSOR, Damage, INBOX, JOURNAL, KEPT_SLOT, LIVE,
    MISSED, NOWHERE, OPEN_TASK, OTHER_JOB, PARKED, REQUEST_GAPS, REQUEST_REPLAY, RUN, SLOTS,
    TENANT, TWICE, UNADMITTED, set, shift,
};
use crate::world::World;

/// What can be done to requests and to what stands beside jobs.
pub(super) fn to_the_rest<W: World>(books: &Books) -> Vec<Damage> {
    let request = books.request;
    let row = format!("request_id = {}", W::id(request));
    let key = format!("job_id = {}", W::id(books.requested));
    let made_for = format!("'r:{request}:1'");
    let whole = |check, table: &str, column: &str, row: &str| Damage {
        of: None,
        ..shift(check, request, (table, column, 1), row)
    };
    let done = format!("(SELECT dedup_key FROM job WHERE job_id = {})", W::id(books.done));
    let queued = W::id(books.queued);
    vec![
        set(RUN, request, ("job", "dedup_key"), ["'k:other'", &made_for], &key),
        Damage {
            follows: &[REQUEST_REPLAY],
            ..shift(RUN, request, ("request", "run_no", 1), &row)
        },
        Damage {
            follows: &[REQUEST_REPLAY],
            ..shift(RUN, request, ("request", "status", -1), &row)
        },
        shift(REQUEST_GAPS, request, ("request", "events", 1), &row),
        set(
            REQUEST_REPLAY,
            request,
            ("request_event", "changes"),
            ["'edited'", "'R1>2'"],
            &format!("{row} AND n = 4"),
        ),
        whole(SLOTS, "tenant", "open_jobs", &format!("tenant_id = '{TENANT}'")),
        whole(COUNTS, "job_count", "jobs", &format!("state = {}", JobState::Succeeded as u8)),
        Damage {
            check: OPEN_TASK,
            of: Some(books.queued),
            breaks: format!(
                "INSERT INTO completion (job_id, task, due_at, created_at)
                 VALUES ({queued}, 'hook:a', 1, 1)"
            ),
            mends: "DELETE FROM completion".to_owned(),
            follows: &[],
        },
        Damage {
            follows: &[LIVE],
            ..set(
                PARKED,
                books.queued,
                ("attempt", "countdown"),
                ["1", "0"],
                &format!("job_id = {queued} AND step_index = 1"),
            )
        },
        // The protocol of these jobs is no graph at all.
        set(
            COUNTDOWN,
            books.queued,
            ("job", "is_graph"),
            ["1", "0"],
            &format!("job_id = {queued}"),
        ),
        Damage {
            check: CURSOR,
            of: Some(books.queued),
            breaks: format!(
                "INSERT INTO batch (job_id, step_index, branch, turn, attempt_no, lease_id, cursor,
                     success, skip, fail, cancel, out_bytes, outcome_hash, input_hash, created_at,
                     updated_at)
                 VALUES ({queued}, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 0, {queued}, 1, 1)"
            ),
            mends: "DELETE FROM batch".to_owned(),
            follows: &[],
        },
        Damage {
            check: JOURNAL,
            of: Some(books.queued),
            breaks: format!(
                "INSERT INTO batch_journal (job_id, step_index, branch, turn, first_seq, seqs, at,
                     outcomes, notes, outputs)
                 VALUES ({queued}, 0, 0, 0, 0, 1, 1, '', '', '')"
            ),
            mends: "DELETE FROM batch_journal".to_owned(),
            follows: &[],
        },
        Damage {
            check: MISSED,
            of: Some(books.queued),
            breaks: format!(
                "UPDATE attempt SET waits_for = 'go' WHERE job_id = {queued} AND step_index = 1;
                 {}",
                signal(&queued, 1)
            ),
            mends: "DELETE FROM signal; UPDATE attempt SET waits_for = NULL".to_owned(),
            follows: &[],
        },
        Damage {
            check: NOWHERE,
            of: Some(books.queued),
            breaks: signal(&queued, 2),
            mends: "DELETE FROM signal".to_owned(),
            follows: &[],
        },
        set(TWICE, books.done, ("retired", "dedup_key"), [&done, "'k:old'"], "1 = 1"),
    ]
}

/// A signal `go` that nobody has.
fn signal(job_id: &str, n: u32) -> String {
    format!(
        "INSERT INTO signal (job_id, n, signal_id, name, decision, content, payload, received_at)
         VALUES ({job_id}, {n}, 'x', 'go', 0, {job_id}, 'null', 1)"
    )
}

/// What can be done at gates.
pub(super) fn to_gates<W: World>(books: &Books) -> Vec<Damage> {
    let row = |id| format!("job_id = {} AND step_index = 0", W::id(id));
    let gate = |check, of: Option<JobId>, rows: &str, admitted_at: &str| {
        let set = |gate: &str, max: &str, admitted_at: &str| {
            let to = format!("gate = {gate}, gate_max = {max}, admitted_at = {admitted_at}");
            format!("UPDATE attempt SET {to} WHERE {rows}")
        };
        let (breaks, mends) = (set("'g'", "1", admitted_at), set("NULL", "NULL", "NULL"));
        Damage { check, of, breaks, mends, follows: &[] }
    };
    let both = format!("({}) OR ({})", row(books.queued), row(books.running));
    vec![
        gate(ADMITTED, None, &both, "1"),
        // One without a number beside them hides nothing.
        Damage {
            breaks: format!(
                "{} UPDATE attempt SET gate = 'g', admitted_at = 1 WHERE {}",
                gate(ADMITTED, None, &both, "1").breaks + ";",
                row(books.retrying) + " AND attempt_no = 2"
            ),
            mends: format!(
                "{} UPDATE attempt SET gate = NULL, admitted_at = NULL WHERE {}",
                gate(ADMITTED, None, &both, "1").mends + ";",
                row(books.retrying) + " AND attempt_no = 2"
            ),
            ..gate(ADMITTED, None, &both, "1")
        },
        gate(KEPT_SLOT, Some(books.done), &row(books.done), "1"),
        gate(UNADMITTED, Some(books.running), &row(books.running), "NULL"),
    ]
}

/// What can be done to the inbox and to schedules.
pub(super) fn to_ticks<W: World>(books: &Books) -> Vec<Damage> {
    let (queued, done) = (W::id(books.queued), W::id(books.done));
    let row = |taken_at: &str, job_id: &str, key: &str, code: &str| {
        format!(
            "INSERT INTO inbox (submitted_at, taken_at, job_id, envelope, dedup_key, error_code)
             VALUES (2, {taken_at}, {job_id}, '{{}}', {key}, {code})"
        )
    };
    let damage = |check, of, breaks| {
        let mends = "DELETE FROM inbox".to_owned();
        Damage { check, of, breaks, mends, follows: &[] }
    };
    let became = |sql: &str, tick: u64| {
        format!(
            "UPDATE job SET dedup_key = 's:nightly:1700000000001' WHERE job_id = {queued};
             INSERT INTO schedule (tenant_id, schedule_id, cron, zone, missed, envelope, version,
                 created_at, last_tick)
             VALUES ('{TENANT}', 'nightly', '* * * * *', 'UTC', 0, '{{}}', 1, 1, {tick}); {sql}"
        )
    };
    let ticked = row("2", &queued, "'s:nightly:1700000000001'", "NULL");
    vec![
        damage(INBOX, None, row("2", "NULL", "NULL", "NULL")),
        damage(INBOX, None, row("NULL", "NULL", "NULL", "'REFUSED'")),
        damage(INBOX, Some(books.done), row("2", &done, "NULL", "'REFUSED'")),
        damage(OTHER_JOB, Some(books.done), row("2", &done, "'s:nightly:1700000000001'", "NULL")),
        Damage {
            mends: format!(
                "DELETE FROM inbox; DELETE FROM schedule;
                 UPDATE job SET dedup_key = 'k:queued' WHERE job_id = {queued}"
            ),
            ..damage(AHEAD, Some(books.queued), became(&ticked, 1_700_000_000_000))
        },
    ]
}
