//! Outcomes of neighbours, sealed: what one thread hands over as one piece.
//!
//! Nearly always all of them succeeded at the same try. Then nothing but the payloads is kept, side by
//! side: an envelope is several times as large as a small payload, and it would be copied between
//! cores. The first other outcome turns the piece into one of envelopes.

use std::slice;
use std::vec;

use sprag_kernel::machines::SeqState;

use crate::outcome::{Envelope, Payload, Verdict, mark};
use crate::summary::Counts;

/// Outcomes of neighbours, with what they add up to.
pub(crate) struct Sealed<P> {
    pub(crate) first: u64,
    body: Body<P>,
    /// What they weigh.
    pub(crate) bytes: u64,
    /// The sum of their marks.
    pub(crate) marks: u64,
}

enum Body<P> {
    /// Successes, all after so many retries.
    Results(Vec<P>, u16),
    Mixed(Vec<Envelope<P>>),
}

impl<P: Payload> Sealed<P> {
    /// None yet; the first will be `first`, and expected to succeed after so many retries.
    #[inline]
    pub(crate) fn empty(first: u64, attempts: u16) -> Self {
        Self { first, body: Body::Results(Vec::new(), attempts), bytes: 0, marks: 0 }
    }

    /// The outcome of one seq.
    pub(crate) fn single(seq: u64, envelope: Envelope<P>) -> Self {
        let mut sealed = Self::empty(seq, envelope.attempts);
        sealed.seal(envelope);
        sealed
    }

    /// Makes room for so many more.
    pub(crate) fn expect(&mut self, more: usize) {
        match &mut self.body {
            Body::Results(results, _) => results.reserve(more),
            Body::Mixed(envelopes) => envelopes.reserve(more),
        }
    }

    /// Seals the result of the next seq. Done by whoever computed it, so that hashing is parallel.
    #[inline]
    pub(crate) fn seal_success(&mut self, payload: P, attempts: u16) {
        match &mut self.body {
            Body::Results(results, all) if *all == attempts => {
                // Both are the caller's code: if one panics, nothing of this result is counted.
                let (weight, digest) = (payload.weight(), payload.digest());
                let seq = self.first + results.len() as u64;
                let mark = mark(seq, SeqState::TerminalSuccess, digest);
                self.bytes += weight;
                self.marks = self.marks.wrapping_add(mark);
                results.push(payload);
            }
            Body::Results(..) | Body::Mixed(_) => {
                self.seal_other(Envelope::new(Verdict::Success(payload), attempts));
            }
        }
    }

    /// Seals any outcome of the next seq.
    pub(crate) fn seal(&mut self, envelope: Envelope<P>) {
        match envelope.verdict {
            Verdict::Success(payload) => self.seal_success(payload, envelope.attempts),
            Verdict::Skip(_) | Verdict::Fail(..) | Verdict::Cancel => self.seal_other(envelope),
        }
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        match &self.body {
            Body::Results(results, _) => results.len(),
            Body::Mixed(envelopes) => envelopes.len(),
        }
    }

    /// The seq behind them.
    #[inline]
    pub(crate) fn end(&self) -> u64 {
        self.first + self.len() as u64
    }

    /// Takes all of them; what is left is empty and goes on behind them.
    pub(crate) fn take(&mut self) -> Self {
        let attempts = match &self.body {
            Body::Results(_, attempts) => *attempts,
            Body::Mixed(envelopes) => envelopes.first().map_or(0, |envelope| envelope.attempts),
        };
        let rest = Self::empty(self.end(), attempts);
        std::mem::replace(self, rest)
    }

    /// Takes neighbours in.
    pub(crate) fn append(&mut self, next: &mut Self) {
        debug_assert_eq!(self.end(), next.first, "neighbours follow each other");
        next.first = next.end();
        self.bytes += std::mem::take(&mut next.bytes);
        self.marks = self.marks.wrapping_add(std::mem::take(&mut next.marks));
        match (&mut self.body, &mut next.body) {
            (Body::Results(ours, all), Body::Results(theirs, too)) if all == too => {
                ours.append(theirs);
            }
            (_, _) => self.mixed().append(next.mixed()),
        }
    }

    /// Keeps the longest head of at most `bytes`, one outcome at least; returns the tail.
    pub(crate) fn cut(&mut self, bytes: u64) -> Option<Self> {
        let mut kept = 0;
        let envelopes = self.mixed();
        let fits = envelopes.iter().take_while(|envelope| {
            kept += envelope.weight();
            kept <= bytes
        });
        let place = fits.count().max(1);
        if place >= envelopes.len() {
            return None;
        }
        let others = envelopes.split_off(place);
        let mut tail = Self::empty(self.end(), others[0].attempts);
        for envelope in others {
            tail.seal(envelope);
        }
        self.bytes -= tail.bytes;
        self.marks = self.marks.wrapping_sub(tail.marks);
        Some(tail)
    }

    #[cold]
    fn seal_other(&mut self, envelope: Envelope<P>) {
        let (weight, mark) = (envelope.weight(), envelope.mark(self.end()));
        self.bytes += weight;
        self.marks = self.marks.wrapping_add(mark);
        self.mixed().push(envelope);
    }

    /// The outcomes as envelopes, from now on.
    fn mixed(&mut self) -> &mut Vec<Envelope<P>> {
        if let Body::Results(results, attempts) = &mut self.body {
            let seal = |payload| Envelope::new(Verdict::Success(payload), *attempts);
            self.body = Body::Mixed(std::mem::take(results).into_iter().map(seal).collect());
        }
        match &mut self.body {
            Body::Mixed(envelopes) => envelopes,
            Body::Results(..) => unreachable!("they have just been made envelopes"),
        }
    }
}

impl<P> Sealed<P> {
    /// Whether all of them succeeded.
    #[inline]
    pub(crate) fn is_all_success(&self) -> bool {
        matches!(self.body, Body::Results(..))
    }

    /// How many ended how.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        match &self.body {
            Body::Results(results, _) => counts.success = results.len() as u64,
            Body::Mixed(envelopes) => {
                for envelope in envelopes {
                    counts.count(envelope.verdict.state());
                }
            }
        }
        counts
    }

    /// The outcomes in order.
    #[inline]
    pub(crate) fn iter(&self) -> Lent<'_, P> {
        match &self.body {
            Body::Results(results, attempts) => Lent::Results(results.iter(), *attempts),
            Body::Mixed(envelopes) => Lent::Mixed(envelopes.iter()),
        }
    }

    /// The outcomes in order, by value.
    pub(crate) fn drain(&mut self) -> Given<'_, P> {
        match &mut self.body {
            Body::Results(results, attempts) => Given::Results(results.drain(..), *attempts),
            Body::Mixed(envelopes) => Given::Mixed(envelopes.drain(..)),
        }
    }
}

/// Outcomes that somebody looks at.
pub(crate) enum Lent<'a, P> {
    Results(slice::Iter<'a, P>, u16),
    Mixed(slice::Iter<'a, Envelope<P>>),
}

impl<'a, P> Iterator for Lent<'a, P> {
    type Item = Envelope<&'a P, &'a str>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Results(results, attempts) => {
                results.next().map(|payload| Envelope::new(Verdict::Success(payload), *attempts))
            }
            Self::Mixed(envelopes) => envelopes.next().map(Envelope::lend),
        }
    }
}

/// Outcomes that somebody takes.
pub(crate) enum Given<'a, P> {
    Results(vec::Drain<'a, P>, u16),
    Mixed(vec::Drain<'a, Envelope<P>>),
}

impl<P> Iterator for Given<'_, P> {
    type Item = Envelope<P>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Self::Results(results, attempts) => {
                results.next().map(|payload| Envelope::new(Verdict::Success(payload), *attempts))
            }
            Self::Mixed(envelopes) => envelopes.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;

    struct NoDigest;

    impl Payload for NoDigest {
        fn digest(&self) -> u64 {
            panic!("it has none")
        }

        fn weight(&self) -> u64 {
            7
        }
    }

    /// Its bytes once stayed counted, though it was never there.
    #[test]
    fn a_result_whose_digest_panics_leaves_nothing_behind() {
        let alike = Sealed::empty(0, 0);
        let mixed = Sealed::single(0, Envelope::new(Verdict::Skip(String::new()), 0));
        for mut sealed in [alike, mixed] {
            let before = (sealed.len(), sealed.bytes, sealed.marks);
            let sealing = AssertUnwindSafe(|| sealed.seal_success(NoDigest, 0));
            assert!(catch_unwind(sealing).is_err());
            assert_eq!((sealed.len(), sealed.bytes, sealed.marks), before);
        }
    }
}
