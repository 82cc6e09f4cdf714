//! Seqs that wait for another attempt, by when they are due and by seq.
//!
//! They hold their item but no worker: a wait never blocks anything but the cursor.

use std::collections::{BTreeMap, BTreeSet};

use sprag_kernel::retry::Millis;

use crate::claim::Shelf;
use crate::sync::Arc;
use crate::windows::WindowGauge;

/// A seq without an owner, and what is needed to dispatch it again.
pub(crate) struct Waiting<T> {
    pub(crate) seq: u64,
    pub(crate) due: Millis,
    pub(crate) shelf: Shelf<T>,
    pub(crate) place: usize,
    pub(crate) window: Arc<WindowGauge>,
}

/// The waiting room. It holds at most the seqs of two windows.
pub(crate) struct RetryQueue<T> {
    by_seq: BTreeMap<u64, Waiting<T>>,
    by_due: BTreeSet<(Millis, u64)>,
}

impl<T> Default for RetryQueue<T> {
    fn default() -> Self {
        Self { by_seq: BTreeMap::new(), by_due: BTreeSet::new() }
    }
}

impl<T> RetryQueue<T> {
    pub(crate) fn push(&mut self, waiting: Waiting<T>) {
        self.by_due.insert((waiting.due, waiting.seq));
        let twice = self.by_seq.insert(waiting.seq, waiting);
        debug_assert!(twice.is_none(), "a seq waits once");
    }

    /// The one that has been due for longest.
    pub(crate) fn pop_due(&mut self, now: Millis) -> Option<Waiting<T>> {
        let (due, seq) = *self.by_due.first()?;
        if due > now {
            return None;
        }
        self.remove(seq)
    }

    /// This one, if it is due.
    pub(crate) fn take_due(&mut self, seq: u64, now: Millis) -> Option<Waiting<T>> {
        self.by_seq.get(&seq).filter(|waiting| waiting.due <= now)?;
        self.remove(seq)
    }

    /// The lowest seq, due or not.
    pub(crate) fn pop_lowest(&mut self) -> Option<Waiting<T>> {
        let seq = *self.by_seq.keys().next()?;
        self.remove(seq)
    }

    /// Whether one is due.
    pub(crate) fn has_due(&self, now: Millis) -> bool {
        self.by_due.first().is_some_and(|(due, _)| *due <= now)
    }

    /// When the next one will be due, apart from those that are.
    pub(crate) fn next_due(&self, now: Millis) -> Option<Millis> {
        let later = (now.saturating_add(1), 0)..;
        self.by_due.range(later).next().map(|(due, _)| *due)
    }

    pub(crate) fn len(&self) -> usize {
        self.by_seq.len()
    }

    fn remove(&mut self, seq: u64) -> Option<Waiting<T>> {
        let waiting = self.by_seq.remove(&seq)?;
        self.by_due.remove(&(waiting.due, seq));
        Some(waiting)
    }
}
