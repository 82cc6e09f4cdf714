//! Cycles, run by real engines on both stores: turns and their rows, conditions, limits, failures and
//! cancels in the middle of a turn, cycles in fan-outs and fan-outs in cycles, lost engines.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::directive::Failure;
use sprag_engine::graph::place;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use sprag_kernel::{JobState, State, StepState};
use tokio::sync::Notify;

use crate::graphs::{GRACE, Run, closed, engine, handler, lose_engines, outputs, ran, submit};
use crate::on_both_stores;
use crate::play::Play;
use crate::world::World;

/// Says its turn, and how many are left of `input.turns`.
fn counts() -> Handler {
    Handler::new(|payload: Value, directive: sprag_engine::directive::Directive, _| async move {
        let turns = payload["turns"].as_u64().unwrap_or(1);
        let left = turns.saturating_sub(u64::from(directive.turn) + 1);
        if payload["fail"] == json!(directive.turn) {
            return Err(Failure::fatal("TOLD", "this turn fails"));
        }
        tokio::time::sleep(Duration::from_millis(payload["ms"].as_u64().unwrap_or(0))).await;
        Ok(json!({"turn": directive.turn, "left": left, "item": directive.item}))
    })
}

const POLL: &str = "
  - {step_id: poll, repeat: {while: steps.poll.output.left > 0, max: 20}, service: work}
  - {step_id: after, service: work}
";

const LISTS: &str = "
  - step_id: round
    repeat: {while: 'steps.tail.output.left > 0 && turn < 100', max: 20}
    steps:
      - {step_id: head, service: work}
      - {step_id: each, for_each: '[0, 1, 2]', max_parallel: 2, service: work}
      - {step_id: tail, needs: [each, head], service: work}
  - {step_id: after, service: work}
";

const BRANCHES: &str = "
  - step_id: each
    for_each: input.items
    on_failure: {tolerate: 1}
    steps:
      - {step_id: poll, repeat: {while: steps.poll.output.left > 0, max: 20}, service: work}
      - {step_id: done, service: work}
  - {step_id: after, needs: [each], service: work}
";

/// The turns that a step has rows of, with their states.
fn turns(run: &Run, step_id: &str) -> Vec<(u32, StepState)> {
    let of_step = run.attempts.iter().filter(|attempt| attempt.step_id == step_id);
    of_step.map(|attempt| (attempt.key.turn, attempt.row.state)).collect()
}

on_both_stores! {
    async fn a_step_runs_again_while_its_condition_holds<W>(play: &Play<W>) {
        let run = ran(play, POLL, json!({"turns": 4}), counts()).await;
        run.succeeded();
        let all: Vec<_> = (0..4).map(|turn| (turn, StepState::Succeeded)).collect();
        assert_eq!(turns(&run, "poll"), all, "each turn has a row of its own");
        let outputs: Vec<Value> = run.attempts.iter().filter(|a| a.step_id == "poll")
            .map(|a| serde_json::from_str(a.output.as_deref().unwrap()).unwrap()).collect();
        assert!((0..4).all(|turn| outputs[turn]["turn"] == json!(turn)), "{outputs:?}");
        assert_eq!(run.output("poll/loop"), outputs[3], "the cycle has the output of its last turn");
        assert_eq!(turns(&run, "after"), [(0, StepState::Succeeded)]);
    }

    async fn the_messages_of_its_turns_are_the_entries_of_the_loop<W>(play: &Play<W>) {
        let run = ran(play, POLL, json!({"turns": 7}), counts()).await;
        run.succeeded();
        let loops = run.attempts.iter().filter(|attempt| attempt.step_id == "poll/loop");
        let ledgers: Vec<_> = loops.map(|attempt| {
            (attempt.row.ledger.to_string(), attempt.row.ending.unwrap().guid)
        }).collect();
        for (turn, (ledger, guid)) in (0_u64..).zip(&ledgers) {
            assert_eq!(ledger, &format!("00111100000000{}", turn + 1));
            assert_eq!(guid.to_string(), format!("00001100000000{}", turn + 1));
            assert_eq!(guid.dimension(), Some(turn), "the dimension of what it opens");
        }
        assert_eq!(ledgers.len(), 7);
        assert!(ledgers.iter().all(|(_, guid)| !guid.job_closed()));
    }

    async fn a_cycle_can_end_a_job<W>(play: &Play<W>) {
        let steps = POLL.lines().take(2).collect::<Vec<_>>().join("\n") + "\n";
        let run = ran(play, &steps, json!({"turns": 3}), counts()).await;
        run.succeeded();
        assert_eq!(turns(&run, "poll/loop").len(), 3);
    }

    async fn more_turns_than_the_limit_fail_the_cycle<W>(play: &Play<W>) {
        let steps = POLL.replace("max: 20", "max: 3");
        let run = ran(play, &steps, json!({"turns": 3}), counts()).await;
        run.succeeded();
        let played = Play::<W>::begin().await;
        let run = ran(&played, &steps, json!({"turns": 4}), counts()).await;
        assert_eq!((run.job.row.state, run.error()), (JobState::FailedFinal, "TOO_MANY_TURNS"));
        assert_eq!(turns(&run, "poll").len(), 3, "no turn beyond the limit is opened");
        assert_eq!(run.state("after"), StepState::Pending);
    }

    async fn a_condition_without_a_value_fails_the_cycle<W>(play: &Play<W>) {
        let steps = POLL.replace("output.left", "output.absent");
        let run = ran(play, &steps, json!({"turns": 3}), counts()).await;
        assert_eq!((run.job.row.state, run.error()), (JobState::FailedFinal, "EXPRESSION_FAILED"));
    }

    async fn a_failure_in_a_turn_fails_the_job_and_closes_what_is_parked<W>(play: &Play<W>) {
        let run = ran(play, LISTS, json!({"turns": 9, "fail": 2}), counts()).await;
        assert_eq!((run.job.row.state, run.error()), (JobState::FailedFinal, "TOLD"));
        let loops = turns(&run, "round/loop");
        assert_eq!(loops[2], (2, StepState::Cancelled), "the parked closer of the turn is closed");
        assert_eq!(loops[..2], [(0, StepState::Succeeded), (1, StepState::Succeeded)]);
        assert_eq!(turns(&run, "tail").last(), Some(&(2, StepState::Cancelled)));
    }

    async fn a_skipped_cycle_has_no_turns_and_the_output_null<W>(play: &Play<W>) {
        let steps = POLL.replace("{step_id: poll,", "{step_id: poll, when: 'false',");
        let run = ran(play, &steps, json!({"turns": 3}), counts()).await;
        run.succeeded();
        assert_eq!(turns(&run, "poll"), []);
        assert_eq!(turns(&run, "poll/loop"), [(0, StepState::Skipped)]);
    }

    async fn a_turn_that_is_skipped_has_the_output_null<W>(play: &Play<W>) {
        let steps = "
  - step_id: round
    repeat: {while: 'steps.round.output != null', max: 9}
    steps:
      - {step_id: once, when: turn < 2, service: work}
  - {step_id: after, service: work}
";
        let run = ran(play, steps, json!({}), counts()).await;
        run.succeeded();
        let skipped = (2, StepState::Skipped);
        assert_eq!(turns(&run, "once").last(), Some(&skipped));
        assert_eq!(run.output("round/loop"), Value::Null);
    }

    async fn a_fan_out_in_a_cycle_has_its_branches_anew_in_each_turn<W>(play: &Play<W>) {
        let run = ran(play, LISTS, json!({"turns": 3}), counts()).await;
        run.succeeded();
        assert_eq!(turns(&run, "each").len(), 9);
        assert_eq!(turns(&run, "each/gather").len(), 3);
        let items = run.output("each/gather");
        let items: Vec<_> = items.as_array().unwrap().iter().map(|o| (&o["turn"], &o["item"])).collect();
        assert_eq!(items, [(&json!(2), &json!(0)), (&json!(2), &json!(1)), (&json!(2), &json!(2))]);
    }

    async fn a_cycle_in_a_fan_out_turns_by_itself_in_each_branch<W>(play: &Play<W>) {
        let steps = BRANCHES.replace("output.left > 0", "output.turn < item");
        let run = ran(play, &steps, json!({"items": [0, 3, 1]}), counts()).await;
        run.succeeded();
        let rows = run.attempts.iter().filter(|a| a.step_id == "poll");
        let turns: Vec<_> = rows.map(|a| (place::show(a.key.branch), a.key.turn)).collect();
        let at = |branch: &str, turn| (branch.to_owned(), turn);
        let expected = [at("0", 0), at("1", 0), at("1", 1), at("1", 2), at("1", 3), at("2", 0), at("2", 1)];
        assert_eq!(turns, expected);
        assert_eq!(run.output("each/gather").as_array().unwrap().len(), 3);
    }

    async fn a_cycle_that_ends_a_branch_gathers_its_last_turn<W>(play: &Play<W>) {
        let steps = "
  - step_id: each
    for_each: input.items
    max_parallel: 1
    steps:
      - {step_id: poll, repeat: {while: steps.poll.output.turn < item, max: 20}, service: work}
  - {step_id: after, service: work}
";
        let run = ran(play, steps, json!({"items": [2, 0, 1]}), counts()).await;
        run.succeeded();
        let last: Vec<_> = run.output("each/gather").as_array().unwrap().iter()
            .map(|output| output["turn"].as_u64().unwrap()).collect();
        assert_eq!(last, [2, 0, 1]);
    }

    async fn a_failed_cycle_is_one_failed_branch_of_a_tolerant_fan_out<W>(play: &Play<W>) {
        let steps = BRANCHES.replace("max: 20", "max: 2").replace("output.left > 0", "output.turn < item");
        let run = ran(play, &steps, json!({"items": [0, 5]}), counts()).await;
        run.succeeded();
        let done: Vec<_> = run.attempts.iter().filter(|a| a.step_id == "done").map(|a| a.row.state).collect();
        assert_eq!(done, [StepState::Succeeded, StepState::Skipped]);
        let gathered = run.output("each/gather");
        assert!(gathered[0].is_object() && gathered[1].is_null(), "{gathered}");
    }

    async fn a_join_waits_for_the_last_turn<W>(play: &Play<W>) {
        let steps = "
  - {step_id: poll, needs: [], repeat: {while: steps.poll.output.left > 0, max: 20}, service: work}
  - {step_id: rest, needs: [], sleep: 1h}
  - {step_id: both, needs: [poll, rest], service: work}
";
        let engine = engine(play, steps, counts()).await;
        let job_id = submit(&engine, json!({"turns": 3, "ms": 3})).await;
        // The countdown of the join is checked by the audit in every turn.
        loop {
            play.expect_sound().await;
            let attempts = play.attempts(job_id).await;
            let last = attempts.iter().rfind(|a| a.step_id == "poll/loop");
            if last.is_some_and(|a| a.key.turn == 2 && a.row.state.is_terminal()) {
                break;
            }
        }
        let attempts = play.attempts(job_id).await;
        let both = attempts.iter().find(|a| a.step_id == "both").unwrap();
        assert_eq!(both.row.state, StepState::Pending);
        play.clock.advance(3_600_000);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn turns_are_apart_by_their_delay<W>(play: &Play<W>) {
        let steps = POLL.replace("max: 20", "max: 20, delay: 10m");
        let engine = engine(play, &steps, counts()).await;
        let job_id = submit(&engine, json!({"turns": 2})).await;
        let waits = loop {
            let attempts = play.attempts(job_id).await;
            if let Some(next) = attempts.iter().find(|a| a.key.turn == 1 && a.step_id == "poll") {
                break next.timer_at.unwrap();
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        assert!(waits >= play.store().now().await.unwrap() + 600_000);
        play.expect_sound().await;
        play.clock.advance(600_000);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_cancel_between_two_turns_ends_the_job_at_once<W>(play: &Play<W>) {
        let steps = POLL.replace("max: 20", "max: 20, delay: 10m");
        let engine = engine(play, &steps, counts()).await;
        let job_id = submit(&engine, json!({"turns": 9})).await;
        while !play.attempts(job_id).await.iter().any(|a| a.key.turn == 1) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(play.job(job_id).await.row.semaphore.get(), 2, "the turn and its closer");
        assert_eq!(engine.cancel(job_id, None).await.unwrap(), JobState::Cancelling);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        let attempts = play.attempts(job_id).await;
        let open = attempts.iter().filter(|a| !a.row.state.is_terminal()).count();
        assert_eq!(open, 0, "{attempts:#?}");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_cancel_in_a_turn_lets_it_finish_and_opens_no_other<W>(play: &Play<W>) {
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let (told, wait) = (begun.clone(), go.clone());
        let work = handler(move |directive| {
            let (begun, go) = (begun.clone(), go.clone());
            async move {
                if directive.turn == 1 {
                    begun.notify_one();
                    go.notified().await;
                }
                Ok(json!({"left": 1}))
            }
        });
        let engine = engine(play, POLL, work).await;
        let job_id = submit(&engine, json!({})).await;
        told.notified().await;
        play.expect_sound().await;
        engine.cancel(job_id, None).await.unwrap();
        wait.notify_one();
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        let attempts = play.attempts(job_id).await;
        assert!(attempts.iter().all(|a| a.key.turn <= 1));
        let closer = attempts.iter().find(|a| a.step_id == "poll/loop" && a.key.turn == 1);
        assert_eq!(closer.unwrap().row.state, StepState::Cancelled);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_retry_in_a_turn_stays_in_its_turn<W>(play: &Play<W>) {
        let tries = Arc::new(AtomicUsize::new(0));
        let work = handler(move |directive| {
            let tries = tries.clone();
            async move {
                if directive.turn == 1 && tries.fetch_add(1, Ordering::SeqCst) == 0 {
                    return Err(Failure::retryable("AGAIN", "once"));
                }
                Ok(json!({"left": 2_u32.saturating_sub(directive.turn)}))
            }
        });
        let engine = engine(play, POLL, work).await;
        let job_id = submit(&engine, json!({})).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        let attempts = play.attempts(job_id).await;
        let seen: Vec<_> = attempts.iter().filter(|a| a.step_id == "poll")
            .map(|a| (a.key.turn, a.key.attempt_no)).collect();
        assert_eq!(seen, [(0, 1), (1, 1), (1, 2), (2, 1)]);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn another_engine_goes_on_with_the_turn_when_one_is_lost<W>(play: &Play<W>) {
        let payload = json!({"turns": 6, "ms": 4});
        let undisturbed = {
            let quiet = Play::<W>::begin().await;
            outputs(&ran(&quiet, LISTS, payload.clone(), counts()).await.attempts)
        };
        let first = engine(play, LISTS, counts()).await;
        let job_id = submit(&first, payload).await;
        let survivor = lose_engines(play, first, (LISTS, counts), 6).await;
        closed(play.store(), job_id).await;
        assert_eq!(outputs(&play.attempts(job_id).await), undisturbed);
        let attempts = play.attempts(job_id).await;
        let loops = attempts.iter().filter(|a| a.step_id == "round/loop" && a.row.state == StepState::Succeeded);
        let dimensions: Vec<_> = loops.map(|a| a.row.ending.unwrap().guid.dimension().unwrap()).collect();
        assert_eq!(dimensions, (0..6).collect::<Vec<_>>(), "whoever was lost");
        survivor.shutdown(GRACE).await.unwrap();
    }

    async fn a_late_turn_is_not_taken_for_one_that_was_delivered_often<W>(play: &Play<W>) {
        let steps = POLL.replace("max: 20", "max: 100");
        let run = ran(play, &steps, json!({"turns": 30}), counts()).await;
        run.succeeded();
        let loops: Vec<_> = run.attempts.iter().filter(|a| a.step_id == "poll/loop").collect();
        assert_eq!(loops.len(), 30);
        assert!(loops.iter().all(|a| !a.row.runs_alone() && a.row.message_deliveries() == Some(1)));
    }
}
