//! Submit: the same request is the same job.

use sprag_engine::store::{DispatchOutcome, JobFilter, Pick, Store, StoreError, Wish};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{Code, JobState};

use crate::on_both_stores;
use crate::play::{BEGIN_MS, Play, SERVICE, facts, join_all, new_job};
use crate::world::World;

async fn count<W: World>(play: &Play<W>, table: &str) -> usize {
    let rows = play.world.query(&format!("SELECT CAST(count(*) AS text) FROM {table}")).await;
    rows.unwrap()[0][0].as_ref().unwrap().parse().unwrap()
}

on_both_stores! {
    async fn i36_creating_twice_without_a_key_is_one_job<W>(play: &Play<W>) {
        let first = play.submit(new_job(facts("t1", None, "a"), 2)).await.unwrap();
        let again = play.submit(new_job(facts("t1", None, "a"), 2)).await.unwrap();
        assert!(first.created && !again.created);
        assert_eq!(first.job_id, again.job_id);
        assert_eq!(again.state, JobState::Queued);
        assert_eq!((count(play, "job").await, count(play, "attempt").await), (1, 2));
        assert_eq!(count(play, "event").await, 1);
    }

    async fn i37_creating_twice_with_a_key_is_one_job<W>(play: &Play<W>) {
        let first = play.submit(new_job(facts("t1", Some("k"), "a"), 1)).await.unwrap();
        let again = play.submit(new_job(facts("t1", Some("k"), "a"), 1)).await.unwrap();
        assert_eq!((first.job_id, again.created), (again.job_id, false));
    }

    async fn i38_a_key_with_other_content_is_refused_and_names_the_job<W>(play: &Play<W>) {
        let first = play.submit(new_job(facts("t1", Some("k"), "a"), 1)).await.unwrap();
        let refusal = play.submit(new_job(facts("t1", Some("k"), "b"), 1)).await.unwrap_err();
        assert_eq!(refusal.code(), Code::IdempotencyKeyReused);
        assert!(refusal.to_string().contains(&first.job_id.to_string()), "{refusal}");
        assert_eq!(count(play, "job").await, 1);
    }

    async fn i39_two_keys_with_the_same_content_are_two_jobs<W>(play: &Play<W>) {
        let one = play.submit(new_job(facts("t1", Some("k1"), "a"), 1)).await.unwrap();
        let two = play.submit(new_job(facts("t1", Some("k2"), "a"), 1)).await.unwrap();
        assert!(one.created && two.created && one.job_id != two.job_id);
    }

    async fn i40_the_same_content_of_two_tenants_is_two_jobs<W>(play: &Play<W>) {
        let one = play.submit(new_job(facts("t1", None, "a"), 1)).await.unwrap();
        let two = play.submit(new_job(facts("t2", None, "a"), 1)).await.unwrap();
        assert!(one.created && two.created && one.job_id != two.job_id);
    }

    async fn i41_the_same_job_twice_in_one_slice_is_one_job<W>(play: &Play<W>) {
        let slice = ["a", "b", "a", "c", "b"].map(|content| new_job(facts("t1", None, content), 1));
        let answers = play.store().submit(play.engine, slice.to_vec()).await.unwrap();
        let answers: Vec<_> = answers.into_iter().map(Result::unwrap).collect();
        let created = answers.iter().filter(|answer| answer.created).count();
        assert_eq!((created, count(play, "job").await), (3, 3));
        assert_eq!(answers[0].job_id, answers[2].job_id);
        assert_eq!(answers[1].job_id, answers[4].job_id);
    }

    async fn i42_creating_again_after_a_final_failure_answers_the_failed_job<W>(play: &Play<W>) {
        let first = play.submit(new_job(facts("t1", None, "a"), 1)).await.unwrap();
        play.run_step(Report::NonRetryable).await;
        let again = play.submit(new_job(facts("t1", None, "a"), 1)).await.unwrap();
        assert_eq!((again.job_id, again.created), (first.job_id, false));
        assert_eq!(again.state, JobState::FailedFinal);
        assert!(play.claim_as(play.engine, 10).await.unwrap().is_empty(), "no new work");
    }

    async fn i36_sixteen_creates_at_the_same_time_are_one_job<W>(play: &Play<W>) {
        for round in 1..=20 {
            let content = format!("round {round}");
            let key = (round % 2 == 0).then_some(content.as_str());
            let creates = (0..16).map(|_| {
                let job = new_job(facts("t1", key, &content), 3);
                play.store().submit(play.engine, vec![job])
            });
            let answers: Vec<_> =
                join_all(creates).await.into_iter().flat_map(Result::unwrap).map(Result::unwrap).collect();
            assert_eq!(answers.len(), 16);
            assert_eq!(answers.iter().filter(|answer| answer.created).count(), 1, "{content}");
            assert!(answers.iter().all(|answer| answer.job_id == answers[0].job_id), "{content}");
            assert_eq!((count(play, "job").await, count(play, "attempt").await), (round, 3 * round));
        }
    }

    async fn slices_with_the_same_jobs_in_other_orders_do_not_deadlock<W>(play: &Play<W>) {
        let slices = (0..8).map(|task| {
            let mut jobs: Vec<_> =
                (0..40).map(|n| new_job(facts("t1", None, &format!("job {n}")), 1)).collect();
            jobs.rotate_left(task * 5);
            play.store().submit(play.engine, jobs)
        });
        for answers in join_all(slices).await {
            assert_eq!(answers.unwrap().into_iter().flatten().count(), 40);
        }
        assert_eq!(count(play, "job").await, 40);
    }

    async fn o6_a_duplicate_create_writes_no_directive<W>(play: &Play<W>) {
        let create = async || play.submit(new_job(facts("t1", None, "a"), 1)).await.unwrap();
        let first = create().await;
        let held = play.claim().await;
        assert!(matches!(play.write_directive(&held).await, DispatchOutcome::Done { .. }));
        let again = create().await;
        assert_eq!((again.job_id, again.created), (first.job_id, false));
        assert_eq!(count(play, "attempt WHERE outbox IS NOT NULL").await, 1);
        assert!(play.claim_as(play.engine, 10).await.unwrap().is_empty(), "no second one to come");
    }

    async fn jobs_of_several_shapes_go_in_one_slice<W>(play: &Play<W>) {
        let mut delayed = new_job(facts("t1", None, "delayed"), 2);
        delayed.not_before = Some((BEGIN_MS + 5_000).cast_unsigned());
        let mut entered = new_job(facts("t1", None, "entered"), 1);
        entered.enter = true;
        let mut urgent_facts = facts("t1", None, "urgent");
        urgent_facts.priority = 3;
        let urgent = new_job(urgent_facts, 3);
        let slice = vec![delayed.clone(), entered.clone(), urgent.clone()];
        play.store().submit(play.engine, slice).await.unwrap();

        let delayed = play.attempts(delayed.facts.job_id).await;
        assert_eq!((delayed.len(), delayed[0].timer_at), (2, Some(BEGIN_MS.cast_unsigned() + 5_000)));
        let entered = play.attempts(entered.facts.job_id).await;
        assert_eq!((entered.len(), entered[0].owner), (1, Some(play.engine)));
        let urgent = play.attempts(urgent.facts.job_id).await;
        assert_eq!((urgent.len(), urgent[0].is_ready, urgent[1].is_ready), (3, true, false));
    }

    async fn higher_priority_is_claimed_first_and_waiting_makes_up_for_it<W>(play: &Play<W>) {
        let old = play.submit(new_job(facts("t1", None, "old"), 1)).await.unwrap();
        play.clock.advance(59_000);
        let mut urgent = facts("t1", None, "urgent");
        urgent.priority = 1;
        let urgent = play.submit(new_job(urgent, 1)).await.unwrap();
        play.clock.advance(61_000);
        let mut late = facts("t1", None, "late");
        late.priority = 1;
        let late = play.submit(new_job(late, 1)).await.unwrap();
        let claimed = play.claim_as(play.engine, 10).await.unwrap();
        let order: Vec<_> = claimed.iter().map(|held| held.key.job_id).collect();
        assert_eq!(order, [urgent.job_id, old.job_id, late.job_id]);
    }

    async fn a_service_that_was_not_wished_for_is_left_alone<W>(play: &Play<W>) {
        play.create(1).await;
        let other = Wish { service: "other".to_owned(), max: 5, pick: Pick::Any, tenant_id: None };
        assert!(play.store().claim(play.engine, vec![other]).await.unwrap().is_empty());
        let two = ["other", SERVICE].map(|s| Wish { service: s.to_owned(), max: 5, pick: Pick::Any, tenant_id: None });
        assert_eq!(play.store().claim(play.engine, two.to_vec()).await.unwrap().len(), 1);
    }

    async fn a_job_of_an_unknown_protocol_is_poison_and_takes_nothing_with_it<W>(play: &Play<W>) {
        let mut stray = facts("t1", None, "stray");
        stray.protocol_id.replace_range(.., "nobody.v1");
        let answer = play.store().submit(play.engine, vec![new_job(stray, 1)]).await;
        assert!(matches!(answer, Err(StoreError::Poison(_))), "{answer:?}");
        assert_eq!(count(play, "job").await, 0);
    }

    async fn a_protocol_is_kept_once_and_never_changed<W>(play: &Play<W>) {
        play.store().put_protocol("p.v1", "one").await.unwrap();
        play.store().put_protocol("p.v1", "one").await.unwrap();
        let changed = play.store().put_protocol("p.v1", "two").await;
        let Err(StoreError::Refused(refusal)) = changed else { panic!("{changed:?}") };
        assert_eq!(refusal.code(), Code::ProtocolChanged);
        assert_eq!(play.store().protocol("p.v1").await.unwrap().as_deref(), Some("one"));
        assert_eq!(play.store().protocol("p.v2").await.unwrap(), None);
    }

    async fn lists_show_the_newest_first_and_filter<W>(play: &Play<W>) {
        let mut ids = Vec::new();
        for n in 0..5 {
            let tenant = if n % 2 == 0 { "even" } else { "odd" };
            let job = new_job(facts(tenant, None, &format!("{n}")), 1);
            ids.push(play.submit(job).await.unwrap().job_id);
        }
        let list = |filter| async {
            let jobs = play.store().jobs(filter).await.unwrap();
            jobs.into_iter().map(|job| job.facts.job_id).collect::<Vec<_>>()
        };
        let all = JobFilter { limit: 10, ..JobFilter::default() };
        assert_eq!(list(all.clone()).await, [ids[4], ids[3], ids[2], ids[1], ids[0]]);
        let odd = JobFilter { tenant_id: Some("odd".to_owned()), ..all.clone() };
        assert_eq!(list(odd).await, [ids[3], ids[1]]);
        let page = JobFilter { before: Some(ids[3]), limit: 2, ..all.clone() };
        assert_eq!(list(page).await, [ids[2], ids[1]]);
        let done = JobFilter { state: Some(JobState::Succeeded), ..all };
        assert!(list(done).await.is_empty());
    }
}
