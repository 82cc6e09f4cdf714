//! The door: everything the engine does, over HTTP/1.1 and 2, for callers with a token.
//!
//! | where | what |
//! |---|---|
//! | [`settings`] | where a server listens, and its limits |
//! | [`folder`] | the data folder: root key, admin token |
//! | [`secret`] | keys, tokens and lease tokens |
//! | [`app`] | what all calls share, and the routes |
//! | `guard`, `guests` | who calls, by what name, how often |
//! | `routes` | one file per noun; each reads, calls the engine, and shows |
//! | [`shapes`], [`problem`] | what is shown, and how a refusal is |
//! | `metrics`, `traces`, `steps` | what is counted, and what is told to the caller's own traces |
//! | [`outbound`] | the calls of `http` steps, and which addresses they may go to |
//! | [`listen`], `patience` | connections: TLS, limits, and the end |
//!
//! No rule lives here: a handler calls one function of the engine. A call that was answered with success is
//! durable. The tenant comes from the token; what belongs to another one is not there.

pub mod app;
mod call;
pub mod folder;
mod guard;
pub mod guests;
pub mod listen;
mod metrics;
pub mod outbound;
mod patience;
pub mod problem;
mod routes;
pub mod secret;
pub mod settings;
pub mod shapes;
mod steps;
mod traces;
