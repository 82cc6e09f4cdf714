//! Decisions: from current rows, a fence, the time and a policy to what must change, or a refusal.

pub mod seq;
