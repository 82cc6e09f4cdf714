//! The law of Sprag. Rules only: no I/O, no async, no clock, no randomness.
//! Time, ids and policies are arguments; every answer is a value that somebody else writes down.
//!
//! | module | what it rules |
//! |---|---|
//! | [`machine`] | what a state machine is: a table, a policy, and the only way to change a state |
//! | [`machines`] | the five tables: request, job, step, outbox, seq |
//! | [`decide`] | from current rows, a fence and the time to a decision or a refusal |
//! | [`ledger`] | the two 15-digit ledgers and the job semaphore |
//! | [`canon`] | canonical JSON |
//! | [`keys`] | hashes, idempotency keys, request keys, routing lanes |
//! | [`retry`] | error classes, backoff tables, budgets |
//! | [`planner`] | windows over a sequence, and the plan hash |
//! | [`cause`] | every code of a failed attempt, with what to do |
//! | [`error`] | every error code, with its class and what to do |

pub mod canon;
pub mod cause;
pub mod decide;
pub mod error;
pub mod keys;
pub mod ledger;
pub mod machine;
pub mod machines;
pub mod planner;
pub mod retry;

pub use cause::Cause;
pub use error::{Code, Refusal};
pub use ledger::{ActivityLedger, GuidLedger};
pub use machine::{Change, State};
pub use machines::{JobState, OutboxState, RequestStatus, SeqState, StepState};
