//! The draft: what a request would do, worked out before it does anything. The protocol that serves it,
//! its steps with what they are handed, and every check with whether it passes. A draft with a check that
//! does not pass can be looked at and mended, not confirmed. So what is confirmed can be submitted: whatever
//! a submit asks of an envelope is a check here.

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sprag_kernel::{Code, Refusal};

use super::store::DraftWrite;
use crate::engine::Pinned;
use crate::envelope::Envelope;
use crate::protocol::{Protocol, Step};

/// The largest preview that is kept: it repeats the payload for each step.
pub const MAX_PREVIEW_BYTES: usize = 4 << 20;

/// The envelope is one that a job can be submitted with.
const ENVELOPE: &str = "envelope";
/// A registered protocol serves the request type.
const PROTOCOL: &str = "protocol";
/// The protocol's schemas take the payload; asked if there are both.
const PAYLOAD: &str = "payload";

#[derive(Serialize)]
struct Preview<'a> {
    protocol_id: Option<&'a str>,
    steps: Vec<StepPreview<'a>>,
    checks: Vec<CheckPreview>,
}

#[derive(Serialize)]
struct StepPreview<'a> {
    #[serde(rename = "stepId")]
    step_id: &'a str,
    step_type: &'a str,
    /// What does it: `service`, `exec`, `http`, `batch`, `job`, `wait`, `sleep`, or `steps` for one that is made
    /// of others.
    kind: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    service: &'a str,
    /// The step that runs it, if it is inside of one.
    #[serde(skip_serializing_if = "Option::is_none")]
    within: Option<&'a str>,
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

impl<'a> StepPreview<'a> {
    /// These steps and those inside of them, each followed by its own.
    fn list(
        protocol: &'a Protocol,
        steps: &'a [Step],
        within: Option<&'a str>,
        payload: Option<&'a RawValue>,
        list: &mut Vec<Self>,
    ) {
        for step in steps {
            let defaults = protocol.services.get(&step.service);
            list.push(Self {
                step_id: &step.step_id,
                step_type: step.kind(),
                kind: step.done_by(),
                service: &step.service,
                within,
                max_attempts: step.policy(defaults).retry.max_attempts,
                payload: payload.filter(|_| step.is_work()),
            });
            Self::list(protocol, &step.steps, Some(&step.step_id), payload, list);
        }
    }
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
    let mut steps = Vec::new();
    if let Some(protocol) = protocol {
        StepPreview::list(protocol, &protocol.steps, None, payload, &mut steps);
    }
    let handed = steps.iter().filter(|step| step.payload.is_some()).count();
    if payload.map_or(0, |payload: &RawValue| payload.get().len()).saturating_mul(handed)
        > MAX_PREVIEW_BYTES
    {
        return Err(Refusal::new(Code::InputTooLarge)
            .with("what", "plan preview")
            .with("limit_bytes", MAX_PREVIEW_BYTES));
    }
    let protocol_id = protocol.map(|protocol| protocol.protocol_id.clone());
    let mut checks = vec![
        CheckPreview::of(ENVELOPE, read.as_ref()),
        CheckPreview::of(PROTOCOL, pinned.as_ref()),
    ];
    if let (Ok(read), Ok(pinned)) = (&read, pinned) {
        let answer = pinned.graph.check_submitted(&read.payload);
        checks.push(CheckPreview::of(PAYLOAD, answer.as_ref()));
    }
    let preview = Preview { protocol_id: protocol_id.as_deref(), steps, checks };
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
    Some([PROTOCOL, PAYLOAD].into_iter().find(|name| failed.name == *name).unwrap_or(ENVELOPE))
}
