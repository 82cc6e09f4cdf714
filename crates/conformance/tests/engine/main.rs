//! The engine on a real store: whole jobs, from submit to closed.

#![allow(clippy::unwrap_used)]

mod cuts;
mod handlers;
mod idle;
mod inbox;
mod jobs;
mod upgrades;
mod upkeep;
mod world;
