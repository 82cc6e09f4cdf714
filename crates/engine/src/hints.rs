//! Hints: somebody else has left work. A store that can tell of it does so while it is listened to, and then an
//! engine with nothing to do looks seldom. A hint is never counted on: what was not told, or got lost, is found
//! by the next look, and while nobody listens the looks are as frequent as configured.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, watch};

use crate::heart::Op;
use crate::store::Store;

/// How long a listener waits before it listens again to a store that was away.
const DEAF: Duration = Duration::from_secs(1);

/// What a store calls when there may be work, and once when it begins to listen.
pub type Hint = Arc<dyn Fn() + Send + Sync>;

/// Whether hints are heard at the moment.
pub(crate) type Hears = Arc<AtomicBool>;

/// Hands hints of the store to the heart.
pub(crate) struct Listener<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) ops: mpsc::UnboundedSender<Op<S::Work>>,
    pub(crate) hears: Hears,
    pub(crate) stop: watch::Receiver<bool>,
}

impl<S: Store> Drop for Listener<S> {
    fn drop(&mut self) {
        self.hears.store(false, Ordering::Relaxed);
    }
}

impl<S: Store> Listener<S> {
    /// Listens until it is told to stop.
    pub(crate) async fn run(mut self) {
        loop {
            let (ops, hears) = (self.ops.clone(), self.hears.clone());
            let hint: Hint = Arc::new(move || {
                hears.store(true, Ordering::Relaxed);
                // A heart that is gone needs no hints.
                let _ = ops.send(Op::Hint);
            });
            let error = tokio::select! {
                _ = self.stop.changed() => return,
                error = self.store.listen(hint) => error,
            };
            tracing::warn!(code = "STORE_CALL_FAILED", %error, "no hints of others for now");
            self.hears.store(false, Ordering::Relaxed);
            // The heart may be in a long wait.
            let _ = self.ops.send(Op::Hint);
            tokio::select! {
                _ = self.stop.changed() => return,
                () = tokio::time::sleep(DEAF) => {}
            }
        }
    }
}
