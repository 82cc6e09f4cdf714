//! Two phases with one call: each is a commit of its own. Two writes of one attempt in one slice: one counts.

use sprag_conformance::cluster::Cluster;
use sprag_engine::plan;
use sprag_engine::store::{DispatchOutcome, EndOutcome, FinishOutcome, NewJob, Store, StoreError};
use sprag_kernel::JobState;
use sprag_kernel::decide::callback::Report;
use sprag_stores::postgres::{PostgresOptions, PostgresStore};

use crate::on_both_stores;
use crate::play::{Play, facts, new_job};
use crate::world::{Postgres, World};

fn digits(activity: &str, guid: Option<&str>) -> (String, Option<String>) {
    (activity.to_owned(), guid.map(str::to_owned))
}

on_both_stores! {
    async fn a_job_is_created_and_dispatched_and_a_known_one_is_neither<W>(play: &Play<W>) {
        let job = NewJob { enter: true, ..new_job(facts("t1", Some("k"), "a"), 1) };
        let write = play.dispatch_write(&mut plan::born(&job)).unwrap();
        let key = write.key;
        let first = vec![(job.clone(), Some(write))];
        let begun = play.store().submit_and_dispatch(play.engine, first).await.unwrap();
        assert!(begun[0].0.as_ref().unwrap().created);
        assert!(matches!(begun[0].1, Some(DispatchOutcome::Done { version: 2, .. })), "{begun:?}");
        assert_eq!(play.digits(&key).await, digits("001100000000000", None));
        assert_eq!(play.job(key.job_id).await.row.state, JobState::InProgress);

        let again = NewJob { enter: true, ..new_job(facts("t1", Some("k"), "a"), 1) };
        let write = play.dispatch_write(&mut plan::born(&again)).unwrap();
        let second = vec![(again, Some(write))];
        let begun = play.store().submit_and_dispatch(play.engine, second).await.unwrap();
        let known = begun[0].0.as_ref().unwrap();
        assert_eq!((known.job_id, known.created), (key.job_id, false));
        assert_eq!(begun[0].1, None);
    }

    async fn a_message_enters_and_is_finished_and_one_that_comes_late_does_neither<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let end = Play::<W>::result_write(&held, Report::Succeeded);
        let finish = play.finish_write(&plan::entered(held.clone(), &end), false).unwrap();
        let over = play.store().end_and_finish(play.engine, vec![(end, finish)]).await.unwrap();
        assert!(matches!(over[0].0, EndOutcome::Entered { .. }), "{over:?}");
        assert!(matches!(over[0].1, Some(FinishOutcome::Done { job: JobState::Succeeded, .. })), "{over:?}");
        assert_eq!(play.digits(&held.key).await, digits("001111100000001", Some("000111100000001")));

        let version = play.job(job_id).await.row.version;
        let end = Play::<W>::result_write(&held, Report::NonRetryable);
        let finish = play.finish_write(&plan::entered(held.clone(), &end), false).unwrap();
        let over = play.store().end_and_finish(play.engine, vec![(end, finish)]).await.unwrap();
        assert_eq!(over, [(EndOutcome::Stale, None)]);
        assert_eq!(play.job(job_id).await.row.version, version);
    }

    /// The row has the very version that the message would have given it.
    async fn what_another_message_has_entered_is_left_to_it<W>(play: &Play<W>) {
        for first in [Report::NonRetryable, Report::Succeeded] {
            play.create(1).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            let write = Play::<W>::result_write(&held, first);
            let ended = play.store().end(play.engine, vec![write]).await.unwrap();
            assert!(matches!(ended[0], EndOutcome::Entered { .. }), "{ended:?}");

            let end = Play::<W>::result_write(&held, Report::Succeeded);
            let finish = play.finish_write(&plan::entered(held.clone(), &end), false).unwrap();
            let over = play.store().end_and_finish(play.engine, vec![(end, finish)]).await.unwrap();
            assert_eq!(over, [(EndOutcome::Stale, None)]);
            let entered = digits("001100000000001", Some("000000000000001"));
            assert_eq!(play.digits(&held.key).await, entered);
        }
    }

    async fn several_messages_are_told_apart_of_which_some_come_late<W>(play: &Play<W>) {
        let mut messages = Vec::new();
        let is_late = |n: usize| n % 3 == 1;
        for n in 0..6 {
            play.create(1).await;
            let mut held = play.claim().await;
            play.dispatch(&mut held).await;
            let end = Play::<W>::result_write(&held, Report::Succeeded);
            let finish = play.finish_write(&plan::entered(held.clone(), &end), false).unwrap();
            if is_late(n) {
                let first = Play::<W>::result_write(&held, Report::NonRetryable);
                play.store().end(play.engine, vec![first]).await.unwrap();
            }
            messages.push((end, finish));
        }
        let over = play.store().end_and_finish(play.engine, messages.clone()).await.unwrap();
        for (n, (over, (end, _))) in over.iter().zip(&messages).enumerate() {
            let (activity, guid) = if is_late(n) {
                assert_eq!(*over, (EndOutcome::Stale, None));
                ("001100000000001", "000000000000001")
            } else {
                let closed = FinishOutcome::Done { job: JobState::Succeeded, job_version: 3, entered_next: false };
                assert_eq!(over.1, Some(closed));
                ("001111100000001", "000111100000001")
            };
            assert_eq!(play.digits(&end.key).await, digits(activity, Some(guid)));
        }
    }

    /// As when a job is claimed while a directive of before still waits for its turn.
    async fn an_older_directive_in_the_slice_takes_nothing_from_the_newer<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.claim().await;
        let newer = play.dispatch_write(&mut held.clone()).unwrap();
        let mut older = play.dispatch_write(&mut held.clone()).unwrap();
        older.version -= 1;
        let outcomes = play.store().dispatch(play.engine, vec![older, newer.clone()]).await.unwrap();
        assert!(!matches!(outcomes[0], DispatchOutcome::Done { .. }), "{outcomes:?}");
        assert!(matches!(outcomes[1], DispatchOutcome::Done { .. }), "{outcomes:?}");
        assert_eq!(play.held(job_id).await.attempt.lease_id, Some(newer.lease_id));
    }

    /// The entry stands by itself, or a message that brings down its engine would never be counted.
    async fn a_message_that_cannot_be_finished_has_entered_all_the_same<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let id = W::id(job_id);
        let in_its_way = format!(
            "INSERT INTO attempt (job_id, step_index, attempt_no, state, version, ledger, created_at,
                 updated_at, step_id, step_type, service)
             VALUES ({id}, 0, 2, 0, 1, 0, 0, 0, '', '', '')"
        );
        play.world.execute(&in_its_way).await.unwrap();
        let mut end = Play::<W>::result_write(&held, Report::Retryable);
        let mut finish = play.finish_write(&plan::entered(held.clone(), &end), false).unwrap();
        let message = vec![(end.clone(), finish.clone())];
        let answer = play.store().end_and_finish(play.engine, message).await;
        assert!(matches!(answer, Err(StoreError::Poison(_))), "{answer:?}");
        assert_eq!(play.digits(&held.key).await, digits("001100000000001", Some("000000000000001")));

        let out_of_it = format!("DELETE FROM attempt WHERE job_id = {id} AND attempt_no = 2");
        play.world.execute(&out_of_it).await.unwrap();
        (end.repeats, finish.repeats) = (true, true);
        for _ in 0..2 {
            let message = vec![(end.clone(), finish.clone())];
            let over = play.store().end_and_finish(play.engine, message).await.unwrap();
            assert!(matches!(over[0].0, EndOutcome::Entered { .. }), "{over:?}");
            assert!(matches!(over[0].1, Some(FinishOutcome::Done { .. })), "{over:?}");
        }
        assert_eq!(play.digits(&held.key).await, digits("001111000000001", Some("000011000000001")));
        assert_eq!(play.store().attempts(job_id).await.unwrap().len(), 2);
    }
}

/// Each of these statements loses a race when it is told to, once.
const LOSERS: &str = "
    CREATE SEQUENCE sprag.races;
    CREATE FUNCTION sprag.lose() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF nextval('sprag.races') = 1 THEN
            RAISE EXCEPTION 'lost on purpose' USING ERRCODE = 'serialization_failure';
        END IF;
        RETURN NEW;
    END $$";

/// With a single connection, so that whoever tries again must not wait for a second one.
#[tokio::test]
async fn whichever_of_the_two_loses_a_race_both_are_done() {
    let play = Play::<Postgres>::begin().await;
    let name = play.world.query("SELECT current_database()::text").await.unwrap();
    let folder = Cluster::shared().folder().display().to_string();
    let url = format!("host={folder} user=sprag dbname={}", name[0][0].as_ref().unwrap());
    let options = PostgresOptions { engine_connections: 1, ..PostgresOptions::new(&url) };
    let store = PostgresStore::open_with_clock(&options, play.clock.clone()).await.unwrap();
    play.world.execute(LOSERS).await.unwrap();
    let started = std::time::Instant::now();
    for (loser, condition) in [
        ("INSERT ON sprag.job", "true"),
        ("UPDATE ON sprag.attempt", "NEW.ending IS NULL"),
        ("UPDATE ON sprag.attempt", "NEW.ending IS NOT NULL AND NEW.completed_at IS NULL"),
        ("UPDATE ON sprag.attempt", "NEW.completed_at IS NOT NULL"),
    ] {
        let arm = format!(
            "ALTER SEQUENCE sprag.races RESTART; DROP TRIGGER IF EXISTS loses ON sprag.job;
             DROP TRIGGER IF EXISTS loses ON sprag.attempt;
             CREATE TRIGGER loses BEFORE {loser} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION sprag.lose()"
        );
        play.world.execute(&arm).await.unwrap();
        let job = NewJob {
            enter: true,
            ..new_job(facts("t1", None, &format!("{loser} {condition}")), 1)
        };
        let mut held = plan::born(&job);
        let write = play.dispatch_write(&mut held).unwrap();
        let begun = store.submit_and_dispatch(play.engine, vec![(job, Some(write))]).await.unwrap();
        assert!(begun[0].0.as_ref().unwrap().created, "{condition}: {begun:?}");
        let Some(DispatchOutcome::Done { version, .. }) = begun[0].1 else {
            panic!("{condition}: {begun:?}")
        };
        held.attempt.version = version;
        let end = Play::<Postgres>::result_write(&held, Report::Succeeded);
        let finish = play.finish_write(&plan::entered(held.clone(), &end), false).unwrap();
        let over = store.end_and_finish(play.engine, vec![(end, finish)]).await.unwrap();
        assert!(
            matches!(over[0].1, Some(FinishOutcome::Done { job: JobState::Succeeded, .. })),
            "{over:?}"
        );
        let races = play.world.query("SELECT last_value::text FROM sprag.races").await.unwrap();
        assert_ne!(
            races[0][0].as_deref(),
            Some("1"),
            "{condition}: nobody has lost and tried again"
        );
    }
    assert!(started.elapsed().as_secs() < 8, "nobody has waited for a connection");
}
