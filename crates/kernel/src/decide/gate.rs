//! Gate: who of those that wait at a limit may start, and when.
//!
//! A gate has a line, the most urgent first, and nobody overtakes: if the first may not start, nobody does.
//! Each brings the limit that its own protocol has set, so that a changed limit binds those that come with
//! it. Nothing is counted up and down: how many are admitted is looked up, so that no slot can get lost.
//!
//! A rate is a distance: starts are at least `gap_us` apart, which is never more than so many in any span of
//! time. They are given out a little ahead, each with its own time, so that a rate does not depend on how
//! often somebody looks. If nobody takes up what was given out, no more is: else all that nobody worked on for an hour
//! would start at once behind it.

use crate::retry::Millis;

/// How far ahead starts are given out: longer than an engine takes to look again, short enough that what
/// comes later and is more urgent does not wait long behind.
pub const AHEAD_MS: Millis = 2_000;

/// How long a start may wait for somebody to take it up, until no others are given out by a rate: longer than it
/// takes where there is a free slot.
pub const LATE_MS: Millis = 1_000;

/// The limit of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// At most so many at a time.
    pub max: Option<u32>,
    /// At least so many microseconds from one start to the next.
    pub gap_us: Option<u64>,
}

/// A gate as it is found under its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gate {
    /// So many are admitted and not over.
    pub admitted: u32,
    /// No start by a rate before this time, in microseconds.
    pub arrival_us: u64,
    /// Since when somebody could have begun who is admitted, and has not.
    pub idle_since: Option<Millis>,
}

impl Gate {
    /// When each of those that wait may start, as far down the line as anybody may. The gate is moved along.
    pub fn admit(&mut self, now: Millis, line: impl IntoIterator<Item = Limit>) -> Vec<Millis> {
        let now_us = now * 1_000;
        let is_late = self.idle_since.is_some_and(|since| since + LATE_MS <= now);
        let mut starts = Vec::new();
        for limit in line {
            let start_us = limit.gap_us.map_or(now_us, |_| now_us.max(self.arrival_us));
            let is_full = limit.max.is_some_and(|max| self.admitted >= max);
            let is_held = limit.gap_us.is_some() && is_late;
            if is_full || is_held || start_us > now_us + AHEAD_MS * 1_000 {
                break;
            }
            self.admitted += 1;
            if let Some(gap_us) = limit.gap_us {
                self.arrival_us = start_us + gap_us;
            }
            starts.push(start_us.div_ceil(1_000));
        }
        starts
    }
}
