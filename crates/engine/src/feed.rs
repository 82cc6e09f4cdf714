//! The feed: the events of all jobs, in one order that a reader can resume.
//!
//! A reader keeps the cursor of the last event it has handled and asks for what comes after it. It misses
//! nothing and sees nothing twice, however often it starts again: an event is shown only once no open
//! transaction can still write one before it. Events of one job may come in another order than their
//! numbers, if two transactions crossed on their way to the same job; `n` tells.

use std::fmt;
use std::str::FromStr;

use sprag_kernel::{Code, Refusal};

use crate::ids::JobId;
use crate::views::EventView;

/// The most events that one look at the feed returns.
pub const MAX_FEED_EVENTS: u32 = 10_000;

/// A place in the feed of one store. Opaque: print it, keep it, hand it back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Cursor {
    /// The transaction, where a store needs it for the order.
    pub(crate) transaction: u64,
    /// The position in it.
    pub(crate) position: u64,
}

impl Cursor {
    /// Before the first event.
    pub const START: Self = Self { transaction: 0, position: 0 };

    /// For stores: a place by transaction and position.
    pub fn new(transaction: u64, position: u64) -> Self {
        Self { transaction, position }
    }

    /// For stores: the transaction and the position.
    pub fn parts(self) -> (u64, u64) {
        (self.transaction, self.position)
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.transaction, self.position)
    }
}

impl FromStr for Cursor {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        // Stores count with signed numbers, so what is larger was never printed by one.
        let number = |text: &str| text.parse::<i64>().ok().and_then(|n| u64::try_from(n).ok());
        let parts = text.split_once('-').map(|(one, two)| (number(one), number(two)));
        if let Some((Some(transaction), Some(position))) = parts {
            return Ok(Self { transaction, position });
        }
        let shown: String = text.chars().take(64).collect();
        Err(Refusal::new(Code::CursorInvalid).with("given", shown))
    }
}

/// One event of the feed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FeedEvent {
    /// Where it is; a reader goes on after it.
    pub cursor: Cursor,
    /// The job it is about.
    pub job_id: JobId,
    /// Whose job that is, as long as the job is kept.
    pub tenant_id: Option<String>,
    /// What happened.
    pub event: EventView,
}
