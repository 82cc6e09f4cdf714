//! What an activation of a graph looks at before it runs: expressions that take their time hold up nobody else, a
//! batch inside of a fan-out sees what is around it, and what is gathered may be larger than what a step puts out.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::{Value, json};
use sprag_engine::batch::output;
use sprag_engine::batch::store::BatchPlace;
use sprag_engine::batch::{Item, ItemContext, ItemOutcome};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::EngineConfig;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::JobState;

use crate::graphs::{GRACE, closed, engine, handler, ran, submit};
use crate::on_both_stores;
use crate::play::Play;
use crate::pull::builder;
use crate::world::World;

/// Lists that differ in their last element only, compared so many times.
fn slow(rounds: usize) -> Value {
    let (mut one, other): (Vec<u32>, Vec<u32>) = (vec![7; 20_000], vec![7; 20_000]);
    one[19_999] = 8;
    json!({"rounds": vec![0; rounds], "one": one, "other": other})
}

on_both_stores! {
    async fn an_expression_that_takes_its_time_holds_up_no_other_job<W>(play: &Play<W>) {
        const SLOW: usize = 12;
        let begun = Arc::new(AtomicUsize::new(0));
        let count = begun.clone();
        let work = Handler::new(move |payload: Value, _: Directive, _: Context| {
            let before = match payload["quick"].as_bool() {
                Some(_) => count.load(Ordering::SeqCst),
                None => count.fetch_add(1, Ordering::SeqCst),
            };
            async move { Ok::<_, Failure>(json!(before)) }
        });
        let steps = "
  - step_id: a
    when: has(input.quick) || input.rounds.all(r, input.one != input.other)
    service: work
";
        let engine = engine(play, steps, work).await;
        let mut jobs = Vec::new();
        for _ in 0..SLOW {
            jobs.push(submit(&engine, slow(1_000)).await);
        }
        let quick = submit(&engine, json!({"quick": true})).await;
        assert_eq!(closed(play.store(), quick).await.row.state, JobState::Succeeded);
        let before: usize = play.attempts(quick).await[0].output.as_deref().unwrap().parse().unwrap();
        assert!(before < SLOW, "it came after all that were slow");
        for job_id in jobs {
            assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        }
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_batch_inside_of_a_fan_out_reads_what_is_around_it<W>(play: &Play<W>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("in.jsonl"), "5\n6\n").unwrap();
        let text = json!({"protocol_id": "graph.v1", "request_types": ["GRAPH"], "steps": [
            {"step_id": "split", "service": "work"},
            {"step_id": "each", "for_each": "[1, 2]", "service": "items",
                "batch": {"items": "steps.split.output.list"}},
            {"step_id": "lines", "for_each": "[3, 4]", "service": "items", "batch": {
                "file": "steps.split.output.file",
                "out": {"file": "steps.split.output.out + string(item)"}}},
        ]});
        let split = handler(|_| async {
            Ok(json!({"list": ["a", "b", "c"], "file": "in.jsonl", "out": "out."}))
        });
        let config = EngineConfig { files: Some(folder.path().to_owned()), ..EngineConfig::default() };
        let items = |item: Item, _: &ItemContext<'_>| Ok(ItemOutcome::Success(item.value));
        let engine = builder(play).await.config(config)
            .protocol(Protocol::read(&text.to_string()).unwrap())
            .service("work", 1, split).batch_service("items", 2, items)
            .start().await.unwrap();
        let job_id = submit(&engine, json!({})).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        let attempts = play.attempts(job_id).await;
        for attempt in attempts.iter().filter(|attempt| attempt.step_id == "each") {
            let place = BatchPlace::from(&attempt.key);
            let out = output::page(play.store(), place, 0, 10).await.unwrap();
            let out: Vec<_> = out.into_iter().filter_map(|item| item.output).collect();
            assert_eq!(out, ["\"a\"", "\"b\"", "\"c\""]);
        }
        for name in ["out.3", "out.4"] {
            assert_eq!(std::fs::read_to_string(folder.path().join(name)).unwrap(), "5\n6\n");
        }
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn what_is_gathered_may_be_larger_than_what_a_step_puts_out<W>(play: &Play<W>) {
        let steps = "
  - {step_id: each, for_each: 'input.pages.map(p, {\"page\": p, \"text\": input.text})', service: work}
  - {step_id: after, service: work}
";
        let work = handler(|directive| async move {
            Ok(match &directive.item {
                Some(item) => json!({"text": item["text"], "of": item["page"]}),
                None => json!(directive.inputs["each"].as_array().map(Vec::len)),
            })
        });
        let pages: Vec<u32> = (0..400).collect();
        let run = ran(play, steps, json!({"pages": pages, "text": "x".repeat(3_000)}), work).await;
        run.succeeded();
        assert_eq!(run.output("after"), json!(400));
        assert_eq!(run.output("each/gather")[399]["of"], json!(399));
    }

    async fn a_list_of_items_that_is_too_large_fails_its_fan_out<W>(play: &Play<W>) {
        let steps = "
  - {step_id: each, for_each: 'input.pages.map(p, input.text)', service: work}
";
        let pages: Vec<u32> = (0..1_000).collect();
        let payload = json!({"pages": pages, "text": "x".repeat(9_000)});
        let run = ran(play, steps, payload, crate::graphs::echo()).await;
        assert_eq!((run.job.row.state, run.error()), (JobState::FailedFinal, "INPUT_TOO_LARGE"));
    }

    async fn a_fan_out_that_fails_fast_inside_of_a_tolerant_one_fails_the_job<W>(play: &Play<W>) {
        let work = || handler(|directive| async move {
            match &directive.item {
                Some(item) if *item == json!(3) => Err(Failure::fatal("TOLD", "three")),
                item => Ok(json!(item)),
            }
        });
        for (policy, ends) in [
            ("fail_fast", JobState::FailedFinal),
            ("finish_all", JobState::Succeeded),
        ] {
            let steps = format!("
  - step_id: outer
    for_each: '[[1, 2], [3, 4]]'
    on_failure: {{tolerate: 1}}
    steps:
      - {{step_id: inner, for_each: item, on_failure: {policy}, service: work}}
");
            let played = Play::<W>::begin().await;
            let run = ran(&played, &steps, json!({}), work()).await;
            assert_eq!(run.job.row.state, ends, "{policy}: {:?}", run.job.error);
        }
        assert_eq!(play.store().open_jobs().await.unwrap(), 0);
    }
}
