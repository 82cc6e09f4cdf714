//! Faults that a test plants on its own thread; the explorer's tasks all run on that thread.

use std::cell::Cell;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    AppendOutsideLock,
    MissingGeneration,
    CommitPastGap,
    LostHandOff,
    LostEnvelope,
}

thread_local! {
    static PLANTED: Cell<Option<Fault>> = const { Cell::new(None) };
}

pub(crate) fn planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Runs something with a fault in place.
pub(crate) fn with_planted<A>(fault: Fault, run: impl FnOnce() -> A) -> A {
    PLANTED.set(Some(fault));
    let answer = run();
    PLANTED.set(None);
    answer
}
