//! What a node can see when its activation is taken up: which rows it looks at, and what they mean to it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sprag_kernel::{Cause, Code, Refusal, StepState};

use super::{Graph, Kind, Loop, Node, ScopeKind, place};
use crate::batch::keys::BatchPlan;
use crate::expression::{Expression, Sight};
use crate::ids::Place;
use crate::store::{AttemptError, Ended, Held};

/// What becomes of an activation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// It runs.
    Run,
    /// It is skipped: by its condition, or because of what came before it.
    Skip(Option<AttemptError>),
    /// A child job with this payload, as JSON text, does its work.
    Child(String),
    /// It can never run: an expression has no value, or the payload does not fit; the reason.
    Fail(Code, String),
}

impl Graph {
    /// Where a node's rows are, seen from a row of another node: in its own branch, or in one around it. Of
    /// a cycle that is over it sees the last turn.
    fn place_of(&self, node: u32, from: Place) -> Place {
        let (here, there) = (self.scope_of(from.step_index), self.scope_of(node));
        let levels = here.depth.saturating_sub(there.depth);
        let turn = match self.node(node).kind {
            Kind::Loop(_) => place::LAST_TURN,
            _ if there.in_cycle => from.turn,
            _ => 0,
        };
        Place { step_index: node, branch: place::around(from.branch, levels), turn }
    }

    /// The nodes whose outputs a worker is handed. Of what is around a fan-out a branch is handed nothing:
    /// a list that is handed to each of its items would cost its square.
    pub fn inputs(&self, index: u32) -> impl Iterator<Item = u32> {
        let depth = self.scope_of(index).depth;
        let sees = self.node(index).sees.iter().copied();
        sees.filter(move |seen| self.scope_of(*seen).depth == depth)
            .filter(|seen| self.node(*seen).publishes.is_some())
    }

    /// The rows that must be looked at before a node can run.
    pub fn wanted(&self, from: Place) -> Vec<Place> {
        let node = self.node(from.step_index);
        let mut wanted: BTreeSet<u32> = self.inputs(from.step_index).collect();
        wanted.extend(self.before(node));
        for name in node.expressions().flat_map(|e| &e.names().steps) {
            wanted.extend(self.publisher(node, name));
        }
        wanted.into_iter().map(|seen| self.place_of(seen, from)).collect()
    }

    /// The nodes whose ends it waits for: its needs; of a closer, its opener, and what ends a turn.
    fn before(&self, node: &Node) -> Vec<u32> {
        match &node.kind {
            Kind::Gather { fan } => vec![*fan],
            Kind::Loop(closer) => match self.scopes[closer.scope].kind {
                ScopeKind::Turns { begin, end, .. } => vec![begin, end],
                ScopeKind::Job | ScopeKind::Branches { .. } => unreachable!("it closes turns"),
            },
            Kind::Work
            | Kind::Fan(_)
            | Kind::Begin { .. }
            | Kind::Join
            | Kind::Wait(..)
            | Kind::Sleep
            | Kind::Job(..)
            | Kind::Exec(_)
            | Kind::Http(..) => node.needs.clone(),
        }
    }

    /// The node that a step's name means to another. The closer of a cycle looks into the turn, whose output
    /// has the name of the cycle.
    fn publisher(&self, node: &Node, name: &str) -> Option<u32> {
        let named = |seen: &&u32| self.node(**seen).publishes.as_deref() == Some(name);
        let Kind::Loop(closer) = &node.kind else {
            return node.sees.iter().find(named).copied();
        };
        let end = self.turn_end(closer);
        if node.publishes.as_deref() == Some(name) {
            return Some(end);
        }
        self.node(end).sees.iter().chain([&end]).find(named).copied()
    }

    /// The node that ends a turn.
    pub(crate) fn turn_end(&self, closer: &Loop) -> u32 {
        match self.scopes[closer.scope].kind {
            ScopeKind::Turns { end, .. } => end,
            ScopeKind::Job | ScopeKind::Branches { .. } => unreachable!("it closes turns"),
        }
    }

    /// How many turns there were before this one of a cycle, as its closer counts them.
    pub fn turns_before(&self, place: Place) -> u32 {
        if matches!(self.node(place.step_index).kind, Kind::Loop(_)) { place.turn } else { 0 }
    }

    /// Whether it is soon said what becomes of an activation of a node: what is asked has no loop and no pattern.
    pub fn decides_quickly(&self, index: u32) -> bool {
        let node = self.node(index);
        let input = if let Kind::Job(_, input) = &node.kind { Some(input) } else { None };
        node.when.iter().chain(input).all(Expression::is_quick)
    }

    /// What becomes of an activation, from the ends of what it wanted to look at.
    pub fn finding(&self, held: &Held, ends: &BTreeMap<u32, Ended>) -> Finding {
        let node = self.node(held.key.step_index);
        let before = self.before(node);
        let before = || before.iter().filter_map(|need| ends.get(need));
        if let Some(failed) = before().find(|end| has_failed(end)) {
            let reason = failed.error.as_ref().map_or("", |error| error.message.as_str());
            return Finding::Skip(Some(AttemptError {
                code: Cause::PredecessorFailed.name().to_owned(),
                message: format!("a step before this one has failed: {reason}"),
            }));
        }
        if self.opener(node).and_then(|opener| ends.get(&opener)).is_some_and(is_skipped) {
            return Finding::Skip(None);
        }
        match node.when.as_ref().map_or(Ok(true), |when| when.holds(&self.sight(held))) {
            Ok(true) => self.fitting(held),
            Ok(false) => Finding::Skip(None),
            Err(reason) => Finding::Fail(Code::ExpressionFailed, format!("when: {reason}")),
        }
    }

    /// An activation that is let in: what a child is given is known before the child is there.
    fn begin(&self, held: &Held) -> Finding {
        let Kind::Job(_, input) = &self.node(held.key.step_index).kind else { return Finding::Run };
        match input.evaluate(&self.sight(held)) {
            Ok(payload) => Finding::Child(payload.to_string()),
            Err(reason) => Finding::Fail(Code::ExpressionFailed, format!("job.input: {reason}")),
        }
    }

    /// Where the result of a job is: its last steps, by name.
    pub fn results(&self) -> Vec<(String, Place)> {
        let first = Place::from(0);
        let is_last = |index: &u32| match self.scopes[0].kind {
            ScopeKind::Job => self.node(*index).scope == 0 && self.is_last(*index),
            ScopeKind::Branches { .. } | ScopeKind::Turns { .. } => unreachable!("it is the job"),
        };
        let all = 0..u32::try_from(self.nodes().len()).expect("steps are limited");
        all.filter(is_last)
            .map(|index| {
                let node = self.node(index);
                let name = node.publishes.as_ref().unwrap_or(&node.step_id);
                (name.clone(), self.place_of(index, first))
            })
            .collect()
    }

    /// Whether nobody waits for it: it is no opener, whose closer is waited for, and has no followers.
    fn is_last(&self, index: u32) -> bool {
        let node = self.node(index);
        let is_opener = matches!(node.kind, Kind::Fan(_) | Kind::Begin { .. });
        node.followers.is_empty() && !is_opener
    }

    /// The node that has opened what this one closes.
    fn opener(&self, node: &Node) -> Option<u32> {
        match &node.kind {
            Kind::Gather { .. } | Kind::Loop(_) => self.before(node).first().copied(),
            Kind::Work
            | Kind::Fan(_)
            | Kind::Begin { .. }
            | Kind::Join
            | Kind::Wait(..)
            | Kind::Sleep
            | Kind::Job(..)
            | Kind::Exec(_)
            | Kind::Http(..) => None,
        }
    }

    /// It runs if the payload fits.
    fn fitting(&self, held: &Held) -> Finding {
        match self.check_payload(held.key.step_index, &held.facts.payload) {
            Ok(()) => self.begin(held),
            Err(refusal) => Finding::Fail(refusal.code(), refusal.message()),
        }
    }

    /// Refuses a payload that a node must not be handed.
    fn check_payload(&self, index: u32, payload: &str) -> Result<(), Refusal> {
        let node = self.node(index);
        let Some(schema) = &node.payload_schema else { return Ok(()) };
        schema.check_text(payload).map_err(|refusal| refusal.with("step_id", node.step_id.clone()))
    }

    /// Refuses a payload with which a job could not succeed. In a sequence every step is handed it; what a
    /// graph comes to is found when its steps are.
    pub fn check_submitted(&self, payload: &str) -> Result<(), Refusal> {
        let steps = if self.is_sequence { 0..self.nodes.len() } else { 0..0 };
        let index = |index| u32::try_from(index).expect("steps are limited");
        steps.map(index).try_for_each(|index| self.check_payload(index, payload))
    }

    /// What the expressions of a node see. The held attempt has the outputs that were wanted.
    pub fn sight(&self, held: &Held) -> Sight {
        let node = self.node(held.key.step_index);
        let is_in_cycle =
            matches!(node.kind, Kind::Loop(_)) || self.scope_of(held.key.step_index).in_cycle;
        let json = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let steps = node.expressions().flat_map(|expression| &expression.names().steps);
        // A payload may be large, and each branch of a fan-out comes by here.
        let wants_input = node.expressions().any(|e| e.names().variables.contains("input"));
        let output = |name: &String| {
            let index = self.publisher(node, name)?;
            let found = held.inputs.iter().find(|(seen, _)| *seen == index);
            Some((name.clone(), found.map_or(Value::Null, |(_, text)| json(text))))
        };
        Sight {
            input: if wants_input { json(&held.facts.payload) } else { Value::Null },
            tenant: Some(held.facts.tenant_id.clone()),
            steps: steps.filter_map(output).collect(),
            item: held.item.as_deref().map(json),
            index: place::index(held.key.branch),
            turn: is_in_cycle.then_some(held.key.turn),
        }
    }

    /// The rows of the branches that a closer gathers, in the order of the items.
    pub fn gathered(&self, gather: Place, count: u32) -> Vec<Place> {
        let Kind::Gather { fan } = self.node(gather.step_index).kind else {
            unreachable!("only a closer of a fan-out gathers")
        };
        let Kind::Fan(fan) = &self.node(fan).kind else { unreachable!("its opener is a fan-out") };
        let ScopeKind::Branches { end, .. } = self.scopes[fan.scope].kind else {
            unreachable!("a fan-out opens branches")
        };
        let branch = |index| place::branch(gather.branch, index);
        let at =
            |index| self.place_of(end, Place { branch: branch(index), step_index: end, ..gather });
        (0..count).map(at).collect()
    }
}

impl Node {
    /// All that are asked for an activation of it: before it runs, and by its work.
    fn expressions(&self) -> impl Iterator<Item = &Expression> {
        let of_batch = self.batch.iter().flat_map(BatchPlan::expressions);
        self.when.iter().chain(self.expression()).chain(of_batch)
    }

    /// The expression that its work asks for, if it is no batch.
    fn expression(&self) -> Option<&Expression> {
        match &self.kind {
            Kind::Fan(fan) => Some(&fan.items),
            Kind::Job(_, input) => Some(input),
            Kind::Http(_, body) => body.as_ref(),
            Kind::Loop(closer) => Some(&closer.condition),
            Kind::Work
            | Kind::Gather { .. }
            | Kind::Begin { .. }
            | Kind::Join
            | Kind::Wait(..)
            | Kind::Sleep
            | Kind::Exec(_) => None,
        }
    }
}

fn is_skipped(end: &Ended) -> bool {
    end.state == StepState::Skipped
}

/// Whether an end means that its followers have nothing to go on: it failed, or was skipped for that reason.
pub fn has_failed(end: &Ended) -> bool {
    let skipped_for_it = |error: &AttemptError| error.code == Cause::PredecessorFailed.name();
    end.state == StepState::FailedFinal
        || (end.state == StepState::Skipped && end.error.as_ref().is_some_and(skipped_for_it))
}
