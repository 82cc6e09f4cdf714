//! A phase: a queue, at most one call under way, and how large its next group may be.

/// The most that one call carries.
pub(super) const SLICE: usize = 500;
/// Groups of so many are few: whoever is in them waits for commits, not for others. What follows is written at once, in a
/// commit of its own. Larger ones go phase by phase, so that all phases are under way at a time.
const FEW: usize = 8;

/// Whether the next phase of a group is asked for with this one.
pub(super) fn is_soon<T>(group: &[T]) -> bool {
    group.len() <= FEW
}

pub(super) struct Phase<T> {
    waiting: Vec<T>,
    is_busy: bool,
    limit: usize,
}

/// What to do with a group that the store refused as a whole.
pub(super) enum Refused<T> {
    /// It is back in the queue, and the next group is smaller.
    Smaller,
    /// It stood alone: this is the culprit.
    Culprit(T),
}

impl<T> Phase<T> {
    pub(super) fn new() -> Self {
        Self { waiting: Vec::new(), is_busy: false, limit: SLICE }
    }

    pub(super) fn push(&mut self, element: T) {
        self.waiting.push(element);
    }

    /// What waits, without what a call carries.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &T> {
        self.waiting.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Whether nothing waits and no call is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_busy
    }

    /// The next group, if there is one and no call is under way.
    pub(super) fn next_group(&mut self) -> Option<Vec<T>> {
        if self.is_busy || self.waiting.is_empty() {
            return None;
        }
        self.is_busy = true;
        let count = self.waiting.len().min(self.limit);
        Some(self.waiting.drain(..count).collect())
    }

    /// The call went through; groups may grow again.
    pub(super) fn done(&mut self) {
        self.is_busy = false;
        self.limit = (self.limit * 2).min(SLICE);
    }

    /// The store was away: the same group again, before all others.
    pub(super) fn again(&mut self, group: Vec<T>) {
        self.is_busy = false;
        self.waiting.splice(0..0, group);
    }

    /// The store refused some element of the group.
    pub(super) fn refused(&mut self, mut group: Vec<T>) -> Refused<T> {
        if group.len() == 1 {
            self.done();
            return Refused::Culprit(group.remove(0));
        }
        self.limit = (group.len() / 2).max(1);
        self.again(group);
        Refused::Smaller
    }
}
