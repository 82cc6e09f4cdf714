//! What is done beside jobs: slots of tenants, completion tasks, retention, pauses, counts.

use sprag_engine::ids::{EngineNo, JobId};
use sprag_engine::store::{
    Cursor, FinishOutcome, FinishWrite, Held, NewJob, Store, StoreError, Submitted,
};
use sprag_engine::upkeep::{Backlog, Delivery, ServiceView, Task, Upkeep};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{Code, JobState, Refusal};

use crate::feed::look_for;
use crate::on_both_stores;
use crate::play::{BEGIN_MS, Play, SERVICE, facts, join_all, new_job};
use crate::world::{World, is_fenced};

fn job(tenant: &str, key: &str) -> NewJob {
    new_job(facts(tenant, Some(key), key), 1)
}

fn limit(answer: Result<Submitted, Refusal>) -> (Code, String) {
    let refusal = answer.unwrap_err();
    let field = |name: &str| refusal.field(name).unwrap().to_string();
    (refusal.code(), format!("{} {} {}", field("tenant_id"), field("limit"), field("open")))
}

/// Runs the only waiting job of one step to its end, with these tasks recorded.
async fn close<W: World>(play: &Play<W>, report: Report, tasks: &[&str]) -> FinishWrite {
    let mut held = play.claim().await;
    play.dispatch(&mut held).await;
    play.report(&mut held, report).await;
    let tasks = tasks.iter().map(|task| (*task).to_owned()).collect();
    let write = FinishWrite { tasks, ..play.finish_write(&held, false).unwrap() };
    let outcome = play.finish_as(play.engine, write.clone()).await.unwrap();
    assert!(matches!(outcome, FinishOutcome::Done { .. }), "{outcome:?}");
    write
}

/// A job whose event is the newest and that nobody can claim.
async fn newest<W: World>(play: &Play<W>) -> JobId {
    let mut later = new_job(facts("t9", None, &JobId::new().to_string()), 1);
    later.not_before = Some(play.clock.now().cast_unsigned() + 1_000_000);
    play.submit(later).await.unwrap().job_id
}

async fn count<W: World>(play: &Play<W>, table: &str) -> String {
    let sql = format!("SELECT CAST(count(*) AS text) FROM {table}");
    play.world.query(&sql).await.unwrap()[0][0].clone().unwrap()
}

async fn deliver<W: World>(play: &Play<W>, engine: EngineNo) -> Vec<Task> {
    play.store()
        .claim_tasks(engine, vec!["hook:a".into(), "hook:b".into()], 10, 1_000)
        .await
        .unwrap()
}

on_both_stores! {
    async fn j26_a_create_over_the_limit_is_refused_and_the_slot_comes_back_with_the_end<W>(play: &Play<W>) {
        play.store().limit_tenant("t1", Some(1)).await.unwrap();
        let first = play.submit(job("t1", "1")).await.unwrap();
        assert_eq!(limit(play.submit(job("t1", "2")).await), (Code::TenantLimit, "t1 1 1".into()));
        let again = play.submit(job("t1", "1")).await.unwrap();
        assert_eq!((again.job_id, again.created), (first.job_id, false), "a repeat is answered");
        let other = play.submit(job("t2", "1")).await.unwrap();
        assert!(other.created, "a tenant without a limit has none");
        play.cancel(other.job_id).await.unwrap();

        let mut held: Vec<Held> = play.claim_as(play.engine, 10).await.unwrap();
        held.retain(|held| held.key.job_id == first.job_id);
        let mut held = held.pop().unwrap();
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::NonRetryable).await;
        let write = play.finish_write(&held, false).unwrap();
        play.finish_as(play.engine, write.clone()).await.unwrap();
        let repeat = FinishWrite { repeats: true, ..write };
        play.finish_as(play.engine, repeat).await.unwrap();
        assert!(play.submit(job("t1", "2")).await.unwrap().created, "the slot is free, once");
        assert_eq!(limit(play.submit(job("t1", "3")).await).0, Code::TenantLimit);
    }

    async fn j26_a_failing_create_leaves_the_slot_free<W>(play: &Play<W>) {
        play.store().limit_tenant("t1", Some(1)).await.unwrap();
        let mut poison = facts("t1", Some("p"), "p");
        poison.protocol_id.replace_range(.., "nobody.v1");
        let answer = play.store().submit(play.engine, vec![new_job(poison, 1)]).await;
        assert!(matches!(answer, Err(StoreError::Poison(_))), "{answer:?}");
        assert!(play.submit(job("t1", "1")).await.unwrap().created);
    }

    async fn a_slice_over_the_limit_is_created_in_part_and_repeats_in_it_are_answered<W>(play: &Play<W>) {
        play.store().limit_tenant("t1", Some(2)).await.unwrap();
        let slice = ["1", "2", "1", "3", "3"].map(|key| job("t1", key));
        let mut slice = slice.to_vec();
        slice.push(job("t2", "1"));
        let answers = play.store().submit(play.engine, slice).await.unwrap();
        let told: Vec<_> =
            answers.iter().map(|a| a.as_ref().map_or("refused", |s| if s.created { "new" } else { "known" })).collect();
        assert_eq!(told, ["new", "new", "known", "refused", "refused", "new"]);
    }

    async fn open_jobs_count_when_a_limit_is_set_and_a_lifted_limit_is_gone<W>(play: &Play<W>) {
        play.submit(job("t1", "1")).await.unwrap();
        play.submit(job("t1", "2")).await.unwrap();
        play.store().limit_tenant("t1", Some(1)).await.unwrap();
        assert_eq!(limit(play.submit(job("t1", "3")).await), (Code::TenantLimit, "t1 1 2".into()));
        play.store().limit_tenant("t1", Some(3)).await.unwrap();
        assert!(play.submit(job("t1", "3")).await.unwrap().created);
        play.store().limit_tenant("t1", None).await.unwrap();
        assert!(play.submit(job("t1", "4")).await.unwrap().created);
        assert_eq!(count(play, "tenant").await, "0", "who has no limit has no row");
    }

    async fn of_sixteen_creates_at_once_as_many_pass_as_there_are_slots<W>(play: &Play<W>) {
        play.store().limit_tenant("t1", Some(5)).await.unwrap();
        let keys: Vec<String> = (0..16).map(|n| format!("{n}")).collect();
        let creates = keys.iter().map(|key| play.submit(job("t1", key)));
        let answers = join_all(creates).await;
        assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 5);
    }

    async fn the_closing_commit_records_its_tasks_once<W>(play: &Play<W>) {
        let job_id = play.submit(new_job(facts("t1", None, "x"), 2)).await.unwrap().job_id;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Succeeded).await;
        let tasks: std::sync::Arc<[String]> = ["hook:a".to_owned(), "hook:b".to_owned()].into();
        let write = play.finish_write(&held, false).unwrap();
        play.finish_as(play.engine, FinishWrite { tasks, ..write }).await.unwrap();
        assert_eq!(count(play, "completion").await, "0", "the job goes on");
        let write = close(play, Report::Succeeded, &["hook:a", "hook:b"]).await;
        assert_eq!(count(play, "completion").await, "2");
        let again = FinishWrite { repeats: true, ..write };
        play.finish_as(play.engine, again).await.unwrap();
        assert_eq!(count(play, "completion").await, "2", "a repeat records nothing");
        let claimed = deliver(play, play.engine).await;
        let told: Vec<_> = claimed.iter().map(|t| (t.job_id, t.task.as_str(), t.delivery)).collect();
        assert_eq!(told, [(job_id, "hook:a", 1), (job_id, "hook:b", 1)]);
    }

    async fn a_task_is_delivered_again_until_it_is_done<W>(play: &Play<W>) {
        play.create(1).await;
        close(play, Report::NonRetryable, &["hook:a"]).await;
        let store = play.store();
        let first = deliver(play, play.engine).await;
        assert_eq!((first.len(), deliver(play, play.engine).await.len()), (1, 0), "it is held");
        play.clock.advance(1_000);
        let second = deliver(play, play.engine).await;
        assert_eq!(second[0].delivery, 2, "nobody has settled the first");
        store.settle_tasks(play.engine, vec![(first[0].clone(), Delivery::Done)]).await.unwrap();
        let failed = Delivery::Failed { delay_ms: 5_000, message: "down".to_owned() };
        store.settle_tasks(play.engine, vec![(second[0].clone(), failed)]).await.unwrap();
        play.clock.advance(4_999);
        assert_eq!(deliver(play, play.engine).await, []);
        play.clock.advance(1);
        let third = deliver(play, play.engine).await;
        assert_eq!(third[0].delivery, 3, "a late word about the first delivery changed nothing");
        store.settle_tasks(play.engine, vec![(third[0].clone(), Delivery::Done)]).await.unwrap();
        play.clock.advance(1_000_000);
        assert_eq!(deliver(play, play.engine).await, []);
    }

    async fn a_dead_deliverers_task_is_due_at_once_and_it_can_settle_nothing<W>(play: &Play<W>) {
        play.create(1).await;
        close(play, Report::Succeeded, &["hook:a"]).await;
        let heir = play.store().join("heir").await.unwrap();
        let task = deliver(play, play.engine).await.pop().unwrap();
        play.store().take_over(play.engine, heir).await.unwrap();
        let settled = play.store().settle_tasks(play.engine, vec![(task, Delivery::Done)]).await;
        assert!(is_fenced(&settled));
        let claimed = play.store().claim_tasks(play.engine, vec!["hook:a".into()], 1, 1).await;
        assert!(is_fenced(&claimed));
        assert_eq!(deliver(play, heir).await[0].delivery, 2);
    }

    async fn a_finished_job_is_kept_for_its_time_and_then_its_key_answers<W>(play: &Play<W>) {
        let store = play.store();
        let done = play.submit(job("t1", "done")).await.unwrap().job_id;
        close(play, Report::Succeeded, &[]).await;
        play.submit(job("t1", "told")).await.unwrap();
        close(play, Report::NonRetryable, &["hook:a"]).await;
        let open = play.submit(job("t1", "open")).await.unwrap().job_id;
        play.clock.advance(999);
        assert_eq!(store.retire(play.engine, 1_000, None, 10).await.unwrap().deleted, 0);
        play.clock.advance(1);
        assert_eq!(store.retire(play.engine, 1_000, None, 10).await.unwrap().deleted, 1);
        assert!(store.job(done).await.unwrap().is_none());
        assert!(store.attempts(done).await.unwrap().is_empty());
        assert!(store.events(done).await.unwrap().is_empty());
        let again = play.submit(job("t1", "done")).await.unwrap();
        assert_eq!(again, Submitted { job_id: done, state: JobState::Succeeded, created: false });
        let mut other = job("t1", "done");
        other = new_job(facts("t1", Some("done"), "other content"), other.steps.len());
        assert_eq!(play.submit(other).await.unwrap_err().code(), Code::IdempotencyKeyReused);

        let task = deliver(play, play.engine).await.pop().unwrap();
        store.settle_tasks(play.engine, vec![(task, Delivery::Done)]).await.unwrap();
        assert_eq!(store.retire(play.engine, 1_000, None, 10).await.unwrap().deleted, 1, "it was told");
        assert!(store.job(open).await.unwrap().is_some());
        assert_eq!(count(play, "completion").await, "0");

        play.clock.advance(1_000);
        assert_eq!(store.forget(play.engine, 1_001, 10).await.unwrap(), 0);
        assert_eq!(store.forget(play.engine, 1_000, 1).await.unwrap(), 1, "at most as many as asked");
        assert_eq!(store.forget(play.engine, 1_000, 10).await.unwrap(), 1);
        assert!(play.submit(job("t1", "done")).await.unwrap().created, "nothing is left of it");
    }

    async fn retention_goes_through_old_jobs_page_by_page<W>(play: &Play<W>) {
        for _ in 0..5 {
            play.create(1).await;
            close(play, Report::Succeeded, &[]).await;
        }
        play.clock.advance(10);
        let young = play.create(1).await;
        let (mut at, mut deleted) = (None, Vec::new());
        loop {
            let page = play.store().retire(play.engine, 5, at, 2).await.unwrap();
            deleted.push(page.deleted);
            at = page.next;
            if at.is_none() {
                break;
            }
        }
        assert_eq!(deleted, [2, 2, 1]);
        assert!(play.store().job(young).await.unwrap().is_some());
    }

    /// On SQLite the next event would get the position of one that was deleted, behind the reader.
    async fn a_feed_reader_misses_nothing_when_retention_has_deleted_all_it_may<W>(play: &Play<W>) {
        let store = play.store();
        for _ in 0..3 {
            play.create(1).await;
            close(play, Report::Succeeded, &[]).await;
        }
        let cursor = look_for(play, Cursor::START, 9).await.pop().unwrap().cursor;
        play.clock.advance(10);
        assert_eq!(store.retire(play.engine, 5, None, 10).await.unwrap().deleted, 2);
        assert_eq!(store.retire(play.engine, 5, None, 10).await.unwrap().deleted, 0, "the newest stays");
        let next = play.create(1).await;
        assert_eq!(look_for(play, cursor, 1).await[0].job_id, next);
        play.clock.advance(10);
        assert_eq!(store.retire(play.engine, 5, None, 10).await.unwrap().deleted, 1, "it is not the newest");
    }

    async fn engines_that_retire_at_once_delete_each_job_once<W>(play: &Play<W>) {
        for _ in 0..12 {
            play.create(1).await;
            close(play, Report::Succeeded, &[]).await;
        }
        newest(play).await;
        play.clock.advance(10);
        let sweeps = (0..4).map(|_| play.store().retire(play.engine, 5, None, 100));
        let deleted: usize = join_all(sweeps).await.into_iter().map(|page| page.unwrap().deleted).sum();
        assert_eq!(deleted, 12);
        assert_eq!(count(play, "retired").await, "12");
    }

    /// A submit whose statement began before the deletion sees the job in its way go away; it must not
    /// take that for a free key.
    async fn a_repeat_that_races_with_retention_never_creates_the_job_again<W>(play: &Play<W>) {
        for round in 0..20 {
            let key = format!("{round}");
            let job_id = play.submit(job("t1", &key)).await.unwrap().job_id;
            close(play, Report::Succeeded, &[]).await;
            newest(play).await;
            play.clock.advance(10);
            let submits = async {
                let submits = (0..6).map(|_| play.submit(job("t1", &key)));
                join_all(submits).await
            };
            let (answers, retired) =
                tokio::join!(submits, play.store().retire(play.engine, 5, None, 100));
            assert_eq!(retired.unwrap().deleted, 1);
            for answer in answers {
                let answer = answer.unwrap();
                assert_eq!((answer.job_id, answer.created), (job_id, false), "round {round}");
            }
        }
    }

    async fn nothing_of_a_paused_service_is_claimed_or_entered_and_what_runs_goes_on<W>(play: &Play<W>) {
        let store = play.store();
        play.create(2).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        store.pause(SERVICE).await.unwrap();
        store.pause(SERVICE).await.unwrap();
        let mut eager = job("t1", "eager");
        eager.enter = true;
        let eager = play.submit(eager).await.unwrap().job_id;
        assert!(play.attempts(eager).await[0].is_paused);
        assert_eq!(play.claim_as(play.engine, 10).await.unwrap().len(), 0);
        play.report(&mut held, Report::Succeeded).await;
        let write = play.finish_write(&held, true).unwrap();
        let outcome = play.finish_as(play.engine, write).await.unwrap();
        assert!(matches!(outcome, FinishOutcome::Done { entered_next: false, .. }), "{outcome:?}");
        let listed = store.services().await.unwrap();
        assert_eq!((listed[0].ready, listed[0].paused_at.is_some()), (2, true));
        store.resume(SERVICE).await.unwrap();
        assert_eq!(play.claim_as(play.engine, 10).await.unwrap().len(), 2);
        assert_eq!(store.services().await.unwrap(), []);
    }

    async fn who_offers_itself_for_a_service_is_noted_with_the_time<W>(play: &Play<W>) {
        let store = play.store();
        let job_id = play.create(1).await;
        let seen = |services: Vec<ServiceView>| -> Vec<(String, u64, bool)> {
            let row = |view: ServiceView| (view.service, view.ready, view.seen_at.is_some());
            services.into_iter().map(row).collect()
        };
        assert_eq!(seen(store.services().await.unwrap()), [(SERVICE.to_owned(), 1, false)]);
        let waits = |services: &[ServiceView]| services.last().and_then(|view| view.ready_since);
        let since = waits(&store.services().await.unwrap()).unwrap();
        assert_eq!(play.attempts(job_id).await[0].served_at, None);
        let offered = vec![SERVICE.to_owned(), "other".to_owned(), SERVICE.to_owned()];
        store.serve(play.engine, offered.clone()).await.unwrap();
        let first = play.attempts(job_id).await[0].served_at.unwrap();
        let listed = seen(store.services().await.unwrap());
        assert_eq!(listed, [("other".to_owned(), 0, true), (SERVICE.to_owned(), 1, true)]);
        play.clock.advance(5_000);
        store.serve(play.engine, offered).await.unwrap();
        assert_eq!(waits(&store.services().await.unwrap()), Some(since), "since then, whatever it is now");
        assert!(since <= BEGIN_MS.cast_unsigned() + 5_000, "{since}");
        assert_eq!(play.attempts(job_id).await[0].served_at, Some(first + 5_000));
    }

    async fn what_waits_is_counted_by_what_it_waits_for<W>(play: &Play<W>) {
        let store = play.store();
        let now = || async { store.now().await.unwrap() };
        assert_eq!(store.backlog(now().await, now().await).await.unwrap(), Backlog::default());
        play.create(1).await;
        let long_ago = now().await - 1;
        assert_eq!(store.backlog(now().await, long_ago).await.unwrap().stuck_jobs, 0, "just now");
        let waits = store.backlog(now().await, now().await).await.unwrap();
        assert_eq!(waits, Backlog { stuck_jobs: 1, ..Backlog::default() });
        store.pause(SERVICE).await.unwrap();
        let paused = store.backlog(now().await, now().await).await.unwrap();
        assert_eq!(paused.stuck_jobs, 0, "nobody is to take it");
        store.resume(SERVICE).await.unwrap();
        close(play, Report::Retryable, &[]).await;
        let retried = store.backlog(now().await, now().await).await.unwrap();
        assert_eq!(retried, Backlog { retries_waiting: 1, ..Backlog::default() });
        play.clock.advance(3_600_000);
        let due = store.backlog(now().await, now().await).await.unwrap();
        assert_eq!((due.timers_due, due.retries_waiting), (1, 1));
    }

    async fn jobs_are_counted_per_state_as_they_move<W>(play: &Play<W>) {
        let store = play.store();
        play.create(1).await;
        close(play, Report::Succeeded, &[]).await;
        let cancelled: JobId = play.create(1).await;
        play.create(1).await;
        play.cancel(cancelled).await.unwrap();
        let counts = store.counts().await.unwrap();
        assert_eq!(
            counts,
            [(JobState::Queued, 1), (JobState::Cancelling, 1), (JobState::Succeeded, 1)]
        );
        assert_eq!(store.open_jobs().await.unwrap(), 2);
        play.clock.advance(10);
        store.retire(play.engine, 5, None, 10).await.unwrap();
        assert_eq!(store.counts().await.unwrap().len(), 2, "what is deleted is not counted");
    }
}
