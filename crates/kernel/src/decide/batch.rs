//! A batch step whose seqs all have an outcome: what that makes of the attempt. A failed seq never stops a
//! run; whether it fails the step is decided here, once, when the last seq is committed.

use super::callback::Report;

/// How a batch came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// No more seqs failed than are tolerated.
    Succeeded,
    /// More did.
    ItemsFailed,
    /// Some never had their turn, because the job is being cancelled.
    Cancelled,
}

/// Decides on a batch by its failed and cancelled seqs and by how many failed ones it bears.
pub fn verdict(failed: u64, cancelled: u64, tolerated: u64) -> Verdict {
    if cancelled > 0 {
        Verdict::Cancelled
    } else if failed > tolerated {
        Verdict::ItemsFailed
    } else {
        Verdict::Succeeded
    }
}

impl Verdict {
    /// What the attempt reports. Its items would fail again, so that is final; a cancelled batch would go on
    /// in another attempt, which its job does not get.
    pub fn report(self) -> Report {
        match self {
            Self::Succeeded => Report::Succeeded,
            Self::ItemsFailed => Report::NonRetryable,
            Self::Cancelled => Report::Retryable,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn e6_a_batch_bears_as_many_failures_as_it_tolerates_and_a_cancel_comes_first() {
        assert_eq!(verdict(0, 0, 0), Verdict::Succeeded);
        assert_eq!(verdict(1, 0, 0), Verdict::ItemsFailed);
        assert_eq!(verdict(3, 0, 3), Verdict::Succeeded);
        assert_eq!(verdict(4, 0, 3), Verdict::ItemsFailed);
        assert_eq!(verdict(4, 1, 0), Verdict::Cancelled);
    }
}
