//! Step: one activity of a job. Its row shows its newest attempt.

use crate::machine::machine;

machine! {
    /// The state of a step.
    StepState, StepTrigger: "step", starts Pending,
    same NoOpIfFenceMatches, illegal Rejected as StepIllegalTransition;
    states {
        /// Not dispatched yet.
        Pending = 0 "PENDING" open,
        /// The directive is written, not yet published.
        Dispatching = 1 "DISPATCHING" open,
        /// The directive is out; the acknowledgement is due.
        AwaitingAck = 2 "AWAITING_ACK" open,
        /// A worker holds the lease.
        InProgress = 3 "IN_PROGRESS" open,
        /// Done.
        Succeeded = 4 "SUCCEEDED" terminal,
        /// The attempt failed; the next one waits for its backoff.
        FailedRetry = 5 "FAILED_RETRY" open,
        /// Failed for good.
        FailedFinal = 6 "FAILED_FINAL" terminal,
        /// Stopped by a cancel.
        Cancelled = 7 "CANCELLED" terminal,
        /// Its condition was false (graphs only).
        Skipped = 8 "SKIPPED" terminal,
    }
    triggers {
        /// The first attempt's outbox row was written.
        OutboxCreated = "outbox_created",
        /// A later attempt's outbox row was written.
        RetryDispatch = "retry_dispatch",
        /// The directive was published.
        OutboxSent = "outbox_sent",
        /// The directive will never be published.
        OutboxFailed = "outbox_failed_final",
        /// The worker acknowledged.
        Ack = "ack",
        /// No acknowledgement in time, attempts left.
        AckTimeout = "ack_timeout",
        /// No acknowledgement in time, no attempt left.
        AckTimeoutLast = "ack_timeout_exhausted",
        /// The worker reports success.
        ResultSuccess = "result_success",
        /// The worker reports a failure worth another attempt, and there is one.
        ResultRetryable = "result_retryable",
        /// The worker reports a failure worth another attempt, but none is left.
        ResultRetryableLast = "result_retryable_exhausted",
        /// The worker reports a failure that no attempt can mend.
        ResultNonRetryable = "result_non_retryable",
        /// The lease ran out, attempts left.
        LeaseExpired = "lease_expired",
        /// The lease ran out, no attempt left.
        LeaseExpiredLast = "lease_expired_exhausted",
        /// The engine that ran the attempt is gone.
        OwnerLost = "owner_lost",
        /// The engine that ran the attempt is gone, once too often.
        OwnerLostLast = "owner_lost_exhausted",
        /// The job is being cancelled, or has failed elsewhere, and this step has ended or never started.
        CancelDrained = "cancel_drained",
        /// The step's condition is false.
        ConditionFalse = "condition_false",
    }
    transitions {
        Pending > Dispatching on [OutboxCreated] if "version matches; attempt 1 with a new lease id and a lease end", Spec;
        Dispatching > AwaitingAck on [OutboxSent] if "version matches; the outbox row has the step's fence", Spec;
        AwaitingAck > InProgress on [Ack] if "version matches; the fence matches", Spec;
        InProgress > Succeeded on [ResultSuccess] if "version matches; the fence matches", Spec;
        InProgress > FailedFinal on [ResultNonRetryable, ResultRetryableLast, LeaseExpiredLast, OwnerLostLast] if "version matches; the fence matches; the failure is non-retryable or the budget is used up", Spec;
        InProgress > FailedRetry on [ResultRetryable, LeaseExpired, OwnerLost] if "version matches; the fence matches; attempts < max (losses < max_losses for a lost owner)", Spec;
        AwaitingAck > FailedRetry on [AckTimeout, OwnerLost] if "version matches; the ACK deadline is reached or the owner is dead; attempts < max (losses < max_losses for a lost owner)", Spec;
        AwaitingAck > FailedFinal on [AckTimeoutLast, OwnerLostLast] if "version matches; the ACK deadline is reached or the owner is dead; no attempt left", Addition;
        Dispatching > FailedFinal on [OutboxFailed] if "version matches; the outbox row of this fence is FAILED_FINAL", Addition;
        FailedRetry > Dispatching on [RetryDispatch] if "version matches; attempt_no + 1 with a new lease id; the backoff is over", Spec;
        Pending > Cancelled on [CancelDrained] if "version matches; the job is CANCELLING, or has failed elsewhere", Spec;
        Dispatching > Cancelled on [CancelDrained] if "version matches; the job is CANCELLING, or has failed elsewhere; the directive was not published", Spec;
        AwaitingAck > Cancelled on [CancelDrained] if "version matches; the job is CANCELLING; the attempt has ended", Spec;
        InProgress > Cancelled on [CancelDrained] if "version matches; the job is CANCELLING, or has failed elsewhere; the attempt has ended", Spec;
        FailedRetry > Cancelled on [CancelDrained] if "version matches; the job is CANCELLING, or has failed elsewhere", Spec;
        Pending > Skipped on [ConditionFalse] if "version matches; the step's condition is false", Extension;
    }
}
