//! What a run looks like from outside, at one moment: for progress, metrics and diagnostics.
//!
//! Taking one costs a short lock and a few reads per thread, never a scan over seqs. The same value is
//! the snapshot that a failure carries.

use serde::{Serialize, Serializer};
use sprag_kernel::State;
use sprag_kernel::machines::SeqState;

use crate::handoff::BatchFigures;
use crate::pressure::Pause;
use crate::tally::{LedgerCounts, Retries, Timings};

/// A run at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Observation {
    /// The commit cursor.
    pub next_commit_seq: u64,
    /// The highest seq dispatched, if any.
    pub max_seen_seq: Option<u64>,
    /// max(0, highest seq dispatched - cursor).
    pub commit_lag: u64,
    /// Seqs in all, once that is known.
    pub total: Option<u64>,
    /// Seqs by ledger state. Those committed by an earlier run are not in it.
    pub ledger: LedgerCounts,
    /// W0 and W1.
    pub windows: Vec<WindowView>,
    /// The seq at the cursor and what it waits for; none when the run is complete.
    pub oldest_blocked: Option<Blocked>,
    /// Bytes of results that wait for their turn.
    pub buffered_bytes: u64,
    /// What pauses dispatch, if anything.
    pub paused_by: Option<Pause>,
    /// Retries by class.
    pub retries: Retries,
    /// Seqs that wait for a retry.
    pub waiting_retries: u64,
    /// Batches so far.
    pub batches: BatchFigures,
    /// Workers that hold a claim.
    pub busy_workers: usize,
    /// Milliseconds since the run began.
    pub elapsed_ms: u64,
    /// Time that the threads spent so far, counted when a claim ends.
    pub timings: Timings,
}

/// A window at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WindowView {
    /// Its number.
    pub window: u64,
    /// Its first seq.
    pub start: u64,
    /// Its last seq so far.
    pub end: u64,
    /// How many of its seqs have been handed to the commit lane.
    pub terminal: u64,
    /// How many are committed.
    pub committed: u64,
    /// Bytes of its results that wait.
    pub buffered_bytes: u64,
}

/// The oldest seq that is not committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Blocked {
    /// The seq.
    pub seq: u64,
    /// Its state.
    #[serde(serialize_with = "by_name")]
    pub state: SeqState,
    /// Its retries so far.
    pub attempts: u16,
    /// Who has it; 0 is nobody.
    pub owner: u16,
    /// What it waits for.
    pub why: Why,
}

/// What the seq at the cursor waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Why {
    /// Nobody has taken it yet.
    NotDispatched,
    /// A worker holds it and has not begun.
    Queued,
    /// A worker computes it.
    Computing,
    /// It waits for its next attempt.
    RetryWait,
    /// It has an outcome that is not written yet.
    Committing,
}

impl Why {
    pub(crate) fn of(state: SeqState, owner: u16) -> Self {
        match state {
            SeqState::Unseen => Self::NotDispatched,
            SeqState::Dispatched if owner == sprag_kernel::decide::seq::NOBODY => Self::RetryWait,
            SeqState::Dispatched => Self::Queued,
            SeqState::InFlight => Self::Computing,
            SeqState::TerminalSuccess
            | SeqState::TerminalSkip
            | SeqState::TerminalFail
            | SeqState::TerminalCancel
            | SeqState::Committed => Self::Committing,
        }
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // the signature that serde calls
fn by_name<S: Serializer>(state: &SeqState, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(state.name())
}
