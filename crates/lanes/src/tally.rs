//! Counters that never scan: what happened, counted where it happens.
//!
//! Each thread has its own [`Tally`] of events and is its only writer, so counting is a load and a
//! store. How many seqs are in a state is a sum of events over the tallies; it costs as many reads
//! as there are threads, whatever the number of seqs, and is exact whenever nobody is moving.

use serde::Serialize;
use sprag_kernel::retry::ErrorClass;

use crate::sync::{AtomicU64, Ordering};

/// Something that moved a seq from one count to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Dispatched,
    Started,
    Succeeded,
    Skipped,
    Failed,
    RetriedTransient,
    RetriedResource,
    RetriedLease,
    CancelledWaiting,
    CancelledRunning,
    Committed,
    /// Nanoseconds spent on claims.
    ComputeNs,
    /// Nanoseconds spent on handing over and committing.
    CommitNs,
}

const EVENTS: usize = Event::CommitNs as usize + 1;

impl Event {
    /// The event of a failed attempt that is tried again.
    pub(crate) fn retried(class: ErrorClass) -> Self {
        match class {
            ErrorClass::RetryableTransient => Self::RetriedTransient,
            ErrorClass::RetryableResource => Self::RetriedResource,
            ErrorClass::LeaseExpired => Self::RetriedLease,
            ErrorClass::NonRetryableInput
            | ErrorClass::NonRetryableSchema
            | ErrorClass::NonRetryableCorruption
            | ErrorClass::NonRetryableCancellation => {
                unreachable!("the kernel retries retryable classes only")
            }
        }
    }
}

/// One thread's events. Padded to two cache lines so that threads do not share one.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Tally([AtomicU64; EVENTS]);

impl Tally {
    /// Counts events of the thread that owns this tally.
    #[inline]
    pub(crate) fn add(&self, event: Event, count: u64) {
        let counter = &self.0[event as usize];
        counter.store(counter.load(Ordering::Relaxed) + count, Ordering::Relaxed);
    }

    /// Counts an event in a tally that several threads write.
    pub(crate) fn add_shared(&self, event: Event) {
        self.0[event as usize].fetch_add(1, Ordering::Relaxed);
    }

    fn get(&self, event: Event) -> u64 {
        self.0[event as usize].load(Ordering::Relaxed)
    }
}

/// How many seqs are where, by the ledger.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LedgerCounts {
    /// Given to an owner, or waiting for one after a retry.
    pub dispatched: u64,
    /// Being computed.
    pub in_flight: u64,
    /// Ended, the committed ones included.
    pub terminal: u64,
    /// Behind the commit cursor.
    pub committed: u64,
}

/// Attempts that were followed by another one, by the class of their failure.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Retries {
    /// RETRYABLE_TRANSIENT.
    pub transient: u64,
    /// RETRYABLE_RESOURCE.
    pub resource: u64,
    /// LEASE_EXPIRED.
    pub lease_expired: u64,
}

impl Retries {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.transient + self.resource + self.lease_expired
    }
}

/// Time that the threads spent, added up over them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Timings {
    /// On computing claims, the hand-offs in between included.
    pub compute_ms: u64,
    /// On handing results over and, for whoever was the committer, on the sink.
    pub commit_ms: u64,
}

impl Timings {
    /// The times that these tallies add up to.
    pub(crate) fn of(tallies: &[Tally]) -> Self {
        let sum = |event| tallies.iter().map(|tally| tally.get(event)).sum::<u64>() / 1_000_000;
        Self { compute_ms: sum(Event::ComputeNs), commit_ms: sum(Event::CommitNs) }
    }
}

impl LedgerCounts {
    /// The counts that these tallies add up to.
    pub(crate) fn of(tallies: &[Tally]) -> Self {
        let sum = |event| tallies.iter().map(|tally| tally.get(event)).sum::<u64>();
        let retried =
            sum(Event::RetriedTransient) + sum(Event::RetriedResource) + sum(Event::RetriedLease);
        let finished = sum(Event::Succeeded) + sum(Event::Skipped) + sum(Event::Failed);
        let (waiting, running) = (sum(Event::CancelledWaiting), sum(Event::CancelledRunning));
        let started = sum(Event::Started);
        // Tallies are read one after another; a seq that moves meanwhile may be missed once.
        Self {
            dispatched: (sum(Event::Dispatched) + retried).saturating_sub(started + waiting),
            in_flight: started.saturating_sub(finished + retried + running),
            terminal: finished + waiting + running,
            committed: sum(Event::Committed),
        }
    }
}

impl Retries {
    /// The retries that these tallies add up to.
    pub(crate) fn of(tallies: &[Tally]) -> Self {
        let sum = |event| tallies.iter().map(|tally| tally.get(event)).sum();
        Self {
            transient: sum(Event::RetriedTransient),
            resource: sum(Event::RetriedResource),
            lease_expired: sum(Event::RetriedLease),
        }
    }
}
