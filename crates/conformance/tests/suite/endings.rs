//! Every construct of a graph with obligations that are parked, against a failure elsewhere in the job and against a
//! cancel: nothing starts any more, what is parked is closed, and the job ends without waiting for it. A batch that
//! is at work drains as any attempt does, and what it has committed stays.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sprag_conformance::bus::{Faults, TestBus};
use sprag_engine::batch::store::BatchView;
use sprag_engine::batch::{Item, ItemContext, ItemFailure, ItemOutcome, OutputRun};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::ids::JobId;
use sprag_engine::outbound::{Answer, Call};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{AttemptView, Store};
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{JobState, OutboxState, State, StepState};
use sprag_lanes::Counts;
use tokio::sync::Notify;

use crate::deeds::Then;
use crate::graphs::{GRACE, closed, submit};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::world::World;

/// How often an engine looks after the child of a step; see `sprag_engine::child`.
const LOOK_MS: i64 = 60_000;

/// A construct, and how many of its attempts are parked under which names once it has come to rest.
struct Construct {
    steps: &'static str,
    parked: &'static [(&'static str, usize)],
}

/// Each beside a step that is told when to fail.
const CONSTRUCTS: &[Construct] = &[
    // needs and when: a join, and a step whose condition nobody asks any more.
    Construct {
        steps: "
  - {step_id: rest, needs: [], sleep: 1h}
  - {step_id: both, needs: [rest, bad], service: work}
  - {step_id: maybe, needs: [rest], when: 'true', service: work}
",
        parked: &[("rest", 1), ("both", 1)],
    },
    // for_each: a branch that sleeps, those that wait for it, and the closer.
    Construct {
        steps: "
  - {step_id: each, needs: [], for_each: '[1, 2, 3]', max_parallel: 1, steps: [{step_id: rest, sleep: 1h}]}
",
        parked: &[("rest", 3), ("each/gather", 1)],
    },
    Construct {
        steps: "
  - step_id: outer
    needs: []
    for_each: '[1, 2]'
    steps:
      - {step_id: inner, for_each: '[1, 2]', max_parallel: 1, steps: [{step_id: rest, sleep: 1h}]}
",
        parked: &[("rest", 4), ("inner/gather", 2), ("outer/gather", 1)],
    },
    // repeat: between two turns.
    Construct {
        steps: "
  - {step_id: spin, needs: [], repeat: {while: 'true', max: 5, delay: 1h}, service: work}
",
        parked: &[("spin", 1), ("spin/loop", 1)],
    },
    Construct {
        steps: "  - {step_id: ask, needs: [], wait: {signal: go}}\n",
        parked: &[("ask", 1)],
    },
    Construct {
        steps: "  - {step_id: ask, needs: [], wait: {signal: go, timeout: 1h}}\n",
        parked: &[("ask", 1)],
    },
    Construct { steps: "  - {step_id: rest, needs: [], sleep: 1h}\n", parked: &[("rest", 1)] },
    // What has failed and waits to be tried again.
    Construct {
        steps: "
  - {step_id: flaky, needs: [], service: work, retry: {backoff: [1h]}}
  - {step_id: command, needs: [], exec: {command: [sh, -c, 'exit 1']}, retry: {backoff: [1h]}}
  - {step_id: call, needs: [], http: {method: GET, url: 'http://example.org/'}, retry: {backoff: [1h]}}
",
        parked: &[("flaky", 1), ("command", 1), ("call", 1)],
    },
    // A directive that the bus has refused, and that waits to be published again.
    Construct {
        steps: "  - {step_id: letter, needs: [], service: outside, retry: {backoff: [1h]}}\n",
        parked: &[("letter", 1)],
    },
    // A batch that has committed a prefix and then failed.
    Construct { steps: FAILING, parked: &[("items", 1)] },
];

/// A batch whose commits fail behind the first items, and one whose do not.
const FAILING: &str = "
  - step_id: items
    needs: []
    service: items
    batch: {items: '[0, 1, 2, 3, 4, 5]', out: handler}
    retry: {backoff: [1h]}
  - {step_id: after, needs: [items], service: work}
";
const SOUND: &str = "
  - {step_id: items, needs: [], service: items, batch: {items: '[0, 1, 2, 3, 4, 5]'}}
  - {step_id: after, needs: [items], service: work}
";
/// How many items those are, and how many of them are first: the others wait until they are let go.
const ITEMS: u64 = 6;
const FIRST: u64 = 3;

/// The step that fails when it is told to.
const BAD: &str = "  - {step_id: bad, needs: [], service: work, retry: {max_attempts: 1}}\n";

/// A child that sleeps.
const FAMILY: &str = "  - {step_id: child, needs: [], job: {request_type: CHILD, input: '1'}}\n";

/// What a test and the handlers of its engine tell each other.
#[derive(Default)]
struct Cues {
    /// The step that fails has begun.
    begun: Notify,
    /// It may fail.
    go: Notify,
    /// The items of a batch behind the first may go on.
    items: AtomicBool,
}

fn work(cues: Arc<Cues>) -> Handler {
    Handler::new(move |_: Value, directive: Directive, mut context: Context| {
        let cues = cues.clone();
        async move {
            match directive.step_id.as_str() {
                "bad" => {
                    cues.begun.notify_one();
                    tokio::select! {
                        () = cues.go.notified() => {}
                        () = context.stopped() => {}
                    }
                    Err(Failure::fatal("TOLD", "on purpose"))
                }
                "flaky" => Err(Failure::retryable("FLAKY", "not now")),
                _ => Ok(json!(1)),
            }
        }
    })
}

fn compute(cues: Arc<Cues>) -> impl Fn(Item, &ItemContext<'_>) -> Result<ItemOutcome, ItemFailure> {
    move |item, context| {
        while item.seq >= FIRST && !cues.items.load(Ordering::SeqCst) {
            if context.should_end() {
                return Err(ItemFailure::transient("the run ends"));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        // So long that lanes take them one by one.
        std::thread::sleep(Duration::from_millis(10));
        Ok(ItemOutcome::Success(item.value))
    }
}

async fn engine<W: World>(play: &Play<W>, steps: &str, cues: &Arc<Cues>) -> Engine<W::Store> {
    let read =
        |text: &str| Protocol::read(text).unwrap_or_else(|refusal| panic!("{refusal}: {text}"));
    let graph =
        read(&format!("protocol_id: graph.v1\nrequest_types: [GRAPH]\nsteps:\n{BAD}{steps}"));
    let child = read(
        "protocol_id: child.v1\nrequest_types: [CHILD]\nsteps:\n  - {step_id: rest, sleep: 2h}\n",
    );
    let config =
        EngineConfig { poll: Duration::from_millis(10), exec: Some(2), ..EngineConfig::default() };
    play.world.execute(W::TABLES).await.unwrap();
    let output = |run: OutputRun| {
        let seqs = (run.items[0].seq, run.items[run.items.len() - 1].seq);
        W::work(&format!("{seqs:?}"), if seqs.1 < FIRST { Then::Ends } else { Then::Fails })
    };
    EngineBuilder::new(play.world.reopen().await.unwrap())
        .config(config)
        .http(Arc::new(|_: &Call| Ok(Answer { status: 503, body: Vec::new() })))
        .protocol(graph)
        .protocol(child)
        .service(SERVICE, 8, work(cues.clone()))
        .transactional_batch_service("items", 1, compute(cues.clone()), output)
        .bus(&["outside"], Arc::new(TestBus::new(1, Faults { refuse: 100, ..Faults::default() })))
        .start()
        .await
        .unwrap()
}

/// Whether it is an obligation that nobody works on: it waits for others, for its time or for a signal.
fn is_parked(attempt: &AttemptView) -> bool {
    let waits = attempt.countdown > 0 || attempt.timer_at.is_some() || attempt.waits_for.is_some();
    let is_open = matches!(
        attempt.row.state,
        StepState::Pending | StepState::FailedRetry | StepState::Dispatching
    );
    is_open && waits && attempt.owner.is_none() && !attempt.is_ready && attempt.row.ending.is_none()
}

/// Waits until so many are parked, and returns them.
async fn parked<S: Store>(store: &S, job_id: JobId, wanted: &[(&str, usize)]) -> Vec<AttemptView> {
    for _ in 0..2_000 {
        let mut attempts = store.attempts(job_id).await.unwrap();
        attempts.retain(is_parked);
        let count = |name: &str| attempts.iter().filter(|a| a.step_id == name).count();
        if wanted.iter().all(|(name, wanted)| count(name) == *wanted) {
            return attempts;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("{wanted:?} are not parked: {:#?}", store.attempts(job_id).await);
}

/// The batch of a step, if it has one.
async fn batch<S: Store>(store: &S, of: &AttemptView) -> Option<BatchView> {
    store.batch((&of.key).into()).await.unwrap()
}

/// Waits until the first items of the job's batch are committed and returns it.
async fn begun_batch<S: Store>(store: &S, job_id: JobId) -> BatchView {
    for _ in 0..2_000 {
        let attempts = store.attempts(job_id).await.unwrap();
        if let Some(items) = attempts.iter().find(|attempt| attempt.step_id == "items")
            && let Some(batch) = batch(store, items).await
            && batch.point.resume.cursor == FIRST
        {
            return batch;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("nothing is committed: {:#?}", store.attempts(job_id).await);
}

/// Waits until the step that fails has failed, which leaves the job its verdict.
async fn failed<W: World>(play: &Play<W>, job_id: JobId) {
    loop {
        let attempts = play.attempts(job_id).await;
        let bad = attempts.iter().find(|attempt| attempt.step_id == "bad").unwrap();
        if bad.row.state.is_terminal() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(play.job(job_id).await.row.verdict, Some(JobState::FailedFinal));
    play.expect_sound().await;
}

/// Lets a job of this construct come to rest, ends it, and looks at what became of those that were parked.
async fn ends<W: World>(construct: &Construct, cancels: bool) {
    let play = Play::<W>::begin().await;
    let cues = Arc::new(Cues::default());
    let engine = engine(&play, construct.steps, &cues).await;
    let job_id = submit(&engine, json!({})).await;
    cues.begun.notified().await;
    if construct.steps == FAILING {
        begun_batch(play.store(), job_id).await;
        cues.items.store(true, Ordering::SeqCst);
    }
    let waited = parked(play.store(), job_id, construct.parked).await;
    play.expect_sound().await;
    if cancels {
        engine.cancel(job_id, None).await.unwrap();
    }
    cues.go.notify_one();
    let job = closed(play.store(), job_id).await;
    let verdict = if cancels { JobState::Cancelled } else { JobState::FailedFinal };
    assert_eq!(job.row.state, verdict, "{}", construct.steps);
    if !cancels {
        assert_eq!(job.error.unwrap().code, "TOLD", "{}", construct.steps);
    }
    let after = play.attempts(job_id).await;
    for before in &waited {
        let found = after.iter().find(|attempt| attempt.key == before.key).unwrap();
        assert_eq!(found.row.state, StepState::Cancelled, "{found:?}");
        assert_eq!(found.row.outbox, before.row.outbox.map(|_| OutboxState::FailedFinal));
        let cursor = batch(play.store(), found).await.map(|batch| batch.point.resume.cursor);
        assert_eq!(cursor, (before.step_id == "items").then_some(FIRST), "what it had committed");
    }
    assert_eq!(after.iter().filter(|attempt| is_parked(attempt)).count(), 0);
    engine.shutdown(GRACE).await.unwrap();
    play.expect_sound().await;
}

/// What came of the batch of a job that has ended: its only attempt, and what is committed.
async fn drained<W: World>(play: &Play<W>, job_id: JobId) -> (AttemptView, BatchView) {
    let mut attempts = play.attempts(job_id).await;
    let after = attempts.iter().find(|attempt| attempt.step_id == "after");
    let is_begun = after.is_some_and(|after| after.row.state == StepState::Succeeded);
    assert!(!is_begun, "nothing follows");
    attempts.retain(|attempt| attempt.step_id == "items");
    let batch = batch(play.store(), &attempts[0]).await.unwrap();
    assert_eq!(attempts.len(), 1, "it is not tried again");
    (attempts.remove(0), batch)
}

on_both_stores! {
    async fn a_failure_elsewhere_closes_what_is_parked_in_every_construct<W>(play: &Play<W>) {
        for construct in CONSTRUCTS {
            ends::<W>(construct, false).await;
        }
        play.expect_sound().await;
    }

    async fn a_cancel_closes_what_is_parked_in_every_construct<W>(play: &Play<W>) {
        for construct in CONSTRUCTS {
            ends::<W>(construct, true).await;
        }
        play.expect_sound().await;
    }

    async fn a_failure_elsewhere_ends_the_child_that_a_step_waits_for_and_then_the_job<W>(play: &Play<W>) {
        let cues = Arc::new(Cues::default());
        let engine = engine(play, FAMILY, &cues).await;
        let job_id = submit(&engine, json!({})).await;
        cues.begun.notified().await;
        let child = loop {
            let attempts = play.attempts(job_id).await;
            if let Some(child) = attempts.iter().find_map(|attempt| attempt.child) {
                break child;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        cues.go.notify_one();
        failed(play, job_id).await;
        // The child drains first: it is asked to stop when its parent is next looked after.
        play.clock.advance(LOOK_MS);
        assert_eq!(closed(play.store(), child).await.row.state, JobState::Cancelled);
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "TOLD"));
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_batch_at_work_drains_when_the_job_has_failed_elsewhere_and_nothing_follows<W>(play: &Play<W>) {
        let cues = Arc::new(Cues::default());
        let engine = engine(play, SOUND, &cues).await;
        let job_id = submit(&engine, json!({})).await;
        let before = begun_batch(play.store(), job_id).await;
        cues.go.notify_one();
        failed(play, job_id).await;
        assert_eq!(play.job(job_id).await.row.state, JobState::InProgress, "it waits for the batch");
        cues.items.store(true, Ordering::SeqCst);
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "TOLD"));
        let (attempt, batch) = drained(play, job_id).await;
        assert_eq!(attempt.row.state, StepState::Succeeded);
        assert_eq!((before.attempt_no, before.lease_id), (batch.attempt_no, batch.lease_id));
        assert_eq!(batch.point.resume.counts, Counts { success: ITEMS, ..Counts::default() });
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_batch_that_fails_when_the_job_has_failed_elsewhere_keeps_what_is_committed<W>(play: &Play<W>) {
        let cues = Arc::new(Cues::default());
        let engine = engine(play, FAILING, &cues).await;
        let job_id = submit(&engine, json!({})).await;
        let before = begun_batch(play.store(), job_id).await;
        cues.go.notify_one();
        failed(play, job_id).await;
        cues.items.store(true, Ordering::SeqCst);
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "TOLD"));
        let (attempt, batch) = drained(play, job_id).await;
        assert_eq!(attempt.error.unwrap().code, "BUSY");
        assert_eq!(batch, before);
        engine.shutdown(GRACE).await.unwrap();
    }

    async fn a_batch_at_work_keeps_what_is_committed_when_the_job_is_cancelled<W>(play: &Play<W>) {
        let cues = Arc::new(Cues::default());
        let engine = engine(play, SOUND, &cues).await;
        let job_id = submit(&engine, json!({})).await;
        begun_batch(play.store(), job_id).await;
        engine.cancel(job_id, None).await.unwrap();
        assert_eq!(closed(play.store(), job_id).await.row.state, JobState::Cancelled);
        let (attempt, batch) = drained(play, job_id).await;
        assert_eq!(attempt.row.state, StepState::Cancelled);
        // What was at work gave up when it was told, and the others had no turn.
        let Counts { success, skip, fail, cancel } = batch.point.resume.counts;
        assert_eq!((success, skip, fail + cancel), (FIRST, 0, ITEMS - FIRST));
        assert!(cancel > 0, "{fail} failed");
        engine.shutdown(GRACE).await.unwrap();
    }
}
