//! Schedules: each tick is one job, whoever looks; what was missed; and what is refused.

use std::time::Duration;

use serde_json::json;
use sprag_engine::engine::Engine;
use sprag_engine::schedules::{self, Schedule, ScheduleView, Schedules, TickWrite, look};
use sprag_engine::store::{JobFilter, Store};
use sprag_kernel::decide::schedule::Missed;
use sprag_kernel::{Code, JobState};

use crate::graphs::{closed, echo, engine};
use crate::on_both_stores;
use crate::play::{Play, SERVICE, join_all};
use crate::world::World;

const MINUTE: u64 = 60_000;
const GRACE: Duration = Duration::from_secs(5);

/// A schedule that ticks every minute.
fn schedule(tenant_id: &str, schedule_id: &str, missed: Missed) -> Schedule {
    let envelope = json!({
        "tenant_id": tenant_id, "request_type": "GRAPH", "input_ref": "in", "output_ref": "out",
        "payload": {"of": schedule_id}, "schema_version": "1",
    });
    Schedule {
        tenant_id: tenant_id.to_owned(),
        schedule_id: schedule_id.to_owned(),
        cron: "* * * * *".to_owned(),
        zone: "UTC".to_owned(),
        missed,
        envelope: envelope.to_string(),
    }
}

/// A store that knows the protocol, and no engine that looks.
async fn prepared<W: World>(play: &Play<W>) {
    serving(play).await.shutdown(GRACE).await.unwrap();
}

async fn serving<W: World>(play: &Play<W>) -> Engine<W::Store> {
    engine(play, &format!("- {{step_id: a, service: {SERVICE}}}"), echo()).await
}

/// Turns the clock to this time.
async fn until<W: World>(play: &Play<W>, time: u64) {
    let now = play.store().now().await.unwrap();
    play.clock.advance((time - now).cast_signed());
}

/// The tick that whoever has seen a schedule so would take, and the last one.
fn ticking(seen: &ScheduleView) -> TickWrite {
    TickWrite {
        tenant_id: seen.schedule.tenant_id.clone(),
        schedule_id: seen.schedule.schedule_id.clone(),
        version: seen.version,
        dedup_keys: vec!["s:s:1".to_owned()],
        last_tick: seen.next_at.unwrap(),
        next_at: None,
    }
}

/// The dedup keys of all jobs once there are so many and all are closed.
async fn keys<S: Store>(store: &S, count: usize) -> Vec<String> {
    let filter = || JobFilter { limit: 1_000, ..JobFilter::default() };
    for _ in 0..2_000 {
        let jobs = store.jobs(filter()).await.unwrap();
        if jobs.len() >= count {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let jobs = store.jobs(filter()).await.unwrap();
    for job in &jobs {
        let job = closed(store, job.facts.job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded);
    }
    let mut keys: Vec<_> = jobs.iter().map(|job| job.facts.dedup_key.clone()).collect();
    keys.sort();
    keys
}

on_both_stores! {
    async fn a_tick_is_one_job_however_many_engines_look<W>(play: &Play<W>) {
        prepared(play).await;
        let store = play.store();
        let kept = schedules::add(store, schedule("t1", "s", Missed::Once)).await.unwrap();
        let first = kept.next_at.unwrap();
        assert_eq!(look(store).await.unwrap().laid, 0, "before its time");
        let mut expected = Vec::new();
        for n in 0..3 {
            until(play, first + n * MINUTE).await;
            let looks = join_all((0..8).map(|_| look(store))).await;
            let laid: usize = looks.into_iter().map(|looked| looked.unwrap().laid).sum();
            assert_eq!(laid, 1, "tick {n}");
            expected.push(format!("s:s:{}", first + n * MINUTE));
        }
        let engine = serving(play).await;
        expected.sort();
        assert_eq!(keys(store, 3).await, expected, "though the three envelopes are the same");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn an_engine_looks_by_itself<W>(play: &Play<W>) {
        let engine = serving(play).await;
        let often = Schedule { cron: "* * * * * *".to_owned(), ..schedule("t1", "s", Missed::Once) };
        let kept = engine.add_schedule(often).await.unwrap();
        until(play, kept.next_at.unwrap()).await;
        assert_eq!(keys(play.store(), 1).await, [format!("s:s:{}", kept.next_at.unwrap())]);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn what_was_missed_is_made_up_for_as_the_policy_says<W>(play: &Play<W>) {
        prepared(play).await;
        let store = play.store();
        for (missed, name) in [(Missed::Skip, "skip"), (Missed::Once, "once"), (Missed::All, "all")] {
            let missing = Schedule { cron: "0 * * * *".to_owned(), ..schedule("t1", name, missed) };
            schedules::add(store, missing).await.unwrap();
        }
        let first = schedules::find(store, "t1", "all").await.unwrap().next_at.unwrap();
        // A hundred and fifty hours later, and half of one: no tick is on time.
        until(play, first + 150 * 60 * MINUTE + 30 * MINUTE).await;
        let mut laid = Vec::new();
        loop {
            let looked = look(store).await.unwrap();
            if looked.laid == 0 {
                break;
            }
            laid.push(looked.laid);
        }
        assert_eq!(laid, [101, 51], "one for all that one missed, and each that the other did, in two parts");
        for name in ["skip", "once", "all"] {
            let view = schedules::find(store, "t1", name).await.unwrap();
            assert_eq!(view.last_tick, Some(first + 150 * 60 * MINUTE), "{name}");
            assert_eq!(view.next_at, Some(first + 151 * 60 * MINUTE), "{name}");
        }
    }

    async fn a_schedule_rests_goes_on_and_is_removed<W>(play: &Play<W>) {
        prepared(play).await;
        let store = play.store();
        schedules::add(store, schedule("t1", "s", Missed::All)).await.unwrap();
        let paused = schedules::pause(store, "t1", "s").await.unwrap();
        assert!(paused.paused_at.is_some());
        assert_eq!(schedules::pause(store, "t1", "s").await.unwrap(), paused, "again is a no-op");
        until(play, store.now().await.unwrap() + 10 * MINUTE).await;
        assert_eq!(look(store).await.unwrap().laid, 0);
        let awake = schedules::resume(store, "t1", "s").await.unwrap();
        assert_eq!(look(store).await.unwrap().laid, 0, "what it slept through was not missed");
        until(play, awake.next_at.unwrap()).await;
        assert_eq!(look(store).await.unwrap().laid, 1);
        schedules::remove(store, "t1", "s").await.unwrap();
        until(play, store.now().await.unwrap() + 10 * MINUTE).await;
        assert_eq!(look(store).await.unwrap().laid, 0);
        for refusal in [
            schedules::remove(store, "t1", "s").await.err(),
            schedules::pause(store, "t1", "s").await.err(),
            schedules::resume(store, "t1", "s").await.err(),
        ] {
            assert_eq!(refusal.unwrap().code(), Code::ScheduleUnknown);
        }
    }

    async fn a_tick_that_was_looked_at_before_a_pause_makes_nothing<W>(play: &Play<W>) {
        prepared(play).await;
        let store = play.store();
        let seen = schedules::add(store, schedule("t1", "s", Missed::Once)).await.unwrap();
        schedules::pause(store, "t1", "s").await.unwrap();
        schedules::resume(store, "t1", "s").await.unwrap();
        assert!(!store.tick(ticking(&seen)).await.unwrap());
        let now = schedules::find(store, "t1", "s").await.unwrap();
        let write = ticking(&now);
        assert!(store.tick(write.clone()).await.unwrap());
        assert!(!store.tick(write).await.unwrap(), "again it finds another version");
    }

    /// Both began with version 1, so that the tick of the old one was laid for the new one, and moved it on by the old
    /// rhythm.
    async fn a_tick_that_was_looked_at_before_its_schedule_was_replaced_makes_nothing<W>(play: &Play<W>) {
        prepared(play).await;
        let store = play.store();
        let seen = schedules::add(store, schedule("t1", "s", Missed::Once)).await.unwrap();
        until(play, seen.next_at.unwrap()).await;
        schedules::remove(store, "t1", "s").await.unwrap();
        let hourly = Schedule { cron: "0 * * * *".to_owned(), ..schedule("t1", "s", Missed::Once) };
        let kept = schedules::add(store, hourly).await.unwrap();
        assert!(!store.tick(ticking(&seen)).await.unwrap());
        assert_eq!(schedules::find(store, "t1", "s").await.unwrap(), kept);
        assert!(store.inbox_waiting(1, usize::MAX).await.unwrap().is_empty());
    }

    async fn a_schedule_that_could_make_no_job_is_refused<W>(play: &Play<W>) {
        let store = play.store();
        let refused = async |schedule| schedules::add(store, schedule).await.unwrap_err().code();
        let fine = || schedule("t1", "s", Missed::Once);
        assert_eq!(refused(fine()).await, Code::ProtocolUnknown);
        prepared(play).await;
        assert_eq!(refused(Schedule { cron: "never".to_owned(), ..fine() }).await, Code::ScheduleInvalid);
        assert_eq!(refused(Schedule { zone: "Mars".to_owned(), ..fine() }).await, Code::ScheduleInvalid);
        assert_eq!(refused(Schedule { tenant_id: "t2".to_owned(), ..fine() }).await, Code::TenantMismatch);
        assert_eq!(refused(Schedule { envelope: "{}".to_owned(), ..fine() }).await, Code::EnvelopeInvalid);
        let kept = schedules::add(store, fine()).await.unwrap();
        assert_eq!(schedules::add(store, fine()).await.unwrap(), kept, "the same again is a no-op");
        assert_eq!(refused(Schedule { missed: Missed::All, ..fine() }).await, Code::ScheduleExists);
        schedules::add(store, schedule("t2", "s", Missed::Once)).await.unwrap();
        assert_eq!(store.schedules(None).await.unwrap().len(), 2, "names are a tenant's own");
        assert_eq!(store.schedules(Some("t2")).await.unwrap().len(), 1);
    }
}
