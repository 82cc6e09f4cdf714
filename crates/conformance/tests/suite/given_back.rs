//! Activations that go back to the queue while their job is being ended. A cancel leaves those to the engine that has them;
//! if that gives them back, or dies, whoever serves their service need not exist: engines end them by themselves.

use sprag_engine::store::Store;
use sprag_kernel::JobState;

use crate::firsts::Firsts;
use crate::on_both_stores;
use crate::play::Play;
use crate::world::World;

/// The only activation there is, which nobody but the engines themselves takes up, ends its job.
async fn expect_end<W: World>(play: &Play<W>) {
    let held = play.claim_cancelled().await;
    let entered = play.refuse_leg1(held.key.job_id).await;
    play.finish(&entered).await;
    assert_eq!(play.job(held.key.job_id).await.row.state, JobState::Cancelled);
}

on_both_stores! {
    /// It waited for a worker of its service, and where nobody served that the job was being cancelled for ever.
    async fn an_activation_that_is_given_back_ends_with_its_job_whoever_comes_first<W>(play: &Play<W>) {
        let mut firsts = Firsts::new(20);
        while let Some(order) = firsts.next() {
            let job_id = play.create(1).await;
            let held = play.claim().await;
            let version = held.attempt.version;
            let given_back = play.store().release(play.engine, vec![(held.key, version)]);
            let (cancelled, released) = order.join(play.cancel(job_id), given_back).await;
            assert_eq!(cancelled.unwrap(), JobState::Cancelling);
            released.unwrap();
            // Only a cancel that finds it in the queue writes to it.
            let is_written_twice = play.attempts(job_id).await[0].row.version == version + 2;
            firsts.saw(if is_written_twice { "given back" } else { "cancelled" });
            expect_end(play).await;
        }
    }

    async fn an_activation_of_a_dead_engine_ends_with_its_job<W>(play: &Play<W>) {
        let mut firsts = Firsts::new(20);
        while let Some(order) = firsts.next() {
            let job_id = play.create(1).await;
            let dead = play.store().join("dead").await.unwrap();
            let held = play.claim_as(dead, 1).await.unwrap().pop().unwrap();
            let taken = play.store().take_over(dead, play.engine);
            let (cancelled, taken) = order.join(play.cancel(job_id), taken).await;
            assert_eq!(cancelled.unwrap(), JobState::Cancelling);
            assert!(taken.unwrap().is_empty(), "nothing ran");
            let version = play.attempts(job_id).await[0].row.version;
            firsts.saw(if version == held.attempt.version + 2 { "taken over" } else { "cancelled" });
            expect_end(play).await;
        }
    }
}
