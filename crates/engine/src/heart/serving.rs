//! What this engine and the workers that claim from it offer themselves for, noted in the store now and then,
//! so that a job which waits for nobody's service can say so.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::{Done, Heart};
use crate::store::Store;

/// How often it is said again; well within [`UNSEEN_MS`](crate::upkeep::UNSEEN_MS).
const AGAIN: Duration = Duration::from_secs(20);
/// Names that workers may bring between two notes; more are not noted.
const MAX_NAMES: usize = 1_000;

#[derive(Default)]
pub(super) struct Serving {
    /// What workers have claimed since the last note.
    pulled: BTreeSet<String>,
    noted: BTreeSet<String>,
    noted_at: Option<Instant>,
}

impl Serving {
    /// A worker asks for these.
    pub(super) fn pulled(&mut self, services: &[String]) {
        let room = MAX_NAMES.saturating_sub(self.pulled.len());
        let news = services.iter().filter(|name| !self.pulled.contains(*name)).take(room);
        let news: Vec<String> = news.cloned().collect();
        self.pulled.extend(news);
    }

    /// What is to be noted now, if anything.
    fn take(&mut self, own: impl Iterator<Item = String>) -> Option<Vec<String>> {
        let offered: BTreeSet<String> = own.chain(self.pulled.iter().cloned()).collect();
        let is_due = self.noted_at.is_none_or(|at| at.elapsed() >= AGAIN);
        let is_known = offered.is_subset(&self.noted);
        if offered.is_empty() || (is_known && !is_due) {
            return None;
        }
        self.pulled.clear();
        self.noted_at = Some(Instant::now());
        self.noted = offered;
        Some(self.noted.iter().cloned().collect())
    }
}

impl<S: Store> Heart<S> {
    pub(super) fn note_services(&mut self) {
        let own = self.services.keys().cloned();
        if let Some(services) = self.serving.take(own) {
            let (store, engine) = (self.store.clone(), self.engine);
            self.calls.spawn(async move { Done::Noted(store.serve(engine, services).await) });
        }
    }
}
