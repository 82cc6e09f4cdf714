//! Seq: one item of a batch, in the order-contiguous runtime.

use crate::machine::machine;

machine! {
    /// The state of a seq.
    SeqState, SeqTrigger: "seq", starts Unseen,
    same NoOpIfTerminal, illegal Fatal as SeqIllegalTransition;
    states {
        /// Discovered, not dispatched.
        Unseen = 0 "UNSEEN" open,
        /// Given to an owner.
        Dispatched = 1 "DISPATCHED" open,
        /// The owner computes.
        InFlight = 2 "IN_FLIGHT" open,
        /// Computed; waits for its turn to commit.
        TerminalSuccess = 3 "TERMINAL_SUCCESS" open,
        /// Left out for a reason; waits for its turn.
        TerminalSkip = 4 "TERMINAL_SKIP" open,
        /// Failed for good; waits for its turn.
        TerminalFail = 5 "TERMINAL_FAIL" open,
        /// Cancelled; waits for its turn.
        TerminalCancel = 6 "TERMINAL_CANCEL" open,
        /// Behind the commit cursor.
        Committed = 7 "COMMITTED" terminal,
    }
    triggers {
        /// The dispatcher gave it to an owner.
        Dispatch = "dispatch",
        /// The owner began.
        Start = "start",
        /// The owner has a payload.
        Succeed = "succeed",
        /// The owner has a reason to leave it out.
        Skip = "skip",
        /// The attempt failed.
        Fail = "fail",
        /// Cancelled, before the work or after the grace.
        Cancel = "cancel",
        /// The failed attempt is followed by another one.
        Retry = "retry",
        /// The commit lane passed it.
        Commit = "commit",
    }
    transitions {
        Unseen > Dispatched on [Dispatch] if "the seq is in an active window; an owner and a generation are set", Spec;
        Dispatched > InFlight on [Start] if "owner and generation match", Spec;
        InFlight > TerminalSuccess on [Succeed] if "owner and generation match", Spec;
        InFlight > TerminalSkip on [Skip] if "owner and generation match", Spec;
        InFlight > TerminalFail on [Fail] if "owner and generation match, or the lease has expired", Spec;
        Dispatched > TerminalCancel on [Cancel] if "the cancel latch is set", Spec;
        InFlight > TerminalCancel on [Cancel] if "the cancel latch is set and the grace is over", Spec;
        TerminalSuccess > Committed on [Commit] if "the seq is the commit cursor", Spec;
        TerminalSkip > Committed on [Commit] if "the seq is the commit cursor", Spec;
        TerminalFail > Committed on [Commit] if "the seq is the commit cursor", Spec;
        TerminalCancel > Committed on [Commit] if "the seq is the commit cursor", Spec;
        TerminalFail > Dispatched on [Retry] if "in the same operation as the failure; the class is retryable, budget is left, no cancel latch", Spec;
    }
}
