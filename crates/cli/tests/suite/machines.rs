//! `sprag machines`.

use super::sprag;

#[test]
fn json_has_five_machines_with_the_agreed_shape() {
    let said = sprag(&["machines", "--format", "json"], "");
    assert_eq!(said.code, 0);
    let machines = said.json()["machines"].as_array().unwrap().clone();
    let names: Vec<_> = machines.iter().map(|m| m["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["request", "job", "step", "outbox", "seq"]);
    let counts: Vec<_> =
        machines.iter().map(|m| m["transitions"].as_array().unwrap().len()).collect();
    assert_eq!(counts, [7, 10, 16, 2, 12], "16 with the extension PENDING > SKIPPED");
    let job = &machines[1];
    assert_eq!(job["initial"], "QUEUED");
    assert_eq!(job["terminal"], serde_json::json!(["SUCCEEDED", "FAILED_FINAL", "CANCELLED"]));
    assert_eq!(job["policy"], serde_json::json!({"same_state": "no_op", "illegal": "rejected"}));
    let first = &job["transitions"][0];
    assert_eq!(first["from"], "QUEUED");
    assert_eq!(first["to"], "DISPATCHING");
    assert_eq!(first["triggers"], serde_json::json!(["first_step_outbox_created"]));
    assert_eq!(first["origin"], "spec");
    assert!(first["precondition"].as_str().unwrap().contains("version"));
}

#[test]
fn the_json_flag_and_the_json_format_say_the_same() {
    let by_flag = sprag(&["machines", "step", "--json"], "");
    let by_format = sprag(&["machines", "step", "--format", "json"], "");
    assert_eq!(by_flag.stdout, by_format.stdout);
    assert_eq!(by_flag.json()["machines"].as_array().unwrap().len(), 1);
}

#[test]
fn mermaid_draws_every_transition_once() {
    let said = sprag(&["machines", "outbox", "--format", "mermaid"], "");
    let arrows: Vec<_> = said.stdout.lines().filter(|line| line.contains("-->")).collect();
    assert_eq!(said.stdout.lines().next(), Some("stateDiagram-v2"));
    assert_eq!(arrows.len(), 1 + 2 + 2, "the start, two moves, two ends: {arrows:?}");
}

#[test]
fn the_table_marks_what_the_specification_does_not_list() {
    let said = sprag(&["machines", "step"], "");
    assert_eq!(said.stdout.matches("[addition]").count(), 2);
    assert_eq!(said.stdout.matches("[extension]").count(), 1);
}
