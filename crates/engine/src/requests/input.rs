//! Reading what a caller sends about a request, before anything is stored.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::Value;
use serde_json::value::RawValue;
use sprag_kernel::canon::{canonical, canonical_members};
use sprag_kernel::keys::{Hash, RequestKey};
use sprag_kernel::{Code, Refusal};

use super::store::{NewRequest, RequestFacts};
use crate::ids::RequestId;
use crate::limits::check_nul;
use crate::names::check_name;

/// The longest requirement, in bytes: a page of text.
pub const MAX_REQUIREMENT_BYTES: usize = 16 << 10;

/// The fields of a request besides those that its key is made of.
const CONTENT: [&str; 2] = ["inputs", "envelope"];

#[derive(Deserialize)]
struct Raw<'a> {
    tenant_id: Option<String>,
    request_type: Option<String>,
    #[serde(borrow)]
    inputs: Option<&'a RawValue>,
    requirement: Option<Value>,
    #[serde(borrow)]
    plan_revision: Option<&'a RawValue>,
    #[serde(borrow)]
    envelope: Option<&'a RawValue>,
}

/// Reads `{tenant_id, request_type, inputs: {fingerprint}, requirement, plan_revision, envelope}`.
pub(super) fn read_request(document: &[u8], limit: usize) -> Result<NewRequest, Refusal> {
    expect_size("request", document, limit)?;
    // First: its refusals name the place, and it bounds the depth for all that follows.
    let content =
        canonical_members(document, &CONTENT).map_err(|refusal| match refusal.code() {
            Code::EnvelopeInvalid => {
                Refusal::new(Code::RequestInvalid).with("reason", "is no object")
            }
            _ => refusal,
        })?;
    let content = Hash::of(content.as_bytes());
    check_nul("request", document)?;
    let raw: Raw<'_> = serde_json::from_slice(document).map_err(|error| invalid(&error))?;
    let tenant_id = name("tenant_id", raw.tenant_id)?;
    let request_type = name("request_type", raw.request_type)?;
    let inputs = raw.inputs.map_or("{}", RawValue::get).to_owned();
    let fingerprint = fingerprint(&inputs)?;
    let requirement = optional_text("requirement", raw.requirement)?;
    if requirement.len() > MAX_REQUIREMENT_BYTES {
        return Err(Refusal::new(Code::InputTooLarge)
            .with("what", "requirement")
            .with("limit_bytes", MAX_REQUIREMENT_BYTES));
    }
    let plan_revision = plan_revision(raw.plan_revision)?;
    let key = RequestKey {
        fingerprint: &fingerprint,
        requirement: &requirement,
        plan_revision: &plan_revision,
    }
    .hash();
    let envelope = merge(raw.envelope, &tenant_id, &request_type)?;
    let request_id = RequestId::new();
    let facts = RequestFacts {
        request_id,
        tenant_id,
        request_type,
        key,
        content,
        inputs,
        requirement,
        plan_revision,
    };
    Ok(NewRequest { facts, envelope })
}

/// Reads `{envelope}` or nothing: the edit of a draft.
pub(super) fn read_edit(
    document: &[u8],
    facts: &RequestFacts,
    limit: usize,
) -> Result<Option<String>, Refusal> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Edit<'a> {
        #[serde(borrow, default)]
        envelope: Option<&'a RawValue>,
    }
    expect_size("draft", document, limit)?;
    if document.trim_ascii().is_empty() {
        return Ok(None);
    }
    canonical(document)?;
    check_nul("draft", document)?;
    let edit: Edit<'_> = serde_json::from_slice(document).map_err(|error| invalid(&error))?;
    let merged = edit.envelope.map(|text| merge(Some(text), &facts.tenant_id, &facts.request_type));
    merged.transpose()
}

/// The key of `{fingerprint, requirement, plan_revision}`; null and absent are the same.
pub fn request_key(document: &[u8]) -> Result<Hash, Refusal> {
    #[derive(Deserialize)]
    struct Parts<'a> {
        #[serde(default)]
        fingerprint: Option<Value>,
        #[serde(default)]
        requirement: Option<Value>,
        #[serde(borrow, default)]
        plan_revision: Option<&'a RawValue>,
    }
    let text = canonical(document)?;
    let parts: Parts<'_> = serde_json::from_str(&text)
        .map_err(|error| Refusal::new(Code::RequestKeyInvalid).with("reason", error.to_string()))?;
    let fingerprint = optional_text("fingerprint", parts.fingerprint)?;
    let requirement = optional_text("requirement", parts.requirement)?;
    let plan_revision = plan_revision(parts.plan_revision)?;
    let key = RequestKey {
        fingerprint: &fingerprint,
        requirement: &requirement,
        plan_revision: &plan_revision,
    };
    Ok(key.hash())
}

fn expect_size(what: &'static str, document: &[u8], limit: usize) -> Result<(), Refusal> {
    if document.len() <= limit {
        return Ok(());
    }
    Err(Refusal::new(Code::InputTooLarge).with("what", what).with("limit_bytes", limit))
}

fn invalid(error: &serde_json::Error) -> Refusal {
    Refusal::new(Code::RequestInvalid).with("reason", error.to_string())
}

fn name(field: &'static str, value: Option<String>) -> Result<String, Refusal> {
    let name = value.ok_or_else(|| {
        Refusal::new(Code::RequestInvalid).with("field", field).with("reason", "is missing")
    })?;
    check_name(field, &name)?;
    Ok(name)
}

fn optional_text(field: &'static str, value: Option<Value>) -> Result<String, Refusal> {
    match value {
        None | Some(Value::Null) => Ok(String::new()),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(Refusal::new(Code::RequestKeyInvalid).with("field", field)),
    }
}

fn fingerprint(inputs: &str) -> Result<String, Refusal> {
    let inputs: BTreeMap<String, Value> = serde_json::from_str(inputs).map_err(|_| {
        Refusal::new(Code::RequestInvalid).with("field", "inputs").with("reason", "is no object")
    })?;
    optional_text("inputs.fingerprint", inputs.get("fingerprint").cloned())
}

/// A number is its exact decimal, so that it is the same revision as its text.
fn plan_revision(value: Option<&RawValue>) -> Result<String, Refusal> {
    match value.map(RawValue::get) {
        None => Ok(String::new()),
        Some(number) if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
            canonical(number.as_bytes())
        }
        Some(other) => {
            let value = serde_json::from_str(other).unwrap_or(Value::Bool(false));
            optional_text("plan_revision", Some(value))
        }
    }
}

/// The envelope of the request's jobs: what was sent, with the request's own tenant and type.
fn merge(
    envelope: Option<&RawValue>,
    tenant_id: &str,
    request_type: &str,
) -> Result<String, Refusal> {
    let refused = |field: &'static str, reason: &'static str| {
        Refusal::new(Code::EnvelopeInvalid).with("field", field).with("reason", reason)
    };
    let text = envelope.map_or("{}", RawValue::get);
    let mut members: BTreeMap<String, Box<RawValue>> =
        serde_json::from_str(text).map_err(|_| refused("envelope", "is no object"))?;
    if members.contains_key("idempotency_key") {
        return Err(refused("idempotency_key", "the runs of a request have keys of their own"));
    }
    for (field, own) in [("tenant_id", tenant_id), ("request_type", request_type)] {
        if let Some(given) = members.get(field) {
            let given: Value = serde_json::from_str(given.get()).unwrap_or_default();
            if given.as_str().is_none_or(|given| given != own) {
                return Err(refused(field, "is not that of the request"));
            }
        }
        let own = RawValue::from_string(Value::from(own).to_string());
        members.insert(field.to_owned(), own.expect("text is JSON"));
    }
    Ok(serde_json::to_string(&members).expect("members have string keys"))
}
