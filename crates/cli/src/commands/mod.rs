//! One file per command.

pub mod canon;
pub mod completions;
pub mod docs;
pub mod events;
pub mod inbox;
pub mod job;
pub mod ledger;
pub mod machines;
pub mod move_store;
pub mod plan;
pub mod protocol;
pub mod request;
pub mod schedule;
pub mod serve;
pub mod service;
pub mod signal;
pub mod submit;
pub mod tenant;
pub mod token;
pub mod verify;
pub mod worker;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sprag_kernel::{Code, Refusal};

use crate::output::unreadable;

/// Reads a whole stream, up to a limit.
fn read_all(source: impl Read, what: &str, limit: u64) -> Result<Vec<u8>, Refusal> {
    let mut bytes = Vec::new();
    let mut limited = source.take(limit + 1);
    limited.read_to_end(&mut bytes).map_err(|error| unreadable(what, &error))?;
    if bytes.len() as u64 > limit {
        return Err(Refusal::new(Code::InputTooLarge)
            .with("what", what.to_owned())
            .with("limit_bytes", limit));
    }
    Ok(bytes)
}

/// Reads a whole file, or standard input for `-`, up to a limit.
fn read_file(path: &Path, limit: u64) -> Result<Vec<u8>, Refusal> {
    if path.as_os_str() == "-" {
        return read_all(std::io::stdin().lock(), "standard input", limit);
    }
    let name = path.display().to_string();
    let file = File::open(path).map_err(|error| unreadable(&name, &error))?;
    read_all(file, &name, limit)
}
