//! Faults that the schedule explorer plants to prove that it would find them.
//!
//! In this build none is ever planted and the compiler removes every place that asks. The explorer
//! compiles the runtime with its own version of this file.

/// A mistake that somebody could make in this crate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The batch is written after the commit lock was let go.
    AppendOutsideLock,
    /// A result is taken without looking at the generation of its lease.
    MissingGeneration,
    /// The commit lane takes what is there, though the cursor's seq is missing.
    CommitPastGap,
    /// The committer goes home without looking at the inbox once more.
    LostHandOff,
    /// A finished envelope never reaches the commit lane.
    LostEnvelope,
}

/// Whether this fault is planted.
#[inline]
pub(crate) const fn planted(_: Fault) -> bool {
    false
}
