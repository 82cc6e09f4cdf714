//! Outbox: the promise to publish one attempt's directive.

use crate::machine::machine;

machine! {
    /// The state of an outbox row.
    OutboxState, OutboxTrigger: "outbox", starts Pending,
    same Conflict, illegal Rejected as OutboxIllegalTransition;
    states {
        /// To be published.
        Pending = 0 "PENDING" open,
        /// Published.
        Sent = 1 "SENT" terminal,
        /// Never to be published.
        FailedFinal = 2 "FAILED_FINAL" terminal,
    }
    triggers {
        /// The transport took the directive.
        Published = "publish_succeeded",
        /// The transport refused it for the last time.
        PublishFailedLast = "publish_failed_final",
        /// The step has moved on to another attempt.
        Superseded = "superseded",
        /// The job was cancelled, or has failed elsewhere, before publishing.
        Cancelled = "cancelled",
        /// Leg1 found that the step can never run.
        Leg1Failed = "leg1_failed",
    }
    transitions {
        Pending > Sent on [Published] if "version matches; the transport has taken the directive", Spec;
        Pending > FailedFinal on [PublishFailedLast, Superseded, Cancelled, Leg1Failed] if "version matches; publish attempts >= max, or the row's fence is no longer the step's, or the job is cancelled or has failed elsewhere, or Leg1 failed", Spec;
    }
}
