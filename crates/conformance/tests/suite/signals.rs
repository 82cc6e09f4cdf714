//! Signals and the steps that wait for them, by real engines on both stores: early, late, twice, refused; against
//! the end of the wait's time, a cancel, a failure elsewhere, and an engine that is gone.

use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::engine::Engine;
use sprag_engine::explain;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::signals::{Decision, Signal, Signalled, Signals as _};
use sprag_engine::store::{AttemptFilter, AttemptView, Store};
use sprag_kernel::decide::signal::MAX_SIGNALS;
use sprag_kernel::{Code, JobState, StepState};

use crate::graphs::{GRACE, closed, echo, engine, submit};
use crate::on_both_stores;
use crate::play::Play;
use crate::world::World;

const HOUR: u64 = 3_600_000;

/// An approval with a schema and a time, and a step that sees what was said.
const APPROVAL: &str = "
  - {step_id: ok, wait: {signal: approval, schema: {type: object}, timeout: 1h}}
  - {step_id: after, service: work}
";

fn approval(id: &str) -> Signal {
    Signal { by: Some("alice".to_owned()), ..Signal::new(id, "approval", &json!({"id": id})) }
}

fn rejection(id: &str) -> Signal {
    let reason = Some("the total is wrong".to_owned());
    Signal { decision: Decision::Reject, reason, ..approval(id) }
}

/// Waits until so many steps are parked for a signal.
async fn parked<S: Store>(store: &S, job_id: JobId, count: usize) -> Vec<AttemptView> {
    for _ in 0..2_000 {
        let mut attempts = store.attempts(job_id).await.unwrap();
        attempts.retain(|a| a.waits_for.is_some() && a.owner.is_none() && !a.is_ready);
        if attempts.len() == count {
            return attempts;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{count} steps do not wait: {:?}", store.attempts(job_id).await);
}

async fn output<S: Store>(store: &S, job_id: JobId, step_id: &str) -> Value {
    let attempts = store.attempts(job_id).await.unwrap();
    let attempt = attempts.iter().rfind(|a| a.step_id == step_id).unwrap();
    attempt.output.as_deref().map_or(Value::Null, |text| serde_json::from_str(text).unwrap())
}

async fn explained<S: Store>(store: &S, job_id: JobId) -> String {
    let job = store.job(job_id).await.unwrap().unwrap();
    let told = explain::explained(store, &job, AttemptFilter::default()).await.unwrap();
    format!("{} / {} / {}", told.happened.join(" "), told.now, told.next)
}

/// Says it until the engine has an answer that is not about a store that is busy.
async fn say<S: Store>(engine: &Engine<S>, job_id: JobId, signal: Signal) -> Signalled {
    engine.signal(job_id, signal).await.unwrap_or_else(|refusal| panic!("{refusal}"))
}

on_both_stores! {
    async fn a_step_waits_for_its_signal_and_has_what_was_said<W>(play: &Play<W>) {
        let engine = engine(play, APPROVAL, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        let waits = parked(play.store(), job_id, 1).await;
        assert_eq!((waits[0].row.state, waits[0].timer_at.is_some()), (StepState::Pending, true));
        play.expect_sound().await;
        let told = explained(play.store(), job_id).await;
        assert!(told.contains("waits for signal approval") && told.contains("ends in 1h"), "{told}");

        let said = say(&engine, job_id, approval("a")).await;
        assert!(said.created && said.taken_by == Some(waits[0].key.place()));
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        assert_eq!(output(play.store(), job_id, "ok").await, json!({"id": "a"}));
        assert_eq!(output(play.store(), job_id, "after").await["saw"]["ok"], json!({"id": "a"}));
        let told = explained(play.store(), job_id).await;
        assert!(told.contains("Signal approval (a): alice approves"), "{told}");
        let events = play.store().events(job_id).await.unwrap();
        let notes: Vec<&str> = events.iter().filter_map(|event| event.note.as_deref()).collect();
        let [note] = notes[..] else { panic!("{notes:?}") };
        let note: Value = serde_json::from_str(note).unwrap();
        assert_eq!((&note["by"], &note["decision"]), (&json!("alice"), &json!("approve")));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_job_keeps_so_many_signals_and_no_more<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let (id, bytes) = (W::id(job_id), W::id(JobId::new()));
        let sql = format!(
            "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c WHERE n < {})
             INSERT INTO signal (job_id, n, signal_id, name, decision, content, payload, received_at)
             SELECT {id}, n, CAST(n AS text), 'go', 0, {}, '1', 1 FROM c",
            MAX_SIGNALS - 1,
            bytes.replace('-', "")
        );
        play.world.execute(&sql).await.unwrap();
        let say = async |id: &str| {
            let signal = Signal::new(id, "go", &json!(1));
            play.store().signal(play.engine, job_id, signal).await.unwrap().unwrap()
        };
        assert!(say("last").await.unwrap().created);
        assert_eq!(say("more").await.unwrap_err().code(), Code::SignalLimit);
        assert!(!say("last").await.unwrap().created, "a repeat is none more");
        // They came past the store, and nobody was told.
        play.world.execute("DELETE FROM signal").await.unwrap();
    }

    async fn a_signal_that_comes_early_is_kept_and_each_id_counts_once<W>(play: &Play<W>) {
        let steps = "
  - {step_id: rest, sleep: 1h}
  - {step_id: one, wait: {signal: go}}
  - {step_id: two, wait: {signal: go}}
";
        let engine = engine(play, steps, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        let first = Signal::new("1", "go", &json!({"n": 1, "m": [2]}));
        let spaced = Signal { payload: "{ \"m\": [2],\n \"n\": 1.0 }".to_owned(), ..first.clone() };
        assert_eq!(say(&engine, job_id, first.clone()).await, Signalled { created: true, taken_by: None });
        assert_eq!(say(&engine, job_id, spaced).await, Signalled { created: false, taken_by: None });
        let other = Signal::new("1", "go", &json!({"n": 2}));
        let refusal = engine.signal(job_id, other).await.unwrap_err();
        assert_eq!(refusal.code(), Code::SignalIdReused);

        play.clock.advance(HOUR.cast_signed());
        // The one signal goes to one wait; the other is parked for ever, without a timer.
        let waits = parked(play.store(), job_id, 1).await;
        assert_eq!((waits[0].step_id.as_str(), waits[0].timer_at), ("two", None));
        play.expect_sound().await;
        say(&engine, job_id, Signal::new("2", "go", &json!("second"))).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        assert_eq!(output(play.store(), job_id, "one").await["n"], json!(1));
        assert_eq!(output(play.store(), job_id, "two").await, json!("second"));
        // Long after its end a repeat is still the same; what is new has nobody to go to.
        assert!(!say(&engine, job_id, first).await.created);
        let late = engine.signal(job_id, Signal::new("3", "go", &Value::Null)).await.unwrap_err();
        assert_eq!(late.code(), Code::JobEnding);
        let signals = play.store().signals(job_id).await.unwrap();
        let taken: Vec<u32> = signals.iter().filter_map(|s| Some(s.taken_by?.step_index)).collect();
        assert_eq!(taken, [1, 2]);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn what_nobody_waits_for_or_does_not_fit_is_refused<W>(play: &Play<W>) {
        let engine = engine(play, APPROVAL, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        let code = async |signal: Signal| engine.signal(job_id, signal).await.unwrap_err().code();
        assert_eq!(code(Signal::new("1", "approve", &json!({}))).await, Code::SignalUnknown);
        assert_eq!(code(Signal::new("1", "approval", &json!([1]))).await, Code::PayloadInvalid);
        assert_eq!(code(Signal::new("", "approval", &json!({}))).await, Code::NameInvalid);
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert_eq!(code(Signal { payload: deep, ..approval("1") }).await, Code::JsonTooDeep);
        assert_eq!(code(Signal { payload: r#"{"a":"\u0000"}"#.to_owned(), ..approval("1") }).await, Code::NulCharacter);
        assert_eq!(code(Signal { reason: Some("x".repeat(9_000)), ..approval("1") }).await, Code::SignalInvalid);
        let nobody = engine.signal(JobId::new(), approval("1")).await.unwrap_err();
        assert_eq!(nobody.code(), Code::JobUnknown);
        // Nothing of that was kept, so the id is free.
        assert!(say(&engine, job_id, approval("1")).await.created);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_rejection_fails_the_step_with_who_and_why<W>(play: &Play<W>) {
        let engine = engine(play, APPROVAL, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        say(&engine, job_id, rejection("no")).await;
        let job = closed(play.store(), job_id).await;
        let error = job.error.unwrap();
        assert_eq!((job.row.state, error.code.as_str()), (JobState::FailedFinal, "SIGNAL_REJECTED"));
        assert_eq!(error.message, "rejected by alice: the total is wrong");
        let told = explained(play.store(), job_id).await;
        assert!(told.contains("alice rejects (the total is wrong)"), "{told}");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_wait_whose_time_is_over_fails_or_succeeds_as_its_policy_says<W>(play: &Play<W>) {
        for (policy, ends) in [("fail", JobState::FailedFinal), ("succeed", JobState::Succeeded)] {
            let play = Play::<W>::begin().await;
            let steps = format!("
  - {{step_id: ok, wait: {{signal: approval, timeout: 1h, on_timeout: {policy}}}}}
  - {{step_id: after, service: work}}
");
            let engine = engine(&play, &steps, echo()).await;
            let job_id = submit(&engine, json!({})).await;
            parked(play.store(), job_id, 1).await;
            play.clock.advance(HOUR.cast_signed() - 1);
            tokio::time::sleep(Duration::from_millis(60)).await;
            parked(play.store(), job_id, 1).await;
            play.clock.advance(1);
            let job = closed(play.store(), job_id).await;
            assert_eq!(job.row.state, ends, "{policy}");
            assert_eq!(job.error.map(|error| error.code), (policy == "fail").then(|| "WAIT_TIMED_OUT".to_owned()));
            engine.shutdown(GRACE).await.unwrap();
            play.expect_sound().await;
        }
        assert_eq!(play.store().open_jobs().await.unwrap(), 0);
    }

    async fn a_condition_is_asked_before_the_wait_and_not_after_it<W>(play: &Play<W>) {
        let steps = "
  - {step_id: ok, when: 'input.asks', wait: {signal: approval}}
  - {step_id: after, service: work}
";
        let engine = engine(play, steps, echo()).await;
        let job_id = submit(&engine, json!({"asks": false})).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn branches_take_their_signals_in_order_each_one_once<W>(play: &Play<W>) {
        let steps = "
  - {step_id: each, for_each: '[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]', wait: {signal: page}}
";
        let engine = engine(play, steps, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        say(&engine, job_id, Signal::new("0", "page", &json!(0))).await;
        parked(play.store(), job_id, 9).await;
        for n in 1..10 {
            say(&engine, job_id, Signal::new(&n.to_string(), "page", &json!(n))).await;
        }
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        let mut all: Vec<u64> = output(play.store(), job_id, "each/gather").await
            .as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
        all.sort_unstable();
        assert_eq!(all, (0..10).collect::<Vec<_>>());
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_cancel_ends_a_job_that_only_waits_with_and_without_a_time<W>(play: &Play<W>) {
        for wait in ["{signal: go}", "{signal: go, timeout: 1h}"] {
            let play = Play::<W>::begin().await;
            let steps = format!("
  - {{step_id: one, needs: [], wait: {wait}}}
  - {{step_id: two, needs: [], wait: {wait}}}
  - {{step_id: both, needs: [one, two], service: work}}
");
            let engine = engine(&play, &steps, echo()).await;
            let job_id = submit(&engine, json!({})).await;
            parked(play.store(), job_id, 2).await;
            engine.cancel(job_id, None).await.unwrap();
            assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
            let refusal = engine.signal(job_id, Signal::new("1", "go", &json!({}))).await.unwrap_err();
            assert_eq!(refusal.code(), Code::JobEnding);
            engine.shutdown(GRACE).await.unwrap();
            play.expect_sound().await;
        }
        assert_eq!(play.store().open_jobs().await.unwrap(), 0);
    }

    async fn a_failure_elsewhere_closes_the_waits_that_are_parked<W>(play: &Play<W>) {
        let steps = "
  - {step_id: ok, needs: [], wait: {signal: approval}}
  - {step_id: also, needs: [], wait: {signal: other, timeout: 1h}}
  - {step_id: both, needs: [ok, also], service: work}
";
        let engine = engine(play, steps, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        parked(play.store(), job_id, 2).await;
        say(&engine, job_id, rejection("no")).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::FailedFinal);
        let also = play.attempts(job_id).await.into_iter().rfind(|a| a.step_id == "also").unwrap();
        assert_eq!(also.row.state, StepState::Cancelled);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn signals_race_cancels_and_ends_of_time_and_the_audit_stays_empty<W>(play: &Play<W>) {
        let engine = engine(play, APPROVAL, echo()).await;
        let mut jobs = Vec::new();
        for _ in 0..24 {
            jobs.push(submit(&engine, json!({})).await);
        }
        for job_id in &jobs {
            parked(play.store(), *job_id, 1).await;
        }
        let engine = &engine;
        let mut said = Vec::new();
        for (n, job_id) in jobs.iter().enumerate() {
            let signal = engine.signal(*job_id, approval("a"));
            let repeat = engine.signal(*job_id, approval("a"));
            match n % 3 {
                0 => said.push((tokio::join!(signal, repeat, engine.cancel(*job_id, None)).0, n)),
                1 => {
                    play.clock.advance(HOUR.cast_signed() / 8);
                    said.push((tokio::join!(signal, repeat).0, n));
                }
                _ => said.push((tokio::join!(repeat, signal).1, n)),
            }
        }
        for (job_id, (said, n)) in jobs.iter().zip(said) {
            let state = closed(play.store(), *job_id).await.row.state;
            let kept = play.store().signals(*job_id).await.unwrap();
            assert!(kept.len() <= 1, "one id is one signal");
            match state {
                // Its signal came in time.
                JobState::Succeeded => assert!(said.is_ok(), "{n} {said:?}"),
                JobState::Cancelled => assert_eq!(n % 3, 0),
                JobState::FailedFinal => assert!(kept.iter().all(|s| s.taken_by.is_none()), "{kept:?}"),
                other => panic!("{other}"),
            }
        }
        play.expect_sound().await;
    }

    async fn an_engine_that_is_gone_leaves_its_waits_to_the_next<W>(play: &Play<W>) {
        let first = engine(play, APPROVAL, echo()).await;
        let job_id = submit(&first, json!({})).await;
        parked(play.store(), job_id, 1).await;
        let said = say(&first, job_id, approval("a")).await;
        assert!(said.created);
        first.shutdown(Duration::ZERO).await.unwrap();
        let second = engine(play, APPROVAL, echo()).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        assert!(!say(&second, job_id, approval("a")).await.created);
        second.shutdown(GRACE).await.unwrap();
    }

    async fn a_wait_that_is_parked_beside_its_signal_is_told_by_the_audit<W>(play: &Play<W>) {
        let engine = engine(play, APPROVAL, echo()).await;
        let job_id = submit(&engine, json!({})).await;
        parked(play.store(), job_id, 1).await;
        engine.shutdown(GRACE).await.unwrap();
        let at = W::id(job_id);
        play.world.execute(&format!(
            "INSERT INTO signal (job_id, n, signal_id, name, decision, content, payload, received_at)
             VALUES ({at}, 2, 'x', 'approval', 0, {at}, 'null', 1)"
        )).await.unwrap();
        let checks = play.store().audit().await.unwrap();
        let told: Vec<&str> = checks.iter().filter(|c| !c.violations.is_empty()).map(|c| c.name.as_str()).collect();
        assert_eq!(told, ["29_signal_and_wait_that_miss_each_other", "30_signal_that_went_nowhere"]);
        play.world.execute("DELETE FROM signal").await.unwrap();
        // Without a timer, and without what it waits for, nothing would ever touch it.
        play.world.execute("UPDATE attempt SET timer_at = NULL, waits_for = NULL WHERE waits_for IS NOT NULL").await.unwrap();
        let checks = play.store().audit().await.unwrap();
        let told: Vec<&str> = checks.iter().filter(|c| !c.violations.is_empty()).map(|c| c.name.as_str()).collect();
        assert_eq!(told, ["13_obligation_that_nothing_will_touch"]);
        play.world.execute("UPDATE attempt SET waits_for = 'approval' WHERE step_index = 0").await.unwrap();
    }
}

#[test]
fn waits_for_one_signal_have_one_schema() {
    let text = "protocol_id: p.v1\nrequest_types: [P]\nsteps:
- {step_id: a, wait: {signal: go, schema: {type: object}}}
- {step_id: b, wait: {signal: go, schema: {type: array}}}";
    let refusal = Protocol::read(text).unwrap_err();
    assert_eq!(refusal.code(), Code::ProtocolInvalid);
    assert!(refusal.to_string().contains("several schemas"), "{refusal}");
}
