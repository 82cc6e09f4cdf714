//! Keys: what makes two submissions the same, and which lane a job takes.

use sha2::{Digest, Sha256};

use crate::canon::{canonical, canonical_members, quoted};
use crate::error::{Code, Refusal};

/// The fields of an envelope that say what is asked for. Everything else may differ in a repeat.
pub const ENVELOPE_FIELDS: [&str; 6] =
    ["tenant_id", "request_type", "input_ref", "output_ref", "payload", "schema_version"];

/// How many routing lanes there are.
pub const LANES: u32 = 16;

/// How much of a hash is in the key of a job that was given none.
const CONTENT_BYTES: usize = 16;

/// A SHA-256 hash; shown as 64 lower-case hex digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Hash([u8; 32]);

impl Hash {
    /// The hash of these bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(Sha256::digest(bytes).into())
    }

    /// A hash that was computed elsewhere.
    pub fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl std::fmt::Display for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        hex(&self.0, f)
    }
}

fn hex(bytes: &[u8], f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
    bytes.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
}

impl std::fmt::Debug for Hash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

/// The canonical text of an envelope: its six fields.
pub fn canonical_envelope(envelope: &[u8]) -> Result<String, Refusal> {
    canonical_members(envelope, &ENVELOPE_FIELDS)
}

/// The hash that tells whether two envelopes ask for the same.
pub fn envelope_hash(envelope: &[u8]) -> Result<Hash, Refusal> {
    canonical_envelope(envelope).map(|text| Hash::of(text.as_bytes()))
}

/// What makes a job unique in its tenant. The first two letters say where it comes from, so that no
/// origin can collide with another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DedupKey<'a> {
    /// The caller's own key.
    Given(&'a str),
    /// No key: the content is the key. It has the front half of the hash, so that an index of many is half as long;
    /// whether two contents are the same is told by the whole.
    Content(Hash),
    /// A run of a request.
    Request {
        /// The request.
        request_id: &'a str,
        /// Its run.
        run_no: u32,
    },
    /// An explicit rerun of a plain job.
    Rerun {
        /// The job that ended badly.
        job_id: &'a str,
        /// Which rerun of it.
        n: u32,
    },
    /// A child job.
    Child {
        /// The parent.
        parent: &'a str,
        /// The step of the parent that waits for it.
        step_index: u32,
        /// Its branch.
        branch: u64,
        /// Its turn.
        turn: u32,
        /// Its attempt: another attempt has another child.
        attempt_no: u32,
        /// How many jobs are above it.
        depth: u32,
    },
    /// A tick of a schedule.
    Schedule {
        /// The schedule.
        schedule_id: &'a str,
        /// When it ticked, in milliseconds since 1970.
        tick: u64,
    },
}

impl DedupKey<'_> {
    /// Whether a job with this key was submitted by itself, not by a request or another job.
    pub fn is_plain(dedup_key: &str) -> bool {
        !dedup_key.starts_with("r:") && Self::takes_slot(dedup_key)
    }

    /// Whether a job with this key counts against its tenant's limit: a child job (`c:`) does not, its
    /// parent has the slot.
    pub fn takes_slot(dedup_key: &str) -> bool {
        !dedup_key.starts_with("c:")
    }
}

impl std::fmt::Display for DedupKey<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Given(key) => write!(f, "k:{key}"),
            Self::Content(hash) => {
                f.write_str("h:")?;
                hex(&hash.0[..CONTENT_BYTES], f)
            }
            Self::Request { request_id, run_no } => write!(f, "r:{request_id}:{run_no}"),
            Self::Rerun { job_id, n } => write!(f, "x:{job_id}:{n}"),
            Self::Child { parent, step_index, branch, turn, attempt_no, depth } => {
                write!(f, "c:{parent}:{step_index}:{branch}:{turn}:{attempt_no}:{depth}")
            }
            Self::Schedule { schedule_id, tick } => write!(f, "s:{schedule_id}:{tick}"),
        }
    }
}

/// What makes a request the same request.
#[derive(Clone, Copy, Debug, Default)]
pub struct RequestKey<'a> {
    /// The fingerprint of its inputs.
    pub fingerprint: &'a str,
    /// What is wanted, in words; white space does not matter, case does.
    pub requirement: &'a str,
    /// The revision of the plan; a number and its text are the same.
    pub plan_revision: &'a str,
}

impl RequestKey<'_> {
    /// The canonical text that is hashed.
    pub fn preimage(&self) -> String {
        format!(
            r#"{{"fingerprint":{},"plan_revision":{},"requirement":{},"v":1}}"#,
            quoted(self.fingerprint),
            quoted(self.plan_revision),
            quoted(&normalise_space(self.requirement)),
        )
    }

    /// The key.
    pub fn hash(&self) -> Hash {
        Hash::of(self.preimage().as_bytes())
    }
}

/// Trims, and collapses every run of Unicode white space to one space.
pub fn normalise_space(text: &str) -> String {
    let mut words = text.split_whitespace();
    let mut normal = String::with_capacity(text.len());
    if let Some(first) = words.next() {
        normal.push_str(first);
    }
    for word in words {
        normal.push(' ');
        normal.push_str(word);
    }
    normal
}

/// How a job is spread over lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// All jobs of a tenant take one lane.
    Default,
    /// Each document of a tenant takes its own.
    Burst,
}

/// A routing decision, pinned on a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The text that was hashed.
    pub key: String,
    /// The lane, 0 to 15.
    pub lane: u32,
}

/// The lane of a tenant, or of a tenant's document in mode BURST.
pub fn route(tenant_id: &str, mode: Mode, doc_id: Option<&str>) -> Result<Route, Refusal> {
    let mut key = tenant_id.to_lowercase();
    if mode == Mode::Burst {
        let doc_id = doc_id.filter(|doc_id| !doc_id.is_empty());
        key.push_str(&doc_id.ok_or_else(|| Refusal::new(Code::DocIdMissing))?.to_lowercase());
    }
    let lane = crc32fast::hash(key.as_bytes()) % LANES;
    Ok(Route { key, lane })
}

/// The canonical text of any document and its hash.
pub fn canonical_hash(document: &[u8]) -> Result<Hash, Refusal> {
    canonical(document).map(|text| Hash::of(text.as_bytes()))
}
