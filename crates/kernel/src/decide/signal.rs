//! Signals, and the steps that wait for them. A signal is kept when it comes and goes to one wait; which of the
//! two is there first makes no difference. Both are decided under the job's lock.

use crate::error::{Code, Refusal};
use crate::keys::Hash;
use crate::machine::State;
use crate::machines::JobState;
use crate::retry::Millis;

/// How many signals one job keeps: a caller that makes up a new id each time must come to an end.
pub const MAX_SIGNALS: u32 = 10_000;

/// What both look at in the job.
#[derive(Clone, Copy, Debug)]
pub struct JobNow {
    /// Where it is.
    pub state: JobState,
    /// Whether it is certain how it will end.
    pub has_verdict: bool,
}

impl JobNow {
    /// Whether nothing may start any more.
    fn is_ending(self) -> bool {
        self.state == JobState::Cancelling || self.has_verdict || self.state.is_terminal()
    }
}

/// What becomes of a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Receive {
    /// It is kept.
    Keep,
    /// It was kept before; nothing changes.
    Repeat,
}

/// A signal comes. `known` is the content that its id was first seen with, `kept` how many the job has. A
/// repeat is answered whatever has become of the job since.
pub fn receive(
    job: JobNow,
    known: Option<Hash>,
    content: Hash,
    kept: u32,
) -> Result<Receive, Refusal> {
    match known {
        Some(known) if known == content => return Ok(Receive::Repeat),
        Some(_) => return Err(Refusal::new(Code::SignalIdReused)),
        None => {}
    }
    if job.is_ending() {
        return Err(Refusal::new(Code::JobEnding).with("state", job.state.name()));
    }
    if kept >= MAX_SIGNALS {
        return Err(Refusal::new(Code::SignalLimit).with("limit", MAX_SIGNALS));
    }
    Ok(Receive::Keep)
}

/// What a wait looks at.
#[derive(Clone, Copy, Debug)]
pub struct Waiting {
    /// Whether it has a signal, or one is there that nobody has.
    pub has_signal: bool,
    /// Until when it waits, if it has begun to and does not wait for ever.
    pub until: Option<Millis>,
    /// How long it waits, if it has not begun to.
    pub timeout: Option<Millis>,
}

/// What becomes of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// It runs, with its signal.
    Signalled,
    /// It runs, without one: its time is over.
    TimedOut,
    /// It is parked, until then or for ever.
    Park {
        /// When its time will be over.
        until: Option<Millis>,
    },
    /// The job is ending: nothing starts.
    Ending,
}

/// A wait is taken up: for the first time, with its signal, or because its time is over. A signal that is
/// there counts however late the wait looks.
pub fn wait(job: JobNow, waiting: Waiting, now: Millis) -> Wait {
    if job.is_ending() {
        return Wait::Ending;
    }
    if waiting.has_signal {
        return Wait::Signalled;
    }
    match waiting.until {
        Some(until) if now >= until => Wait::TimedOut,
        Some(until) => Wait::Park { until: Some(until) },
        None => Wait::Park { until: waiting.timeout.map(|timeout| now.saturating_add(timeout)) },
    }
}
