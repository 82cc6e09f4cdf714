//! The order of Sprag: parallel compute, strictly ordered commit, resume after a crash.

pub mod journal;
