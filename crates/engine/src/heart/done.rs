//! What comes back to the heart: the calls that it has under way end here.

use sprag_kernel::Refusal;

use super::callbacks::{Refusing, Renewing};
use super::works::Working;
use super::{Calling, Claiming, Dispatching, Ending, Finishing, Seeing, Submitting, gates, sight};
use crate::batch::store::BatchView;
use crate::graph::sight::Finding;
use crate::ids::JobId;
use crate::pairs::{Begun, Over};
use crate::signals::WaitOutcome;
use crate::store::{
    Answer, DispatchOutcome, Due, EndOutcome, FinishOutcome, Held, NewJob, RenewOutcome, Signs,
    Submitted, Worked,
};

/// A call that has ended, with what it was about.
pub(super) enum Done<W> {
    Submitted(Vec<Submitting>, Answer<Vec<Result<Submitted, Refusal>>>),
    Begun(Vec<(Submitting, Option<Dispatching>)>, Answer<Vec<Begun>>),
    Claimed(Claiming, Answer<Vec<Held>>),
    Seen(Vec<Seeing>, Answer<sight::Found>),
    Judged(Box<Seeing>, Finding),
    Waited(Vec<Seeing>, Answer<Vec<WaitOutcome>>),
    Dispatched(Vec<Dispatching>, Answer<Vec<DispatchOutcome>>),
    LookedUp(Vec<u64>, Answer<Vec<(String, Held)>>),
    Found(Vec<Calling>, Answer<Vec<Option<Held>>>),
    Renewed(Vec<Renewing>, Answer<Vec<RenewOutcome>>),
    Recorded(Vec<Refusing>, Answer<()>),
    Released(Answer<()>),
    Noted(Answer<()>),
    Unpublished(Answer<Vec<Held>>),
    Reconciled(Answer<Vec<Held>>),
    Ended(Vec<Ending>, Answer<Vec<EndOutcome>>),
    Over(Vec<(Ending, Finishing)>, Answer<Vec<Over>>),
    Finished(Vec<Finishing>, Answer<Vec<FinishOutcome>>),
    Worked(Box<Working<W>>, Answer<Worked>),
    Beaten(Answer<Signs>),
    Pulsed(Answer<()>),
    Cancelling(Answer<Vec<JobId>>),
    TakenOver(Answer<Vec<Held>>),
    Looked(Answer<Due>),
    Entered(Answer<Option<Held>>),
    EnteredAlone(Answer<Option<Held>>),
    Admitted(gates::Round, Answer<usize>),
    Learned(String, Answer<Option<String>>),
    TookIn(Answer<usize>),
    Seeded(Box<Seeing>, Answer<Result<NewJob, Refusal>>),
    Told(Answer<Option<Held>>),
    Tended(Answer<Vec<Held>>),
    Measured(Box<Held>, Option<String>, Answer<Option<BatchView>>),
}

impl<W> Done<W> {
    /// Whether the call is a part of what goes on, rather than a look that found nothing.
    pub(super) fn stirs(&self) -> bool {
        match self {
            Self::Looked(Ok(due)) => due.promoted > 0 || !due.held.is_empty(),
            Self::Claimed(_, Ok(held)) | Self::Unpublished(Ok(held)) => !held.is_empty(),
            Self::LookedUp(_, Ok(found)) => !found.is_empty(),
            Self::Admitted(gates::Round::Page { is_empty, .. }, Ok(_)) => !is_empty,
            Self::TookIn(Ok(count)) => *count > 0,
            Self::Beaten(Ok(signs)) => !signs.silent.is_empty(),
            Self::Noted(Ok(())) => false,
            Self::Looked(Err(_))
            | Self::Claimed(_, Err(_))
            | Self::Unpublished(Err(_))
            | Self::LookedUp(_, Err(_))
            | Self::Admitted(gates::Round::Page { .. }, Err(_))
            | Self::Admitted(gates::Round::Hinted, _)
            | Self::TookIn(Err(_))
            | Self::Beaten(Err(_))
            | Self::Noted(Err(_))
            | Self::Submitted(..)
            | Self::Begun(..)
            | Self::Seen(..)
            | Self::Judged(..)
            | Self::Waited(..)
            | Self::Dispatched(..)
            | Self::Found(..)
            | Self::Renewed(..)
            | Self::Recorded(..)
            | Self::Released(_)
            | Self::Reconciled(_)
            | Self::Ended(..)
            | Self::Over(..)
            | Self::Finished(..)
            | Self::Worked(..)
            | Self::Pulsed(_)
            | Self::Cancelling(_)
            | Self::TakenOver(_)
            | Self::Entered(_)
            | Self::Seeded(..)
            | Self::Told(_)
            | Self::Tended(_)
            | Self::Measured(..)
            | Self::EnteredAlone(_)
            | Self::Learned(..) => true,
        }
    }
}
