//! Who of those that wait at a limit may start, and when.

use proptest::prelude::*;
use sprag_kernel::decide::gate::{AHEAD_MS, Gate, LATE_MS, Limit};

const NOW: u64 = 1_700_000_000_000;

fn most(max: u32) -> Limit {
    Limit { max: Some(max), gap_us: None }
}

/// So many in so many milliseconds.
fn rate(max: u64, per_ms: u64) -> Limit {
    Limit { max: None, gap_us: Some((per_ms * 1_000).div_ceil(max)) }
}

fn gate(admitted: u32) -> Gate {
    Gate { admitted, arrival_us: 0, idle_since: None }
}

#[test]
fn as_many_start_as_there_is_room_for() {
    assert_eq!(gate(0).admit(NOW, [most(3); 5]), [NOW; 3]);
    assert_eq!(gate(2).admit(NOW, [most(3); 5]), [NOW]);
    assert_eq!(gate(3).admit(NOW, [most(3); 5]), [0; 0]);
    assert_eq!(gate(9).admit(NOW, [most(3); 5]), [0; 0], "the limit was lowered");
}

#[test]
fn each_is_bound_by_the_limit_it_brings_and_nobody_overtakes() {
    let mut found = gate(2);
    assert_eq!(
        found.admit(NOW, [most(4), most(3), most(9)]),
        [NOW],
        "the second holds up the third"
    );
    assert_eq!(found.admitted, 3);
    assert_eq!(gate(2).admit(NOW, [most(4), most(4), most(9)]), [NOW; 3]);
}

#[test]
fn starts_of_a_rate_are_apart_to_the_millisecond_and_given_out_ahead() {
    let mut found = gate(0);
    let starts = found.admit(NOW, [rate(3, 1_000); 99]);
    assert_eq!(&starts[..5], [NOW, NOW + 334, NOW + 667, NOW + 1_001, NOW + 1_334]);
    assert!(starts.iter().all(|start| *start <= NOW + AHEAD_MS));
    assert_eq!(found.admit(NOW, [rate(3, 1_000)]), [0; 0], "no further ahead");
    let next = found.admit(NOW + 10_000, [rate(3, 1_000)]);
    assert_eq!(next, [NOW + 10_000], "what was not used is not made up for");
}

#[test]
fn a_limit_may_have_a_number_and_a_rate() {
    let both = Limit { max: Some(2), ..rate(1, 500) };
    assert_eq!(gate(0).admit(NOW, [both; 5]), [NOW, NOW + 500]);
    assert_eq!(gate(1).admit(NOW, [both; 5]), [NOW]);
}

#[test]
fn while_a_start_is_not_taken_up_no_other_is_given_out_by_a_rate() {
    let idle = |since| Gate { idle_since: Some(since), ..gate(1) };
    assert_eq!(idle(NOW - LATE_MS).admit(NOW, [rate(1, 100); 5]), [0; 0]);
    assert_eq!(idle(NOW - LATE_MS + 1).admit(NOW, [rate(1, 900); 5]).len(), 3, "it is not late");
    assert_eq!(idle(NOW - LATE_MS).admit(NOW, [most(2); 5]), [NOW], "a number is held by slots");
    let both = Limit { max: Some(9), ..rate(1, 100) };
    assert_eq!(idle(0).admit(NOW, [most(2), both, most(9)]), [NOW], "nobody overtakes");
}

proptest! {
    /// Whenever somebody looks: in no span of the rate's length do more start than it says.
    #[test]
    fn no_span_of_time_has_more_starts_than_the_rate(
        max in 1_u64..50,
        per_ms in 1_u64..5_000,
        looks in prop::collection::vec((0_u64..3_000, 0_usize..80), 1..40),
    ) {
        let (mut found, mut now, mut starts) = (gate(0), NOW, Vec::new());
        for (later, waiting) in looks {
            now += later;
            starts.extend(found.admit(now, vec![rate(max, per_ms); waiting]));
        }
        prop_assert!(starts.is_sorted());
        for many in starts.windows(max as usize + 1) {
            prop_assert!(many[many.len() - 1] - many[0] >= per_ms, "{many:?}");
        }
    }
}
