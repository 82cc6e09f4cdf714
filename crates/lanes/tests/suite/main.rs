//! Everything that the runtime promises, one module per subject.

#![allow(clippy::unwrap_used)]

mod cancel_cases;
mod drain_cases;
mod failure_cases;
mod lease_cases;
mod model;
mod pressure_cases;
mod resume_cases;
mod seq_cases;
mod smoke;
mod source_cases;
mod stage;
mod store_cases;
mod stream_cases;
mod window_cases;
