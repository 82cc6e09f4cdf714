//! The feed: a reader that starts again and again misses nothing and sees nothing twice.

use std::collections::BTreeMap;

use sprag_engine::ids::JobId;
use sprag_engine::store::{Cursor, EventView, FeedEvent, Store};
use sprag_kernel::Code;
use sprag_kernel::decide::callback::Report;
use tokio::sync::watch;

use crate::on_both_stores;
use crate::play::{Play, facts, join_all, new_job};
use crate::world::{Postgres, World};

const WRITERS: usize = 8;
const RECONNECTS: usize = 100;
/// How many events the reader takes at a time: fewer than come meanwhile, so that it stops in the middle of what a
/// commit wrote, and more, so that it is where others are just writing.
const PAGES: [u32; 3] = [17, 500, 5];
/// How often the reader looks before it says that events are missing.
const PATIENCE: usize = 2_000;

/// Creates and cancels jobs, with slices of one statement and transactions of several, until the reader has
/// reconnected often enough. Either waits for a sign of the other, so that it meets writers and not their backlog.
async fn write_on<W: World>(
    play: &Play<W>,
    writer: usize,
    (written, mut connects): (&watch::Sender<usize>, watch::Receiver<usize>),
) {
    for n in 0.. {
        let jobs = (0..3).map(|k| new_job(facts("t1", None, &format!("{writer} {n} {k}")), 2));
        let created = play.store().submit(play.engine, jobs.collect()).await.unwrap();
        play.cancel(created[0].as_ref().unwrap().job_id).await.unwrap();
        written.send_modify(|slices| *slices += 1);
        connects.changed().await.unwrap();
        if *connects.borrow_and_update() >= RECONNECTS {
            break;
        }
    }
}

/// The events that are there, whatever the feed shows, as each job tells of them.
async fn stored<W: World>(play: &Play<W>) -> BTreeMap<(JobId, u64), EventView> {
    let sql = format!("SELECT DISTINCT {} FROM event", W::hex("job_id"));
    let mut stored = BTreeMap::new();
    for row in play.world.query(&sql).await.unwrap() {
        let job_id: JobId = row[0].as_ref().unwrap().parse().unwrap();
        let events = play.store().events(job_id).await.unwrap();
        stored.extend(events.into_iter().map(|event| ((job_id, event.n), event)));
    }
    let rows = play.world.query("SELECT CAST(count(*) AS text) FROM event").await.unwrap();
    assert_eq!(rows[0][0].as_ref().unwrap(), &stored.len().to_string());
    stored
}

/// A reader that begins anew for each look, and knows no more than the cursor that it got to.
struct Reader {
    looks: usize,
    after: String,
    seen: BTreeMap<(JobId, u64), EventView>,
}

impl Reader {
    /// Looks once more; whether there was anything to see.
    async fn look<W: World>(&mut self, play: &Play<W>) -> bool {
        self.looks += 1;
        let events = read_on(play, &self.after, PAGES[self.looks % PAGES.len()]).await;
        let is_any = !events.is_empty();
        for event in events {
            self.after = event.cursor.to_string();
            assert_eq!(event.tenant_id.as_deref(), Some("t1"));
            let key = (event.job_id, event.event.n);
            assert_eq!(self.seen.insert(key, event.event), None, "{key:?} is seen twice");
        }
        is_any
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
        let (written, mut slices) = watch::channel(0);
        let (connected, connects) = watch::channel(0);
        let writers =
            (0..WRITERS).map(|writer| write_on(play, writer, (&written, connects.clone())));
        let mut reader =
            Reader { looks: 0, after: Cursor::START.to_string(), seen: BTreeMap::new() };
        let reading = async {
            while reader.looks < RECONNECTS {
                reader.look(play).await;
                connected.send_replace(reader.looks);
                slices.changed().await.unwrap();
            }
        };
        tokio::join!(join_all(writers), reading);
        let seen_meanwhile = reader.seen.len();
        let stored = stored(play).await;
        while reader.look(play).await || (reader.seen.len() < stored.len() && reader.looks < PATIENCE) {}
        assert!(reader.seen == stored, "{} events instead of {}", reader.seen.len(), stored.len());
        assert!(stored.len() >= 4 * RECONNECTS, "they wrote all the time: {}", stored.len());
        assert!(seen_meanwhile > stored.len() / 10, "and were met: {seen_meanwhile} of {}", stored.len());
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
