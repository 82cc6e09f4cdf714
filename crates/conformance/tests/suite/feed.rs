//! The feed: a reader that starts again and again misses nothing and sees nothing twice.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use sprag_engine::store::{Cursor, FeedEvent, Store};
use sprag_kernel::Code;
use sprag_kernel::decide::callback::Report;

use crate::on_both_stores;
use crate::play::{Play, facts, join_all, new_job};
use crate::world::{Postgres, World};

const WRITERS: usize = 8;
const RECONNECTS: usize = 100;
const EVENTS: usize = WRITERS * 30 * 4;
/// How often the reader looks before it says that events are missing.
const PATIENCE: usize = 2_000;

/// Creates and cancels jobs: slices of one statement, and transactions of several.
async fn write_some<W: World>(play: &Play<W>, writer: usize) {
    for n in 0..30 {
        let jobs = (0..3).map(|k| new_job(facts("t1", None, &format!("{writer} {n} {k}")), 2));
        let created = play.store().submit(play.engine, jobs.collect()).await.unwrap();
        play.cancel(created[0].as_ref().unwrap().job_id).await.unwrap();
    }
}

/// Reads on from a cursor that was printed, on a connection of its own, a few events at a time.
async fn read_on<W: World>(play: &Play<W>, after: &str, limit: u32) -> Vec<FeedEvent> {
    let store = play.world.reopen().await.unwrap();
    store.feed(after.parse().unwrap(), limit).await.unwrap()
}

/// Looks until so many events are shown. Other tests share the server, and an open transaction of any of
/// them holds the feed back for a moment.
pub async fn look_for<W: World>(play: &Play<W>, after: Cursor, count: usize) -> Vec<FeedEvent> {
    for _ in 0..1_000 {
        let events = play.store().feed(after, 100).await.unwrap();
        if events.len() >= count {
            return events;
        }
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    panic!("the feed does not show {count} events after {after}")
}

on_both_stores! {
    async fn eight_writers_and_a_reader_that_reconnects_agree_on_every_event<W>(play: &Play<W>) {
        let done = AtomicBool::new(false);
        let writers = async {
            join_all((0..WRITERS).map(|writer| write_some(play, writer))).await;
            done.store(true, Ordering::SeqCst);
        };
        let reader = async {
            let (mut seen, mut after) = (Vec::new(), Cursor::START.to_string());
            let mut connects = 0;
            loop {
                let is_last_look = done.load(Ordering::SeqCst) && connects >= RECONNECTS;
                let events = read_on(play, &after, if is_last_look { 10_000 } else { 17 }).await;
                connects += 1;
                let is_empty = events.is_empty();
                after = events.last().map_or(after, |event| event.cursor.to_string());
                seen.extend(events);
                if is_last_look && is_empty && (seen.len() >= EVENTS || connects > PATIENCE) {
                    return seen;
                }
            }
        };
        let ((), seen) = tokio::join!(writers, reader);
        let keys: Vec<_> = seen.iter().map(|event| (event.job_id, event.event.n)).collect();
        let distinct: BTreeSet<_> = keys.iter().copied().collect();
        assert_eq!(keys.len(), distinct.len(), "nothing is seen twice");
        assert_eq!(keys.len(), EVENTS, "three created and one cancelled each");
        for job_id in keys.iter().map(|(job_id, _)| *job_id).collect::<BTreeSet<_>>() {
            let of_job = play.store().events(job_id).await.unwrap();
            let shown = seen.iter().filter(|event| event.job_id == job_id);
            let mut shown: Vec<_> = shown.map(|event| event.event.clone()).collect();
            shown.sort_by_key(|event| event.n);
            assert_eq!(shown, of_job, "as the job tells it");
        }
        assert!(seen.iter().all(|event| event.tenant_id.as_deref() == Some("t1")));
    }

    async fn the_feed_shows_a_job_from_created_to_closed<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        play.run_step(Report::Succeeded).await;
        let all = look_for(play, Cursor::START, 3).await;
        let changes: Vec<_> = all.iter().map(|event| event.event.changes.trim()).collect();
        assert_eq!(changes.len(), 3, "{changes:?}");
        assert_eq!(changes[0], "created");
        assert!(all.iter().all(|event| event.job_id == job_id));
        let rest = play.store().feed(all[1].cursor, 100).await.unwrap();
        assert_eq!(rest, all[2..]);
        assert!(play.store().feed(all[2].cursor, 100).await.unwrap().is_empty());
    }
}

/// A transaction that is open could still write before what others have committed after it began; the
/// reader waits for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_open_transaction_holds_the_feed_back() {
    let play = Play::<Postgres>::begin().await;
    play.create(1).await;
    let before = look_for(&play, Cursor::START, 1).await;
    play.world.execute("BEGIN; SELECT pg_current_xact_id()").await.unwrap();
    play.create(1).await;
    let after = before[0].cursor;
    assert!(play.store().feed(after, 10).await.unwrap().is_empty(), "not yet");
    play.world.execute("ROLLBACK").await.unwrap();
    assert_eq!(look_for(&play, after, 1).await.len(), 1);
    play.expect_sound().await;
}

#[test]
fn a_cursor_is_text_and_nonsense_is_refused() {
    let cursor = Cursor::new(7, 12);
    assert_eq!(cursor.to_string().parse::<Cursor>().unwrap(), cursor);
    for nonsense in
        ["", "7", "7-", "-1-2", "a-b", "99999999999999999999-1", "7-18446744073709551615"]
    {
        assert_eq!(
            nonsense.parse::<Cursor>().unwrap_err().code(),
            Code::CursorInvalid,
            "{nonsense}"
        );
    }
}
