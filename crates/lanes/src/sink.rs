//! Where results go: one writer, called with contiguous runs in seq order, never by two threads.

use std::fmt;

use sprag_kernel::retry::ErrorClass;

use crate::batch::Batch;

/// The caller's writer. Only successes are to be written downstream; skipped, failed and cancelled
/// seqs are in the batch so that a journal can record them.
pub trait Sink<P>: Send + 'static {
    /// Writes a batch. After an error the run ends; the batch counts as not committed.
    fn commit(&mut self, batch: &mut Batch<P>) -> Result<(), SinkError>;
}

/// Why a sink could not write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SinkError {
    /// What kind of failure.
    pub class: ErrorClass,
    /// The seq it happened at, if the sink knows; else the first of the batch is named.
    pub seq: Option<u64>,
    /// What happened.
    pub message: String,
}

impl SinkError {
    /// A failure that may pass by itself, such as a full disk or a lost connection.
    pub fn transient(message: impl fmt::Display) -> Self {
        let message = message.to_string();
        Self { class: ErrorClass::RetryableTransient, seq: None, message }
    }

    /// A failure that would come again.
    pub fn permanent(message: impl fmt::Display) -> Self {
        let message = message.to_string();
        Self { class: ErrorClass::NonRetryableInput, seq: None, message }
    }

    /// The same failure at this seq.
    #[must_use]
    pub fn at(self, seq: u64) -> Self {
        Self { seq: Some(seq), ..self }
    }
}

impl From<std::io::Error> for SinkError {
    fn from(error: std::io::Error) -> Self {
        Self::transient(error)
    }
}

impl fmt::Display for SinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.class.name())
    }
}

impl std::error::Error for SinkError {}

impl<P, F> Sink<P> for F
where
    F: FnMut(&mut Batch<P>) -> Result<(), SinkError> + Send + 'static,
{
    fn commit(&mut self, batch: &mut Batch<P>) -> Result<(), SinkError> {
        self(batch)
    }
}
