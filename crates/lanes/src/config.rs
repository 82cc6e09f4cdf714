//! How a run is to go, with its limits.

use std::sync::OnceLock;

use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::planner::{MAX_AMOUNT, PlanConfig};
use sprag_kernel::retry::{Backoff, Millis};

use crate::ledger::MAX_RETRIES;
use crate::pressure::{Limit, PressureConfig};

/// More threads than any machine has cores for; owners must fit in 16 bits.
pub const MAX_THREADS: usize = 4_096;
/// Entries of a window: two windows of slots are held in memory, 16 bytes each.
pub const MAX_WINDOW_ENTRIES: u64 = 1 << 20;
/// Items of a claim: what one worker may hold back from the others.
pub const MAX_CLAIM: usize = 4_096;

/// How a run is to go. [`Config::default`] suits items of any cost on all cores.
#[derive(Clone, Debug)]
pub struct Config {
    /// Worker threads: so many items are computed at a time. A stream has one thread more, to read it.
    pub threads: usize,
    /// How windows are cut. At most two are in memory at any time.
    pub plan: PlanConfig,
    /// Retries of one seq.
    pub max_retries: u32,
    /// Retries of all seqs of one window together, if limited.
    pub window_retries: Option<u32>,
    /// Waits before the first, second, ... retry.
    pub backoff: Backoff,
    /// How long an owner may be silent before its seq is given to another; never, if none.
    pub lease_ms: Option<Millis>,
    /// How long work in flight may go on after a stop or a cancel.
    pub grace_ms: Millis,
    /// How much may wait for the commit lane.
    pub pressure: PressureConfig,
    /// The most items a worker takes at once; fewer if they are slow.
    pub max_claim: usize,
    /// The most bytes of results in one batch, unless a single result is larger.
    pub max_batch_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            threads: cores(),
            plan: default_plan(),
            max_retries: 2,
            window_retries: None,
            backoff: Backoff::new(vec![100, 1_000, 10_000]).expect("three waits"),
            lease_ms: None,
            grace_ms: 5_000,
            pressure: PressureConfig {
                buffered_bytes: Limit { soft: 64 << 20, hard: 256 << 20 },
                window_bytes: Limit { soft: 48 << 20, hard: 192 << 20 },
                commit_lag: Limit::NONE,
                resume_ratio: 0.75,
            },
            max_claim: 1_024,
            max_batch_bytes: 16 << 20,
        }
    }
}

/// Asked once: the system reads files to answer, which takes longer than a run of a few items.
fn cores() -> usize {
    static CORES: OnceLock<usize> = OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Windows by number of entries, since costs are rarely known.
fn default_plan() -> PlanConfig {
    PlanConfig {
        target_cost: MAX_AMOUNT as f64,
        max_cost: MAX_AMOUNT,
        max_bytes: 1 << 30,
        max_span: 4_096,
        min_entries: 1,
        max_entries: 4_096,
        adaptive: false,
        shrink: 0.75,
        grow: 1.2,
        commit_lag_soft: MAX_AMOUNT,
        buffered_bytes_soft: MAX_AMOUNT,
    }
}

impl Config {
    /// The most seqs that are in the two windows at once.
    pub(crate) fn span(&self) -> u64 {
        2 * self.plan.max_entries.min(self.plan.max_span)
    }

    /// Refuses what no run can follow, naming the field.
    pub fn check(&self) -> Result<(), Refusal> {
        self.plan.check()?;
        let ratio = self.pressure.resume_ratio;
        let checks = [
            ("threads", (1..=MAX_THREADS).contains(&self.threads)),
            ("plan.maxEntries", self.span() <= 2 * MAX_WINDOW_ENTRIES),
            ("max_retries", self.max_retries <= MAX_RETRIES),
            ("lease_ms", self.lease_ms != Some(0)),
            ("max_claim", (1..=MAX_CLAIM).contains(&self.max_claim)),
            ("max_batch_bytes", self.max_batch_bytes > 0),
            ("pressure.resume_ratio", ratio > 0.0 && ratio < 1.0),
        ];
        match checks.iter().find(|(_, holds)| !holds) {
            None => Ok(()),
            Some((field, _)) => Err(Refusal::new(Code::RunConfigInvalid).with("field", *field)),
        }
    }
}
