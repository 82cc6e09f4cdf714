//! When to try again: error classes, the two backoff tables, budgets.
//!
//! `max` counts attempts and the first attempt has number 1, so after failed attempt k < max the
//! wait is `table[k - 1]`; past its end a table repeats its last value.

use crate::decide::rows::{LeaseId, NewLease};

/// Milliseconds; every time and duration of the kernel is one.
pub type Millis = u64;

const SECOND: Millis = 1_000;
const MINUTE: Millis = 60 * SECOND;

/// How long an acknowledgement may take after the directive was published.
pub const ACK_TIMEOUT_MS: Millis = 30 * SECOND;
/// How long a lease lasts without a heartbeat.
pub const LEASE_MS: Millis = 15 * MINUTE;
/// Attempts of a step, and publish attempts of an outbox row.
pub const MAX_ATTEMPTS: u32 = 3;
/// How often an attempt may lose the engine that runs it.
pub const MAX_LOSSES: u32 = 10;
/// Waits after a RESULT that may be retried, a lost lease, a failed publish.
pub const DISPATCH_BACKOFF_MS: [Millis; 3] = [30 * SECOND, 2 * MINUTE, 10 * MINUTE];
/// Waits after a missing acknowledgement.
pub const ACK_BACKOFF_MS: [Millis; 3] = [MINUTE, 5 * MINUTE, 15 * MINUTE];

/// A list of waits. Never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Backoff(Vec<Millis>);

impl Backoff {
    /// A table of waits; `None` if it is empty.
    pub fn new(waits: Vec<Millis>) -> Option<Self> {
        if waits.is_empty() { None } else { Some(Self(waits)) }
    }

    /// The wait after failed attempt `attempt_no` (1, 2, ...); saturates at the last value.
    pub fn after(&self, attempt_no: u32) -> Millis {
        assert!(attempt_no > 0, "attempts are counted from 1");
        let last = self.0.len() - 1;
        self.0[(attempt_no as usize - 1).min(last)]
    }
}

/// The retry rules of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RetryPolicy {
    /// Attempts in all.
    pub max_attempts: u32,
    /// How often the running engine may be lost.
    pub max_losses: u32,
    /// Publish attempts of one outbox row.
    pub max_publish_attempts: u32,
    /// After a RESULT, a lost lease or a failed publish.
    pub dispatch: Backoff,
    /// After a missing acknowledgement.
    pub ack: Backoff,
    /// From SENT to the ACK deadline.
    pub ack_timeout_ms: Millis,
    /// From ACK or heartbeat to the end of the lease.
    pub lease_ms: Millis,
    /// One attempt in all, from its ACK, however alive it is; as long as it takes if absent.
    pub step_ms: Option<Millis>,
}

impl RetryPolicy {
    /// A lease with this id that starts now.
    pub fn lease(&self, id: LeaseId, now: Millis) -> NewLease {
        NewLease { id, expires_at: now + self.lease_ms }
    }

    /// The lease that begins with the ACK: no lease goes beyond its attempt.
    pub fn first_lease_ms(&self) -> Millis {
        self.lease_ms.min(self.step_ms.unwrap_or(Millis::MAX))
    }

    /// When an attempt that was acknowledged at this time is over, if there is a limit.
    pub fn ends_at(&self, acked_at: Millis) -> Option<Millis> {
        self.step_ms.map(|step_ms| acked_at.saturating_add(step_ms))
    }
}

impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: MAX_ATTEMPTS,
            max_losses: MAX_LOSSES,
            max_publish_attempts: MAX_ATTEMPTS,
            dispatch: Backoff(DISPATCH_BACKOFF_MS.to_vec()),
            ack: Backoff(ACK_BACKOFF_MS.to_vec()),
            ack_timeout_ms: ACK_TIMEOUT_MS,
            lease_ms: LEASE_MS,
            step_ms: None,
        }
    }
}

/// Why a seq's attempt failed, in the order-contiguous runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// May pass by itself.
    RetryableTransient,
    /// Something was short: memory, handles, quota.
    RetryableResource,
    /// The owner fell silent.
    LeaseExpired,
    /// The item itself is wrong.
    NonRetryableInput,
    /// The item has the wrong shape.
    NonRetryableSchema,
    /// Stored bytes contradict themselves.
    NonRetryableCorruption,
    /// The run was cancelled.
    NonRetryableCancellation,
}

impl ErrorClass {
    /// Every class.
    pub const ALL: [Self; 7] = [
        Self::RetryableTransient,
        Self::RetryableResource,
        Self::LeaseExpired,
        Self::NonRetryableInput,
        Self::NonRetryableSchema,
        Self::NonRetryableCorruption,
        Self::NonRetryableCancellation,
    ];

    /// The stable spelling.
    pub fn name(self) -> &'static str {
        match self {
            Self::RetryableTransient => "RETRYABLE_TRANSIENT",
            Self::RetryableResource => "RETRYABLE_RESOURCE",
            Self::LeaseExpired => "LEASE_EXPIRED",
            Self::NonRetryableInput => "NON_RETRYABLE_INPUT",
            Self::NonRetryableSchema => "NON_RETRYABLE_SCHEMA",
            Self::NonRetryableCorruption => "NON_RETRYABLE_CORRUPTION",
            Self::NonRetryableCancellation => "NON_RETRYABLE_CANCELLATION",
        }
    }

    /// Whether another attempt may help.
    pub fn is_retryable(self) -> bool {
        match self {
            Self::RetryableTransient | Self::RetryableResource | Self::LeaseExpired => true,
            Self::NonRetryableInput
            | Self::NonRetryableSchema
            | Self::NonRetryableCorruption
            | Self::NonRetryableCancellation => false,
        }
    }
}

/// The retries that are left to a seq and, if one is configured, to its window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// Retries of one seq in all.
    pub max_retries: u32,
    /// Retries left to the window, if it has a budget.
    pub window_left: Option<u32>,
}

impl Budget {
    /// Whether a seq that was retried `attempts` times may be retried once more.
    pub fn remains(self, attempts: u32) -> bool {
        attempts < self.max_retries && self.window_left != Some(0)
    }
}
