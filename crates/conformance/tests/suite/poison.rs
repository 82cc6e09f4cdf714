//! Poison: rows that stop nobody but themselves.

use sprag_engine::plan;
use sprag_engine::store::{FinishOutcome, Pick, StepPlace, Store, Wish};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{JobState, StepState};

use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::world::World;

async fn claim<W: World>(play: &Play<W>, pick: Pick) -> Vec<sprag_engine::store::Held> {
    let wish = Wish { service: SERVICE.to_owned(), max: 10, pick, tenant_id: None };
    play.store().claim(play.engine, vec![wish]).await.unwrap()
}

on_both_stores! {
    /// A claim that met one such row failed as a whole, each time again: the engine stood still.
    async fn a_job_whose_facts_are_damaged_is_claimed_with_the_others_and_says_so<W>(play: &Play<W>) {
        let (damaged, healthy) = (play.create(1).await, play.create(1).await);
        let id = W::id(damaged);
        let zero = if W::hex("x").starts_with("CASE") { "x'00'" } else { "'\\x00'" };
        let sql = format!("UPDATE job SET idempotency_hash = {zero} WHERE job_id = {id}");
        play.world.execute(&sql).await.unwrap();
        let claimed = claim(play, Pick::Any).await;
        let told: Vec<_> =
            claimed.iter().map(|held| (held.key.job_id, held.damage.is_some())).collect();
        assert_eq!(told, [(damaged, true), (healthy, false)]);
        assert_eq!(play.job(damaged).await.row.state, JobState::Queued, "it can be looked at");
    }

    /// The same with a row of which not even the state can be told; nobody can go on with that one.
    async fn an_attempt_that_cannot_be_read_is_passed_over<W>(play: &Play<W>) {
        let (broken, healthy) = (play.create(1).await, play.create(1).await);
        let id = W::id(broken);
        // A message without its ledger.
        let sql = format!("UPDATE attempt SET ending = 1 WHERE job_id = {id}");
        play.world.execute(&sql).await.unwrap();
        let claimed = claim(play, Pick::Any).await;
        assert_eq!(claimed.iter().map(|held| held.key.job_id).collect::<Vec<_>>(), [healthy]);
        assert!(claim(play, Pick::Any).await.is_empty(), "it has left the queue");
        let heir = play.store().join("heir").await.unwrap();
        let taken = play.store().take_over(play.engine, heir).await.unwrap();
        assert!(taken.is_empty(), "nobody can adopt it, and the takeover goes on");
        let sql = format!("UPDATE attempt SET ending = NULL WHERE job_id = {id}");
        play.world.execute(&sql).await.unwrap();
    }

    /// On SQLite digits that cannot be were taken for a fault of the whole call, and nobody claimed, woke up or took
    /// over any more; on Postgres a place found what stood at another one.
    async fn an_attempt_with_impossible_digits_stops_no_call_and_stands_for_no_other<W>(play: &Play<W>) {
        let (broken, healthy) = (play.create(1).await, play.create(1).await);
        let spoil = |digits: &str| format!("UPDATE attempt SET ledger = {digits} WHERE job_id = {}", W::id(broken));
        play.world.execute(&spoil("2200000000000")).await.unwrap();
        let claimed = claim(play, Pick::Any).await;
        assert_eq!(claimed.iter().map(|held| held.key.job_id).collect::<Vec<_>>(), [healthy]);

        let place = |job_id| StepPlace { job_id, step_id: "s0".to_owned(), step_index: None, branch: 0, turn: 0 };
        let found = play.store().find(vec![place(broken), place(healthy)]).await.unwrap();
        let found: Vec<_> = found.iter().map(|held| held.as_ref().map(|held| held.key.job_id)).collect();
        assert_eq!(found, [None, Some(healthy)]);
        let held = play.store().held_by(play.engine).await.unwrap();
        assert_eq!(held.iter().map(|held| held.key.job_id).collect::<Vec<_>>(), [healthy]);
        play.store().due(play.engine, 10).await.unwrap();
        let heir = play.store().join("heir").await.unwrap();
        play.store().take_over(play.engine, heir).await.unwrap();
        play.world.execute(&spoil("1000000000000")).await.unwrap();
    }

    async fn what_was_delivered_twice_is_claimed_only_to_run_alone<W>(play: &Play<W>) {
        let suspect = play.create(1).await;
        for _ in 0..2 {
            assert_eq!(claim(play, Pick::Fresh).await.len(), 1);
            let sql = format!("UPDATE attempt SET ready_at = 0, owner = NULL WHERE job_id = {}", W::id(suspect));
            play.world.execute(&sql).await.unwrap();
        }
        let fresh = play.create(1).await;
        let keys = |held: Vec<sprag_engine::store::Held>| {
            held.iter().map(|held| (held.key.job_id, held.attempt.runs_alone())).collect::<Vec<_>>()
        };
        assert_eq!(keys(claim(play, Pick::Fresh).await), [(fresh, false)]);
        assert_eq!(keys(claim(play, Pick::Lone).await), [(suspect, true)]);
        assert!(claim(play, Pick::Any).await.is_empty());
    }

    async fn losses_of_earlier_attempts_count_as_deliveries<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        for losses in 0..2 {
            let mut held = claim(play, Pick::Fresh).await.pop().unwrap();
            assert_eq!((held.attempt.losses, held.attempt.runs_alone()), (losses, false));
            play.dispatch(&mut held).await;
            let write = Play::<W>::lost_write(&held).unwrap();
            play.end(&mut held, write).await;
            play.finish(&held).await;
            play.store().due(play.engine, 10).await.unwrap();
        }
        assert!(claim(play, Pick::Fresh).await.is_empty());
        let held = claim(play, Pick::Lone).await.pop().unwrap();
        assert_eq!((held.key.job_id, held.attempt.runs_alone()), (job_id, true));
    }

    /// A message that the store refused was logged, and its job stayed open for ever.
    async fn a_message_that_cannot_be_finished_ends_its_step_for_good<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Retryable).await;
        let key = held.key;
        let decide = move |held: &sprag_engine::store::Held, _| Ok(plan::poison_message(held, &key, "it cannot"));
        let poisoned = play.amend(job_id, None, decide).await.unwrap().unwrap();
        let outcome = play.finish(&poisoned).await;
        assert!(matches!(outcome, FinishOutcome::Done { job: JobState::FailedFinal, .. }), "{outcome:?}");
        let attempts = play.attempts(job_id).await;
        let states: Vec<_> = attempts.iter().map(|attempt| attempt.row.state).collect();
        assert_eq!(states, [StepState::FailedFinal, StepState::Pending]);
        assert_eq!(play.job(job_id).await.error.unwrap().code, "MESSAGE_POISON");
        let again = play.amend(job_id, None, move |held, _| Ok(plan::poison_message(held, &key, "it cannot"))).await;
        assert!(again.unwrap().is_none(), "a message that is finished stays as it is");
    }
}
