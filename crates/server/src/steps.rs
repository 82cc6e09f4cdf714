//! Attempts that have ended: they are counted, and told to the trace of their job. Those of workers are measured from
//! directive to report, where both pass through this server; those that the engine runs itself, by the engine.

use sprag_engine::callback::Fence;
use sprag_engine::ran::Ran;
use sprag_kernel::decide::callback::Report;

use crate::metrics::{Handed, Metrics};
use crate::traces::{Role, Span, Traces};

/// What a worker has reported on.
pub(crate) fn reported<'a>(fence: &Fence, handed: &'a Handed, report: Report) -> Ran<'a> {
    Ran {
        job_id: fence.job_id,
        attempt_no: fence.attempt_no,
        protocol_id: &handed.protocol_id,
        step_id: &handed.step_id,
        traceparent: handed.traceparent.as_deref(),
        report,
        took: handed.at.elapsed(),
    }
}

/// Counts an attempt, and leaves a span if its job belongs to a trace.
pub(crate) fn measure(ran: &Ran<'_>, metrics: &Metrics, traces: &Traces) {
    let outcome = outcome(ran.report);
    metrics.ran((ran.protocol_id, ran.step_id), outcome, ran.took);
    let Some(parent) = traces.parent(ran.traceparent) else { return };
    traces.send(Span {
        parent,
        name: format!("step {}", ran.step_id),
        role: Role::Consumer,
        took: ran.took,
        failed: ran.report != Report::Succeeded,
        attributes: vec![
            ("sprag.job_id", ran.job_id.to_string().into()),
            ("sprag.protocol_id", ran.protocol_id.into()),
            ("sprag.step_id", ran.step_id.into()),
            ("sprag.attempt_no", ran.attempt_no.into()),
            ("sprag.outcome", outcome.into()),
        ],
    });
}

/// How a report is counted: a failure that may pass is a retry, or the last one of them.
fn outcome(report: Report) -> &'static str {
    match report {
        Report::Succeeded => "succeeded",
        Report::Retryable => "retryable",
        Report::NonRetryable => "final",
    }
}
