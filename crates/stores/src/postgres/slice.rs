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
