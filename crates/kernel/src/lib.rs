//! The law of Sprag. Rules only: no I/O, no async, no clock, no randomness.
//! Time, ids and policies are arguments; every answer is a value that somebody else writes down.
//!
//! | module | what it rules |
//! |---|---|
//! | [`machine`] | what a state machine is: a table, a policy, and the only way to change a state |
//! | [`machines`] | the five tables: request, job, step, outbox, seq |
//! | [`decide`] | from current rows, a fence and the time to a decision or a refusal |
//! | [`retry`] | error classes, backoff tables, budgets |
//! | [`planner`] | windows over a sequence, and the plan hash |
//! | [`error`] | every error code, with its class and what to do |

pub mod decide;
pub mod error;
pub mod machine;
pub mod machines;
pub mod planner;
pub mod retry;

pub use error::{Code, Refusal};
pub use machine::{Change, State};
pub use machines::{JobState, OutboxState, RequestStatus, SeqState, StepState};
