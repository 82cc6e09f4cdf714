//! The commit lane by itself: arrivals in, runs out (R1 to R13, S39).

use std::sync::{Arc, Mutex};

use serde_json::Value;
use sprag_kernel::error::Code;
use sprag_lanes::{Batch, Drain, ErrorClass, Sink, SinkError, Verdict};

const COALESCING: &str = include_str!("../fixtures/coalescing.json");

type Written = Arc<Mutex<Vec<(u64, u64)>>>;

/// A sink that notes (seq, payload) of every write.
struct Notes(Written);

impl Sink<u64> for Notes {
    fn commit(&mut self, batch: &mut Batch<u64>) -> Result<(), SinkError> {
        for (seq, envelope) in batch.iter() {
            if let Verdict::Success(payload) = envelope.verdict {
                self.0.lock().unwrap().push((seq, *payload));
            }
        }
        Ok(())
    }
}

fn drain_of(total: u64, cap: u64) -> (Drain<u64, Notes>, Written) {
    let written = Written::default();
    (Drain::new(total, Notes(Arc::clone(&written)), cap), written)
}

/// The runs that come of these arrivals, drained after each, and the cursor at the end.
fn runs(arrivals: &[u64], total: u64) -> (Vec<(u64, u64)>, u64) {
    let (mut drain, written) = drain_of(total, u64::MAX);
    let mut runs = Vec::new();
    for seq in arrivals {
        drain.arrive(*seq, Verdict::Success(seq * 10)).unwrap();
        runs.extend(drain.drain().unwrap());
    }
    let cursor = drain.resume().cursor;
    let expected: Vec<_> = (0..cursor).map(|seq| (seq, seq * 10)).collect();
    assert_eq!(*written.lock().unwrap(), expected, "in order, without a gap, once");
    (runs, cursor)
}

#[test]
fn r1_a_scrambled_arrival_of_24_commits_in_four_runs() {
    let mut arrivals: Vec<u64> = (0..24).collect();
    arrivals.sort_by_key(|a| (a * 17) % 24);
    assert_eq!(runs(&arrivals, 24), (vec![(0, 0), (1, 3), (4, 6), (7, 23)], 24));
}

#[test]
fn r2_arrivals_in_order_commit_one_by_one() {
    assert_eq!(runs(&[0, 1, 2], 3), (vec![(0, 0), (1, 1), (2, 2)], 3));
}

#[test]
fn r3_arrivals_in_reverse_commit_as_one_run() {
    assert_eq!(runs(&[2, 1, 0], 3), (vec![(0, 2)], 3));
}

#[test]
fn r4_a_gap_splits_the_runs() {
    assert_eq!(runs(&[1, 3, 0, 2], 4), (vec![(0, 1), (2, 3)], 4));
}

#[test]
fn r6_nothing_is_written_while_the_cursor_is_missing() {
    assert_eq!(runs(&[1, 2, 3], 4), (vec![], 0));
}

#[test]
fn r7_a_late_tail_joins_the_last_run() {
    assert_eq!(runs(&[3, 0, 1, 2], 4), (vec![(0, 0), (1, 1), (2, 3)], 4));
}

#[test]
fn r8_an_empty_drain_is_complete_at_once() {
    let (drain, _) = drain_of(0, u64::MAX);
    assert!(drain.is_complete());
    assert_eq!(drain.resume().cursor, 0);
}

#[test]
fn the_coalescing_vectors_hold() {
    let vectors: Vec<Value> = serde_json::from_str(COALESCING).unwrap();
    assert_eq!(vectors.len(), 8);
    let numbers = |value: &Value| -> Vec<u64> {
        value.as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect()
    };
    for vector in &vectors {
        let expected = vector["runs"].as_array().unwrap();
        let expected =
            expected.iter().map(|run| (run[0].as_u64().unwrap(), run[1].as_u64().unwrap()));
        let total = vector["total"].as_u64().unwrap();
        let cursor = vector["next_commit_seq"].as_u64().unwrap();
        assert_eq!(runs(&numbers(&vector["arrivals"]), total), (expected.collect(), cursor));
    }
}

#[test]
fn r9_a_skip_between_two_successes_is_committed_without_a_write() {
    let batches = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&batches);
    let sink = move |batch: &mut Batch<u64>| {
        notes.lock().unwrap().push((batch.seqs(), batch.writes()));
        Ok(())
    };
    let mut drain = Drain::new(3, sink, u64::MAX);
    drain.arrive(2, Verdict::Success(2)).unwrap();
    drain.arrive(1, Verdict::Skip("not needed".into())).unwrap();
    drain.arrive(0, Verdict::Success(0)).unwrap();
    drain.drain().unwrap();
    assert_eq!(*batches.lock().unwrap(), [(3, 2)], "one batch, three seqs, two writes");
}

#[test]
fn r13_a_run_that_does_not_begin_at_the_cursor_is_refused_and_nothing_written() {
    let (mut drain, written) = drain_of(5, u64::MAX);
    for seq in [0, 1, 2, 4] {
        drain.arrive(seq, Verdict::Success(seq)).unwrap();
    }
    drain.drain().unwrap();
    assert_eq!(drain.resume().cursor, 3);
    assert_eq!(drain.commit_from(4).unwrap_err().code(), Code::SeqNotCursor);
    assert_eq!(written.lock().unwrap().len(), 3);
    assert_eq!(drain.resume().cursor, 3);
}

#[test]
fn s39_mixed_outcomes_are_all_committed_and_only_the_success_is_written() {
    let (mut drain, written) = drain_of(4, u64::MAX);
    drain.arrive(3, Verdict::Cancel).unwrap();
    drain.arrive(2, Verdict::Fail(ErrorClass::NonRetryableSchema, "no".into())).unwrap();
    drain.arrive(1, Verdict::Skip("no".into())).unwrap();
    drain.arrive(0, Verdict::Success(9)).unwrap();
    assert_eq!(drain.drain().unwrap(), [(0, 3)]);
    assert!(drain.is_complete());
    let counts = drain.resume().counts;
    assert_eq!((counts.success, counts.skip, counts.fail, counts.cancel), (1, 1, 1, 1));
    assert_eq!(*written.lock().unwrap(), [(0, 9)]);
}

#[test]
fn a_byte_cap_cuts_a_run_without_reordering() {
    let (mut drain, written) = drain_of(5, 16);
    for seq in [4, 3, 2, 1, 0] {
        drain.arrive(seq, Verdict::Success(seq)).unwrap();
    }
    assert_eq!(drain.drain().unwrap(), [(0, 1), (2, 3), (4, 4)], "8 bytes each, 16 at most");
    assert_eq!(written.lock().unwrap().len(), 5);
}

#[test]
fn a_second_outcome_for_a_seq_is_refused() {
    let (mut drain, _) = drain_of(2, u64::MAX);
    drain.arrive(1, Verdict::Success(1)).unwrap();
    assert_eq!(
        drain.arrive(1, Verdict::Success(2)).unwrap_err().code(),
        Code::SeqIllegalTransition
    );
    assert_eq!(drain.arrive(2, Verdict::Success(2)).unwrap_err().code(), Code::SeqUnknown);
}
