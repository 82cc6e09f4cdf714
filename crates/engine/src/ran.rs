//! What an engine has run itself, told to whoever measures it. Workers outside are not among it: whoever hands their
//! directives out and hears their reports measures them there.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sprag_kernel::decide::callback::Report;

use crate::ids::JobId;

/// An attempt that a handler, a command, a call or a batch is done with, whether or not that is stored yet.
#[derive(Clone, Copy, Debug)]
pub struct Ran<'a> {
    /// The job.
    pub job_id: JobId,
    /// Which attempt at its step, from 1.
    pub attempt_no: u32,
    /// The protocol of its job.
    pub protocol_id: &'a str,
    /// Its step.
    pub step_id: &'a str,
    /// The trace of its job.
    pub traceparent: Option<&'a str>,
    /// How it went.
    pub report: Report,
    /// How long it took.
    pub took: Duration,
}

type Watcher = Box<dyn Fn(&Ran<'_>) + Send + Sync>;

/// Whoever is told, if anybody is.
#[derive(Clone, Default)]
pub(crate) struct Watch(Arc<OnceLock<Watcher>>);

impl Watch {
    pub(crate) fn set(&self, watcher: impl Fn(&Ran<'_>) + Send + Sync + 'static) -> bool {
        self.0.set(Box::new(watcher)).is_ok()
    }

    pub(crate) fn is_anybody(&self) -> bool {
        self.0.get().is_some()
    }

    /// A watcher that panics has missed this one; it is no reason to end an engine.
    pub(crate) fn tell(&self, ran: &Ran<'_>) {
        let tell = || self.0.get().map(|watcher| watcher(ran));
        if catch_unwind(AssertUnwindSafe(tell)).is_err() {
            tracing::error!(code = "WATCHER_PANICKED", "whoever watches this engine has panicked");
        }
    }
}
