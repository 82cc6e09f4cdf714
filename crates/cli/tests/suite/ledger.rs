//! `sprag ledger explain`.

use serde_json::json;

use super::sprag;

#[test]
fn an_activity_ledger_is_read_field_by_field() {
    let said = sprag(&["ledger", "explain", "002110000000007", "--kind", "activity", "--json"], "");
    assert_eq!(
        said.json(),
        json!({
            "kind": "activity", "digits": "002110000000007", "leg1_entries": 2,
            "leg1_complete": true, "work_done": true, "children_spawned": false,
            "completion_tasks_done": false, "leg2_entries": 7, "dimension": 6,
        })
    );
}

#[test]
fn a_guid_ledger_is_read_field_by_field() {
    let said = sprag(&["ledger", "explain", "000111000000001", "--kind", "guid", "--json"], "");
    assert_eq!(
        said.json(),
        json!({
            "kind": "guid", "digits": "000111000000001", "job_closed": true, "work_done": true,
            "children_spawned": true, "completion_tasks_done": false, "ordinal": 1, "dimension": 0,
        })
    );
}

#[test]
fn the_dimension_of_a_fresh_ledger_is_null() {
    for kind in ["activity", "guid"] {
        let said = sprag(&["ledger", "explain", "000000000000000", "--kind", kind, "--json"], "");
        assert_eq!(said.json()["dimension"], serde_json::Value::Null);
    }
}

#[test]
fn the_drawing_says_what_happens_next() {
    let said = sprag(&["ledger", "explain", "000111000000001", "--kind", "guid"], "");
    assert!(said.stdout.contains("000  1 1 1 0  00000001"), "{}", said.stdout);
    assert!(said.stdout.contains("Step 3 runs the completion tasks"), "{}", said.stdout);
    let hanging: Vec<_> =
        said.stdout.lines().filter_map(|l| l.chars().position(|c| c == '└')).skip(1).collect();
    assert_eq!(hanging, [20, 13, 11, 9, 7, 3], "every line hangs under its digit");
}

#[test]
fn digits_without_a_history_are_refused_with_the_reason() {
    for (digits, kind, reason) in [
        ("000100000000000", "activity", "never entered"),
        ("001000000000001", "activity", "before Leg1 was done"),
        ("001200000000000", "activity", "above 1"),
        ("001111100000000", "activity", "never entered"),
        ("001000000000001", "guid", "reserved"),
        ("000101000000001", "guid", "before the work"),
        ("000011100000001", "guid", "did not close the job"),
    ] {
        let said = sprag(&["ledger", "explain", digits, "--kind", kind], "");
        said.refused("LEDGER_IMPOSSIBLE");
        assert!(said.stderr.contains(reason), "{digits}: {}", said.stderr);
    }
}

#[test]
fn anything_but_fifteen_digits_is_refused() {
    let long = "9".repeat(100_000);
    for digits in ["", "1", "00111110000000", "0011111000000011", "00111110000000a", &long] {
        sprag(&["ledger", "explain", digits], "").refused("LEDGER_DIGITS");
    }
}
