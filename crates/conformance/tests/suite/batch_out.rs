//! Where the ordered output of a batch goes besides its journal, who computes its items, and what is told of it
//! on the way.

use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::batch::output::{self, SeqOutcome};
use sprag_engine::batch::store::{BatchPlace, BatchWorked, Batches};
use sprag_engine::batch::{Item, ItemContext, ItemOutcome, OutputRun};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::explain::{Seen, explain};
use sprag_engine::ids::JobId;
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{AttemptView, Store};
use sprag_kernel::JobState;

use crate::batch::{committed, opened};
use crate::deeds::Then;
use crate::graphs::{GRACE, closed, submit};
use crate::on_both_stores;
use crate::play::Play;
use crate::world::World;

const LIMIT: Duration = Duration::from_secs(30);
/// `O_NONBLOCK`: a pipe that nobody reads is not opened for writing.
const NONBLOCK: i32 = 0o4000;

fn builder<S: Store>(store: S, batch: &Value) -> EngineBuilder<S> {
    let step = json!({"step_id": "items", "service": "items", "batch": batch,
        "retry": {"backoff": ["0ms"]}});
    let text = json!({"protocol_id": "graph.v1", "request_types": ["GRAPH"], "steps": [step]});
    let config = EngineConfig { poll: Duration::from_millis(10), ..EngineConfig::default() };
    EngineBuilder::new(store).config(config).protocol(Protocol::read(&text.to_string()).unwrap())
}

fn items(out: &str) -> Value {
    json!({"items": "input.list", "out": out})
}

/// A payload with so many items.
fn list(count: u64) -> Value {
    json!({"list": (0..count).collect::<Vec<u64>>()})
}

/// An engine whose batches put out to a handler: an effect for each run, named for its seqs.
async fn engine<W: World>(
    play: &Play<W>,
    batch: &Value,
    then: impl Fn(&OutputRun) -> Then + Send + Sync + 'static,
) -> Engine<W::Store> {
    let builder = builder(play.world.reopen().await.unwrap(), batch);
    let handler = |item: Item, _: &ItemContext<'_>| match item.seq % 10 {
        9 => Ok(ItemOutcome::Skip("every tenth".to_owned())),
        _ => Ok(ItemOutcome::Success(item.value)),
    };
    let output = move |run: OutputRun| {
        let (first, then) = (run.items[0].seq, then(&run));
        W::work(&format!("{:06}..{:06}", first, first + run.items.len() as u64), then)
    };
    builder.transactional_batch_service("items", 2, handler, output).start().await.unwrap()
}

async fn effects<W: World>(play: &Play<W>) -> Vec<(u64, u64)> {
    let sql = format!("SELECT name FROM {} ORDER BY name", W::EFFECTS);
    let rows = play.world.query(&sql).await.unwrap();
    let range = |mut row: Vec<Option<String>>| {
        let name = row.remove(0).unwrap();
        let (first, end) = name.split_once("..").unwrap();
        (first.parse().unwrap(), end.parse().unwrap())
    };
    rows.into_iter().map(range).collect()
}

/// The runs follow one another without a gap; returns where they end.
fn joined(runs: &[(u64, u64)]) -> u64 {
    runs.iter().fold(0, |next, (first, end)| {
        assert_eq!(*first, next, "{runs:?}");
        *end
    })
}

fn place(job_id: JobId) -> BatchPlace {
    BatchPlace { job_id, step_index: 0, branch: 0, turn: 0 }
}

async fn attempt<S: Store>(store: &S, job_id: JobId) -> AttemptView {
    store.attempts(job_id).await.unwrap().pop().unwrap()
}

on_both_stores! {
    async fn an_output_handler_writes_each_run_in_the_transaction_that_commits_it<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let engine = engine(play, &items("handler"), |_| Then::Ends).await;
        let job_id = submit(&engine, list(5_000)).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        let runs = effects(play).await;
        assert_eq!(joined(&runs), 5_000);
        let rows = play.store().batch_journal(place(job_id), 0, 10_000).await.unwrap();
        let journal: Vec<_> = rows.iter().map(|row| (row.first_seq, row.first_seq + row.seqs)).collect();
        assert_eq!(runs, journal, "one work for each commit");
        let said: Value = serde_json::from_str(&attempt(play.store(), job_id).await.output.unwrap()).unwrap();
        assert_eq!((&said["out"], &said["skip"]), (&json!("handler"), &json!(500)));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn work_that_fails_takes_its_commit_with_it_and_the_next_attempt_goes_on<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let failed = Arc::new(AtomicBool::new(false));
        let once = failed.clone();
        let then = move |run: &OutputRun| {
            let is_last = run.items.iter().any(|item| item.seq == 4_999);
            if is_last && !once.swap(true, Ordering::SeqCst) { Then::Fails } else { Then::Ends }
        };
        let engine = engine(play, &items("handler"), then).await;
        let job_id = submit(&engine, list(5_000)).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        let attempts = play.attempts(job_id).await;
        assert_eq!(attempts[0].error.as_ref().unwrap().code, "BUSY");
        assert_eq!((attempts.len(), attempts[1].row.losses), (2, 0), "it counts as an attempt");
        assert_eq!(joined(&effects(play).await), 5_000);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn work_that_can_never_be_written_fails_the_step_for_good<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let engine = engine(play, &items("handler"), |_| Then::Violates).await;
        let job_id = submit(&engine, list(100)).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "WORK_FAILED"));
        assert_eq!(job.row.attempts_total, 1);
        assert_eq!(effects(play).await, []);
        assert_eq!(play.store().batch(place(job_id)).await.unwrap().unwrap().point.resume.cursor, 0);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_service_without_an_output_handler_cannot_have_such_a_batch<W>(play: &Play<W>) {
        let engine = builder(play.world.reopen().await.unwrap(), &items("handler"))
            .batch_service("items", 2, |item, _| Ok(ItemOutcome::Success(item.value)))
            .start().await.unwrap();
        let job_id = submit(&engine, list(3)).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "SERVICE_MISMATCH"));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_commit_with_work_is_made_once_and_is_known_when_it_is_repeated<W>(play: &Play<W>) {
        play.world.execute(W::TABLES).await.unwrap();
        let (mut held, point) = opened(play).await;
        let mut write = committed(&held, point, 3, None);
        let commit = async |write: &sprag_engine::batch::store::BatchWrite, then| {
            let work = W::work("000000..000003", then);
            play.store().commit_batch_with(play.engine, write.clone(), work, LIMIT).await.unwrap()
        };
        for then in [Then::Fails, Then::Violates, Then::Panics, Then::RollsBack] {
            let worked = commit(&write, then).await;
            assert!(matches!(worked, BatchWorked::Failed(_)), "{then:?}: {worked:?}");
            assert_eq!(effects(play).await, [], "{then:?}");
        }
        assert!(matches!(commit(&write, Then::Ends).await, BatchWorked::Committed { cancelling: false }));
        assert_eq!(effects(play).await, [(0, 3)]);
        assert!(matches!(commit(&write, Then::Ends).await, BatchWorked::Stale), "the cursor has moved");
        write.repeats = true;
        assert!(matches!(commit(&write, Then::Ends).await, BatchWorked::Committed { .. }), "its answer was lost");
        assert_eq!(effects(play).await, [(0, 3)]);
        play.report(&mut held, sprag_kernel::decide::callback::Report::Succeeded).await;
        play.finish(&held).await;
    }

    async fn a_command_computes_the_items_of_a_batch<W>(play: &Play<W>) {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("in.jsonl"), "1\n2\n\"odd\"\n4\n").unwrap();
        let script = "read line; case $line in *odd*) echo no >&2; exit 65;; esac; echo \"$line\"";
        let step = json!({"step_id": "items", "exec": {"command": ["sh", "-c", script]},
            "batch": {"file": "'in.jsonl'", "on_failure": {"tolerate": 1}, "out": {"file": "'out.jsonl'"}}});
        let text = json!({"protocol_id": "graph.v1", "request_types": ["GRAPH"], "steps": [step]});
        let files = Some(folder.path().to_owned());
        let config = EngineConfig { exec: Some(2), files, poll: Duration::from_millis(10), ..EngineConfig::default() };
        let engine = EngineBuilder::new(play.world.reopen().await.unwrap())
            .config(config)
            .protocol(Protocol::read(&text.to_string()).unwrap())
            .start().await.unwrap();
        let job_id = submit(&engine, json!({})).await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        let found = output::page(play.store(), place(job_id), 0, 10).await.unwrap();
        let outcomes: Vec<_> = found.iter().map(|item| item.outcome).collect();
        assert_eq!(outcomes, [SeqOutcome::Success, SeqOutcome::Success, SeqOutcome::Fail, SeqOutcome::Success]);
        let last: Value = serde_json::from_str(found[3].output.as_ref().unwrap()).unwrap();
        assert_eq!((&last["item"], &last["seq"]), (&json!(4), &json!(3)));
        assert_eq!(last["effect_key"], json!(format!("{job_id}/0/0/0/3")));
        let rows = play.store().batch_journal(place(job_id), 0, 10).await.unwrap();
        let notes: String = rows.iter().map(|row| row.notes.as_str()).collect();
        assert!(notes.contains("EXIT_65: no") && notes.contains("NON_RETRYABLE_INPUT"), "{notes}");
        let written = std::fs::read_to_string(folder.path().join("out.jsonl")).unwrap();
        assert_eq!(written.lines().count(), 3);
        engine.shutdown(GRACE).await.unwrap();
    }

    /// On its last retry the command's end was taken for the item's own failure.
    async fn a_command_that_is_ended_with_its_engine_is_run_again_though_it_has_no_retries<W>(play: &Play<W>) {
        let folder = tempfile::tempdir().unwrap();
        let (begun, go) = (folder.path().join("begun"), folder.path().join("go"));
        let script = format!("touch {}; while [ ! -e {} ]; do sleep 0.01; done", begun.display(), go.display());
        let step = json!({"step_id": "items", "exec": {"command": ["sh", "-c", script]},
            "batch": {"items": "[1, 2]", "retries": 0}, "retry": {"max_attempts": 1}});
        let text = json!({"protocol_id": "graph.v1", "request_types": ["GRAPH"], "steps": [step]});
        let start = async || {
            let config = EngineConfig { exec: Some(2), poll: Duration::from_millis(10), ..EngineConfig::default() };
            let builder = EngineBuilder::new(play.world.reopen().await.unwrap()).config(config);
            builder.protocol(Protocol::read(&text.to_string()).unwrap()).start().await.unwrap()
        };
        let first = start().await;
        let job_id = submit(&first, json!({})).await;
        while !begun.exists() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        first.shutdown(GRACE).await.unwrap();
        assert_eq!(play.job(job_id).await.row.state, JobState::InProgress);
        std::fs::write(&go, "").unwrap();
        let second = start().await;
        let job = closed(play.store(), job_id).await;
        assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
        second.shutdown(GRACE).await.unwrap();
    }

    async fn an_attempt_that_was_superseded_before_it_began_leaves_the_file_as_it_is<W>(play: &Play<W>) {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let lines = (0..40).map(|n| n.to_string() + "\n").collect::<String>();
        let step = json!({"step_id": "items", "service": "items",
            "batch": {"file": "input.file", "out": {"file": "input.out"}},
            "retry": {"backoff": ["0ms"], "max_attempts": 50}, "timeouts": {"step": "1s"}});
        let text = json!({"protocol_id": "graph.v1", "request_types": ["GRAPH"], "steps": [step]});
        let config = EngineConfig {
            poll: Duration::from_millis(10),
            files: Some(folder.path().to_owned()),
            ..EngineConfig::default()
        };
        let handler = |item: Item, _: &ItemContext<'_>| Ok(ItemOutcome::Success(item.value));
        let engine = EngineBuilder::new(play.world.reopen().await.unwrap())
            .config(config).protocol(Protocol::read(&text.to_string()).unwrap())
            .batch_service("items", 60, handler).start().await.unwrap();
        // The first attempt stands still at its items, a pipe that nobody writes to, until its time is over; the
        // second one finds a file in its place. Whether the first has got there shows when somebody writes.
        for n in 0.. {
            assert!(n < 20, "the first attempt never came to the pipe in time");
            let (file, pipe, out) = (format!("{n}.in"), format!("{n}.pipe"), format!("{n}.out"));
            assert!(Command::new("mkfifo").arg(path(&file)).status().unwrap().success());
            std::fs::write(path("file"), &lines).unwrap();
            let job_id = submit(&engine, json!({"file": file, "out": out})).await;
            while play.store().batch(place(job_id)).await.unwrap().is_none() {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            std::fs::rename(path(&file), path(&pipe)).unwrap();
            std::fs::rename(path("file"), path(&file)).unwrap();
            let job = closed(play.store(), job_id).await;
            assert_eq!(job.row.state, JobState::Succeeded, "{:?}", job.error);
            let mut how = OpenOptions::new();
            let Ok(mut pipe) = how.write(true).custom_flags(NONBLOCK).open(path(&pipe)) else { continue };
            pipe.write_all(lines.as_bytes()).unwrap();
            drop(pipe);
            engine.shutdown(GRACE).await.unwrap();
            assert_eq!(std::fs::read_to_string(path(&out)).unwrap(), lines);
            break;
        }
    }

    async fn explain_tells_how_far_a_batch_is<W>(play: &Play<W>) {
        let (reached, go) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (at, gate) = (reached.clone(), go.clone());
        let handler = move |item: Item, _: &ItemContext<'_>| {
            at.fetch_max(item.seq, Ordering::SeqCst);
            while item.seq >= 300 && !gate.load(Ordering::SeqCst) {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(ItemOutcome::Success(item.value))
        };
        let engine = builder(play.world.reopen().await.unwrap(), &items("table"))
            .batch_service("items", 2, handler)
            .start().await.unwrap();
        let job_id = submit(&engine, list(2_000)).await;
        let batch = loop {
            let found = play.store().attempts(job_id).await.unwrap().pop().and_then(|attempt| attempt.batch);
            if let Some(batch) = found.filter(|batch| batch.cursor > 0 && reached.load(Ordering::SeqCst) >= 300) {
                break batch;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        };
        assert_eq!((batch.total, batch.counts.success), (Some(2_000), batch.cursor));
        let story = async || {
            let (job, attempts) = (play.job(job_id).await, play.attempts(job_id).await);
            explain(&Seen::of(&job, &attempts), job.updated_at).happened.join("\n")
        };
        let told = story().await;
        assert!(told.contains("of 2000 items committed"), "{told}");
        go.store(true, Ordering::SeqCst);
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Succeeded);
        let told = story().await;
        assert!(told.contains("Its batch has 2000 of 2000 items committed (2000 succeeded), in "), "{told}");
        engine.shutdown(GRACE).await.unwrap();
    }
}
