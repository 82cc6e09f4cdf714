//! From what a worker outside says to writes. The rows are those that were read last; the writes are guarded by
//! their version, and whoever finds them gone reads and asks again.

use sprag_kernel::Refusal;
use sprag_kernel::decide::callback::{self, Ack, Report, Stored};
use sprag_kernel::decide::rows::{Fence, Terms};
use sprag_kernel::keys::Hash;
use sprag_kernel::retry::{Millis, RetryPolicy};

use super::{Changes, end};
use crate::callback::Completion;
use crate::store::{AttemptError, EndWrite, Held, RenewWrite, Renewal};

/// An ACK; nothing if it was said before.
pub fn ack(held: &Held, fence: Fence, policy: &RetryPolicy) -> Result<Option<RenewWrite>, Refusal> {
    let terms = Terms { now: 0, policy };
    let (job, step) = match callback::ack(&held.job, &held.attempt, fence, terms)? {
        Ack::Duplicate => return Ok(None),
        Ack::Accepted { job, step, lease_expires_at } => {
            debug_assert_eq!(lease_expires_at, policy.lease_ms, "the lease begins now");
            (job, step)
        }
    };
    let mut changes = Changes::default();
    changes.note(job);
    changes.note(Some(step));
    Ok(Some(RenewWrite {
        step_to: step.to(),
        job: job.map(|change| (change.from(), change.to())),
        changes: changes.0,
        ..renew(held, fence, Renewal::Acked, policy.lease_ms)
    }))
}

/// A heartbeat, and whether the worker should stop.
pub fn heartbeat(
    held: &Held,
    fence: Fence,
    policy: &RetryPolicy,
) -> Result<(RenewWrite, bool), Refusal> {
    let alive = callback::heartbeat(&held.job, &held.attempt, fence, Terms { now: 0, policy })?;
    Ok((renew(held, fence, Renewal::Alive, alive.lease_expires_at), alive.cancel))
}

/// A RESULT; nothing if it was said before.
pub fn result(
    held: &Held,
    fence: Fence,
    completion: &Completion,
) -> Result<Option<EndWrite>, Refusal> {
    let text = |value: &serde_json::Value| value.to_string();
    let output_ref = completion.output_ref.as_ref().map(text);
    let (report, output, error) = match &completion.result {
        Ok(output) => (Report::Succeeded, Some(text(output)), None),
        Err(failure) => {
            let report = if failure.retryable { Report::Retryable } else { Report::NonRetryable };
            let (code, message) = (failure.code.clone(), failure.message.clone());
            (report, None, Some(AttemptError { code, message }))
        }
    };
    let content = Hash::of(format!("{report:?}\n{output:?}\n{output_ref:?}\n{error:?}").as_bytes());
    match callback::result(&held.attempt, fence, report, content)? {
        Stored::Duplicate => Ok(None),
        Stored::Accepted(entered) => {
            Ok(Some(EndWrite { output_ref, ..end(held, entered, output, error) }))
        }
    }
}

/// A renewal that moves nothing but the timer.
fn renew(held: &Held, fence: Fence, renewal: Renewal, timer_ms: Millis) -> RenewWrite {
    RenewWrite {
        key: held.key,
        version: held.attempt.version,
        lease_id: fence.lease_id,
        renewal,
        step_to: held.attempt.state,
        job: None,
        timer_ms,
        progress: None,
        changes: String::new(),
    }
}
