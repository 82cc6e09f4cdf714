//! Request: what somebody asks for, from first thought to outcome.
//!
//! Only `created`, `draft_ready` and `confirmed` are stored; the other four are the projection of
//! the request's current job (see `decide::request::project`).

use crate::machine::machine;

machine! {
    /// The status of a request.
    RequestStatus, RequestTrigger: "request", starts Created,
    same NoOp, illegal Rejected as JobIllegalTransition;
    states {
        /// Known, nothing planned.
        Created = 0 "created" open,
        /// A plan can be looked at and edited.
        DraftReady = 1 "draft_ready" open,
        /// The plan is frozen.
        Confirmed = 2 "confirmed" open,
        /// A job waits.
        Queued = 3 "queued" open,
        /// A job runs.
        Running = 4 "running" open,
        /// The current job succeeded.
        Succeeded = 5 "succeeded" terminal,
        /// The current job ended badly; a retry may follow.
        Failed = 6 "failed" open,
    }
    triggers {
        /// A plan preview was computed.
        Draft = "draft",
        /// The plan was frozen.
        Confirm = "confirm",
        /// A job was created for the first run.
        Run = "run",
        /// The job's first directive was written.
        JobStarted = "job_started",
        /// The job ended well.
        JobSucceeded = "job_succeeded",
        /// The job failed or was cancelled.
        JobFailed = "job_failed",
        /// Somebody asked for another run, naming the failed one.
        Retry = "retry",
    }
    transitions {
        Created > DraftReady on [Draft] if "version matches; the plan preview is stored with it", Spec;
        DraftReady > Confirmed on [Confirm] if "version matches; every check of the draft passes and the plan is frozen", Spec;
        Confirmed > Queued on [Run] if "version matches; the job of run 1 is created in the same commit", Spec;
        Queued > Running on [JobStarted] if "the current job left QUEUED", Spec;
        Running > Succeeded on [JobSucceeded] if "the current job is SUCCEEDED", Spec;
        Running > Failed on [JobFailed] if "the current job is FAILED_FINAL or CANCELLED", Spec;
        Failed > Queued on [Retry] if "version matches; the caller names the failed run; the next run's job is created in the same commit", Spec;
    }
}
