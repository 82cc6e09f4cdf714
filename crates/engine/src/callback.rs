//! What a worker outside of this process says: it claims work, acknowledges it, shows that it is alive, and
//! reports how it went. The same words travel over every transport.
//!
//! Whoever speaks names its fence. The fence is trusted for nothing but being compared: with the wrong one
//! nothing changes.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use crate::context::MAX_PROGRESS_BYTES;
use crate::directive::Failure;
use crate::held::Held;
use crate::ids::JobId;
use crate::limits::{MAX_CODE_BYTES, MAX_MESSAGE_BYTES, check_json, storable};
use crate::names::check_name;

/// The most directives that one claim gets.
pub const MAX_CLAIM: u32 = 500;
/// The most services that one claim names.
pub const MAX_CLAIM_SERVICES: usize = 100;
/// The longest that a claim waits for work, so that a connection that died unseen is not kept for ever.
pub const MAX_WAIT: Duration = Duration::from_secs(60);

/// A worker asks for work.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Chosen by the worker, new for every claim. The same id again is answered with the same directives
    /// while their leases hold, so that an answer that got lost can be asked for again.
    pub claim_id: String,
    /// What it can do.
    pub services: Vec<String>,
    /// Whose work alone it may be given; every tenant's if absent.
    pub tenant_id: Option<String>,
    /// At most so many directives.
    pub max: u32,
    /// How long to wait if there is nothing to do.
    pub wait: Duration,
    /// Who acknowledges.
    pub ack: AckMode,
}

/// Who acknowledges a directive that was claimed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckMode {
    /// The claim is the acknowledgement.
    #[default]
    Auto,
    /// The worker will, before the ACK deadline.
    Explicit,
}

impl Claim {
    /// The id that its directives are kept under. Ids are chosen by workers, so those of one tenant are told
    /// apart from all others: a worker that guesses an id gets nothing of anybody else. No name has the
    /// character between the two.
    pub(crate) fn key(&self) -> String {
        match &self.tenant_id {
            Some(tenant_id) => format!("{tenant_id}\u{1f}{}", self.claim_id),
            None => self.claim_id.clone(),
        }
    }

    /// Whether it may be given something of this tenant.
    pub(crate) fn takes(&self, tenant_id: &str) -> bool {
        self.tenant_id.as_deref().is_none_or(|own| own == tenant_id)
    }

    /// Refuses a claim that nothing can answer.
    pub fn check(&self) -> Result<(), Refusal> {
        check_name("claim_id", &self.claim_id)?;
        self.services.iter().try_for_each(|service| check_name("services", service))?;
        let invalid = |field: &'static str, reason: String| {
            Err(Refusal::new(Code::ClaimInvalid).with("field", field).with("reason", reason))
        };
        if self.services.is_empty() || self.services.len() > MAX_CLAIM_SERVICES {
            return invalid("services", format!("names 1 to {MAX_CLAIM_SERVICES} services"));
        }
        if self.max == 0 || self.max > MAX_CLAIM {
            return invalid("max", format!("is from 1 to {MAX_CLAIM}"));
        }
        Ok(())
    }
}

/// What a callback must name: the attempt, and the lease that was handed out with it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fence {
    /// The job.
    #[serde(rename = "jobId")]
    pub job_id: JobId,
    /// The step's name.
    #[serde(rename = "stepId")]
    pub step_id: String,
    /// Where the step is in its protocol, if the worker kept it: it makes the attempt quick to find.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step_index: Option<u32>,
    /// The branch of a fan-out.
    #[serde(default, with = "text_number")]
    pub branch: u64,
    /// The turn of a cycle.
    #[serde(default)]
    pub turn: u32,
    /// The attempt, from 1.
    pub attempt_no: u32,
    /// Its lease.
    #[serde(with = "lease")]
    pub lease_id: LeaseId,
    /// If given, a job of another tenant is not found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tenant_id: Option<String>,
}

impl Fence {
    /// The attempt that was found at its place, if it is one that the caller may know of.
    pub(crate) fn expect_known(&self, found: Option<Held>) -> Result<Held, Refusal> {
        let is_own =
            |held: &Held| self.tenant_id.as_ref().is_none_or(|own| *own == held.facts.tenant_id);
        found.filter(is_own).ok_or_else(|| {
            Refusal::new(Code::StepUnknown)
                .with("job_id", self.job_id.to_string())
                .with("step_id", self.step_id.clone())
        })
    }
}

/// The answer to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Alive {
    /// The new end of the lease, by the store's clock.
    pub lease_expires_at: Millis,
    /// Whether the worker should stop.
    pub cancel: bool,
}

/// How an attempt went.
#[derive(Clone, Debug)]
pub struct Completion {
    /// What came of it.
    pub result: Result<Value, Failure>,
    /// Where the output is, if it is not where the job said.
    pub output_ref: Option<Value>,
}

impl Completion {
    /// A success.
    pub fn succeeded(output: Value) -> Self {
        Self { result: Ok(output), output_ref: None }
    }

    /// A failure.
    pub fn failed(failure: Failure) -> Self {
        Self { result: Err(failure), output_ref: None }
    }

    /// Reads the fields of a RESULT. `error` is its code and message.
    pub fn read(
        status: &str,
        failure_class: Option<&str>,
        output: Option<Value>,
        error: Option<(String, String)>,
    ) -> Result<Self, Refusal> {
        let failure = |retryable: bool| {
            let (code, message) = error.unwrap_or_else(|| ("FAILED".to_owned(), String::new()));
            Self::failed(Failure { retryable, code, message })
        };
        Ok(match Report::read(status, failure_class)? {
            Report::Succeeded => Self::succeeded(output.unwrap_or(Value::Null)),
            Report::Retryable => failure(true),
            Report::NonRetryable => failure(false),
        })
    }
}

/// One callback.
#[derive(Clone, Debug)]
pub enum Callback {
    /// The worker has the directive.
    Ack,
    /// The worker is alive; JSON of how far it is, if it says so.
    Heartbeat(Option<Value>),
    /// The worker is done.
    Result(Completion),
}

impl Callback {
    /// The callback as every store can keep it. What is too large or cannot be kept at all is refused before
    /// any store is asked, so that it holds up nobody else; the words of a failure are cut.
    pub(crate) fn admitted(self, fence: &Fence, max_output_bytes: usize) -> Result<Self, Refusal> {
        check_name("stepId", &fence.step_id)?;
        let check = |what, value: Option<&Value>, limit| match value {
            Some(value) => check_json(what, &value.to_string(), limit),
            None => Ok(()),
        };
        match self {
            Self::Ack => Ok(Self::Ack),
            Self::Heartbeat(progress) => {
                check("progress", progress.as_ref(), MAX_PROGRESS_BYTES)?;
                Ok(Self::Heartbeat(progress))
            }
            Self::Result(Completion { result, output_ref }) => {
                check("output", result.as_ref().ok(), max_output_bytes)?;
                check("output_ref", output_ref.as_ref(), max_output_bytes)?;
                let result = result.map_err(|failure| Failure {
                    code: storable(&failure.code, MAX_CODE_BYTES),
                    message: storable(&failure.message, MAX_MESSAGE_BYTES),
                    ..failure
                });
                Ok(Self::Result(Completion { result, output_ref }))
            }
        }
    }

    /// The name in records.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ack => "ack",
            Self::Heartbeat(_) => "heartbeat",
            Self::Result(_) => "result",
        }
    }
}

/// The answer to a callback that was heard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// It counts, or it did so before.
    Done,
    /// To a heartbeat.
    Alive(Alive),
}

/// Numbers above 2^53 as text, which every language reads without loss.
pub(crate) mod text_number {
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Number(u64),
        Text(String),
    }

    #[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
    pub(crate) fn serialize<S: Serializer>(number: &u64, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&number.to_string())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<u64, D::Error> {
        match Either::deserialize(from)? {
            Either::Number(number) => Ok(number),
            Either::Text(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

/// A lease id as text.
pub(crate) mod lease {
    use serde::{Deserializer, Serializer};
    use sprag_kernel::decide::rows::LeaseId;

    use super::text_number;

    #[allow(clippy::trivially_copy_pass_by_ref)] // serde's signature
    pub(crate) fn serialize<S: Serializer>(lease: &LeaseId, to: S) -> Result<S::Ok, S::Error> {
        text_number::serialize(&lease.0, to)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<LeaseId, D::Error> {
        text_number::deserialize(from).map(LeaseId)
    }
}
