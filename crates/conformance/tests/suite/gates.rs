//! Gates: limits of a service, a tenant or any key over all engines, rates, and what crashes, retries, cancels
//! and failures do to those that hold a slot or stand in line.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::explain::{Seen, explain};
use sprag_engine::gate::{GateView, Gates};
use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::plan;
use sprag_engine::store::{FinishOutcome, Held, NewJob, NewStep, Store};
use sprag_kernel::JobState;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::gate::Limit;

use crate::graphs::{closed, engine, handler, submit};
use crate::on_both_stores;
use crate::play::{Play, facts, join_all, new_job};
use crate::world::World;

const GATE: &str = "g";
const GRACE: Duration = Duration::from_secs(5);

/// A job whose steps all wait at one gate.
pub fn gated(gate: &str, limit: Limit, steps: usize) -> NewJob {
    let job = new_job(facts("t1", None, &JobId::new().to_string()), steps);
    let steps = job.steps.iter().map(|step| NewStep { limit: Some(limit), ..step.clone() });
    let gates = vec![Some(gate.to_owned()); job.steps.len()];
    NewJob { steps: steps.collect(), gates, ..job }
}

fn most(max: u32) -> Limit {
    Limit { max: Some(max), gap_us: None }
}

async fn create<W: World>(play: &Play<W>, limit: Limit) -> JobId {
    play.submit(gated(GATE, limit, 1)).await.unwrap().job_id
}

async fn admit<W: World>(play: &Play<W>) -> usize {
    play.store().admit(play.engine, vec![GATE.to_owned()]).await.unwrap()
}

async fn claimed<W: World>(play: &Play<W>) -> Vec<Held> {
    play.claim_as(play.engine, 100).await.unwrap()
}

async fn view<W: World>(play: &Play<W>) -> (u64, u64) {
    let GateView { admitted, waiting, .. } = play.store().gate(GATE).await.unwrap();
    (admitted, waiting)
}

async fn play_out<W: World>(play: &Play<W>, mut held: Held, report: Report) {
    play.dispatch(&mut held).await;
    play.report(&mut held, report).await;
    let outcome = play.finish(&held).await;
    assert!(matches!(outcome, FinishOutcome::Done { .. }), "{outcome:?}");
}

/// Works through a gate as one of many, and says how many it has done. `inside` counts those that hold a
/// slot, by what was committed: claimed, and not over.
async fn race<S: Store>(
    store: &S,
    engine: EngineNo,
    (inside, worst): (&AtomicUsize, &AtomicUsize),
    left: &AtomicUsize,
) {
    let policy = sprag_kernel::retry::RetryPolicy::default();
    let mut leases = u64::try_from(engine.0).unwrap() * 1_000;
    while left.load(Ordering::SeqCst) > 0 {
        store.admit(engine, vec![GATE.to_owned()]).await.unwrap();
        let wish = sprag_engine::store::Wish {
            service: crate::play::SERVICE.to_owned(),
            max: 2,
            pick: sprag_engine::store::Pick::Any,
            tenant_id: None,
        };
        for mut held in store.claim(engine, vec![wish]).await.unwrap() {
            let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
            worst.fetch_max(now, Ordering::SeqCst);
            leases += 1;
            let lease = sprag_kernel::decide::rows::LeaseId(leases);
            let write = plan::dispatch(&mut held, lease, &policy).unwrap();
            store.dispatch(engine, vec![write]).await.unwrap();
            held.attempt.version += 1;
            let write = plan::result(&held, Report::Succeeded, None, None).unwrap().unwrap();
            store.end(engine, vec![write.clone()]).await.unwrap();
            held.attempt.version += 1;
            held.attempt.ledger = write.ledger;
            held.attempt.ending = Some(write.ending);
            let write = plan::finish(&held, &policy, false).unwrap();
            inside.fetch_sub(1, Ordering::SeqCst);
            store.finish(engine, vec![write]).await.unwrap();
            left.fetch_sub(1, Ordering::SeqCst);
        }
        tokio::task::yield_now().await;
    }
}

/// What it costs a claim to find the most urgent activation, and that it does so by its index.
async fn claim_cost<W: World>(play: &Play<W>) -> u64 {
    let (cost, found_by) = play
        .world
        .cost(
            "SELECT step_id FROM attempt WHERE service = 'work' AND ready_at IS NOT NULL
                 AND (gate IS NULL OR admitted_at IS NOT NULL) ORDER BY ready_at, job_id LIMIT 1",
        )
        .await;
    assert!(found_by.contains("attempt_ready"), "{found_by}");
    cost
}

/// What runs at a time, by what a directive says of itself.
#[derive(Default)]
struct Crowd {
    now: Mutex<BTreeMap<String, usize>>,
    worst: Mutex<BTreeMap<String, usize>>,
}

impl Crowd {
    fn come(&self, key: &str) {
        let count = {
            let mut now = self.now.lock().unwrap();
            let count = now.entry(key.to_owned()).or_default();
            *count += 1;
            *count
        };
        let mut worst = self.worst.lock().unwrap();
        let seen = worst.entry(key.to_owned()).or_default();
        *seen = count.max(*seen);
    }

    fn go(&self, key: &str) {
        *self.now.lock().unwrap().get_mut(key).unwrap() -= 1;
    }

    fn worst(&self, key: &str) -> usize {
        self.worst.lock().unwrap()[key]
    }
}

/// A handler that stays a while among those of its key.
fn crowded(crowd: &Arc<Crowd>, key: fn(&Directive) -> String) -> sprag_engine::worker::Handler {
    let crowd = crowd.clone();
    handler(move |directive| {
        let (crowd, key) = (crowd.clone(), key(&directive));
        async move {
            crowd.come(&key);
            tokio::time::sleep(Duration::from_millis(3)).await;
            crowd.go(&key);
            Ok::<Value, Failure>(json!(key))
        }
    })
}

on_both_stores! {
    async fn as_many_are_claimable_as_the_limit_lets_in_and_the_rest_stand_in_line<W>(play: &Play<W>) {
        let jobs = [create(play, most(2)).await, create(play, most(2)).await, create(play, most(2)).await];
        assert!(claimed(play).await.is_empty(), "nobody is let in by itself");
        assert_eq!((admit(play).await, admit(play).await), (2, 0), "again is a no-op");
        assert_eq!(view(play).await, (2, 1));
        let mut held = claimed(play).await;
        assert_eq!(held.iter().map(|held| held.key.job_id).collect::<Vec<_>>(), jobs[..2]);
        assert_eq!(admit(play).await, 0, "who runs holds the slot");
        play_out(play, held.pop().unwrap(), Report::Succeeded).await;
        assert_eq!(admit(play).await, 1);
        held.extend(claimed(play).await);
        for held in held {
            play_out(play, held, Report::Succeeded).await;
        }
        assert_eq!(view(play).await, (0, 0));
    }

    async fn a_first_step_with_a_gate_is_not_entered_ahead_and_the_next_one_stands_in_line<W>(play: &Play<W>) {
        let job = NewJob { enter: true, ..gated(GATE, most(1), 2) };
        let job_id = play.submit(job).await.unwrap().job_id;
        assert_eq!(play.attempts(job_id).await[0].owner, None);
        assert_eq!(admit(play).await, 1);
        play_out(play, play.claim().await, Report::Succeeded).await;
        assert!(claimed(play).await.is_empty());
        assert_eq!(view(play).await, (0, 1));
        assert_eq!(admit(play).await, 1);
        play_out(play, play.claim().await, Report::Succeeded).await;
        assert_eq!(play.job(job_id).await.row.state, JobState::Succeeded);
    }

    async fn the_limit_holds_under_eight_racing_connections<W>(play: &Play<W>) {
        const JOBS: usize = 40;
        for _ in 0..JOBS {
            create(play, most(3)).await;
        }
        let mut stores = Vec::new();
        for n in 0..8 {
            let store = play.world.reopen().await.unwrap();
            let engine = store.join(&format!("racer {n}")).await.unwrap();
            stores.push((store, engine));
        }
        let (inside, worst, left) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicUsize::new(JOBS));
        let each = stores.iter().map(|(store, engine)| race(store, *engine, (&inside, &worst), &left));
        join_all(each).await;
        assert!(worst.load(Ordering::SeqCst) <= 3, "{worst:?} at a time");
        assert_eq!(view(play).await, (0, 0));
    }

    async fn the_slots_of_a_dead_engine_are_free_once_its_attempts_are_over<W>(play: &Play<W>) {
        for _ in 0..3 {
            create(play, most(2)).await;
        }
        let dies = play.store().join("dies").await.unwrap();
        assert_eq!(play.store().admit(dies, vec![GATE.to_owned()]).await.unwrap(), 2);
        let mut held = play.claim_as(dies, 10).await.unwrap();
        let write = play.dispatch_write(&mut held[0]).unwrap();
        play.dispatch_as(dies, write).await.unwrap();
        let lost = play.store().take_over(dies, play.engine).await.unwrap();
        assert!(crate::world::is_fenced(&play.store().admit(dies, vec![GATE.to_owned()]).await));
        assert_eq!((lost.len(), admit(play).await), (1, 0), "what was lost is not over yet");
        let again = play.claim().await;
        assert_eq!(again.key, held[1].key, "what was not dispatched keeps its slot, in the queue");

        let mut lost = lost.into_iter().next().unwrap();
        let write = Play::<W>::lost_write(&lost).unwrap();
        play.end(&mut lost, write).await;
        play.finish(&lost).await;
        assert_eq!((view(play).await, admit(play).await), ((1, 1), 1), "its slot is free");
        play.store().due(play.engine, 10).await.unwrap();
        assert_eq!((view(play).await, admit(play).await), ((2, 1), 0), "the new attempt stands in line");
    }

    async fn a_retry_gives_its_slot_away_and_stands_in_line_again<W>(play: &Play<W>) {
        let first = create(play, most(1)).await;
        play.clock.advance(1);
        create(play, most(1)).await;
        admit(play).await;
        play_out(play, play.claim().await, Report::Retryable).await;
        assert_eq!((view(play).await, admit(play).await), ((0, 1), 1), "the backoff holds no slot");
        let second = play.claim().await;
        play.clock.advance(30_000);
        play.store().due(play.engine, 10).await.unwrap();
        assert_eq!((view(play).await, admit(play).await), ((1, 1), 0));
        play_out(play, second, Report::Succeeded).await;
        assert_eq!(admit(play).await, 1);
        let held = play.claim().await;
        assert_eq!((held.key.job_id, held.key.attempt_no), (first, 2));
        play_out(play, held, Report::Succeeded).await;
    }

    async fn a_cancel_does_not_wait_in_line<W>(play: &Play<W>) {
        let first = create(play, most(1)).await;
        play.clock.advance(1);
        let second = create(play, most(1)).await;
        admit(play).await;
        let held = play.claim().await;
        play.cancel(second).await.unwrap();
        let found = play.claim_cancelled().await;
        assert_eq!(found.key.job_id, second, "it can be taken up, for its end");
        let ended = play.refuse_leg1(second).await;
        play.finish(&ended).await;
        assert_eq!(play.job(second).await.row.state, JobState::Cancelled);
        assert_eq!(view(play).await, (1, 0), "whoever runs still holds the slot");

        play.clock.advance(1);
        let third = create(play, most(1)).await;
        play_out(play, held, Report::Succeeded).await;
        assert_eq!(admit(play).await, 1);
        play.cancel(third).await.unwrap();
        assert_eq!(play.claim_cancelled().await.key.job_id, third, "one that was let in, too");
        play.finish(&play.refuse_leg1(third).await).await;
        assert_eq!(view(play).await, (0, 0), "and its slot is free");
        assert_eq!(play.job(first).await.row.state, JobState::Succeeded);
    }

    async fn a_cancel_of_a_job_that_was_let_in_gives_its_slot_back_with_its_steps<W>(play: &Play<W>) {
        let job_id = play.submit(gated(GATE, most(1), 3)).await.unwrap().job_id;
        admit(play).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.cancel(job_id).await.unwrap();
        play.report(&mut held, Report::Succeeded).await;
        play.finish(&held).await;
        assert_eq!(play.job(job_id).await.row.state, JobState::Cancelled);
        assert_eq!(view(play).await, (0, 0));
    }

    async fn a_number_holds_behind_somebody_who_brings_only_a_rate<W>(play: &Play<W>) {
        let rate = Limit { max: None, gap_us: Some(1_000) };
        create(play, most(2)).await;
        create(play, most(2)).await;
        assert_eq!(admit(play).await, 2);
        let held = claimed(play).await;
        create(play, rate).await;
        create(play, most(2)).await;
        assert_eq!((admit(play).await, view(play).await), (1, (3, 1)), "the number is exhausted");
        for held in held.into_iter().chain(claimed(play).await) {
            play_out(play, held, Report::Succeeded).await;
        }
        assert_eq!(admit(play).await, 1);
        play_out(play, play.claim().await, Report::Succeeded).await;
    }

    async fn what_nobody_took_up_for_a_minute_does_not_start_at_once<W>(play: &Play<W>) {
        let rate = Limit { max: None, gap_us: Some(100_000) };
        for _ in 0..200 {
            create(play, rate).await;
        }
        for _ in 0..60 {
            play.store().due(play.engine, 100).await.unwrap();
            admit(play).await;
            play.clock.advance(1_000);
        }
        play.store().due(play.engine, 100).await.unwrap();
        let held = play.claim_as(play.engine, 200).await.unwrap();
        assert!(held.len() <= 40, "{} start at once, and the rate is ten in a second", held.len());
        for held in held {
            play_out(play, held, Report::Succeeded).await;
        }
        assert!(admit(play).await > 0, "it goes on where somebody takes up what is given out");
    }

    async fn a_rate_holds_to_the_millisecond<W>(play: &Play<W>) {
        let rate = Limit { max: None, gap_us: Some(333_334) };
        for _ in 0..5 {
            create(play, rate).await;
        }
        assert_eq!(admit(play).await, 5, "each has its time");
        let mut starts = Vec::new();
        for ms in 0..1_400 {
            play.store().due(play.engine, 10).await.unwrap();
            for held in claimed(play).await {
                starts.push(ms);
                play_out(play, held, Report::Succeeded).await;
            }
            play.clock.advance(1);
        }
        assert_eq!(starts, [0, 334, 667, 1_001, 1_334], "three in any second");

        create(play, rate).await;
        assert_eq!((admit(play).await, claimed(play).await.len()), (1, 0), "1667 is not there yet");
        play.clock.advance(267);
        play.store().due(play.engine, 10).await.unwrap();
        play_out(play, play.claim().await, Report::Succeeded).await;
        play.clock.advance(60_000);
        create(play, rate).await;
        assert_eq!(admit(play).await, 1, "after a while nobody waits");
        play_out(play, play.claim().await, Report::Succeeded).await;
    }

    async fn gates_with_a_line_are_found_page_by_page<W>(play: &Play<W>) {
        for gate in ["a", "b", "b", "b", "c", "d"] {
            play.submit(gated(gate, most(1), 1)).await.unwrap();
        }
        let lines = |after: Option<&str>, most| play.store().lines(after.map(str::to_owned), most);
        assert_eq!(lines(None, 2).await.unwrap(), ["a", "b"]);
        assert_eq!(lines(Some("b"), 9).await.unwrap(), ["c", "d"]);
        let all = lines(None, 9).await.unwrap();
        assert_eq!(play.store().admit(play.engine, all).await.unwrap(), 4, "one at each");
        assert_eq!(lines(None, 9).await.unwrap(), ["b"]);
        assert_eq!(lines(Some("b"), 9).await.unwrap(), [""; 0]);
    }

    async fn a_long_line_of_one_tenant_does_not_slow_the_claims_of_another<W>(play: &Play<W>) {
        let job = create(play, most(1)).await;
        play.create(1).await;
        let before = claim_cost(play).await;
        let grow = format!(
            "INSERT INTO attempt (job_id, step_index, branch, attempt_no, state, version, ledger,
                 ready_at, created_at, updated_at, step_id, step_type, service, gate, gate_max)
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50000)
             SELECT job_id, step_index, n.n, attempt_no, state, version, ledger, ready_at, created_at,
                 updated_at, step_id, step_type, service, gate, gate_max
             FROM attempt, n WHERE job_id = {}",
            W::id(job)
        );
        play.world.execute(&grow).await.unwrap();
        assert_eq!(view(play).await, (0, 50_001));
        let after = claim_cost(play).await;
        assert!(2 * after <= 3 * before, "{after} instead of {before}");
        play_out(play, play.claim().await, Report::Succeeded).await;
        assert_eq!(admit(play).await, 1, "one of very many");
        let shrink = format!("DELETE FROM attempt WHERE job_id = {} AND branch > 0", W::id(job));
        play.world.execute(&shrink).await.unwrap();
    }

    async fn the_explanation_names_the_limit_and_who_holds_it<W>(play: &Play<W>) {
        create(play, most(1)).await;
        play.clock.advance(1);
        let job_id = create(play, most(1)).await;
        admit(play).await;
        let (job, attempts) = (play.job(job_id).await, play.attempts(job_id).await);
        let told = explain(&Seen::of(&job, &attempts), job.created_at).now;
        assert_eq!(told, "It waits for its limit: 1 of 1 of `g` are running, 1 stand in line.");
    }

    async fn a_service_is_limited_over_two_engines<W>(play: &Play<W>) {
        let crowd = Arc::new(Crowd::default());
        let steps = "  - {step_id: a, service: work, limit: {max: 3}}\n  - {step_id: b, service: work}\n";
        let only_first: fn(&Directive) -> String =
            |directive| if directive.step_id == "a" { "all".to_owned() } else { "rest".to_owned() };
        let first = engine(play, steps, crowded(&crowd, only_first)).await;
        let second = engine(play, steps, crowded(&crowd, only_first)).await;
        let mut jobs = Vec::new();
        for n in 0..30 {
            jobs.push(submit(if n % 2 == 0 { &first } else { &second }, json!({"n": n})).await);
        }
        for job_id in jobs {
            assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        }
        first.shutdown(GRACE).await.unwrap();
        second.shutdown(GRACE).await.unwrap();
        assert!(crowd.worst("all") <= 3, "{:?}", crowd.worst);
    }

    async fn each_value_of_a_key_has_its_own_limit<W>(play: &Play<W>) {
        let crowd = Arc::new(Crowd::default());
        let steps = "  - {step_id: a, service: work, limit: {max: 2, key: 'tenant + string(input.n % 2)'}}\n";
        let key: fn(&Directive) -> String = |directive| {
            (directive.payload["n"].as_u64().unwrap() % 2).to_string()
        };
        let engine = engine(play, steps, crowded(&crowd, key)).await;
        let mut jobs = Vec::new();
        for n in 0..24 {
            jobs.push(submit(&engine, json!({"n": n})).await);
        }
        for job_id in &jobs {
            assert_eq!(closed(play.store(), *job_id).await.row.state, JobState::Succeeded);
        }
        let (gate, max) = play.attempts(jobs[1]).await[0].gate.clone().unwrap();
        assert_eq!((gate.as_str(), max), ("work[tenant + string(input.n % 2) = t11]", Some(2)));
        engine.shutdown(GRACE).await.unwrap();
        assert!(crowd.worst("0") <= 2 && crowd.worst("1") <= 2, "{:?}", crowd.worst);
    }

    async fn branches_of_a_fan_out_wait_at_the_gate_of_their_item<W>(play: &Play<W>) {
        let crowd = Arc::new(Crowd::default());
        let steps = "  - {step_id: each, for_each: input, service: work, limit: {max: 1, key: item}}\n  \
                     - {step_id: last, service: work, limit: {max: 1}}\n";
        let key: fn(&Directive) -> String =
            |directive| directive.item.as_ref().map_or("last".to_owned(), Value::to_string);
        let engine = engine(play, steps, crowded(&crowd, key)).await;
        let items: Vec<u32> = (0..40).map(|n| n % 3).collect();
        let job_id = submit(&engine, json!(items)).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
        for key in ["0", "1", "2", "last"] {
            assert_eq!(crowd.worst(key), 1, "{key}");
        }
    }

    async fn a_failed_graph_closes_those_that_stand_in_line<W>(play: &Play<W>) {
        let steps = "  - {step_id: each, for_each: input, service: work, limit: {max: 1}}\n";
        let work = handler(|_| async { Err(Failure::fatal("BROKEN", "on purpose")) });
        let engine = engine(play, steps, work).await;
        let job_id = submit(&engine, json!([1, 2, 3, 4, 5, 6])).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::FailedFinal);
        engine.shutdown(GRACE).await.unwrap();
        let GateView { admitted, waiting, .. } = play.store().gate("work").await.unwrap();
        assert_eq!((admitted, waiting), (0, 0));
    }

    async fn a_key_without_a_value_ends_the_step<W>(play: &Play<W>) {
        let steps = "  - {step_id: a, service: work, limit: {max: 1, key: input.absent}}\n";
        let engine = engine(play, steps, crate::graphs::echo()).await;
        let job_id = submit(&engine, json!({"n": 1})).await;
        let job = closed(play.store(), job_id).await;
        engine.shutdown(GRACE).await.unwrap();
        let error = job.error.unwrap();
        assert_eq!((job.row.state, error.code.as_str()), (JobState::FailedFinal, "EXPRESSION_FAILED"));
        assert!(error.message.starts_with("limit.key: "), "{}", error.message);
    }
}
