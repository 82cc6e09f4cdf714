//! The kernel's tests: one binary, one module per group of rules.
//!
//! | module | what it holds against the kernel |
//! |---|---|
//! | `pairs` | all pairs of the five machines, from tables written here |
//! | `vectors` | every fixture |
//! | `seqs`, `idempotency`, `requests`, `ledgers`, `jobs`, `steps`, `outbox`, `graphs` | the numbered cases |
//! | `ahead` | what is told of a message before it is there |
//! | `gates` | who may start at a limit, and when |
//! | `properties`, `walks` | what must hold for any input and any history |
//! | `hostile` | input made to break a reader |
//! | `registry` | the error codes, and those of failed attempts |
//! | `world` | one job in memory that applies decisions: the model of a store |
//! | `json` | a slow, independent canonical JSON to compare with |

// All of this is test code, setup included; seqs here are small.
#![allow(clippy::unwrap_used, clippy::cast_possible_truncation)]

mod ahead;
mod gates;
mod graphs;
mod hostile;
mod idempotency;
mod jobs;
mod json;
mod ledgers;
mod outbox;
mod pairs;
mod properties;
mod registry;
mod requests;
mod seqs;
mod steps;
mod vectors;
mod walks;
mod world;
