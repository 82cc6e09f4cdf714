//! The two 15-digit ledgers and the job semaphore.
//!
//! A ledger is one integer of fifteen decimal digits that only grows. Each durable step commits
//! together with the digit that proves it: the digit is there if and only if the work is. A reader
//! needs that one integer to know what is done and what comes next.
//!
//! ```text
//!   digit      1 2 3      4        5       6       7      8 ............. 15
//!   activity   Leg1       Leg1     work    children  completion   Leg2
//!              entries    done     done    spawned   tasks done   entries
//!   GUID       0 0 0      closed   work    children  completion   ordinal
//!                         the job  done    spawned   tasks done
//! ```
//!
//! The activity ledger belongs to an attempt, a GUID ledger to the message that ends it. No
//! increment can carry into a neighbour: counters refuse at their ceiling, markers are set once.

mod activity;
mod digits;
mod guid;
mod semaphore;

pub use activity::{ActivityLedger, LEG1_MAX, LEG2_MAX};
pub use digits::LEDGER_MAX;
pub use guid::GuidLedger;
pub use semaphore::{Semaphore, Settled};
