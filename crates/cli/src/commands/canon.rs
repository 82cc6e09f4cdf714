//! `sprag canon`: canonical text, hashes and keys of a JSON document from stdin.

use std::io;

use clap::Args;
use serde::Serialize;
use sprag_engine::requests::request_key;
use sprag_kernel::canon::canonical;
use sprag_kernel::keys::{Hash, canonical_envelope};

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
