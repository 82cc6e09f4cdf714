//! Random graphs under random crashes: whatever engines are lost on the way, every job ends as it does when
//! nobody is lost, with the same outputs at every place. Graphs are made from seeds out of needs, when,
//! for_each, repeat, sleep and job; steps fail once, or for good where a fan-out tolerates it.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};
use sprag_engine::directive::{Directive, Failure};
use sprag_engine::engine::{Engine, EngineBuilder, EngineConfig};
use sprag_engine::graph::place;
use sprag_engine::ids::JobId;
use sprag_engine::protocol::{Protocol, Step};
use sprag_engine::store::Store;
use sprag_engine::worker::{Context, Handler};
use sprag_kernel::{JobState, State};

use crate::graphs::{GRACE, lose_engines_of, outputs};
use crate::on_both_stores;
use crate::play::{Play, SERVICE};
use crate::world::World;

/// How many graphs there are, each from its own seed.
const GRAPHS: u64 = 50;
/// After how many of them the audit is asked while the others go on.
const AUDITED: u64 = 5;
/// How many engines are lost while they run.
const LOSSES: i64 = 8;
/// After how many looks, 5 ms apart, a job counts as one that never ends: a busy machine may stand still for a minute.
const LOOKS: u32 = 48_000;
/// The most steps of one list, and how deep lists are nested.
const MOST_STEPS: u64 = 4;
const DEEPEST: u32 = 2;

/// A xorshift generator: the same seed is the same graph.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }
}

/// Where a list of steps is.
#[derive(Clone)]
struct Around {
    name: String,
    depth: u32,
    is_branch: bool,
    is_turn: bool,
    tolerates: bool,
}

fn steps(random: &mut Random, around: &Around) -> Value {
    let count = 1 + random.below(MOST_STEPS);
    let mut list = Vec::new();
    for n in 0..count {
        let name = format!("{}{n}", around.name);
        let mut step = step(random, &name, around);
        // What fails for good is told by its name, and only where it is tolerated.
        let may_fail = around.tolerates && step == json!({"service": SERVICE});
        let fails = if may_fail && random.one_in(3) { "x" } else { "" };
        if random.one_in(2) {
            let needs: Vec<Value> = list
                .iter()
                .filter(|_| random.one_in(2))
                .map(|s: &Value| s["step_id"].clone())
                .collect();
            step["needs"] = json!(needs);
        }
        if random.one_in(4) {
            step["when"] = json!(condition(random, around));
        }
        step["step_id"] = json!(name + fails);
        list.push(step);
    }
    json!(list)
}

fn condition(random: &mut Random, around: &Around) -> &'static str {
    match random.below(4) {
        0 if around.is_branch => "item % 2 == 0",
        1 if around.is_turn => "turn < 1",
        2 => "input.n % 3 != 1",
        _ => "input.n % 2 == 0",
    }
}

fn step(random: &mut Random, name: &str, around: &Around) -> Value {
    let may_nest = around.depth < DEEPEST;
    let inside = Around { name: format!("{name}_"), depth: around.depth + 1, ..around.clone() };
    match random.below(10) {
        0 => json!({"sleep": "5ms"}),
        1 => json!({"job": {"request_type": "CHILD", "input": "{'n': input.n}"}}),
        2..=4 if may_nest => {
            let items: Vec<u64> = (0..random.below(4)).collect();
            let mut fan = json!({"for_each": format!("{items:?}")});
            if random.one_in(3) {
                fan["max_parallel"] = json!(1 + random.below(2));
            }
            let tolerates = random.one_in(3);
            if tolerates {
                fan["on_failure"] = json!({"tolerate": 1_000});
            }
            body(random, &mut fan, &Around { is_branch: true, tolerates, ..inside });
            fan
        }
        5 | 6 if may_nest && !around.is_turn => {
            let turns = random.below(3);
            let condition = format!("turn < {turns}");
            let mut cycle = json!({"repeat": {"while": condition, "max": turns + 1}});
            body(random, &mut cycle, &Around { is_turn: true, ..inside });
            cycle
        }
        _ => json!({"service": SERVICE}),
    }
}

/// What is in a scope: a list, or the step itself.
fn body(random: &mut Random, step: &mut Value, around: &Around) {
    if random.one_in(3) {
        step["service"] = json!(SERVICE);
    } else {
        step["steps"] = steps(random, around);
    }
}

fn protocol(id: &str, request_type: &str, steps: &Value) -> Protocol {
    let text = json!({"protocol_id": id, "request_types": [request_type], "steps": steps});
    let text = text.to_string();
    let mut protocol = Protocol::read(&text).unwrap_or_else(|refusal| panic!("{refusal}: {text}"));
    protocol.steps.iter_mut().for_each(at_once);
    protocol
}

/// A backoff is a time, which is not what is tried here.
fn at_once(step: &mut Step) {
    // Around a list of steps nothing is tried.
    if step.steps.is_empty() {
        step.retry.backoff = Some(vec![0]);
    }
    step.steps.iter_mut().for_each(at_once);
}

fn graph(seed: u64) -> Protocol {
    let (name, depth) = ("s".to_owned(), 0);
    let job = Around { name, depth, is_branch: false, is_turn: false, tolerates: false };
    let steps = steps(&mut Random::new(seed), &job);
    protocol(&format!("random-{seed}.v1"), &format!("R{seed}"), &steps)
}

/// Says what it was handed; fails once at every third place, and where its name says so.
fn work() -> Handler {
    Handler::new(|_: Value, directive: Directive, _: Context| async move {
        // So long that engines are lost with it.
        tokio::time::sleep(Duration::from_millis(8)).await;
        let place = directive.branch + u64::from(directive.turn + directive.step_index);
        if directive.step_id.ends_with('x') && directive.index.unwrap_or(0).is_multiple_of(2) {
            return Err(Failure::fatal("TOLD", "as its name says"));
        }
        if place.is_multiple_of(3) && directive.attempt_no == 1 {
            return Err(Failure::retryable("ONCE", "the first attempt fails"));
        }
        let at = (place::show(directive.branch), directive.turn);
        Ok(
            json!({"step": directive.step_id, "at": at, "item": directive.item, "saw": directive.inputs}),
        )
    })
}

async fn engine<W: World>(play: &Play<W>) -> Engine<W::Store> {
    let config = EngineConfig {
        poll: Duration::from_millis(10),
        beat: Duration::from_millis(40),
        takeover: Duration::from_secs(3_600),
        ..EngineConfig::default()
    };
    let mut builder = EngineBuilder::new(play.world.reopen().await.unwrap()).config(config);
    let child =
        json!([{"step_id": "one", "service": SERVICE}, {"step_id": "two", "service": SERVICE}]);
    builder = builder.protocol(protocol("child.v1", "CHILD", &child));
    for seed in 0..GRAPHS {
        builder = builder.protocol(graph(seed));
    }
    builder.service(SERVICE, 8, work()).start().await.unwrap()
}

async fn submit_all<S: Store>(engine: &Engine<S>) -> Vec<JobId> {
    let mut jobs = Vec::new();
    for seed in 0..GRAPHS {
        let envelope = json!({
            "tenant_id": "t1", "request_type": format!("R{seed}"), "input_ref": "in",
            "output_ref": "out", "payload": {"n": seed}, "schema_version": "1",
        });
        jobs.push(engine.submit(envelope.to_string().as_bytes()).await.unwrap().job_id);
    }
    jobs
}

type Ends = BTreeMap<u64, (JobState, BTreeMap<(String, u64, u32), Option<String>>)>;

/// Waits for all of them; time passes meanwhile, so that sleeps end.
async fn ends<W: World>(play: &Play<W>, jobs: &[JobId]) -> Ends {
    let mut ends = Ends::new();
    for (seed, job_id) in (0..).zip(jobs) {
        if seed % AUDITED == 0 {
            play.expect_sound().await;
        }
        let mut looks = 0;
        let state = loop {
            let state = play.job(*job_id).await.row.state;
            if state.is_terminal() {
                break state;
            }
            looks += 1;
            assert!(
                looks < LOOKS,
                "graph {seed} does not end: {:#?}",
                play.attempts(*job_id).await
            );
            play.clock.advance(10);
            tokio::time::sleep(Duration::from_millis(5)).await;
        };
        ends.insert(seed, (state, outputs(&play.attempts(*job_id).await)));
    }
    ends
}

on_both_stores! {
    async fn random_graphs_end_alike_whoever_is_lost<W>(play: &Play<W>) {
        let undisturbed = {
            let quiet = Play::<W>::begin().await;
            let engine = engine(&quiet).await;
            let jobs = submit_all(&engine).await;
            let ends = ends(&quiet, &jobs).await;
            engine.shutdown(GRACE).await.unwrap();
            quiet.expect_sound().await;
            ends
        };
        let succeeded = undisturbed.values().filter(|(state, _)| *state == JobState::Succeeded).count();
        assert_eq!(succeeded as u64, GRAPHS, "what fails is tolerated");
        let first = engine(play).await;
        let jobs = submit_all(&first).await;
        let survivor = lose_engines_of(play, first, LOSSES, async || engine(play).await).await;
        let disturbed = ends(play, &jobs).await;
        for (seed, end) in &disturbed {
            assert_eq!(end, &undisturbed[seed], "graph {seed}");
        }
        let lost = play.world.query("SELECT CAST(count(*) AS text) FROM attempt WHERE losses > 0").await.unwrap();
        let lost: u32 = lost[0][0].as_deref().unwrap().parse().unwrap();
        assert!(lost > 0, "nobody was lost in the middle of anything");
        survivor.shutdown(GRACE).await.unwrap();
    }
}
