//! Ledgers, digit by digit as they are stored.

use serde_json::json;
use sprag_engine::ids::AttemptKey;
use sprag_engine::plan;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{DispatchOutcome, EndOutcome, FinishOutcome, FollowWrite, Held, Store};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::EndingKind;
use sprag_kernel::{Code, JobState, StepState};

use crate::graphs::{GRACE, closed, echo, submit};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::pull::{builder, until};
use crate::world::World;

fn digits(activity: &str, guid: Option<&str>) -> (String, Option<String>) {
    (activity.to_owned(), guid.map(str::to_owned))
}

/// The only waiting job, running, with so many entries of Leg2 behind it.
async fn at_leg2_entries<W: World>(play: &Play<W>, entries: u32) -> Held {
    let mut held = play.claim().await;
    play.dispatch(&mut held).await;
    let id = W::id(held.key.job_id);
    let sql = format!("UPDATE attempt SET ledger = ledger + {entries} WHERE job_id = {id}");
    play.world.execute(&sql).await.unwrap();
    play.held(held.key.job_id).await
}

on_both_stores! {
    async fn l1_to_l18_every_step_of_an_attempt_leaves_its_digit<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let key = AttemptKey::first(job_id, 0);
        assert_eq!(play.digits(&key).await, digits("000000000000000", None));
        let mut held = play.claim().await;
        assert_eq!(play.digits(&key).await, digits("001000000000000", None), "L1");
        play.dispatch(&mut held).await;
        assert_eq!(play.digits(&key).await, digits("001100000000000", None), "L2");
        play.report(&mut held, Report::Succeeded).await;
        assert_eq!(play.digits(&key).await, digits("001100000000001", Some("000000000000001")), "L8");
        play.finish(&held).await;
        let closed = digits("001111100000001", Some("000111100000001"));
        assert_eq!(play.digits(&key).await, closed, "L14, L18 and D13");
    }

    async fn d13_a_step_that_does_not_close_the_job_leaves_two_digits_out<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        play.run_step(Report::Succeeded).await;
        let open = digits("001111000000001", Some("000011000000001"));
        assert_eq!(play.digits(&AttemptKey::first(job_id, 0)).await, open);
    }

    async fn l46_a_retry_then_a_success<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut semaphores = vec![play.job(job_id).await.row.semaphore.get()];
        play.run_step(Report::Retryable).await;
        semaphores.push(play.job(job_id).await.row.semaphore.get());
        play.clock.advance(30_000);
        play.store().due(play.engine, 10).await.unwrap();
        play.run_step(Report::Succeeded).await;
        semaphores.push(play.job(job_id).await.row.semaphore.get());
        let first = AttemptKey::first(job_id, 0);
        let second = AttemptKey { attempt_no: 2, ..first };
        assert_eq!(play.digits(&first).await, digits("001111000000001", Some("000011000000001")));
        assert_eq!(play.digits(&second).await, digits("001111100000001", Some("000111100000001")));
        assert_eq!(semaphores, [1, 1, 0]);
    }

    async fn l3_a_replayed_activation_enters_again_and_works_once<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        let heir = play.store().join("heir").await.unwrap();
        play.store().take_over(play.engine, heir).await.unwrap();
        let again = play.claim_as(heir, 10).await.unwrap().remove(0);
        assert_eq!(play.digits(&again.key).await, digits("002000000000000", None));
        let write = play.dispatch_write(&mut held).unwrap();
        assert!(play.dispatch_as(play.engine, write).await.is_err(), "the first engine is fenced");
        let mut again = again;
        let write = play.dispatch_write(&mut again).unwrap();
        play.dispatch_as(heir, write).await.unwrap();
        assert_eq!(play.digits(&AttemptKey::first(job_id, 0)).await, digits("002100000000000", None));
    }

    /// The activation of a message whose Leg1 is done comes once more: it is entered, and there is no work left.
    async fn l3_a_replay_behind_leg1_is_entered_and_does_nothing<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        let mut write = play.dispatch_write(&mut held.clone()).unwrap();
        play.dispatch(&mut held).await;
        let sql = format!("UPDATE attempt SET ready_at = 0 WHERE job_id = {}", W::id(job_id));
        play.world.execute(&sql).await.unwrap();
        let mut again = play.claim().await;
        assert_eq!(play.digits(&again.key).await, digits("002100000000000", None));
        let before = play.job(job_id).await.row;
        (write.version, write.job_from) = (again.attempt.version, before.state);
        let outcome = play.dispatch_as(play.engine, write).await.unwrap();
        assert_eq!(outcome, DispatchOutcome::Gone, "by digit 4 alone");
        assert_eq!(play.digits(&again.key).await, digits("002100000000000", None));
        assert_eq!(play.job(job_id).await.row, before);
        play.report(&mut again, Report::Succeeded).await;
        play.finish(&again).await;
    }

    async fn l6_work_of_leg1_that_fails_leaves_the_entry_and_nothing_else<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        // The event of the directive is refused, behind all else that Leg1 writes.
        play.world.execute(W::NO_EVENTS).await.unwrap();
        let (before, write) = (play.job(job_id).await.row, play.dispatch_write(&mut held).unwrap());
        let answer = play.dispatch_as(play.engine, write).await;
        assert!(matches!(answer, Err(sprag_engine::store::StoreError::Poison(_))), "{answer:?}");
        assert_eq!(play.digits(&held.key).await, digits("001000000000000", None));
        assert_eq!(play.job(job_id).await.row, before);
        let attempt = play.attempts(job_id).await.remove(0);
        assert_eq!((attempt.row.state, attempt.row.outbox), (StepState::Pending, None));
    }

    /// Five obligations, of which one is replaced by two, and by three.
    async fn l17_and_l19_more_than_one_child_raises_the_semaphore_by_all_but_one<W>(play: &Play<W>) {
        let roots = "
  - {step_id: s1, needs: [], sleep: 1h}
  - {step_id: s2, needs: [], sleep: 1h}
  - {step_id: s3, needs: [], sleep: 1h}
  - {step_id: s4, needs: [], sleep: 1h}
  - {step_id: opens, needs: [], service: work}
";
        for (children, semaphore) in [(2, 6), (3, 7)] {
            let behind = |n: usize| format!("  - {{step_id: c{n}, needs: [opens], sleep: 1h}}\n");
            let steps = format!("{roots}{}", (0..children).map(behind).collect::<String>());
            let text = format!("protocol_id: opens-{children}.v1\nrequest_types: [GRAPH]\nsteps:{steps}");
            let engine = builder(play).await.protocol(Protocol::read(&text).unwrap());
            let engine = engine.service(SERVICE, 1, echo()).start().await.unwrap();
            let job_id = submit(&engine, json!({})).await;
            until(play, job_id, |attempt| attempt.step_id == "c0" && attempt.timer_at.is_some()).await;
            assert_eq!(play.job(job_id).await.row.semaphore.get(), semaphore);
            let attempts = play.attempts(job_id).await;
            let waiting = attempts.iter().filter(|a| a.step_id.starts_with('c') && a.timer_at.is_some());
            assert_eq!(waiting.count(), children);
            let opens = attempts.iter().find(|attempt| attempt.step_id == "opens").unwrap();
            let done = digits("001111000000001", Some("000011000000001"));
            assert_eq!(play.digits(&opens.key).await, done);
            engine.cancel(job_id, None).await.unwrap();
            assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
            engine.shutdown(GRACE).await.unwrap();
        }
    }

    async fn l11_leg2_before_leg1_is_refused_without_an_increment<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        let refusal = Play::<W>::lost_write(&held).unwrap_err();
        assert_eq!(refusal.code(), Code::Leg1Incomplete);
        // A write that skips the plans is refused by the row itself.
        let row = held.attempt;
        let write = play.dispatch_write(&mut held).unwrap();
        let mut end = Play::<W>::result_write(&held, Report::Succeeded);
        end.version = row.version;
        end.lease_id = None;
        assert_eq!(play.end_as(play.engine, end).await.unwrap(), EndOutcome::Stale);
        assert_eq!(play.digits(&AttemptKey::first(job_id, 0)).await, digits("001000000000000", None));
        play.dispatch_as(play.engine, write).await.unwrap();
    }

    async fn l15_and_l20_finishing_twice_changes_nothing<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        let held = play.run_step(Report::Succeeded).await;
        let (job, before) = (play.job(job_id).await, play.digits(&held.key).await);
        assert_eq!(play.finish(&held).await, FinishOutcome::Gone, "by its version");
        let mut replay = play.finish_write(&held, false).unwrap();
        replay.version = play.attempts(job_id).await[0].row.version;
        let outcome = play.finish_as(play.engine, replay).await.unwrap();
        assert_eq!(outcome, FinishOutcome::Gone, "by digit 6 alone");
        assert_eq!(play.digits(&held.key).await, before);
        assert_eq!(play.job(job_id).await.row, job.row);
        assert_eq!(play.store().events(job_id).await.unwrap().len(), 3);
    }

    /// SQLite took it for somebody else's: the job was closed, and so it did not look any further.
    async fn a_finish_whose_outcome_was_lost_is_known_again_though_it_closed_the_job<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let held = play.run_step(Report::Succeeded).await;
        let mut again = play.finish_write(&held, false).unwrap();
        assert_eq!(play.finish_as(play.engine, again.clone()).await.unwrap(), FinishOutcome::Gone);
        again.repeats = true;
        let outcome = play.finish_as(play.engine, again).await.unwrap();
        let job_version = play.job(job_id).await.row.version;
        let done = FinishOutcome::Done { job: JobState::Succeeded, job_version, entered_next: false };
        assert_eq!(outcome, done);
    }

    async fn l21_a_message_that_has_not_entered_cannot_be_finished<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let version = held.attempt.version;
        let before = (play.job(job_id).await.row, play.digits(&held.key).await);
        // The plan of a message that is not in the row.
        let write = Play::<W>::result_write(&held, Report::Succeeded);
        let mut ahead = held.clone();
        ahead.attempt.ledger = write.ledger;
        ahead.attempt.ending = Some(write.ending);
        let mut finish = play.finish_write(&ahead, false).unwrap();
        finish.version = version;
        assert_eq!(play.finish_as(play.engine, finish).await.unwrap(), FinishOutcome::Gone);
        assert_eq!((play.job(job_id).await.row, play.digits(&held.key).await), before);
    }

    /// L32: a message that did not close the job never sets the last digit, however often it comes.
    async fn l31_completion_tasks_are_proved_once_by_the_message_that_closed<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        for (step, guid) in [(0, "000011000000001"), (1, "000111100000001")] {
            let held = play.run_step(Report::Succeeded).await;
            for _ in 0..2 {
                let mut replay = play.finish_write(&held, false).unwrap();
                replay.version = play.attempts(job_id).await[step].row.version;
                let outcome = play.finish_as(play.engine, replay).await.unwrap();
                assert_eq!(outcome, FinishOutcome::Gone);
                assert_eq!(play.digits(&held.key).await.1.as_deref(), Some(guid));
            }
        }
    }

    async fn l40_the_guid_decides_even_where_the_activity_says_otherwise<W>(play: &Play<W>) {
        let job_id = play.create(2).await;
        let held = play.run_step(Report::Succeeded).await;
        let id = W::id(job_id);
        let set = |ledger: &str| {
            format!("UPDATE attempt SET ledger = {ledger} WHERE job_id = {id} AND step_index = 0")
        };
        play.world.execute(&set("1100000000001")).await.unwrap();
        let mut replay = play.finish_write(&held, false).unwrap();
        replay.version = play.attempts(job_id).await[0].row.version;
        assert_eq!(play.finish_as(play.engine, replay).await.unwrap(), FinishOutcome::Gone);
        assert_eq!(play.digits(&held.key).await.0, "001100000000001", "nothing was written");
        assert_eq!(play.job(job_id).await.row.semaphore.get(), 1);
        play.world.execute(&set("1111000000001")).await.unwrap();
    }

    /// Five branches of one job, as a fan-out will leave them. In one slice each message has its own
    /// running value, and only the last one closes the job.
    async fn l17_and_l18_messages_of_one_job_settle_in_one_slice<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Succeeded).await;
        fan_out(play, &held, 4).await;

        let first = play.finish_write(&held, false).unwrap();
        let writes: Vec<_> = [3, 0, 4, 1]
            .map(|branch| {
                let mut write = first.clone();
                write.key.branch = branch;
                write
            })
            .to_vec();
        let outcomes = play.store().finish(play.engine, writes).await.unwrap();
        // In the order of their keys, however they were handed in.
        let states = outcomes.iter().map(|outcome| match outcome {
            FinishOutcome::Done { job, .. } => *job,
            FinishOutcome::Gone => panic!("{outcomes:?}"),
        });
        assert!(states.eq([JobState::InProgress; 4]), "{outcomes:?}");
        assert_eq!(play.job(job_id).await.row.semaphore.get(), 1);

        let mut last = first;
        last.key.branch = 2;
        play.finish_as(play.engine, last).await.unwrap();
        let job = play.job(job_id).await;
        assert_eq!((job.row.state, job.row.semaphore.get()), (JobState::Succeeded, 0));
        let attempts = play.attempts(job_id).await;
        let closers: Vec<_> = attempts.iter().map(|a| a.row.ending.unwrap().guid.job_closed()).collect();
        assert_eq!(closers, [false, false, true, false, false]);
    }

    async fn the_message_that_settles_last_in_a_slice_closes_the_job<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Succeeded).await;
        fan_out(play, &held, 2).await;
        let first = play.finish_write(&held, false).unwrap();
        let mut writes = vec![first.clone(), first.clone(), first];
        for (branch, write) in writes.iter_mut().enumerate() {
            write.key.branch = branch as u64;
        }
        let before = play.job(job_id).await.row.version;
        let outcomes = play.store().finish(play.engine, writes).await.unwrap();
        let done = |job, job_version| FinishOutcome::Done { job, job_version, entered_next: false };
        assert_eq!(
            outcomes,
            [
                done(JobState::InProgress, before + 1),
                done(JobState::InProgress, before + 2),
                done(JobState::Succeeded, before + 3)
            ]
        );
        let events = play.store().events(job_id).await.unwrap();
        let told: Vec<_> = events[4..].iter().map(|event| event.changes.as_str()).collect();
        assert_eq!(told, ["S3>4 ", "S3>4 ", "S3>4 J2>4 "]);
    }

    async fn l19_what_follows_is_the_delta<W>(play: &Play<W>) {
        for (report, children) in
            [(Report::Succeeded, "1"), (Report::Retryable, "1"), (Report::NonRetryable, "0")]
        {
            play.create(2).await;
            let held = play.run_step(report).await;
            let write = play.finish_write(&held, false).unwrap();
            assert_eq!(write.open.follows == FollowWrite::Nothing, children == "0");
            let id = W::id(held.key.job_id);
            let sql = format!(
                "SELECT CAST(children AS text) FROM attempt
                 WHERE job_id = {id} AND step_index = 0 AND attempt_no = 1"
            );
            assert_eq!(play.world.query(&sql).await.unwrap()[0][0].as_deref(), Some(children));
            // Nothing of this job is to be claimed by the next one.
            play.claim_as(play.engine, 10).await.unwrap();
        }
    }

    async fn l24_a_child_that_violates_a_constraint_takes_everything_back<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        play.report(&mut held, Report::Retryable).await;
        let sql = format!(
            "INSERT INTO attempt (job_id, step_index, attempt_no, state, version, ledger, created_at,
                 updated_at, step_id, step_type, service)
             VALUES ({}, 0, 2, 0, 1, 0, 0, 0, '', '', '')",
            W::id(held.key.job_id)
        );
        play.world.execute(&sql).await.unwrap();
        let before = (play.job(job_id).await.row, play.digits(&held.key).await);
        let write = play.finish_write(&held, false).unwrap();
        let answer = play.finish_as(play.engine, write).await;
        assert!(matches!(answer, Err(sprag_engine::store::StoreError::Poison(_))), "{answer:?}");
        assert_eq!((play.job(job_id).await.row, play.digits(&held.key).await), before);
        assert_eq!(play.store().events(job_id).await.unwrap().len(), 2);
        let sql = format!("DELETE FROM attempt WHERE job_id = {} AND attempt_no = 2", W::id(held.key.job_id));
        play.world.execute(&sql).await.unwrap();
    }

    async fn l43_a_ledger_of_sixteen_digits_is_refused_by_the_table<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let id = W::id(job_id);
        for column in ["ledger", "guid"] {
            for value in ["1000000000000000", "-1"] {
                let sql = format!("UPDATE attempt SET {column} = {value} WHERE job_id = {id}");
                let refused = play.world.execute(&sql).await.unwrap_err();
                assert!(refused.to_lowercase().contains("check"), "{refused}");
            }
        }
        let sql = format!("UPDATE attempt SET ledger = 999999999999999 WHERE job_id = {id}");
        play.world.execute(&sql).await.unwrap();
        let sql = format!("UPDATE attempt SET ledger = 0 WHERE job_id = {id}");
        play.world.execute(&sql).await.unwrap();
    }

    async fn d1_the_999th_entry_of_leg1_is_allowed_and_the_next_is_not_counted<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let key = AttemptKey::first(job_id, 0);
        let id = W::id(job_id);
        let sql = format!("UPDATE attempt SET ledger = 998000000000000 WHERE job_id = {id}");
        play.world.execute(&sql).await.unwrap();
        let held = play.claim().await;
        assert_eq!(held.attempt.ledger.leg1_entries(), 999);
        let sql = format!("UPDATE attempt SET ready_at = 0, owner = NULL WHERE job_id = {id}");
        play.world.execute(&sql).await.unwrap();
        let held = play.claim().await;
        assert_eq!(held.attempt.ledger.leg1_entries(), 999);
        assert_eq!(play.digits(&key).await.0, "999000000000000");
    }

    async fn d2_and_d11_the_last_entry_of_leg2_counts_and_the_next_message_ends_the_step_for_good<W>(play: &Play<W>) {
        // The next to last: the entry fits.
        play.create(1).await;
        let mut held = at_leg2_entries(play, 99_999_998).await;
        play.report(&mut held, Report::Succeeded).await;
        assert_eq!(play.digits(&held.key).await.0, "001100099999999");
        play.finish(&held).await;
        assert_eq!(play.job(held.key.job_id).await.row.state, JobState::Succeeded);

        // The last: what the worker said is not entered, and nothing is carried into the digits above.
        let job_id = play.create(1).await;
        let mut held = at_leg2_entries(play, 99_999_999).await;
        play.report(&mut held, Report::Succeeded).await;
        assert_eq!(held.attempt.ending.unwrap().kind, EndingKind::Leg2Exhausted);
        let digits = ("001100099999999".to_owned(), Some("000000099999999".to_owned()));
        assert_eq!(play.digits(&held.key).await, digits);
        // An heir delivers it once more, which no longer counts either.
        let heir = play.store().join("heir").await.unwrap();
        let mut orphans = play.store().take_over(play.engine, heir).await.unwrap();
        let held = orphans.pop().unwrap();
        assert_eq!(play.digits(&held.key).await, digits);
        let write = play.finish_write(&held, false).unwrap();
        let outcome = play.finish_as(heir, write).await.unwrap();
        assert!(matches!(outcome, FinishOutcome::Done { job: JobState::FailedFinal, .. }));
        let job = play.job(job_id).await;
        assert_eq!(job.error.unwrap().code, Code::Leg2EntriesExhausted.name());
        // The activity shows no trace of a message that it has no digits left for.
        let digits = ("001100099999999".to_owned(), Some("000111199999999".to_owned()));
        assert_eq!(play.digits(&held.key).await, digits);
    }

    async fn l48_and_o9_a_second_row_for_one_attempt_is_refused<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let sql = format!(
            "INSERT INTO attempt (job_id, step_index, attempt_no, state, version, ledger, created_at,
                 updated_at, step_id, step_type, service)
             VALUES ({}, 0, 1, 0, 1, 0, 0, 0, '', '', '')",
            W::id(job_id)
        );
        let refused = play.world.execute(&sql).await.unwrap_err();
        assert!(refused.to_lowercase().contains("unique"), "{refused}");
    }

    async fn q29_a_message_of_a_finished_or_a_missing_job_is_acknowledged_and_changes_nothing<W>(play: &Play<W>) {
        let job_id = play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let mut written = Play::<W>::result_write(&held, Report::Succeeded);
        play.report(&mut held, Report::Succeeded).await;
        play.finish(&held).await;
        let before = play.job(job_id).await.row;
        assert_eq!(play.end_as(play.engine, written.clone()).await.unwrap(), EndOutcome::Stale);
        assert_eq!(play.finish(&held).await, FinishOutcome::Gone);
        assert_eq!(play.job(job_id).await.row, before);

        held.key.job_id = sprag_engine::ids::JobId::new();
        written.key = held.key;
        assert_eq!(play.end_as(play.engine, written).await.unwrap(), EndOutcome::Stale);
        assert_eq!(play.finish(&held).await, FinishOutcome::Gone);
        assert!(play.store().job(held.key.job_id).await.unwrap().is_none());
    }

    async fn t8_a_duplicate_result_is_known_and_another_one_is_stale<W>(play: &Play<W>) {
        play.create(1).await;
        let mut held = play.claim().await;
        play.dispatch(&mut held).await;
        let before = held.clone();
        play.report(&mut held, Report::Succeeded).await;
        let output = Some(r#"{"of":0}"#.to_owned());
        let again = plan::result(&held, Report::Succeeded, output, None).unwrap();
        assert!(again.is_none(), "the same content is a success without change");
        let other = plan::result(&held, Report::NonRetryable, None, None).unwrap_err();
        assert_eq!(other.code(), Code::StaleFence);
        // As an engine that has not seen the first one.
        let late = Play::<W>::result_write(&before, Report::NonRetryable);
        assert_eq!(play.end_as(play.engine, late).await.unwrap(), EndOutcome::Stale);
        play.finish(&held).await;
    }
}

/// Triggers note which statement, as it came from the client, has written each row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn l41_steps_1_to_3_are_one_statement_as_the_server_sees_it() {
    let play = Play::<crate::world::Postgres>::begin().await;
    play.create(2).await;
    let mut held = play.claim().await;
    play.dispatch(&mut held).await;
    play.report(&mut held, Report::Succeeded).await;
    let note = "CREATE TABLE noted (what text, by_statement timestamptz, query text);
        CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            INSERT INTO noted VALUES (TG_TABLE_NAME, statement_timestamp(), current_query());
            RETURN NULL;
        END $$;
        CREATE TRIGGER note AFTER INSERT OR UPDATE ON job FOR EACH ROW EXECUTE FUNCTION note();
        CREATE TRIGGER note AFTER INSERT OR UPDATE ON attempt FOR EACH ROW EXECUTE FUNCTION note();
        CREATE TRIGGER note AFTER INSERT OR UPDATE ON event FOR EACH ROW EXECUTE FUNCTION note();";
    play.world.execute(note).await.unwrap();
    let outcome = play.finish(&held).await;
    assert!(matches!(outcome, FinishOutcome::Done { .. }), "{outcome:?}");
    let noted = "SELECT count(*)::text, count(DISTINCT what)::text,
        count(DISTINCT (by_statement, query))::text FROM noted";
    let row = play.world.query(noted).await.unwrap().remove(0);
    let counts: Vec<&str> = row.iter().map(|count| count.as_deref().unwrap()).collect();
    assert_eq!(counts, ["4", "3", "1"], "two attempts, the job and its event by one statement");
}

/// Copies an attempt that a message is ending to so many more branches, each an obligation.
async fn fan_out<W: World>(play: &Play<W>, held: &sprag_engine::store::Held, branches: u32) {
    let id = W::id(held.key.job_id);
    for branch in 1..=branches {
        let sql = format!(
            "INSERT INTO attempt (job_id, step_index, branch, attempt_no, state, version, ledger, guid,
                 ending, owner, lease_id, outbox, sent_at, acked_at, created_at, updated_at, step_id,
                 step_type, service)
             SELECT job_id, step_index, {branch}, attempt_no, state, version, ledger, guid, ending,
                 owner, lease_id, outbox, sent_at, acked_at, created_at, updated_at, step_id, step_type,
                 service
             FROM attempt WHERE job_id = {id} AND branch = 0"
        );
        play.world.execute(&sql).await.unwrap();
    }
    for branch in 1..=branches {
        let sql = format!(
            "INSERT INTO event (job_id, n, at, step_index, branch, attempt_no, changes)
             SELECT job_id, events + {branch}, 1, 0, {branch}, 1, 'S0>1 O0>1 S1>2 S2>3 '
             FROM job WHERE job_id = {id}"
        );
        play.world.execute(&sql).await.unwrap();
    }
    let sql = format!(
        "UPDATE job SET semaphore = semaphore + {branches}, initial = initial + {branches},
             attempts_total = attempts_total + {branches}, events = events + {branches}
         WHERE job_id = {id} {}",
        W::CHAINED
    );
    play.world.execute(&sql).await.unwrap();
}
