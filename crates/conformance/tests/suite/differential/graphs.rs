//! Graphs: protocols with every construct, and the next move of an attempt of one, planned as an engine plans it.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_engine::child::{LOOK_MS, depth_below};
use sprag_engine::graph::duties::End;
use sprag_engine::graph::sight::Finding;
use sprag_engine::graph::{CONTROL, Graph, Kind};
use sprag_engine::ids::{EngineNo, JobId, Place};
use sprag_engine::plan;
use sprag_engine::protocol::Protocol;
use sprag_engine::signals::{Decision, Signal, WaitWrite};
use sprag_engine::store::{
    DispatchWrite, FinishWrite, HandOff, Held, JobFacts, NewChild, NewJob, NewStep, Store,
};
use sprag_kernel::decide::rows::{EndingKind, LeaseId};
use sprag_kernel::keys::DedupKey;
use sprag_kernel::{Refusal, StepState};

use super::Both;
use super::command::Command;
use crate::play::{facts, new_job};

/// The name of every signal.
const SIGNAL: &str = "go";
/// How long an attempt waits for its child.
const CHILD_MS: u64 = 90_000;

const FAN: &str = "
  - {step_id: list, service: work}
  - {step_id: each, for_each: '[1, 2, 3]', max_parallel: 2, on_failure: {tolerate: 1}, steps: [
      {step_id: x, service: work, limit: {max: 2, key: item}}, {step_id: y, service: work}]}
  - {step_id: beside, needs: [list], service: work, priority: 1, retry: {backoff: [1s], max_attempts: 2}}
  - {step_id: last, needs: [each, beside], service: work}
";

const SPIN: &str = "
  - {step_id: spin, repeat: {while: turn < 2, max: 5, delay: 1s}, service: work}
  - {step_id: nap, needs: [], sleep: 5s}
  - {step_id: last, needs: [spin, nap], service: work}
";

const ASK: &str = "
  - {step_id: ask, needs: [], wait: {signal: go, timeout: 60s, on_timeout: succeed}}
  - {step_id: more, needs: [], wait: {signal: go}}
  - {step_id: maybe, needs: [ask], when: input.content == 'a', service: work}
  - {step_id: last, needs: [maybe, more], service: work}
";

const FAMILY: &str = "
  - {step_id: child, job: {request_type: CHILD, input: '{\"n\": 1}'}, retry: {max_attempts: 2, backoff: [1s]}}
  - {step_id: beside, needs: [], service: work, retry: {max_attempts: 1}}
  - {step_id: last, needs: [child, beside], service: work}
";

const RATE: &str = "
  - {step_id: one, needs: [], service: work, limit: {max: 1, key: tenant, rate: {max: 1, per: 2s}}}
  - {step_id: two, needs: [], when: input.content == 'a', service: work}
  - {step_id: last, needs: [one, two], service: work, limit: {max: 1}}
";

/// The protocols of graphs, by name.
const PROTOCOLS: [(&str, &str); 5] =
    [("fan.v1", FAN), ("spin.v1", SPIN), ("ask.v1", ASK), ("family.v1", FAMILY), ("rate.v1", RATE)];

/// A protocol as jobs are pinned to it.
pub struct Pinned {
    pub graph: Arc<Graph>,
    pub definition: String,
    steps: Arc<[NewStep]>,
}

/// All protocols of graphs.
pub fn all() -> BTreeMap<String, Arc<Pinned>> {
    let pinned = |(id, steps): (&str, &str)| {
        let definition = format!("protocol_id: {id}\nrequest_types: [GRAPH]\nsteps:{steps}");
        let graph = Protocol::read(&definition).unwrap().graph().unwrap();
        assert!(!graph.is_sequence());
        let (steps, graph) = (graph.new_steps(), Arc::new(graph));
        (id.to_owned(), Arc::new(Pinned { graph, definition, steps }))
    };
    PROTOCOLS.into_iter().map(pinned).collect()
}

impl Pinned {
    pub fn new_job(&self, facts: JobFacts) -> NewJob {
        NewJob {
            gates: self.graph.gates(&facts),
            facts: Arc::new(facts),
            steps: self.steps.clone(),
            is_graph: true,
            not_before: None,
            enter: false,
        }
    }

    /// Steps 1 to 3 of a message.
    pub fn finish(&self, held: &Held) -> Result<FinishWrite, Refusal> {
        let state = match held.attempt.ending.map(|ending| ending.kind) {
            Some(EndingKind::Success) => StepState::Succeeded,
            Some(EndingKind::Skip) => StepState::Skipped,
            Some(_) | None => StepState::FailedFinal,
        };
        let end = End {
            place: held.key.place(),
            state,
            output: held.output.as_deref(),
            item: held.item.as_deref(),
            facts: &held.facts,
        };
        let duties = self.graph.duties(&end, &self.steps)?;
        let is_tolerated = self.graph.scope_of(held.key.step_index).tolerates;
        let policy = &self.graph.node(held.key.step_index).policy;
        plan::finish_in_graph(held, policy, (duties, is_tolerated))
    }
}

/// The child of an attempt: a sequence of one step.
fn child_of(held: &Held) -> Option<NewJob> {
    let key = &held.key;
    let mut facts = facts(&held.facts.tenant_id, None, &JobId::new().to_string());
    let dedup_key = DedupKey::Child {
        parent: &key.job_id.to_string(),
        step_index: key.step_index,
        branch: key.branch,
        turn: key.turn,
        attempt_no: key.attempt_no,
        depth: depth_below(held).ok()?,
    };
    facts.dedup_key = dedup_key.to_string();
    Some(new_job(facts, 1))
}

impl Both {
    /// A graph of some protocol.
    pub fn new_graph(&mut self) -> NewJob {
        let names: Vec<String> = self.pinned.keys().cloned().collect();
        let name = self.dice.pick(&names).unwrap();
        let content = ["a", "a", "b"][self.dice.roll(3)];
        let mut facts = facts("t1", Some(&JobId::new().to_string()), content);
        facts.priority = i32::try_from(self.dice.roll(2)).unwrap();
        facts.protocol_id.clone_from(&name);
        self.pinned[&name].new_job(facts)
    }

    /// Whether the engine does this attempt itself.
    pub fn is_control(&self, held: &Held) -> bool {
        let pinned = self.pinned.get(&held.facts.protocol_id);
        pinned.is_some_and(|pinned| pinned.graph.node(held.key.step_index).service == CONTROL)
    }

    /// An activation of a graph looks around: it runs, waits, is skipped, or has a child do its work.
    pub async fn look_around(&mut self, engine: EngineNo, mut held: Held) -> Option<Command> {
        let pinned = self.pinned[&held.facts.protocol_id].clone();
        let (job_id, place) = (held.key.job_id, held.key.place());
        let wanted = pinned.graph.wanted(place);
        let places: Vec<(JobId, Place)> = wanted.iter().map(|place| (job_id, *place)).collect();
        let mut seen = BTreeMap::new();
        for (place, end) in wanted.iter().zip(self.sqlite.store().ends(places).await.unwrap()) {
            let Some(end) = end else { continue };
            held.inputs.extend(end.output.clone().map(|output| (place.step_index, output)));
            seen.insert(place.step_index, end);
        }
        self.leases += 1;
        let lease = LeaseId(self.leases);
        match (pinned.graph.finding(&held, &seen), &pinned.graph.node(place.step_index).kind) {
            (Finding::Run, Kind::Wait(wait, _)) if !self.running_waits.contains(&held.key) => {
                let write = WaitWrite {
                    key: held.key,
                    version: held.attempt.version,
                    signal: wait.signal.clone(),
                    timeout_ms: wait.timeout,
                };
                Some(Command::Wait(engine, vec![write]))
            }
            (Finding::Run, _) => {
                let hand_off =
                    if self.is_control(&held) { HandOff::InProcess } else { self.hand_off() };
                let write = dispatch(&pinned.graph, hand_off, &mut held, lease).ok()?;
                let claim_id = claim_of(hand_off);
                Some(Command::Dispatch(engine, vec![DispatchWrite { claim_id, ..write }]))
            }
            (Finding::Child(_), _) => {
                let child = NewChild { job: child_of(&held)?, timeout_ms: Some(CHILD_MS) };
                let write = dispatch(&pinned.graph, HandOff::Pulled, &mut held, lease).ok()?;
                let (child, lease_ms) = (Some(Arc::new(child)), LOOK_MS);
                Some(Command::Dispatch(engine, vec![DispatchWrite { child, lease_ms, ..write }]))
            }
            (Finding::Skip(error), _) => {
                Some(Command::SkipLeg1(engine, (job_id, Some(place)), error))
            }
            (Finding::Fail(..), _) => Some(Command::FailLeg1(engine, (job_id, Some(place)), lease)),
        }
    }

    /// What a node produces: items, another turn, or something.
    pub fn output_of(&mut self, held: &Held) -> Option<String> {
        let pinned = self.pinned.get(&held.facts.protocol_id).cloned();
        match pinned.map(|pinned| pinned.graph.node(held.key.step_index).kind.clone()) {
            Some(Kind::Fan(_)) => {
                Some(["[]", "[7]", "[7,8]", "[7,8,9]"][self.dice.roll(4)].to_owned())
            }
            Some(Kind::Loop(_)) if held.key.turn < 2 && self.dice.roll(2) == 0 => None,
            _ => Some(format!(r#"{{"of":{}}}"#, held.key.step_index)),
        }
    }

    /// Somebody says something to a job.
    pub fn signal(&mut self, engine: EngineNo) -> Option<Command> {
        let job_id = if self.dice.roll(20) == 0 { JobId::new() } else { self.job()? };
        let signal = Signal {
            signal_id: format!("id{}", self.dice.roll(4)),
            name: SIGNAL.to_owned(),
            decision: [Decision::Approve, Decision::Approve, Decision::Reject][self.dice.roll(3)],
            payload: ["1", "1", "2"][self.dice.roll(3)].to_owned(),
            by: Some("somebody".to_owned()),
            reason: None,
        };
        Some(Command::Signal(engine, job_id, Box::new(signal)))
    }
}

/// The claim of a worker that pulls.
pub fn claim_of(hand_off: HandOff) -> Option<String> {
    let is_pulled = matches!(hand_off, HandOff::Pulled | HandOff::PulledUnacked);
    is_pulled.then(|| "claim".to_owned())
}

fn dispatch(
    graph: &Graph,
    hand_off: HandOff,
    held: &mut Held,
    lease: LeaseId,
) -> Result<DispatchWrite, Refusal> {
    let turns = graph.turns_before(held.key.place());
    let policy = &graph.node(held.key.step_index).policy;
    let write = plan::dispatch_to(hand_off, held, lease, policy)?;
    plan::after_turns(held, write, turns)
}
