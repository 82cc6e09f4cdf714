//! Workers that pull, through the engine's own door: claims, callbacks, timers, on a clock of the test.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::callback::{AckMode, Claim, Completion, Fence};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{AttemptView, Store};
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::{Code, JobState, State, StepState};

use crate::on_both_stores;
use crate::play::{BEGIN_MS, Play};
use crate::world::World;

const GRACE: Duration = Duration::from_secs(5);
/// Long enough for any machine, and never waited for if the engine works.
const PATIENCE: Duration = Duration::from_secs(20);

/// An engine on the books of the play that serves nothing itself.
pub async fn engine<W: World>(play: &Play<W>, steps: usize) -> Engine<W::Store> {
    let mut protocol = Protocol::new("pull.v1", "PULL");
    for n in 0..steps {
        protocol = protocol.step(&format!("s{n}"), "outside");
    }
    builder(play).await.protocol(protocol).start().await.unwrap()
}

/// An engine to be started that looks often, and never takes another one for dead: the clock jumps.
pub async fn builder<W: World>(play: &Play<W>) -> EngineBuilder<W::Store> {
    EngineBuilder::new(play.world.reopen().await.unwrap()).config(patient())
}

fn patient() -> EngineConfig {
    EngineConfig {
        poll: Duration::from_millis(5),
        takeover: Duration::from_secs(1_000_000),
        ..EngineConfig::default()
    }
}

pub async fn submit<S: Store>(engine: &Engine<S>, n: usize) -> JobId {
    submit_for(engine, "t1", n).await
}

async fn submit_for<S: Store>(engine: &Engine<S>, tenant_id: &str, n: usize) -> JobId {
    let envelope = json!({"tenant_id": tenant_id, "request_type": "PULL", "input_ref": "in",
        "output_ref": "out", "payload": {"n": n}, "schema_version": "1"});
    engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id
}

pub fn claim(claim_id: &str, max: u32) -> Claim {
    Claim {
        claim_id: claim_id.to_owned(),
        services: vec!["outside".to_owned()],
        tenant_id: None,
        max,
        wait: PATIENCE,
        ack: AckMode::Auto,
    }
}

/// A claim that takes nothing of other tenants, and does not wait.
fn bound(claim_id: &str, tenant_id: &str) -> Claim {
    let tenant_id = Some(tenant_id.to_owned());
    Claim { tenant_id, wait: Duration::ZERO, ..claim(claim_id, 10) }
}

fn explicit(claim_id: &str) -> Claim {
    Claim { ack: AckMode::Explicit, ..claim(claim_id, 1) }
}

async fn one<S: Store>(engine: &Engine<S>, claim: Claim) -> Directive {
    let mut directives = engine.claim(claim).await.unwrap();
    assert_eq!(directives.len(), 1);
    directives.remove(0)
}

pub fn done() -> Completion {
    Completion::succeeded(json!({"done": true}))
}

fn busy() -> Completion {
    Completion::failed(Failure::retryable("BUSY", "later"))
}

/// Looks until the newest attempt of a step is as wished.
pub async fn until<W: World>(
    play: &Play<W>,
    job_id: JobId,
    wished: impl Fn(&AttemptView) -> bool,
) -> AttemptView {
    for _ in 0..4_000 {
        let attempts = play.attempts(job_id).await;
        if let Some(attempt) = attempts.iter().rev().find(|attempt| wished(attempt)) {
            return attempt.clone();
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it does not come to that: {:?}", play.attempts(job_id).await);
}

pub async fn closed<W: World>(play: &Play<W>, job_id: JobId) -> JobState {
    for _ in 0..4_000 {
        let state = play.job(job_id).await.row.state;
        if state.is_terminal() {
            return state;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("it does not close: {:?}", play.attempts(job_id).await);
}

/// What was recorded as stale: callback, code, times.
pub async fn stale<W: World>(play: &Play<W>) -> Vec<(String, String, String)> {
    let sql = "SELECT callback, code, CAST(times AS text) FROM stale ORDER BY callback, code";
    let rows = play.world.query(sql).await.unwrap();
    let text = |row: &Vec<Option<String>>, n: usize| row[n].clone().unwrap();
    rows.iter().map(|row| (text(row, 0), text(row, 1), text(row, 2))).collect()
}

fn seconds(at: Option<u64>) -> i64 {
    let ms = i64::try_from(at.unwrap()).unwrap() - BEGIN_MS;
    assert_eq!(ms % 1_000, 0, "on the second");
    ms / 1_000
}

fn code<T: std::fmt::Debug>(answer: Result<T, sprag_kernel::Refusal>) -> Code {
    answer.unwrap_err().code()
}

on_both_stores! {
    async fn a_claim_for_a_tenant_is_given_nothing_of_another<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        for n in 0..6 {
            submit_for(&engine, if n % 3 == 0 { "t1" } else { "t2" }, n).await;
        }
        assert!(engine.claim(bound("a", "t3")).await.unwrap().is_empty());
        let own = engine.claim(Claim { wait: PATIENCE, ..bound("b", "t1") }).await.unwrap();
        assert_eq!(own.len(), 2, "all of its own, wherever they stand in the queue");
        assert!(own.iter().all(|directive| directive.tenant_id == "t1"));
        assert!(engine.claim(bound("c", "t1")).await.unwrap().is_empty());
        assert_eq!(engine.claim(claim("d", 10)).await.unwrap().len(), 4, "the rest is anybody's");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_claim_for_a_tenant_that_guesses_the_id_of_another_gets_nothing_of_it<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        submit_for(&engine, "t1", 1).await;
        let own = one(&engine, Claim { wait: PATIENCE, ..bound("same", "t1") }).await;
        assert!(engine.claim(bound("same", "t2")).await.unwrap().is_empty());
        let again = one(&engine, bound("same", "t1")).await;
        assert_eq!(again.lease_id, own.lease_id, "the same claim, the same directives");
        submit_for(&engine, "t2", 2).await;
        let all = one(&engine, claim("everybody", 1)).await;
        assert_eq!(all.tenant_id, "t2");
        assert!(engine.claim(bound("everybody", "t1")).await.unwrap().is_empty());
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_claim_for_a_tenant_and_one_for_all_wait_side_by_side<W>(play: &Play<W>) {
        let engine = Arc::new(engine(play, 1).await);
        let wait = |claim: Claim| {
            let engine = engine.clone();
            tokio::spawn(async move { one(&engine, claim).await })
        };
        let everybody = wait(claim("everybody", 1));
        let tenants = wait(Claim { wait: PATIENCE, max: 1, ..bound("tenants", "t1") });
        tokio::time::sleep(Duration::from_millis(50)).await;
        submit_for(&engine, "t1", 1).await;
        assert_eq!(tenants.await.unwrap().tenant_id, "t1", "who has no choice comes first");
        submit_for(&engine, "t2", 2).await;
        assert_eq!(everybody.await.unwrap().tenant_id, "t2");
        let engine = Arc::into_inner(engine).expect("nobody else holds it");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn no_name_leads_a_workspace_out_of_its_place<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        for (n, tenant_id) in ["..", "../../etc", "a/b", ".", "c:\\d", "é %2f"].into_iter().enumerate() {
            let job_id = submit_for(&engine, tenant_id, n).await;
            let directive = one(&engine, claim(&format!("c{n}"), 1)).await;
            let parts: Vec<&str> = directive.workspace_ref.split('/').collect();
            let (job, step) = (job_id.to_string(), "s0".to_owned());
            assert_eq!(parts.len(), 5, "{}", directive.workspace_ref);
            assert_eq!((parts[2], parts[3], parts[4]), (job.as_str(), step.as_str(), "1"));
            assert!(!matches!(parts[1], "" | "." | "..") && !parts[1].contains('\\'));
            assert_eq!(directive.tenant_id, tenant_id, "the name itself is handed on as it is");
        }
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn j23_a_three_step_job_is_pulled_and_reported_step_by_step<W>(play: &Play<W>) {
        let engine = engine(play, 3).await;
        let job_id = submit(&engine, 1).await;
        for n in 0..3 {
            let directive = one(&engine, claim(&format!("c{n}"), 10)).await;
            assert_eq!(directive.step_id, format!("s{n}"));
            assert_eq!(directive.inputs.len(), n);
            assert_eq!(directive.lease_expires_at, (BEGIN_MS + 900_000).cast_unsigned());
            assert_eq!(directive.workspace_ref, format!("workspace/t1/{job_id}/s{n}/1"));
            engine.result(directive.fence(), done()).await.unwrap();
        }
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        let job = play.job(job_id).await;
        assert_eq!((job.row.attempts_total, job.row.semaphore.get()), (3, 0));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_directive_on_the_wire_gives_back_its_fence<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        submit(&engine, 1).await;
        let directive = one(&engine, claim("c", 1)).await;
        let wire: Value = serde_json::to_value(&directive).unwrap();
        assert!(wire["lease_id"].is_string(), "no language loses digits of it");
        let fence: Fence = serde_json::from_value(json!({
            "jobId": wire["jobId"], "stepId": wire["stepId"], "attempt_no": wire["attempt_no"],
            "lease_id": wire["lease_id"]})).unwrap();
        engine.result(fence, done()).await.unwrap();
        closed(play, directive.job_id.parse().unwrap()).await;
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn the_same_claim_gets_the_same_directives_also_from_another_engine<W>(play: &Play<W>) {
        let first = engine(play, 1).await;
        for n in 0..3 {
            submit(&first, n).await;
        }
        let fences = |directives: &[Directive]| -> Vec<Fence> {
            let mut fences: Vec<_> = directives.iter().map(Directive::fence).collect();
            fences.sort_by_key(|fence| fence.job_id);
            fences
        };
        let given = first.claim(claim("c", 2)).await.unwrap();
        assert_eq!(given.len(), 2);
        assert_eq!(fences(&first.claim(claim("c", 2)).await.unwrap()), fences(&given));
        first.shutdown(GRACE).await.unwrap();
        let second = engine(play, 1).await;
        let again = second.claim(claim("c", 2)).await.unwrap();
        assert_eq!(fences(&again), fences(&given), "an engine's end does not touch them");
        second.result(given[0].fence(), done()).await.unwrap();
        let left = second.claim(claim("c", 2)).await.unwrap();
        assert_eq!(fences(&left), fences(&given[1..]), "what is reported is not given again");
        play.clock.advance(900_000);
        let fresh = one(&second, claim("c", 1)).await;
        assert_ne!(fresh.job_id, given[1].job_id, "their lease is over: this is the third job");
        second.shutdown(GRACE).await.unwrap();
    }

    async fn a_claim_waits_until_there_is_work_and_not_longer_than_it_says<W>(play: &Play<W>) {
        let engine = Arc::new(engine(play, 1).await);
        let none = engine.claim(Claim { wait: Duration::ZERO, ..claim("now", 1) }).await.unwrap();
        assert!(none.is_empty());
        let waiting = tokio::spawn({
            let engine = engine.clone();
            async move { engine.claim(claim("later", 1)).await }
        });
        tokio::task::yield_now().await;
        let job_id = submit(&engine, 1).await;
        let given = waiting.await.unwrap().unwrap();
        assert_eq!(given[0].job_id, job_id.to_string());
        Arc::into_inner(engine).unwrap().shutdown(GRACE).await.unwrap();
    }

    async fn claims_share_the_work_and_none_gets_what_another_has<W>(play: &Play<W>) {
        let engine = Arc::new(engine(play, 1).await);
        for n in 0..40 {
            submit(&engine, n).await;
        }
        let workers: Vec<_> = (0..8).map(|worker| {
            let engine = engine.clone();
            tokio::spawn(async move {
                let mut seen = Vec::new();
                for round in 0..40 {
                    let id = format!("{worker}/{round}");
                    let ask = Claim { wait: Duration::ZERO, ..claim(&id, 3) };
                    for directive in engine.claim(ask).await.unwrap() {
                        engine.result(directive.fence(), done()).await.unwrap();
                        seen.push(directive.job_id);
                    }
                }
                seen
            })
        }).collect();
        let mut seen = Vec::new();
        for worker in workers {
            seen.extend(worker.await.unwrap());
        }
        let count = seen.len();
        seen.sort();
        seen.dedup();
        assert_eq!((count, seen.len()), (40, 40), "each exactly once");
        for job_id in seen {
            closed(play, job_id.parse().unwrap()).await;
        }
        Arc::into_inner(engine).unwrap().shutdown(GRACE).await.unwrap();
    }

    async fn t2_an_ack_begins_the_lease_anew_and_t7_again_does_not<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        let job_id = submit(&engine, 1).await;
        let directive = one(&engine, explicit("c")).await;
        let sent = play.attempts(job_id).await.remove(0);
        assert_eq!(sent.row.state, StepState::AwaitingAck);
        assert_eq!(seconds(sent.timer_at), 30, "t1");
        assert_eq!(play.job(job_id).await.row.state, JobState::Dispatching);

        assert_eq!(code(engine.result(directive.fence(), done()).await), Code::NotYet, "t6");
        assert_eq!(code(engine.heartbeat(directive.fence(), None).await), Code::NotYet);
        play.clock.advance(20_000);
        engine.ack(directive.fence()).await.unwrap();
        let acked = play.attempts(job_id).await.remove(0);
        assert_eq!(acked.row.state, StepState::InProgress);
        assert_eq!(seconds(acked.timer_at), 920);
        assert_eq!(play.job(job_id).await.row.state, JobState::InProgress, "j3");
        play.clock.advance(5_000);
        let version = play.job(job_id).await.row.version;
        engine.ack(directive.fence()).await.unwrap();
        let again = play.attempts(job_id).await.remove(0);
        assert_eq!((seconds(again.timer_at), again.row.version), (920, acked.row.version));
        assert_eq!(play.job(job_id).await.row.version, version);
        let times = |callback: &str| (callback.to_owned(), "NOT_YET".to_owned(), "1".to_owned());
        assert_eq!(stale(play).await, [times("heartbeat"), times("result")]);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn t3_a_wrong_fence_is_recorded_and_changes_nothing<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        let job_id = submit(&engine, 1).await;
        let first = one(&engine, claim("c1", 1)).await;
        engine.result(first.fence(), busy()).await.unwrap();
        until(play, job_id, |attempt| attempt.key.attempt_no == 2).await;
        engine.result(first.fence(), busy()).await.expect("a duplicate while the retry waits");
        play.clock.advance(30_000);
        let second = one(&engine, claim("c2", 1)).await;
        assert_eq!(second.attempt_no, 2);
        let forged = Fence { lease_id: LeaseId(second.lease_id.0 + 1), ..second.fence() };
        let (row, version) = (play.attempts(job_id).await[1].row, play.job(job_id).await.row.version);
        for fence in [first.fence(), forged] {
            assert_eq!(code(engine.ack(fence.clone()).await), Code::StaleFence);
            assert_eq!(code(engine.heartbeat(fence.clone(), None).await), Code::StaleFence);
            assert_eq!(code(engine.result(fence, done()).await), Code::StaleFence);
        }
        assert_eq!(play.attempts(job_id).await[1].row, row);
        assert_eq!(play.job(job_id).await.row.version, version);
        let twice = |name: &str| (name.to_owned(), "STALE_FENCE".to_owned(), "2".to_owned());
        assert_eq!(stale(play).await, [twice("ack"), twice("heartbeat"), twice("result")]);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn t8_a_result_said_twice_counts_once_and_another_one_is_stale<W>(play: &Play<W>) {
        let engine = engine(play, 2).await;
        let job_id = submit(&engine, 1).await;
        let directive = one(&engine, claim("c", 1)).await;
        let both = tokio::join!(
            engine.result(directive.fence(), done()),
            engine.result(directive.fence(), done())
        );
        assert!(both.0.is_ok() && both.1.is_ok(), "{both:?}");
        until(play, job_id, |attempt| attempt.key.step_index == 1 && attempt.is_ready).await;
        engine.result(directive.fence(), done()).await.expect("also after the step is over");
        let other = Completion::succeeded(json!("other"));
        assert_eq!(code(engine.result(directive.fence(), other).await), Code::StaleFence);
        let attempts = play.attempts(job_id).await;
        assert_eq!(attempts.len(), 2, "one child");
        assert_eq!(attempts[0].row.ledger.leg2_entries(), 1);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn t10_an_unknown_job_step_or_tenant_is_not_found_and_not_recorded<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        submit(&engine, 1).await;
        let fence = one(&engine, claim("c", 1)).await.fence();
        let job = Fence { job_id: JobId::new(), ..fence.clone() };
        let step = Fence { step_id: "other".to_owned(), ..fence.clone() };
        let turn = Fence { turn: 7, ..fence.clone() };
        let tenant = Fence { tenant_id: Some("t2".to_owned()), ..fence.clone() };
        for unknown in [job, step, turn, tenant] {
            assert_eq!(code(engine.result(unknown.clone(), done()).await), Code::StepUnknown);
            assert_eq!(code(engine.ack(unknown.clone()).await), Code::StepUnknown);
            assert_eq!(code(engine.heartbeat(unknown, None).await), Code::StepUnknown);
        }
        assert!(stale(play).await.is_empty());
        let own = Fence { tenant_id: Some("t1".to_owned()), step_index: None, ..fence };
        engine.heartbeat(own, None).await.unwrap();
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn t12_a_retryable_result_waits_thirty_seconds_then_two_minutes_then_fails<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        let job_id = submit(&engine, 1).await;
        for (attempt_no, wait) in [(1, 30), (2, 120)] {
            let directive = one(&engine, claim(&format!("c{attempt_no}"), 1)).await;
            assert_eq!(directive.attempt_no, attempt_no);
            let now = (play.clock.now() - BEGIN_MS) / 1_000;
            engine.result(directive.fence(), busy()).await.unwrap();
            let next = until(play, job_id, |next| next.key.attempt_no == attempt_no + 1).await;
            assert_eq!(seconds(next.timer_at), now + wait);
            play.clock.advance(wait * 1_000 - 1);
            let early = Claim { wait: Duration::ZERO, ..claim("early", 1) };
            assert!(engine.claim(early).await.unwrap().is_empty(), "one millisecond is missing");
            play.clock.advance(1);
        }
        let last = one(&engine, claim("c3", 1)).await;
        engine.result(last.fence(), busy()).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::FailedFinal);
        assert_eq!(play.job(job_id).await.error.unwrap().code, "BUSY");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn t13_a_directive_that_nobody_acknowledges_fails_after_450_seconds<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        let job_id = submit(&engine, 1).await;
        for (attempt_no, sent, timeout, next) in [(1, 0, 30, 90), (2, 90, 120, 420)] {
            one(&engine, explicit(&format!("c{attempt_no}"))).await;
            let attempt = until(play, job_id, |a| a.row.state == StepState::AwaitingAck).await;
            assert_eq!((seconds(attempt.sent_at), seconds(attempt.timer_at)), (sent, timeout));
            play.clock.advance((timeout - sent) * 1_000);
            let retry = until(play, job_id, |a| a.key.attempt_no == attempt_no + 1).await;
            assert_eq!(seconds(retry.timer_at), next);
            play.clock.advance((next - timeout) * 1_000);
        }
        one(&engine, explicit("c3")).await;
        let attempt = until(play, job_id, |a| a.row.state == StepState::AwaitingAck).await;
        assert_eq!((seconds(attempt.sent_at), seconds(attempt.timer_at)), (420, 450));
        play.clock.advance(30_000);
        assert_eq!(closed(play, job_id).await, JobState::FailedFinal);
        let job = play.job(job_id).await;
        assert_eq!((seconds(job.completed_at), job.error.unwrap().code.as_str()), (450, "ACK_TIMEOUT"));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn t14_a_worker_that_falls_silent_fails_the_step_after_2850_seconds<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        let job_id = submit(&engine, 1).await;
        for (attempt_no, acked, expires, next) in [(1, 0, 900, 930), (2, 930, 1_830, 1_950)] {
            one(&engine, claim(&format!("c{attempt_no}"), 1)).await;
            let attempt = until(play, job_id, |a| a.row.state == StepState::InProgress).await;
            assert_eq!((seconds(attempt.acked_at), seconds(attempt.timer_at)), (acked, expires));
            play.clock.advance((expires - acked) * 1_000);
            let retry = until(play, job_id, |a| a.key.attempt_no == attempt_no + 1).await;
            assert_eq!(seconds(retry.timer_at), next);
            play.clock.advance((next - expires) * 1_000);
        }
        one(&engine, claim("c3", 1)).await;
        play.clock.advance(900_000);
        assert_eq!(closed(play, job_id).await, JobState::FailedFinal);
        let job = play.job(job_id).await;
        assert_eq!((seconds(job.completed_at), job.error.unwrap().code.as_str()), (2_850, "LEASE_EXPIRED"));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn t19_a_heartbeat_moves_the_lease_and_says_whether_to_stop<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        let job_id = submit(&engine, 1).await;
        let directive = one(&engine, claim("c", 1)).await;
        play.clock.advance(14 * 60_000);
        let events = play.store().events(job_id).await.unwrap().len();
        let alive = engine.heartbeat(directive.fence(), Some(json!({"page": 3}))).await.unwrap();
        assert_eq!(seconds(Some(alive.lease_expires_at)), (14 + 15) * 60);
        assert!(!alive.cancel);
        play.clock.advance(14 * 60_000);
        engine.cancel(job_id, None).await.unwrap();
        let alive = engine.heartbeat(directive.fence(), None).await.unwrap();
        assert!(alive.cancel, "a cancelled job says so");
        let progress = play.world.query("SELECT progress FROM attempt").await.unwrap();
        assert_eq!(progress[0][0].as_deref(), Some(r#"{"page":3}"#));
        let told = play.store().events(job_id).await.unwrap().len();
        assert_eq!(told, events + 1, "the cancel is told, a heartbeat is not");
        let stop = Completion::failed(Failure::retryable("CANCELLED", "asked to stop"));
        engine.result(directive.fence(), stop).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::Cancelled);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn t31_a_result_stored_just_before_the_lease_ends_decides_however_late<W>(play: &Play<W>) {
        let first = engine(play, 1).await;
        let job_id = submit(&first, 1).await;
        let directive = one(&first, claim("c", 1)).await;
        play.clock.advance(899_900);
        first.result(directive.fence(), done()).await.unwrap();
        first.shutdown(GRACE).await.unwrap();
        play.clock.advance(600_000);
        let second = engine(play, 1).await;
        assert_eq!(closed(play, job_id).await, JobState::Succeeded);
        assert_eq!(play.attempts(job_id).await.len(), 1);
        second.shutdown(GRACE).await.unwrap();
    }

    async fn j17_an_ack_after_a_cancel_lets_the_attempt_finish<W>(play: &Play<W>) {
        let engine = engine(play, 2).await;
        let job_id = submit(&engine, 1).await;
        let directive = one(&engine, explicit("c")).await;
        assert_eq!(engine.cancel(job_id, None).await.unwrap(), JobState::Cancelling);
        engine.ack(directive.fence()).await.unwrap();
        engine.result(directive.fence(), done()).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::Cancelled);
        let states: Vec<_> = play.attempts(job_id).await.iter().map(|a| a.row.state).collect();
        assert_eq!(states, [StepState::Succeeded, StepState::Cancelled]);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn j18_a_cancelled_job_whose_directive_nobody_acknowledges_ends_after_thirty_seconds<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        let job_id = submit(&engine, 1).await;
        one(&engine, explicit("c")).await;
        engine.cancel(job_id, None).await.unwrap();
        play.clock.advance(30_000);
        assert_eq!(closed(play, job_id).await, JobState::Cancelled);
        assert_eq!(play.attempts(job_id).await[0].row.state, StepState::Cancelled);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn what_no_store_has_to_keep_of_a_worker_is_refused_and_holds_up_nobody<W>(play: &Play<W>) {
        let config = EngineConfig { max_output_bytes: 100, ..patient() };
        let protocol = Protocol::new("pull.v1", "PULL").step("s0", "outside");
        let builder = EngineBuilder::new(play.world.reopen().await.unwrap()).config(config);
        let engine = builder.protocol(protocol).start().await.unwrap();
        let job_id = submit(&engine, 1).await;
        let fence = one(&engine, claim("c1", 1)).await.fence();

        let refused = async |fence: &Fence, completion: Completion| {
            engine.result(fence.clone(), completion).await.unwrap_err().code()
        };
        let large = json!("x".repeat(100));
        let with_ref = |output_ref| Completion { output_ref: Some(output_ref), ..done() };
        for (completion, code) in [
            (Completion::succeeded(large.clone()), Code::InputTooLarge),
            (Completion::succeeded(json!({"a": "x\0"})), Code::NulCharacter),
            (with_ref(large), Code::InputTooLarge),
            (with_ref(json!("x\0")), Code::NulCharacter),
        ] {
            assert_eq!(refused(&fence, completion).await, code);
        }
        let progress = Some(json!("x".repeat(20_000)));
        let answer = engine.heartbeat(fence.clone(), progress).await.unwrap_err();
        assert_eq!(answer.code(), Code::InputTooLarge);
        let named = |step_id: &str| Fence { step_id: step_id.to_owned(), ..fence.clone() };
        assert_eq!(refused(&named("s\u{0}0"), done()).await, Code::NameInvalid);

        // Numbers that no attempt has.
        let numbered = |change: fn(&mut Fence)| {
            let mut fence = fence.clone();
            change(&mut fence);
            fence
        };
        for (fence, code) in [
            (numbered(|fence| fence.lease_id = LeaseId(u64::MAX)), Code::StaleFence),
            (numbered(|fence| fence.attempt_no = u32::MAX), Code::StaleFence),
            (numbered(|fence| fence.step_index = Some(u32::MAX)), Code::StepUnknown),
            (numbered(|fence| fence.branch = u64::MAX), Code::StepUnknown),
            (numbered(|fence| fence.turn = u32::MAX), Code::StepUnknown),
        ] {
            assert_eq!(refused(&fence, done()).await, code, "{fence:?}");
        }
        let kept = "SELECT CAST(max(attempt_no) AS text) FROM stale";
        assert_eq!(play.world.query(kept).await.unwrap()[0][0].as_deref(), Some("2147483647"));

        // Nothing of it has changed the attempt; words that cannot be kept are kept without what is wrong.
        let failure = Failure::fatal("BAD\0CODE", format!("a\0b{}", "x".repeat(10_000)));
        engine.result(fence, Completion::failed(failure)).await.unwrap();
        assert_eq!(closed(play, job_id).await, JobState::FailedFinal);
        let error = play.job(job_id).await.error.unwrap();
        assert_eq!(error.code, "BAD\u{fffd}CODE");
        assert!(error.message.starts_with("a\u{fffd}b") && error.message.len() == 8 * 1024);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_claim_without_services_or_work_is_refused<W>(play: &Play<W>) {
        let engine = engine(play, 1).await;
        let without = Claim { services: Vec::new(), ..claim("c", 1) };
        assert_eq!(code(engine.claim(without).await), Code::ClaimInvalid);
        assert_eq!(code(engine.claim(claim("c", 0)).await), Code::ClaimInvalid);
        assert_eq!(code(engine.claim(claim("", 1)).await), Code::NameInvalid);
        engine.shutdown(GRACE).await.unwrap();
    }
}

#[test]
fn t11_a_failed_result_without_its_class_is_refused() {
    let refused = |status, class| code(Completion::read(status, class, None, None));
    assert_eq!(refused("FAILED", None), Code::ResultInvalid);
    assert_eq!(refused("SUCCEEDED", Some("RETRYABLE")), Code::ResultInvalid);
    assert_eq!(refused("DONE", None), Code::ResultInvalid);
    assert!(Completion::read("FAILED", Some("RETRYABLE"), None, None).is_ok());
}
