//! `sprag canon`.

use super::sprag;

#[test]
fn canonical_text_ends_with_one_newline() {
    let said = sprag(&["canon"], " { \"b\" : 1.50 , \"a\" : null } \n");
    assert_eq!(said.stdout, "{\"b\":1.5}\n");
}

#[test]
fn hash_prints_the_hash_of_the_canonical_text() {
    let said = sprag(&["canon", "--hash"], "{}");
    assert_eq!(said.stdout, "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a\n");
}

#[test]
fn envelope_keeps_the_six_fields_and_combines_with_hash() {
    let envelope = r#"{"tenant_id":"t1","request_type":"OCR","input_ref":"in","output_ref":"out",
        "payload":{},"schema_version":"v1","idempotency_key":"k","priority":7}"#;
    let text = sprag(&["canon", "--envelope"], envelope);
    assert_eq!(
        text.stdout,
        "{\"input_ref\":\"in\",\"output_ref\":\"out\",\"payload\":{},\"request_type\":\"OCR\",\
         \"schema_version\":\"v1\",\"tenant_id\":\"t1\"}\n"
    );
    let hash = sprag(&["canon", "--envelope", "--hash"], envelope);
    assert_eq!(hash.stdout, "a68f134bb618695f8b76733aea06c521b69a74b454566e30a320d460d3bb7707\n");
    sprag(&["canon", "--envelope"], "[1]").refused("ENVELOPE_INVALID");
}

#[test]
fn request_key_takes_a_number_and_its_text_as_the_same_revision() {
    let expected = "23530c747cdd7dd69fd50c301ab29f1da53db52155455a92618d0386c65733c6\n";
    for revision in ["1", "\"1\"", "1.0", "10e-1"] {
        let input = format!(
            r#"{{"fingerprint":"abc","requirement":" hello  world","plan_revision":{revision}}}"#
        );
        assert_eq!(sprag(&["canon", "--request-key"], input).stdout, expected, "{revision}");
    }
    for wrong in [r#"{"fingerprint":1}"#, r#"{"requirement":[]}"#, r#"{"plan_revision":true}"#, "3"]
    {
        sprag(&["canon", "--request-key"], wrong).refused("REQUEST_KEY_INVALID");
    }
}

#[test]
fn hostile_input_gets_an_answer() {
    let deep = "[".repeat(1_000_000);
    sprag(&["canon"], deep).refused("JSON_TOO_DEEP");
    sprag(&["canon", "--request-key"], "{\"fingerprint\":".repeat(5_000)).refused("JSON_TOO_DEEP");
    sprag(&["canon"], "").refused("JSON_INVALID");
    sprag(&["canon"], b"\"\xff\"").refused("JSON_INVALID");
    sprag(&["canon"], r#""\ud800""#).refused("JSON_LONE_SURROGATE");
    sprag(&["canon"], r#"{"n":1e600}"#).refused("NUMBER_RANGE");
    sprag(&["canon", "--max-bytes", "10"], "[1,2,3,4,5,6]").refused("INPUT_TOO_LARGE");
}

#[test]
fn a_large_document_passes_whole() {
    let numbers: Vec<String> = (0..500_000).map(|n| n.to_string()).collect();
    let document = format!("[{}]", numbers.join(","));
    let said = sprag(&["canon"], format!("[{}]", numbers.join(" , ")));
    assert_eq!(said.stdout.trim_end(), document);
}

#[test]
fn with_json_an_error_is_one_object_with_code_message_and_fields() {
    let said = sprag(&["canon", "--json"], "[1,]");
    assert_eq!(said.code, 1);
    let error = said.error();
    assert_eq!(error["error_code"], "JSON_INVALID");
    assert_eq!(error["fields"]["byte"], 3);
    assert!(error["message"].as_str().unwrap().contains("value is expected"));
}
