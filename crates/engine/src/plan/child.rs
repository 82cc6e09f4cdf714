//! From the end of a child job to the message that ends its parent's attempt. Decided under the locks of the
//! parent's rows, in the transaction that closes the child; so it enters exactly once, or finds the attempt
//! ended by something else and changes nothing.

use serde_json::{Map, Value};
use sprag_kernel::decide::callback::{self, Report, Stored};
use sprag_kernel::keys::Hash;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Cause, JobState, Refusal};

use super::{Entering, entered_into, entering, fence};
use crate::ids::AttemptKey;
use crate::limits::{MAX_MESSAGE_BYTES, storable};
use crate::store::{AttemptError, ChildEnd, Ended, Held};

/// How the child has ended, as the message that ends the attempt which waits for it. A child that failed is
/// worth another attempt, with another child, as far as the step has any; so is one that was cancelled because the
/// step's time was over; one that was cancelled for itself is not.
pub fn child_ended(
    held: &Held,
    waits: &AttemptKey,
    end: &ChildEnd,
    now: Millis,
) -> Result<Entering, Refusal> {
    if held.key != *waits || held.attempt.ending.is_some() || held.attempt.lease_id.is_none() {
        return Ok((None, None));
    }
    let (report, output, error) = told(held, end, now);
    let content = Hash::of(format!("{report:?}\n{output:?}\n{error:?}").as_bytes());
    let stored = callback::result(&held.attempt, fence(&held.attempt), report, content)?;
    let Stored::Accepted(entered) = stored else { return Ok((None, None)) };
    let mut after = entered_into(held, entered);
    after.output.clone_from(&output);
    let (amendment, after) = entering(after, error, String::new());
    Ok((amendment.map(|amendment| crate::store::Amendment { output, ..amendment }), after))
}

fn told(
    held: &Held,
    end: &ChildEnd,
    now: Millis,
) -> (Report, Option<String>, Option<AttemptError>) {
    let child = end.job_id;
    let failed = |code: &str, how: String| {
        Some(AttemptError { code: code.to_owned(), message: storable(&how, MAX_MESSAGE_BYTES) })
    };
    let why = end.error.as_ref().map_or(String::new(), |e| format!(": {}: {}", e.code, e.message));
    match end.state {
        JobState::Succeeded => {
            let output = result(&end.results).to_string();
            let limit = end.max_bytes;
            if output.len() <= limit {
                return (Report::Succeeded, Some(output), None);
            }
            let how = format!("the results of child job {child} are larger than {limit} bytes");
            (Report::NonRetryable, None, failed(Cause::ChildResultTooLarge.name(), how))
        }
        // In a parent that is being cancelled it may not be tried again, whatever it says.
        JobState::Cancelled if held.job.state == JobState::Cancelling => (
            Report::Retryable,
            None,
            failed(Cause::ChildCancelled.name(), format!("child job {child}")),
        ),
        JobState::Cancelled if held.waits_until.is_some_and(|until| until <= now) => {
            let how = format!("child job {child} did not end within the step's timeout");
            (Report::Retryable, None, failed(Cause::StepTimeout.name(), how))
        }
        JobState::Cancelled => {
            let how = format!("child job {child} was cancelled");
            (Report::NonRetryable, None, failed(Cause::ChildCancelled.name(), how))
        }
        JobState::FailedFinal => {
            let how = format!("child job {child} failed{why}");
            (Report::Retryable, None, failed(Cause::ChildFailed.name(), how))
        }
        JobState::Queued | JobState::Dispatching | JobState::InProgress | JobState::Cancelling => {
            unreachable!("a child that tells its end is over")
        }
    }
}

/// The output of the last step, or of the last steps by name.
fn result(results: &[(String, Option<Ended>)]) -> Value {
    let output = |end: &Option<Ended>| {
        let text = end.as_ref().and_then(|end| end.output.as_deref());
        text.and_then(|text| serde_json::from_str(text).ok()).unwrap_or(Value::Null)
    };
    match results {
        [(_, only)] => output(only),
        several => {
            let named = several.iter().map(|(name, end)| (name.clone(), output(end)));
            Value::Object(named.collect::<Map<_, _>>())
        }
    }
}
