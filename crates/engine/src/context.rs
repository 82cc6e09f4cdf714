//! The context of a running handler: why it should stop, and how it says that it goes on.
//!
//! Both directions hold only the latest word: a reason to stop, once there is one, and the last progress.
//! So a handler may say as much as it likes; the engine writes what stands there when it looks.

use serde::Serialize;
use sprag_kernel::Cause;
use tokio::sync::watch;

use crate::directive::Failure;
use crate::limits::check_json;

/// The longest progress that is kept, in bytes of JSON.
pub const MAX_PROGRESS_BYTES: usize = 16 * 1024;

/// Why a handler should end soon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// Its step's timeout is over; the attempt has ended without it.
    TimedOut,
    /// Its job is being cancelled.
    Cancelled,
    /// The engine stops.
    Shutdown,
}

/// What a handler can ask and say while it runs.
#[derive(Clone, Debug)]
pub struct Context {
    stop: watch::Receiver<Option<StopReason>>,
    progress: watch::Sender<Option<String>>,
}

impl Context {
    /// A context, and the engine's ends of it.
    pub(crate) fn new(stop: Option<StopReason>) -> (Self, Ends) {
        let (stop, stopped) = watch::channel(stop);
        let (said, progress) = watch::channel(None);
        (Self { stop: stopped, progress: said }, Ends { stop, progress })
    }

    /// Whether the handler should end soon: its time is over, its job is cancelled, or the engine stops.
    pub fn should_stop(&self) -> bool {
        self.stop_reason().is_some()
    }

    /// Why the handler should end soon, if it should.
    pub fn stop_reason(&self) -> Option<StopReason> {
        *self.stop.borrow()
    }

    /// Waits until the handler should end.
    pub async fn stopped(&mut self) {
        // The sender lives as long as the attempt; if it is gone, so is the attempt.
        let _ = self.stop.wait_for(Option::is_some).await;
    }

    /// Says that the handler is alive and how far it is. Its lease is renewed and the progress is shown by
    /// `explain`, with the engine's next look. Progress that cannot be kept is refused, nothing is said.
    pub fn heartbeat(&self, progress: impl Serialize) -> Result<(), Failure> {
        let refused = |reason: &str| Failure::fatal(Cause::ProgressInvalid.name(), reason);
        let text = serde_json::to_string(&progress).map_err(|error| refused(&error.to_string()))?;
        check_json("progress", &text, MAX_PROGRESS_BYTES)
            .map_err(|refusal| refused(&refusal.message()))?;
        self.progress.send_replace(Some(text));
        Ok(())
    }
}

/// The engine's ends of a context.
#[derive(Debug)]
pub(crate) struct Ends {
    stop: watch::Sender<Option<StopReason>>,
    progress: watch::Receiver<Option<String>>,
}

impl Ends {
    /// Tells the handler to stop. The first reason stands.
    pub(crate) fn stop(&self, reason: StopReason) {
        self.stop.send_if_modified(|stop| {
            let is_first = stop.is_none();
            stop.get_or_insert(reason);
            is_first
        });
    }

    /// Why the handler was told to stop, if it was.
    pub(crate) fn told(&self) -> Option<StopReason> {
        *self.stop.borrow()
    }

    /// What the handler has said since this was last asked.
    pub(crate) fn take_progress(&mut self) -> Option<String> {
        // An error means that the handler has returned; what it said last is not news any more.
        if !self.progress.has_changed().unwrap_or(false) {
            return None;
        }
        self.progress.borrow_and_update().clone()
    }
}
