//! Where results go: one writer, called with contiguous runs in seq order, never by two threads.

use std::fmt;

use sprag_kernel::retry::ErrorClass;

use crate::batch::Batch;

/// The caller's writer. Only successes are to be written downstream; skipped, failed and cancelled
/// seqs are in the batch so that a journal can record them.
///
/// A sink that writes each batch and the point behind it in one transaction commits exactly once. The
/// class of its error is the caller's again as [`Failure::class`](crate::Failure::class):
///
/// ```
/// use std::sync::{Arc, Mutex};
/// use sprag_lanes::{Batch, Config, Control, Items, Lanes, Outcome, Resume, SinkError, Verdict};
///
/// #[derive(Default)]
/// struct Table { rows: Vec<u64>, point: Resume, done: bool, fence: u32 }
/// let table = Arc::new(Mutex::new(Table::default()));
///
/// let (store, fence) = (Arc::clone(&table), 0);
/// let sink = move |batch: &mut Batch<u64>| -> Result<(), SinkError> {
///     let mut row = store.lock().map_err(SinkError::transient)?; // a transaction begins
///     if row.fence != fence {
///         return Err(SinkError::superseded("another engine has taken over"));
///     }
///     (row.point, row.done) = (*batch.resume(), batch.is_last());
///     row.rows.extend(batch.drain().filter_map(|(_, envelope)| match envelope.verdict {
///         Verdict::Success(result) => Some(result),
///         Verdict::Skip(_) | Verdict::Fail(..) | Verdict::Cancel => None,
///     }));
///     Ok(())
/// };
/// let control = Control::new(); // its clones stop, cancel and watch the run from anywhere
/// let point = table.lock().unwrap().point;
/// let run = Lanes::new(Config::default()).control(&control).resume(point);
/// match run.run(Items::of(0..100_u64), |item, _| Outcome::Success(item * 2), sink) {
///     Ok(report) => assert_eq!(report.summary.counts.success, 100),
///     Err(failure) if failure.is_retryable() => { /* later again, from the table's point */ }
///     Err(failure) => panic!("{failure}, {:?}", failure.snapshot),
/// }
/// assert!(table.lock().unwrap().done);
/// ```
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

    /// Somebody else has taken this writer's place, as after a lost fence: nothing may be written any
    /// more, and nobody is to try again from here.
    pub fn superseded(message: impl fmt::Display) -> Self {
        let message = message.to_string();
        Self { class: ErrorClass::NonRetryableCancellation, seq: None, message }
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
