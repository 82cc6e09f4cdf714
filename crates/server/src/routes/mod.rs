//! One file per noun. A handler checks the scope, reads what the call says, calls one function of the
//! engine, and shows what came of it.

pub(crate) mod commands;
pub(crate) mod events;
mod found;
pub(crate) mod health;
pub(crate) mod jobs;
pub(crate) mod protocols;
pub(crate) mod requests;
pub(crate) mod schedules;
pub(crate) mod services;
pub(crate) mod signals;
pub(crate) mod tokens;
pub(crate) mod workers;
