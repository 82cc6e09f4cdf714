//! From the steps of a file to the nodes of a graph.
//!
//! Within a list of steps, a step without `needs` waits for the step before it. Steps are put in an order
//! in which each comes after what it waits for (the file's own order wherever that is one), so what a node
//! can see has smaller indices. A list inside `for_each` or `repeat` is a scope of its own: its steps wait
//! only for each other, and can see what is over when the scope opens.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;
use sprag_kernel::Refusal;
use sprag_kernel::retry::RetryPolicy;

use super::keys::OnFailure;
use super::{
    CONTROL, DEFAULT_ITEMS, EXEC, Fan, Graph, HTTP, Kind, Loop, MAX_DEPTH, Node, Scope, ScopeKind,
};
use crate::batch::keys::{Batch, BatchPlan, ItemsPlan, Out};
use crate::expression::{Expression, Shape};
use crate::gate::GatePlan;
use crate::protocol::{Protocol, ServiceDefaults, Step, invalid};
use crate::schema::Schema;

impl Graph {
    /// Compiles a protocol whose steps were checked one by one.
    pub(crate) fn of(protocol: &Protocol) -> Result<Self, Refusal> {
        let job = Scope {
            kind: ScopeKind::Job,
            outer: 0,
            nodes: Vec::new(),
            depth: 0,
            in_cycle: false,
            tolerates: false,
        };
        let services = &protocol.services;
        let mut builder = Builder { services, nodes: Vec::new(), scopes: vec![job] };
        builder.list(&protocol.steps, &Around { scope: 0, sees: &[], place: "steps" })?;
        builder.check_names()?;
        builder.check_signals()?;
        let is_sequence = protocol.steps.iter().all(Step::is_plain);
        Ok(Self { nodes: builder.nodes, scopes: builder.scopes, is_sequence })
    }
}

struct Builder<'a> {
    services: &'a BTreeMap<String, ServiceDefaults>,
    nodes: Vec<Node>,
    scopes: Vec<Scope>,
}

/// Where a list of steps is.
struct Around<'a> {
    scope: usize,
    /// What is over when the scope opens.
    sees: &'a [u32],
    place: &'a str,
}

/// The first and the last node of a step.
#[derive(Clone, Copy)]
struct Ends {
    first: u32,
    last: u32,
}

impl Builder<'_> {
    /// Compiles a list of steps; returns its last nodes, those that nobody waits for.
    fn list(&mut self, steps: &[Step], around: &Around<'_>) -> Result<Vec<u32>, Refusal> {
        let needs = needs_of(steps, around.place)?;
        let mut ends: Vec<Option<Ends>> = vec![None; steps.len()];
        for position in in_order(steps, &needs, around.place)? {
            let before: Vec<u32> = needs[position]
                .iter()
                .map(|need| ends[*need].expect("what is needed comes first").last)
                .collect();
            let mut sees: BTreeSet<u32> = around.sees.iter().copied().collect();
            for need in &before {
                sees.extend(&self.nodes[*need as usize].sees);
                sees.insert(*need);
            }
            let sees: Vec<u32> = sees.into_iter().collect();
            let place = format!("{}[{position}]", around.place);
            let here = Around { scope: around.scope, sees: &sees, place: &place };
            let step = self.step(&steps[position], &here)?;
            for need in &before {
                self.nodes[*need as usize].followers.push(step.first);
            }
            self.nodes[step.first as usize].needs = before;
            ends[position] = Some(step);
        }
        let last = ends.iter().flatten().map(|ends| ends.last);
        Ok(last.filter(|last| self.nodes[*last as usize].followers.is_empty()).collect())
    }

    fn step(&mut self, step: &Step, around: &Around<'_>) -> Result<Ends, Refusal> {
        let when = match &step.when {
            Some(source) => {
                let when = self.expression(source, "when", around)?;
                expect_shape(&when, Shape::Truth, around.place, "when")?;
                Some(when)
            }
            None => None,
        };
        let ends = if step.for_each.is_some() {
            self.fan_out(step, around)?
        } else if step.repeat.is_some() {
            self.cycle(step, around)?
        } else {
            let node = self.work(step, around)?;
            self.nodes[node as usize].publishes = Some(step.step_id.clone());
            Ends { first: node, last: node }
        };
        self.nodes[ends.first as usize].when = when;
        Ok(ends)
    }

    /// The one node of a step that opens no scope.
    fn work(&mut self, step: &Step, around: &Around<'_>) -> Result<u32, Refusal> {
        let mut delay_ms = 0;
        let (service, kind) = if let Some(wait) = &step.wait {
            let schema = schema(wait.schema.as_ref(), "wait.schema", around)?;
            (CONTROL, Kind::Wait(wait.clone(), schema))
        } else if let Some(delay) = step.sleep {
            delay_ms = delay;
            (CONTROL, Kind::Sleep)
        } else if let Some(child) = &step.job {
            let input = self.expression(&child.input, "job.input", around)?;
            (CONTROL, Kind::Job(child.clone(), input))
        } else if let Some(exec) = &step.exec {
            (EXEC, Kind::Exec(exec.clone()))
        } else if let Some(http) = &step.http {
            let body = http.body.as_ref();
            let body = body.map(|body| self.expression(body, "http.body", around)).transpose()?;
            (HTTP, Kind::Http(http.clone(), body))
        } else {
            (step.service.as_str(), Kind::Work)
        };
        let gate = step.limit.as_ref().map(|limit| {
            let read = |source: &str| self.expression(source, "limit.key", around);
            GatePlan::of(limit, service, around.place, read)
        });
        let policy = step.policy(self.services.get(&step.service));
        let node = Node {
            step_type: step.kind().to_owned(),
            service: service.to_owned(),
            delay_ms,
            policy: policy.retry,
            priority: policy.priority,
            payload_schema: schema(step.payload_schema.as_ref(), "payload_schema", around)?,
            gate: gate.transpose()?,
            batch: step.batch.as_ref().map(|batch| self.batch(batch, around)).transpose()?,
            ..control(&step.step_id, kind, step, around)
        };
        Ok(self.add(node))
    }

    fn batch(&self, batch: &Batch, around: &Around<'_>) -> Result<BatchPlan, Refusal> {
        let items = match (&batch.items, &batch.file) {
            (Some(items), _) => {
                let items = self.expression(items, "batch.items", around)?;
                expect_shape(&items, Shape::List, around.place, "batch.items")?;
                ItemsPlan::List(items)
            }
            (None, file) => {
                let file = file.as_deref().unwrap_or_default();
                let file = self.expression(file, "batch.file", around)?;
                expect_shape(&file, Shape::Text, around.place, "batch.file")?;
                ItemsPlan::File(file)
            }
        };
        let out_file = match &batch.out {
            Some(Out::File(path)) => {
                let path = self.expression(path, "batch.out.file", around)?;
                expect_shape(&path, Shape::Text, around.place, "batch.out.file")?;
                Some(path)
            }
            Some(Out::Table | Out::Handler) | None => None,
        };
        let out_handler = batch.out == Some(Out::Handler);
        let tolerated = batch.on_failure.unwrap_or_default().tolerated();
        let (threads, retries) = (batch.threads, batch.retries);
        Ok(BatchPlan { items, tolerated, out_file, out_handler, threads, retries })
    }

    fn fan_out(&mut self, step: &Step, around: &Around<'_>) -> Result<Ends, Refusal> {
        let outer = self.scopes[around.scope].clone();
        if outer.depth == MAX_DEPTH {
            let reason = format!("is nested deeper than {MAX_DEPTH} fan-outs");
            return Err(invalid(&format!("{}.for_each", around.place), reason));
        }
        let source = step.for_each.as_deref().unwrap_or_default();
        let items = self.expression(source, "for_each", around)?;
        expect_shape(&items, Shape::List, around.place, "for_each")?;
        let on_failure = step.on_failure.unwrap_or_default();
        let scope = self.scopes.len();
        let fan = Fan {
            items,
            max_items: step.max_items.unwrap_or(DEFAULT_ITEMS),
            max_parallel: step.max_parallel,
            on_failure,
            scope,
        };
        let name = format!("{}/fan", step.step_id);
        let fan = self.add(control(&name, Kind::Fan(fan), step, around));
        self.scopes.push(Scope {
            kind: ScopeKind::Job, // until its ends are known
            outer: around.scope,
            nodes: Vec::new(),
            depth: outer.depth + 1,
            in_cycle: outer.in_cycle,
            tolerates: on_failure != OnFailure::FailFast,
        });
        let end = self.body(step, &Around { scope, ..*around })?;
        let gather = format!("{}/gather", step.step_id);
        let gather =
            self.close(control(&gather, Kind::Gather { fan }, step, around), &step.step_id);
        self.scopes[scope].kind = ScopeKind::Branches { fan, gather, end };
        Ok(Ends { first: fan, last: gather })
    }

    fn cycle(&mut self, step: &Step, around: &Around<'_>) -> Result<Ends, Refusal> {
        let outer = self.scopes[around.scope].clone();
        if outer.in_cycle {
            let reason = "is inside another cycle: let a child job have the inner one".to_owned();
            return Err(invalid(&format!("{}.repeat", around.place), reason));
        }
        let scope = self.scopes.len();
        let begin = format!("{}/begin", step.step_id);
        let begin = self.add(control(&begin, Kind::Begin { scope }, step, around));
        self.scopes.push(Scope {
            kind: ScopeKind::Job, // until its ends are known
            outer: around.scope,
            nodes: Vec::new(),
            in_cycle: true,
            ..outer
        });
        let inside = Around { scope, ..*around };
        let end = self.body(step, &inside)?;
        let repeat = step.repeat.as_ref().expect("a cycle has the key that makes it one");
        // The condition may look into the turn it is asked about, and at its output by the step's own name.
        let mut sees = self.nodes[end as usize].sees.clone();
        sees.push(end);
        let seeing = Around { sees: &sees, ..inside };
        let own = |name: &str| (name == step.step_id).then_some(end);
        let condition = self.expression_with(&repeat.condition, "repeat.while", &seeing, own)?;
        expect_shape(&condition, Shape::Truth, around.place, "repeat.while")?;
        let delay_ms = repeat.delay.unwrap_or(0);
        let closer = Loop { condition, max: repeat.max, delay_ms, scope };
        let name = format!("{}/loop", step.step_id);
        let closer = self.close(control(&name, Kind::Loop(closer), step, around), &step.step_id);
        self.scopes[scope].kind = ScopeKind::Turns { begin, closer, end };
        Ok(Ends { first: begin, last: closer })
    }

    /// The nodes inside a scope: the steps of the list, or the step itself. Returns the one that ends it.
    fn body(&mut self, step: &Step, around: &Around<'_>) -> Result<u32, Refusal> {
        if step.steps.is_empty() {
            return self.work(step, around);
        }
        let place = format!("{}.steps", around.place);
        let last = self.list(&step.steps, &Around { place: &place, ..*around })?;
        if let [only] = last[..] {
            return Ok(only);
        }
        let mut sees: BTreeSet<u32> = around.sees.iter().copied().collect();
        for node in &last {
            sees.extend(&self.nodes[*node as usize].sees);
            sees.insert(*node);
        }
        let sees: Vec<u32> = sees.into_iter().collect();
        let name = format!("{}/join", step.step_id);
        let join = control(&name, Kind::Join, step, &Around { sees: &sees, ..*around });
        let join = self.add(Node { needs: last.clone(), ..join });
        for node in last {
            self.nodes[node as usize].followers.push(join);
        }
        Ok(join)
    }

    fn add(&mut self, node: Node) -> u32 {
        let index = u32::try_from(self.nodes.len()).expect("steps are limited");
        self.scopes[node.scope].nodes.push(index);
        self.nodes.push(node);
        index
    }

    /// A closer is no part of the scope around it when that is born: its opener brings it.
    fn close(&mut self, node: Node, publishes: &str) -> u32 {
        let index = u32::try_from(self.nodes.len()).expect("steps are limited");
        self.nodes.push(Node { publishes: Some(publishes.to_owned()), ..node });
        index
    }

    fn expression(
        &self,
        source: &str,
        key: &str,
        around: &Around<'_>,
    ) -> Result<Expression, Refusal> {
        self.expression_with(source, key, around, |_| None)
    }

    /// Reads an expression and refuses what it could not see.
    fn expression_with(
        &self,
        source: &str,
        key: &str,
        around: &Around<'_>,
        own: impl Fn(&str) -> Option<u32>,
    ) -> Result<Expression, Refusal> {
        let place = format!("{}.{key}", around.place);
        let expression = Expression::read(source).map_err(|reason| invalid(&place, reason))?;
        let scope = &self.scopes[around.scope];
        for name in &expression.names().variables {
            let is_there = match name.as_str() {
                "item" | "index" => scope.depth > 0,
                "turn" => scope.in_cycle,
                _ => true,
            };
            if !is_there {
                let reason = format!("refers to {name} outside of what has one");
                return Err(invalid(&place, reason));
            }
        }
        for name in &expression.names().steps {
            let is_seen = |node: &u32| self.nodes[*node as usize].publishes.as_ref() == Some(name);
            if own(name).is_none() && !around.sees.iter().any(is_seen) {
                let reason = format!("reads step {name}, which is not over when this is asked");
                return Err(invalid(&place, reason));
            }
        }
        Ok(expression)
    }

    /// No two nodes have one name: rows, outputs and people tell them apart by it.
    fn check_names(&self) -> Result<(), Refusal> {
        let mut seen = BTreeSet::new();
        for node in &self.nodes {
            if !seen.insert(node.step_id.as_str()) {
                let reason = format!("step_id {} is there twice", node.step_id);
                return Err(invalid("steps", reason));
            }
        }
        Ok(())
    }

    /// Waits for one signal have one schema: it is checked when the signal comes, whichever takes it.
    fn check_signals(&self) -> Result<(), Refusal> {
        let mut schemas: BTreeMap<&str, &Option<Value>> = BTreeMap::new();
        for node in &self.nodes {
            let Kind::Wait(wait, _) = &node.kind else { continue };
            let first = *schemas.entry(&wait.signal).or_insert(&wait.schema);
            if *first != wait.schema {
                let reason = format!("the waits for signal {} have several schemas", wait.signal);
                return Err(invalid("steps", reason));
            }
        }
        Ok(())
    }
}

/// A node that the engine does itself for a step, unless it is made something else. No more engines may be lost
/// with it than with the step.
fn control(step_id: &str, kind: Kind, step: &Step, around: &Around<'_>) -> Node {
    let default = RetryPolicy::default();
    let max_losses = step.retry.max_losses.unwrap_or(default.max_losses);
    Node {
        step_id: step_id.to_owned(),
        publishes: None,
        step_type: step_id.to_owned(),
        service: CONTROL.to_owned(),
        kind,
        scope: around.scope,
        needs: Vec::new(),
        followers: Vec::new(),
        sees: around.sees.to_vec(),
        payload_schema: None,
        batch: None,
        gate: None,
        when: None,
        delay_ms: 0,
        policy: RetryPolicy { max_losses, ..default },
        priority: 0,
    }
}

fn schema(
    schema: Option<&Value>,
    key: &str,
    around: &Around<'_>,
) -> Result<Option<Schema>, Refusal> {
    let read = |schema| {
        Schema::read(schema).map_err(|reason| invalid(&format!("{}.{key}", around.place), reason))
    };
    schema.map(read).transpose()
}

fn expect_shape(
    expression: &Expression,
    shape: Shape,
    place: &str,
    key: &str,
) -> Result<(), Refusal> {
    let seen = expression.shape();
    if seen.may_be(&[shape]) {
        return Ok(());
    }
    Err(invalid(&format!("{place}.{key}"), format!("can never be {}", shape.name())))
}

/// Which steps of the list each step waits for, by position.
fn needs_of(steps: &[Step], place: &str) -> Result<Vec<Vec<usize>>, Refusal> {
    let positions: BTreeMap<&str, usize> =
        steps.iter().enumerate().map(|(n, step)| (step.step_id.as_str(), n)).collect();
    let mut all = Vec::with_capacity(steps.len());
    for (position, step) in steps.iter().enumerate() {
        let Some(needs) = &step.needs else {
            all.push(position.checked_sub(1).into_iter().collect());
            continue;
        };
        let mut found = Vec::with_capacity(needs.len());
        for name in needs {
            let place = format!("{place}[{position}].needs");
            match positions.get(name.as_str()) {
                Some(need) if found.contains(need) => {
                    return Err(invalid(&place, format!("names {name} twice")));
                }
                Some(need) => found.push(*need),
                None => {
                    let reason = format!("names {name}, which is no step of this list");
                    return Err(invalid(&place, reason));
                }
            }
        }
        found.sort_unstable();
        all.push(found);
    }
    Ok(all)
}

/// Positions in an order in which each step comes after what it waits for, the first in the file first.
fn in_order(steps: &[Step], needs: &[Vec<usize>], place: &str) -> Result<Vec<usize>, Refusal> {
    let mut order: Vec<usize> = Vec::with_capacity(steps.len());
    let mut is_done = vec![false; steps.len()];
    while order.len() < steps.len() {
        let is_next = |n: &usize| !is_done[*n] && needs[*n].iter().all(|need| is_done[*need]);
        let Some(next) = (0..steps.len()).find(is_next) else {
            let left: Vec<&str> = (0..steps.len())
                .filter(|n| !is_done[*n])
                .map(|n| steps[n].step_id.as_str())
                .collect();
            let reason = format!("{} wait for each other in a circle", left.join(", "));
            return Err(invalid(place, reason));
        };
        is_done[next] = true;
        order.push(next);
    }
    Ok(order)
}
