//! Input made to break a reader: depth, length, exponents, halves of pairs, marks, zeros, tails.

use sprag_kernel::Code;
use sprag_kernel::canon::{MAX_DEPTH, MAX_NUMBER_CHARS, canonical};
use sprag_kernel::keys::canonical_envelope;

fn refused(input: impl AsRef<[u8]>) -> Code {
    canonical(input.as_ref()).expect_err("a refusal").code()
}

fn accepted(input: &str) -> String {
    canonical(input.as_bytes()).expect("a document")
}

fn nested(open: &str, close: &str, depth: usize) -> String {
    format!("{}1{}", open.repeat(depth), close.repeat(depth))
}

#[test]
fn depth_128_is_accepted_and_129_is_refused() {
    assert_eq!(MAX_DEPTH, 128);
    for (open, close) in [("[", "]"), (r#"{"a":"#, "}"), (r#"[{"a":"#, "}]")] {
        let levels = open.matches(['[', '{']).count();
        let deepest = nested(open, close, 128 / levels);
        assert_eq!(accepted(&deepest), deepest);
        assert_eq!(refused(nested("[", "]", 1).replace('1', &deepest)), Code::JsonTooDeep);
    }
    assert_eq!(refused(nested("[", "]", 129)), Code::JsonTooDeep);
}

#[test]
fn depth_100_000_is_refused_without_a_stack_overflow() {
    let thread = std::thread::Builder::new().stack_size(64 * 1024);
    let deep = || {
        for (open, close) in [("[", "]"), (r#"{"a":"#, "}")] {
            assert_eq!(refused(nested(open, close, 100_000)), Code::JsonTooDeep);
            assert_eq!(refused(open.repeat(100_000)), Code::JsonTooDeep);
        }
    };
    thread.spawn(deep).unwrap().join().unwrap();
}

#[test]
fn an_empty_container_may_stand_at_the_last_level_only() {
    let full = nested("[", "]", 127);
    assert_eq!(accepted(&full.replace('1', "[]")), full.replace('1', "[]"));
    assert_eq!(accepted(&full.replace('1', "{}")), full.replace('1', "{}"));
    let over = nested("[", "]", 128);
    assert_eq!(refused(over.replace('1', "[]")), Code::JsonTooDeep);
    assert_eq!(refused(over.replace('1', "{}")), Code::JsonTooDeep);
}

#[test]
fn a_number_of_512_characters_is_accepted_and_513_are_refused() {
    assert_eq!(MAX_NUMBER_CHARS, 512);
    let ones = |count: usize| "1".repeat(count);
    assert_eq!(accepted(&ones(512)), ones(512));
    assert_eq!(refused(ones(513)), Code::NumberRange);
    assert_eq!(accepted(&format!("-{}", ones(511))).len(), 512);
    assert_eq!(refused(format!("-{}", ones(512))), Code::NumberRange);
    assert_eq!(accepted(&format!("0.{}", ones(510))).len(), 512);
    assert_eq!(refused(format!("0.{}", ones(511))), Code::NumberRange);
    assert_eq!(accepted("1e511").len(), 512);
    assert_eq!(refused("1e512"), Code::NumberRange);
    assert_eq!(accepted("1e-510").len(), 512);
    assert_eq!(refused("1e-511"), Code::NumberRange);
    assert_eq!(refused("-1e-510"), Code::NumberRange);
}

#[test]
fn the_limit_is_on_the_value_s_text_and_not_on_the_token() {
    assert_eq!(accepted(&format!("1.{}", "0".repeat(100_000))), "1");
    assert_eq!(accepted(&format!("0.{}1e100001", "0".repeat(100_000))), "1");
    assert_eq!(accepted(&format!("1{}e-100000", "0".repeat(100_000))), "1");
    assert_eq!(accepted(&format!("1e{}3", "0".repeat(100_000))), "1000");
}

#[test]
fn exponents_beyond_any_integer_are_answered() {
    for token in [
        "1e99999999999999999999",
        "-1E+99999999999999999999",
        "1e-99999999999999999999",
        "0.1e9223372036854775807",
        "10e9223372036854775807",
        "1.5e-9223372036854775808",
    ] {
        assert_eq!(refused(token), Code::NumberRange, "{token}");
    }
    for zero in ["0e999999999999", "0e-99999999999999999999", "-0.000e99999999999999999999", "-0"] {
        assert_eq!(accepted(zero), "0", "{zero}");
    }
}

#[test]
fn tokens_that_look_like_numbers_are_refused() {
    for token in [
        "-",
        "+1",
        "01",
        "-01",
        "00",
        "1.",
        ".5",
        "1e",
        "1e+",
        "1.e1",
        "0x10",
        "1_000",
        "NaN",
        "-Infinity",
        "1 2",
        "--1",
        "1e1.5",
        "\u{661}",
    ] {
        assert_eq!(refused(token), Code::JsonInvalid, "{token}");
    }
}

#[test]
fn half_a_surrogate_pair_is_refused_in_keys_and_values() {
    for half in [
        r"\ud800",
        r"\udc00",
        r"\ud800x",
        r"\ud800\n",
        r"\ud800\ud800",
        r"\udc00\ud800",
        r"\udc00\udc00",
        r"\ud800\u0041",
        r"\uDBFF",
        r"\udfff",
    ] {
        assert_eq!(refused(format!(r#"{{"s":"{half}"}}"#)), Code::JsonLoneSurrogate, "{half}");
        assert_eq!(refused(format!(r#"{{"{half}":1}}"#)), Code::JsonLoneSurrogate, "{half}");
        assert_eq!(refused(format!(r#"{{"{half}":null}}"#)), Code::JsonLoneSurrogate, "{half}");
    }
    assert_eq!(accepted(r#""\uD83D\ude00""#), "\"\u{1f600}\"");
}

#[test]
fn broken_escapes_are_refused() {
    for text in [
        r#""\u12""#,
        r#""\u""#,
        r#""\ud83d\u""#,
        r#""\u+123""#,
        r#""\x41""#,
        r#""\"#,
        r#""\u{41}""#,
    ] {
        assert_eq!(refused(text), Code::JsonInvalid, "{text}");
    }
}

#[test]
fn a_byte_order_mark_is_not_json() {
    assert_eq!(refused("\u{feff}{}"), Code::JsonInvalid);
    assert_eq!(refused("{}\u{feff}"), Code::JsonInvalid);
    assert_eq!(accepted("\"\u{feff}\""), "\"\u{feff}\"");
}

#[test]
fn bytes_that_are_not_utf_8_are_refused_with_their_place() {
    for bytes in [
        &b"\"\xff\""[..],
        b"\"\xc0\xaf\"",
        b"\"\xed\xa0\x80\"",
        b"\"\xf4\x90\x80\x80\"",
        b"{\"\xe2\x82\":1}",
    ] {
        assert_eq!(refused(bytes), Code::JsonInvalid);
    }
    let refusal = canonical(b"[1,\"a\xff\"]").unwrap_err();
    assert_eq!(refusal.field("byte").unwrap().to_string(), "5");
}

#[test]
fn raw_control_characters_and_zeros_are_refused_and_escaped_ones_are_kept() {
    for control in 0..0x20_u8 {
        let raw = [b"\"padded to a word ", &[control][..], b"\""].concat();
        assert_eq!(refused(raw), Code::JsonInvalid, "{control:#x}");
    }
    assert_eq!(refused(b"\0"), Code::JsonInvalid);
    assert_eq!(refused(b"{}\0"), Code::JsonInvalid);
    assert_eq!(accepted(r#""\u0000\u001F\u007f\b""#), "\"\\u0000\\u001f\u{7f}\\b\"");
    // Other white space than the four characters of JSON is none.
    assert_eq!(refused("\u{a0}1"), Code::JsonInvalid);
    assert_eq!(refused("\u{c}1"), Code::JsonInvalid);
}

#[test]
fn empty_cut_and_trailing_input_is_refused() {
    for text in [
        "",
        " ",
        "\n\t",
        "{",
        "[",
        "[1",
        "[1,",
        "{\"a\"",
        "{\"a\":",
        "{\"a\":1",
        "{\"a\":1,",
        "\"a",
        "tru",
        "nul",
        "{} {}",
        "1,",
        "[1,]",
        "{\"a\":1,}",
        "[,1]",
        "{,}",
        "{1:2}",
        "{\"a\" 1}",
        "[1 2]",
        "]",
        "}",
        "[}",
        "{]",
        "nulll",
        "{\"a\":nullx}",
        "truefalse",
        "'a'",
        "{a:1}",
        "[1]]",
        "// 1",
    ] {
        assert_eq!(refused(text), Code::JsonInvalid, "{text}");
    }
}

#[test]
fn names_are_sorted_by_what_they_say_and_not_by_how_they_are_spelled() {
    // Spelled, the first sorts as a backslash; said, as A.
    assert_eq!(accepted(r#"{"\u0041":1,"B":2}"#), r#"{"A":1,"B":2}"#);
    assert_eq!(accepted(r#"{"B":2,"\u0041":1}"#), r#"{"A":1,"B":2}"#);
    assert_eq!(accepted(r#"{"z":1,"\"":2,"\\":3,"\n":4}"#), r#"{"\n":4,"\"":2,"\\":3,"z":1}"#);
    // UTF-16 would put the pair before the private character; bytes do not.
    assert_eq!(accepted("{\"\u{1f600}\":1,\"\u{e000}\":2}"), "{\"\u{e000}\":2,\"\u{1f600}\":1}");
    assert_eq!(accepted(r#"{"":1,"a":2}"#), r#"{"":1,"a":2}"#);
    assert_eq!(accepted(r#"{"aa":1,"a":2}"#), r#"{"a":2,"aa":1}"#);
}

#[test]
fn of_equal_names_the_last_counts_however_it_is_spelled_even_if_it_is_null() {
    assert_eq!(accepted(r#"{"a":1,"\u0061":2}"#), r#"{"a":2}"#);
    assert_eq!(accepted(r#"{"a":2,"b":0,"a":1}"#), r#"{"a":1,"b":0}"#);
    assert_eq!(accepted(r#"{"a":1,"a":null}"#), "{}");
    assert_eq!(accepted(r#"{"a":null,"a":1}"#), r#"{"a":1}"#);
    let envelope = br#"{"tenant_id":"t1","x":1,"tenant\u005fid":"t2"}"#;
    assert_eq!(canonical_envelope(envelope).unwrap(), r#"{"tenant_id":"t2"}"#);
}

#[test]
fn a_dropped_member_is_read_as_strictly_as_a_kept_one() {
    for field in [r#""x":1e9999"#, r#""x":"\ud800""#, r#""x":[1,]"#] {
        let envelope = format!(r#"{{"tenant_id":"t1",{field}}}"#);
        assert!(canonical_envelope(envelope.as_bytes()).is_err(), "{field}");
    }
}

#[test]
fn a_hundred_thousand_members_in_reverse_order_are_sorted() {
    let members: Vec<String> = (0..100_000).map(|n| format!("\"k{n:06}\":{n}")).collect();
    let sorted = format!("{{{}}}", members.join(","));
    let mut reversed = members;
    reversed.reverse();
    assert_eq!(accepted(&format!("{{{}}}", reversed.join(" , "))), sorted);
}

/// Each of 126 nested objects was rewritten when it closed, with all that was in it: one MiB of short
/// exponents took seven seconds.
#[test]
fn nested_objects_out_of_order_cost_no_more_than_their_size() {
    let list = format!("[{}1]", "1e511,".repeat(2_000));
    let long = format!("[{}1]", format!("1{},", "0".repeat(511)).repeat(2_000));
    let input = format!("{}{list}{}", r#"{"b":0,"a":"#.repeat(126), "}".repeat(126));
    let output = format!("{}{long}{}", r#"{"a":"#.repeat(126), r#","b":0}"#.repeat(126));
    assert_eq!(accepted(&input), output);
}

#[test]
fn objects_out_of_order_inside_of_dropped_moved_and_repeated_members_come_out_right() {
    let cases = [
        (r#"{"b":{"d":1,"c":2},"a":{"f":1,"e":2}}"#, r#"{"a":{"e":2,"f":1},"b":{"c":2,"d":1}}"#),
        (r#"{"a":{"d":1,"c":2},"a":[{"f":1,"e":2},3]}"#, r#"{"a":[{"e":2,"f":1},3]}"#),
        (
            r#"[{"b":[{"y":1,"x":{"q":null}}],"a":0},{"d":1,"c":{}}]"#,
            r#"[{"a":0,"b":[{"x":{},"y":1}]},{"c":{},"d":1}]"#,
        ),
        (r#"{"a":{"c":{"e":1,"d":2},"b":null},"z":1}"#, r#"{"a":{"c":{"d":2,"e":1}},"z":1}"#),
    ];
    for (input, output) in cases {
        assert_eq!(accepted(input), output);
    }
}
