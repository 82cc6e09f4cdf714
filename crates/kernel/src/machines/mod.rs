//! The five machines, one file and one table each. The folder listing is the list of machines.

mod job;
mod outbox;
mod request;
mod seq;
mod step;

pub use job::{JobState, JobTrigger};
pub use outbox::{OutboxState, OutboxTrigger};
pub use request::{RequestStatus, RequestTrigger};
pub use seq::{SeqState, SeqTrigger};
pub use step::{StepState, StepTrigger};

use crate::machine::{Sheet, State};

/// All five tables, from the outermost level to the innermost.
pub fn sheets() -> [Sheet; 5] {
    [
        RequestStatus::machine().sheet(),
        JobState::machine().sheet(),
        StepState::machine().sheet(),
        OutboxState::machine().sheet(),
        SeqState::machine().sheet(),
    ]
}
