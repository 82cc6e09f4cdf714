//! `sprag plan`.

use std::io::Write;

use serde_json::{Value, json};
use tempfile::NamedTempFile;

use super::{Said, sprag};

fn config(overrides: &Value) -> Value {
    let mut config = json!({
        "targetCost": 30, "maxCost": 50, "maxBytes": 200, "maxSpan": 8, "minEntries": 1,
        "maxEntries": 4, "adaptive": false, "shrink": 0.75, "grow": 1.2, "commitLagSoft": 64,
        "bufferedBytesSoft": 160,
    });
    for (name, value) in overrides.as_object().unwrap() {
        config[name] = value.clone();
    }
    config
}

fn plan(config: &Value, entries: &str) -> Said {
    let mut file = NamedTempFile::new().unwrap();
    write!(file, "{config}").unwrap();
    sprag(&["plan", "--config", file.path().to_str().unwrap()], entries)
}

fn lines(said: &Said) -> Vec<Value> {
    said.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn one_line_per_window_and_a_last_line_with_the_hash() {
    let said = plan(&config(&json!({})), &"{\"cost\":10,\"bytes\":32}\n".repeat(4));
    let lines = lines(&said);
    assert_eq!(
        lines[..2],
        [
            json!({"window": 0, "start": 0, "end": 2, "cost": 30, "bytes": 96, "entries": 3}),
            json!({"window": 1, "start": 3, "end": 3, "cost": 10, "bytes": 32, "entries": 1}),
        ]
    );
    assert_eq!(lines[2]["plan_hash"].as_str().unwrap().len(), 64);
    assert_eq!(lines.len(), 3);
}

#[test]
fn a_snapshot_changes_an_adaptive_plan_and_its_hash() {
    let entries = "{\"cost\":10,\"bytes\":16}\n".repeat(24);
    let base = json!({
        "targetCost": 60, "maxCost": 120, "maxBytes": 1024, "maxSpan": 64, "maxEntries": 12,
        "adaptive": true, "shrink": 0.5, "grow": 1.5, "commitLagSoft": 8, "bufferedBytesSoft": 256,
    });
    let mut behind = base.clone();
    behind["snapshot"] = json!({"commitLag": 50, "bufferedBytes": 500, "util": 0.9});
    let (calm, behind) = (plan(&config(&base), &entries), plan(&config(&behind), &entries));
    assert_eq!((lines(&calm).len(), lines(&behind).len()), (4 + 1, 8 + 1));
    assert_ne!(lines(&calm)[4], lines(&behind)[8]);
}

#[test]
fn every_config_field_and_every_entry_is_in_the_hash() {
    let entries = "{\"cost\":10,\"bytes\":32}\n".repeat(5);
    let hash = |overrides: Value, entries: &str| {
        lines(&plan(&config(&overrides), entries)).last().unwrap()["plan_hash"].clone()
    };
    let first = hash(json!({}), &entries);
    assert_eq!(first, hash(json!({}), &entries), "same input, same hash");
    for changed in [
        json!({"targetCost": 31}),
        json!({"maxCost": 51}),
        json!({"maxBytes": 201}),
        json!({"maxSpan": 9}),
        json!({"minEntries": 2}),
        json!({"maxEntries": 5}),
        json!({"adaptive": true}),
        json!({"shrink": 0.7}),
        json!({"grow": 1.3}),
        json!({"commitLagSoft": 65}),
        json!({"bufferedBytesSoft": 161}),
    ] {
        assert_ne!(first, hash(changed.clone(), &entries), "{changed}");
    }
    assert_ne!(first, hash(json!({}), &entries.replacen("10", "11", 1)));
    assert_ne!(first, hash(json!({}), &"{\"cost\":10,\"bytes\":32}\n".repeat(6)));
}

#[test]
fn no_entries_make_no_windows() {
    assert_eq!(lines(&plan(&config(&json!({})), "")).len(), 1);
}

#[test]
fn bad_entries_are_refused_with_their_line() {
    let good = "{\"cost\":1,\"bytes\":1}\n";
    for (bad, code) in [
        ("{\"cost\":-1,\"bytes\":1}", "PLAN_ENTRY_INVALID"),
        ("{\"cost\":1.5,\"bytes\":1}", "PLAN_ENTRY_INVALID"),
        ("{\"cost\":1}", "PLAN_ENTRY_INVALID"),
        ("{\"cost\":1,\"bytes\":1,\"size\":1}", "PLAN_ENTRY_INVALID"),
        ("nonsense", "PLAN_ENTRY_INVALID"),
        ("{\"cost\":9007199254740992,\"bytes\":1}", "NUMBER_RANGE"),
    ] {
        let said = plan(&config(&json!({})), &format!("{good}\n{bad}\n{good}"));
        said.refused(code);
        assert!(said.stderr.contains("line: 3"), "{}", said.stderr);
    }
    plan(&config(&json!({})), &"x".repeat(1 << 20)).refused("INPUT_TOO_LARGE");
    plan(&config(&json!({})), &"[".repeat(60_000)).refused("PLAN_ENTRY_INVALID");
}

#[test]
fn a_bad_configuration_is_refused_with_its_field() {
    for (overrides, field) in [
        (json!({"maxCost": 0}), "maxCost"),
        (json!({"targetCost": 0}), "targetCost"),
        (json!({"shrink": 0}), "shrink"),
        (json!({"grow": 0.5}), "grow"),
        (json!({"maxEntries": 0}), "maxEntries"),
        (json!({"maxEntrees": 4}), "maxEntrees"),
        (json!({"snapshot": {"lag": 1}}), "lag"),
    ] {
        let said = plan(&config(&overrides), "");
        said.refused("PLAN_CONFIG_INVALID");
        assert!(said.stderr.contains(field), "{}", said.stderr);
    }
    sprag(&["plan", "--config", "no-such-file"], "").refused("INPUT_UNREADABLE");
}

#[test]
fn sums_of_the_largest_amounts_do_not_overflow() {
    let largest = "{\"cost\":9007199254740991,\"bytes\":9007199254740991}\n";
    let said = plan(&config(&json!({"maxBytes": 9_007_199_254_740_991_u64})), &largest.repeat(3));
    assert_eq!(said.code, 0);
    assert_eq!(lines(&said).len(), 4, "each stands alone");
}
