//! The store's clock: wall time when the file was opened plus monotonic time since, so that a host whose
//! clock jumps fires nothing early and time never runs backwards.

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use crate::test_clock::TestClock;

#[derive(Clone)]
pub(super) enum Clock {
    Since { wall_ms: i64, opened: Instant },
    Test(TestClock),
}

impl Clock {
    /// A clock that starts now, but not before `at_least`, the latest time the file knows.
    pub(super) fn start(at_least: i64) -> Self {
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
        let wall_ms = i64::try_from(wall).unwrap_or(i64::MAX).max(at_least);
        Self::Since { wall_ms, opened: Instant::now() }
    }

    pub(super) fn now(&self) -> i64 {
        match self {
            Self::Since { wall_ms, opened } => {
                wall_ms + i64::try_from(opened.elapsed().as_millis()).unwrap_or(i64::MAX)
            }
            Self::Test(clock) => clock.now(),
        }
    }
}
