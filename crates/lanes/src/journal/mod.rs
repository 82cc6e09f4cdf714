//! The journal of a run: what was committed, so that a killed run goes on where it stopped.
//!
//! One writer, behind the commit lane, appends: for each committed run of seqs a terminal record (how
//! they ended) and a commit record (how far the sink is), now and then a checkpoint. The committed
//! prefix and its outcomes are durable; who was computing what is not written, it dies with the
//! process. The order is the caller's promise: the sink is durable before its commit is appended,
//! so the journal never knows more than the sink holds.
//!
//! | file | owns |
//! |---|---|
//! | `header`, `frame`, `record`, `varint`, `outcome` | the bytes |
//! | `state`, `replay` | from bytes to a [`RunState`], or the place of the damage |
//! | `log`, `medium`, `fault` | from commits to bytes, one seam for every write |
//! | `file`, `lock` | the file: create, open, compact, one process at a time |
//! | `sink`, `thread` | the journal behind a sink of the lanes, written beside them |
//!
//! What can fail: a torn tail is cut and reported ([`Torn`]); damage before the tail, two outcomes
//! for a seq, a journal of another run or plan, or one in use is refused and left as it is.
//!
//! ```
//! use sprag_lanes::journal::{CommitRun, Ended, Ending, Identity, Journal, Outcome, Settings};
//!
//! let folder = tempfile::tempdir().unwrap();
//! let path = folder.path().join("run.journal");
//! let identity = Identity::of(b"demo");
//!
//! let (mut journal, _) = Journal::open_or_create(&path, &identity, Settings::default())?;
//! let ends = [Ended { outcome: Outcome::Success, attempts: 0 }; 3];
//! let run = CommitRun { first_seq: 0, ends: &ends, mark: 42, input_hash: [2; 32], outcome_hash: 3 };
//! journal.append(&run, 0)?;
//! drop(journal); // a crash looks the same
//!
//! let (_, found) = Journal::open_or_create(&path, &identity, Settings::default())?;
//! assert_eq!(found.state.cursor(), 3);
//! assert_eq!(found.state.last.mark, 42);
//! # Ok::<(), sprag_kernel::Refusal>(())
//! ```

pub mod fault;
mod file;
mod frame;
mod header;
mod lock;
mod log;
mod medium;
mod outcome;
mod record;
mod replay;
mod sink;
mod state;
#[cfg(test)]
mod tests;
mod thread;
mod varint;

use sprag_kernel::retry::Millis;

pub use file::{Journal, inspect};
pub use header::MAX_NOTE;
pub use outcome::{Ended, EqualRun, Outcome, Outcomes};
pub use replay::{Replay, Torn, replay};
pub use sink::{JournalSink, MarkedSink};
pub use state::{CommitPoint, Counts, Ending, InputCheck, MAX_POINTS, RunState};
pub use thread::Syncer;

/// Names a run. Made by the caller; the same run has the same id at its resume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RunId(pub [u8; 16]);

/// What makes a journal this run's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The run.
    pub run_id: RunId,
    /// The hash of what must not change between resumes besides the input: the configuration.
    pub plan_hash: [u8; 32],
    /// Words for whoever looks at the journal, at most [`MAX_NOTE`] bytes. Not compared.
    pub note: Vec<u8>,
}

impl Identity {
    /// Of the run that these words name, and nothing else: the same words, the same run.
    pub fn of(words: &[u8]) -> Self {
        let run_id = RunId(xxhash_rust::xxh3::xxh3_128(words).to_le_bytes());
        let note = words[..words.len().min(MAX_NOTE)].to_vec();
        Self { run_id, plan_hash: [0; 32], note }
    }
}

/// When an appended commit is made to survive a loss of power. A killed process loses nothing that was
/// appended, whatever the policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncPolicy {
    /// Never; the system decides. After a loss of power the journal may be refused.
    None,
    /// In groups: a sync covers all commits of [`Settings::sync_wait_ms`] or
    /// [`Settings::sync_bytes`], whichever is first.
    Batch,
    /// Before `append` returns.
    Always,
}

/// How a journal is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// When to sync.
    pub sync: SyncPolicy,
    /// The longest that a commit waits for its group.
    pub sync_wait_ms: Millis,
    /// The most bytes that wait for their group.
    pub sync_bytes: u64,
    /// How long a [`JournalSink`] gathers commits before it appends them as one.
    pub gather_ms: Millis,
    /// Room is taken in pieces of this size.
    pub segment_bytes: u64,
    /// Commits between two checkpoints.
    pub checkpoint_every: u32,
    /// A checkpoint compacts a journal that has grown by this much since the last time.
    pub compact_bytes: u64,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            sync: SyncPolicy::Batch,
            sync_wait_ms: 20,
            sync_bytes: 64 << 10,
            gather_ms: 5,
            segment_bytes: 256 << 10,
            checkpoint_every: 1024,
            compact_bytes: 4 << 20,
        }
    }
}

/// A contiguous run of seqs that the sink has taken.
#[derive(Clone, Copy, Debug)]
pub struct CommitRun<'a> {
    /// The first of them.
    pub first_seq: u64,
    /// How each ended.
    pub ends: &'a [Ended],
    /// What the sink says it holds now; never less than before.
    pub mark: u64,
    /// The rolling hash of the input up to the end of this run.
    pub input_hash: [u8; 32],
    /// The rolling hash of the outcomes up to the end of this run.
    pub outcome_hash: u64,
}

impl CommitRun<'_> {
    /// The seq behind the last of them.
    pub fn end_seq(&self) -> u64 {
        self.first_seq + self.ends.len() as u64
    }

    fn point(&self) -> CommitPoint {
        CommitPoint {
            end_seq: self.end_seq(),
            mark: self.mark,
            input_hash: self.input_hash,
            outcome_hash: self.outcome_hash,
        }
    }
}
