//! Two primitives one after the other: the second is for those elements of a slice whose first has gone through.

use sprag_kernel::Refusal;

use crate::store::{
    DispatchOutcome, DispatchWrite, EndOutcome, FinishOutcome, FinishWrite, NewJob, Submitted,
};

/// A job to submit, and the work of Leg1 that is to follow if it is created.
pub type Beginning = (NewJob, Option<DispatchWrite>);
/// What became of both.
pub type Begun = (Result<Submitted, Refusal>, Option<DispatchOutcome>);
/// What became of a message that was to enter, and of its Steps 1 to 3 if it has.
pub type Over = (EndOutcome, Option<FinishOutcome>);

/// The second writes of a slice, and where in the slice they stand.
pub struct Seconds<W> {
    /// The writes.
    pub writes: Vec<W>,
    places: Vec<usize>,
    slice: usize,
}

impl Seconds<DispatchWrite> {
    /// Of the jobs that were created.
    pub fn of_created(
        submitted: &[Result<Submitted, Refusal>],
        writes: &[Option<DispatchWrite>],
    ) -> Self {
        let both = submitted.iter().zip(writes);
        Self::of(both.map(|(submitted, write)| {
            let is_new = submitted.as_ref().is_ok_and(|submitted| submitted.created);
            write.as_ref().filter(|_| is_new)
        }))
    }
}

impl Seconds<FinishWrite> {
    /// Of the messages that have entered.
    pub fn of_entered(ended: &[EndOutcome], writes: &[FinishWrite]) -> Self {
        Self::of(ended.iter().zip(writes).map(|(outcome, write)| match outcome {
            EndOutcome::Entered { .. } => Some(write),
            EndOutcome::Stale => None,
        }))
    }
}

impl<W: Clone> Seconds<W> {
    fn of<'a>(all: impl ExactSizeIterator<Item = Option<&'a W>>) -> Self
    where
        W: 'a,
    {
        let slice = all.len();
        let there = all.enumerate().filter_map(|(place, write)| Some((place, write?.clone())));
        let (places, writes) = there.unzip();
        Self { writes, places, slice }
    }

    /// Without those of which it is known what became of them.
    #[must_use]
    pub fn except<T>(self, known: &[Option<T>]) -> Self {
        let all = self.places.into_iter().zip(self.writes);
        let (places, writes) = all.filter(|(place, _)| known[*place].is_none()).unzip();
        Self { writes, places, slice: self.slice }
    }

    /// What became of them, at their places.
    pub fn spread<T>(&self, outcomes: Vec<T>) -> Vec<Option<T>> {
        let mut spread: Vec<Option<T>> = (0..self.slice).map(|_| None).collect();
        for (place, outcome) in self.places.iter().zip(outcomes) {
            spread[*place] = Some(outcome);
        }
        spread
    }
}
