//! Windows over a sequence: where one ends and the next begins, and the hash of a plan.
//!
//! The planner walks entries in order and closes a window before an entry that would break a hard
//! cap, or, once the window has its minimum, before one that would take it over the target cost.
//! Equality with a cap is allowed; an entry larger than a cap stands alone. It holds one open window
//! and a hash, whatever the number of entries.

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Code, Refusal};

/// The largest cost, byte count or cap: the largest whole number that every JSON reader keeps exact.
pub const MAX_AMOUNT: u64 = (1 << 53) - 1;
/// Below this share of busy workers an adaptive plan grows its windows.
pub const GROW_BELOW_UTILISATION: f64 = 0.55;

/// What is known of an item before it is computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// Estimated cost; 0 counts as 1.
    pub cost: u64,
    /// Estimated bytes.
    pub bytes: u64,
}

/// How windows are cut.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PlanConfig {
    /// The cost a window aims at.
    pub target_cost: f64,
    /// Hard cap on the cost of a window.
    pub max_cost: u64,
    /// Hard cap on the bytes of a window.
    pub max_bytes: u64,
    /// Hard cap on last seq - first seq + 1.
    pub max_span: u64,
    /// Entries a window has before the target may close it.
    pub min_entries: u64,
    /// Hard cap on the entries of a window.
    pub max_entries: u64,
    /// Whether a snapshot may change the target.
    #[serde(default)]
    pub adaptive: bool,
    /// The factor when the commit lane falls behind.
    #[serde(default = "default_shrink")]
    pub shrink: f64,
    /// The factor when workers are idle.
    #[serde(default = "default_grow")]
    pub grow: f64,
    /// Commit lag above which windows shrink.
    #[serde(default = "default_soft")]
    pub commit_lag_soft: u64,
    /// Buffered bytes above which windows shrink.
    #[serde(default = "default_soft")]
    pub buffered_bytes_soft: u64,
}

fn default_shrink() -> f64 {
    0.75
}
fn default_grow() -> f64 {
    1.2
}
fn default_soft() -> u64 {
    MAX_AMOUNT
}

/// How the run goes, at a window boundary.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Snapshot {
    /// Seqs between the cursor and the highest one seen.
    pub commit_lag: u64,
    /// Bytes of results that wait for their turn.
    pub buffered_bytes: u64,
    /// Share of workers that are busy, 0 to 1.
    pub util: f64,
}

/// A window: seqs `start` to `end`, both in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Window {
    /// The number of the window, from 0.
    pub window: u64,
    /// Its first seq.
    pub start: u64,
    /// Its last seq.
    pub end: u64,
    /// The sum of its costs, each at least 1.
    pub cost: u64,
    /// The sum of its bytes.
    pub bytes: u64,
    /// How many seqs it holds.
    pub entries: u64,
}

impl PlanConfig {
    /// Refuses a configuration that no plan can follow, naming the field.
    pub fn check(&self) -> Result<(), Refusal> {
        let amounts = [
            ("maxCost", self.max_cost, 1),
            ("maxBytes", self.max_bytes, 0),
            ("maxSpan", self.max_span, 1),
            ("minEntries", self.min_entries, 1),
            ("maxEntries", self.max_entries, 1),
            ("commitLagSoft", self.commit_lag_soft, 0),
            ("bufferedBytesSoft", self.buffered_bytes_soft, 0),
        ];
        for (field, amount, least) in amounts {
            if amount < least || amount > MAX_AMOUNT {
                let reason = format!("must be {least} to {MAX_AMOUNT}, is {amount}");
                return Err(config_refusal(field, reason));
            }
        }
        let within = |value: f64, low: f64, high: f64| value >= low && value <= high;
        if !within(self.target_cost, 1.0, MAX_AMOUNT as f64) {
            return Err(config_refusal(
                "targetCost",
                format!("must be at least 1, is {}", self.target_cost),
            ));
        }
        if !(self.shrink > 0.0 && self.shrink <= 1.0) {
            return Err(config_refusal(
                "shrink",
                format!("must be above 0 and at most 1, is {}", self.shrink),
            ));
        }
        if !within(self.grow, 1.0, 1_000.0) {
            return Err(config_refusal("grow", format!("must be 1 to 1000, is {}", self.grow)));
        }
        Ok(())
    }

    /// The target for the windows planned at this boundary. Always derived from the configured
    /// target, never from an earlier result, so that one bad moment does not shrink windows for ever.
    pub fn target_for(&self, snapshot: Option<&Snapshot>) -> f64 {
        let Some(now) = snapshot.filter(|_| self.adaptive) else { return self.target_cost };
        let behind =
            now.commit_lag > self.commit_lag_soft || now.buffered_bytes > self.buffered_bytes_soft;
        let idle = now.util < GROW_BELOW_UTILISATION
            && now.commit_lag <= (self.commit_lag_soft / 2).max(1);
        let factor = match (behind, idle) {
            (true, _) => self.shrink,
            (false, true) => self.grow,
            (false, false) => 1.0,
        };
        (self.target_cost * factor).clamp(1.0, self.max_cost as f64)
    }
}

fn config_refusal(field: &'static str, reason: String) -> Refusal {
    Refusal::new(Code::PlanConfigInvalid).with("field", field).with("reason", reason)
}

impl Entry {
    /// Refuses amounts that a plan cannot add up exactly.
    #[inline]
    pub fn check(&self) -> Result<(), Refusal> {
        if self.cost <= MAX_AMOUNT && self.bytes <= MAX_AMOUNT { Ok(()) } else { self.refused() }
    }

    #[cold]
    fn refused(&self) -> Result<(), Refusal> {
        for (field, amount) in [("cost", self.cost), ("bytes", self.bytes)] {
            if amount > MAX_AMOUNT {
                return Err(Refusal::new(Code::NumberRange)
                    .with("field", field)
                    .with("limit", MAX_AMOUNT));
            }
        }
        Ok(())
    }
}

/// Cuts a stream of entries into windows.
#[derive(Clone, Debug)]
pub struct Planner {
    config: PlanConfig,
    /// The largest whole cost that is not above the target.
    target: u64,
    open: Window,
}

impl Planner {
    /// A planner at seq 0. The configuration has passed [`PlanConfig::check`].
    pub fn new(config: PlanConfig) -> Self {
        Self::resume(config, 0, 0)
    }

    /// A planner whose next entry has this seq and opens the window of this number.
    pub fn resume(config: PlanConfig, seq: u64, window: u64) -> Self {
        debug_assert!(config.check().is_ok(), "a checked configuration");
        Self { config, target: whole(config.target_cost), open: empty(window, seq) }
    }

    /// Sets the target for the windows that are cut from here on.
    pub fn adapt(&mut self, snapshot: Option<&Snapshot>) {
        self.target = whole(self.config.target_for(snapshot));
    }

    /// Takes the next entry; returns the window that it closed, if it did.
    #[inline]
    pub fn push(&mut self, entry: Entry) -> Option<Window> {
        let cost = entry.cost.max(1);
        let closed = self.must_close_before(cost, entry.bytes).then(|| self.close());
        self.open.end = self.open.start + self.open.entries;
        self.open.entries += 1;
        self.open.cost += cost;
        self.open.bytes += entry.bytes;
        closed
    }

    /// How many more entries like this one the open window takes, if they come next; 0 if it is
    /// closed before the next one, or has none yet.
    pub fn room_for(&self, entry: Entry) -> u64 {
        let (open, cost) = (&self.open, entry.cost.max(1));
        if open.entries == 0 || open.bytes > self.config.max_bytes {
            return 0;
        }
        let most = self.config.max_entries.min(self.config.max_span);
        let by_entries = most.saturating_sub(open.entries);
        let by_cost = self.config.max_cost.saturating_sub(open.cost) / cost;
        let by_bytes = (self.config.max_bytes - open.bytes).checked_div(entry.bytes);
        let hard = by_entries.min(by_cost).min(by_bytes.unwrap_or(u64::MAX));
        // The target closes nothing before the minimum is there.
        let to_minimum = self.config.min_entries.saturating_sub(open.entries);
        let to_target = self.target.saturating_sub(open.cost) / cost;
        hard.min(to_minimum.max(to_target))
    }

    /// Takes `count` entries that [`Planner::room_for`] has room for.
    #[inline]
    pub fn extend(&mut self, entry: Entry, count: u64) {
        debug_assert!(count <= self.room_for(entry), "none of them closes the window");
        self.open.entries += count;
        self.open.end = self.open.start + self.open.entries.saturating_sub(1);
        self.open.cost += entry.cost.max(1) * count;
        self.open.bytes += entry.bytes * count;
    }

    /// The last window, if one is open. The planner goes on behind it.
    pub fn finish(&mut self) -> Option<Window> {
        (self.open.entries > 0).then(|| self.close())
    }

    /// The entries of the window that is still open.
    pub fn open_entries(&self) -> u64 {
        self.open.entries
    }

    /// The window that is still open; without entries if it has just been begun.
    pub fn open(&self) -> Window {
        self.open
    }

    #[inline]
    fn must_close_before(&self, cost: u64, bytes: u64) -> bool {
        let open = &self.open;
        // Caps and amounts are at most 2^53 - 1 and an oversize entry stands alone, so no sum overflows.
        let full = open.entries >= self.config.max_entries.min(self.config.max_span)
            || open.cost + cost > self.config.max_cost
            || open.bytes + bytes > self.config.max_bytes;
        let enough = open.entries >= self.config.min_entries && open.cost + cost > self.target;
        open.entries > 0 && (full || enough)
    }

    fn close(&mut self) -> Window {
        let closed = self.open;
        self.open = empty(closed.window + 1, closed.end + 1);
        closed
    }
}

/// A whole cost is above the target exactly if it is above the target rounded down.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)] // 1 to 2^53 - 1, as checked
fn whole(target: f64) -> u64 {
    target.floor() as u64
}

fn empty(window: u64, seq: u64) -> Window {
    Window { window, start: seq, end: seq, cost: 0, bytes: 0, entries: 0 }
}

/// The rolling hash of a plan: configuration first, then every entry. Two runs with the same hash
/// cut the same windows over the same entries. Equal neighbours are hashed as one run of equals, so
/// a million uniform entries cost one block.
#[derive(Clone, Debug)]
pub struct PlanHasher {
    hash: Sha256,
    run: Entry,
    run_length: u64,
}

impl PlanHasher {
    /// The hash of a plan without entries.
    pub fn new(config: &PlanConfig) -> Self {
        // Named one by one: a new field that is not hashed does not compile.
        let PlanConfig {
            target_cost,
            max_cost,
            max_bytes,
            max_span,
            min_entries,
            max_entries,
            adaptive,
            shrink,
            grow,
            commit_lag_soft,
            buffered_bytes_soft,
        } = *config;
        let mut hash = Sha256::new();
        hash.update(b"sprag plan 1\n");
        for factor in [target_cost, shrink, grow] {
            hash.update(factor.to_bits().to_le_bytes());
        }
        for amount in [max_cost, max_bytes, max_span, min_entries, max_entries] {
            hash.update(amount.to_le_bytes());
        }
        for amount in [commit_lag_soft, buffered_bytes_soft, u64::from(adaptive)] {
            hash.update(amount.to_le_bytes());
        }
        Self { hash, run: Entry { cost: 0, bytes: 0 }, run_length: 0 }
    }

    /// Mixes in a snapshot, for plans that are made from one.
    pub fn snapshot(&mut self, snapshot: &Snapshot) {
        self.tagged(b'S');
        self.hash.update(snapshot.commit_lag.to_le_bytes());
        self.hash.update(snapshot.buffered_bytes.to_le_bytes());
        self.hash.update(snapshot.util.to_bits().to_le_bytes());
    }

    /// Mixes in the next entry.
    #[inline]
    pub fn entry(&mut self, entry: Entry) {
        self.entries(entry, 1);
    }

    /// Mixes in `count` equal entries, as if each were given by itself.
    #[inline]
    pub fn entries(&mut self, entry: Entry, count: u64) {
        if entry != self.run {
            self.end_run();
            self.run = entry;
        }
        self.run_length += count;
    }

    /// Mixes in what the entry just given says, for runs that must refuse other items of equal size.
    pub fn content(&mut self, content: &[u8]) {
        self.tagged(b'C');
        self.hash.update((content.len() as u64).to_le_bytes());
        self.hash.update(content);
    }

    /// The hash so far. Depends on what was mixed in, not on how often it was asked for.
    pub fn digest(&self) -> [u8; 32] {
        let mut done = self.clone();
        done.end_run();
        done.hash.finalize().into()
    }

    fn tagged(&mut self, tag: u8) {
        self.end_run();
        self.hash.update([tag]);
    }

    fn end_run(&mut self) {
        if self.run_length > 0 {
            self.hash.update(b"E");
            for amount in [self.run.cost, self.run.bytes, self.run_length] {
                self.hash.update(amount.to_le_bytes());
            }
            self.run_length = 0;
        }
    }
}
