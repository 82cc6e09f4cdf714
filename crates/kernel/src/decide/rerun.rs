//! Rerun: an ended job is never resumed or resubmitted. Whoever wants it again asks for a new job that
//! names the old one.

use crate::error::{Code, Refusal};
use crate::keys::DedupKey;
use crate::machine::State;
use crate::machines::JobState;

/// Refuses the rerun of a job that is open or has succeeded, or whose runs are decided elsewhere.
pub fn rerun(state: JobState, dedup_key: &str) -> Result<(), Refusal> {
    if !DedupKey::is_plain(dedup_key) {
        return Err(Refusal::new(Code::JobNotPlain).with("dedup_key", dedup_key.to_owned()));
    }
    if has_ended_badly(state) {
        Ok(())
    } else {
        Err(Refusal::new(Code::JobNotFailed).with("state", state.name()))
    }
}

/// Whether a job in this state may be run again; if a rerun of it is in this state, so may be that one.
pub fn has_ended_badly(state: JobState) -> bool {
    match state {
        JobState::FailedFinal | JobState::Cancelled => true,
        JobState::Queued
        | JobState::Dispatching
        | JobState::InProgress
        | JobState::Cancelling
        | JobState::Succeeded => false,
    }
}
