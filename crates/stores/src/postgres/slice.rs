//! Slices as arrays: one column per array, rows in the order of their keys.

use sprag_engine::ids::{AttemptKey, EngineNo};
use sprag_kernel::machine::State;
use sprag_kernel::retry::Millis;
use uuid::Uuid;

use super::pools::{Column, columns};

/// The keys and versions of a slice of writes, sorted, so that two slices lock rows in the same order.
#[derive(Default)]
pub(super) struct Keys {
    pub(super) job_id: Vec<Uuid>,
    pub(super) step_index: Vec<i32>,
    pub(super) branch: Vec<i64>,
    pub(super) turn: Vec<i32>,
    pub(super) attempt_no: Vec<i32>,
    pub(super) version: Vec<i64>,
}

impl Keys {
    pub(super) fn of<'a>(keys: impl Iterator<Item = (&'a AttemptKey, u64)>) -> Self {
        let mut this = Self::default();
        for (key, version) in keys {
            this.job_id.push(key.job_id.uuid());
            this.step_index.push(signed(key.step_index));
            this.branch.push(key.branch.cast_signed());
            this.turn.push(signed(key.turn));
            this.attempt_no.push(signed(key.attempt_no));
            this.version.push(version.cast_signed());
        }
        this
    }

    /// What a statement over attempts takes first: who writes and when, and which rows in which version.
    pub(super) fn columns<'a>(
        self,
        (engine, test_now): (EngineNo, Option<i64>),
    ) -> Vec<Column<'a>> {
        columns![
            engine.0,
            test_now,
            self.job_id,
            self.step_index,
            self.branch,
            self.turn,
            self.attempt_no,
            self.version,
        ]
    }
}

/// The writes of a slice in the order of their keys, with the place that each had. Of several that were planned on the same
/// version of a row the first is taken: the others would find it moved on. A statement would not: all that it reads is as
/// it was before, so it would count them all. Of several versions the statement takes the one that the row has.
pub(super) fn sorted<T>(
    writes: &[T],
    planned_on: impl Fn(&T) -> (AttemptKey, u64),
) -> Vec<(usize, &T)> {
    let mut sorted: Vec<_> = writes.iter().enumerate().collect();
    sorted.sort_by_key(|(_, write)| planned_on(write));
    sorted.dedup_by_key(|(_, write)| planned_on(write));
    sorted
}

/// A column of a sorted slice.
pub(super) fn column<'a, T, C>(writes: &[(usize, &'a T)], value: impl Fn(&'a T) -> C) -> Vec<C> {
    writes.iter().map(|(_, write)| value(write)).collect()
}

/// What writes of a slice have in common, once for each kind of them. Most slices have one or two kinds, and what stands here
/// is neither made, sent nor read for every write.
pub(super) struct Kinds<'a, T>(Vec<&'a T>);

impl<'a, T> Kinds<'a, T> {
    /// The kinds, and the column that says of which each write is. SQL counts from one.
    pub(super) fn of(
        writes: &[(usize, &'a T)],
        are_alike: impl Fn(&T, &T) -> bool,
    ) -> (Vec<i32>, Self) {
        let mut kinds: Vec<&T> = Vec::new();
        let mut kind_of = |write| {
            kinds.iter().rposition(|known| are_alike(known, write)).unwrap_or_else(|| {
                kinds.push(write);
                kinds.len() - 1
            })
        };
        let column = writes.iter().map(|(_, write)| {
            i32::try_from(kind_of(write) + 1).expect("slices have some hundred writes")
        });
        (column.collect(), Self(kinds))
    }

    /// A value for each kind.
    pub(super) fn column<C>(&self, value: impl Fn(&'a T) -> C) -> Vec<C> {
        self.0.iter().map(|write| value(write)).collect()
    }

    /// Several values for each kind.
    pub(super) fn columns<I: IntoIterator>(&self, values: impl Fn(&'a T) -> I) -> Vec<I::Item> {
        self.0.iter().flat_map(|write| values(write)).collect()
    }
}

/// A count as a column holds it. Counts are far below 2^31.
pub(super) fn signed(count: u32) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// A duration as a column holds it, with room to add it to any time.
pub(super) fn span(ms: Millis) -> i64 {
    i64::try_from(ms).unwrap_or(i64::MAX / 2)
}

/// The code of a state.
pub(super) fn code<S: State>(state: S) -> i16 {
    state.code().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_write_is_of_the_kind_that_it_is_like() {
        let writes = [(3, "a"), (0, "b"), (2, "a"), (1, "c"), (4, "b")];
        let writes: Vec<(usize, &&str)> = writes.iter().map(|(n, write)| (*n, write)).collect();
        let (kind, kinds) = Kinds::of(&writes, |one, other| one == other);
        assert_eq!(kind, [1, 2, 1, 3, 2]);
        assert_eq!(kinds.column(|write| *write), ["a", "b", "c"]);
        assert_eq!(kinds.columns(|write| [*write, "-"]), ["a", "-", "b", "-", "c", "-"]);
    }
}
