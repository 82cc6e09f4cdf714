//! Time that a test owns, on either store.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// A clock that only a test moves.
#[derive(Clone, Debug, Default)]
pub struct TestClock(Arc<AtomicI64>);

impl TestClock {
    /// A clock at this time.
    pub fn at(ms: i64) -> Self {
        Self(Arc::new(AtomicI64::new(ms)))
    }

    /// Moves it forward.
    pub fn advance(&self, ms: i64) {
        self.0.fetch_add(ms, Ordering::SeqCst);
    }

    /// The time.
    pub fn now(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }
}
