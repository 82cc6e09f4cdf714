//! What a run amounts to, and the point from which another one goes on.

use serde::{Deserialize, Serialize};
use sprag_kernel::machines::SeqState;

use crate::tally::Retries;

/// Committed seqs by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Results written.
    pub success: u64,
    /// Left out for a reason.
    pub skip: u64,
    /// Failed for good.
    pub fail: u64,
    /// Cancelled.
    pub cancel: u64,
}

impl Counts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.success + self.skip + self.fail + self.cancel
    }

    /// Counts a seq that ended in this state.
    pub(crate) fn count(&mut self, state: SeqState) {
        match state {
            SeqState::TerminalSuccess => self.success += 1,
            SeqState::TerminalSkip => self.skip += 1,
            SeqState::TerminalFail => self.fail += 1,
            SeqState::TerminalCancel => self.cancel += 1,
            SeqState::Unseen | SeqState::Dispatched | SeqState::InFlight | SeqState::Committed => {
                unreachable!("{state} is no outcome")
            }
        }
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.success += other.success;
        self.skip += other.skip;
        self.fail += other.fail;
        self.cancel += other.cancel;
    }
}

/// The committed prefix of a run: all that another run needs to go on behind it. Every
/// [`Batch`](crate::Batch) carries the one that holds once it is written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Resume {
    /// The next seq to commit.
    pub cursor: u64,
    /// The committed seqs by outcome.
    pub counts: Counts,
    /// The hash over (seq, outcome, payload) of the committed seqs.
    pub outcome_hash: u64,
    /// The hash of the configuration and of the entries before the cursor. Not looked at while the
    /// cursor is 0.
    pub input_hash: [u8; 32],
}

/// How a run ended, short of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// Every seq is committed.
    Complete,
    /// Every seq is committed; what had not ended in time is committed as cancelled.
    Cancelled,
    /// Asked to stop: the contiguous prefix is committed, the rest is for a resumed run.
    Stopped,
}

/// The result of a run. All but `retries` is the same for the same input and configuration, whatever
/// the number of threads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Summary {
    /// How it ended.
    pub ending: Ending,
    /// Seqs discovered; for a stopped run the cursor.
    pub total: u64,
    /// Committed seqs by outcome, those of earlier runs included.
    pub counts: Counts,
    /// The hash of the configuration and of the entries before the cursor.
    pub plan_hash: [u8; 32],
    /// The hash over (seq, outcome, payload).
    pub outcome_hash: u64,
    /// Retries in this run, by class.
    pub retries: Retries,
}

impl Summary {
    /// The point from which a resumed run goes on.
    pub fn resume(&self) -> Resume {
        Resume {
            cursor: self.counts.total(),
            counts: self.counts,
            outcome_hash: self.outcome_hash,
            input_hash: self.plan_hash,
        }
    }
}
