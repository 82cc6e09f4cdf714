//! The keys of a step that make a protocol a graph: what it waits for, how often it runs, and what it is if
//! no worker does it. All of them are optional; a protocol without any is a sequence.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sprag_kernel::retry::Millis;

use crate::duration;

/// What a failed branch means to its fan-out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnFailure {
    /// The job fails.
    #[default]
    FailFast,
    /// The other branches go on; the fan-out fails if any branch did.
    FinishAll,
    /// The other branches go on; the fan-out fails if more than so many did.
    Tolerate(u32),
}

impl OnFailure {
    /// How many failed branches the fan-out bears, if they are counted at all.
    pub fn tolerated(self) -> Option<u32> {
        match self {
            Self::FailFast => None,
            Self::FinishAll => Some(0),
            Self::Tolerate(most) => Some(most),
        }
    }
}

/// A cycle: the step, or its `steps`, run again while the condition holds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Repeat {
    /// Asked after each turn; the step's own output is that of the turn.
    #[serde(rename = "while")]
    pub condition: String,
    /// The most turns; with one more the step fails.
    pub max: u32,
    /// From one turn to the next.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub delay: Option<Millis>,
}

/// Waits for a signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wait {
    /// Its name.
    pub signal: String,
    /// A JSON Schema for its payload.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schema: Option<Value>,
    /// How long; for ever if absent.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub timeout: Option<Millis>,
    /// What its end without a signal means.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_timeout: Option<OnTimeout>,
}

/// What the end of a wait without a signal means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// The step fails.
    #[default]
    Fail,
    /// The step succeeds with the output null.
    Succeed,
}

/// A child job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Child {
    /// What is asked for.
    pub request_type: String,
    /// An expression for its payload.
    pub input: String,
}

/// A command: JSON in on stdin, JSON out on stdout.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Exec {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Added to the environment.
    #[serde(default, skip_serializing_if = "std::collections::BTreeMap::is_empty")]
    pub env: std::collections::BTreeMap<String, String>,
}

/// An HTTP request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Http {
    /// GET, POST, PUT, PATCH or DELETE.
    pub method: String,
    /// Where.
    pub url: String,
    /// An expression for the body.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<String>,
}
