//! Retention: jobs that ended long ago are deleted, a page at a time, by whichever engine comes by. Two at
//! once are harmless: each page is one commit that leaves out what the other one is deleting. Their dedup
//! keys stay, for ever if nothing else is said, and answer for them. A sweeper that is behind goes on until nothing
//! is left, and between two pages it leaves the store to others for as long as the page took.

use std::sync::Arc;
use std::time::{Duration, Instant};

use sprag_kernel::retry::Millis;
use tokio::sync::watch;

use crate::ids::{EngineNo, JobId};
use crate::store::{Answer, Store, StoreError};

/// How many jobs one commit looks at, so that none holds others up for long.
const PAGE: u32 = 200;
/// How many pages in which there was nothing to delete follow each other before the sweeper rests: jobs that are
/// kept are looked at again and again, and need not be looked at fast.
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

    /// Deletes what there is to delete, and looks at some of what is kept.
    async fn sweep(&self, at: &mut Option<JobId>) -> Answer<()> {
        if let Some(keep) = self.keep {
            let mut idle = 0;
            while idle < PAGES && !*self.stop.borrow() {
                let begun = Instant::now();
                let page = self.store.retire(self.engine, millis(keep), *at, PAGE).await?;
                *at = page.next;
                if at.is_none() {
                    break;
                }
                idle = if page.deleted > 0 { 0 } else { idle + 1 };
                tokio::time::sleep(begun.elapsed()).await;
            }
        }
        if let Some(keep) = self.keep_keys {
            while !*self.stop.borrow() {
                let begun = Instant::now();
                let gone = self.store.forget(self.engine, millis(keep), PAGE).await?;
                if gone < PAGE as usize {
                    break;
                }
                tokio::time::sleep(begun.elapsed()).await;
            }
        }
        Ok(())
    }
}

fn millis(duration: Duration) -> Millis {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
