//! Every fixture of `tests/fixtures` but coalescing, which only the runtime can show.

use serde_json::Value;
use sprag_kernel::canon::canonical;
use sprag_kernel::keys::{
    RequestKey, canonical_envelope, canonical_hash, envelope_hash, normalise_space,
};
use sprag_kernel::planner::{Entry, PlanConfig, Planner, Snapshot};

fn fixture(name: &str) -> Vec<Value> {
    let path = format!("{}/tests/fixtures/{name}.json", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).expect("the fixture is there");
    let cases: Vec<Value> = serde_json::from_str(&text).expect("the fixture is a JSON list");
    assert!(!cases.is_empty(), "{name} has cases");
    cases
}

fn text(value: &Value) -> &str {
    value.as_str().expect("a text")
}

#[test]
fn every_canonical_json_vector_has_its_text_and_its_hash() {
    for case in fixture("canonical-json") {
        let input = text(&case["input"]).as_bytes();
        assert_eq!(canonical(input).unwrap(), text(&case["canonical"]));
        assert_eq!(canonical_hash(input).unwrap().to_string(), text(&case["sha256"]));
    }
}

#[test]
fn every_envelope_vector_has_its_text_and_its_hash_whatever_else_the_envelope_says() {
    for case in fixture("envelope-hash") {
        let mut envelope = case["envelope"].clone();
        for _ in 0..2 {
            let input = serde_json::to_vec_pretty(&envelope).unwrap();
            assert_eq!(canonical_envelope(&input).unwrap(), text(&case["canonical"]));
            assert_eq!(envelope_hash(&input).unwrap().to_string(), text(&case["sha256"]));
            envelope["idempotency_key"] = "k1".into();
            envelope["mode"] = Value::from(vec![1, 2]);
        }
    }
}

#[test]
fn every_request_key_vector_has_its_preimage_and_its_key() {
    for case in fixture("request-key") {
        let revision = match &case["plan_revision"] {
            Value::Null => String::new(),
            Value::String(revision) => revision.clone(),
            number => number.to_string(),
        };
        let key = RequestKey {
            fingerprint: case["fingerprint"].as_str().unwrap_or_default(),
            requirement: case["requirement"].as_str().unwrap_or_default(),
            plan_revision: &revision,
        };
        assert_eq!(key.preimage(), text(&case["preimage"]));
        assert_eq!(key.hash().to_string(), text(&case["key"]));
        // The preimage is canonical JSON already.
        assert_eq!(canonical(key.preimage().as_bytes()).unwrap(), key.preimage());
    }
}

#[test]
fn every_whitespace_vector_is_normalised_and_normal_text_stays() {
    for case in fixture("whitespace") {
        let normal = normalise_space(text(&case["input"]));
        assert_eq!(normal, text(&case["normalized"]));
        assert_eq!(normalise_space(&normal), normal);
    }
}

#[test]
fn every_windows_vector_is_cut_where_it_says() {
    for case in fixture("windows") {
        let name = text(&case["name"]);
        let config: PlanConfig = serde_json::from_value(case["config"].clone()).unwrap();
        config.check().unwrap();
        let snapshot: Option<Snapshot> = serde_json::from_value(case["snapshot"].clone()).unwrap();
        let entries: Vec<(u64, u64)> = serde_json::from_value(case["entries"].clone()).unwrap();
        let mut planner = Planner::new(config);
        planner.adapt(snapshot.as_ref());
        let entries = entries.into_iter().map(|(cost, bytes)| Entry { cost, bytes });
        let mut windows: Vec<_> = entries.filter_map(|entry| planner.push(entry)).collect();
        windows.extend(planner.finish());
        let cut: Vec<_> =
            windows.iter().map(|w| serde_json::json!([w.start, w.end, w.cost, w.bytes])).collect();
        assert_eq!(Value::from(cut), case["windows"], "{name}");
    }
}
