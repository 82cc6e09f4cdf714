//! The names of things: jobs, attempts, engines.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sprag_kernel::{Code, Refusal};
use uuid::Uuid;

/// A job. Ids rise with time, so that new rows go to the end of their index.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct JobId(Uuid);

impl JobId {
    /// A new id.
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The sixteen bytes that stores keep.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// An id from a store.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The id as a UUID.
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

impl Default for JobId {
    fn default() -> Self {
        Self::new()
    }
}

impl From<Uuid> for JobId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl FromStr for JobId {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        Uuid::try_parse(text).map(Self).map_err(|_| {
            let shown: String = text.chars().take(64).collect();
            Refusal::new(Code::JobUnknown).with("job_id", shown)
        })
    }
}

impl fmt::Display for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl Serialize for JobId {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for JobId {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }
}

impl fmt::Debug for JobId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A request. Its ids rise with time, as those of jobs do.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(Uuid);

impl RequestId {
    /// A new id.
    #[allow(clippy::new_without_default)] // an id is never a default
    pub fn new() -> Self {
        Self(Uuid::now_v7())
    }

    /// The sixteen bytes that stores keep.
    pub fn as_bytes(&self) -> &[u8; 16] {
        self.0.as_bytes()
    }

    /// An id from a store.
    pub fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(Uuid::from_bytes(bytes))
    }

    /// The id as a UUID.
    pub fn uuid(self) -> Uuid {
        self.0
    }
}

impl From<Uuid> for RequestId {
    fn from(uuid: Uuid) -> Self {
        Self(uuid)
    }
}

impl FromStr for RequestId {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        Uuid::try_parse(text).map(Self).map_err(|_| {
            let shown: String = text.chars().take(64).collect();
            Refusal::new(Code::RequestUnknown).with("request_id", shown)
        })
    }
}

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

impl fmt::Debug for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where in a job an attempt is: the step, the branch of a fan-out, the turn of a cycle, the attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AttemptKey {
    /// The job.
    pub job_id: JobId,
    /// The step.
    pub step_index: u32,
    /// The path of branches to it; 0 outside of a fan-out.
    pub branch: u64,
    /// The turn of the cycle it is in; 0 outside of one.
    pub turn: u32,
    /// The attempt, from 1.
    pub attempt_no: u32,
}

/// Where in a job an activity is, whichever attempt it is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The step.
    pub step_index: u32,
    /// The path of branches to it; 0 outside of a fan-out.
    pub branch: u64,
    /// The turn of the cycle it is in; 0 outside of one.
    pub turn: u32,
}

impl From<u32> for Place {
    /// The step outside of fan-outs and cycles.
    fn from(step_index: u32) -> Self {
        Self { step_index, branch: 0, turn: 0 }
    }
}

impl AttemptKey {
    /// Where it is, whichever attempt.
    pub fn place(&self) -> Place {
        Place { step_index: self.step_index, branch: self.branch, turn: self.turn }
    }

    /// The first attempt of a step outside of fan-outs and cycles.
    pub fn first(job_id: JobId, step_index: u32) -> Self {
        Self { job_id, step_index, branch: 0, turn: 0, attempt_no: 1 }
    }

    /// What names the effect of this step, whichever attempt brings it about; `owner` is the request if
    /// there is one, else the job.
    pub fn effect_key(&self, owner: &str) -> String {
        format!("{owner}/{}/{}/{}", self.step_index, self.branch, self.turn)
    }
}

/// One life of one engine process. A restart is another number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EngineNo(pub i64);
