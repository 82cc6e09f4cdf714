//! The proof: what the engine and its stores promise, tried on real servers, real files and real processes.
//!
//! | where | what |
//! |---|---|
//! | [`bus`] | a bus that loses, repeats, delays and reorders |
//! | [`cluster`] | a Postgres server of one's own, that can be killed |
//! | [`cutter`] | a way to that server that is cut at a request, before or after it is done |
//! | `tests/suite` | one conformance suite, run on both stores, and both driven with the same random commands |
//! | `tests/engine` | whole jobs, from submit to closed |
//! | `tests/kill` | processes ended at every crash point and at random |
//!
//! It is a crate of its own so that this code alone is compiled without optimisation: it is long, generic
//! and waits for disks.

pub mod bus;
pub mod cluster;
pub mod cutter;
