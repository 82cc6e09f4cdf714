//! The envelope: what a caller submits, read and checked before anything is stored.

use serde::Deserialize;
use serde_json::value::RawValue;
use sprag_kernel::keys::{DedupKey, Hash, Mode, Route, envelope_hash, route};
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use crate::limits::{MAX_PRIORITY, check_json};
use crate::names::check_name;

/// A checked envelope.
#[derive(Clone, Debug)]
pub struct Envelope {
    /// Whose job it is.
    pub tenant_id: String,
    /// What is asked for; names the protocol.
    pub request_type: String,
    /// Where the input is: JSON text of a string or an object, opaque to the engine.
    pub input_ref: String,
    /// Where the output goes: JSON text, opaque to the engine.
    pub output_ref: String,
    /// JSON text.
    pub payload: String,
    /// The version of the payload's schema.
    pub schema_version: String,
    /// The caller's own key.
    pub idempotency_key: Option<String>,
    /// Which document, for mode BURST.
    pub doc_id: Option<String>,
    /// How jobs are spread over lanes.
    pub mode: Mode,
    /// Handed through.
    pub correlation_id: Option<String>,
    /// Handed through.
    pub traceparent: Option<String>,
    /// Not to start before.
    pub not_before: Option<Millis>,
    /// Higher goes first.
    pub priority: i32,
    /// The hash of the six fields.
    pub hash: Hash,
    /// The lane.
    pub route: Route,
}

#[derive(Deserialize)]
struct Raw<'a> {
    tenant_id: Option<String>,
    request_type: Option<String>,
    #[serde(borrow)]
    input_ref: Option<&'a RawValue>,
    #[serde(borrow)]
    output_ref: Option<&'a RawValue>,
    #[serde(borrow)]
    payload: Option<&'a RawValue>,
    schema_version: Option<String>,
    idempotency_key: Option<String>,
    mode: Option<String>,
    doc_id: Option<String>,
    correlation_id: Option<String>,
    traceparent: Option<String>,
    not_before: Option<Millis>,
    priority: Option<i32>,
}

impl Envelope {
    /// What is said of one that is larger than so many bytes.
    pub(crate) fn too_large(limit: usize) -> Refusal {
        Refusal::new(Code::InputTooLarge).with("what", "envelope").with("limit_bytes", limit)
    }

    /// Reads an envelope of at most `limit` bytes.
    pub fn read(text: &[u8], limit: usize) -> Result<Self, Refusal> {
        if text.len() > limit {
            return Err(Self::too_large(limit));
        }
        // First: its refusals name the place, and it bounds the depth for all that follows.
        let hash = envelope_hash(text)?;
        let raw: Raw<'_> = serde_json::from_slice(text).map_err(|error| {
            Refusal::new(Code::EnvelopeInvalid).with("reason", error.to_string())
        })?;
        let tenant_id = name("tenant_id", raw.tenant_id)?;
        let mode = mode(raw.mode.as_deref())?;
        Ok(Self {
            route: route(&tenant_id, mode, raw.doc_id.as_deref())?,
            request_type: name("request_type", raw.request_type)?,
            input_ref: reference("input_ref", raw.input_ref)?,
            output_ref: reference("output_ref", raw.output_ref)?,
            payload: json("payload", raw.payload)?,
            schema_version: name("schema_version", raw.schema_version)?,
            idempotency_key: optional_name("idempotency_key", raw.idempotency_key)?,
            doc_id: optional_name("doc_id", raw.doc_id)?,
            correlation_id: optional_name("correlation_id", raw.correlation_id)?,
            traceparent: optional_name("traceparent", raw.traceparent)?,
            not_before: raw.not_before,
            priority: priority(raw.priority)?,
            tenant_id,
            mode,
            hash,
        })
    }

    /// What makes the job unique in its tenant.
    pub fn dedup_key(&self) -> String {
        match &self.idempotency_key {
            Some(key) => DedupKey::Given(key).to_string(),
            None => DedupKey::Content(self.hash).to_string(),
        }
    }
}

fn required<T>(field: &'static str, value: Option<T>) -> Result<T, Refusal> {
    value.ok_or_else(|| {
        Refusal::new(Code::EnvelopeInvalid).with("field", field).with("reason", "is missing")
    })
}

fn name(field: &'static str, value: Option<String>) -> Result<String, Refusal> {
    let name = required(field, value)?;
    check_name(field, &name)?;
    Ok(name)
}

fn optional_name(field: &'static str, value: Option<String>) -> Result<Option<String>, Refusal> {
    value.map(|value| name(field, Some(value))).transpose()
}

/// JSON text that every store can keep. Its size is that of the envelope at most.
fn json(field: &'static str, value: Option<&RawValue>) -> Result<String, Refusal> {
    let text = required(field, value)?.get();
    check_json(field, text, usize::MAX)?;
    Ok(text.to_owned())
}

/// A reference is text, or an object with a `uri`.
fn reference(field: &'static str, value: Option<&RawValue>) -> Result<String, Refusal> {
    #[derive(Deserialize)]
    struct Object {
        #[serde(rename = "uri")]
        _uri: String,
    }
    let text = json(field, value)?;
    let is_text = serde_json::from_str::<String>(&text).is_ok();
    if is_text || serde_json::from_str::<Object>(&text).is_ok() {
        return Ok(text);
    }
    Err(Refusal::new(Code::EnvelopeInvalid)
        .with("field", field)
        .with("reason", "is neither text nor an object with a uri"))
}

fn priority(given: Option<i32>) -> Result<i32, Refusal> {
    let priority = given.unwrap_or(0);
    if priority.unsigned_abs() > MAX_PRIORITY.unsigned_abs() {
        let reason = format!("is not from -{MAX_PRIORITY} to {MAX_PRIORITY}");
        return Err(Refusal::new(Code::EnvelopeInvalid)
            .with("field", "priority")
            .with("reason", reason));
    }
    Ok(priority)
}

fn mode(mode: Option<&str>) -> Result<Mode, Refusal> {
    match mode {
        None | Some("DEFAULT") => Ok(Mode::Default),
        Some("BURST") => Ok(Mode::Burst),
        Some(other) => Err(Refusal::new(Code::EnvelopeInvalid)
            .with("field", "mode")
            .with("given", other.to_owned())),
    }
}
