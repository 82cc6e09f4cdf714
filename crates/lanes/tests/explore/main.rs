//! The runtime under a schedule explorer.
//!
//! The files of the crate are compiled once more, with the explorer's locks, atomics and threads in the
//! place of the standard ones, so what is explored is the code that ships. A second test binary, since
//! one binary cannot hold both builds. Each scenario is small and is run under very many schedules,
//! random ones and ones with few, well-placed preemptions; more than a million in all. A lost wake-up
//! is a deadlock, and deadlocks are reported. Planted faults prove that the net holds.

#![allow(clippy::unwrap_used, dead_code, missing_docs, unreachable_pub)]

#[path = "../../src/batch.rs"]
mod batch;
#[path = "../../src/bell.rs"]
mod bell;
#[path = "../../src/claim.rs"]
mod claim;
#[path = "../../src/clock.rs"]
mod clock;
#[path = "../../src/commit.rs"]
mod commit;
#[path = "../../src/config.rs"]
mod config;
#[path = "../../src/control.rs"]
mod control;
#[path = "../../src/dispatch.rs"]
mod dispatch;
#[path = "../../src/failure.rs"]
mod failure;
mod fault;
#[path = "../../src/handoff.rs"]
mod handoff;
#[path = "../../src/input.rs"]
mod input;
#[path = "../../src/lanes.rs"]
mod lanes;
#[path = "../../src/ledger.rs"]
mod ledger;
#[path = "../../src/observe.rs"]
mod observe;
#[path = "../../src/outcome.rs"]
mod outcome;
#[path = "../../src/pressure.rs"]
mod pressure;
#[path = "../../src/reclaim.rs"]
mod reclaim;
#[path = "../../src/retries.rs"]
mod retries;
#[path = "../../src/runs.rs"]
mod runs;
#[path = "../../src/runtime.rs"]
mod runtime;
mod scenarios;
#[path = "../../src/sealed.rs"]
mod sealed;
#[path = "../../src/seq_ledger.rs"]
mod seq_ledger;
#[path = "../../src/sink.rs"]
mod sink;
#[path = "../../src/source.rs"]
mod source;
#[path = "../../src/summary.rs"]
mod summary;
#[path = "../../src/supervisor.rs"]
mod supervisor;
mod sync;
#[path = "../../src/tally.rs"]
mod tally;
#[path = "../../src/trail.rs"]
mod trail;
#[path = "../../src/windows.rs"]
mod windows;
#[path = "../../src/worker.rs"]
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};

use fault::{Fault, with_planted};
use shuttle::scheduler::{PctScheduler, RandomScheduler};
use shuttle::{Config, Runner};

/// Preemptions per schedule in the half that places them.
const DEPTH: usize = 3;
/// A planted fault must show within so many schedules.
const FAULT_SCHEDULES: usize = 20_000;

/// Runs a scenario under so many schedules, half random, half with few preemptions.
fn explore(scenario: fn(), schedules: usize) {
    let half = schedules / 2;
    let random = RandomScheduler::new_from_seed(0x0005_94A6, half);
    let few = PctScheduler::new_from_seed(0x0005_94A6, DEPTH, half);
    let run = Runner::new(random, Config::new()).run(scenario)
        + Runner::new(few, Config::new()).run(scenario);
    assert_eq!(run, schedules, "every schedule was run");
}

/// As [`explore`], of runs with claims of more than one seq among them.
fn explore_large_claims(scenario: fn(), schedules: usize) {
    let before = scenarios::LARGE_CLAIMS.get();
    explore(scenario, schedules);
    let seen = scenarios::LARGE_CLAIMS.get() - before;
    assert!(seen > schedules as u64 / 100, "only {seen} batches in {schedules} runs had one");
}

/// Whether exploring the scenario with this fault in place fails, as it must.
fn is_caught(fault: Fault, scenario: fn()) -> bool {
    with_planted(fault, || {
        catch_unwind(AssertUnwindSafe(|| explore(scenario, FAULT_SCHEDULES))).is_err()
    })
}

#[test]
fn envelopes_handed_over_by_three_threads_are_committed_in_order_and_none_is_left() {
    explore(scenarios::hand_off, 500_000);
}

#[test]
fn a_late_result_never_replaces_that_of_the_new_owner() {
    explore(scenarios::reclaim_against_result, 400_000);
}

#[test]
fn a_cancel_and_a_result_leave_one_outcome() {
    explore(scenarios::cancel_against_result, 100_000);
}

#[test]
fn a_run_with_retries_ends_like_a_sequential_one() {
    explore(scenarios::run_with_retries, 60_000);
}

#[test]
fn a_run_that_is_cancelled_from_outside_gives_every_seq_an_outcome() {
    explore(scenarios::run_cancelled, 60_000);
}

#[test]
fn a_stream_that_is_cancelled_from_outside_gives_every_seq_that_was_read_an_outcome() {
    explore_large_claims(scenarios::stream_cancelled, 40_000);
}

#[test]
fn a_run_that_is_stopped_from_outside_commits_a_prefix() {
    explore_large_claims(scenarios::run_stopped, 40_000);
}

#[test]
fn a_run_whose_leases_expire_commits_every_seq_once() {
    explore_large_claims(scenarios::run_with_expiring_leases, 40_000);
}

#[test]
fn a_run_that_loses_an_envelope_ends_with_a_stall_and_not_with_a_hang() {
    with_planted(Fault::LostEnvelope, || {
        explore(scenarios::run_that_stalls, 2_000);
        explore(scenarios::stream_that_stalls, 2_000);
    });
}

#[test]
fn a_batch_written_outside_of_the_lock_is_caught() {
    assert!(is_caught(Fault::AppendOutsideLock, scenarios::hand_off));
}

#[test]
fn a_commit_past_a_gap_is_caught() {
    assert!(is_caught(Fault::CommitPastGap, scenarios::hand_off));
}

#[test]
fn a_hand_off_without_a_second_look_is_caught() {
    assert!(is_caught(Fault::LostHandOff, scenarios::hand_off));
}

#[test]
fn a_result_taken_without_its_generation_is_caught() {
    assert!(is_caught(Fault::MissingGeneration, scenarios::reclaim_against_result));
    assert!(is_caught(Fault::MissingGeneration, scenarios::run_with_expiring_leases));
}
