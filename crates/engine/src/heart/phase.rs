//! A phase: a queue, at most one call under way, and how large its next group may be.

/// The most that one call carries.
pub(super) const SLICE: usize = 500;
/// One that carries so much text takes no other element: a server refuses a message of a GiB, and holds several copies of
/// what it takes.
const BYTES: usize = 16 << 20;
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
        self.next_group_by(|_| 0)
    }

    /// The same for elements that carry so much text each.
    pub(super) fn next_group_by(&mut self, bytes: impl Fn(&T) -> usize) -> Option<Vec<T>> {
        if self.is_busy || self.waiting.is_empty() {
            return None;
        }
        self.is_busy = true;
        let mut left = BYTES;
        let has_room = |element: &&T| {
            let has_room = left > 0;
            left = left.saturating_sub(bytes(element));
            has_room
        };
        let count = self.waiting.iter().take(self.limit).take_while(has_room).count();
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

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(elements: impl IntoIterator<Item = usize>) -> Phase<usize> {
        let mut phase = Phase::new();
        elements.into_iter().for_each(|element| phase.push(element));
        phase
    }

    /// How large the groups are that the elements go in.
    fn groups(mut phase: Phase<usize>) -> Vec<usize> {
        let mut sizes = Vec::new();
        while let Some(group) = phase.next_group_by(|bytes| *bytes) {
            assert!(phase.next_group().is_none(), "one call is under way at a time");
            sizes.push(group.len());
            phase.done();
        }
        assert!(phase.is_idle());
        sizes
    }

    #[test]
    fn a_group_ends_with_its_elements_or_with_its_bytes() {
        assert_eq!(groups(filled([0; 2 * SLICE + 1])), [SLICE, SLICE, 1]);
        assert_eq!(groups(filled([BYTES / 4; 9])), [4, 4, 1]);
        assert_eq!(
            groups(filled([BYTES / 4 - 1; 6])),
            [5, 1],
            "the last one begins below the limit"
        );
        assert_eq!(
            groups(filled([3 * BYTES, 1, 3 * BYTES, 1])),
            [1, 2, 1],
            "nothing is too large to go"
        );
    }

    #[test]
    fn a_culprit_is_found_however_large_its_group_was() {
        let (mut phase, mut calls) = (filled(0..SLICE), 0);
        let culprit = loop {
            calls += 1;
            let group = phase.next_group_by(|_| BYTES / 100).expect("the culprit is not found yet");
            if !group.contains(&123) {
                phase.done();
            } else if let Refused::Culprit(culprit) = phase.refused(group) {
                break culprit;
            }
        };
        assert_eq!((culprit, phase.waiting().next()), (123, Some(&124)));
        assert!(calls < 30, "{calls}");
    }
}
