//! Child jobs: a step of kind `job` hands its work to a job of its own. The child is created in the
//! transaction that writes the directive of the attempt, and tells its end in the transaction that closes
//! it; in between the attempt is nobody's, and lives by a timer at which an engine looks after it.

use serde_json::{Value, json};
use sprag_kernel::keys::{DedupKey, Mode};
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use crate::engine::{Pinned, new_job};
use crate::envelope::Envelope;
use crate::store::{Held, NewChild, NewJob};

/// How many jobs may be above a child: a protocol that is its own child ends here.
pub const MAX_DEPTH: u32 = 8;
/// How often an attempt that waits for a child is looked after. Only a cancel whose engine died between the
/// parent and the child waits so long.
pub const LOOK_MS: Millis = 60_000;

impl NewChild {
    /// When the attempt that waits for it is looked after first.
    pub(crate) fn first_look_ms(&self) -> Millis {
        self.timeout_ms.unwrap_or(LOOK_MS).min(LOOK_MS)
    }
}

/// When an attempt that waits for a child is looked after next; `None` if its time is over by now.
pub(crate) fn next_look_ms(held: &Held, now: Millis) -> Option<Millis> {
    let left = held.waits_until.map_or(LOOK_MS, |until| until.saturating_sub(now));
    (left > 0).then(|| left.min(LOOK_MS))
}

/// Where in the family the child of a job is, or that there is no room for one.
pub fn depth_below(held: &Held) -> Result<u32, Refusal> {
    let depth = held.facts.parent().map_or(0, |(_, depth)| depth) + 1;
    if depth > MAX_DEPTH {
        return Err(Refusal::new(Code::ChildTooDeep).with("limit", MAX_DEPTH));
    }
    Ok(depth)
}

/// The child of an attempt: the parent's envelope with another request type and payload. The attempt is its
/// key, so that it is created once whoever repeats it.
pub(crate) fn child_of(
    held: &Held,
    (request_type, payload): (&str, &str),
    pinned: &Pinned,
    max_bytes: usize,
) -> Result<NewJob, Refusal> {
    let depth = depth_below(held)?;
    let (facts, key) = (&held.facts, &held.key);
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    let envelope = json!({
        "tenant_id": facts.tenant_id,
        "request_type": request_type,
        "input_ref": value(&facts.input_ref),
        "output_ref": value(&facts.output_ref),
        "payload": value(payload),
        "schema_version": facts.schema_version,
        "mode": match facts.mode {
            Mode::Default => "DEFAULT",
            Mode::Burst => "BURST",
        },
        "doc_id": facts.doc_id,
        "correlation_id": facts.correlation_id,
        "traceparent": facts.traceparent,
        "priority": facts.priority,
    });
    let envelope = Envelope::read(envelope.to_string().as_bytes(), max_bytes)?;
    let dedup_key = DedupKey::Child {
        parent: &key.job_id.to_string(),
        step_index: key.step_index,
        branch: key.branch,
        turn: key.turn,
        attempt_no: key.attempt_no,
        depth,
    };
    new_job(envelope, dedup_key.to_string(), pinned)
}
