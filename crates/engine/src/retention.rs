//! Retention: jobs that ended long ago are deleted, a page at a time, by whichever engine comes by. Two at
//! once are harmless: each page is one commit that leaves out what the other one is deleting. Their dedup
//! keys stay, for ever if nothing else is said, and answer for them.

use std::sync::Arc;
use std::time::Duration;

use sprag_kernel::retry::Millis;
use tokio::sync::watch;

use crate::ids::{EngineNo, JobId};
use crate::store::{Answer, Store, StoreError};

/// How many jobs one commit looks at, so that none holds others up for long.
const PAGE: u32 = 200;
/// How many pages follow each other before the sweeper rests.
const PAGES: u32 = 50;

pub(crate) struct Sweeper<S: Store> {
    pub(crate) store: Arc<S>,
    pub(crate) engine: EngineNo,
    /// How long a finished job is kept; for ever if nothing is said.
    pub(crate) keep: Option<Duration>,
    /// How long the dedup key of a deleted job is kept; for ever if nothing is said.
    pub(crate) keep_keys: Option<Duration>,
    pub(crate) rest: Duration,
    pub(crate) stop: watch::Receiver<bool>,
}

impl<S: Store> Sweeper<S> {
    /// Sweeps until it is told to stop, or the engine is fenced off.
    pub(crate) async fn run(mut self) {
        let mut at = None;
        while !*self.stop.borrow() {
            match self.sweep(&mut at).await {
                Ok(()) => {}
                Err(StoreError::Fenced) => return,
                Err(error) => {
                    tracing::warn!(code = "STORE_CALL_FAILED", %error, "retention waits");
                }
            }
            tokio::select! {
                _ = self.stop.changed() => {}
                () = tokio::time::sleep(self.rest) => {}
            }
        }
    }

    async fn sweep(&self, at: &mut Option<JobId>) -> Answer<()> {
        if let Some(keep) = self.keep {
            for _ in 0..PAGES {
                *at = self.store.retire(self.engine, millis(keep), *at, PAGE).await?.next;
                if at.is_none() || *self.stop.borrow() {
                    break;
                }
            }
        }
        if let Some(keep) = self.keep_keys {
            for _ in 0..PAGES {
                let gone = self.store.forget(self.engine, millis(keep), PAGE).await?;
                if gone < PAGE as usize || *self.stop.borrow() {
                    break;
                }
            }
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
