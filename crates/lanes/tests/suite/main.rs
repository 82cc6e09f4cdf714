//! Everything that the runtime promises, one module per subject.

mod smoke;
