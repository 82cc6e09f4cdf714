//! Batch steps: many items in one step, committed in order, resumed behind what is committed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::batch::output::{self, OutputItem, SeqOutcome};
use sprag_engine::batch::store::{
    BatchOutcome, BatchPlace, BatchPoint, BatchWrite, Batches, JournalRow,
};
use sprag_engine::batch::{Item, ItemContext, ItemFailure, ItemOutcome};
use sprag_engine::directive::Failure;
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::explain::{Seen, explain};
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{EndOutcome, FinishOutcome, Held, JobView, Store};
use sprag_engine::worker::Handler;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{JobState, State, StepState};
use sprag_lanes::{Counts, Resume};

use crate::on_both_stores;
use crate::play::Play;
use crate::pull::builder;
use crate::world::{World, is_fenced};

const GRACE: Duration = Duration::from_secs(10);

/// A protocol of three steps, the second of them a batch with this key.
fn protocol(batch: &Value) -> Protocol {
    let definition = json!({"protocol_id": "pages.v1", "request_types": ["PAGES"], "steps": [
        {"step_id": "split", "service": "split"},
        {"step_id": "pages", "service": "pages", "batch": batch,
            "retry": {"backoff": ["1ms"], "max_losses": 1000}},
        {"step_id": "tell", "service": "tell"},
    ]});
    Protocol::read(&definition.to_string()).unwrap()
}

fn of_split(more: &Value) -> Value {
    let mut batch = json!({"items": "steps.split.output.pages"});
    batch.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    batch
}

/// As many pages as the payload says.
fn split() -> Handler {
    Handler::new(|input: Value, _, _| async move {
        let pages: Vec<_> = (0..input["n"].as_u64().unwrap()).map(|n| json!({"page": n})).collect();
        Ok::<_, Failure>(json!({"pages": pages}))
    })
}

fn tell() -> Handler {
    Handler::new(|_: Value, directive, _| async move {
        Ok::<_, Failure>(directive.inputs["pages"].clone())
    })
}

/// An engine whose batch service does this with each item.
async fn engine<W: World>(
    play: &Play<W>,
    batch: &Value,
    handler: impl Fn(Item, &ItemContext<'_>) -> Result<ItemOutcome, ItemFailure> + Send + Sync + 'static,
) -> Engine<W::Store> {
    let builder = builder(play).await.protocol(protocol(batch));
    started(builder, handler).await
}

async fn started<S: Store>(
    builder: EngineBuilder<S>,
    handler: impl Fn(Item, &ItemContext<'_>) -> Result<ItemOutcome, ItemFailure> + Send + Sync + 'static,
) -> Engine<S> {
    let builder = builder.service("split", 4, split()).service("tell", 4, tell());
    builder.batch_service("pages", 2, handler).start().await.unwrap()
}

/// Doubles the page, skips every tenth, fails where it is told to.
fn double(fails: u64) -> impl Fn(Item, &ItemContext<'_>) -> Result<ItemOutcome, ItemFailure> {
    move |item, _| {
        let page = item.value["page"].as_u64().unwrap();
        assert_eq!(page, item.seq);
        match page {
            page if page == fails => Err(ItemFailure::input("torn")),
            page if page % 10 == 9 => Ok(ItemOutcome::Skip("blank".to_owned())),
            page => Ok(ItemOutcome::Success(json!({"twice": page * 2, "key": item.effect_key}))),
        }
    }
}

const NONE: u64 = u64::MAX;

async fn submit<S: Store>(engine: &Engine<S>, n: u64) -> JobId {
    let envelope = json!({"tenant_id": "t1", "request_type": "PAGES", "input_ref": "in",
        "output_ref": "out", "payload": {"n": n, "file": "in.jsonl", "out": "made/out.jsonl"},
        "schema_version": "1"});
    engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id
}

async fn closed<S: Store>(store: &S, job_id: JobId) -> JobView {
    for _ in 0..4_000 {
        let job = store.job(job_id).await.unwrap().unwrap();
        if job.row.state.is_terminal() {
            return job;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the job does not close: {:?}", store.attempts(job_id).await);
}

fn place(job_id: JobId) -> BatchPlace {
    BatchPlace { job_id, step_index: 1, branch: 0, turn: 0 }
}

async fn put_out<S: Store>(store: &S, job_id: JobId) -> Vec<OutputItem> {
    output::page(store, place(job_id), 0, 1_000_000).await.unwrap()
}

/// What the batch step has put out, or what it says of its failure.
async fn batch_output<S: Store>(store: &S, job_id: JobId) -> Value {
    let attempts = store.attempts(job_id).await.unwrap();
    let last = attempts.iter().rfind(|attempt| attempt.step_id == "pages").unwrap();
    serde_json::from_str(last.output.as_deref().unwrap()).unwrap()
}

on_both_stores! {
    async fn e1_a_job_with_a_batch_of_100_items_succeeds_and_its_output_is_in_order<W>(play: &Play<W>) {
        let engine = engine(play, &of_split(&json!({})), double(NONE)).await;
        let job_id = submit(&engine, 100).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        let items = put_out(play.store(), job_id).await;
        assert_eq!(items.iter().map(|item| item.seq).collect::<Vec<_>>(), (0..100).collect::<Vec<_>>());
        assert_eq!((items[9].outcome, &items[9].output), (SeqOutcome::Skip, &None));
        let last: Value = serde_json::from_str(items[98].output.as_ref().unwrap()).unwrap();
        assert_eq!(last, json!({"twice": 196, "key": format!("{job_id}/1/0/0/98")}));
        let page = output::page(play.store(), place(job_id), 37, 5).await.unwrap();
        assert_eq!(page, items[37..42]);
        let said = batch_output(play.store(), job_id).await;
        assert_eq!(said["success"], 90);
        assert_eq!((&said["skip"], &said["fail"], &said["out"]), (&json!(10), &json!(0), &json!("table")));
        let attempts = play.attempts(job_id).await;
        let told: Value = serde_json::from_str(attempts[2].output.as_ref().unwrap()).unwrap();
        assert_eq!(told, said, "the next step sees what the batch amounts to");
        // R15: the message that ends the attempt is there once, and carries its digits.
        assert_eq!(play.digits(&attempts[1].key).await,
            ("001111000000001".to_owned(), Some("000011000000001".to_owned())));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn e6_one_failed_item_fails_the_job_or_is_tolerated<W>(play: &Play<W>) {
        let strict = engine(play, &of_split(&json!({"on_failure": "any_fail"})), double(17)).await;
        let job_id = submit(&strict, 30).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::FailedFinal);
        let error = job.error.unwrap();
        assert_eq!(error.code, "BATCH_ITEMS_FAILED");
        assert!(error.message.contains("1 of 30 items") && error.message.contains("seq 17"), "{error:?}");
        assert_eq!(put_out(play.store(), job_id).await.len(), 30, "the others are committed");
        strict.shutdown(GRACE).await.unwrap();
    }

    async fn e6_tolerated_failures_are_in_the_summary<W>(play: &Play<W>) {
        let engine = engine(play, &of_split(&json!({"on_failure": {"tolerate": 1}})), double(17)).await;
        let job_id = submit(&engine, 30).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        let said = batch_output(play.store(), job_id).await;
        assert_eq!((&said["fail"], &said["first_failed"]), (&json!(1), &json!(17)));
        let rows = play.store().batch_journal(place(job_id), 17, 1).await.unwrap();
        assert!(rows[0].notes.contains("torn") && rows[0].notes.contains("NON_RETRYABLE_INPUT"));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn e5_an_illegal_transition_fails_the_step_with_its_snapshot_and_nothing_else<W>(play: &Play<W>) {
        let breaks = Arc::new(AtomicBool::new(false));
        let told = breaks.clone();
        let handler = move |item: Item, context: &ItemContext<'_>| {
            if item.seq == 13 && told.load(Ordering::SeqCst) {
                context.break_ledger();
            }
            Ok(ItemOutcome::Success(item.value))
        };
        let engine = engine(play, &of_split(&json!({"threads": 1})), handler).await;
        let other = submit(&engine, 200).await;
        assert_eq!(closed(play.store(), other).await.row.state, JobState::Succeeded);
        breaks.store(true, Ordering::SeqCst);
        let job_id = submit(&engine, 201).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::FailedFinal);
        assert_eq!(job.error.as_ref().unwrap().code, "SEQ_ILLEGAL_TRANSITION");
        assert_eq!(job.row.attempts_total, 2, "nobody tries again");
        let kept = batch_output(play.store(), job_id).await;
        assert_eq!(kept["refusal"]["error_code"], "SEQ_ILLEGAL_TRANSITION");
        assert!(kept["snapshot"]["next_commit_seq"].as_u64().unwrap() <= 13, "{kept}");
        let told = explain(&Seen::of(&job, &play.attempts(job_id).await), job.updated_at);
        assert!(told.happened.iter().any(|line| line.contains("next_commit_seq")), "{told:?}");
        // The process lives, and others are not concerned.
        breaks.store(false, Ordering::SeqCst);
        let next = submit(&engine, 202).await;
        assert_eq!(closed(play.store(), next).await.row.state, JobState::Succeeded);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn an_empty_batch_and_one_of_a_file_end_without_a_last_commit<W>(play: &Play<W>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("in.jsonl"), pages(40, "\n")).unwrap();
        let batch = json!({"file": "input.file", "out": {"file": "input.out"}});
        let config = EngineConfig {
            poll: Duration::from_millis(5),
            takeover: Duration::from_secs(1_000_000),
            files: Some(folder.path().to_owned()),
            ..EngineConfig::default()
        };
        let builder = builder(play).await.config(config).protocol(protocol(&batch));
        let engine = started(builder, double(NONE)).await;
        let job_id = submit(&engine, 1).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        let items = put_out(play.store(), job_id).await;
        let lines: String = items.iter().filter_map(|item| Some(item.output.clone()? + "\n")).collect();
        let written = std::fs::read_to_string(folder.path().join("made/out.jsonl")).unwrap();
        assert_eq!((items.len(), written), (40, lines));
        let said = batch_output(play.store(), job_id).await;
        assert!(said["out"]["file"].as_str().unwrap().ends_with("made/out.jsonl"), "{said}");
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_batch_without_items_succeeds<W>(play: &Play<W>) {
        let engine = engine(play, &of_split(&json!({})), double(NONE)).await;
        let job_id = submit(&engine, 0).await;
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        assert_eq!(put_out(play.store(), job_id).await, []);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_stopped_engine_keeps_the_prefix_and_the_next_one_goes_on_behind_it<W>(play: &Play<W>) {
        let (reached, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (r, g) = (reached.clone(), gate.clone());
        let slow = move |item: Item, context: &ItemContext<'_>| {
            r.fetch_max(item.seq, Ordering::SeqCst);
            while item.seq >= 500 && !g.load(Ordering::SeqCst) {
                if context.should_end() {
                    return Err(ItemFailure::transient("the run ends"));
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(ItemOutcome::Success(item.value))
        };
        let first = engine(play, &of_split(&json!({})), slow).await;
        let job_id = submit(&first, 2_000).await;
        while reached.load(Ordering::SeqCst) < 500 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.shutdown(GRACE).await.unwrap();
        let before = play.store().batch(place(job_id)).await.unwrap().unwrap();
        let cursor = before.point.resume.cursor;
        assert!(cursor <= 500 && before.attempt_no == 1);
        assert_eq!(play.job(job_id).await.row.state, JobState::InProgress);

        let lowest = Arc::new(AtomicU64::new(u64::MAX));
        let low = lowest.clone();
        let handler = move |item: Item, _: &ItemContext<'_>| {
            low.fetch_min(item.seq, Ordering::SeqCst);
            Ok(ItemOutcome::Success(item.value))
        };
        let second = engine(play, &of_split(&json!({})), handler).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        assert_eq!(lowest.load(Ordering::SeqCst), cursor, "nothing committed is computed again");
        let pages: Vec<_> = put_out(play.store(), job_id).await.into_iter()
            .map(|item| item.output.unwrap()).collect();
        assert_eq!(pages, (0..2_000).map(|n| format!("{{\"page\":{n}}}")).collect::<Vec<_>>());
        second.shutdown(GRACE).await.unwrap();
    }

    async fn a_cancel_keeps_the_prefix_and_gives_every_other_item_an_outcome<W>(play: &Play<W>) {
        let go = Arc::new(AtomicBool::new(false));
        let gate = go.clone();
        let reached = Arc::new(AtomicU64::new(0));
        let at = reached.clone();
        let handler = move |item: Item, _: &ItemContext<'_>| {
            at.fetch_max(item.seq, Ordering::SeqCst);
            while item.seq >= 300 && !gate.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(ItemOutcome::Success(item.value))
        };
        let engine = engine(play, &of_split(&json!({})), handler).await;
        let job_id = submit(&engine, 20_000).await;
        let cursor = async || {
            let batch = play.store().batch(place(job_id)).await.unwrap();
            batch.map_or(0, |batch| batch.point.resume.cursor)
        };
        while reached.load(Ordering::SeqCst) < 300 || cursor().await == 0 {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let kept = usize::try_from(cursor().await).unwrap();
        assert_eq!(engine.cancel(job_id, None).await.unwrap(), JobState::Cancelling);
        go.store(true, Ordering::SeqCst);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        let batch = play.store().batch(place(job_id)).await.unwrap().unwrap();
        let Counts { success, cancel, .. } = batch.point.resume.counts;
        assert_eq!((success + cancel, batch.point.resume.cursor), (20_000, 20_000));
        // What was claimed and not begun below 300 is cancelled too; what was committed before stays.
        assert!(success > 0 && cancel > 0, "{success} succeeded, {cancel} were cancelled");
        let items = put_out(play.store(), job_id).await;
        let first = items.iter().position(|item| item.outcome == SeqOutcome::Cancel).unwrap();
        assert!(first >= kept, "{kept} were committed before the cancel, {first} after it");
        assert!(items[..first].iter().all(|item| item.outcome == SeqOutcome::Success));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn items_that_changed_under_a_committed_prefix_are_refused<W>(play: &Play<W>) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("in.jsonl");
        std::fs::write(&path, pages(3_000, "")).unwrap();
        let config = || EngineConfig {
            poll: Duration::from_millis(5),
            takeover: Duration::from_secs(1_000_000),
            files: Some(folder.path().to_owned()),
            ..EngineConfig::default()
        };
        let batch = json!({"file": "input.file"});
        let reached = Arc::new(AtomicBool::new(false));
        let at = reached.clone();
        let slow = move |item: Item, context: &ItemContext<'_>| {
            while item.seq > 2_000 && !context.should_end() {
                at.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            if item.seq > 2_000 { Err(ItemFailure::transient("ends")) } else { Ok(ItemOutcome::Success(item.value)) }
        };
        let first = started(builder(play).await.config(config()).protocol(protocol(&batch)), slow).await;
        let job_id = submit(&first, 1).await;
        let moved = async || {
            let batch = play.store().batch(place(job_id)).await.unwrap();
            batch.is_some_and(|batch| batch.point.resume.cursor > 0)
        };
        while !(reached.load(Ordering::SeqCst) && moved().await) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        first.shutdown(GRACE).await.unwrap();
        std::fs::write(&path, pages(3_000, "\"new\"\n")).unwrap();
        let second = started(builder(play).await.config(config()).protocol(protocol(&batch)), double(NONE)).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::FailedFinal);
        assert_eq!(job.error.unwrap().code, "PLAN_CHANGED");
        second.shutdown(GRACE).await.unwrap();
    }

    async fn r15_the_last_commit_and_the_message_that_ends_the_attempt_are_one<W>(play: &Play<W>) {
        let (mut held, point) = opened(play).await;
        let first = committed(&held, point, 3, None);
        assert_eq!(commit(play, &first).await, COMMITTED);
        let end = Play::<W>::result_write(&held, Report::Succeeded);
        let last = BatchWrite { end: Some(end.clone()), ..committed(&held, first.to, 2, None) };
        // The guard of the message does not hold: nothing of the commit is written.
        let mut wrong = last.clone();
        wrong.end.as_mut().unwrap().version += 1;
        assert_eq!(commit(play, &wrong).await, BatchOutcome::Stale);
        assert_eq!(cursor(play, &held).await, 3);
        assert_eq!(commit(play, &last).await, COMMITTED);
        assert_eq!(cursor(play, &held).await, 5);
        // Said again, it is known; as a new word, it is stale. One message ended the attempt.
        assert_eq!(commit(play, &BatchWrite { repeats: true, ..last.clone() }).await, COMMITTED);
        assert_eq!(commit(play, &last).await, BatchOutcome::Stale);
        assert_eq!(play.end_as(play.engine, end.clone()).await.unwrap(), EndOutcome::Stale);
        held.attempt.version = end.version + 1;
        held.attempt.ledger = end.ledger;
        held.attempt.ending = Some(end.ending);
        assert!(matches!(play.finish(&held).await, FinishOutcome::Done { job: JobState::Succeeded, .. }));
    }

    async fn the_older_of_two_attempts_commits_nothing<W>(play: &Play<W>) {
        let (old, point) = opened(play).await;
        let prefix = committed(&old, point, 4, None);
        assert_eq!(commit(play, &prefix).await, COMMITTED);
        // Its engine is taken for dead; the next attempt takes up the batch.
        let mut lost = old.clone();
        let write = Play::<W>::lost_write(&lost).unwrap();
        assert!(matches!(play.end(&mut lost, write).await, EndOutcome::Entered { .. }));
        assert_eq!(commit(play, &committed(&old, prefix.to, 1, None)).await, BatchOutcome::Stale, "over");
        play.finish(&lost).await;
        play.store().due(play.engine, 10).await.unwrap();
        let mut new = play.claim().await;
        play.dispatch(&mut new).await;
        let lease = new.attempt.lease_id.unwrap();
        let again = play.store().open_batch(play.engine, new.key, lease).await.unwrap().unwrap();
        assert_eq!(again, prefix.to, "it goes on behind what is committed");
        let old_lease = old.attempt.lease_id.unwrap();
        assert_eq!(play.store().open_batch(play.engine, old.key, old_lease).await.unwrap(), None);
        assert_eq!(commit(play, &committed(&old, again, 1, None)).await, BatchOutcome::Stale);
        assert_eq!(commit(play, &committed(&new, again, 2, None)).await, COMMITTED);
        assert_eq!(cursor(play, &new).await, 6);
        play.report(&mut new, Report::Succeeded).await;
        play.finish(&new).await;
    }

    async fn of_racing_commits_at_one_cursor_one_is_written_and_a_lost_answer_is_found<W>(play: &Play<W>) {
        let (mut held, point) = opened(play).await;
        let write = committed(&held, point, 2, None);
        let racing = (0..8).map(|_| play.store().commit_batch(play.engine, write.clone()));
        let outcomes = crate::play::join_all(racing).await;
        let written = outcomes.into_iter().filter(|o| *o.as_ref().unwrap() == COMMITTED).count();
        assert_eq!((written, cursor(play, &held).await), (1, 2));
        assert_eq!(commit(play, &BatchWrite { repeats: true, ..write }).await, COMMITTED);
        assert_eq!(cursor(play, &held).await, 2);
        play.report(&mut held, Report::Succeeded).await;
        play.finish(&held).await;
    }

    async fn a_dead_engine_commits_nothing_and_a_cancel_is_told<W>(play: &Play<W>) {
        let (held, point) = opened(play).await;
        play.cancel(held.key.job_id).await.unwrap();
        let write = committed(&held, point, 2, None);
        assert_eq!(commit(play, &write).await, BatchOutcome::Committed { cancelling: true });
        let heir = play.store().join("heir").await.unwrap();
        let mut orphans = play.store().take_over(play.engine, heir).await.unwrap();
        let late = committed(&held, write.to, 2, None);
        assert!(is_fenced(&play.store().commit_batch(play.engine, late).await));
        let lease = held.attempt.lease_id.unwrap();
        assert!(is_fenced(&play.store().open_batch(play.engine, held.key, lease).await));
        let mut held = orphans.pop().unwrap();
        let end = Play::<W>::lost_write(&held).unwrap();
        held.attempt.version = match play.end_as(heir, end.clone()).await.unwrap() {
            EndOutcome::Entered { version } => version,
            EndOutcome::Stale => panic!("nobody else ended it"),
        };
        held.attempt.ledger = end.ledger;
        held.attempt.ending = Some(end.ending);
        let finish = play.finish_write(&held, false).unwrap();
        play.finish_as(heir, finish).await.unwrap();
        assert_eq!(play.job(held.key.job_id).await.row.state, JobState::Cancelled);
    }

    async fn the_audit_finds_a_cursor_that_is_not_its_journal_and_a_gap_in_it<W>(play: &Play<W>) {
        let (mut held, point) = opened(play).await;
        let first = committed(&held, point, 3, None);
        commit(play, &first).await;
        let second = committed(&held, first.to, 2, None);
        commit(play, &second).await;
        let found = async |name: &str| {
            let checks = play.store().audit().await.unwrap();
            checks.into_iter().find(|check| check.name.contains(name)).unwrap().violations.len()
        };
        assert_eq!((found("cursor_is_not").await, found("journal_with_gaps").await), (0, 0));
        play.world.execute("UPDATE batch_journal SET seqs = 1 WHERE first_seq = 0").await.unwrap();
        assert_eq!((found("cursor_is_not").await, found("journal_with_gaps").await), (1, 1));
        play.world.execute("UPDATE batch_journal SET seqs = 3 WHERE first_seq = 0").await.unwrap();
        play.report(&mut held, Report::Succeeded).await;
        play.finish(&held).await;
        assert_eq!(play.attempts(held.key.job_id).await[0].row.state, StepState::Succeeded);
    }
}

/// A file of so many pages, with this behind each line.
fn pages(count: u64, behind: &str) -> String {
    let lines: Vec<_> = (0..count).map(|n| format!("{{\"page\":{n}}}\n{behind}")).collect();
    lines.concat()
}

const COMMITTED: BatchOutcome = BatchOutcome::Committed { cancelling: false };

/// A job of one step whose attempt has opened its batch.
pub async fn opened<W: World>(play: &Play<W>) -> (Held, BatchPoint) {
    play.create(1).await;
    let mut held = play.claim().await;
    play.dispatch(&mut held).await;
    let lease = held.attempt.lease_id.unwrap();
    let point = play.store().open_batch(play.engine, held.key, lease).await.unwrap().unwrap();
    assert_eq!(point, BatchPoint::default());
    (held, point)
}

/// So many successes behind this point.
pub fn committed(held: &Held, from: BatchPoint, seqs: u64, total: Option<u64>) -> BatchWrite {
    let cursor = from.resume.cursor + seqs;
    let counts = Counts { success: cursor, ..Counts::default() };
    let outputs: Vec<String> = (from.resume.cursor..cursor).map(|seq| format!("{seq}\n")).collect();
    let outputs = outputs.concat();
    let out_bytes = from.out_bytes + outputs.len() as u64;
    let resume = Resume { cursor, counts, outcome_hash: cursor, input_hash: [7; 32] };
    let journal = JournalRow {
        first_seq: from.resume.cursor,
        seqs,
        outcomes: format!("{seqs}S"),
        notes: String::new(),
        outputs,
    };
    BatchWrite {
        key: held.key,
        lease_id: held.attempt.lease_id.unwrap(),
        from: from.resume.cursor,
        to: BatchPoint { resume, first_failed: None, out_bytes },
        total,
        journal: Some(journal),
        end: None,
        repeats: false,
    }
}

async fn commit<W: World>(play: &Play<W>, write: &BatchWrite) -> BatchOutcome {
    play.store().commit_batch(play.engine, write.clone()).await.unwrap()
}

async fn cursor<W: World>(play: &Play<W>, held: &Held) -> u64 {
    let batch = play.store().batch((&held.key).into()).await.unwrap().unwrap();
    batch.point.resume.cursor
}
