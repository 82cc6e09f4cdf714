//! A bell for the supervisor. Whoever rings needs no other lock, so it may be rung from anywhere, even
//! from inside a source or a sink; a ring before the sleep is not lost.

use std::time::Duration;

use crate::sync::{Condvar, Mutex, lock, wait, wait_for};

/// Rung by many, heard by one.
#[derive(Default)]
pub(crate) struct Bell {
    rung: Mutex<bool>,
    heard: Condvar,
}

impl Bell {
    pub(crate) fn ring(&self) {
        *lock(&self.rung) = true;
        self.heard.notify_one();
    }

    /// Forgets the rings so far. The listener does this before it looks at the world.
    pub(crate) fn hush(&self) {
        *lock(&self.rung) = false;
    }

    /// Sleeps until the bell is rung, was rung since [`Bell::hush`], or the limit has passed.
    pub(crate) fn listen(&self, limit: Option<Duration>) {
        let mut rung = lock(&self.rung);
        match limit {
            Some(limit) if !*rung => drop(wait_for(&self.heard, rung, limit)),
            Some(_) => {}
            None => {
                while !*rung {
                    rung = wait(&self.heard, rung);
                }
            }
        }
    }
}
