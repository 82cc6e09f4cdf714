//! The heart: exactly-once jobs over a store.

pub mod bus;
pub mod callback;
pub mod control;
pub mod crash;
pub mod directive;
pub mod duration;
pub mod engine;
pub mod envelope;
pub mod explain;
pub mod expression;
pub mod feed;
pub mod graph;
mod heart;
pub mod hooks;
pub mod ids;
pub mod inbox;
pub mod names;
pub mod plan;
pub mod protocol;
mod registry;
mod renewal;
pub mod requests;
mod retention;
pub mod store;
pub mod upkeep;
pub mod views;
pub mod worker;
