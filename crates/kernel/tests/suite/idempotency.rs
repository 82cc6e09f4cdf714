//! Group I: canonical text, hashes, and what a second create answers. Left to the stores: that the
//! lookup and the insert are one transaction. The hashes of I1 to I34 are in `vectors` too; here
//! each case stands by its number.

use sprag_kernel::Code;
use sprag_kernel::canon::canonical;
use sprag_kernel::decide::submit::{Known, Submit, submit};
use sprag_kernel::keys::{DedupKey, Hash, canonical_hash, envelope_hash};

/// Input, canonical text, the first hex digits of its hash.
fn hold(input: &str, text: &str, hash: &str) {
    assert_eq!(canonical(input.as_bytes()).unwrap(), text, "{input}");
    assert_eq!(canonical_hash(input.as_bytes()).unwrap().to_string(), hash, "{input}");
}

#[test]
fn i1_i2_i24_nulls_are_dropped_at_every_depth_and_empty_objects_stay() {
    hold("{}", "{}", "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a");
    hold(
        r#"{"b":1,"a":null,"c":{"z":2,"y":null}}"#,
        r#"{"b":1,"c":{"z":2}}"#,
        "fc9959beaa8fb74c700d046fcaca6488121023e57063395ed89a4a152f608d46",
    );
    hold(
        r#"{"a":{"b":{"c":null}}}"#,
        r#"{"a":{"b":{}}}"#,
        "f3ee774c9d33c68894cf1cd760e1b49e531e2d4aee326e09e3652fec5357b536",
    );
    assert_eq!(canonical(b"[null,{\"a\":null}]").unwrap(), "[null,{}]");
}

#[test]
fn i4_to_i16_i27_numbers_are_exact_decimals() {
    let cases = [
        ("1.0", "1", "2bfd14f43d17fc7cea24e0917a8879b4b2f880b8baeec1b9d90fbaad655e71bd"),
        ("1.50", "1.5", "cb14d55cfe562fd6592d919f5dfacfa8708687b746a1d110c6dd5529c410e772"),
        ("1e3", "1000", "fe1c788f83a7b21b9bb68ea3d588468319662e1ba670dceb5a83fc7d05a183a8"),
        ("1E+3", "1000", "fe1c788f83a7b21b9bb68ea3d588468319662e1ba670dceb5a83fc7d05a183a8"),
        ("100", "100", "b39022c4ed96525c42cd0e7ce55308533962a655f1c19d5dac2f03e9dd995b2c"),
        ("1.10e1", "11", "3f39ec9d8aa7c48412f853938efb9baf2ecaf0d8e3d99bd78044572348a46bae"),
        (
            "12345678901234567890",
            "12345678901234567890",
            "8716eed5e3ea73042324b69568de421fc67f1547923dcb85ab0d1e156d6e0588",
        ),
        (
            "-2.500e-3",
            "-0.0025",
            "0d1b8fe19655292c46af20bb514ee3e0f80c20eeaec1670f1d2fdd4dbcac507c",
        ),
        ("0.1", "0.1", "c20c34ed16c837e86b4dcdb33f98c274c9f7da1231f64302082d2cd50743f951"),
    ];
    for (number, text, hash) in cases {
        hold(&format!("{{\"n\":{number}}}"), &format!("{{\"n\":{text}}}"), hash);
    }
    hold(
        r#"{"a":1.0e0,"b":[1.0,2.50,-0.0]}"#,
        r#"{"a":1,"b":[1,2.5,0]}"#,
        "0d5fda372b211d6094f233cc06c6dba4002b1193b086d3f856bee60daa0de152",
    );
}

#[test]
fn i17_i23_members_are_sorted_by_their_bytes() {
    hold(
        "{\"\u{e9}\":1,\"e\":2,\"z\":3,\"Z\":4}",
        "{\"Z\":4,\"e\":2,\"z\":3,\"\u{e9}\":1}",
        "050da33fc8e0f5ca65fb8a5dba731c87873087a1749b8b77afe8fc82cf835448",
    );
    hold(
        r#"{"10":1,"9":2,"1":3}"#,
        r#"{"1":3,"10":1,"9":2}"#,
        "38a3fdd6f89c34bb41bdb86e885678938b4aaaa0b743d49f3f509d65bbefa88e",
    );
}

#[test]
fn i20_i21_i28_strings_are_raw_text_and_never_normalised() {
    hold(
        r#"{"s":"\u00e9"}"#,
        "{\"s\":\"\u{e9}\"}",
        "86028b41ba792eaf82aa26a45b218f6734f7f1096a86f1746c8296e088a0ccb4",
    );
    hold(
        "{\"s\":\"e\u{301}\"}",
        "{\"s\":\"e\u{301}\"}",
        "1fc0bd7cc93fca8092a2041d7d01842876422aa7e2838acf42c14578e9f2be05",
    );
    hold(
        r#"{"s":"\/"}"#,
        r#"{"s":"/"}"#,
        "3a21357b943ab7956f071b0904981aac17577986281af33468108795e079946d",
    );
}

#[test]
fn i25_arrays_keep_their_order() {
    hold(
        r#"{"a":[3,1,2]}"#,
        r#"{"a":[3,1,2]}"#,
        "d934227f5a9f29b31bd6a8ceed3213dd498a07ce32bdfa9ae2488de0c0ab68f1",
    );
}

#[test]
fn i31_a_number_too_long_and_half_a_surrogate_pair_are_refused() {
    assert_eq!(canonical(br#"{"n":1e600}"#).unwrap_err().code(), Code::NumberRange);
    assert_eq!(canonical(br#"{"s":"\ud800"}"#).unwrap_err().code(), Code::JsonLoneSurrogate);
}

#[test]
fn i32_i34_an_envelope_hashes_its_six_fields_and_absent_equals_null() {
    let plain = r#"{"tenant_id":"t1","request_type":"OCR","input_ref":"in","output_ref":"out",
        "payload":{},"schema_version":"v1"}"#;
    let expected = "a68f134bb618695f8b76733aea06c521b69a74b454566e30a320d460d3bb7707";
    assert_eq!(envelope_hash(plain.as_bytes()).unwrap().to_string(), expected);
    let nested = r#"{"payload":{"lang":null,"dpi":300},"input_ref":{"uri":"blob://a",
        "size_bytes":10},"tenant_id":"t1","request_type":"OCR","output_ref":"out",
        "schema_version":"v1","doc_id":"not hashed","idempotency_key":null}"#;
    let expected = "d5e2a7b295c5167938537a7afb97e71d1c56ed4fb3c5aae91eb4992180c3c9fc";
    assert_eq!(envelope_hash(nested.as_bytes()).unwrap().to_string(), expected);
    let absent = envelope_hash(br#"{"tenant_id":"t1"}"#).unwrap();
    assert_eq!(envelope_hash(br#"{"tenant_id":"t1","payload":null}"#).unwrap(), absent);
    assert_ne!(envelope_hash(br#"{"tenant_id":"T1"}"#).unwrap(), absent);
}

#[test]
fn an_envelope_that_is_no_object_is_refused() {
    for input in ["[]", "1", "null", "\"{}\"", ""] {
        let refusal = envelope_hash(input.as_bytes()).unwrap_err();
        assert_eq!(refusal.code(), Code::EnvelopeInvalid, "{input}");
    }
}

#[test]
fn i36_i37_i42_the_same_content_again_is_the_same_job_in_whatever_state() {
    let hash = Hash::of(b"content");
    assert_eq!(submit(None, hash).unwrap(), Submit::Create);
    let known = Known { job_id: "job-1", hash };
    assert_eq!(submit(Some(known), hash).unwrap(), Submit::Known("job-1"));
}

#[test]
fn the_same_key_with_other_content_is_refused_and_names_the_job() {
    let known = Known { job_id: "job-1", hash: Hash::of(b"first") };
    let refusal = submit(Some(known), Hash::of(b"second")).unwrap_err();
    assert_eq!(refusal.code(), Code::IdempotencyKeyReused);
    assert_eq!(refusal.field("job_id").unwrap().to_string(), "job-1");
}

#[test]
fn i39_i40_keys_of_different_origin_never_meet() {
    let hash = Hash::of(b"");
    let text = hash.to_string();
    let keys = [
        DedupKey::Given(&text).to_string(),
        DedupKey::Content(hash).to_string(),
        DedupKey::Request { request_id: "q1", run_no: 2 }.to_string(),
        DedupKey::Rerun { job_id: "q1", n: 2 }.to_string(),
        DedupKey::Given("another").to_string(),
    ];
    assert_eq!(keys[0], format!("k:{text}"));
    assert_eq!(keys[1], format!("h:{}", &text[..32]));
    assert_eq!(keys[2..4], ["r:q1:2", "x:q1:2"]);
    let mut unique = keys.to_vec();
    unique.sort();
    unique.dedup();
    assert_eq!(unique.len(), keys.len());
}
