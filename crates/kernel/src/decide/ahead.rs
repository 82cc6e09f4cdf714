//! Looking ahead: what a message would come to if it were the one that ends an attempt. The same decisions
//! as when it does, asked of copies of the rows; nothing is written.

use super::leg2::{self, Duty, Follows};
use super::rows::{AttemptRow, EndingKind, JobRow, Terms};
use crate::error::Refusal;
use crate::machine::State;
use crate::machines::{JobState, StepState};

/// What a message comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ahead {
    /// Where it leaves the step.
    pub step: StepState,
    /// What follows.
    pub follows: Follows,
    /// The attempt that follows, if one does, as a retry inserts it.
    pub next: Option<AttemptRow>,
    /// How the job ends by it: at once, or as soon as what still runs is over.
    pub ends: Option<JobState>,
}

/// What a message of this kind comes to if it enters at this time. `duty` is what the step owes if it is a
/// node of a graph.
pub fn if_ended(
    job: &JobRow,
    attempt: &AttemptRow,
    (kind, duty): (EndingKind, Option<Duty>),
    terms: Terms<'_>,
) -> Result<Option<Ahead>, Refusal> {
    let entered = leg2::enter(attempt, kind, None)?;
    let ended = AttemptRow { ledger: entered.ledger, ending: Some(entered.ending), ..*attempt };
    after(job, &ended, duty, terms)
}

/// What the message that has entered comes to; nothing more if that is done.
pub fn after(
    job: &JobRow,
    attempt: &AttemptRow,
    duty: Option<Duty>,
    terms: Terms<'_>,
) -> Result<Option<Ahead>, Refusal> {
    let finish = match duty {
        Some(duty) => leg2::finish_in_graph(job, attempt, terms, duty)?,
        None => leg2::finish(job, attempt, terms)?,
    };
    let step = finish.step.map_or(attempt.state, |change| change.to());
    Ok(finish.spawn.map(|spawn| {
        let closed = spawn.job.map(|change| change.to()).filter(|state| state.is_terminal());
        let next = match spawn.follows {
            Follows::NextAttempt { .. } => Some(attempt.successor()),
            Follows::NextStep(_) | Follows::Duty { .. } | Follows::Nothing => None,
        };
        Ahead { step, follows: spawn.follows, next, ends: spawn.pins.or(closed) }
    }))
}
