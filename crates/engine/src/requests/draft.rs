//! The draft: what a request would do, worked out before it does anything. The protocol that serves it,
//! its steps with what they are handed, and every check with whether it passes. A draft with a check that
//! does not pass can be looked at and mended, not confirmed.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sprag_kernel::{Code, Refusal};

use super::store::DraftWrite;
use crate::engine::Pinned;
use crate::envelope::Envelope;

/// The largest preview that is kept: it repeats the payload for each step.
pub const MAX_PREVIEW_BYTES: usize = 4 << 20;

/// The envelope is one that a job can be submitted with.
const ENVELOPE: &str = "envelope";
/// A registered protocol serves the request type.
const PROTOCOL: &str = "protocol";

#[derive(Serialize)]
struct Preview<'a> {
    protocol_id: Option<&'a str>,
    steps: Vec<StepPreview<'a>>,
    checks: [CheckPreview; 2],
}

#[derive(Serialize)]
struct StepPreview<'a> {
    #[serde(rename = "stepId")]
    step_id: &'a str,
    step_type: &'a str,
    service: &'a str,
    max_attempts: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<&'a RawValue>,
}

#[derive(Serialize)]
struct CheckPreview {
    name: &'static str,
    passed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
}

impl CheckPreview {
    fn of<T>(name: &'static str, answer: Result<&T, &Refusal>) -> Self {
        let reason =
            answer.err().map(|refusal| format!("{}: {}", refusal.code(), refusal.message()));
        Self { name, passed: reason.is_none(), reason }
    }
}

/// The preview of an envelope, with the protocol that was found for its type.
pub(super) fn preview(
    envelope: String,
    pinned: &Result<std::sync::Arc<Pinned>, Refusal>,
    limit: usize,
) -> Result<DraftWrite, Refusal> {
    let read = Envelope::read(envelope.as_bytes(), limit);
    let payload = read.as_ref().ok().and_then(|read| serde_json::from_str(&read.payload).ok());
    let protocol = pinned.as_ref().ok().map(|pinned| &pinned.protocol);
    let steps: Vec<_> = protocol
        .into_iter()
        .flat_map(|protocol| protocol.steps.iter().map(move |step| (&protocol.services, step)))
        .map(|(services, step)| StepPreview {
            step_id: &step.step_id,
            step_type: step.kind(),
            service: &step.service,
            max_attempts: step.policy(services.get(&step.service)).retry.max_attempts,
            payload,
        })
        .collect();
    if payload.map_or(0, |payload| payload.get().len()).saturating_mul(steps.len())
        > MAX_PREVIEW_BYTES
    {
        return Err(Refusal::new(Code::InputTooLarge)
            .with("what", "plan preview")
            .with("limit_bytes", MAX_PREVIEW_BYTES));
    }
    let protocol_id = protocol.map(|protocol| protocol.protocol_id.clone());
    let preview = Preview {
        protocol_id: protocol_id.as_deref(),
        steps,
        checks: [
            CheckPreview::of(ENVELOPE, read.as_ref()),
            CheckPreview::of(PROTOCOL, pinned.as_ref()),
        ],
    };
    let preview = serde_json::to_string(&preview).expect("a preview has string keys");
    Ok(DraftWrite { envelope, preview, protocol_id })
}

/// The first check of a stored preview that does not pass.
pub(super) fn blocked(preview: Option<&str>) -> Option<&'static str> {
    #[derive(Deserialize)]
    struct Stored {
        checks: Vec<Checked>,
    }
    #[derive(Deserialize)]
    struct Checked {
        name: String,
        passed: bool,
    }
    let Ok(stored) = serde_json::from_str::<Stored>(preview.unwrap_or_default()) else {
        return Some(ENVELOPE);
    };
    let failed = stored.checks.into_iter().find(|check| !check.passed)?;
    Some(if failed.name == PROTOCOL { PROTOCOL } else { ENVELOPE })
}
