//! The inbox: envelopes that users write inside of their own transactions, and engines turn into jobs.
//!
//! What a transaction writes there is raw: whether it is an envelope at all is decided later, by the same
//! rules as any other submit. The row is marked in the transaction that creates its job, so that it becomes
//! one job however often an engine dies over it; what is refused keeps its refusal on the row.

use sprag_kernel::Refusal;
use sprag_kernel::retry::Millis;

use crate::ids::JobId;
use crate::store::{AttemptError, NewJob};

/// How many envelopes one transaction turns into jobs.
pub const INBOX_SLICE: u32 = 200;
/// How many bytes of envelopes are read at a time, but for the last one of them: who may write to the inbox may write as much
/// as the store takes, and an engine must hold what it reads.
pub const INBOX_SLICE_BYTES: usize = 16 * 1024 * 1024;
/// How long a row is kept after it was taken, for whoever wants to know what became of it.
pub const INBOX_KEPT_MS: Millis = 7 * 24 * 60 * 60 * 1_000;

/// One row of the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InboxId(pub i64);

impl std::fmt::Display for InboxId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// An envelope that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// Its row.
    pub inbox_id: InboxId,
    /// As it was written; absent if it is larger than was asked for.
    pub envelope: Option<String>,
    /// What its job is known by, if the row says so; the envelope's own key otherwise.
    pub dedup_key: Option<String>,
}

/// What an envelope of the inbox becomes.
#[derive(Clone, Debug)]
pub struct TakeIn {
    /// Its row.
    pub inbox_id: InboxId,
    /// The job to create, or why there is none.
    pub job: Result<NewJob, Refusal>,
}

/// A row of the inbox as it is shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InboxView {
    /// The row.
    pub inbox_id: InboxId,
    /// When it was written.
    pub submitted_at: Millis,
    /// When an engine took it.
    pub taken_at: Option<Millis>,
    /// The job it became, or was already.
    pub job_id: Option<JobId>,
    /// Why it became none.
    pub error: Option<AttemptError>,
}

/// Which rows of the inbox to list.
#[derive(Clone, Debug, Default)]
pub struct InboxFilter {
    /// Only those that were refused.
    pub refused: bool,
    /// Before this one (the newest come first).
    pub before: Option<InboxId>,
    /// At most so many.
    pub limit: u32,
}
