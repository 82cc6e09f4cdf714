//! From a held attempt to the writes that the kernel's decisions ask for. Nothing here chooses a state:
//! each function walks decisions on copies of the rows and notes what they change.
//!
//! Times are relative: decisions are asked with `now` = 0, the store adds its clock.

use std::fmt::Write as _;

use sprag_kernel::decide::callback::{self, Ack, Report, Stored};
use sprag_kernel::decide::cancel::{self, Begin, Cancel};
use sprag_kernel::decide::leg1::{self, Leg1, Publish, Skip};
use sprag_kernel::decide::leg2::{self, Duty, Entered, Follows};
use sprag_kernel::decide::rows::{
    AttemptRow, Ending, EndingKind, Fence, JobRow, LeaseId, NewLease, Terms,
};
use sprag_kernel::decide::submit::create;
use sprag_kernel::keys::Hash;
use sprag_kernel::ledger::Semaphore;
use sprag_kernel::machine::{Change, State};
use sprag_kernel::retry::{Millis, RetryPolicy};
use sprag_kernel::{Code, JobState, OutboxState, Refusal, StepState};

pub mod child;
pub mod worker;

pub use child::child_ended;

use crate::ids::AttemptKey;
use crate::limits::{MAX_MESSAGE_BYTES, storable};
use crate::store::{
    Amendment, AttemptError, DispatchWrite, Duties, EndWrite, FinishPlan, FinishWrite, FollowWrite,
    GraphFinish, HandOff, Held, NewJob, Timer,
};

/// The changes of one commit, as an event row keeps them: `J0>1 S0>1 O0>1`.
#[derive(Default)]
struct Changes(String);

impl Changes {
    fn note<S: State>(&mut self, change: Option<Change<S>>) {
        if let Some(change) = change {
            let letter = S::machine().name.as_bytes()[0].to_ascii_uppercase() as char;
            let (from, to) = (change.from().code(), change.to().code());
            write!(self.0, "{letter}{from}>{to} ").expect("writing to a string does not fail");
        }
    }
}

/// The rows of an attempt and its job, moved along by decisions.
struct Walk {
    job: JobRow,
    attempt: AttemptRow,
    changes: Changes,
}

/// Leg1's work, handed to a slot of this engine: written, sent and acknowledged in one commit. The held
/// rows are moved along, as they will be once the write is committed.
pub fn dispatch(
    held: &mut Held,
    lease_id: LeaseId,
    policy: &RetryPolicy,
) -> Result<DispatchWrite, Refusal> {
    dispatch_to(HandOff::InProcess, held, lease_id, policy)
}

/// Leg1's work, as far as the one it is handed to allows: what is pulled is sent with the commit, and a
/// claim or a slot that acknowledges does so in it too.
pub fn dispatch_to(
    hand_off: HandOff,
    held: &mut Held,
    lease_id: LeaseId,
    policy: &RetryPolicy,
) -> Result<DispatchWrite, Refusal> {
    let terms = Terms { now: 0, policy };
    let lease = policy.lease(lease_id, 0);
    let (version, job_from) = (held.attempt.version, held.job.state);
    let mut walk =
        Walk { job: held.job, attempt: held.attempt, changes: Changes(String::with_capacity(48)) };
    // A cancelling job is found by the statement, which then writes nothing.
    let Leg1::Dispatch(decided) = leg1::dispatch(&walk.job, &walk.attempt, lease)? else {
        return Err(Refusal::new(Code::JobIllegalTransition).with("from", held.job.state.name()));
    };
    walk.changes.note(decided.job);
    walk.changes.note(Some(decided.step));
    walk.job.state = decided.job.map_or(walk.job.state, |change| change.to());
    walk.attempt.state = decided.step.to();
    walk.attempt.ledger = decided.ledger;
    walk.attempt.lease_id = Some(lease_id);
    walk.attempt.outbox = Some(decided.outbox);
    match hand_off {
        HandOff::InProcess | HandOff::Pulled => {
            walk.send(terms)?;
            walk.acknowledge(terms)?;
        }
        HandOff::PulledUnacked => walk.send(terms)?,
        HandOff::Outbox => {}
    }

    held.job = walk.job;
    held.attempt = walk.attempt;
    Ok(DispatchWrite {
        key: held.key,
        version,
        lease_id,
        lease_ms: policy.first_lease_ms(),
        ack_timeout_ms: policy.ack_timeout_ms,
        hand_off,
        claim_id: None,
        child: None,
        step_to: walk.attempt.state,
        job_from,
        job_to: walk.job.state,
        ledger: walk.attempt.ledger,
        changes: walk.changes.0,
        repeats: false,
    })
}

/// The directive of a closer of a cycle, whose message is the next entry of the loop after so many turns.
pub fn after_turns(
    held: &mut Held,
    write: DispatchWrite,
    turns: u32,
) -> Result<DispatchWrite, Refusal> {
    let ledger = write.ledger.after_turns(turns)?;
    held.attempt.ledger = ledger;
    Ok(DispatchWrite { ledger, ..write })
}

impl Walk {
    fn send(&mut self, terms: Terms<'_>) -> Result<(), Refusal> {
        let sent = leg1::published(&self.attempt, self.attempt.version, terms)?;
        let Publish::Sent { outbox, step, .. } = sent else {
            unreachable!("a published directive is sent")
        };
        self.changes.note(Some(outbox));
        self.changes.note(Some(step));
        self.attempt.outbox = Some(outbox.to());
        self.attempt.state = step.to();
        Ok(())
    }

    fn acknowledge(&mut self, terms: Terms<'_>) -> Result<(), Refusal> {
        let fence = fence(&self.attempt);
        let acked = callback::ack(&self.job, &self.attempt, fence, terms)?;
        let Ack::Accepted { job, step, .. } = acked else {
            unreachable!("nobody has acknowledged a directive that was just written")
        };
        self.changes.note(job);
        self.changes.note(Some(step));
        self.job.state = job.map_or(self.job.state, |change| change.to());
        self.attempt.state = step.to();
        self.attempt.acked = true;
        Ok(())
    }
}

/// The present fence of a dispatched attempt.
pub fn fence(attempt: &AttemptRow) -> Fence {
    let lease_id = attempt.lease_id.expect("a dispatched attempt has a lease");
    Fence { attempt_no: attempt.attempt_no, lease_id }
}

/// What a handler said, as the message that ends its attempt.
pub fn result(
    held: &Held,
    report: Report,
    output: Option<String>,
    error: Option<AttemptError>,
) -> Result<Option<EndWrite>, Refusal> {
    let content = Hash::of(
        format!("{report:?}\n{}\n{error:?}", output.as_deref().unwrap_or_default()).as_bytes(),
    );
    match callback::result(&held.attempt, fence(&held.attempt), report, content)? {
        Stored::Duplicate => Ok(None),
        Stored::Accepted(entered) => Ok(Some(end(held, entered, output, error))),
    }
}

/// A message other than a RESULT that ends the attempt.
pub fn ended_by(held: &Held, kind: EndingKind, error: AttemptError) -> Result<EndWrite, Refusal> {
    let entered = leg2::enter(&held.attempt, kind, None)?;
    Ok(end(held, entered, None, Some(error)))
}

/// The write of a message that has entered.
pub fn end(
    held: &Held,
    entered: Entered,
    output: Option<String>,
    error: Option<AttemptError>,
) -> EndWrite {
    // A message that no further entry fits is not the worker's any more.
    let is_exhausted = entered.ending.kind == EndingKind::Leg2Exhausted;
    let error = if is_exhausted {
        Some(failure(Code::Leg2EntriesExhausted, Code::Leg2EntriesExhausted.what()))
    } else {
        error
    };
    EndWrite {
        key: held.key,
        version: held.attempt.version,
        lease_id: held.attempt.lease_id,
        ending: entered.ending,
        ledger: entered.ledger,
        output,
        output_ref: None,
        error,
        repeats: false,
    }
}

/// Steps 1 to 3 of the message that has entered.
pub fn finish(held: &Held, policy: &RetryPolicy, enter_next: bool) -> Result<FinishWrite, Refusal> {
    let cancelling = JobRow { state: JobState::Cancelling, ..held.job };
    let cancelling = finish_plan(&cancelling, held, policy)?;
    // A `cancel` message exists only in a job that is being cancelled, and so it stays.
    let is_cancel = held.attempt.ending.is_some_and(|ending| ending.kind == EndingKind::Cancel);
    let open = if is_cancel { cancelling.clone() } else { finish_plan(&held.job, held, policy)? };
    let (key, version) = (held.key, held.attempt.version);
    let (graph, tasks, tells) = (None, [].into(), None);
    let repeats = false;
    Ok(FinishWrite { key, version, open, cancelling, graph, enter_next, tasks, tells, repeats })
}

/// Steps 1 to 3 of a message of a graph. Which of the three plans holds is found in the statement.
pub fn finish_in_graph(
    held: &Held,
    policy: &RetryPolicy,
    (duties, is_tolerated): (Duties, bool),
) -> Result<FinishWrite, Refusal> {
    let duty = Duty { children: duties.children(), is_tolerated };
    // What is held of the job is old: others move it. It is under way, in one of three ways.
    let job = JobRow { state: JobState::InProgress, verdict: None, ..held.job };
    let failing = JobRow { verdict: Some(JobState::FailedFinal), ..job };
    let cancelling = JobRow { state: JobState::Cancelling, ..job };
    let terms = Terms { now: 0, policy };
    let failing = graph_plan(&failing, held, terms, duty)?.0;
    let cancelling = graph_plan(&cancelling, held, terms, duty)?.0;
    // A `cancel` message exists only in a job that is ending, and so it stays.
    let is_cancel = held.attempt.ending.is_some_and(|ending| ending.kind == EndingKind::Cancel);
    let (open, pins) =
        if is_cancel { (failing.clone(), None) } else { graph_plan(&job, held, terms, duty)? };
    let (closes_to, closes_outbox_to) = closes_unbegun_to();
    let graph = Some(GraphFinish { failing, pins, closes_to, closes_outbox_to, duties });
    let (key, version) = (held.key, held.attempt.version);
    let (enter_next, tasks, tells) = (false, [].into(), None);
    let repeats = false;
    Ok(FinishWrite { key, version, open, cancelling, graph, enter_next, tasks, tells, repeats })
}

/// What the kernel decides for the job in this state, closing and not closing, and whether that makes its
/// end certain. The job's own move is told by the statement, which knows where it comes from.
fn graph_plan(
    job: &JobRow,
    held: &Held,
    terms: Terms<'_>,
    duty: Duty,
) -> Result<(FinishPlan, Option<JobState>), Refusal> {
    let decide = |open: u32| {
        let job = JobRow { semaphore: Semaphore::new(open), ..*job };
        leg2::finish_in_graph(&job, &held.attempt, terms, duty)
    };
    let (closing, going_on) = (decide(1)?, decide(2)?);
    let spawn = closing.spawn.ok_or_else(|| Refusal::new(Code::StepOutOfOrder))?;
    let follows = match spawn.follows {
        Follows::NextStep(_) => unreachable!("a graph has no next step"),
        Follows::Duty { .. } => FollowWrite::Duty,
        Follows::NextAttempt { due, .. } => {
            let AttemptRow { losses, excused, .. } = held.attempt.successor();
            FollowWrite::NextAttempt { delay_ms: due, losses, excused }
        }
        Follows::Nothing => FollowWrite::Nothing,
    };
    let mut changes = Changes::default();
    changes.note(going_on.step);
    let plan = FinishPlan {
        step_to: going_on.step.map_or(held.attempt.state, |change| change.to()),
        ledger: going_on.ledger,
        ledger_closing: closing.ledger,
        guid: going_on.guid,
        guid_closing: closing.guid,
        follows,
        waiting_to: waiting_to(spawn.cancels_waiting),
        job_closed: spawn.job.map_or(job.state, |change| change.to()),
        changes: changes.0,
    };
    Ok((plan, spawn.pins))
}

/// What the kernel decides for the job in this state, closing and not closing.
fn finish_plan(job: &JobRow, held: &Held, policy: &RetryPolicy) -> Result<FinishPlan, Refusal> {
    let terms = Terms { now: 0, policy };
    let decide = |open: u32| {
        let job = JobRow { semaphore: Semaphore::new(open), ..*job };
        leg2::finish(&job, &held.attempt, terms)
    };
    // One obligation left: this message closes the job unless something follows. Two: it does not.
    let (closing, going_on) = (decide(1)?, decide(2)?);
    let mut changes = Changes::default();
    changes.note(going_on.step);
    let spawn = closing.spawn.ok_or_else(|| Refusal::new(Code::StepOutOfOrder))?;
    let follows = match spawn.follows {
        Follows::NextStep(_) => FollowWrite::NextStep,
        Follows::Duty { .. } => unreachable!("a sequence has no duties"),
        Follows::NextAttempt { due, .. } => {
            let AttemptRow { losses, excused, .. } = held.attempt.successor();
            FollowWrite::NextAttempt { delay_ms: due, losses, excused }
        }
        Follows::Nothing => FollowWrite::Nothing,
    };
    let job_closed = match (follows, spawn.job) {
        (FollowWrite::Nothing, Some(change)) => change.to(),
        (FollowWrite::NextStep, Some(change)) => {
            changes.note(Some(change));
            change.to()
        }
        (_, _) => job.state,
    };
    let step_to = going_on.step.map_or(held.attempt.state, |change| change.to());
    Ok(FinishPlan {
        step_to,
        ledger: going_on.ledger,
        ledger_closing: closing.ledger,
        guid: going_on.guid,
        guid_closing: closing.guid,
        follows,
        waiting_to: waiting_to(spawn.cancels_waiting),
        job_closed,
        changes: changes.0,
    })
}

/// What the kernel makes of a step that waits when its job is cancelled: the same from either state.
fn waiting_to(cancels_waiting: bool) -> Option<StepState> {
    let cancelled = |state| cancel::cancel_waiting(state).map(|change| change.to());
    let to = cancelled(StepState::Pending);
    debug_assert_eq!(to, cancelled(StepState::FailedRetry), "one statement cancels both");
    to.filter(|_| cancels_waiting)
}

/// What the kernel makes of a step that nobody has begun when its graph is ending, and of its directive: the same
/// from every state.
fn closes_unbegun_to() -> (StepState, OutboxState) {
    let (step, outbox) = cancel::close_unbegun(StepState::Dispatching)
        .and_then(|(step, outbox)| Some((step.to(), outbox?.to())))
        .expect("the table closes what is not published");
    debug_assert_eq!(Some(step), waiting_to(true), "one statement closes all");
    (step, outbox)
}

/// The first attempt of a job that is created and entered with the same commit.
pub fn born(job: &NewJob) -> Held {
    let steps = u32::try_from(job.steps.len()).expect("steps are limited");
    let (row, attempts) = create(steps);
    let mut attempt = attempts[0];
    attempt.ledger = attempt.ledger.enter_leg1().expect("a fresh ledger is below its ceiling");
    Held {
        key: AttemptKey::first(job.facts.job_id, 0),
        attempt,
        job: row,
        facts: job.facts.clone(),
        inputs: Vec::new(),
        acked_at: None,
        item: None,
        output: None,
        waits_until: None,
        damage: None,
        is_unentered: false,
    }
}

/// The rows once a message has entered.
pub fn entered(held: Held, write: &EndWrite) -> Held {
    let (ledger, ending) = (write.ledger, Some(write.ending));
    let attempt = AttemptRow { version: write.version + 1, ledger, ending, ..held.attempt };
    Held { attempt, ..held }
}

/// The attempt of the next step, as Steps 1 to 3 leave it when they enter it for this engine.
pub fn entered_next(
    held: &Held,
    job_version: u64,
    output: Option<String>,
) -> Result<Held, Refusal> {
    let step_index = held.key.step_index + 1;
    let first = AttemptRow::first(step_index);
    let mut inputs = held.inputs.clone();
    inputs.extend(output.map(|output| (held.key.step_index, output)));
    Ok(Held {
        key: AttemptKey { step_index, attempt_no: 1, ..held.key },
        attempt: AttemptRow {
            version: first.version + 1,
            ledger: first.ledger.enter_leg1()?,
            ..first
        },
        job: JobRow { version: job_version, current_step: step_index, ..held.job },
        facts: held.facts.clone(),
        inputs,
        acked_at: None,
        item: None,
        output: None,
        waits_until: None,
        damage: None,
        is_unentered: false,
    })
}

/// The job's state after a cancel, and the message if the cancel entered one.
pub type Cancelled = (JobState, Option<Held>);

/// A cancel, decided under the rows' locks: the job's state, and the message if the cancel entered one.
pub fn cancel(
    held: &Held,
    version: Option<u64>,
) -> Result<(Option<Amendment>, Cancelled), Refusal> {
    let (change, begin) = match cancel::cancel(&held.job, &held.attempt, version)? {
        Cancel::NoOp(state) => return Ok((None, (state, None))),
        Cancel::Begin { job, attempt } => (job, attempt),
    };
    let mut changes = Changes::default();
    changes.note(Some(change));
    let mut after = held.clone();
    after.job.state = change.to();
    let (timer, entered) = match begin {
        Begin::MakeDue => (Timer::Ready, false),
        Begin::Wait => (Timer::Keep, false),
        Begin::CloseUnpublished { outbox, entered } => {
            changes.note(Some(outbox));
            after = entered_into(&after, entered);
            after.attempt.outbox = Some(outbox.to());
            (Timer::Clear, true)
        }
    };
    let (amendment, after) = entering(after, None, changes.0);
    let verdict = held.job.is_graph.then_some(JobState::Cancelled);
    let amendment = amendment.map(|amendment| Amendment { verdict, timer, ..amendment });
    Ok((amendment, (change.to(), after.filter(|_| entered))))
}

/// An amendment and the message that it enters, if it enters one.
pub type Entering = (Option<Amendment>, Option<Held>);

/// Leg1 of a job that is being cancelled: no directive, a message that ends the attempt.
pub fn cancel_in_leg1(held: &Held) -> Result<Entering, Refusal> {
    // The lease is not used: a cancelled activation gets no directive.
    let lease = NewLease { id: LeaseId(0), expires_at: 0 };
    let Leg1::Cancelled(entered) = leg1::dispatch(&held.job, &held.attempt, lease)? else {
        return Ok((None, None));
    };
    Ok(entering(entered_into(held, entered), None, String::new()))
}

/// Leg1 of a step whose condition is false: no directive, a message that ends the attempt as skipped.
pub fn skip_in_leg1(held: &Held, error: Option<AttemptError>) -> Result<Entering, Refusal> {
    let (walked, entered) = match leg1::skip(&held.job, &held.attempt)? {
        Skip::Cancelled(entered) => ([None, None], entered),
        Skip::Skipped { job, entered } => (job, entered),
    };
    let mut changes = Changes::default();
    let mut after = entered_into(held, entered);
    for change in walked {
        changes.note(change);
        after.job.state = change.map_or(after.job.state, |change| change.to());
    }
    Ok(entering(after, error, changes.0))
}

/// Leg1 that can never succeed: the directive is written, never published, and a message ends the step.
pub fn fail_in_leg1(
    held: &Held,
    lease_id: LeaseId,
    now: Millis,
    (code, message): (Code, &str),
) -> Result<Entering, Refusal> {
    let lease = NewLease { id: lease_id, expires_at: now };
    let failed = match leg1::fail(&held.job, &held.attempt, lease, code)? {
        Leg1::Failed(failed) => failed,
        Leg1::Cancelled(entered) => {
            return Ok(entering(entered_into(held, entered), None, String::new()));
        }
        Leg1::Dispatch(_) => return Ok((None, None)),
    };
    let mut changes = Changes::default();
    changes.note(failed.dispatch.job);
    changes.note(Some(failed.dispatch.step));
    changes.note(Some(failed.outbox));
    let mut after = entered_into(held, failed.entered);
    after.job.state = failed.dispatch.job.map_or(held.job.state, |change| change.to());
    after.job.attempts_total += 1;
    after.attempt.state = failed.dispatch.step.to();
    after.attempt.lease_id = Some(lease_id);
    after.attempt.outbox = Some(failed.outbox.to());
    Ok(entering(after, Some(failure(code, message)), changes.0))
}

/// A message that cannot be finished becomes one that ends the step for good. Only of an attempt that ran:
/// any other has no final failure of its own to come to.
pub fn poison_message(held: &Held, key: &AttemptKey, reason: &str) -> Entering {
    let Some(ending) = held.attempt.ending else { return (None, None) };
    let ran = held.attempt.state == StepState::InProgress;
    if held.key != *key || ending.guid.work_done() || !ran {
        return (None, None);
    }
    let mut after = held.clone();
    after.attempt.ending = Some(Ending { kind: EndingKind::NonRetryable, ..ending });
    entering(after, Some(failure(Code::MessagePoison, reason)), String::new())
}

/// The same if too many engines have died over it.
pub fn wear_out(held: &Held, key: &AttemptKey) -> Entering {
    let engines = held.attempt.message_deliveries().unwrap_or(0).saturating_sub(1);
    let reason = format!("{engines} engines died before its result was finished");
    poison_message(held, key, &reason)
}

/// A message whose turn to run alone has come: one more delivery, which ends its step for good if it is one too many.
pub fn deliver_alone(held: &Held, key: &AttemptKey, policy: &RetryPolicy) -> Entering {
    let is_finished = held.attempt.ending.is_none_or(|ending| ending.guid.work_done());
    if held.key != *key || is_finished {
        return (None, None);
    }
    let mut after = held.clone();
    after.attempt.ledger = leg2::enter_again(&after.attempt);
    if after.attempt.is_worn_out(policy) {
        return wear_out(&after, key);
    }
    entering(after, None, String::new())
}

fn failure(code: Code, message: &str) -> AttemptError {
    let message = storable(message, MAX_MESSAGE_BYTES);
    AttemptError { code: code.name().to_owned(), message }
}

/// The rows with the message in.
fn entered_into(held: &Held, entered: Entered) -> Held {
    let mut after = held.clone();
    after.attempt.ledger = entered.ledger;
    after.attempt.ending = Some(entered.ending);
    after
}

fn entering(mut after: Held, error: Option<AttemptError>, changes: String) -> Entering {
    let amendment = Amendment {
        job_to: after.job.state,
        verdict: None,
        attempt: after.attempt,
        timer: Timer::Clear,
        output: None,
        error,
        changes,
    };
    after.attempt.version += 1;
    after.job.version += 1;
    (Some(amendment), Some(after))
}
