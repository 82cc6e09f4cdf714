//! Work of transactional handlers: what it writes stands exactly once, with its RESULT or not at all.

use std::time::Duration;

use sprag_engine::store::{Answer, EndOutcome, EndWrite, Held, Store, StoreError, Worked};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{JobState, StepState};

use crate::deeds::Then;
use crate::on_both_stores;
use crate::play::{Play, join_all};
use crate::world::World;

const LIMIT: Duration = Duration::from_secs(30);

/// An attempt that runs, and the RESULT that it will have.
async fn running<W: World>(play: &Play<W>) -> (Held, EndWrite) {
    play.create(1).await;
    let mut held = play.claim().await;
    play.dispatch(&mut held).await;
    let write = Play::<W>::result_write(&held, Report::Succeeded);
    (held, write)
}

async fn end_with<W: World>(play: &Play<W>, write: &EndWrite, deed: (&str, Then)) -> Worked {
    let work = W::work(deed.0, deed.1);
    insist(async || play.store().end_with(play.engine, write.clone(), work.clone(), LIMIT).await)
        .await
}

/// Makes a call until the store is there, as the engine does.
async fn insist<T>(call: impl AsyncFn() -> Answer<T>) -> T {
    loop {
        match call().await {
            Err(StoreError::Unavailable(_)) => tokio::task::yield_now().await,
            answer => return answer.unwrap(),
        }
    }
}

async fn effects<W: World>(play: &Play<W>) -> Vec<String> {
    let sql = format!("SELECT name FROM {} ORDER BY name", W::EFFECTS);
    let rows = play.world.query(&sql).await.unwrap();
    rows.into_iter().map(|mut row| row.remove(0).unwrap()).collect()
}

/// Steps 1 to 3 of a message that has entered with its work.
async fn finish<W: World>(play: &Play<W>, held: &mut Held, write: &EndWrite, version: u64) {
    held.attempt.version = version;
    held.attempt.ledger = write.ledger;
    held.attempt.ending = Some(write.ending);
    play.finish(held).await;
}

/// The work failed; the attempt is as it was and takes another ending.
async fn expect_nothing_written<W: World>(play: &Play<W>, held: &mut Held) {
    assert_eq!(effects(play).await, [""; 0]);
    assert_eq!(play.attempts(held.key.job_id).await[0].row.ending, None);
    play.report(held, Report::NonRetryable).await;
    play.finish(held).await;
    assert_eq!(play.job(held.key.job_id).await.row.state, JobState::FailedFinal);
}

/// Work that does this leaves nothing behind and fails with this code, to be tried again or not.
async fn expect_failed<W: World>(play: &Play<W>, then: Then, code: &str, retryable: bool) {
    play.world.execute(W::TABLES).await.unwrap();
    let (mut held, write) = running(play).await;
    match end_with(play, &write, ("x", then)).await {
        Worked::Failed(failure) => {
            assert_eq!((failure.code.as_str(), failure.retryable), (code, retryable));
        }
        worked => panic!("{worked:?}"),
    }
    expect_nothing_written(play, &mut held).await;
}

on_both_stores! {
    async fn work_is_committed_with_its_result_and_a_repeat_does_not_run_it_again<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let (mut held, mut write) = running(play).await;
        let Worked::Entered { version } = end_with(play, &write, ("x", Then::Ends)).await else {
            panic!("the guard holds")
        };
        assert_eq!(effects(play).await, ["x"]);
        // The answer was lost: the same call again. Run once more, the work would violate its key.
        write.repeats = true;
        let again = end_with(play, &write, ("x", Then::Ends)).await;
        assert!(matches!(again, Worked::Entered { version: same } if same == version), "{again:?}");
        let again = end_with(play, &write, ("y", Then::Ends)).await;
        assert!(matches!(again, Worked::Entered { .. }), "{again:?}");
        assert_eq!(effects(play).await, ["x"]);
        finish(play, &mut held, &write, version).await;
        assert_eq!(play.job(held.key.job_id).await.row.state, JobState::Succeeded);
    }

    async fn work_of_a_message_that_came_second_does_not_run<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let (mut held, write) = running(play).await;
        let lost = Play::<W>::lost_write(&held).unwrap();
        assert!(matches!(play.end(&mut held, lost).await, EndOutcome::Entered { .. }));
        for repeats in [false, true] {
            let write = EndWrite { repeats, ..write.clone() };
            let worked = end_with(play, &write, ("x", Then::Ends)).await;
            assert!(matches!(worked, Worked::Stale), "{worked:?}");
        }
        assert_eq!(effects(play).await, [""; 0]);
        play.finish(&held).await;
        assert_eq!(play.attempts(held.key.job_id).await[0].row.state, StepState::FailedRetry);
    }

    async fn work_of_a_dead_engine_does_not_run<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let (_, write) = running(play).await;
        let heir = play.store().join("heir").await.unwrap();
        play.store().take_over(play.engine, heir).await.unwrap();
        let work = W::work("x", Then::Ends);
        let answer = play.store().end_with(play.engine, write, work, LIMIT).await;
        assert!(matches!(answer, Err(StoreError::Fenced)), "{answer:?}");
        assert_eq!(effects(play).await, [""; 0]);
    }

    async fn work_that_says_it_failed_leaves_nothing<W>(play: &Play<W>) {
        expect_failed(play, Then::Fails, "BUSY", true).await;
    }

    async fn work_that_violates_a_constraint_fails_for_good<W>(play: &Play<W>) {
        expect_failed(play, Then::Violates, "WORK_FAILED", false).await;
    }

    async fn work_that_panics_leaves_nothing<W>(play: &Play<W>) {
        expect_failed(play, Then::Panics, "WORK_PANIC", true).await;
    }

    async fn work_that_rolls_back_fails_for_good<W>(play: &Play<W>) {
        expect_failed(play, Then::RollsBack, "WORK_FAILED", false).await;
    }

    async fn work_that_takes_too_long_is_ended<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let (mut held, write) = running(play).await;
        let (work, limit) = (W::work("x", Then::Dawdles), Duration::from_millis(50));
        match play.store().end_with(play.engine, write, work, limit).await.unwrap() {
            Worked::Failed(failure) => assert_eq!(failure.code, "WORK_TIMEOUT"),
            worked => panic!("{worked:?}"),
        }
        expect_nothing_written(play, &mut held).await;
    }

    async fn work_that_commits_by_itself_is_recognised<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let (mut held, write) = running(play).await;
        let Worked::Entered { version } = end_with(play, &write, ("x", Then::Commits)).await else {
            panic!("it is committed")
        };
        assert_eq!(effects(play).await, ["x"]);
        finish(play, &mut held, &write, version).await;
        assert_eq!(play.job(held.key.job_id).await.row.state, JobState::Succeeded);
    }

    async fn work_that_leaves_a_debt_is_refused_and_nobody_else_is<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let (mut held, write) = running(play).await;
        let calls = ["a", "b", "c"].map(|name| async move {
            // Some other call that shares the transaction, where there is such a thing.
            insist(async || play.store().put_protocol(name, "{}").await).await;
        });
        let debt = async {
            let work = W::work("x", Then::Owes);
            let call = async || {
                match play.store().end_with(play.engine, write.clone(), work.clone(), LIMIT).await {
                    // Refused as a whole where only the COMMIT finds it.
                    Err(StoreError::Poison(_)) => Ok(true),
                    Ok(Worked::Failed(failure)) => Ok(!failure.retryable),
                    Ok(_) => Ok(false),
                    Err(error) => Err(error),
                }
            };
            assert!(insist(call).await, "the debt is refused");
        };
        tokio::join!(debt, join_all(calls));
        expect_nothing_written(play, &mut held).await;
    }

    async fn of_many_works_those_that_fail_take_nobody_along<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let mut attempts = Vec::new();
        for _ in 0..24 {
            attempts.push(running(play).await);
        }
        let kinds = [Then::Ends, Then::Ends, Then::Fails, Then::Violates, Then::Panics, Then::Ends];
        let calls = attempts.iter().enumerate().map(|(n, (_, write))| async move {
            let then = kinds[n % kinds.len()];
            (then, end_with(play, write, (&format!("e{n:02}"), then)).await)
        });
        let worked = join_all(calls).await;
        let mut expected = Vec::new();
        for (n, ((held, write), (then, worked))) in attempts.iter_mut().zip(worked).enumerate() {
            match (then, worked) {
                (Then::Ends, Worked::Entered { version }) => {
                    expected.push(format!("e{n:02}"));
                    finish(play, held, write, version).await;
                }
                (Then::Fails | Then::Violates | Then::Panics, Worked::Failed(_)) => {
                    play.report(held, Report::NonRetryable).await;
                    play.finish(held).await;
                }
                unexpected => panic!("{unexpected:?}"),
            }
        }
        assert_eq!(effects(play).await, expected);
    }
}

/// A COMMIT after a failed statement is a rollback to Postgres, and says so to nobody.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn work_on_postgres_that_swallows_a_failed_statement_is_not_taken_for_committed() {
    let play = Play::<crate::world::Postgres>::begin().await;
    expect_failed(&play, Then::Swallows, "WORK_FAILED", true).await;
    play.expect_sound().await;
}

/// Two works that lock the same rows in opposite order: one of them is run again, whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn works_on_postgres_that_deadlock_are_repeated_and_both_commit() {
    use sprag_stores::postgres::PostgresWork;
    let play = Play::<crate::world::Postgres>::begin().await;
    play.world
        .execute("CREATE TABLE public.sum (n integer PRIMARY KEY, sum integer)")
        .await
        .unwrap();
    play.world.execute("INSERT INTO public.sum VALUES (1, 0), (2, 0)").await.unwrap();
    let barrier = std::sync::Arc::new(tokio::sync::Barrier::new(2));
    let is_first_run = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
    let work = |first: i32, second: i32| {
        let (barrier, runs) = (barrier.clone(), is_first_run.clone());
        PostgresWork::new(move |tx| {
            let (barrier, runs) = (barrier.clone(), runs.clone());
            Box::pin(async move {
                let add = "UPDATE sum SET sum = sum + 1 WHERE n = $1";
                tx.execute(add, &[&first]).await?;
                if runs.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 2 {
                    barrier.wait().await;
                }
                tx.execute(add, &[&second]).await?;
                Ok(())
            })
        })
    };
    let (one, other) = (running(&play).await, running(&play).await);
    let end = async |(mut held, write): (Held, EndWrite), work: PostgresWork| {
        let worked = play.store().end_with(play.engine, write.clone(), work, LIMIT).await.unwrap();
        let Worked::Entered { version } = worked else { panic!("{worked:?}") };
        finish(&play, &mut held, &write, version).await;
    };
    tokio::join!(end(one, work(1, 2)), end(other, work(2, 1)));
    assert!(is_first_run.load(std::sync::atomic::Ordering::SeqCst) > 2, "one was run again");
    let sums = play.world.query("SELECT sum::text FROM public.sum").await.unwrap();
    assert_eq!(sums, vec![vec![Some("2".to_owned())]; 2]);
    play.expect_sound().await;
}
