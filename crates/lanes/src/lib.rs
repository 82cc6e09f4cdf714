//! Parallel compute, strictly ordered commit.
//!
//! Items come from a [`Source`], a function computes them on several threads, and a [`Sink`] receives
//! the outcomes as contiguous batches in the order of the items, whatever order they were finished
//! in. Every batch carries the point behind it ([`Resume`]): store it with the batch, and after a
//! crash the next run goes on there, computes nothing that was committed, and ends with the same
//! summary as an undisturbed run.
//!
//! ```
//! use sprag_lanes::{Batch, Config, Items, Lanes, Outcome, SinkError, Verdict};
//!
//! let mut lines = Vec::new();
//! let sink = move |batch: &mut Batch<String>| -> Result<(), SinkError> {
//!     for (seq, envelope) in batch.drain() {
//!         if let Verdict::Success(text) = envelope.verdict {
//!             lines.push(format!("{seq}: {text}"));
//!         }
//!     }
//!     // Written by the caller: the lines, and `batch.resume()` beside them.
//!     assert_eq!(lines.len() as u64, batch.resume().counts.success);
//!     Ok(())
//! };
//! let config = Config { threads: 4, ..Config::default() };
//! let report = Lanes::new(config).run(
//!     Items::of(1_u64..=1_000),
//!     |number, _context| match number % 10 {
//!         0 => Outcome::Skip("a round number".into()),
//!         _ => Outcome::Success(format!("{number} squared is {}", number * number)),
//!     },
//!     sink,
//! )?;
//! assert_eq!(report.summary.counts.success, 900);
//! assert_eq!(report.summary.counts.skip, 100);
//! # Ok::<(), Box<sprag_lanes::Failure>>(())
//! ```
//!
//! What holds, whatever the threads do:
//! - a seq is committed once, in order, and only behind all seqs before it;
//! - an attempt that fails is tried again, within its budget, in the same place;
//! - memory is bounded by two windows of items and the byte budgets, however long the source is;
//! - a panic of the compute function is a failed item; one of source, sink or progress callback ends
//!   the run with a [`Failure`];
//! - counts, plan hash and outcome hash depend on the input alone.
//!
//! One item reads through [`Lanes`] (start), `dispatch` (who may be worked on), `worker` (compute),
//! `handoff` and `commit` (in order); `ledger` holds the state of each seq, and every transition in it
//! is decided by the kernel. No async, no database. [`journal`] keeps the points in a file that survives
//! crashes; it belongs into a sink, behind whatever the sink writes.

mod batch;
mod bell;
mod claim;
mod clock;
mod commit;
mod config;
mod control;
mod dispatch;
mod drain;
mod failure;
mod fault;
mod handoff;
mod input;
pub mod journal;
mod lanes;
mod ledger;
mod observe;
mod outcome;
mod pressure;
mod reclaim;
mod retries;
mod runs;
mod runtime;
mod sealed;
mod seq_ledger;
mod sink;
mod source;
mod summary;
mod supervisor;
mod sync;
mod tally;
mod trail;
mod windows;
mod worker;

pub use batch::Batch;
pub use clock::{Clock, SystemClock, TestClock, Wake};
pub use config::{Config, MAX_CLAIM, MAX_THREADS, MAX_WINDOW_ENTRIES};
pub use control::Control;
pub use drain::Drain;
pub use failure::Failure;
pub use handoff::BatchFigures;
pub use lanes::{Lanes, Report};
pub use ledger::MAX_RETRIES;
pub use observe::{Blocked, Observation, Why, WindowView};
pub use outcome::{Envelope, Outcome, Payload, Verdict, digest};
pub use pressure::{Limit, Pause, PressureConfig};
pub use seq_ledger::{Attempt, SeqLedger, TerminalEvent};
pub use sink::{Sink, SinkError};
pub use source::{Items, Source};
pub use sprag_kernel::planner::{Entry, PlanConfig};
pub use sprag_kernel::retry::{Backoff, ErrorClass};
pub use summary::{Counts, Ending, Resume, Summary};
pub use tally::{LedgerCounts, Retries, Timings};
pub use trail::hash_entry;
pub use worker::Context;
