//! Policies: when a step is tried again, how long it may take, how urgent it is. A protocol can say so once for all
//! steps of a service. What a step says itself goes first, field by field; what neither says is as by default.
//! The section is part of the text that jobs are pinned to, so that nothing changes under them.

use serde::{Deserialize, Serialize};
use sprag_kernel::Refusal;
use sprag_kernel::retry::{Backoff, Millis, RetryPolicy};

use crate::duration;
use crate::limits::MAX_PRIORITY;
use crate::protocol::invalid;

/// How many attempts a step may be given.
pub const MAX_ATTEMPTS: u32 = 1_000;

/// When to try again. What is absent is as by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Retry {
    /// Attempts in all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// How often the engine may die under the step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_losses: Option<u32>,
    /// Waits after a failure.
    #[serde(default, with = "duration::list", skip_serializing_if = "Option::is_none")]
    pub backoff: Option<Vec<Millis>>,
    /// Waits after a missing acknowledgement.
    #[serde(default, with = "duration::list", skip_serializing_if = "Option::is_none")]
    pub ack_backoff: Option<Vec<Millis>>,
}

/// How long things may take. What is absent is as by default.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timeouts {
    /// From published to acknowledged.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub ack: Option<Millis>,
    /// From one sign of life to the next.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub lease: Option<Millis>,
    /// One attempt in all; none by default.
    #[serde(default, with = "duration::optional", skip_serializing_if = "Option::is_none")]
    pub step: Option<Millis>,
}

/// What the steps of a service have in common, unless they say otherwise.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServiceDefaults {
    /// When to try again.
    #[serde(default)]
    pub retry: Retry,
    /// How long things may take.
    #[serde(default)]
    pub timeouts: Timeouts,
    /// Higher goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<i32>,
}

/// What holds for a step.
pub(crate) struct Policy {
    pub(crate) retry: RetryPolicy,
    pub(crate) priority: i32,
}

/// Refuses a priority that could not be added to another, naming the place.
pub(crate) fn check_priority(priority: Option<i32>, place: &str) -> Result<(), Refusal> {
    if priority.is_some_and(|given| given.unsigned_abs() > MAX_PRIORITY.unsigned_abs()) {
        let reason = format!("is not from -{MAX_PRIORITY} to {MAX_PRIORITY}");
        return Err(invalid(&format!("{place}.priority"), reason));
    }
    Ok(())
}

impl Retry {
    /// Refuses what could not be followed, naming the place.
    pub(crate) fn check(&self, place: &str) -> Result<(), Refusal> {
        let place = |field: &str| format!("{place}.retry.{field}");
        let attempts = self.max_attempts.unwrap_or(1);
        if attempts == 0 || attempts > MAX_ATTEMPTS {
            let reason = format!("is {attempts}, 1 to {MAX_ATTEMPTS} are allowed");
            return Err(invalid(&place("max_attempts"), reason));
        }
        for (field, table) in [("backoff", &self.backoff), ("ack_backoff", &self.ack_backoff)] {
            if table.as_ref().is_some_and(Vec::is_empty) {
                return Err(invalid(&place(field), "is empty".to_owned()));
            }
        }
        Ok(())
    }
}

impl Timeouts {
    /// Refuses a time that would be over before it begins, naming the place.
    pub(crate) fn check(&self, place: &str) -> Result<(), Refusal> {
        for (field, given) in [("ack", self.ack), ("lease", self.lease), ("step", self.step)] {
            if given == Some(0) {
                let reason = "is 0: it would be over before it begins".to_owned();
                return Err(invalid(&format!("{place}.timeouts.{field}"), reason));
            }
        }
        Ok(())
    }
}

impl Policy {
    /// What a step says goes before what is said of its service.
    pub(crate) fn of(own: &ServiceDefaults, service: Option<&ServiceDefaults>) -> Self {
        let none = ServiceDefaults::default();
        let service = service.unwrap_or(&none);
        let default = RetryPolicy::default();
        let table = |own: &Option<Vec<Millis>>, service: &Option<Vec<Millis>>, default: Backoff| {
            own.as_ref().or(service.as_ref()).cloned().and_then(Backoff::new).unwrap_or(default)
        };
        let (retry, timeouts) = (&own.retry, &own.timeouts);
        let attempts = retry.max_attempts.or(service.retry.max_attempts);
        let losses = retry.max_losses.or(service.retry.max_losses);
        Self {
            retry: RetryPolicy {
                max_attempts: attempts.unwrap_or(default.max_attempts),
                max_losses: losses.unwrap_or(default.max_losses),
                max_publish_attempts: default.max_publish_attempts,
                dispatch: table(&retry.backoff, &service.retry.backoff, default.dispatch),
                ack: table(&retry.ack_backoff, &service.retry.ack_backoff, default.ack),
                ack_timeout_ms: timeouts
                    .ack
                    .or(service.timeouts.ack)
                    .unwrap_or(default.ack_timeout_ms),
                lease_ms: timeouts.lease.or(service.timeouts.lease).unwrap_or(default.lease_ms),
                step_ms: timeouts.step.or(service.timeouts.step),
            },
            priority: own.priority.or(service.priority).unwrap_or(0),
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::protocol::Protocol;

    const TEXT: &str = "protocol_id: p.v1
request_types: [P]
services:
  ocr:
    retry: {max_attempts: 7, backoff: [1s, 9s]}
    timeouts: {lease: 2m, step: 1h}
    priority: 4
steps:
  - {step_id: first, service: ocr}
  - step_id: second
    service: ocr
    retry: {max_attempts: 2}
    timeouts: {step: 5s}
    priority: 0
  - {step_id: third, service: other}
";

    #[test]
    fn a_step_inherits_from_its_service_what_it_does_not_say_itself() {
        let graph = Protocol::read(TEXT).unwrap().graph().unwrap();
        let [first, second, third] = graph.nodes() else { panic!("three steps") };
        assert_eq!((first.policy.max_attempts, first.policy.lease_ms), (7, 120_000));
        assert_eq!((first.policy.step_ms, first.priority), (Some(3_600_000), 4));
        assert_eq!((second.policy.max_attempts, second.policy.lease_ms), (2, 120_000));
        assert_eq!((second.policy.step_ms, second.priority), (Some(5_000), 0), "0 is said, too");
        assert_eq!(second.policy.dispatch.after(2), 9_000);
        assert_eq!((third.policy.max_attempts, third.policy.lease_ms), (3, 900_000));
        assert_eq!((third.policy.step_ms, third.priority), (None, 0));
    }

    #[test]
    fn what_jobs_are_pinned_to_says_the_same_again() {
        let protocol = Protocol::read(TEXT).unwrap();
        let pinned = Protocol::read(&protocol.to_json()).unwrap();
        assert_eq!(pinned, protocol);
        assert_eq!(pinned.to_json(), protocol.to_json());
    }

    #[test]
    fn a_mistake_in_a_section_is_refused_with_its_place() {
        for (right, wrong, place) in [
            ("max_attempts: 7", "max_attempts: 0", "services.ocr.retry.max_attempts"),
            ("backoff: [1s, 9s]", "backoff: []", "services.ocr.retry.backoff"),
            ("  ocr:", "  orc:", "services.orc"),
            ("lease: 2m", "leash: 2m", "services.ocr.timeouts"),
            ("lease: 2m", "lease: 0s", "services.ocr.timeouts.lease"),
            ("lease: 2m", "ack: 0s", "services.ocr.timeouts.ack"),
            ("timeouts: {step: 5s}", "timeouts: {step: 0s}", "steps[1].timeouts.step"),
        ] {
            let refusal = Protocol::read(&TEXT.replace(right, wrong)).unwrap_err();
            let named = refusal.field("place").unwrap().to_string();
            assert!(named.starts_with(place), "{named}: {refusal}");
            assert!(refusal.field("line").is_some(), "{refusal}");
        }
    }
}
