//! The five tables, written a second time and independently of the kernel, and every pair of
//! states held against them.

use sprag_kernel::machine::{State, Wish};
use sprag_kernel::{Code, JobState, OutboxState, RequestStatus, SeqState, StepState};

/// One machine as this file knows it. Names only, so that nothing is read from the kernel.
struct Law {
    code: Code,
    states: &'static [&'static str],
    terminal: &'static [&'static str],
    /// From, to, triggers.
    legal: &'static [(&'static str, &'static str, &'static [&'static str])],
    /// Self pairs that are a success without change.
    forgiven: &'static [&'static str],
}

const SEQ: Law = Law {
    code: Code::SeqIllegalTransition,
    states: &[
        "UNSEEN",
        "DISPATCHED",
        "IN_FLIGHT",
        "TERMINAL_SUCCESS",
        "TERMINAL_SKIP",
        "TERMINAL_FAIL",
        "TERMINAL_CANCEL",
        "COMMITTED",
    ],
    terminal: &["COMMITTED"],
    legal: &[
        ("UNSEEN", "DISPATCHED", &["dispatch"]),
        ("DISPATCHED", "IN_FLIGHT", &["start"]),
        ("IN_FLIGHT", "TERMINAL_SUCCESS", &["succeed"]),
        ("IN_FLIGHT", "TERMINAL_SKIP", &["skip"]),
        ("IN_FLIGHT", "TERMINAL_FAIL", &["fail"]),
        ("DISPATCHED", "TERMINAL_CANCEL", &["cancel"]),
        ("IN_FLIGHT", "TERMINAL_CANCEL", &["cancel"]),
        ("TERMINAL_SUCCESS", "COMMITTED", &["commit"]),
        ("TERMINAL_SKIP", "COMMITTED", &["commit"]),
        ("TERMINAL_FAIL", "COMMITTED", &["commit"]),
        ("TERMINAL_CANCEL", "COMMITTED", &["commit"]),
        ("TERMINAL_FAIL", "DISPATCHED", &["retry"]),
    ],
    forgiven: &["COMMITTED"],
};

const JOB: Law = Law {
    code: Code::JobIllegalTransition,
    states: &[
        "QUEUED",
        "DISPATCHING",
        "IN_PROGRESS",
        "CANCELLING",
        "SUCCEEDED",
        "FAILED_FINAL",
        "CANCELLED",
    ],
    terminal: &["SUCCEEDED", "FAILED_FINAL", "CANCELLED"],
    legal: &[
        ("QUEUED", "DISPATCHING", &["first_step_outbox_created"]),
        ("DISPATCHING", "IN_PROGRESS", &["first_step_acked"]),
        ("IN_PROGRESS", "IN_PROGRESS", &["next_step_activated"]),
        ("IN_PROGRESS", "SUCCEEDED", &["last_step_succeeded"]),
        ("IN_PROGRESS", "FAILED_FINAL", &["step_failed_final"]),
        ("DISPATCHING", "FAILED_FINAL", &["step_failed_final"]),
        ("QUEUED", "CANCELLING", &["cancel_requested"]),
        ("DISPATCHING", "CANCELLING", &["cancel_requested"]),
        ("IN_PROGRESS", "CANCELLING", &["cancel_requested"]),
        ("CANCELLING", "CANCELLED", &["active_step_ended"]),
    ],
    forgiven: &["QUEUED", "DISPATCHING", "CANCELLING", "SUCCEEDED", "FAILED_FINAL", "CANCELLED"],
};

const STEP: Law = Law {
    code: Code::StepIllegalTransition,
    states: &[
        "PENDING",
        "DISPATCHING",
        "AWAITING_ACK",
        "IN_PROGRESS",
        "SUCCEEDED",
        "FAILED_RETRY",
        "FAILED_FINAL",
        "CANCELLED",
    ],
    terminal: &["SUCCEEDED", "FAILED_FINAL", "CANCELLED"],
    legal: &[
        ("PENDING", "DISPATCHING", &["outbox_created"]),
        ("DISPATCHING", "AWAITING_ACK", &["outbox_sent"]),
        ("AWAITING_ACK", "IN_PROGRESS", &["ack"]),
        ("IN_PROGRESS", "SUCCEEDED", &["result_success"]),
        (
            "IN_PROGRESS",
            "FAILED_FINAL",
            &[
                "result_non_retryable",
                "result_retryable_exhausted",
                "lease_expired_exhausted",
                "owner_lost_exhausted",
            ],
        ),
        ("IN_PROGRESS", "FAILED_RETRY", &["result_retryable", "lease_expired", "owner_lost"]),
        ("AWAITING_ACK", "FAILED_RETRY", &["ack_timeout", "owner_lost"]),
        ("AWAITING_ACK", "FAILED_FINAL", &["ack_timeout_exhausted", "owner_lost_exhausted"]),
        ("DISPATCHING", "FAILED_FINAL", &["outbox_failed_final"]),
        ("FAILED_RETRY", "DISPATCHING", &["retry_dispatch"]),
        ("PENDING", "CANCELLED", &["cancel_drained"]),
        ("DISPATCHING", "CANCELLED", &["cancel_drained"]),
        ("AWAITING_ACK", "CANCELLED", &["cancel_drained"]),
        ("IN_PROGRESS", "CANCELLED", &["cancel_drained"]),
        ("FAILED_RETRY", "CANCELLED", &["cancel_drained"]),
    ],
    forgiven: &[
        "PENDING",
        "DISPATCHING",
        "AWAITING_ACK",
        "IN_PROGRESS",
        "SUCCEEDED",
        "FAILED_RETRY",
        "FAILED_FINAL",
        "CANCELLED",
    ],
};

const OUTBOX: Law = Law {
    code: Code::OutboxIllegalTransition,
    states: &["PENDING", "SENT", "FAILED_FINAL"],
    terminal: &["SENT", "FAILED_FINAL"],
    legal: &[
        ("PENDING", "SENT", &["publish_succeeded"]),
        (
            "PENDING",
            "FAILED_FINAL",
            &["publish_failed_final", "superseded", "cancelled", "leg1_failed"],
        ),
    ],
    forgiven: &[],
};

const REQUEST: Law = Law {
    code: Code::JobIllegalTransition,
    states: &["created", "draft_ready", "confirmed", "queued", "running", "succeeded", "failed"],
    terminal: &["succeeded"],
    legal: &[
        ("created", "draft_ready", &["draft"]),
        ("draft_ready", "confirmed", &["confirm"]),
        ("confirmed", "queued", &["run"]),
        ("queued", "running", &["job_started"]),
        ("running", "succeeded", &["job_succeeded"]),
        ("running", "failed", &["job_failed"]),
        ("failed", "queued", &["retry"]),
    ],
    forgiven: &["created", "draft_ready", "confirmed", "queued", "running", "succeeded", "failed"],
};

/// What the pairs of different states came to.
#[derive(Debug, PartialEq, Eq)]
struct Count {
    pairs: usize,
    legal: usize,
}

fn named<S: State>(name: &str) -> S {
    S::from_name(name).unwrap_or_else(|| panic!("the kernel has no state {name}"))
}

/// Holds every pair of the law's states against the kernel; returns how many there were.
fn hold_pairs<S: State>(law: &Law) -> Count {
    let mut count = Count { pairs: 0, legal: 0 };
    for from in law.states {
        for to in law.states.iter().filter(|to| *to != from) {
            count.pairs += 1;
            let row = law.legal.iter().find(|(a, b, _)| a == from && b == to);
            match (row, named::<S>(from).wish(named(to))) {
                (Some((_, _, triggers)), Ok(Wish::Legal(found))) => {
                    count.legal += 1;
                    let spelled: Vec<_> =
                        found.triggers.iter().map(|trigger| S::trigger_name(*trigger)).collect();
                    assert_eq!(spelled, *triggers, "{from} > {to}");
                    assert!(!found.precondition.is_empty(), "{from} > {to}");
                }
                (None, Err(refusal)) => {
                    assert_eq!(refusal.code(), law.code, "{from} > {to}");
                    let field = |name| refusal.field(name).map(ToString::to_string);
                    assert_eq!(field("from").as_deref(), Some(*from));
                    assert_eq!(field("to").as_deref(), Some(*to));
                }
                (_, answer) => panic!("{from} > {to}: {answer:?}"),
            }
        }
    }
    count
}

/// Holds the states, the triggers and the ends of a machine against its law.
fn hold_shape<S: State>(law: &Law) {
    let machine = S::machine();
    assert_eq!(machine.initial.name(), law.states[0]);
    for (code, name) in law.states.iter().enumerate() {
        let state = named::<S>(name);
        assert_eq!(S::from_code(state.code()), Some(state));
        // A state is terminal if and only if nothing leaves it for another one.
        let leaves = law.legal.iter().any(|(from, to, _)| from == name && to != name);
        assert_eq!(law.terminal.contains(name), !leaves, "{name}: this file contradicts itself");
        assert_eq!(state.is_terminal(), !leaves, "{name}");
        assert_eq!(usize::from(state.code()), code, "{name}");
    }
    for trigger in machine.triggers {
        let name = S::trigger_name(*trigger);
        if name == "condition_false" {
            continue; // The extension has its own test.
        }
        let mut targets = Vec::new();
        for from in law.states {
            let rows: Vec<_> = law
                .legal
                .iter()
                .filter(|(a, _, triggers)| a == from && triggers.contains(&name))
                .map(|(_, to, _)| named::<S>(to))
                .collect();
            assert!(rows.len() <= 1, "{from} on {name} has one next state");
            assert_eq!(named::<S>(from).next(*trigger), rows.first().copied(), "{from} on {name}");
            match named::<S>(from).on(*trigger) {
                Ok(change) => {
                    assert_eq!(Some(&change.to()), rows.first());
                    assert_eq!((change.from().name(), change.trigger()), (*from, *trigger));
                    targets.push(change.to());
                }
                Err(refusal) => {
                    assert!(rows.is_empty());
                    assert_eq!(refusal.code(), law.code, "{from} on {name}");
                    let field = |name| refusal.field(name).map(ToString::to_string);
                    assert_eq!(field("from").as_deref(), Some(*from));
                    assert_eq!(field("trigger").as_deref(), Some(name));
                    let attempted = law.legal.iter().find(|(_, _, on)| on.contains(&name));
                    assert_eq!(field("to").as_deref(), attempted.map(|(_, to, _)| *to));
                }
            }
        }
        targets.dedup();
        assert_eq!(targets.len(), 1, "{name} is used, and leads to one state");
    }
}

/// Holds the self pairs that the table does not have against the machine's policy.
fn hold_self_pairs<S: State>(law: &Law) {
    for name in law.states {
        let state = named::<S>(name);
        let in_table = law.legal.iter().any(|(from, to, _)| from == name && to == name);
        match state.wish(state) {
            Ok(Wish::Legal(_)) => assert!(in_table, "{name}"),
            Ok(Wish::Same) => assert!(!in_table && law.forgiven.contains(name), "{name}"),
            Err(refusal) => {
                assert!(!in_table && !law.forgiven.contains(name), "{name}");
                assert_eq!(refusal.code(), law.code);
            }
        }
    }
}

#[test]
fn s_all_56_seq_pairs_follow_the_table_and_12_are_legal() {
    assert_eq!(hold_pairs::<SeqState>(&SEQ), Count { pairs: 56, legal: 12 });
    hold_shape::<SeqState>(&SEQ);
}

#[test]
fn s16_of_the_8_seq_self_pairs_only_committed_again_is_forgiven() {
    hold_self_pairs::<SeqState>(&SEQ);
}

#[test]
fn j10_all_42_job_pairs_follow_the_table_and_33_are_refused() {
    assert_eq!(hold_pairs::<JobState>(&JOB), Count { pairs: 42, legal: 9 });
    assert_eq!(JobState::machine().transitions.len(), 10, "and the self pair IN_PROGRESS");
    hold_shape::<JobState>(&JOB);
}

#[test]
fn a_job_in_progress_may_become_in_progress_and_every_other_self_pair_is_a_no_op() {
    hold_self_pairs::<JobState>(&JOB);
    let state = JobState::InProgress;
    assert!(matches!(state.wish(state), Ok(Wish::Legal(_))));
}

#[test]
fn t23_all_56_step_pairs_follow_the_table_and_41_are_refused() {
    assert_eq!(hold_pairs::<StepState>(&STEP), Count { pairs: 56, legal: 15 });
    hold_shape::<StepState>(&STEP);
    hold_self_pairs::<StepState>(&STEP);
}

#[test]
fn t24_nothing_leaves_the_three_terminal_step_states() {
    let mut refused = 0;
    for from in STEP.terminal {
        for to in STEP.states.iter().filter(|to| *to != from) {
            assert!(named::<StepState>(from).wish(named(to)).is_err());
            refused += 1;
        }
    }
    assert_eq!(refused, 3 * 7);
}

#[test]
fn the_extension_adds_skipped_and_only_the_pair_pending_to_skipped() {
    let skipped = StepState::Skipped;
    assert!(skipped.is_terminal());
    for name in STEP.states {
        let state = named::<StepState>(name);
        assert_eq!(state.wish(skipped).is_ok(), *name == "PENDING", "{name} > SKIPPED");
        assert!(skipped.wish(state).is_err(), "SKIPPED > {name}");
    }
    assert_eq!(StepState::machine().transitions.len(), 16);
    assert_eq!(StepState::machine().states.len(), 9);
}

#[test]
fn o3_all_6_outbox_pairs_follow_the_table_and_a_closed_row_never_moves() {
    assert_eq!(hold_pairs::<OutboxState>(&OUTBOX), Count { pairs: 6, legal: 2 });
    hold_shape::<OutboxState>(&OUTBOX);
    hold_self_pairs::<OutboxState>(&OUTBOX);
}

#[test]
fn q2_all_42_request_pairs_follow_the_table_and_35_are_refused() {
    assert_eq!(hold_pairs::<RequestStatus>(&REQUEST), Count { pairs: 42, legal: 7 });
    hold_shape::<RequestStatus>(&REQUEST);
}

#[test]
fn q3_the_7_same_status_wishes_are_no_ops() {
    hold_self_pairs::<RequestStatus>(&REQUEST);
    assert_eq!(REQUEST.forgiven.len(), 7);
}

#[test]
fn additions_and_extensions_are_marked_and_everything_else_is_from_the_specification() {
    let marked = |sheet: &sprag_kernel::machine::Sheet| -> Vec<String> {
        let rows = sheet.transitions.iter();
        rows.filter(|row| row.origin != sprag_kernel::machine::Origin::Spec)
            .map(|row| format!("{} {} > {} {:?}", sheet.name, row.from, row.to, row.origin))
            .collect()
    };
    let all: Vec<String> = sprag_kernel::machines::sheets().iter().flat_map(marked).collect();
    let expected = [
        "job DISPATCHING > FAILED_FINAL Addition",
        "step AWAITING_ACK > FAILED_FINAL Addition",
        "step DISPATCHING > FAILED_FINAL Addition",
        "step PENDING > SKIPPED Extension",
    ];
    assert_eq!(all, expected);
}

#[test]
fn names_and_codes_that_no_machine_has_are_unknown() {
    assert_eq!(JobState::from_name("queued"), None);
    assert_eq!(RequestStatus::from_name("QUEUED"), None);
    assert_eq!(SeqState::from_code(8), None);
    assert_eq!(OutboxState::from_code(3), None);
}
