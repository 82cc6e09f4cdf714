//! The server from outside: real sockets, real files, calls by an HTTP client that knows nothing of it.

#![allow(clippy::unwrap_used, clippy::needless_pass_by_value, clippy::assigning_clones)]

mod contract;
mod hostile;
mod house;
mod jobs;
mod races;
mod requests;
mod signals;
mod strangers;
mod tls;
mod tour;
mod traces;
mod workers;
