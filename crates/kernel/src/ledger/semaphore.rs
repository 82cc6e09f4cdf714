//! The job semaphore: how many obligations of a job are open. At 0 the job is over.

use crate::error::{Code, Refusal};

/// Open obligations of one job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Semaphore(u32);

/// One move of the semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settled {
    /// The value after.
    pub after: Semaphore,
    /// What was added; negative when obligations closed.
    pub delta: i64,
    /// Whether the value after is the threshold.
    pub hit: bool,
}

impl Semaphore {
    /// A value from a store, or the number of obligations that a create inserts.
    pub fn new(open: u32) -> Self {
        Self(open)
    }

    /// Open obligations.
    #[inline]
    pub fn get(self) -> u32 {
        self.0
    }

    /// One obligation closes and opens `children`: the delta is N - 1.
    #[inline]
    pub fn settle(self, children: u32) -> Result<Settled, Refusal> {
        self.settle_against(children, 0, 0)
    }

    /// As [`Self::settle`], closing `parked` more obligations at once, against any threshold.
    #[inline]
    pub fn settle_against(
        self,
        children: u32,
        parked: u32,
        threshold: u32,
    ) -> Result<Settled, Refusal> {
        let delta = i64::from(children) - 1 - i64::from(parked);
        let after = i64::from(self.0) + delta;
        match u32::try_from(after) {
            Ok(open) if self.0 > 0 => {
                Ok(Settled { after: Self(open), delta, hit: open == threshold })
            }
            Ok(_) | Err(_) => Err(Refusal::new(Code::SemaphoreRange)
                .with("semaphore", self.0)
                .with("delta", delta)),
        }
    }
}
