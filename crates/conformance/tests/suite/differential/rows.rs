//! All that is stored, as text: every table with every column, the same on both stores.

use crate::on_both_stores;
use crate::play::Play;
use crate::world::{Rows, World};

/// Every table with its columns; `#` marks bytes.
pub const TABLES: [&str; 22] = [
    "meta key value",
    "engine engine_no name joined_at beat_at dead",
    "protocol protocol_id definition created_at",
    "job job_id# state version semaphore initial current_step steps attempts_total is_graph verdict events created_at \
     updated_at completed_at tenant_id request_type protocol_id dedup_key idempotency_key \
     idempotency_hash# mode doc_id lane routing_key priority correlation_id traceparent rerun_of# \
     error_code error_message schema_version input_ref output_ref payload",
    "attempt job_id# step_index branch turn attempt_no state version ledger guid ending content# \
     children closed_parked countdown delay_ms waits_for waits_until owner ready_at timer_at lease_id \
     lease_expires_at outbox publish_attempts sent_at acked_at losses excused created_at updated_at completed_at \
     priority step_id step_type service claim_id progress error_code error_message output output_ref item gate \
     gate_max gate_gap admitted_at child_id#",
    "signal job_id# n signal_id name decision content# payload said_by reason received_at step_index branch turn",
    "stale job_id# step_index branch turn callback code attempt_no lease_id times at",
    "inbox inbox_id envelope submitted_at taken_at job_id# dedup_key error_code error_message",
    "schedule tenant_id schedule_id cron zone missed envelope version created_at next_at last_tick paused_at",
    "event job_id# n at step_index branch turn attempt_no changes note",
    "request request_id# status version run_no job_id# events created_at updated_at tenant_id request_type \
     request_key# content_hash# plan_revision requirement inputs envelope protocol_id draft",
    "request_event request_id# n at changes",
    "service service paused_at",
    "served service seen_at",
    "tenant tenant_id max_open open_jobs",
    "gate gate arrival_us",
    "completion job_id# task deliveries due_at owner created_at delivered_at error_message",
    "retired tenant_id dedup_key idempotency_hash# job_id# state retired_at",
    "batch job_id# step_index branch turn attempt_no lease_id opened cursor success skip fail cancel first_failed \
     total out_bytes outcome_hash input_hash# created_at updated_at",
    "batch_journal job_id# step_index branch turn first_seq seqs at outcomes notes outputs",
    "job_count state jobs",
    "token token_id hash# scopes tenant_id label created_at expires_at revoked_at",
];

/// What is each store's own: where an event is in the order of commits, how those of a job and the job of a key are found,
/// and who counts.
const OWN: [&str; 10] = [
    "event.pos",
    "event.xid",
    "event.before",
    "job.last_event",
    "job_count.shard",
    "era.era",
    "era.writer",
    "era.filter",
    "job.era",
    "retired.era",
];

/// What people read instead, with all columns; compared when a world ends.
pub const VIEWS: [&str; 3] = [
    "job_view job_id# tenant_id request_type protocol_id mode doc_id state version idempotency_key \
     idempotency_hash# current_step_id current_step_index attempts_total created_at updated_at completed_at \
     error_code error_message correlation_id traceparent",
    "step job_id# step_index branch turn step_id step_type service state attempt_no version lease_id \
     lease_expires_at input_ref workspace_ref output_ref payload output resolved_mode lane \
     routing_key_used decision_source decision_reason last_error_code last_error_message ledger guid \
     created_at updated_at completed_at",
    "outbox outbox_id job_id# step_index branch turn attempt_no step_id lease_id version state attempts not_before \
     reason topic partition payload resolved_mode lane routing_key_used decision_source \
     decision_reason created_at sent_at updated_at",
];

/// Between columns, and in place of NULL.
pub const NEXT: char = '\u{1f}';
const NULL: &str = "~";

/// What a table is read from, and its columns as text.
fn shown<W: World>(table: &str) -> (&str, Vec<String>) {
    let (name, columns) = table.split_once(' ').unwrap();
    let from = match name {
        "job_count" => {
            "(SELECT state, sum(jobs) AS jobs FROM job_count GROUP BY state HAVING sum(jobs) <> 0)"
        }
        name => name,
    };
    let column = |column: &str| match column.strip_suffix('#') {
        Some(bytes) => W::hex(bytes),
        None => format!("CAST({column} AS text)"),
    };
    (from, columns.split_whitespace().map(column).collect())
}

/// All rows of a table as text.
pub async fn rows<W: World>(world: &W, table: &str) -> Rows {
    let (from, columns) = shown::<W>(table);
    let sql = format!("SELECT {} FROM {from} AS t", columns.join(", "));
    let mut rows = world.query(&sql).await.unwrap();
    rows.sort();
    rows
}

/// One query for all rows of all tables, and for the effects of work: a line each, with its table first.
pub fn everything<W: World>() -> String {
    let lines = |table: &&str| {
        let (from, columns) = shown::<W>(table);
        let name = table.split(' ').next().unwrap();
        let columns = columns.iter().map(|column| format!("coalesce({column}, '{NULL}')"));
        let columns: Vec<String> = columns.collect();
        format!("SELECT concat_ws('{NEXT}', '{name}', {}) FROM {from} AS t", columns.join(", "))
    };
    let effects = format!("SELECT concat_ws('{NEXT}', 'effect', name) FROM {}", W::EFFECTS);
    let all: Vec<String> = TABLES.iter().map(lines).chain([effects]).collect();
    all.join(" UNION ALL ")
}

/// The columns of a line of this table, if it is one.
pub fn columns<'a>(line: &'a str, table: &str) -> Option<Vec<&'a str>> {
    let mut columns = line.split(NEXT);
    (columns.next() == Some(table)).then(|| columns.collect())
}

on_both_stores! {
    async fn every_table_and_column_is_compared<W>(play: &Play<W>) {
        let found = play.world.query(W::COLUMNS).await.unwrap();
        let mut found: Vec<String> = found.into_iter().flatten().flatten().collect();
        found.retain(|column| !OWN.contains(&column.as_str()));
        found.sort();
        let mut compared: Vec<String> = Vec::new();
        for table in TABLES {
            let (name, columns) = table.split_once(' ').unwrap();
            let columns = columns.split_whitespace();
            compared.extend(columns.map(|column| format!("{name}.{}", column.trim_end_matches('#'))));
        }
        compared.sort();
        assert_eq!(found, compared);
    }
}
