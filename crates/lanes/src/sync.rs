//! The primitives that every other file takes its threads, locks and atomics from.
//!
//! Here they are those of the standard library. The schedule explorer compiles the same files with
//! its own version of this one, so what it explores is the code that ships.

pub(crate) use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
pub(crate) use std::sync::{Arc, Condvar, Mutex, MutexGuard};
pub(crate) use std::thread;

use std::sync::PoisonError;
use std::time::Duration;

/// How often a lock is tried, and how long is waited in between: some tens of microseconds in all.
const TRIES: usize = 64;
const PAUSES: usize = 16;

/// Takes a lock. Panics of callers' code are caught before they could poison one, so a poisoned lock
/// only says that a run is failing already, and its state is still needed to say why.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Takes a lock if nobody holds it.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(std::sync::TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(std::sync::TryLockError::WouldBlock) => None,
    }
}

/// Takes a lock that is held for some microseconds and asked for by many at once: it tries for about as long as that
/// before it sleeps, since to be woken takes longer.
pub(crate) fn lock_soon<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    for _ in 0..TRIES {
        if let Some(guard) = try_lock(mutex) {
            return guard;
        }
        for _ in 0..PAUSES {
            std::hint::spin_loop();
        }
    }
    lock(mutex)
}

/// Waits for a signal.
pub(crate) fn wait<'a, T>(condvar: &Condvar, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    condvar.wait(guard).unwrap_or_else(PoisonError::into_inner)
}

/// Waits for a signal, or until the time has passed.
pub(crate) fn wait_for<'a, T>(
    condvar: &Condvar,
    guard: MutexGuard<'a, T>,
    limit: Duration,
) -> MutexGuard<'a, T> {
    match condvar.wait_timeout(guard, limit) {
        Ok((guard, _)) => guard,
        Err(poisoned) => poisoned.into_inner().0,
    }
}
