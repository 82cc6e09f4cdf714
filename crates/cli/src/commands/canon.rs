//! `sprag canon`: canonical text, hashes and keys of a JSON document from stdin.

use std::io;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sprag_kernel::canon::canonical;
use sprag_kernel::keys::{Hash, RequestKey, canonical_envelope};
use sprag_kernel::{Code, Refusal};

use super::read_all;
use crate::output::{Failure, Output};

/// Arguments of `sprag canon`.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  echo '{\"b\":1.50,\"a\":null}' | sprag canon            {\"b\":1.5}
  sprag canon --hash < document.json
  sprag canon --envelope --hash < envelope.json         the hash that tells repeats
  echo '{\"fingerprint\":\"abc\",\"requirement\":\"hello\"}' | sprag canon --request-key")]
pub struct CanonArgs {
    /// Print the SHA-256 of the canonical text instead of the text.
    #[arg(long)]
    hash: bool,
    /// Keep only the six fields of an envelope that make it unique.
    #[arg(long, conflicts_with = "request_key")]
    envelope: bool,
    /// Read {"fingerprint", "requirement", "plan_revision"} and print the request key.
    #[arg(long)]
    request_key: bool,
    /// Refuse more input than this many bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 256 << 20)]
    max_bytes: u64,
}

#[derive(Serialize)]
struct HashAnswer {
    hash: String,
}

#[derive(Serialize)]
struct KeyAnswer {
    key: String,
}

/// Runs `sprag canon`.
pub fn run(args: &CanonArgs, output: &mut Output) -> Result<(), Failure> {
    let document = read_all(io::stdin().lock(), "standard input", args.max_bytes)?;
    if args.request_key {
        let key = request_key(&document)?.to_string();
        return if output.is_json() { output.json(&KeyAnswer { key }) } else { output.line(key) };
    }
    let text = if args.envelope { canonical_envelope(&document)? } else { canonical(&document)? };
    if !args.hash {
        return output.line(text);
    }
    let hash = Hash::of(text.as_bytes()).to_string();
    if output.is_json() { output.json(&HashAnswer { hash }) } else { output.line(hash) }
}

/// What names a request, as a document. Null and absent are the same.
#[derive(Deserialize)]
struct RequestKeyInput<'a> {
    #[serde(default)]
    fingerprint: Option<serde_json::Value>,
    #[serde(default)]
    requirement: Option<serde_json::Value>,
    #[serde(borrow, default)]
    plan_revision: Option<&'a RawValue>,
}

fn request_key(document: &[u8]) -> Result<Hash, Refusal> {
    // Canonical first: its refusals name the place, and a number is its exact decimal.
    let text = canonical(document)?;
    let input: RequestKeyInput<'_> = serde_json::from_str(&text)
        .map_err(|error| Refusal::new(Code::RequestKeyInvalid).with("reason", error.to_string()))?;
    let fingerprint = optional_text("fingerprint", input.fingerprint)?;
    let requirement = optional_text("requirement", input.requirement)?;
    let plan_revision = match input.plan_revision.map(RawValue::get) {
        None => String::new(),
        Some(number) if number.starts_with(|c: char| c == '-' || c.is_ascii_digit()) => {
            number.to_owned()
        }
        Some(other) => {
            let value = serde_json::from_str(other).unwrap_or(serde_json::Value::Null);
            optional_text("plan_revision", Some(value))?
        }
    };
    let key = RequestKey {
        fingerprint: &fingerprint,
        requirement: &requirement,
        plan_revision: &plan_revision,
    };
    Ok(key.hash())
}

fn optional_text(field: &'static str, value: Option<serde_json::Value>) -> Result<String, Refusal> {
    match value {
        None => Ok(String::new()),
        Some(serde_json::Value::String(text)) => Ok(text),
        Some(_) => Err(Refusal::new(Code::RequestKeyInvalid).with("field", field)),
    }
}
