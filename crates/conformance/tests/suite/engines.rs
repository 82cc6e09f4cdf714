//! Engines: signs of life, takeover, and the fence that a dead one cannot pass.

use std::time::Duration;

use sprag_engine::engine::EngineConfig;
use sprag_engine::plan;
use sprag_engine::protocol::Protocol;
use sprag_engine::signals::{Signal, Signals};
use sprag_engine::store::{
    EndOutcome, FinishOutcome, Held, NewJob, Pick, Pulse, Signs, StaleCallback, Store, StoreError,
    Wish,
};
use sprag_engine::upkeep::Upkeep;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::EndingKind;
use sprag_kernel::retry::RetryPolicy;
use sprag_kernel::{Code, JobState, StepState};

use crate::firsts::Firsts;
use crate::graphs::{GRACE, echo};
use crate::on_both_stores;
use crate::play::{Play, SERVICE, facts, new_job};
use crate::pull::{builder, until};
use crate::world::{Postgres, World, is_fenced};

on_both_stores! {
    async fn an_engine_that_does_not_beat_is_silent<W>(play: &Play<W>) {
        let other = play.store().join("other").await.unwrap();
        assert!(other > play.engine);
        play.clock.advance(9_999);
        assert_eq!(play.store().beat(other, Some(10_000)).await.unwrap(), Signs::default());
        play.clock.advance(1);
        let signs = play.store().beat(other, Some(10_000)).await.unwrap();
        assert_eq!((signs.silent, signs.has_mail), (vec![play.engine], false));
        assert_eq!(play.store().beat(other, None).await.unwrap(), Signs::default(), "not asked for");
    }

    /// On Postgres a beat may still be on its way when its engine leaves. It made the engine look alive, and what it held
    /// waited as long as for one that had died.
    async fn an_engine_that_has_left_is_silent_whatever_comes_of_it_later<W>(play: &Play<W>) {
        let other = play.store().join("other").await.unwrap();
        play.store().leave(play.engine).await.unwrap();
        assert!(is_fenced(&play.store().beat(play.engine, None).await));
        let signs = play.store().beat(other, Some(10_000)).await.unwrap();
        assert_eq!(signs.silent, [play.engine]);
    }

    async fn an_activation_of_a_dead_engine_is_free_again<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        play.claim().await;
        let heir = play.store().join("heir").await.unwrap();
        let held = play.store().take_over(play.engine, heir).await.unwrap();
        assert!(held.is_empty(), "nothing ran");
        let again = play.claim_as(heir, 10).await.unwrap();
        assert_eq!((again.len(), again[0].key.job_id), (1, job_id));
        assert_eq!(again[0].attempt.ledger.leg1_entries(), 2);
    }

    async fn a_running_attempt_of_a_dead_engine_is_lost_and_tried_again<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let heir = play.store().join("heir").await.unwrap();
        let mut taken = play.store().take_over(play.engine, heir).await.unwrap();
        let mut lost = taken.pop().unwrap();
        assert_eq!((taken.len(), lost.key), (0, held.key));
        let write = Play::<W>::lost_write(&lost).unwrap();
        let EndOutcome::Entered { version } = play.end_as(heir, write.clone()).await.unwrap() else {
            panic!("the heir ends it")
        };
        lost.attempt.version = version;
        lost.attempt.ledger = write.ledger;
        lost.attempt.ending = Some(write.ending);
        let write = play.finish_write(&lost, false).unwrap();
        play.finish_as(heir, write).await.unwrap();
        assert_eq!(play.store().due(heir, 10).await.unwrap().promoted, 1, "at once");
        let again = play.claim_as(heir, 1).await.unwrap().remove(0);
        assert_eq!((again.key.attempt_no, again.attempt.losses), (2, 1));
        assert_eq!(again.attempt.counted_attempts(), 1, "not against the step's budget");
        assert_eq!(play.attempts(job_id).await[0].row.state, StepState::FailedRetry);
    }

    async fn a_message_of_a_dead_engine_is_delivered_again_and_finished<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Succeeded).await;
        let heir = play.store().join("heir").await.unwrap();
        let taken = play.store().take_over(play.engine, heir).await.unwrap().pop().unwrap();
        let (activity, guid) = play.digits(&held.key).await;
        assert_eq!(activity, "001100000000002", "one more entry of Leg2");
        assert_eq!(guid.as_deref(), Some("000000000000001"), "the ordinal is frozen");
        let write = play.finish_write(&taken, false).unwrap();
        let outcome = play.finish_as(heir, write).await.unwrap();
        assert!(matches!(outcome, FinishOutcome::Done { job: JobState::Succeeded, .. }));
        assert_eq!(play.digits(&held.key).await.0, "001111100000002");
        assert_eq!(play.job(job_id).await.row.attempts_total, 1);
    }

    /// Engines that die one after the other do not get to everything that they take over.
    async fn a_message_wears_out_by_the_turns_it_had_and_not_by_takeovers<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Succeeded).await;
        let (key, mut owner) = (held.key, play.engine);
        for no in 2_u64..8 {
            let heir = play.store().join("heir").await.unwrap();
            let taken = play.store().take_over(owner, heir).await.unwrap().pop().unwrap();
            assert_eq!((taken.attempt.message_deliveries(), taken.is_unentered), (Some(2), no > 2));
            owner = heir;
        }
        let policy = RetryPolicy { max_losses: 5, ..RetryPolicy::default() };
        let turn = async || {
            let policy = policy.clone();
            let decide = Box::new(move |held: &Held, _| Ok(plan::deliver_alone(held, &key, &policy)));
            let amended = play.store().amend(owner, job_id, None, decide).await.unwrap();
            amended.unwrap().unwrap().unwrap()
        };
        for deliveries in [3, 4, 5] {
            let held = turn().await;
            assert_eq!(held.attempt.message_deliveries(), Some(deliveries));
            assert!(held.attempt.runs_alone());
            assert_eq!(held.attempt.ending.unwrap().kind, EndingKind::Success);
            assert_eq!(play.digits(&key).await.0, format!("00110000000000{deliveries}"));
        }
        let worn = turn().await;
        assert_eq!(worn.attempt.ending.unwrap().kind, EndingKind::NonRetryable);
        let write = play.finish_write(&worn, false).unwrap();
        play.finish_as(owner, write).await.unwrap();
        let job = play.job(job_id).await;
        assert_eq!(job.row.state, JobState::FailedFinal);
        let error = job.error.unwrap();
        assert_eq!(error.code, "MESSAGE_POISON");
        assert_eq!(error.message, "5 engines died before its result was finished");
    }

    async fn a_cancel_message_without_a_lease_is_taken_over_too<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        play.cancel(job_id).await.unwrap();
        play.claim_cancelled().await;
        play.refuse_leg1(job_id).await;
        let heir = play.store().join("heir").await.unwrap();
        let taken = play.store().take_over(play.engine, heir).await.unwrap().pop().unwrap();
        let write = play.finish_write(&taken, false).unwrap();
        play.finish_as(heir, write).await.unwrap();
        assert_eq!(play.job(job_id).await.row.state, JobState::Cancelled);
    }

    /// The heir may run attempts of its own; to return them too would declare them lost.
    async fn a_takeover_returns_only_what_the_dead_engine_held<W>(play: &Play<W>) {
        play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let heir = play.store().join("heir").await.unwrap();
        play.create(1).await;
        let mut own = play.claim_as(heir, 1).await.unwrap().remove(0);
        let write = play.dispatch_write(&mut own).unwrap();
        play.dispatch_as(heir, write).await.unwrap();
        let taken = play.store().take_over(play.engine, heir).await.unwrap();
        let keys: Vec<_> = taken.iter().map(|held| held.key).collect();
        assert_eq!(keys, [held.key]);
        let again = play.store().take_over(play.engine, heir).await.unwrap();
        assert!(again.is_empty(), "the dead are taken over once");
    }

    async fn no_write_of_a_dead_engine_counts<W>(play: &Play<W>) {
        play.create(2).await;
        let mut dispatched = play.claim().await;
        play.dispatch(&mut dispatched).await;
        play.create(2).await;
        let mut ended = play.claim().await;
        play.dispatch(&mut ended).await;
        play.report(&mut ended, Report::Succeeded).await;
        play.create(1).await;
        let mut claimed = play.claim().await;
        play.create(1).await;
        let cancelled = play.create(1).await;
        play.cancel(cancelled).await.unwrap();
        let heir = play.store().join("heir").await.unwrap();
        play.store().take_over(play.engine, heir).await.unwrap();
        let rows = everything(play).await;

        let dead = play.engine;
        let end = Play::<W>::result_write(&dispatched, Report::Succeeded);
        let finish = play.finish_write(&ended, true).unwrap();
        let dispatch = play.dispatch_write(&mut claimed).unwrap();
        let job = new_job(facts("t1", None, "late"), 1);
        assert!(is_fenced(&play.store().beat(dead, None).await));
        assert!(is_fenced(&play.store().submit(dead, vec![job]).await));
        assert!(is_fenced(&play.claim_as(dead, 1).await));
        assert!(is_fenced(&play.dispatch_as(dead, dispatch).await));
        assert!(is_fenced(&play.end_as(dead, end).await));
        assert!(is_fenced(&play.finish_as(dead, finish).await));
        assert!(is_fenced(&play.store().due(dead, 10).await));
        assert!(is_fenced(&play.store().take_over(heir, dead).await));
        let (key, lease_id) = (dispatched.key, dispatched.attempt.lease_id.unwrap());
        let pulse = Pulse { key, lease_id, lease_ms: 9_000, progress: None };
        let (callback, code) = ("ack", Code::StaleFence);
        let stale = StaleCallback { key, lease_id, callback, code };
        let signal = Signal::new("1", "go", &"late".into());
        assert!(is_fenced(&play.store().pulse(dead, vec![pulse]).await));
        assert!(is_fenced(&play.store().record_stale(dead, vec![stale]).await));
        assert!(is_fenced(&play.store().serve(dead, vec!["served".to_owned()]).await));
        assert!(is_fenced(&play.store().release(dead, vec![(claimed.key, 1)]).await));
        assert!(is_fenced(&play.store().signal(dead, cancelled, signal).await), "the fence is first");
        assert_eq!(everything(play).await, rows);
    }

    /// A write and the takeover at the same time: either the write is there before the takeover looks,
    /// or it is fenced.
    async fn a_write_and_a_takeover_at_the_same_time_agree<W>(play: &Play<W>) {
        let mut firsts = Firsts::new(30);
        while let Some(order) = firsts.next() {
            play.create(1).await;
            let engine = play.store().join("short lived").await.unwrap();
            let mut held = play.claim_as(engine, 10).await.unwrap().pop().unwrap();
            let write = play.dispatch_write(&mut held).unwrap();
            let dispatch = play.dispatch_as(engine, write);
            let take_over = play.store().take_over(engine, play.engine);
            let (dispatched, taken) = order.join(dispatch, take_over).await;
            match (dispatched, taken.unwrap().pop()) {
                (Ok(_), Some(running)) => {
                    firsts.saw("write");
                    assert_eq!(running.attempt.state, StepState::InProgress);
                }
                (Err(StoreError::Fenced), None) => {
                    firsts.saw("takeover");
                    play.claim().await;
                }
                (dispatched, taken) => panic!("{dispatched:?} beside {taken:?}"),
            }
        }
    }

    async fn what_an_engine_holds_is_found_however_much_others_have_open<W>(play: &Play<W>) {
        play.create(1).await;
        let held = play.claim().await;
        let waiting = play.create(1).await;
        let before = cost_of_held(play).await;
        let grow = format!(
            "INSERT INTO attempt (job_id, step_index, branch, attempt_no, state, version, ledger,
                 ready_at, created_at, updated_at, step_id, step_type, service)
             WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 50000)
             SELECT job_id, step_index, n.n, attempt_no, state, version, ledger, ready_at, created_at,
                 updated_at, step_id, step_type, service
             FROM attempt, n WHERE job_id = {}",
            W::id(waiting)
        );
        play.world.execute(&grow).await.unwrap();
        let after = cost_of_held(play).await;
        assert!(2 * after <= 3 * before, "{after} instead of {before}");
        let found = play.store().held_by(play.engine).await.unwrap();
        assert_eq!(found.iter().map(|held| held.key).collect::<Vec<_>>(), [held.key]);
        let shrink = format!("DELETE FROM attempt WHERE job_id = {} AND branch > 0", W::id(waiting));
        play.world.execute(&shrink).await.unwrap();
    }

    async fn a_takeover_of_more_than_one_slice_leaves_nothing_behind<W>(play: &Play<W>) {
        let jobs = (0..1_100).map(|n| NewJob {
            enter: true,
            ..new_job(facts("t1", None, &n.to_string()), 1)
        });
        play.store().submit(play.engine, jobs.collect()).await.unwrap();
        assert_eq!(play.store().held_by(play.engine).await.unwrap().len(), 1_100);
        let heir = play.store().join("heir").await.unwrap();
        assert!(play.store().take_over(play.engine, heir).await.unwrap().is_empty(), "nothing ran");
        assert!(play.store().held_by(play.engine).await.unwrap().is_empty());
        assert_eq!(play.claim_as(heir, 2_000).await.unwrap().len(), 1_100);
    }

    async fn a_takeover_that_stopped_in_the_middle_is_gone_on_with<W>(play: &Play<W>) {
        play.create(1).await;
        let held = play.claim().await;
        let heir = play.store().join("heir").await.unwrap();
        let dead = format!("UPDATE engine SET dead = 1 WHERE engine_no = {}", play.engine.0);
        play.world.execute(&dead).await.unwrap();
        let signs = play.store().beat(heir, Some(10_000)).await.unwrap();
        assert_eq!(signs.silent, [play.engine], "dead, but not everything is taken over");
        play.store().take_over(play.engine, heir).await.unwrap();
        assert!(play.store().beat(heir, Some(10_000)).await.unwrap().silent.is_empty());
        assert_eq!(play.claim_as(heir, 10).await.unwrap()[0].key, held.key);
    }

    async fn the_dead_are_let_go_after_a_day_and_stay_fenced<W>(play: &Play<W>) {
        const DAY: i64 = 24 * 60 * 60 * 1_000;
        let (dead, holds) = (play.engine, play.store().join("holds").await.unwrap());
        let heir = play.store().join("heir").await.unwrap();
        play.create(1).await;
        play.claim_as(holds, 1).await.unwrap();
        play.store().take_over(dead, heir).await.unwrap();
        let kill = format!("UPDATE engine SET dead = 1 WHERE engine_no = {}", holds.0);
        play.world.execute(&kill).await.unwrap();
        play.clock.advance(DAY);
        let known = async || {
            let sql = "SELECT CAST(engine_no AS text) FROM engine ORDER BY engine_no";
            let rows = play.world.query(sql).await.unwrap();
            rows.into_iter().map(|mut row| row.remove(0).unwrap()).collect::<Vec<_>>()
        };
        let second = play.store().join("second").await.unwrap();
        assert_eq!(known().await, [dead, holds, heir, second].map(|no| no.0.to_string()));
        play.clock.advance(1);
        let third = play.store().join("third").await.unwrap();
        let left = [holds, heir, second, third].map(|no| no.0.to_string());
        assert_eq!(known().await, left, "but for whoever left something, or lives");
        assert!(is_fenced(&play.store().beat(dead, None).await));
        assert!(is_fenced(&play.claim_as(dead, 1).await));
        play.store().take_over(holds, heir).await.unwrap();
    }

    async fn two_processes_that_open_new_books_at_once_both_work<W>(play: &Play<W>) {
        let (one, two) = tokio::join!(play.world.reopen(), play.world.reopen());
        let (one, two) = (one.unwrap(), two.unwrap());
        play.create(1).await;
        assert_eq!(one.open_count().await + two.open_count().await, 2);
    }

    async fn books_of_a_newer_version_are_refused<W>(play: &Play<W>) {
        let newer = "UPDATE meta SET value = '99' WHERE key = 'oldest_compatible'";
        play.world.execute(newer).await.unwrap();
        let Err(StoreError::Refused(refusal)) = play.world.reopen().await else {
            panic!("a newer schema is refused")
        };
        assert_eq!(refusal.code(), Code::SchemaTooNew);
    }

    async fn a_wish_for_nothing_claims_nothing<W>(play: &Play<W>) {
        play.create(1).await;
        let wish = Wish { service: SERVICE.to_owned(), max: 0, pick: Pick::Any, tenant_id: None };
        assert!(play.store().claim(play.engine, vec![wish]).await.unwrap().is_empty());
        assert!(play.store().claim(play.engine, Vec::new()).await.unwrap().is_empty());
        assert!(play.store().finish(play.engine, Vec::new()).await.unwrap().is_empty());
        assert!(play.store().end(play.engine, Vec::new()).await.unwrap().is_empty());
        assert!(play.store().dispatch(play.engine, Vec::new()).await.unwrap().is_empty());
        assert!(play.store().submit(play.engine, Vec::new()).await.unwrap().is_empty());
    }
}

/// It counted as a store that had been away, after which nobody is taken over from, as often as it came.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn on_postgres_a_row_that_fails_every_claim_keeps_no_engine_from_taking_over() {
    let play = Play::<Postgres>::begin().await;
    let job_id = play.create(1).await;
    play.claim().await;
    let refuse = "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            'BEGIN RAISE EXCEPTION USING ERRCODE = ''check_violation''; END';
        CREATE TRIGGER refuse BEFORE UPDATE ON attempt FOR EACH ROW WHEN (OLD.service = 'bad')
            EXECUTE FUNCTION refuse()";
    play.world.execute(refuse).await.unwrap();
    let config = EngineConfig {
        beat: Duration::from_millis(20),
        // Longer than an engine waits before it claims again.
        takeover: Duration::from_secs(5),
        poll: Duration::from_millis(5),
        ..EngineConfig::default()
    };
    let bad = Protocol::new("bad.v1", "BAD").step("only", "bad");
    let engine = builder(&play).await.config(config).protocol(bad).service("bad", 1, echo());
    let engine = engine.start().await.unwrap();
    let envelope = br#"{"tenant_id":"t1","request_type":"BAD","input_ref":"","output_ref":"",
        "payload":{},"schema_version":"1","not_before":1}"#;
    engine.submit(envelope).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    play.clock.advance(6_000);
    until(&play, job_id, |attempt| attempt.is_ready).await;
    engine.shutdown(GRACE).await.unwrap();
}

/// What it costs to find what an engine holds, and that it is found by its index.
async fn cost_of_held<W: World>(play: &Play<W>) -> u64 {
    let sql = format!("SELECT step_id FROM attempt WHERE owner = {}", play.engine.0);
    let (cost, found_by) = play.world.cost(&sql).await;
    assert!(found_by.contains("attempt_owner"), "{found_by}");
    cost
}

/// All rows that a write could have touched.
/// Every row of every table.
pub async fn everything<W: World>(play: &Play<W>) -> Vec<crate::world::Rows> {
    let mut all = Vec::new();
    for table in crate::differential::rows::TABLES {
        all.push(crate::differential::rows::rows::<W>(&play.world, table).await);
    }
    all
}

/// How many jobs a store lists.
trait OpenCount {
    async fn open_count(&self) -> usize;
}

impl<S: Store> OpenCount for S {
    async fn open_count(&self) -> usize {
        let filter = sprag_engine::store::JobFilter { limit: 10, ..Default::default() };
        self.jobs(filter).await.unwrap().len()
    }
}
