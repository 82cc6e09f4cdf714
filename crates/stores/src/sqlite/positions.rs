//! The positions of events. A transaction gives them out itself, so that the job's row can name its newest event in the
//! statement that changes it anyway.
//!
//! There is one writer at a time, so positions are in the order of commits. Another process may have written between two
//! transactions: each looks for the newest position once, and counts on from there. One that is given out and not written, by
//! a call that is taken back, leaves a gap, which readers of the feed step over.

use std::cell::Cell;

use sprag_engine::store::Answer;

use super::writer::Tx;

/// The position that a transaction gave out last, once it has looked.
#[derive(Default)]
pub(super) struct Positions(Cell<Option<i64>>);

impl Tx<'_> {
    /// The position of the next event.
    pub(super) fn next_position(&self) -> Answer<i64> {
        let newest = if let Some(newest) = self.positions.0.get() {
            newest
        } else {
            let sql = "SELECT coalesce(max(pos), 0) FROM event";
            self.find(sql, [], |row| row.get(0))?.unwrap_or_default()
        };
        self.positions.0.set(Some(newest + 1));
        Ok(newest + 1)
    }
}
