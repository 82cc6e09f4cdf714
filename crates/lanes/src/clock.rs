//! Time as an argument. Leases, backoff, grace and progress ask a [`Clock`], so a test owns time.
//!
//! Times are nanoseconds or milliseconds since the clock began: monotonic, meaningful only inside
//! one process. Wall-clock time appears in diagnostics alone and decides nothing.

use std::fmt;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

/// What a clock calls when its time was moved by hand.
pub type Wake = Arc<dyn Fn() + Send + Sync>;

/// A monotonic clock.
pub trait Clock: Send + Sync {
    /// Nanoseconds since the clock began.
    fn now_ns(&self) -> u64;

    /// How long a thread sleeps until `ms` have passed; `None` if only a [`Wake`] ends the wait.
    fn sleep(&self, ms: u64) -> Option<Duration>;

    /// Asks for a call whenever time jumps. Clocks that only run need not do anything.
    fn on_jump(&self, _wake: Wake) {}

    /// Milliseconds since the clock began.
    fn now_ms(&self) -> u64 {
        self.now_ns() / 1_000_000
    }
}

/// The process's own monotonic clock.
#[derive(Clone, Copy, Debug)]
pub struct SystemClock(Instant);

impl SystemClock {
    /// A clock that begins now.
    pub fn start() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now_ns(&self) -> u64 {
        u64::try_from(self.0.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    fn sleep(&self, ms: u64) -> Option<Duration> {
        Some(Duration::from_millis(ms))
    }
}

/// A clock that stands still until a test moves it.
#[derive(Clone, Default)]
pub struct TestClock(Arc<Hands>);

#[derive(Default)]
struct Hands {
    ns: AtomicU64,
    wakes: Mutex<Vec<Wake>>,
}

impl TestClock {
    /// A clock at 0.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves time on and wakes whoever waits for it.
    pub fn advance_ms(&self, ms: u64) {
        self.0.ns.fetch_add(ms * 1_000_000, Ordering::SeqCst);
        let wakes: Vec<Wake> = lock(&self.0.wakes).clone();
        for wake in wakes {
            wake();
        }
    }
}

impl fmt::Debug for TestClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("TestClock").field(&self.now_ms()).finish()
    }
}

impl Clock for TestClock {
    fn now_ns(&self) -> u64 {
        self.0.ns.load(Ordering::SeqCst)
    }

    fn sleep(&self, _ms: u64) -> Option<Duration> {
        None
    }

    fn on_jump(&self, wake: Wake) {
        lock(&self.0.wakes).push(wake);
    }
}

/// Wall-clock milliseconds, for diagnostics.
pub(crate) fn wall_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
