//! Requests: draft, confirm, run, retry, and the projection of the current job.
//!
//! A verb that finds its wish fulfilled already answers with success and changes nothing. An illegal
//! wish is refused by the table. Only a wish that would change something needs the right version.

use super::rows::expect_version;
use crate::error::{Code, Refusal};
use crate::machine::{Change, State};
use crate::machines::{JobState, RequestStatus, RequestTrigger};

/// What the rules look at in a request. `status` is the projection where there is a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestRow {
    /// Where the request is.
    pub status: RequestStatus,
    /// The ETag.
    pub version: u64,
    /// The current run; 0 before the first.
    pub run_no: u32,
}

/// What a verb must do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verb {
    /// The wish is fulfilled; answer with the latest state.
    NoOp,
    /// The draft was edited: a new version, the same status.
    Edited {
        /// The new version.
        version: u64,
    },
    /// One or two transitions, each an event, in one commit.
    Moved {
        /// In order.
        changes: Vec<Change<RequestStatus>>,
        /// One more per change.
        version: u64,
        /// The run whose job is created in the same commit.
        creates_run: Option<u32>,
    },
}

impl RequestRow {
    /// A request as it is born.
    pub fn new() -> Self {
        Self { status: RequestStatus::machine().initial, version: 1, run_no: 0 }
    }

    fn moved(
        &self,
        triggers: &[RequestTrigger],
        creates_run: Option<u32>,
    ) -> Result<Verb, Refusal> {
        let mut status = self.status;
        let mut changes = Vec::with_capacity(triggers.len());
        for trigger in triggers {
            let change = status.on(*trigger)?;
            status = change.to();
            changes.push(change);
        }
        let version = self.version + changes.len() as u64;
        Ok(Verb::Moved { changes, version, creates_run })
    }

    fn next_run(&self) -> u32 {
        self.run_no + 1
    }
}

impl Default for RequestRow {
    fn default() -> Self {
        Self::new()
    }
}

/// Stores a plan preview, or edits it while the plan is not frozen.
pub fn draft(row: &RequestRow, version: Option<u64>, is_new: bool) -> Result<Verb, Refusal> {
    match row.status {
        RequestStatus::Created => {
            expect_version(version, row.version)?;
            row.moved(&[RequestTrigger::Draft], None)
        }
        RequestStatus::DraftReady if !is_new => Ok(Verb::NoOp),
        RequestStatus::DraftReady => {
            expect_version(version, row.version)?;
            Ok(Verb::Edited { version: row.version + 1 })
        }
        RequestStatus::Confirmed
        | RequestStatus::Queued
        | RequestStatus::Running
        | RequestStatus::Succeeded
        | RequestStatus::Failed => {
            Err(Refusal::new(Code::DraftFrozen).with("status", row.status.name()))
        }
    }
}

/// Freezes the plan; with `run` the job of run 1 is created in the same commit. `blocked` names the
/// check of the draft that does not pass.
pub fn confirm(
    row: &RequestRow,
    version: Option<u64>,
    run: bool,
    blocked: Option<&'static str>,
) -> Result<Verb, Refusal> {
    match row.status {
        RequestStatus::Confirmed if run => self::run(row, version),
        RequestStatus::Confirmed
        | RequestStatus::Queued
        | RequestStatus::Running
        | RequestStatus::Succeeded => Ok(Verb::NoOp),
        RequestStatus::Created | RequestStatus::DraftReady | RequestStatus::Failed => {
            // Asked of the table first: an illegal wish is illegal whatever version was read.
            let frozen = row.moved(&[RequestTrigger::Confirm], None)?;
            expect_version(version, row.version)?;
            if let Some(check) = blocked {
                return Err(Refusal::new(Code::DraftBlocked).with("check", check));
            }
            if run {
                return row
                    .moved(&[RequestTrigger::Confirm, RequestTrigger::Run], Some(row.next_run()));
            }
            Ok(frozen)
        }
    }
}

/// At least queued: from confirmed it queues.
pub fn run(row: &RequestRow, version: Option<u64>) -> Result<Verb, Refusal> {
    match row.status {
        RequestStatus::Queued | RequestStatus::Running | RequestStatus::Succeeded => Ok(Verb::NoOp),
        RequestStatus::Created
        | RequestStatus::DraftReady
        | RequestStatus::Confirmed
        | RequestStatus::Failed => {
            let moved = row.moved(&[RequestTrigger::Run], Some(row.next_run()))?;
            expect_version(version, row.version)?;
            Ok(moved)
        }
    }
}

/// Another run in place of `run_no`, which failed. A delayed repeat names an older run and starts
/// nothing.
pub fn retry(row: &RequestRow, version: Option<u64>, run_no: u32) -> Result<Verb, Refusal> {
    match row.status {
        RequestStatus::Created | RequestStatus::DraftReady | RequestStatus::Confirmed => {
            return row.moved(&[RequestTrigger::Retry], None);
        }
        RequestStatus::Queued
        | RequestStatus::Running
        | RequestStatus::Succeeded
        | RequestStatus::Failed => {}
    }
    if run_no == 0 || run_no > row.run_no {
        return Err(Refusal::new(Code::RunMismatch)
            .with("run_no", run_no)
            .with("current_run_no", row.run_no));
    }
    if row.status != RequestStatus::Failed || run_no < row.run_no {
        return Ok(Verb::NoOp);
    }
    expect_version(version, row.version)?;
    row.moved(&[RequestTrigger::Retry], Some(row.next_run()))
}

/// Whether a cancel of the request can be handed to its job. Before a job exists there is nothing
/// to cancel.
pub fn cancel(row: &RequestRow) -> Result<(), Refusal> {
    match row.status {
        RequestStatus::Created | RequestStatus::DraftReady | RequestStatus::Confirmed => {
            Err(Refusal::new(Code::JobIllegalTransition)
                .with("machine", RequestStatus::machine().name)
                .with("from", row.status.name())
                .with("to", "cancelled"))
        }
        RequestStatus::Queued
        | RequestStatus::Running
        | RequestStatus::Succeeded
        | RequestStatus::Failed => Ok(()),
    }
}

/// Whether a request rests in this status by itself; the others are those of its job.
pub fn rests(status: RequestStatus) -> bool {
    match status {
        RequestStatus::Created | RequestStatus::DraftReady | RequestStatus::Confirmed => true,
        RequestStatus::Queued
        | RequestStatus::Running
        | RequestStatus::Succeeded
        | RequestStatus::Failed => false,
    }
}

/// The status of a request whose current job is in this state.
pub fn project(job: JobState) -> RequestStatus {
    match job {
        JobState::Queued => RequestStatus::Queued,
        JobState::Dispatching | JobState::InProgress | JobState::Cancelling => {
            RequestStatus::Running
        }
        JobState::Succeeded => RequestStatus::Succeeded,
        JobState::FailedFinal | JobState::Cancelled => RequestStatus::Failed,
    }
}
