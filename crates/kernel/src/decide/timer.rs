//! Timers: what a due time means once it fires. Expired is `now >= deadline`, by the store's clock.

use super::leg2::{Entered, enter};
use super::rows::{AttemptRow, EndingKind, Fence};
use crate::error::Refusal;
use crate::machines::StepState;
use crate::retry::Millis;

/// What a timer that fired must do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fired {
    /// The deadline has moved: wait on, no ledger entry.
    Wait(Millis),
    /// The attempt is over or the state has moved on: drop the timer, no ledger entry.
    Vanish,
    /// It ends the attempt.
    End(Entered),
}

/// No ACK has come.
pub fn ack_timeout(attempt: &AttemptRow, fence: Fence, now: Millis) -> Result<Fired, Refusal> {
    fired(attempt, fence, now, StepState::AwaitingAck, EndingKind::AckTimeout)
}

/// The lease has run out. Once a RESULT is stored the attempt is no longer under its lease.
pub fn lease_expiry(attempt: &AttemptRow, fence: Fence, now: Millis) -> Result<Fired, Refusal> {
    fired(attempt, fence, now, StepState::InProgress, EndingKind::LeaseExpired)
}

/// The engine that ran the attempt in process is dead.
pub fn owner_lost(attempt: &AttemptRow, fence: Fence) -> Result<Fired, Refusal> {
    let ran = matches!(attempt.state, StepState::AwaitingAck | StepState::InProgress);
    if !ran || attempt.ending.is_some() || attempt.expect_fence(fence).is_err() {
        return Ok(Fired::Vanish);
    }
    enter(attempt, EndingKind::OwnerLost, None).map(Fired::End)
}

fn fired(
    attempt: &AttemptRow,
    fence: Fence,
    now: Millis,
    state: StepState,
    kind: EndingKind,
) -> Result<Fired, Refusal> {
    if attempt.state != state || attempt.ending.is_some() || attempt.expect_fence(fence).is_err() {
        return Ok(Fired::Vanish);
    }
    match attempt.deadline {
        Some(deadline) if now < deadline => Ok(Fired::Wait(deadline)),
        Some(_) => enter(attempt, kind, None).map(Fired::End),
        None => Ok(Fired::Vanish),
    }
}
