//! The items: a busy loop of a calibrated length, and the hash that checks order and content.

use std::hint::black_box;
use std::sync::OnceLock;
use std::time::Instant;

/// One in so many items of the skewed load is slow.
const SLOW_ONE_IN: u64 = 100;
/// How much slower.
const SLOW_FACTOR: u64 = 50;

/// Items of one cost.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) name: &'static str,
    pub(crate) items: u64,
    cost_ns: u64,
    skewed: bool,
}

impl Load {
    pub(crate) fn free() -> Self {
        Self { name: "0", items: 2_000_000, cost_ns: 0, skewed: false }
    }

    pub(crate) fn with_items(self, items: u64) -> Self {
        Self { items, ..self }
    }

    pub(crate) fn all() -> Vec<Self> {
        let even = |name, cost_ns, items| Self { name, items, cost_ns, skewed: false };
        vec![
            Self::free(),
            even("1us", 1_000, 400_000),
            even("10us", 10_000, 40_000),
            even("100us", 100_000, 4_000),
            even("1ms", 1_000_000, 400),
            Self { name: "skewed", items: 40_000, cost_ns: 10_000, skewed: true },
        ]
    }

    /// The work of one item: the same value whoever computes it.
    #[inline]
    pub(crate) fn compute(&self, item: u64) -> u64 {
        if self.cost_ns == 0 {
            return item.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        let slow = self.skewed && item % SLOW_ONE_IN == SLOW_ONE_IN / 2;
        let factor = if slow { SLOW_FACTOR } else { 1 };
        spin(turns_per_us() * self.cost_ns * factor / 1_000, item)
    }

    /// What every contender must arrive at.
    pub(crate) fn sequential(self) -> u64 {
        (0..self.items).fold(0, |hash, item| fold(hash, black_box(self.compute(item))))
    }
}

/// Takes the next result into the hash; any other order gives another hash.
#[inline]
pub(crate) fn fold(hash: u64, result: u64) -> u64 {
    (hash.rotate_left(5) ^ result).wrapping_mul(0x517c_c1b7_2722_0a95)
}

/// One copy for all contenders: inlined into each, the loop would be laid out, and run, differently in
/// each, by more than what is compared. It stays in registers: through memory, as with `black_box` inside
/// the loop, its speed would depend by a tenth on where a contender's stack happens to lie.
#[inline(never)]
fn spin(turns: u64, seed: u64) -> u64 {
    let mut value = seed | 1;
    for _ in 0..turns {
        value = (value ^ (value >> 29)).wrapping_mul(6_364_136_223_846_793_005);
    }
    value
}

/// Calibrated once: the fastest of some tries, when nobody disturbed.
fn turns_per_us() -> u64 {
    static TURNS: OnceLock<u64> = OnceLock::new();
    *TURNS.get_or_init(|| {
        const TRY: u64 = 2_000_000;
        let best = (0..10).map(|_| {
            let began = Instant::now();
            black_box(spin(TRY, black_box(7)));
            began.elapsed().as_nanos().max(1)
        });
        let best = u64::try_from(best.min().expect("ten tries")).expect("milliseconds");
        (TRY * 1_000 / best).max(1)
    })
}
