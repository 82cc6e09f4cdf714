//! Writes that somebody has to read: into a pipe that nobody empties one takes for ever.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Counts the beginnings and the ends of such writes, one at a time: odd while one is under way.
#[derive(Debug, Default)]
pub struct Outlet(AtomicU64);

impl Outlet {
    /// Writes something.
    pub fn around<T>(&self, write: impl FnOnce() -> T) -> T {
        self.0.fetch_add(1, Ordering::SeqCst);
        let done = write();
        self.0.fetch_add(1, Ordering::SeqCst);
        done
    }

    /// Returns once a write has been under way for so long; never, if none ever is.
    pub fn await_stuck(&self, time: Duration) {
        loop {
            let seen = self.0.load(Ordering::SeqCst);
            std::thread::sleep(time);
            if seen % 2 == 1 && seen == self.0.load(Ordering::SeqCst) {
                return;
            }
        }
    }
}
