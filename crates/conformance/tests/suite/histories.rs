//! Long histories: read by the page, deleted whole, and chained whatever is rolled back beside them.

use std::collections::BTreeSet;

use serde_json::json;
use sprag_engine::ids::JobId;
use sprag_engine::signals::{Signal, Signals as _};
use sprag_engine::store::Store;
use sprag_engine::upkeep::Upkeep;
use sprag_kernel::decide::callback::Report;

use crate::on_both_stores;
use crate::play::{Play, join_all};
use crate::world::{Sqlite, World};

/// So many events by signals, besides the one of its creation.
const MANY: u64 = 299;

/// Tells jobs of so many signals each, in turn and some at a time, so that their events stand among each other.
async fn tell<W: World>(play: &Play<W>, jobs: &[JobId], many: u64) {
    for ten in (0..many).collect::<Vec<_>>().chunks(10) {
        let said = ten.iter().flat_map(|n| {
            jobs.iter().map(move |job_id| {
                let signal = Signal::new(&n.to_string(), "go", &json!(n));
                play.store().signal(play.engine, *job_id, signal)
            })
        });
        for said in join_all(said).await {
            assert!(said.unwrap().unwrap().unwrap().created);
        }
    }
}

/// The numbers of all events of a job, read in pages of this size.
async fn paged<S: Store>(store: &S, job_id: JobId, limit: u32) -> Vec<u64> {
    let mut numbers: Vec<u64> = Vec::new();
    loop {
        let after = numbers.last().copied().unwrap_or(0);
        let page = store.events_after(job_id, after, limit).await.unwrap();
        assert!(page.len() <= limit as usize);
        if page.is_empty() {
            return numbers;
        }
        numbers.extend(page.iter().map(|event| event.n));
    }
}

on_both_stores! {
    async fn a_long_history_is_read_by_the_page_each_event_once_and_in_order<W>(play: &Play<W>) {
        let (long, other) = (play.create(1).await, play.create(1).await);
        tell(play, &[long, other], MANY).await;
        let all: Vec<u64> = (1..=MANY + 1).collect();
        for limit in [1, 2, 7, 63, 64, 65, 128, 299, 300, 301, u32::MAX] {
            assert_eq!(paged(play.store(), long, limit).await, all, "by {limit}");
        }
        let events = play.store().events(long).await.unwrap();
        assert_eq!(events[0].changes, "created");
        assert!(events[1..].iter().all(|event| event.changes == "signal "));
        let notes: BTreeSet<_> = events[1..].iter().map(|event| event.note.clone()).collect();
        assert_eq!(notes.len() as u64, MANY, "each is its own");
        let behind = play.store().events_after(long, MANY + 1, 10).await.unwrap();
        assert!(behind.is_empty(), "{behind:?}");
        assert!(play.store().events_after(JobId::new(), 0, 10).await.unwrap().is_empty());
    }

    async fn retention_deletes_a_long_history_and_no_other<W>(play: &Play<W>) {
        let long = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let other = play.create(1).await;
        tell(play, &[long, other], MANY).await;
        play.report(&mut held, Report::Succeeded).await;
        play.finish(&held).await;
        play.clock.advance(10);
        // The newest event is that of neither.
        play.create(1).await;
        let before = paged(play.store(), other, 100).await;
        assert_eq!(play.store().retire(play.engine, 5, None, 10).await.unwrap().deleted, 1);
        let left = format!("SELECT CAST(count(*) AS text) FROM event WHERE job_id = {}", W::id(long));
        assert_eq!(play.world.query(&left).await.unwrap()[0][0].as_deref(), Some("0"));
        assert_eq!(paged(play.store(), other, 100).await, before);
        assert_eq!(before.len() as u64, MANY + 1);
    }
}

/// Calls that fail behind their event are rolled back alone, in a transaction that others go on in.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn what_is_rolled_back_beside_them_leaves_no_hole_in_chains() {
    let play = Play::<Sqlite>::begin().await;
    let job_id = play.create(1).await;
    let refuse = "CREATE TRIGGER refuse AFTER UPDATE OF last_event ON job
        WHEN (SELECT note LIKE '%refused%' FROM event WHERE pos = NEW.last_event)
        BEGIN SELECT RAISE(ABORT, 'refused'); END";
    play.world.execute(refuse).await.unwrap();
    let is_refused = |n: u64| n % 3 == 1;
    let said = (0..90).map(|n| {
        let name = if is_refused(n) { "refused" } else { "go" };
        let signal = Signal::new(&n.to_string(), name, &json!(n));
        play.store().signal(play.engine, job_id, signal)
    });
    for (n, said) in (0..).zip(join_all(said).await) {
        assert_eq!(said.is_err(), is_refused(n), "{said:?}");
    }
    assert_eq!(paged(play.store(), job_id, 10).await, (1..=61).collect::<Vec<u64>>());
    play.expect_sound().await;
}
