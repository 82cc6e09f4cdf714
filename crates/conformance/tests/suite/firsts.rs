//! Two calls at the same time, round after round, until each of them has come first: a race that always ends the
//! same way tells nothing about the other one. Either is begun first in turn, with a head start that grows from
//! nothing to more than a call takes.

use std::collections::BTreeMap;

/// How often both are tried before the test says that one of them is never first.
const MOST: usize = 1_000;
/// The longest head start doubles this often.
const HEAD_STARTS: usize = 14;

/// Rounds, and who was first how often.
pub struct Firsts {
    least: usize,
    rounds: usize,
    seen: BTreeMap<&'static str, usize>,
}

/// Which call of a round is begun first, and how many turns of the scheduler it is ahead.
pub struct Order {
    is_left_ahead: bool,
    head_start: usize,
}

impl Firsts {
    /// At least so many rounds.
    pub fn new(least: usize) -> Self {
        Self { least, rounds: 0, seen: BTreeMap::new() }
    }

    /// The next round, until there are enough and both have come first.
    pub fn next(&mut self) -> Option<Order> {
        if self.rounds >= self.least && self.seen.len() == 2 {
            return None;
        }
        assert!(self.rounds < MOST, "not both came first in {MOST} rounds: {:?}", self.seen);
        let head_start = (1 << (self.rounds / 2 % HEAD_STARTS)) - 1;
        let order = Order { is_left_ahead: self.rounds.is_multiple_of(2), head_start };
        self.rounds += 1;
        Some(order)
    }

    /// Notes who was first in this round.
    pub fn saw(&mut self, first: &'static str) {
        *self.seen.entry(first).or_default() += 1;
    }
}

impl Order {
    /// Runs both.
    pub async fn join<L: Future, R: Future>(self, left: L, right: R) -> (L::Output, R::Output) {
        let late = async || {
            for _ in 0..self.head_start {
                tokio::task::yield_now().await;
            }
        };
        if self.is_left_ahead {
            tokio::join!(left, async {
                late().await;
                right.await
            })
        } else {
            let (right, left) = tokio::join!(right, async {
                late().await;
                left.await
            });
            (left, right)
        }
    }
}
