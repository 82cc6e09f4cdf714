//! Hostile envelopes: whoever submits, by a call or by the inbox, is told the same on both stores, and nothing of what
//! was refused is there.

use std::time::Duration;

use sprag_engine::engine::{Engine, EngineConfig};
use sprag_engine::inbox::{INBOX_SLICE_BYTES, InboxFilter, InboxId, InboxView, Waiting};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{JobFilter, Store};
use sprag_kernel::JobState;

use crate::graphs::{GRACE, closed, handler};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::pull::builder;
use crate::world::World;

const MIB: usize = 1 << 20;
const PLAIN: &str = r#"{"tenant_id":"t1","request_type":"LIFE","schema_version":"1","input_ref":"in",
    "output_ref":"out","payload":{},"idempotency_key":"k"}"#;

/// An envelope with something else in the place of this part.
fn with(part: &str, other: &str) -> String {
    assert!(PLAIN.contains(part));
    PLAIN.replace(part, other)
}

/// An envelope of exactly so many bytes.
fn of_bytes(bytes: usize) -> String {
    let bare = with("{}", "\"\"").replace("\"k\"", &format!("\"{bytes}\""));
    let payload = format!("\"{}\"", "x".repeat(bytes - bare.len()));
    let envelope = bare.replace("\"\"", &payload);
    assert_eq!(envelope.len(), bytes);
    envelope
}

/// What is refused, and with which code.
fn refused() -> Vec<(String, &'static str)> {
    let long = format!("\"{}\"", "n".repeat(201));
    let mut all: Vec<(String, &str)> = [
        ("", "ENVELOPE_INVALID"),
        ("{", "JSON_INVALID"),
        ("{}{}", "JSON_INVALID"),
        ("[]", "ENVELOPE_INVALID"),
        ("7", "ENVELOPE_INVALID"),
        ("null", "ENVELOPE_INVALID"),
        ("{}", "ENVELOPE_INVALID"),
    ]
    .map(|(envelope, code)| (envelope.to_owned(), code))
    .into();
    for name in [r#""t1""#, r#""LIFE""#, r#""k""#, r#":"1""#] {
        let (before, _) = name.split_once('"').unwrap();
        let put = |text: &str| with(name, &format!("{before}{text}"));
        for bad in [r#""""#, r#""a\u0000b""#, r#""a\nb""#, r#""\u007f""#, &long] {
            all.push((put(bad), "NAME_INVALID"));
        }
        all.push((put("7"), "ENVELOPE_INVALID"));
        all.push((put("[]"), "ENVELOPE_INVALID"));
        all.push((put(r#""\ud800""#), "JSON_LONE_SURROGATE"));
        all.push((put(r#""\udc00\ud800""#), "JSON_LONE_SURROGATE"));
    }
    let deep = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
    all.extend([
        (with("{}", &deep(128)), "JSON_TOO_DEEP"),
        (with("{}", &"[".repeat(100_000)), "JSON_TOO_DEEP"),
        (with("{}", &"{\"a\":".repeat(100_000)), "JSON_TOO_DEEP"),
        (with("{}", r#"{"a":"\u0000"}"#), "NUL_CHARACTER"),
        (with("{}", r#"{"\u0000":1}"#), "NUL_CHARACTER"),
        (with("{}", r#"{"a":"\ud800"}"#), "JSON_LONE_SURROGATE"),
        (with("{}", r#"{"\udfff":1}"#), "JSON_LONE_SURROGATE"),
        (with("{}", "1e999"), "NUMBER_RANGE"),
        (with(r#""in""#, r#""a\u0000""#), "NUL_CHARACTER"),
        (with(r#""in""#, "7"), "ENVELOPE_INVALID"),
        (with(r#""out""#, r#"{"uri":7}"#), "ENVELOPE_INVALID"),
        (with(r#""LIFE""#, r#""NONE""#), "PROTOCOL_UNKNOWN"),
    ]);
    for priority in ["-1000001", "1000001", "-2147483648", "1099511627776", "0.5", "\"1\""] {
        all.push((with(r#""k""#, &format!(r#""k","priority":{priority}"#)), "ENVELOPE_INVALID"));
    }
    for (more, code) in [
        (r#""not_before":-1"#, "ENVELOPE_INVALID"),
        (r#""doc_id":"\u0000""#, "NAME_INVALID"),
        (r#""mode":"BURST""#, "DOC_ID_MISSING"),
    ] {
        all.push((with(r#""k""#, &format!(r#""k",{more}"#)), code));
    }
    all
}

/// What is at the edge and still taken. Each is another job.
fn taken() -> Vec<String> {
    let longest = format!("\"{}\"", "n".repeat(200));
    let deep = format!("{}{}", "[".repeat(127), "]".repeat(127));
    vec![
        with(r#""t1""#, &longest),
        with(r#""k""#, &longest),
        with(r#""k""#, r#""\ud83d\ude00""#),
        with(r#""k""#, r#""deep""#).replace("{}", &deep),
        with(r#""k""#, r#""first","priority":1000000"#),
        with(r#""k""#, r#""last","priority":-1000000"#),
    ]
}

/// An engine that takes envelopes of so many bytes.
async fn engine<W: World>(play: &Play<W>, max_envelope_bytes: usize) -> Engine<W::Store> {
    let config = EngineConfig {
        max_envelope_bytes,
        beat: Duration::from_millis(20),
        takeover: Duration::from_secs(1_000_000),
        poll: Duration::from_millis(5),
        ..EngineConfig::default()
    };
    let engine = builder(play).await.config(config);
    let engine = engine.protocol(Protocol::new("life.v1", "LIFE").step("only", SERVICE));
    engine.service(SERVICE, 4, handler(|_| async { Ok(1.into()) })).start().await.unwrap()
}

/// What the engine makes of an envelope that a user's transaction has left.
async fn of_inbox<W: World>(play: &Play<W>, envelope: &str) -> InboxView {
    let inbox_id: InboxId = play.world.lay(envelope).await;
    loop {
        let filter = InboxFilter { limit: 1_000, ..InboxFilter::default() };
        let rows = play.store().inbox(filter).await.unwrap();
        let row = rows.into_iter().find(|row| row.inbox_id == inbox_id).unwrap();
        if row.taken_at.is_some() {
            return row;
        }
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// With which code it is refused by a call, and by way of the inbox.
async fn codes<W: World>((play, engine): (&Play<W>, &Engine<W::Store>), text: &str) -> [String; 2] {
    let called = engine.submit(text.as_bytes()).await;
    let told = |answer: Option<String>| answer.unwrap_or_else(|| "nothing".to_owned());
    [
        told(called.err().map(|refusal| refusal.code().name().to_owned())),
        told(of_inbox(play, text).await.error.map(|error| error.code)),
    ]
}

/// Both ways make the same job of it, which runs.
async fn is_taken<W: World>((play, engine): (&Play<W>, &Engine<W::Store>), envelope: &str) {
    let submitted = engine.submit(envelope.as_bytes()).await.unwrap();
    assert!(submitted.created);
    let row = of_inbox(play, envelope).await;
    assert_eq!((row.job_id, row.error), (Some(submitted.job_id), None));
    assert_eq!(closed(play.store(), submitted.job_id).await.row.state, JobState::Succeeded);
}

on_both_stores! {
    async fn envelopes_that_no_store_should_meet_are_refused_alike<W>(play: &Play<W>) {
        let engine = engine(play, MIB).await;
        let mut others = Vec::new();
        for (envelope, code) in refused() {
            let told = codes((play, &engine), &envelope).await;
            if told != [code; 2] {
                others.push((envelope.chars().take(250).collect::<String>(), told, code));
            }
        }
        assert!(others.is_empty(), "{others:#?}");
        let text = [&br#"{"tenant_id":""#[..], &[0xff], PLAIN.as_bytes()].concat();
        let refusal = engine.submit(&text).await.unwrap_err();
        assert_eq!(refusal.code().name(), "JSON_INVALID", "what is no UTF-8 is in no inbox");
        let all = play.store().jobs(JobFilter { limit: 10, ..JobFilter::default() }).await.unwrap();
        assert!(all.is_empty(), "nothing of them is there");
        for envelope in taken() {
            is_taken((play, &engine), &envelope).await;
        }
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn an_envelope_may_have_as_many_bytes_as_configured_and_not_one_more<W>(play: &Play<W>) {
        assert_eq!(EngineConfig::default().max_envelope_bytes, MIB);
        for limit in [300, MIB, 5 * MIB] {
            let engine = engine(play, limit).await;
            is_taken((play, &engine), &of_bytes(limit)).await;
            let told = codes((play, &engine), &of_bytes(limit + 1)).await;
            assert_eq!(told, ["INPUT_TOO_LARGE"; 2]);
            engine.shutdown(GRACE).await.unwrap();
        }
        let all = play.store().jobs(JobFilter { limit: 10, ..JobFilter::default() }).await.unwrap();
        assert_eq!(all.len(), 3);
    }
    /// Whoever may write to the inbox may fill it; an engine that read it all at once would die of it, and the next one too.
    async fn an_engine_reads_no_more_of_the_inbox_than_it_can_hold<W>(play: &Play<W>) {
        let third = INBOX_SLICE_BYTES / 3 + 1;
        for _ in 0..5 {
            play.world.lay(&of_bytes(third)).await;
        }
        play.world.lay(&of_bytes(MIB)).await;
        let read = async |max_bytes| {
            let waiting = play.store().inbox_waiting(10, max_bytes).await.unwrap();
            let bytes = |waiting: Waiting| waiting.envelope.map(|text| text.len());
            waiting.into_iter().map(bytes).collect::<Vec<_>>()
        };
        assert_eq!(read(third).await, [Some(third); 3]);
        assert_eq!(read(third - 1).await, [None, None, None, None, None, Some(MIB)]);
        let engine = engine(play, third - 1).await;
        let last = of_inbox(play, &of_bytes(MIB)).await;
        let filter = InboxFilter { limit: 10, ..InboxFilter::default() };
        let rows = play.store().inbox(filter).await.unwrap();
        let codes = rows.iter().rev().map(|row| row.error.as_ref().map(|error| error.code.as_str()));
        let too_large = Some("INPUT_TOO_LARGE");
        let expected = [too_large, too_large, too_large, too_large, too_large, None, None];
        assert_eq!(codes.collect::<Vec<_>>(), expected);
        assert_eq!(rows[1].job_id, last.job_id, "two that are the same are the same job");
        engine.shutdown(GRACE).await.unwrap();
    }
}
