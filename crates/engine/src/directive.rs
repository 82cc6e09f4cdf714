//! The directive: what a worker is told, and what it answers.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Serialize, Serializer};
use serde_json::Value;
use sprag_kernel::Cause;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::Millis;

use crate::callback::{Fence, lease, text_number};
use crate::graph::{Graph, place};
use crate::names::segment;
use crate::pages::{LargeInput, too_large};
use crate::store::{Held, JobFacts};

fn whole<S: Serializer>(payload: &Arc<Value>, target: S) -> Result<S::Ok, S::Error> {
    payload.as_ref().serialize(target)
}

/// The payload that was read last: the branches of a fan-out come one after the other, and a list in the payload
/// would be read once for each of its items.
#[derive(Default)]
pub(crate) struct Payloads(RefCell<Option<(Arc<JobFacts>, Arc<Value>)>>);

impl Payloads {
    fn of(&self, facts: &Arc<JobFacts>) -> Arc<Value> {
        let mut last = self.0.borrow_mut();
        match last.as_ref() {
            Some((known, payload)) if Arc::ptr_eq(known, facts) => payload.clone(),
            Some(_) | None => {
                let payload = serde_json::from_str(&facts.payload).unwrap_or(Value::Null);
                let payload = Arc::new(payload);
                *last = Some((facts.clone(), payload.clone()));
                payload
            }
        }
    }
}

/// What a worker is told about one attempt.
#[derive(Clone, Debug, Serialize)]
pub struct Directive {
    /// The job.
    #[serde(rename = "jobId")]
    pub job_id: String,
    /// Whose it is.
    pub tenant_id: String,
    /// The protocol it follows.
    pub protocol_id: String,
    /// The step's name.
    #[serde(rename = "stepId")]
    pub step_id: String,
    /// Where the step is in its protocol.
    pub step_index: u32,
    /// The branch of a fan-out; 0 outside of one.
    #[serde(with = "text_number")]
    pub branch: u64,
    /// The turn of a cycle; 0 outside of one.
    pub turn: u32,
    /// The kind of work.
    pub step_type: String,
    /// The attempt, from 1.
    pub attempt_no: u32,
    /// Its lease.
    #[serde(with = "lease")]
    pub lease_id: LeaseId,
    /// The end of the lease, by the store's clock. It begins anew with the ACK and every heartbeat.
    pub lease_expires_at: Millis,
    /// Names the effect of the step, whichever attempt brings it about: hand it to the outside world so
    /// that it can make the effect once.
    pub effect_key: String,
    /// Where the input is.
    pub input_ref: Value,
    /// Where this attempt may put what it works with.
    pub workspace_ref: String,
    /// Where the output goes.
    pub output_ref: Value,
    /// What the job was submitted with; the directives of a fan-out share it.
    #[serde(serialize_with = "whole")]
    pub payload: Arc<Value>,
    /// The outputs of earlier steps, by step. In a fan-out those of its own branch.
    pub inputs: BTreeMap<String, Value>,
    /// Those that are too large to be handed over: they are read by the page. A handler in the engine's own process is
    /// handed all of them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub large_inputs: BTreeMap<String, LargeInput>,
    /// Its place in the fan-out, from 0.
    pub index: Option<u32>,
    /// The item of its branch.
    pub item: Option<Value>,
    /// Handed through.
    pub correlation_id: Option<String>,
    /// Handed through.
    pub traceparent: Option<String>,
}

impl Directive {
    /// The directive of an attempt that was dispatched, with at most so many bytes of inputs.
    pub(crate) fn of<'a>(
        held: &'a Held,
        graph: &Graph,
        workspace_root: &str,
        payloads: &Payloads,
        most: usize,
    ) -> Self {
        let key = &held.key;
        let node = graph.node(key.step_index);
        let json = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let visible: Vec<u32> = graph.inputs(key.step_index).collect();
        let named = |(seen, text): &'a (u32, String)| {
            let name = graph.node(*seen).publishes.clone().filter(|_| visible.contains(seen))?;
            Some((name, text.as_str()))
        };
        let all: Vec<(String, &str)> = held.inputs.iter().filter_map(named).collect();
        let sizes: Vec<usize> = all.iter().map(|(_, text)| text.len()).collect();
        let (mut inputs, mut large_inputs) = (BTreeMap::new(), BTreeMap::new());
        for ((name, text), is_large) in all.into_iter().zip(too_large(&sizes, most)) {
            if is_large {
                large_inputs.insert(name, LargeInput { bytes: text.len() });
            } else {
                inputs.insert(name, json(text));
            }
        }
        Self {
            job_id: held.key.job_id.to_string(),
            tenant_id: held.facts.tenant_id.clone(),
            protocol_id: held.facts.protocol_id.clone(),
            step_id: node.step_id.clone(),
            step_index: key.step_index,
            branch: key.branch,
            turn: key.turn,
            step_type: node.step_type.clone(),
            attempt_no: key.attempt_no,
            lease_id: held.attempt.lease_id.expect("a dispatched attempt has a lease"),
            lease_expires_at: held.attempt.deadline.unwrap_or_default(),
            workspace_ref: format!(
                "{workspace_root}/{}/{}/{}/{}",
                segment(&held.facts.tenant_id),
                key.job_id,
                segment(&node.step_id),
                key.attempt_no
            ),
            effect_key: held.key.effect_key(&held.facts.effect_owner()),
            input_ref: json(&held.facts.input_ref),
            output_ref: json(&held.facts.output_ref),
            payload: payloads.of(&held.facts),
            inputs,
            large_inputs,
            index: place::index(key.branch),
            item: held.item.as_deref().map(json),
            correlation_id: held.facts.correlation_id.clone(),
            traceparent: held.facts.traceparent.clone(),
        }
    }
}

impl Directive {
    /// What a worker names in its callbacks.
    pub fn fence(&self) -> Fence {
        Fence {
            job_id: self.job_id.parse().expect("made from an id"),
            step_id: self.step_id.clone(),
            step_index: Some(self.step_index),
            branch: self.branch,
            turn: self.turn,
            attempt_no: self.attempt_no,
            lease_id: self.lease_id,
            tenant_id: None,
        }
    }

    /// The output of an earlier step, as a type. `None` if that step has no output, or is not an earlier one
    /// of this job.
    pub fn input<T: DeserializeOwned>(&self, step_id: &str) -> Result<Option<T>, Failure> {
        let read = |value| {
            T::deserialize(value).map_err(|error| {
                Failure::fatal(Cause::InputInvalid.name(), format!("{step_id}: {error}"))
            })
        };
        self.inputs.get(step_id).map(read).transpose()
    }
}

/// Why a handler failed.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Whether another attempt may help.
    pub retryable: bool,
    /// A stable code.
    pub code: String,
    /// What happened.
    pub message: String,
}

impl Failure {
    /// A failure that may pass.
    pub fn retryable(code: &str, message: impl std::fmt::Display) -> Self {
        Self { retryable: true, code: code.to_owned(), message: message.to_string() }
    }

    /// A failure that no attempt can mend.
    pub fn fatal(code: &str, message: impl std::fmt::Display) -> Self {
        Self { retryable: false, code: code.to_owned(), message: message.to_string() }
    }
}
