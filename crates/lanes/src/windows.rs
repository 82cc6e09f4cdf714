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
    pub(crate) number: u64,
    /// Known once the planner has cut it and no entry will join.
    bounds: Option<Window>,
    pub(crate) gauge: Arc<WindowGauge>,
    pub(crate) retries_left: Option<u32>,
}

/// The active windows, and at most one that has just been begun behind them.
pub(crate) struct Windows {
    planner: Planner,
    planned: VecDeque<Planned>,
    retries: Option<u32>,
}

impl Windows {
    /// No entries yet; each window will have so many retries, if that is limited.
    pub(crate) fn new(plan: PlanConfig, retries: Option<u32>) -> Self {
        Self { planner: Planner::new(plan), planned: VecDeque::new(), retries }
    }

    /// Plans the next entry. `snapshot` is asked for only if the entry begins a window.
    #[inline]
    pub(crate) fn plan(&mut self, entry: Entry, snapshot: impl FnOnce() -> Snapshot) {
        let closed = self.planner.push(entry);
        if closed.is_some() || self.planned.is_empty() {
            self.begin(closed);
            self.planner.adapt(Some(&snapshot()));
        }
    }

    /// How many more entries like this one join the newest window, if they come next.
    #[inline]
    pub(crate) fn room_for(&self, entry: Entry) -> u64 {
        if self.planned.is_empty() { 0 } else { self.planner.room_for(entry) }
    }

    /// Plans entries that the newest window has room for.
    #[inline]
    pub(crate) fn extend(&mut self, entry: Entry, count: u64) {
        self.planner.extend(entry, count);
    }

    /// The planner, as it is behind the newest entry.
    pub(crate) fn planner(&self) -> &Planner {
        &self.planner
    }

    /// The input has ended.
    pub(crate) fn finish(&mut self) {
        let last = self.planner.finish();
        self.close_newest(last);
    }

    /// Closes every window that the cursor has passed.
    #[inline]
    pub(crate) fn retire(&mut self, cursor: u64) {
        while let Some(w0) = self.planned.front().and_then(|w0| w0.bounds)
            && cursor > w0.end
        {
            tracing::debug!(window = w0.window, start = w0.start, end = w0.end, "window closed");
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
        self.planned.front().and_then(|w0| w0.bounds).map(|w0| w0.end + 1)
    }

    /// The window with this number, while it is not closed.
    pub(crate) fn by_number(&mut self, number: u64) -> Option<&mut Planned> {
        self.planned.iter_mut().find(|planned| planned.number == number)
    }

    /// W0 and W1 at this cursor, as far as there are any, with their bounds so far.
    pub(crate) fn active(&self, cursor: u64) -> impl Iterator<Item = (Window, &Planned)> {
        let open = self.planner.open();
        let bounded = move |planned| (Planned::bounds_or(planned, open), planned);
        let passed = move |planned: &&Planned| planned.bounds.is_some_and(|w| cursor > w.end);
        self.planned.iter().skip_while(passed).take(ACTIVE).map(bounded)
    }

    #[cold]
    fn begin(&mut self, closed: Option<Window>) {
        self.close_newest(closed);
        let number = self.planner.open().window;
        self.planned.push_back(Planned {
            number,
            bounds: None,
            gauge: Arc::new(WindowGauge { number, ..WindowGauge::default() }),
            retries_left: self.retries,
        });
    }

    fn close_newest(&mut self, closed: Option<Window>) {
        if let (Some(newest), Some(closed)) = (self.planned.back_mut(), closed) {
            debug_assert_eq!(newest.number, closed.window, "both count the same windows");
            newest.bounds = Some(closed);
        }
    }
}

impl Planned {
    fn bounds_or(&self, open: Window) -> Window {
        self.bounds.unwrap_or(open)
    }

    /// Results that wait in this window, in bytes.
    pub(crate) fn buffered(&self) -> u64 {
        self.gauge.bytes.load(Ordering::Relaxed)
    }
}
