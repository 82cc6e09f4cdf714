//! From what a worker outside says, and from what a transport answers, to writes. The rows are those that were
//! read last; the writes are guarded by their version, and whoever finds them gone reads and asks again.

use sprag_kernel::decide::callback::{self, Ack, Report, Stored};
use sprag_kernel::decide::cancel;
use sprag_kernel::decide::leg1::{self, Publish};
use sprag_kernel::decide::rows::{Fence, Terms};
use sprag_kernel::keys::Hash;
use sprag_kernel::retry::{Millis, RetryPolicy};
use sprag_kernel::{Code, OutboxState, Refusal};

use super::{Changes, Entering, end, entered_into, entering};
use crate::callback::Completion;
use crate::limits::{MAX_MESSAGE_BYTES, storable};
use crate::store::{Amendment, AttemptError, EndWrite, Held, RenewWrite, Renewal, Timer};

/// An ACK; nothing if it was said before.
pub fn ack(held: &Held, fence: Fence, policy: &RetryPolicy) -> Result<Option<RenewWrite>, Refusal> {
    let terms = Terms { now: 0, policy };
    let (job, step) = match callback::ack(&held.job, &held.attempt, fence, terms)? {
        Ack::Duplicate => return Ok(None),
        Ack::Accepted { job, step, lease_expires_at } => {
            debug_assert_eq!(lease_expires_at, policy.first_lease_ms(), "the lease begins now");
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
        ..renew(held, fence, Renewal::Acked, policy.first_lease_ms())
    }))
}

/// A heartbeat, and whether the worker should stop.
pub fn heartbeat(
    held: &Held,
    fence: Fence,
    policy: &RetryPolicy,
) -> Result<(RenewWrite, bool), Refusal> {
    let alive = callback::heartbeat(&held.job, &held.attempt, fence, Terms { now: 0, policy })?;
    let ends_at = held.acked_at.and_then(|acked_at| policy.ends_at(acked_at));
    let renewed = renew(held, fence, Renewal::Alive, alive.lease_expires_at);
    Ok((RenewWrite { ends_at, ..renewed }, alive.cancel))
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

/// The transport took the directive: it is sent, and the ACK is due.
pub fn published(held: &Held, policy: &RetryPolicy) -> Result<RenewWrite, Refusal> {
    let sent = leg1::published(&held.attempt, held.attempt.version, Terms { now: 0, policy })?;
    let Publish::Sent { outbox, step, ack_deadline } = sent else {
        unreachable!("a published directive is sent")
    };
    let mut changes = Changes::default();
    changes.note(Some(outbox));
    changes.note(Some(step));
    Ok(RenewWrite {
        step_to: step.to(),
        changes: changes.0,
        ..renew(held, super::fence(&held.attempt), Renewal::Sent, ack_deadline)
    })
}

/// A directive that is not out while its job is ending: it never gets out, and a `cancel` message ends its attempt.
/// Decided under the row's lock; `version` is that of the row that was to be published.
pub fn close_unpublished(held: &Held, version: u64) -> Result<Entering, Refusal> {
    if held.attempt.version != version {
        return Ok((None, None));
    }
    let closed = cancel::close_unpublished(&held.job, &held.attempt)?;
    let Some((outbox, entered)) = closed else { return Ok((None, None)) };
    let mut changes = Changes::default();
    changes.note(Some(outbox));
    let mut after = entered_into(held, entered);
    after.attempt.outbox = Some(outbox.to());
    Ok(entering(after, None, changes.0))
}

/// The transport refused the directive: it waits for its next try, or its message ends the step. Decided
/// under the row's lock; `version` is that of the row that was to be published.
pub fn publish_failed(
    held: &Held,
    version: u64,
    policy: &RetryPolicy,
    (now, reason): (Millis, &str),
) -> Result<Entering, Refusal> {
    if held.attempt.version != version || held.attempt.outbox != Some(OutboxState::Pending) {
        return Ok((None, None));
    }
    if held.job.is_ending() {
        return close_unpublished(held, version);
    }
    let error = Some(AttemptError {
        code: Code::PublishFailed.name().to_owned(),
        message: storable(reason, MAX_MESSAGE_BYTES),
    });
    match leg1::publish_failed(&held.attempt, version, Terms { now, policy })? {
        Publish::Again { publish_attempts, not_before } => {
            let mut attempt = held.attempt;
            attempt.publish_attempts = publish_attempts;
            let amendment = Amendment {
                job_to: held.job.state,
                verdict: None,
                attempt,
                timer: Timer::At(not_before),
                output: None,
                error,
                changes: String::new(),
            };
            Ok((Some(amendment), None))
        }
        Publish::Failed { outbox, entered } => {
            let mut changes = Changes::default();
            changes.note(Some(outbox));
            let mut after = entered_into(held, entered);
            after.attempt.outbox = Some(outbox.to());
            Ok(entering(after, error, changes.0))
        }
        Publish::Sent { .. } | Publish::Superseded(_) => {
            unreachable!("a refused directive is neither sent nor superseded")
        }
    }
}

/// An attempt that a child job does the work of is looked after again, so long from now.
pub fn look_again(held: &Held, timer_ms: Millis) -> RenewWrite {
    renew(held, super::fence(&held.attempt), Renewal::Alive, timer_ms)
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
        ends_at: None,
        progress: None,
        changes: String::new(),
    }
}
