//! What a store answers that an engine goes on from: attempts with all that belongs to them, what is due, who is silent;
//! and what it is asked for by.

use std::sync::Arc;

use sprag_kernel::StepState;
use sprag_kernel::decide::rows::{AttemptRow, JobRow};
use sprag_kernel::retry::Millis;

use crate::ids::{AttemptKey, EngineNo};
use crate::new_job::JobFacts;

/// An attempt with all that is needed to decide on it and to run it.
#[derive(Clone, Debug)]
pub struct Held {
    /// Which attempt.
    pub key: AttemptKey,
    /// Its row.
    pub attempt: AttemptRow,
    /// Its job's row.
    pub job: JobRow,
    /// What never changes about the job.
    pub facts: Arc<JobFacts>,
    /// Outputs of earlier steps: (step_index, JSON text). In a graph they are asked for by name.
    pub inputs: Vec<(u32, String)>,
    /// When it was acknowledged, if the store was asked since.
    pub acked_at: Option<Millis>,
    /// JSON text of the item of its branch.
    pub item: Option<String>,
    /// JSON text of what it produced, once its message has entered.
    pub output: Option<String>,
    /// Until when it waits, if it has waited for a signal, or waits for a child, with a time limit.
    pub waits_until: Option<Millis>,
    /// Why some of the facts cannot be read, if so; they are empty then. Such a job is not run: it ends.
    pub damage: Option<String>,
    /// Whether it was given out without being entered once more: a claim found Leg1 at the ceiling of its entries, or
    /// a takeover a message whose delivery will run alone, and is entered when its turn comes.
    pub is_unentered: bool,
}

/// How an activity of a graph has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its state.
    pub state: StepState,
    /// JSON text of what it produced.
    pub output: Option<String>,
    /// Why it failed.
    pub error: Option<AttemptError>,
}

/// What a look at the timers found.
#[derive(Clone, Debug, Default)]
pub struct Due {
    /// How many activations became claimable.
    pub promoted: usize,
    /// Attempts whose ACK, lease or publication is due.
    pub held: Vec<Held>,
    /// The store's time.
    pub now: Millis,
    /// When the next timer ends that has not ended yet.
    pub next: Option<Millis>,
}

/// What an engine learns with its sign of life.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Signs {
    /// Engines that have shown none for so long, and dead ones that have left something behind.
    pub silent: Vec<EngineNo>,
    /// Whether an envelope waits in the inbox.
    pub has_mail: bool,
}

/// How many activations of a service an engine can take now.
#[derive(Clone, Debug)]
pub struct Wish {
    /// The service.
    pub service: String,
    /// Free slots.
    pub max: u32,
    /// Which of those that are due.
    pub pick: Pick,
    /// Only those of this tenant; of every tenant if absent.
    pub tenant_id: Option<String>,
}

/// Which activations a claim takes, by how often each was delivered before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pick {
    /// All: whoever takes them does not die with this process.
    Any,
    /// Those that may run beside others in this process.
    Fresh,
    /// Those that must run alone.
    Lone,
}

impl Pick {
    /// The stable small integer of this choice.
    pub fn code(self) -> i16 {
        match self {
            Self::Any => 0,
            Self::Fresh => 1,
            Self::Lone => 2,
        }
    }
}

/// Why an attempt failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AttemptError {
    /// A stable code.
    pub code: String,
    /// What happened.
    pub message: String,
}
