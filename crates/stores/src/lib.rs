//! The books: SQLite and Postgres behind the engine's store seam.

mod any;
mod audit;
mod countdowns;
pub mod moving;
mod outcomes;
pub mod postgres;
mod protocols;
mod repeat;
mod replay;
pub mod sqlite;
mod test_clock;
pub mod versions;

pub use any::AnyStore;
pub use test_clock::TestClock;

/// How many protocols are looked at to find the one that serves a request type.
pub(crate) const MAX_PROTOCOLS: i64 = 1_000;
/// How long an activation must wait to weigh as much as one step of priority.
pub(crate) const AGEING_MS: i64 = 60_000;
/// How much of what a dead engine held one commit takes over.
pub(crate) const TAKEN: usize = 500;
/// How long a dead engine is remembered of which everything is taken over.
pub(crate) const DEAD_KEPT_MS: i64 = 24 * 60 * 60 * 1_000;
/// The most dead engines that are let go at a time.
pub(crate) const BURIED: i64 = 100;
/// The most that are let in at a gate at a time.
pub(crate) const LINE: i64 = 500;
/// The most lines of one job that are looked at to show it.
pub(crate) const MAX_LINES: usize = 5;
/// A payload of more bytes is read once for all branches of its job that a claim takes, not once for each.
pub(crate) const SHARED_BYTES: usize = 16 << 10;
/// The most batches of one job that are looked at to show it.
pub(crate) const MAX_BATCHES: i64 = 1_000;
