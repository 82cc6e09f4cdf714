//! What a running handler brings to the store beside its RESULT: work for the transaction that stores the
//! RESULT, and signs of life.

use sprag_kernel::decide::rows::LeaseId;
use sprag_kernel::retry::Millis;

use crate::directive::Failure;
use crate::ids::AttemptKey;
use crate::store::EndOutcome;

/// What became of a message that brought work along.
#[derive(Clone, Debug)]
pub enum Worked {
    /// Message and work are committed; the attempt has this version.
    Entered {
        /// The version afterwards.
        version: u64,
    },
    /// Another message was first, or the row has moved on; the work did not run.
    Stale,
    /// The work failed, panicked or took too long; neither it nor the message has written anything.
    Failed(Failure),
}

impl From<EndOutcome> for Worked {
    fn from(outcome: EndOutcome) -> Self {
        match outcome {
            EndOutcome::Entered { version } => Self::Entered { version },
            EndOutcome::Stale => Self::Stale,
        }
    }
}

/// The sign of life of an attempt that this engine runs. Not a transition: the row keeps its version.
#[derive(Clone, Debug)]
pub struct Pulse {
    /// Which attempt.
    pub key: AttemptKey,
    /// The lease it must have.
    pub lease_id: LeaseId,
    /// How long the lease is from now on.
    pub lease_ms: Millis,
    /// JSON text of how far it is; what was said before stays if there is nothing new.
    pub progress: Option<String>,
}
