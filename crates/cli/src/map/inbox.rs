//! Between the commit lane and the writer: results that wait to be written, as one group.
//!
//! What comes while the writer is busy joins the group that waits, so a slow disk makes groups larger
//! and not the run slower, up to [`MAX_BYTES`]. Either side may go: the writer then takes what is
//! left, the lane is told that nobody writes any more.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::writer::Group;

/// Bytes that may wait; beyond, the commit lane waits too.
const MAX_BYTES: usize = 16 << 20;
/// A group of this size waits for nobody.
const FULL_BYTES: usize = 1 << 20;

#[derive(Default)]
struct State {
    waiting: Option<Group>,
    /// The commit lane has ended.
    closed: bool,
    /// The writer has ended.
    deserted: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The commit lane's end.
pub struct Sender {
    shared: Arc<Shared>,
    one_by_one: bool,
}

/// The writer's end.
pub struct Receiver(Arc<Shared>);

/// What a writer finds.
pub enum Found {
    /// Results to write.
    Group(Group),
    /// Nothing in the time given.
    Nothing,
    /// Nothing, now and for ever.
    End,
}

/// An inbox. `one_by_one` keeps groups apart: each waits until the one before it was taken.
pub fn inbox(one_by_one: bool) -> (Sender, Receiver) {
    let shared = Arc::<Shared>::default();
    (Sender { shared: Arc::clone(&shared), one_by_one }, Receiver(shared))
}

impl Sender {
    /// Hands a group over; false if nobody writes any more.
    pub fn send(&self, group: Group) -> bool {
        let full = |state: &mut State| {
            let waiting = state.waiting.as_ref();
            !state.deserted
                && waiting.is_some_and(|waiting| self.one_by_one || waiting.bytes() >= MAX_BYTES)
        };
        let state = self.shared.changed.wait_while(self.shared.lock(), full);
        let mut state = state.unwrap_or_else(PoisonError::into_inner);
        if state.deserted {
            return false;
        }
        match &mut state.waiting {
            Some(waiting) => waiting.join(group),
            empty => *empty = Some(group),
        }
        self.shared.changed.notify_all();
        true
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.shared.lock().closed = true;
        self.shared.changed.notify_all();
    }
}

impl Receiver {
    /// Waits up to `idle` for results, then up to `gather` for more of them.
    pub fn take(&self, idle: Duration, gather: Duration) -> Found {
        let empty = |state: &State| state.waiting.is_none();
        let mut state = self.wait(self.0.lock(), idle, empty);
        if state.waiting.is_some() && gather > Duration::ZERO {
            let small = |state: &State| {
                state.waiting.as_ref().is_some_and(|waiting| waiting.bytes() < FULL_BYTES)
            };
            state = self.wait(state, gather, small);
        }
        let taken = state.waiting.take();
        self.0.changed.notify_all();
        match taken {
            Some(group) => Found::Group(group),
            None if state.closed => Found::End,
            None => Found::Nothing,
        }
    }

    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        time: Duration,
        goes_on: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        let until = Instant::now() + time;
        while goes_on(&state) && !state.closed {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.0.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.lock().deserted = true;
        self.0.changed.notify_all();
    }
}
