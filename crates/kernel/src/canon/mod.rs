//! Canonical JSON: one text for all spellings of the same document.
//!
//! - null members of objects are dropped at every depth, nulls in arrays stay;
//! - members are sorted by the UTF-8 bytes of their names; of equal names the last one counts;
//! - strings are raw UTF-8; only `"`, `\` and control characters are escaped; no normalisation;
//! - numbers are exact decimals in plain notation: `1.50e1` is `15`, `-0` is `0`;
//! - no white space.
//!
//! The walk is one pass over the bytes with its own stack. What is canonical already is copied in
//! one piece, so a document that needs no change costs a scan and a copy.

mod number;
mod string;
mod walk;

use crate::error::{Code, Refusal};

/// How deep arrays and objects may nest.
pub const MAX_DEPTH: usize = 128;
/// How long the canonical text of a number may be.
pub const MAX_NUMBER_CHARS: usize = 512;

/// The canonical text of one JSON document.
pub fn canonical(input: &[u8]) -> Result<String, Refusal> {
    walk::canonical(input, None)
}

/// The canonical text of one JSON object, of which only these members are kept.
pub fn canonical_members(input: &[u8], keep: &[&str]) -> Result<String, Refusal> {
    walk::canonical(input, Some(keep))
}

/// Text as a canonical JSON string.
pub fn quoted(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len() + 2);
    out.push(b'"');
    text.chars().for_each(|character| string::write(character, &mut out));
    out.push(b'"');
    String::from_utf8(out).expect("made of characters")
}

/// The refusal for a byte that cannot stand where it stands.
#[cold]
fn invalid(at: usize, reason: &'static str) -> Refusal {
    Refusal::new(Code::JsonInvalid).with("byte", at).with("reason", reason)
}
