//! The directive: what a worker is told, and what it answers.

use std::collections::BTreeMap;

use serde_json::Value;
use sprag_kernel::decide::rows::LeaseId;

use crate::protocol::Protocol;
use crate::store::Held;

/// What a worker is told about one attempt.
#[derive(Clone, Debug)]
pub struct Directive {
    /// The job.
    pub job_id: String,
    /// Whose it is.
    pub tenant_id: String,
    /// The protocol it follows.
    pub protocol_id: String,
    /// The step's name.
    pub step_id: String,
    /// The kind of work.
    pub step_type: String,
    /// The attempt, from 1.
    pub attempt_no: u32,
    /// Its lease.
    pub lease_id: LeaseId,
    /// Names the effect of the step, whichever attempt brings it about: hand it to the outside world so
    /// that it can make the effect once.
    pub effect_key: String,
    /// Where the input is.
    pub input_ref: Value,
    /// Where the output goes.
    pub output_ref: Value,
    /// What the job was submitted with.
    pub payload: Value,
    /// The outputs of earlier steps, by step.
    pub inputs: BTreeMap<String, Value>,
    /// Handed through.
    pub correlation_id: Option<String>,
    /// Handed through.
    pub traceparent: Option<String>,
}

impl Directive {
    /// The directive of an attempt that was dispatched.
    pub fn of(held: &Held, lease_id: LeaseId, protocol: &Protocol) -> Self {
        let step = &protocol.steps[held.key.step_index as usize];
        let json = |text: &str| serde_json::from_str(text).unwrap_or(Value::Null);
        let name = |index: u32| protocol.steps[index as usize].step_id.clone();
        Self {
            job_id: held.key.job_id.to_string(),
            tenant_id: held.facts.tenant_id.clone(),
            protocol_id: held.facts.protocol_id.clone(),
            step_id: step.step_id.clone(),
            step_type: step.kind().to_owned(),
            attempt_no: held.key.attempt_no,
            lease_id,
            effect_key: held.key.effect_key(&held.facts.effect_owner()),
            input_ref: json(&held.facts.input_ref),
            output_ref: json(&held.facts.output_ref),
            payload: json(&held.facts.payload),
            inputs: held.inputs.iter().map(|(index, text)| (name(*index), json(text))).collect(),
            correlation_id: held.facts.correlation_id.clone(),
            traceparent: held.facts.traceparent.clone(),
        }
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
