//! Job: one run of a protocol.

use crate::machine::machine;

machine! {
    /// The state of a job.
    JobState, JobTrigger: "job", starts Queued,
    same NoOp, illegal Rejected as JobIllegalTransition;
    states {
        /// Accepted; nobody has taken it up.
        Queued = 0 "QUEUED" open,
        /// The first directive is written, nobody has acknowledged it.
        Dispatching = 1 "DISPATCHING" open,
        /// A worker has acknowledged.
        InProgress = 2 "IN_PROGRESS" open,
        /// A cancel waits for the running attempt to end.
        Cancelling = 3 "CANCELLING" open,
        /// Every step is done.
        Succeeded = 4 "SUCCEEDED" terminal,
        /// A step failed for good.
        FailedFinal = 5 "FAILED_FINAL" terminal,
        /// Cancelled, and nothing runs any more.
        Cancelled = 6 "CANCELLED" terminal,
    }
    triggers {
        /// The first step's outbox row was written.
        FirstDispatch = "first_step_outbox_created",
        /// The first acknowledgement came.
        FirstAck = "first_step_acked",
        /// A step succeeded and the next one was activated.
        NextStep = "next_step_activated",
        /// The last open obligation ended well.
        LastStepSucceeded = "last_step_succeeded",
        /// A step failed for good.
        StepFailed = "step_failed_final",
        /// Somebody asked to stop.
        CancelAsked = "cancel_requested",
        /// Nothing of the job runs any more.
        Drained = "active_step_ended",
    }
    transitions {
        Queued > Dispatching on [FirstDispatch] if "version matches; the step is the current one and the job's first", Spec;
        Dispatching > InProgress on [FirstAck] if "version matches; the fence is that of the first step's open attempt", Spec;
        InProgress > InProgress on [NextStep] if "version matches; the current step is terminal and the next one gets its activation in the same commit", Spec;
        InProgress > Succeeded on [LastStepSucceeded] if "version matches; no obligation is left", Spec;
        InProgress > FailedFinal on [StepFailed] if "version matches; the current step is FAILED_FINAL", Spec;
        Dispatching > FailedFinal on [StepFailed] if "version matches; the first step is FAILED_FINAL before anybody acknowledged it", Addition;
        Queued > Cancelling on [CancelAsked] if "version matches if one is given", Spec;
        Dispatching > Cancelling on [CancelAsked] if "version matches if one is given", Spec;
        InProgress > Cancelling on [CancelAsked] if "version matches if one is given", Spec;
        Cancelling > Cancelled on [Drained] if "version matches; no attempt runs and no obligation is left", Spec;
    }
}
