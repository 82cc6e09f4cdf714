//! Doers: who does the work of a service, and how much of it at a time.

use std::sync::Arc;

use super::control;
use crate::batch::{BatchHandler, OutputHandler};
use crate::bus::{Bus, MAX_PUBLISHING};
use crate::outbound::{CALLS, Caller};
use crate::worker::Runner;

/// A service that this engine serves.
pub(crate) struct Service<W> {
    pub(super) doer: Doer<W>,
    /// Below 0 while more runs than was meant to, which only a takeover brings about.
    pub(super) free: isize,
}

impl<W> Service<W> {
    pub(crate) fn new(runner: Runner<W>, slots: usize) -> Self {
        let free = isize::try_from(slots).unwrap_or(isize::MAX);
        Self { doer: Doer::Handler(runner), free }
    }

    pub(super) fn control() -> Self {
        Self { doer: Doer::Control, free: control::SLOTS.cast_signed() }
    }

    pub(crate) fn of_batches(
        handler: BatchHandler,
        output: Option<OutputHandler<W>>,
        slots: usize,
    ) -> Self {
        let free = isize::try_from(slots).unwrap_or(isize::MAX);
        Self { doer: Doer::Batch(handler, output), free }
    }

    pub(crate) fn commands(slots: usize) -> Self {
        Self { doer: Doer::Exec, free: isize::try_from(slots).unwrap_or(isize::MAX) }
    }

    pub(crate) fn calls(caller: Caller) -> Self {
        Self { doer: Doer::Http(caller), free: CALLS.cast_signed() }
    }

    pub(crate) fn bus(bus: Arc<dyn Bus>) -> Self {
        Self { doer: Doer::Bus(bus), free: MAX_PUBLISHING.cast_signed() }
    }
}

/// Who does the work of a service.
pub(super) enum Doer<W> {
    /// A handler in this process.
    Handler(Runner<W>),
    /// A handler in this process, item by item, and one for what comes out.
    Batch(BatchHandler, Option<OutputHandler<W>>),
    /// Workers behind a bus.
    Bus(Arc<dyn Bus>),
    /// The engine itself.
    Control,
    /// A command.
    Exec,
    /// Whoever makes calls for this engine.
    Http(Caller),
}

// By hand: what it hands over need not be cloned with it.
impl<W> Clone for Doer<W> {
    fn clone(&self) -> Self {
        match self {
            Self::Handler(runner) => Self::Handler(runner.clone()),
            Self::Batch(handler, output) => Self::Batch(handler.clone(), output.clone()),
            Self::Bus(bus) => Self::Bus(bus.clone()),
            Self::Control => Self::Control,
            Self::Exec => Self::Exec,
            Self::Http(caller) => Self::Http(caller.clone()),
        }
    }
}
