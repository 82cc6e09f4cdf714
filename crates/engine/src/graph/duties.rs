//! What the end of a node opens and counts down.
//!
//! A follower that waits for this node alone is activated; one that waits for several is parked, and counted
//! down. An opener inserts the rows of its scope, branch by branch, and the closer, parked for as many ends
//! as there are branches. The node that ends a branch counts down the closer and, if only so many branches
//! may be open at a time, the branch that waits for this one.
//!
//! A cycle opens one turn at a time: the rows of its scope and a closer that is parked for the node that ends
//! the turn. The closer of a turn that is followed by another has no output, and opens that one; the closer
//! of the last turn has the output of the cycle, and its end is that of the cycle.

use std::sync::Arc;

use serde_json::Value;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal, StepState};

use super::{Fan, Graph, Kind, ScopeKind, place};
use crate::ids::Place;
use crate::store::{Begins, Duties, JobFacts, NewRow, NewStep};

/// The end of an attempt, as its followers see it.
pub struct End<'a> {
    /// Where.
    pub place: Place,
    /// How.
    pub state: StepState,
    /// JSON text of what it produced.
    pub output: Option<&'a str>,
    /// JSON text of the item of its branch, which the rows of its scope keep.
    pub item: Option<&'a str>,
    /// What never changes about the job: its rows inherit its priority.
    pub facts: &'a JobFacts,
}

/// A turn to open.
struct Turn {
    scope: usize,
    number: u32,
    /// From now to the time its first nodes are due.
    delay_ms: Millis,
}

impl Graph {
    /// The steps of a job, as it is born with them.
    pub fn new_steps(&self) -> Arc<[NewStep]> {
        let step = |index: u32| {
            let node = self.node(index);
            let is_born = self.scopes[0].nodes.contains(&index);
            NewStep {
                step_id: node.step_id.clone(),
                step_type: node.step_type.clone(),
                service: node.service.clone(),
                priority: node.priority,
                delay_ms: node.delay_ms,
                limit: node.gate.as_ref().map(|gate| gate.limit),
                begins: if is_born { self.begins(index) } else { Begins::Unborn },
            }
        };
        (0..u32::try_from(self.nodes.len()).expect("steps are limited")).map(step).collect()
    }

    /// The gate of an attempt at a node; none if its key has no value, which whoever claims it will find.
    pub fn gate(&self, index: u32, facts: &JobFacts, item: Option<&str>) -> Option<String> {
        self.node(index).gate.as_ref()?.gate(facts, item).ok()
    }

    /// The gates of the nodes that a job is born with, by their index; empty if there are none.
    pub fn gates(&self, facts: &JobFacts) -> Vec<Option<String>> {
        if self.nodes.iter().all(|node| node.gate.is_none()) {
            return Vec::new();
        }
        let count = u32::try_from(self.nodes.len()).expect("steps are limited");
        let is_born = |index| self.scopes[0].nodes.contains(&index);
        let gate = |index| is_born(index).then(|| self.gate(index, facts, None)).flatten();
        (0..count).map(gate).collect()
    }

    /// How a node begins when its scope is opened.
    fn begins(&self, index: u32) -> Begins {
        match u32::try_from(self.node(index).needs.len()).expect("steps are limited") {
            0 => Begins::Ready,
            1 => Begins::Dormant,
            several => Begins::Parked(several),
        }
    }

    /// What the end of a node owes to others.
    pub fn duties(&self, end: &End<'_>, steps: &Arc<[NewStep]>) -> Result<Duties, Refusal> {
        let Place { step_index, branch, turn } = end.place;
        let mut duties = Duties { steps: steps.clone(), ..Duties::default() };
        let node = self.node(step_index);
        match &node.kind {
            Kind::Fan(fan) => {
                self.open_branches(fan, end, &mut duties)?;
                return Ok(duties);
            }
            Kind::Begin { scope } => {
                let turn = Turn { scope: *scope, number: 0, delay_ms: 0 };
                self.open_turn(&turn, end, &mut duties);
                return Ok(duties);
            }
            Kind::Loop(closer) if end.state == StepState::Succeeded && end.output.is_none() => {
                let (number, delay_ms) = (turn + 1, closer.delay_ms);
                let turn = Turn { scope: closer.scope, number, delay_ms };
                self.open_turn(&turn, end, &mut duties);
                return Ok(duties);
            }
            Kind::Loop(_)
            | Kind::Work
            | Kind::Gather { .. }
            | Kind::Join
            | Kind::Wait(..)
            | Kind::Sleep
            | Kind::Job(..)
            | Kind::Exec(_)
            | Kind::Http(..) => {}
        }
        // What follows a cycle is outside of its turns.
        let turn = if self.scopes[node.scope].in_cycle { turn } else { 0 };
        for follower in &node.followers {
            let place = Place { step_index: *follower, branch, turn };
            match self.begins(*follower) {
                Begins::Dormant => duties.activates.push(place),
                Begins::Parked(_) => duties.counts_down.push(place),
                Begins::Ready | Begins::Unborn => unreachable!("a follower waits for somebody"),
            }
        }
        match self.scopes[node.scope].kind {
            ScopeKind::Branches { fan, gather, end: last } if last == step_index => {
                let closer = Place { step_index: gather, branch: place::around(branch, 1), turn };
                duties.counts_down.push(closer);
                self.let_in(fan, Place { turn, ..end.place }, &mut duties);
            }
            ScopeKind::Turns { closer, end: last, .. } if last == step_index => {
                duties.counts_down.push(Place { step_index: closer, branch, turn });
            }
            ScopeKind::Job | ScopeKind::Branches { .. } | ScopeKind::Turns { .. } => {}
        }
        Ok(duties)
    }

    /// Opens a turn and parks its closer. A cycle that was skipped or has failed before its first turn has
    /// none, and its closer ends as it did.
    fn open_turn(&self, turn: &Turn, end: &End<'_>, duties: &mut Duties) {
        let ScopeKind::Turns { closer, .. } = self.scopes[turn.scope].kind else {
            unreachable!("a cycle opens turns")
        };
        let is_open = end.state == StepState::Succeeded;
        let nodes = self.scopes[turn.scope].nodes.iter().filter(|_| is_open);
        let row = |step_index: u32, begins: Begins| {
            let node = self.node(step_index);
            let waits = if begins == Begins::Ready { turn.delay_ms } else { 0 };
            NewRow {
                place: Place { step_index, branch: end.place.branch, turn: turn.number },
                gate: self.gate(step_index, end.facts, end.item),
                item: end.item.map(ToOwned::to_owned),
                begins,
                priority: end.facts.priority + node.priority,
                delay_ms: node.delay_ms + waits,
            }
        };
        duties.inserts.extend(nodes.map(|index| row(*index, self.begins(*index))));
        duties.inserts.push(row(closer, if is_open { Begins::Parked(1) } else { Begins::Ready }));
    }

    /// Opens the branches of a fan-out and parks its closer. A fan-out that was skipped or has failed has
    /// none, and its closer ends as it did.
    fn open_branches(&self, fan: &Fan, end: &End<'_>, duties: &mut Duties) -> Result<(), Refusal> {
        let ScopeKind::Branches { gather, .. } = self.scopes[fan.scope].kind else {
            unreachable!("a fan-out opens branches")
        };
        let items = match end.state {
            StepState::Succeeded => items(end.output)?,
            StepState::Pending
            | StepState::Dispatching
            | StepState::AwaitingAck
            | StepState::InProgress
            | StepState::FailedRetry
            | StepState::FailedFinal
            | StepState::Cancelled
            | StepState::Skipped => Vec::new(),
        };
        let count = u32::try_from(items.len()).expect("items are limited");
        for (index, item) in (0_u32..).zip(items) {
            let waits = fan.max_parallel.is_some_and(|most| index >= most);
            for step_index in &self.scopes[fan.scope].nodes {
                let branch = place::branch(end.place.branch, index);
                let item = item.to_string();
                let begins = match self.begins(*step_index) {
                    Begins::Ready if waits => Begins::Parked(1),
                    begins => begins,
                };
                duties.inserts.push(NewRow {
                    place: Place { step_index: *step_index, branch, turn: end.place.turn },
                    gate: self.gate(*step_index, end.facts, Some(&item)),
                    item: Some(item),
                    begins,
                    priority: end.facts.priority + self.node(*step_index).priority,
                    delay_ms: self.node(*step_index).delay_ms,
                });
            }
        }
        duties.inserts.push(NewRow {
            place: Place { step_index: gather, ..end.place },
            item: None,
            gate: None,
            begins: if count == 0 { Begins::Ready } else { Begins::Parked(count) },
            priority: end.facts.priority,
            delay_ms: self.node(gather).delay_ms,
        });
        Ok(())
    }

    /// The branch that waits for this one to end. If there is none behind it, nobody is counted down.
    fn let_in(&self, fan: u32, at: Place, duties: &mut Duties) {
        let Kind::Fan(fan) = &self.node(fan).kind else { unreachable!("branches have a fan-out") };
        let (Some(most), Some(index)) = (fan.max_parallel, place::index(at.branch)) else { return };
        let next = index.saturating_add(most);
        if next >= super::MAX_ITEMS {
            return;
        }
        let branch = place::branch(place::around(at.branch, 1), next);
        for step_index in &self.scopes[fan.scope].nodes {
            if self.begins(*step_index) == Begins::Ready {
                let place = Place { step_index: *step_index, branch, turn: at.turn };
                duties.lets_in.push(place);
            }
        }
    }
}

/// The items that an opener has left as its output.
fn items(output: Option<&str>) -> Result<Vec<Value>, Refusal> {
    let unreadable =
        || Refusal::new(Code::ExpressionFailed).with("reason", "the items cannot be read");
    match serde_json::from_str(output.unwrap_or("null")) {
        Ok(Value::Array(items)) => Ok(items),
        Ok(_) | Err(_) => Err(unreadable()),
    }
}
