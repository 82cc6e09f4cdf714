//! Every construct of a graph with obligations that are parked, against a failure elsewhere in the job and against a
//! cancel: nothing starts any more, what is parked is closed, and the job ends without waiting for it.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_conformance::bus::{Faults, TestBus};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::ids::JobId;
use sprag_engine::outbound::{Answer, Call};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{AttemptView, Store};
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{JobState, OutboxState, State, StepState};
use tokio::sync::Notify;

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
];

/// The step that fails when it is told to.
const BAD: &str = "  - {step_id: bad, needs: [], service: work, retry: {max_attempts: 1}}\n";

/// A child that sleeps.
const FAMILY: &str = "  - {step_id: child, needs: [], job: {request_type: CHILD, input: '1'}}\n";

fn work(begun: Arc<Notify>, go: Arc<Notify>) -> Handler {
    Handler::new(move |_: Value, directive: Directive, mut context: Context| {
        let (begun, go) = (begun.clone(), go.clone());
        async move {
            match directive.step_id.as_str() {
                "bad" => {
                    begun.notify_one();
                    tokio::select! {
                        () = go.notified() => {}
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

async fn engine<W: World>(play: &Play<W>, steps: &str, work: Handler) -> Engine<W::Store> {
    let read =
        |text: &str| Protocol::read(text).unwrap_or_else(|refusal| panic!("{refusal}: {text}"));
    let graph =
        read(&format!("protocol_id: graph.v1\nrequest_types: [GRAPH]\nsteps:\n{BAD}{steps}"));
    let child = read(
        "protocol_id: child.v1\nrequest_types: [CHILD]\nsteps:\n  - {step_id: rest, sleep: 2h}\n",
    );
    let config =
        EngineConfig { poll: Duration::from_millis(10), exec: Some(2), ..EngineConfig::default() };
    EngineBuilder::new(play.world.reopen().await.unwrap())
        .config(config)
        .http(Arc::new(|_: &Call| Ok(Answer { status: 503, body: Vec::new() })))
        .protocol(graph)
        .protocol(child)
        .service(SERVICE, 8, work)
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

/// Lets a job of this construct come to rest, ends it, and looks at what became of those that were parked.
async fn ends<W: World>(construct: &Construct, cancels: bool) {
    let play = Play::<W>::begin().await;
    let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let engine = engine(&play, construct.steps, work(begun.clone(), go.clone())).await;
    let job_id = submit(&engine, json!({})).await;
    begun.notified().await;
    let waited = parked(play.store(), job_id, construct.parked).await;
    play.expect_sound().await;
    if cancels {
        engine.cancel(job_id, None).await.unwrap();
    }
    go.notify_one();
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
    }
    assert_eq!(after.iter().filter(|attempt| is_parked(attempt)).count(), 0);
    engine.shutdown(GRACE).await.unwrap();
    play.expect_sound().await;
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
        let (begun, go) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
        let engine = engine(play, FAMILY, work(begun.clone(), go.clone())).await;
        let job_id = submit(&engine, json!({})).await;
        begun.notified().await;
        let child = loop {
            let attempts = play.attempts(job_id).await;
            if let Some(child) = attempts.iter().find_map(|attempt| attempt.child) {
                break child;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        go.notify_one();
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
        // The child drains first: it is asked to stop when its parent is next looked after.
        play.clock.advance(LOOK_MS);
        assert_eq!(closed(play.store(), child).await.row.state, JobState::Cancelled);
        let job = closed(play.store(), job_id).await;
        assert_eq!((job.row.state, job.error.unwrap().code.as_str()), (JobState::FailedFinal, "TOLD"));
        engine.shutdown(GRACE).await.unwrap();
    }
}
