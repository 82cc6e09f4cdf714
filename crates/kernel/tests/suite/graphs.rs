//! Group G: joins, verdicts and skips. What a message of a graph does in each of the three lives of its job.

use sprag_kernel::decide::callback;
use sprag_kernel::decide::cancel::{Begin, Cancel, cancel, close_unbegun, close_unpublished};
use sprag_kernel::decide::leg1::{self, Leg1, Skip, skip};
use sprag_kernel::decide::leg2::{Duty, Finish, Follows, Spawn, enter, finish_in_graph};
use sprag_kernel::decide::rows::{AttemptRow, EndingKind, Fence, JobRow, LeaseId, NewLease, Terms};
use sprag_kernel::decide::submit::create_graph;
use sprag_kernel::ledger::Semaphore;
use sprag_kernel::retry::RetryPolicy;
use sprag_kernel::{Code, JobState, OutboxState, State, StepState};

const DUTY: Duty = Duty { children: 3, is_tolerated: false };
const TOLERATED: Duty = Duty { children: 3, is_tolerated: true };

/// A job under way with so many obligations.
fn under_way(open: u32) -> JobRow {
    let job = create_graph(6, 2, 1);
    JobRow { state: JobState::InProgress, semaphore: Semaphore::new(open), ..job }
}

fn failing(open: u32) -> JobRow {
    JobRow { verdict: Some(JobState::FailedFinal), ..under_way(open) }
}

fn cancelling(open: u32) -> JobRow {
    let verdict = Some(JobState::Cancelled);
    JobRow { state: JobState::Cancelling, verdict, ..under_way(open) }
}

/// An activation that was entered.
fn entered() -> AttemptRow {
    let first = AttemptRow::first(3);
    AttemptRow { ledger: first.ledger.enter_leg1().unwrap(), ..first }
}

/// An attempt that a worker had, ended by such a message.
fn ended_by(kind: EndingKind) -> AttemptRow {
    let row = entered();
    let ledger = row.ledger.complete_leg1().unwrap();
    let (state, lease_id) = (StepState::InProgress, Some(LeaseId(1)));
    let row = AttemptRow { ledger, state, lease_id, ..row };
    let message = enter(&row, kind, None).unwrap();
    AttemptRow { ledger: message.ledger, ending: Some(message.ending), ..row }
}

fn finished(job: &JobRow, kind: EndingKind, duty: Duty) -> (Finish, Spawn) {
    let policy = RetryPolicy::default();
    let finish = finish_in_graph(job, &ended_by(kind), Terms { now: 0, policy: &policy }, duty);
    let finish = finish.unwrap();
    (finish, finish.spawn.unwrap())
}

#[test]
fn d9_a_graph_is_born_with_its_roots_and_the_joins_of_its_outermost_scope() {
    let job = create_graph(6, 2, 1);
    assert_eq!((job.semaphore.get(), job.steps, job.is_graph), (3, 6, true));
    assert_eq!((job.state, job.verdict), (JobState::Queued, None));
}

#[test]
fn a_success_does_its_duties_and_moves_the_semaphore_by_n_less_one() {
    let (finish, spawn) = finished(&under_way(5), EndingKind::Success, DUTY);
    assert_eq!(finish.step.unwrap().to(), StepState::Succeeded);
    assert_eq!(spawn.follows, Follows::Duty { children: 3 });
    assert_eq!((spawn.settled.after.get(), spawn.settled.delta), (7, 2));
    assert!(spawn.pins.is_none() && !spawn.closes_parked && spawn.job.is_none());
}

#[test]
fn an_end_that_only_counts_down_closes_one_obligation() {
    let duty = Duty { children: 0, is_tolerated: false };
    let (finish, spawn) = finished(&under_way(2), EndingKind::Success, duty);
    assert_eq!((spawn.settled.after.get(), finish.completes), (1, false));
    let (finish, spawn) = finished(&under_way(1), EndingKind::Success, duty);
    assert_eq!(spawn.job.unwrap().to(), JobState::Succeeded, "the last one closes the job");
    assert!(finish.completes && finish.guid.job_closed());
}

#[test]
fn g2_the_first_final_failure_pins_the_verdict_and_closes_what_is_parked() {
    let (finish, spawn) = finished(&under_way(4), EndingKind::NonRetryable, DUTY);
    assert_eq!(finish.step.unwrap().to(), StepState::FailedFinal);
    assert_eq!((spawn.follows, spawn.pins), (Follows::Nothing, Some(JobState::FailedFinal)));
    assert!(spawn.closes_parked && !spawn.cancels_waiting);
    assert!(spawn.job.is_none(), "others still run");
    let (_, spawn) = finished(&under_way(1), EndingKind::NonRetryable, DUTY);
    assert_eq!(spawn.job.unwrap().to(), JobState::FailedFinal);
}

#[test]
fn a_tolerated_failure_does_its_duties() {
    let (finish, spawn) = finished(&under_way(4), EndingKind::NonRetryable, TOLERATED);
    assert_eq!(finish.step.unwrap().to(), StepState::FailedFinal);
    assert_eq!((spawn.follows, spawn.pins), (Follows::Duty { children: 3 }, None));
}

#[test]
fn g2_after_the_pin_nothing_is_spawned_and_nothing_tried_again() {
    for kind in [EndingKind::Success, EndingKind::Retryable, EndingKind::OwnerLost] {
        let (finish, spawn) = finished(&failing(3), kind, DUTY);
        let to = finish.step.unwrap().to();
        assert!(matches!(to, StepState::Succeeded | StepState::FailedFinal), "{kind:?}: {to}");
        assert_eq!((spawn.follows, spawn.pins), (Follows::Nothing, None), "{kind:?}");
        assert_eq!((spawn.closes_parked, spawn.settled.after.get()), (true, 2));
    }
    let (_, spawn) = finished(&failing(1), EndingKind::Success, DUTY);
    assert_eq!(
        spawn.job.unwrap().to(),
        JobState::FailedFinal,
        "G3: the verdict, whatever came last"
    );
}

#[test]
fn g3_in_a_cancelled_job_what_runs_drains_and_the_last_one_closes_it() {
    let (_, spawn) = finished(&cancelling(2), EndingKind::Success, DUTY);
    assert_eq!((spawn.follows, spawn.job), (Follows::Nothing, None), "it stays CANCELLING");
    assert!(spawn.cancels_waiting && spawn.closes_parked);
    let (finish, spawn) = finished(&cancelling(1), EndingKind::Retryable, DUTY);
    assert_eq!(finish.step.unwrap().to(), StepState::Cancelled);
    assert_eq!(spawn.job.unwrap().to(), JobState::Cancelled);
}

#[test]
fn a_retry_is_a_child_like_any_other() {
    let (finish, spawn) = finished(&under_way(2), EndingKind::Retryable, DUTY);
    assert_eq!(finish.step.unwrap().to(), StepState::FailedRetry);
    assert_eq!(spawn.settled.delta, 0);
    assert!(matches!(spawn.follows, Follows::NextAttempt { attempt_no: 2, .. }));
}

#[test]
fn leg1_in_a_job_that_has_failed_elsewhere_ends_the_attempt_instead() {
    let lease = NewLease { id: LeaseId(1), expires_at: 0 };
    for job in [failing(2), cancelling(2)] {
        let Leg1::Cancelled(message) = leg1::dispatch(&job, &entered(), lease).unwrap() else {
            panic!("nothing starts any more")
        };
        assert_eq!(message.ending.kind, EndingKind::Cancel);
    }
    let any = leg1::dispatch(&under_way(2), &entered(), lease);
    assert!(matches!(any, Ok(Leg1::Dispatch(_))), "in a graph any activation may run");
}

#[test]
fn a_false_condition_ends_the_attempt_without_a_directive() {
    let Skip::Skipped { job, entered: message } = skip(&under_way(2), &entered()).unwrap() else {
        panic!("the job goes on")
    };
    assert_eq!((job, message.ending.kind), ([None, None], EndingKind::Skip));
    let row = AttemptRow { ledger: message.ledger, ending: Some(message.ending), ..entered() };
    let policy = RetryPolicy::default();
    let terms = Terms { now: 0, policy: &policy };
    let finish = finish_in_graph(&under_way(2), &row, terms, DUTY).unwrap();
    assert_eq!(finish.step.unwrap().to(), StepState::Skipped);
    assert_eq!(finish.spawn.unwrap().follows, Follows::Duty { children: 3 });
}

#[test]
fn a_skip_takes_a_queued_job_up_by_legal_moves() {
    let queued = create_graph(2, 1, 0);
    let Skip::Skipped { job: [Some(first), Some(second)], .. } = skip(&queued, &entered()).unwrap()
    else {
        panic!("nobody has taken it up before")
    };
    assert_eq!((first.from(), second.to()), (JobState::Queued, JobState::InProgress));
    let begun = AttemptRow { state: StepState::InProgress, ..entered() };
    let refusal = skip(&queued, &begun).unwrap_err();
    assert_eq!(refusal.code(), Code::StepIllegalTransition, "what has begun is not skipped");
    assert!(matches!(skip(&cancelling(1), &entered()), Ok(Skip::Cancelled(_))));
}

#[test]
fn g3_a_cancel_of_a_graph_makes_a_parked_obligation_due() {
    let parked = AttemptRow::first(5);
    let begun = cancel(&under_way(3), &parked, None).unwrap();
    let Cancel::Begin { job, attempt } = begun else { panic!("it was open") };
    assert_eq!((job.to(), attempt), (JobState::Cancelling, Begin::MakeDue));
    let begun = cancel(&failing(3), &parked, None).unwrap();
    assert!(matches!(begun, Cancel::Begin { .. }), "a job that drains can still be cancelled");
}

/// An attempt whose directive is written and not published.
fn unpublished() -> AttemptRow {
    let ledger = entered().ledger.complete_leg1().unwrap();
    let (state, outbox) = (StepState::Dispatching, Some(OutboxState::Pending));
    AttemptRow { ledger, state, outbox, lease_id: Some(LeaseId(1)), ..entered() }
}

#[test]
fn g2_what_nobody_has_begun_is_closed_and_a_directive_that_is_not_out_with_it() {
    for state in StepState::machine().states.iter().copied() {
        let closed = close_unbegun(state).map(|(step, outbox)| (step.to(), outbox.map(|o| o.to())));
        let expected = match state {
            StepState::Pending | StepState::FailedRetry => Some((StepState::Cancelled, None)),
            StepState::Dispatching => Some((StepState::Cancelled, Some(OutboxState::FailedFinal))),
            StepState::AwaitingAck
            | StepState::InProgress
            | StepState::Succeeded
            | StepState::FailedFinal
            | StepState::Cancelled
            | StepState::Skipped => None,
        };
        assert_eq!(closed, expected, "{state}");
    }
}

#[test]
fn g2_a_publisher_ends_what_it_has_once_the_job_is_ending() {
    assert_eq!(close_unpublished(&under_way(2), &unpublished()).unwrap(), None);
    for job in [failing(2), cancelling(2)] {
        let (outbox, message) = close_unpublished(&job, &unpublished()).unwrap().unwrap();
        assert_eq!(
            (outbox.to(), message.ending.kind),
            (OutboxState::FailedFinal, EndingKind::Cancel)
        );
        let ending = Some(message.ending);
        let row = AttemptRow { ledger: message.ledger, ending, ..unpublished() };
        assert_eq!(close_unpublished(&job, &row).unwrap(), None, "it has its message");
        let policy = RetryPolicy::default();
        let terms = Terms { now: 0, policy: &policy };
        let finish = finish_in_graph(&job, &row, terms, DUTY).unwrap();
        assert_eq!(finish.step.unwrap().to(), StepState::Cancelled);
    }
}

/// Closed by the message of another, it has none of its own.
#[test]
fn g2_whoever_got_a_directive_that_was_closed_is_stale() {
    let closed = AttemptRow { state: StepState::Cancelled, ..unpublished() };
    let fence = Fence { attempt_no: closed.attempt_no, lease_id: LeaseId(1) };
    let policy = RetryPolicy::default();
    let terms = Terms { now: 0, policy: &policy };
    let ack = callback::ack(&failing(2), &closed, fence, terms).unwrap_err();
    assert_eq!(ack.code(), Code::StaleFence);
}
