//! The third part of the store seam: the books of batch steps.
//!
//! One row per batch step holds the cursor, what it amounts to so far, and the fence: the attempt that may
//! move it. One journal row per commit holds a contiguous run of outcomes and outputs. The prefix is as long
//! as its journal; nothing is ever taken back.

use std::future::Future;

use serde::Serialize;
use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::Millis;
use sprag_lanes::{Counts, Resume};

use crate::directive::Failure;
use crate::ids::{AttemptKey, EngineNo, JobId};
use crate::store::{Answer, EndWrite};

/// Where a batch step is in its job, whichever attempt works on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchPlace {
    /// The job.
    pub job_id: JobId,
    /// The step.
    pub step_index: u32,
    /// The path of branches to it.
    pub branch: u64,
    /// The turn of the cycle it is in.
    pub turn: u32,
}

impl From<&AttemptKey> for BatchPlace {
    fn from(key: &AttemptKey) -> Self {
        let AttemptKey { job_id, step_index, branch, turn, .. } = *key;
        Self { job_id, step_index, branch, turn }
    }
}

/// How far a batch is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct BatchPoint {
    /// The committed prefix: cursor, counts, and the hashes of its items and outcomes.
    pub resume: Resume,
    /// The first seq that failed.
    pub first_failed: Option<u64>,
    /// Bytes of the ordered output.
    pub out_bytes: u64,
}

/// A contiguous run of outcomes, as the journal keeps it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JournalRow {
    /// Its first seq.
    pub first_seq: u64,
    /// How many seqs.
    pub seqs: u64,
    /// Their outcomes in order, run by run: `98S1K1F` is 98 successes, a skip and a failure; `C` is
    /// cancelled.
    pub outcomes: String,
    /// A line of JSON for each seq that is more than a success at the first try: its reason and retries.
    pub notes: String,
    /// A line of JSON for each success, in order.
    pub outputs: String,
}

/// One commit of a batch.
#[derive(Clone, Debug)]
pub struct BatchWrite {
    /// The attempt that makes it: its place, and the first half of the fence.
    pub key: AttemptKey,
    /// The second half of the fence.
    pub lease_id: LeaseId,
    /// The cursor that the row must have.
    pub from: u64,
    /// What the row says afterwards.
    pub to: BatchPoint,
    /// How many items there are, if that is known.
    pub total: Option<u64>,
    /// The run; none if all that is left to say is that the batch is over.
    pub journal: Option<JournalRow>,
    /// The message that ends the attempt, with the last commit.
    pub end: Option<EndWrite>,
    /// Whether the outcome of this very write was lost.
    pub repeats: bool,
}

/// What became of a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchOutcome {
    /// All of it is durable.
    Committed {
        /// Whether the job is being cancelled, so that the batch should end.
        cancelling: bool,
    },
    /// The cursor or the fence is another, or the attempt is over; nothing was written.
    Stale,
}

/// What became of a commit that brought work along.
#[derive(Clone, Debug)]
pub enum BatchWorked {
    /// All of it is durable, the work included.
    Committed {
        /// Whether the job is being cancelled, so that the batch should end.
        cancelling: bool,
    },
    /// The cursor or the fence is another, or the attempt is over; the work did not run.
    Stale,
    /// The work failed, panicked or took too long; nothing was written.
    Failed(Failure),
}

impl From<BatchOutcome> for BatchWorked {
    fn from(outcome: BatchOutcome) -> Self {
        match outcome {
            BatchOutcome::Committed { cancelling } => Self::Committed { cancelling },
            BatchOutcome::Stale => Self::Stale,
        }
    }
}

/// A batch as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchView {
    /// How far it is.
    pub point: BatchPoint,
    /// How many items there are, if that is known.
    pub total: Option<u64>,
    /// The attempt that moves it.
    pub attempt_no: u32,
    /// Where the cursor was when that attempt took it up.
    pub opened: u64,
    /// Its lease.
    pub lease_id: LeaseId,
    /// When it last moved.
    pub updated_at: Millis,
}

/// How far a batch is that an attempt has taken up last, as it is told beside that attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BatchProgress {
    /// The first seq that is not committed.
    pub cursor: u64,
    /// How many items there are, if that is known.
    pub total: Option<u64>,
    /// What is committed amounts to this.
    pub counts: Counts,
    /// Commits so far: rows of its journal.
    pub commits: u64,
    /// When it last moved.
    pub moved_at: Millis,
}

/// The books of batch steps.
pub trait Batches: Send + Sync + 'static {
    /// An attempt takes up its batch: the row is created, or its fence replaced by this newer one. None if
    /// a newer attempt has it, or if this one is over.
    fn open_batch(
        &self,
        engine: EngineNo,
        key: AttemptKey,
        lease_id: LeaseId,
    ) -> impl Future<Output = Answer<Option<BatchPoint>>> + Send;

    /// Commits a run of outcomes, all in one statement: cursor, counts, journal row, and with the last
    /// one the message that ends the attempt.
    fn commit_batch(
        &self,
        engine: EngineNo,
        write: BatchWrite,
    ) -> impl Future<Output = Answer<BatchOutcome>> + Send;

    /// One batch.
    fn batch(&self, place: BatchPlace) -> impl Future<Output = Answer<Option<BatchView>>> + Send;

    /// The rows of its journal from the one that holds `from_seq` on, at most `limit` of them.
    fn batch_journal(
        &self,
        place: BatchPlace,
        from_seq: u64,
        limit: u32,
    ) -> impl Future<Output = Answer<Vec<JournalRow>>> + Send;
}
