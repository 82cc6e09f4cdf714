//! Attempts that have ended: they are counted, and told to the trace of their job. Those of workers are measured from
//! directive to report, where both pass through this server; those that the engine runs itself, by the engine.

use std::time::Duration;

use sprag_engine::callback::Fence;
use sprag_engine::ids::JobId;
use sprag_engine::ran::Ran;
use sprag_kernel::decide::callback::Report;

use crate::metrics::{Handed, Metrics};
use crate::traces::{Role, Span, Traces};

/// An attempt that has ended.
pub(crate) struct Measured<'a> {
    job_id: JobId,
    attempt_no: u32,
    protocol_id: &'a str,
    step_id: &'a str,
    traceparent: Option<&'a str>,
    report: Report,
    took: Duration,
}

impl<'a> Measured<'a> {
    /// One of a worker.
    pub(crate) fn reported(fence: &Fence, handed: &'a Handed, report: Report) -> Self {
        Self {
            job_id: fence.job_id,
            attempt_no: fence.attempt_no,
            protocol_id: &handed.protocol_id,
            step_id: &handed.step_id,
            traceparent: handed.traceparent.as_deref(),
            report,
            took: handed.at.elapsed(),
        }
    }

    /// One of the engine.
    pub(crate) fn ran(ran: &Ran<'a>) -> Self {
        Self {
            job_id: ran.key.job_id,
            attempt_no: ran.key.attempt_no,
            protocol_id: ran.protocol_id,
            step_id: ran.step_id,
            traceparent: ran.traceparent,
            report: ran.report,
            took: ran.took,
        }
    }

    /// Counts it, and leaves a span if its job belongs to a trace.
    pub(crate) fn measure(&self, metrics: &Metrics, traces: &Traces) {
        let outcome = outcome(self.report);
        metrics.ran((self.protocol_id, self.step_id), outcome, self.took);
        let Some(parent) = traces.parent(self.traceparent) else { return };
        traces.send(Span {
            parent,
            name: format!("step {}", self.step_id),
            role: Role::Consumer,
            took: self.took,
            failed: self.report != Report::Succeeded,
            attributes: vec![
                ("sprag.job_id", self.job_id.to_string().into()),
                ("sprag.protocol_id", self.protocol_id.into()),
                ("sprag.step_id", self.step_id.into()),
                ("sprag.attempt_no", self.attempt_no.into()),
                ("sprag.outcome", outcome.into()),
            ],
        });
    }
}

/// How a report is counted: a failure that may pass is a retry, or the last one of them.
fn outcome(report: Report) -> &'static str {
    match report {
        Report::Succeeded => "succeeded",
        Report::Retryable => "retryable",
        Report::NonRetryable => "final",
    }
}
