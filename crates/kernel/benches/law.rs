//! What the rules cost: decisions, canonical hashes beside a bare SHA-256, planned entries.
//!
//! Prints Markdown. Both sides of a comparison run in turns and the best round counts, since a
//! shared machine only ever adds time. Run: `cargo bench -p sprag-kernel --profile dev`.

use std::fmt::Write as _;
use std::hint::black_box;
use std::time::Instant;

use sprag_kernel::decide::callback::{self, Report, Stored};
use sprag_kernel::decide::leg1::{self, Leg1};
use sprag_kernel::decide::leg2;
use sprag_kernel::decide::rows::{AttemptRow, Fence, JobRow, LeaseId, Terms};
use sprag_kernel::decide::submit::create;
use sprag_kernel::keys::{Hash, envelope_hash};
use sprag_kernel::planner::{Entry, PlanConfig, PlanHasher, Planner};
use sprag_kernel::retry::RetryPolicy;
use sprag_kernel::{JobState, OutboxState, StepState};

const ROUNDS: usize = 15;
const DECISIONS: u32 = 200_000;
const ENVELOPE_BYTES: usize = 1 << 20;
const ENTRIES: u64 = 2_000_000;

fn main() {
    decisions();
    hashes();
    plans();
}

/// Seconds of the fastest of several rounds.
fn best(mut work: impl FnMut()) -> f64 {
    (0..ROUNDS).map(|_| timed(&mut work)).fold(f64::INFINITY, f64::min)
}

/// As [`best`], for two sides that take turns.
fn best_of_two(mut one: impl FnMut(), mut other: impl FnMut()) -> (f64, f64) {
    let rounds = (0..ROUNDS).map(|_| (timed(&mut one), timed(&mut other)));
    rounds.fold((f64::INFINITY, f64::INFINITY), |best, now| (best.0.min(now.0), best.1.min(now.1)))
}

fn timed(work: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    work();
    start.elapsed().as_secs_f64()
}

fn decisions() {
    let policy = RetryPolicy::default();
    let terms = Terms { now: 1_000, policy: &policy };
    let (queued, attempts) = create(3);
    let lease = policy.lease(LeaseId(7), 0);
    let fence = Fence { attempt_no: 1, lease_id: LeaseId(7) };
    let content = Hash::of(b"result");

    let entered =
        AttemptRow { ledger: attempts[0].ledger.enter_leg1().expect("fresh"), ..attempts[0] };
    let Ok(Leg1::Dispatch(dispatch)) = leg1::dispatch(&queued, &entered, lease) else {
        panic!("a fresh job is dispatched")
    };
    let awaiting = AttemptRow {
        state: StepState::AwaitingAck,
        lease_id: Some(LeaseId(7)),
        ledger: dispatch.ledger,
        outbox: Some(OutboxState::Sent),
        ..entered
    };
    let dispatching = JobRow { state: JobState::Dispatching, ..queued };
    let running = AttemptRow { state: StepState::InProgress, acked: true, ..awaiting };
    let in_progress = JobRow { state: JobState::InProgress, ..queued };
    let Ok(Stored::Accepted(stored)) =
        callback::result(&running, fence, Report::Succeeded, content)
    else {
        panic!("a running attempt takes a result")
    };
    let ending = AttemptRow { ledger: stored.ledger, ending: Some(stored.ending), ..running };

    println!("| decision | ns | target |\n|---|---:|---:|");
    row("dispatch", || {
        _ = black_box(leg1::dispatch(black_box(&queued), black_box(&entered), lease));
    });
    row("ack", || {
        _ = black_box(callback::ack(black_box(&dispatching), black_box(&awaiting), fence, terms));
    });
    row("result", || {
        _ = black_box(callback::result(black_box(&running), fence, Report::Succeeded, content));
    });
    row("finish", || {
        _ = black_box(leg2::finish(black_box(&in_progress), black_box(&ending), terms));
    });
    println!();
}

fn row(name: &str, decide: impl Fn()) {
    let seconds = best(|| (0..DECISIONS).for_each(|_| decide()));
    println!("| {name} | {:.1} | 200 |", seconds * 1e9 / f64::from(DECISIONS));
}

fn hashes() {
    println!("| 1 MiB envelope | bare SHA-256, MB/s | canonical hash, MB/s | ratio | target |");
    println!("|---|---:|---:|---:|---:|");
    for (name, payload) in [
        ("compact, sorted", compact as fn(&mut String, usize)),
        ("pretty-printed, unsorted", pretty),
        ("small numbers and strings", small),
    ] {
        let text = envelope(payload);
        let bytes = text.as_bytes();
        let (bare, canonical) = best_of_two(
            || _ = black_box(Hash::of(black_box(bytes))),
            || _ = black_box(envelope_hash(black_box(bytes))),
        );
        let rate = |seconds: f64| bytes.len() as f64 / 1e6 / seconds;
        let (bare, canonical) = (rate(bare), rate(canonical));
        println!("| {name} | {bare:.0} | {canonical:.0} | {:.2} | 0.30 |", canonical / bare);
    }
    println!();
}

/// An envelope of one MiB whose payload is a list of these items.
fn envelope(item: fn(&mut String, usize)) -> String {
    let mut text = String::from(r#"{"input_ref":"in","output_ref":"out","payload":["#);
    for number in 0.. {
        item(&mut text, number);
        if text.len() >= ENVELOPE_BYTES {
            break;
        }
        text.push(',');
    }
    text + r#"],"request_type":"OCR","schema_version":"v1","tenant_id":"t1"}"#
}

fn compact(text: &mut String, number: usize) {
    write!(
        text,
        r#"{{"author":"Somebody Else","body":"a sentence of some length, as documents have them","id":{number},"pages":12,"title":"Report {number}"}}"#
    )
    .expect("writing to a string does not fail");
}

fn pretty(text: &mut String, number: usize) {
    write!(
        text,
        "\n  {{\n    \"title\": \"Report {number}\",\n    \"id\": {number},\n    \"body\": \"a sentence of some length, as documents have them\",\n    \"pages\": 12.0,\n    \"lang\": null,\n    \"author\": \"Somebody Else\"\n  }}"
    )
    .expect("writing to a string does not fail");
}

fn small(text: &mut String, number: usize) {
    write!(
        text,
        r#"[{},"k{}",{}.5,true,"",-{}]"#,
        number % 10,
        number % 7,
        number % 100,
        number % 1000
    )
    .expect("writing to a string does not fail");
}

fn plans() {
    let config = PlanConfig {
        target_cost: 60.0,
        max_cost: 120,
        max_bytes: 1 << 20,
        max_span: 64,
        min_entries: 1,
        max_entries: 32,
        adaptive: false,
        shrink: 0.75,
        grow: 1.2,
        commit_lag_soft: 64,
        buffered_bytes_soft: 1 << 20,
    };
    let entry = |seq: u64| Entry { cost: seq * 7 % 23, bytes: seq * 131 % 4_096 };
    let windows = best(|| {
        let mut planner = Planner::new(config);
        let cut = (0..ENTRIES).filter_map(|seq| planner.push(entry(black_box(seq)))).count();
        black_box((cut, planner.finish()));
    });
    let hashed = best(|| {
        let (mut planner, mut hasher) = (Planner::new(config), PlanHasher::new(&config));
        for seq in 0..ENTRIES {
            hasher.entry(entry(black_box(seq)));
            black_box(planner.push(entry(seq)));
        }
        black_box(hasher.digest());
    });
    println!("| planner | million entries/s | target |\n|---|---:|---:|");
    println!("| windows | {:.0} | 10 |", ENTRIES as f64 / 1e6 / windows);
    println!(
        "| windows and plan hash, no two neighbours equal | {:.1} | 10 |",
        ENTRIES as f64 / 1e6 / hashed
    );
}
