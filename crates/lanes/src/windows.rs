//! The two active windows: W0 holds the cursor, W1 is computed ahead.
//!
//! The planner says where a window ends; this file says which windows are active. An entry that opens
//! a third window is planned but waits until W0 closes, and W0 closes only when the cursor is past its
//! end. Windows grow or shrink at boundaries alone.

use std::collections::VecDeque;

use sprag_kernel::planner::{Entry, PlanConfig, Planner, Snapshot, Window};

use crate::sync::{Arc, AtomicU64, Ordering};

/// At most so many windows are worked on.
pub(crate) const ACTIVE: usize = 2;

/// What a window holds, counted by whoever hands results over.
#[derive(Default)]
pub(crate) struct WindowGauge {
    pub(crate) number: u64,
    pub(crate) terminal: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

/// A window that is planned and not closed.
pub(crate) struct Planned {
    pub(crate) bounds: Window,
    pub(crate) gauge: Arc<WindowGauge>,
    pub(crate) retries_left: Option<u32>,
    /// The planner has cut it: no entry will join.
    full: bool,
}

/// The active windows, and at most one that has just been begun behind them.
pub(crate) struct Windows {
    planner: Planner,
    planned: VecDeque<Planned>,
    retries: Option<u32>,
    next_seq: u64,
}

impl Windows {
    /// No entries yet; each window will have so many retries, if that is limited.
    pub(crate) fn new(plan: PlanConfig, retries: Option<u32>) -> Self {
        Self { planner: Planner::new(plan), planned: VecDeque::new(), retries, next_seq: 0 }
    }

    /// Plans the next entry. `snapshot` is asked for only if the entry begins a window.
    #[inline]
    pub(crate) fn plan(&mut self, entry: Entry, snapshot: impl FnOnce() -> Snapshot) {
        let seq = self.next_seq;
        self.next_seq += 1;
        let closed = self.planner.push(entry);
        if closed.is_none()
            && let Some(open) = self.planned.back_mut().filter(|last| !last.full)
        {
            open.bounds.end = seq;
            open.bounds.entries += 1;
            open.bounds.cost += entry.cost.max(1);
            open.bounds.bytes += entry.bytes;
            return;
        }
        self.begin(seq, entry, closed);
        self.planner.adapt(Some(&snapshot()));
    }

    /// The input has ended.
    pub(crate) fn finish(&mut self) {
        let last = self.planner.finish();
        self.close_newest(last);
    }

    /// Closes every window that the cursor has passed.
    #[inline]
    pub(crate) fn retire(&mut self, cursor: u64) {
        while let Some(w0) = self.planned.front().filter(|w| w.full && cursor > w.bounds.end) {
            let Window { window, start, end, .. } = w0.bounds;
            tracing::debug!(window, start, end, "window closed");
            self.planned.pop_front();
        }
    }

    /// Whether the newest entry lies in an active window.
    #[inline]
    pub(crate) fn admits_newest(&self) -> bool {
        self.planned.len() <= ACTIVE
    }

    /// The window of the newest entry.
    #[inline]
    pub(crate) fn newest(&self) -> Option<&Planned> {
        self.planned.back()
    }

    /// The cursor at which W0 closes, as far as its end is known.
    pub(crate) fn closes_at(&self) -> Option<u64> {
        self.planned.front().filter(|w0| w0.full).map(|w0| w0.bounds.end + 1)
    }

    /// The window with this number, while it is not closed.
    pub(crate) fn by_number(&mut self, number: u64) -> Option<&mut Planned> {
        self.planned.iter_mut().find(|planned| planned.bounds.window == number)
    }

    /// W0 and W1 at this cursor, as far as there are any.
    pub(crate) fn active(&self, cursor: u64) -> impl Iterator<Item = &Planned> {
        let passed = move |planned: &&Planned| planned.full && cursor > planned.bounds.end;
        self.planned.iter().skip_while(passed).take(ACTIVE)
    }

    fn begin(&mut self, seq: u64, entry: Entry, closed: Option<Window>) {
        self.close_newest(closed);
        let window = self.planned.back().map_or_else(
            || closed.map_or(0, |before| before.window + 1),
            |before| before.bounds.window + 1,
        );
        let (cost, bytes) = (entry.cost.max(1), entry.bytes);
        self.planned.push_back(Planned {
            bounds: Window { window, start: seq, end: seq, cost, bytes, entries: 1 },
            gauge: Arc::new(WindowGauge { number: window, ..WindowGauge::default() }),
            retries_left: self.retries,
            full: false,
        });
    }

    fn close_newest(&mut self, closed: Option<Window>) {
        if let (Some(newest), Some(closed)) = (self.planned.back_mut(), closed) {
            debug_assert_eq!(newest.bounds, closed, "both saw the same entries");
            newest.full = true;
        }
    }
}

impl Planned {
    /// Results that wait in this window, in bytes.
    pub(crate) fn buffered(&self) -> u64 {
        self.gauge.bytes.load(Ordering::Relaxed)
    }
}
