//! Back-pressure: how much may wait for the commit lane.
//!
//! Three gauges, each with a soft and a hard limit: bytes of all results that wait, bytes of those in
//! the window dispatched from, and the lag of the cursor. Above a soft limit claims get smaller;
//! above a hard one dispatch pauses. Either ends only below its limit times the ratio, so the run does not
//! flutter. The commit lane is never held back, and the seq at the cursor may always be dispatched:
//! it is the one that lets the others go.

use serde::Serialize;

/// A soft and a hard limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Above this, claims get smaller.
    pub soft: u64,
    /// Above this, dispatch pauses.
    pub hard: u64,
}

impl Limit {
    /// No limit.
    pub const NONE: Self = Self { soft: u64::MAX, hard: u64::MAX };
}

/// The limits of a run.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PressureConfig {
    /// Bytes of results that wait, in all.
    pub buffered_bytes: Limit,
    /// Bytes of results that wait, in one window.
    pub window_bytes: Limit,
    /// Seqs between the cursor and the highest one dispatched.
    pub commit_lag: Limit,
    /// A limit is over below limit * ratio; above 0 and below 1.
    pub resume_ratio: f64,
}

/// What holds dispatch back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pause {
    /// Too many bytes of results wait.
    BufferedBytes,
    /// Too many bytes of results wait in the window.
    WindowBytes,
    /// The cursor is too far behind.
    CommitLag,
}

/// The readings of the three gauges.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Readings {
    pub(crate) buffered_bytes: u64,
    pub(crate) window_bytes: u64,
    pub(crate) commit_lag: u64,
}

/// How much may be dispatched now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Throttle {
    Open,
    Smaller,
    Paused(Pause),
}

/// The gauges with their memory.
pub(crate) struct Pressure {
    gates: [(Pause, Gate); 3],
}

struct Gate {
    soft: Latch,
    hard: Latch,
}

/// On above its limit, off below the lower one.
struct Latch {
    on_above: u64,
    off_below: u64,
    on: bool,
}

impl Pressure {
    pub(crate) fn new(config: &PressureConfig) -> Self {
        let gate = |limit: Limit| Gate {
            soft: Latch::new(limit.soft, config.resume_ratio),
            hard: Latch::new(limit.hard, config.resume_ratio),
        };
        Self {
            gates: [
                (Pause::BufferedBytes, gate(config.buffered_bytes)),
                (Pause::WindowBytes, gate(config.window_bytes)),
                (Pause::CommitLag, gate(config.commit_lag)),
            ],
        }
    }

    /// Reads the gauges.
    pub(crate) fn feel(&mut self, readings: Readings) -> Throttle {
        let mut throttle = Throttle::Open;
        for (pause, gate) in &mut self.gates {
            let reading = match pause {
                Pause::BufferedBytes => readings.buffered_bytes,
                Pause::WindowBytes => readings.window_bytes,
                Pause::CommitLag => readings.commit_lag,
            };
            let smaller = gate.soft.feel(reading);
            let paused = gate.hard.feel(reading);
            throttle = match (throttle, paused, smaller) {
                (Throttle::Paused(first), _, _) => Throttle::Paused(first),
                (_, true, _) => Throttle::Paused(*pause),
                (_, false, true) => Throttle::Smaller,
                (before, false, false) => before,
            };
        }
        throttle
    }

    /// What pauses dispatch at the moment, as last felt.
    pub(crate) fn paused_by(&self) -> Option<Pause> {
        self.gates.iter().find(|(_, gate)| gate.hard.on).map(|(pause, _)| *pause)
    }
}

impl Latch {
    fn new(limit: u64, ratio: f64) -> Self {
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        // a share of a u64 is one
        let off_below = (limit as f64 * ratio).ceil() as u64;
        Self { on_above: limit, off_below, on: false }
    }

    fn feel(&mut self, reading: u64) -> bool {
        self.on = if self.on { reading >= self.off_below } else { reading > self.on_above };
        self.on
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_was_passed_holds_until_the_reading_is_below_its_share() {
        let mut latch = Latch::new(32, 0.5);
        let felt = [32, 33, 32, 16, 15, 16, 32, 33].map(|reading| latch.feel(reading));
        assert_eq!(felt, [false, true, true, true, false, false, false, true]);
    }

    /// Limits on one gauge, how it is read, and what it is called.
    type Gauge = (PressureConfig, fn(u64) -> Readings, Pause);

    /// What a gauge with a soft limit of 8 and a hard one of 32 makes of these readings.
    fn felt(limits: PressureConfig, read: fn(u64) -> Readings) -> Vec<Throttle> {
        let mut pressure = Pressure::new(&limits);
        [8, 9, 4, 3, 33, 16, 15, 4, 3].map(|reading| pressure.feel(read(reading))).to_vec()
    }

    #[test]
    fn every_gauge_makes_claims_smaller_above_its_soft_limit_and_pauses_above_its_hard_one() {
        let limit = Limit { soft: 8, hard: 32 };
        let none = PressureConfig {
            buffered_bytes: Limit::NONE,
            window_bytes: Limit::NONE,
            commit_lag: Limit::NONE,
            resume_ratio: 0.5,
        };
        let gauges: [Gauge; 3] = [
            (
                PressureConfig { buffered_bytes: limit, ..none },
                |buffered_bytes| Readings { buffered_bytes, ..Readings::default() },
                Pause::BufferedBytes,
            ),
            (
                PressureConfig { window_bytes: limit, ..none },
                |window_bytes| Readings { window_bytes, ..Readings::default() },
                Pause::WindowBytes,
            ),
            (
                PressureConfig { commit_lag: limit, ..none },
                |commit_lag| Readings { commit_lag, ..Readings::default() },
                Pause::CommitLag,
            ),
        ];
        for (limits, read, pause) in gauges {
            use Throttle::{Open, Paused, Smaller};
            let expected = [
                Open,
                Smaller,
                Smaller,
                Open,
                Paused(pause),
                Paused(pause),
                Smaller,
                Smaller,
                Open,
            ];
            assert_eq!(felt(limits, read), expected);
        }
    }
}
