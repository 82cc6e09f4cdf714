//! Decisions: from current rows, a fence, the time and a policy to what must change, or a refusal.
//!
//! Decide, then act: nothing here writes. A caller holds the row's lock, asks, and writes exactly what
//! the answer says in one transaction. The story of a step, in the order of the files:
//!
//! | file | decides |
//! |---|---|
//! | [`rows`] | what of a job and an attempt the rules look at |
//! | [`submit`] | new job, known job, or key used for something else |
//! | [`rerun`] | whether an ended job may be run again |
//! | [`gate`] | who of those that wait at a limit may start, and when |
//! | [`leg1`] | activation entered; directive written; published or not |
//! | [`callback`] | ACK, heartbeat, RESULT |
//! | [`timer`] | ACK timeout, lease expiry, lost owner |
//! | [`leg2`] | the message that ends an attempt: outcome, what follows, whether the job closes |
//! | [`signal`] | a signal comes; a step waits for one |
//! | [`cancel`] | what a cancel can do at once and what it must wait for |
//! | [`schedule`] | which ticks of a schedule become jobs |
//! | [`request`] | draft, confirm, run, retry, and the projection of the job |
//! | [`seq`] | one item of a batch |
//! | [`ahead`] | what a message would come to, before it is there |
//! | [`batch`] | what the outcomes of its items make of a batch step |

pub mod ahead;
pub mod batch;
pub mod callback;
pub mod cancel;
pub mod gate;
pub mod leg1;
pub mod leg2;
pub mod request;
pub mod rerun;
pub mod rows;
pub mod schedule;
pub mod seq;
pub mod signal;
pub mod submit;
pub mod timer;
