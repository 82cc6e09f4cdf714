//! Protocols: a workflow as data, read from YAML or JSON or built in Rust, pinned by version on each
//! job.
//!
//! A protocol is checked when it is read: a mistake is refused with the place it is at, before any job
//! can meet it.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};
use sprag_kernel::retry::{Backoff, Millis, RetryPolicy};
use sprag_kernel::{Code, Refusal};

use crate::duration;
use crate::names::check_name;

/// How many steps a protocol may have.
pub const MAX_STEPS: usize = 1_000;
/// How many attempts a step may be given.
pub const MAX_ATTEMPTS: u32 = 1_000;

/// A workflow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Its name and version, such as `ocr-embedding.v1`. Content never changes under one id.
    pub protocol_id: String,
    /// The request types that it serves.
    pub request_types: Vec<String>,
    /// Its steps, in the order they run.
    pub steps: Vec<Step>,
}

/// One activity.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// Its name in the protocol.
    pub step_id: String,
    /// What kind of work it is; the step's name if not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_type: Option<String>,
    /// Who does the work.
    pub service: String,
    /// When to try again.
    #[serde(default)]
    pub retry: Retry,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Higher goes first.
    #[serde(default)]
    pub priority: i32,
}

/// When to try again. What is absent is as by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Attempts in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How often the engine may die under the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_losses: Option<u32>,
    /// Waits after a failure.
    #[serde(default, with = "duration::list", skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Vec<Millis>>,
    /// Waits after a missing acknowledgement.
    #[serde(default, with = "duration::list", skip_serializing_if = "Option::is_none")]
    pub ack_backoff: Option<Vec<Millis>>,
}

/// How long things may take. What is absent is as by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeouts {
    /// From published to acknowledged.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub ack: Option<Millis>,
    /// From one sign of life to the next.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub lease: Option<Millis>,
    /// One attempt in all; none by default.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub step: Option<Millis>,
}

impl Protocol {
    /// A protocol built in Rust; [`Self::step`] adds steps, [`Self::check`] checks it.
    pub fn new(protocol_id: &str, request_type: &str) -> Self {
        Self {
            protocol_id: protocol_id.to_owned(),
            request_types: vec![request_type.to_owned()],
            steps: Vec::new(),
        }
    }

    /// Adds a step that `service` does.
    #[must_use]
    pub fn step(mut self, step_id: &str, service: &str) -> Self {
        self.steps.push(Step {
            step_id: step_id.to_owned(),
            step_type: None,
            service: service.to_owned(),
            retry: Retry::default(),
            timeouts: Timeouts::default(),
            priority: 0,
        });
        self
    }

    /// Reads and checks a protocol in YAML or JSON (which is YAML).
    pub fn read(text: &str) -> Result<Self, Refusal> {
        let protocol: Self = serde_saphyr::from_str(text).map_err(|error| {
            let reason = error.to_string();
            invalid("file", reason.lines().next().unwrap_or_default().to_owned())
        })?;
        protocol.check()?;
        Ok(protocol)
    }

    /// Refuses a protocol that no job could follow, naming the place.
    pub fn check(&self) -> Result<(), Refusal> {
        check_name("protocol_id", &self.protocol_id)?;
        if self.request_types.is_empty() {
            return Err(invalid("request_types", "is empty".to_owned()));
        }
        if self.steps.is_empty() || self.steps.len() > MAX_STEPS {
            let reason = format!("has {} steps, 1 to {MAX_STEPS} are allowed", self.steps.len());
            return Err(invalid("steps", reason));
        }
        let mut seen = BTreeSet::new();
        for (index, step) in self.steps.iter().enumerate() {
            step.check(index)?;
            if !seen.insert(&step.step_id) {
                let reason = format!("step_id {} is there twice", step.step_id);
                return Err(invalid(&format!("steps[{index}]"), reason));
            }
        }
        Ok(())
    }

    /// Whether it serves a request type.
    pub fn serves(&self, request_type: &str) -> bool {
        self.request_types.iter().any(|served| served == request_type)
    }

    /// The text that is stored and pinned.
    pub fn to_json(&self) -> String {
        serde_json::to_string(self).expect("a protocol has string keys")
    }
}

impl Step {
    fn check(&self, index: usize) -> Result<(), Refusal> {
        check_name("step_id", &self.step_id)?;
        check_name("service", &self.service)?;
        let place = |field: &str| format!("steps[{index}].{field}");
        let attempts = self.retry.max_attempts.unwrap_or(1);
        if attempts == 0 || attempts > MAX_ATTEMPTS {
            let reason = format!("is {attempts}, 1 to {MAX_ATTEMPTS} are allowed");
            return Err(invalid(&place("retry.max_attempts"), reason));
        }
        for (field, table) in
            [("retry.backoff", &self.retry.backoff), ("retry.ack_backoff", &self.retry.ack_backoff)]
        {
            if table.as_ref().is_some_and(Vec::is_empty) {
                return Err(invalid(&place(field), "is empty".to_owned()));
            }
        }
        Ok(())
    }

    /// The kind of work.
    pub fn kind(&self) -> &str {
        self.step_type.as_deref().unwrap_or(&self.step_id)
    }

    /// The kernel's rules for this step.
    pub fn policy(&self) -> RetryPolicy {
        let default = RetryPolicy::default();
        let table = |waits: &Option<Vec<Millis>>, default: Backoff| {
            waits.clone().and_then(Backoff::new).unwrap_or(default)
        };
        RetryPolicy {
            max_attempts: self.retry.max_attempts.unwrap_or(default.max_attempts),
            max_losses: self.retry.max_losses.unwrap_or(default.max_losses),
            max_publish_attempts: default.max_publish_attempts,
            dispatch: table(&self.retry.backoff, default.dispatch),
            ack: table(&self.retry.ack_backoff, default.ack),
            ack_timeout_ms: self.timeouts.ack.unwrap_or(default.ack_timeout_ms),
            lease_ms: self.timeouts.lease.unwrap_or(default.lease_ms),
        }
    }
}

fn invalid(place: &str, reason: String) -> Refusal {
    Refusal::new(Code::ProtocolInvalid).with("place", place.to_owned()).with("reason", reason)
}
