//! The handle by which others stop, cancel and watch a run.
//!
//! Stop is not cancel. A stopped run commits the contiguous prefix of what is done and leaves the rest
//! to a resumed run; a cancelled one gives every seq an outcome. A cancel overrules a stop, and neither
//! can be taken back.

use std::fmt;

use crate::observe::Observation;
use crate::sync::{Arc, AtomicU64, Mutex, Ordering, lock};

type Heard = Arc<dyn Fn(Wish) + Send + Sync>;
type Observe = Arc<dyn Fn() -> Observation + Send + Sync>;

/// What was asked of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Wish {
    GoOn,
    Stop,
    Cancel,
}

/// Stops, cancels and watches a run. Cheap to clone, usable from any thread.
#[derive(Clone, Default)]
pub struct Control(Arc<Inner>);

#[derive(Default)]
struct Inner {
    wish: AtomicU64,
    run: Mutex<Option<(Heard, Observe)>>,
}

impl Control {
    /// A handle for one run.
    pub fn new() -> Self {
        Self::default()
    }

    /// No new dispatch; the prefix that is done is committed, the rest is left for a resume.
    pub fn stop(&self) {
        self.ask(Wish::Stop);
    }

    /// No new dispatch; what has no outcome after the grace is committed as cancelled.
    pub fn cancel(&self) {
        self.ask(Wish::Cancel);
    }

    /// Whether a stop or a cancel was asked for. A sink that waits for something, such as a store that
    /// is away, looks here and gives up with an error.
    pub fn is_ending(&self) -> bool {
        self.wish() != Wish::GoOn
    }

    /// The run at this moment; none before it begins and after it ends.
    pub fn observe(&self) -> Option<Observation> {
        let observe = lock(&self.0.run).as_ref().map(|(_, observe)| Arc::clone(observe))?;
        Some(observe())
    }

    pub(crate) fn wish(&self) -> Wish {
        match self.0.wish.load(Ordering::SeqCst) {
            0 => Wish::GoOn,
            1 => Wish::Stop,
            _ => Wish::Cancel,
        }
    }

    /// Connects a run; it hears at once what was asked before it began.
    pub(crate) fn attach(&self, heard: Heard, observe: Observe) {
        *lock(&self.0.run) = Some((heard, observe));
        self.tell();
    }

    pub(crate) fn detach(&self) {
        *lock(&self.0.run) = None;
    }

    fn ask(&self, wish: Wish) {
        self.0.wish.fetch_max(wish as u64, Ordering::SeqCst);
        self.tell();
    }

    fn tell(&self) {
        let heard = lock(&self.0.run).as_ref().map(|(heard, _)| Arc::clone(heard));
        if let Some(heard) = heard {
            heard(self.wish());
        }
    }
}

impl fmt::Debug for Control {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Control").field(&self.wish()).finish()
    }
}
