//! One job in memory: the smallest thing that applies the kernel's decisions.
//!
//! Each method asks the kernel and writes what it says, as a store would in one commit; a refusal
//! writes nothing. There is one clock, and no next state is chosen here. [`World::play`] is an
//! engine, a publisher and the timers at once, second by second, so that a schedule is a list of
//! times and states. A stored callback names a step; it is held against the newest attempt of that
//! step whose directive was written, since that is the fence the step shows.

use sprag_kernel::decide::callback::{self, Ack, Report, Stored};
use sprag_kernel::decide::cancel::{Begin, Cancel, cancel, cancel_waiting};
use sprag_kernel::decide::leg1::{self, Entry, Leg1, Publish};
use sprag_kernel::decide::leg2::{self, Entered, Follows, Spawn};
use sprag_kernel::decide::rows::{AttemptRow, Ending, EndingKind, Fence, JobRow, LeaseId, Terms};
use sprag_kernel::decide::submit::create;
use sprag_kernel::decide::timer::{self, Fired};
use sprag_kernel::keys::Hash;
use sprag_kernel::ledger::{ActivityLedger, GuidLedger};
use sprag_kernel::retry::{Millis, RetryPolicy};
use sprag_kernel::{Change, Code, JobState, OutboxState, Refusal, State, StepState};

/// A job, its attempts, the clock, and what happened.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct World {
    pub(crate) now: Millis,
    pub(crate) policy: RetryPolicy,
    pub(crate) job: JobRow,
    pub(crate) completed_at: Option<Millis>,
    /// Every attempt of every step, in the order they were inserted.
    pub(crate) attempts: Vec<Attempt>,
    /// The semaphore at create and after each Step 2.
    pub(crate) semaphores: Vec<u32>,
    pub(crate) job_events: Vec<(JobState, JobState)>,
    /// Second, attempt number, state.
    pub(crate) trace: Vec<(u64, u32, StepState)>,
    /// How often the completion tasks ran.
    pub(crate) completions: u32,
    pub(crate) commits: u64,
}

/// An attempt with its two messages: the activation and the one that ends it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Attempt {
    pub(crate) row: AttemptRow,
    /// When its activation is due; absent before the step's turn and once Leg1 is complete.
    pub(crate) due: Option<Millis>,
    /// When its directive may be published again.
    pub(crate) not_before: Millis,
    /// Whether its ending message waits to be acknowledged.
    pub(crate) is_ending_open: bool,
}

/// Where a process dies while it handles an ending message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dies {
    AfterStep1,
    AfterStep2,
    Never,
}

impl World {
    /// A fresh job with this many steps, at second 0.
    pub(crate) fn new(steps: u32) -> Self {
        let (job, rows) = create(steps);
        let attempt = |row: AttemptRow| Attempt {
            row,
            due: (row.step_index == 0).then_some(0),
            not_before: 0,
            is_ending_open: false,
        };
        Self {
            now: 0,
            policy: RetryPolicy::default(),
            job,
            completed_at: None,
            attempts: rows.into_iter().map(attempt).collect(),
            semaphores: vec![job.semaphore.get()],
            job_events: Vec::new(),
            trace: Vec::new(),
            completions: 0,
            commits: 0,
        }
    }

    /// The same with other retry rules.
    pub(crate) fn with(mut self, change: impl FnOnce(&mut RetryPolicy)) -> Self {
        change(&mut self.policy);
        self
    }

    /// A job whose first step is written, published and acknowledged at second 0.
    pub(crate) fn running(steps: u32) -> Self {
        let mut world = Self::new(steps);
        world.start_step();
        world
    }

    /// Takes the current step from its activation to IN_PROGRESS, now.
    pub(crate) fn start_step(&mut self) {
        self.activate().expect("the activation is due");
        self.publish().expect("the row is pending");
        self.ack(self.fence()).expect("the fence is current");
    }

    /// The current step's worker reports, and the message is processed, now.
    pub(crate) fn report(&mut self, report: Report) {
        self.result(self.fence(), report, "result").expect("the attempt runs");
        self.finish(Dies::Never).expect("the message is handled");
    }

    // Looking.

    fn newest_of(&self, step: u32) -> usize {
        let found = self.attempts.iter().rposition(|attempt| attempt.row.step_index == step);
        found.expect("every step has an attempt")
    }

    pub(crate) fn current(&self) -> usize {
        self.newest_of(self.job.current_step)
    }

    pub(crate) fn attempt(&self) -> &Attempt {
        &self.attempts[self.current()]
    }

    pub(crate) fn row(&self) -> &AttemptRow {
        &self.attempt().row
    }

    pub(crate) fn row_mut(&mut self) -> &mut AttemptRow {
        let current = self.current();
        &mut self.attempts[current].row
    }

    /// The newest attempt of the current step whose directive was written.
    fn shown(&self) -> usize {
        let step = self.job.current_step;
        let is_shown = |a: &Attempt| a.row.step_index == step && a.row.lease_id.is_some();
        self.attempts.iter().rposition(is_shown).unwrap_or_else(|| self.current())
    }

    pub(crate) fn fence(&self) -> Fence {
        let row = &self.attempts[self.shown()].row;
        Fence { attempt_no: row.attempt_no, lease_id: row.lease_id.unwrap_or(LeaseId(0)) }
    }

    pub(crate) fn step_states(&self) -> Vec<StepState> {
        (0..self.job.steps).map(|step| self.attempts[self.newest_of(step)].row.state).collect()
    }

    pub(crate) fn guids(&self) -> impl Iterator<Item = GuidLedger> {
        self.attempts.iter().filter_map(|attempt| attempt.row.ending.map(|ending| ending.guid))
    }

    pub(crate) fn digits(&self, at: usize) -> (String, String) {
        let row = &self.attempts[at].row;
        let guid = row.ending.map_or(GuidLedger::FRESH, |ending| ending.guid);
        (row.ledger.to_string(), guid.to_string())
    }

    /// Rows of the outbox in this state.
    pub(crate) fn outbox_rows(&self, state: OutboxState) -> usize {
        self.attempts.iter().filter(|attempt| attempt.row.outbox == Some(state)).count()
    }

    // Leg1.

    /// A claimed activation: entry in its own commit, then the work.
    pub(crate) fn activate(&mut self) -> Result<(), Refusal> {
        match self.enter_leg1() {
            Ok(Entry::Work(_)) => self.work_leg1(),
            Ok(Entry::Replay(_)) => Ok(()),
            Err(refusal) => self.fail_leg1(refusal.code()),
        }
    }

    pub(crate) fn enter_leg1(&mut self) -> Result<Entry, Refusal> {
        let at = self.current();
        let entry = leg1::enter(&self.attempts[at].row)?;
        let (Entry::Work(ledger) | Entry::Replay(ledger)) = entry;
        self.write_ledger(at, ledger);
        Ok(entry)
    }

    pub(crate) fn work_leg1(&mut self) -> Result<(), Refusal> {
        let at = self.current();
        let lease = self.policy.lease(LeaseId(self.commits + 1000), self.now);
        let decided = leg1::dispatch(&self.job, &self.attempts[at].row, lease)?;
        self.write_leg1(at, decided);
        Ok(())
    }

    pub(crate) fn fail_leg1(&mut self, code: Code) -> Result<(), Refusal> {
        let at = self.current();
        let lease = self.policy.lease(LeaseId(self.commits + 1000), self.now);
        let decided = leg1::fail(&self.job, &self.attempts[at].row, lease, code)?;
        self.write_leg1(at, decided);
        Ok(())
    }

    fn write_leg1(&mut self, at: usize, decided: Leg1) {
        self.attempts[at].due = None;
        match decided {
            Leg1::Dispatch(dispatch) => self.write_dispatch(at, dispatch),
            Leg1::Cancelled(entered) => self.write_entered(at, entered),
            Leg1::Failed(failure) => {
                self.write_dispatch(at, failure.dispatch);
                self.attempts[at].row.outbox = Some(failure.outbox.to());
                self.write_entered(at, failure.entered);
            }
        }
    }

    fn write_dispatch(&mut self, at: usize, dispatch: leg1::Dispatch) {
        self.move_job(dispatch.job);
        self.job.attempts_total += 1;
        self.attempts[at].row.lease_id = Some(dispatch.lease.id);
        self.attempts[at].row.outbox = Some(dispatch.outbox);
        self.write_ledger(at, dispatch.ledger);
        self.move_step(at, dispatch.step);
    }

    pub(crate) fn publish(&mut self) -> Result<(), Refusal> {
        let at = self.current();
        let row = self.attempts[at].row;
        let decided = leg1::published(&row, row.version, self.terms())?;
        self.write_publish(at, decided);
        Ok(())
    }

    pub(crate) fn publish_fails(&mut self) -> Result<(), Refusal> {
        let at = self.current();
        let row = self.attempts[at].row;
        let decided = leg1::publish_failed(&row, row.version, self.terms())?;
        self.write_publish(at, decided);
        Ok(())
    }

    fn write_publish(&mut self, at: usize, decided: Publish) {
        self.commits += 1;
        let attempt = &mut self.attempts[at];
        match decided {
            Publish::Sent { outbox, step, ack_deadline } => {
                attempt.row.outbox = Some(outbox.to());
                attempt.row.deadline = Some(ack_deadline);
                self.move_step(at, step);
            }
            Publish::Again { publish_attempts, not_before } => {
                attempt.row.publish_attempts = publish_attempts;
                attempt.not_before = not_before;
            }
            Publish::Failed { outbox, entered } => {
                attempt.row.outbox = Some(outbox.to());
                self.write_entered(at, entered);
            }
            Publish::Superseded(outbox) => attempt.row.outbox = Some(outbox.to()),
        }
    }

    // Callbacks and timers.

    pub(crate) fn ack(&mut self, fence: Fence) -> Result<Ack, Refusal> {
        let at = self.shown();
        let answer = callback::ack(&self.job, &self.attempts[at].row, fence, self.terms())?;
        if let Ack::Accepted { job, step, lease_expires_at } = answer {
            self.move_job(job);
            self.move_step(at, step);
            self.attempts[at].row.acked = true;
            self.attempts[at].row.deadline = Some(lease_expires_at);
        }
        Ok(answer)
    }

    pub(crate) fn heartbeat(&mut self, fence: Fence) -> Result<bool, Refusal> {
        let at = self.shown();
        let beat = callback::heartbeat(&self.job, &self.attempts[at].row, fence, self.terms())?;
        self.attempts[at].row.deadline = Some(beat.lease_expires_at);
        Ok(beat.cancel)
    }

    pub(crate) fn result(
        &mut self,
        fence: Fence,
        report: Report,
        content: &str,
    ) -> Result<Stored, Refusal> {
        let at = self.shown();
        let hash = Hash::of(content.as_bytes());
        let answer = callback::result(&self.attempts[at].row, fence, report, hash)?;
        if let Stored::Accepted(entered) = answer {
            self.attempts[at].row.deadline = None;
            self.write_entered(at, entered);
        }
        Ok(answer)
    }

    /// Both timers of the current attempt, of which at most one can be meant.
    pub(crate) fn fire_timers(&mut self) -> Vec<Fired> {
        let (at, fence) = (self.current(), self.fence());
        [timer::ack_timeout, timer::lease_expiry].map(|fire| self.fired(at, fence, fire)).into()
    }

    fn fired(
        &mut self,
        at: usize,
        fence: Fence,
        fire: fn(&AttemptRow, Fence, Millis) -> Result<Fired, Refusal>,
    ) -> Fired {
        let fired =
            fire(&self.attempts[at].row, fence, self.now).expect("a timer is never refused");
        if let Fired::End(entered) = fired {
            self.write_entered(at, entered);
        }
        fired
    }

    pub(crate) fn lose_owner(&mut self) -> Fired {
        let (at, fence) = (self.current(), self.fence());
        self.fired(at, fence, |row, fence, _| timer::owner_lost(row, fence))
    }

    pub(crate) fn cancel(&mut self) -> Result<JobState, Refusal> {
        let at = self.current();
        if let Cancel::Begin { job, attempt } = cancel(&self.job, &self.attempts[at].row, None)? {
            self.move_job(Some(job));
            match attempt {
                Begin::MakeDue => self.attempts[at].due = Some(self.now),
                Begin::CloseUnpublished { outbox, entered } => {
                    self.attempts[at].row.outbox = Some(outbox.to());
                    self.write_entered(at, entered);
                }
                Begin::Wait => {}
            }
        }
        Ok(self.job.state)
    }

    // Leg2.

    /// The attempt whose ending message waits, or else the current one.
    fn ending_at(&self) -> usize {
        let waits = self.attempts.iter().position(|attempt| attempt.is_ending_open);
        waits.unwrap_or_else(|| self.current())
    }

    /// Handles the ending message that waits, up to where the process dies.
    pub(crate) fn finish(&mut self, dies: Dies) -> Result<(), Refusal> {
        self.finish_at(self.ending_at(), dies)
    }

    /// The same message comes once more: counted, then whatever it has not done.
    pub(crate) fn redeliver(&mut self, dies: Dies) -> Result<(), Refusal> {
        self.redeliver_at(self.ending_at(), dies)
    }

    pub(crate) fn redeliver_at(&mut self, at: usize, dies: Dies) -> Result<(), Refusal> {
        self.write_ledger(at, leg2::enter_again(&self.attempts[at].row));
        self.finish_at(at, dies)
    }

    fn finish_at(&mut self, at: usize, dies: Dies) -> Result<(), Refusal> {
        let row = self.attempts[at].row;
        let plan = leg2::finish(&self.job, &row, self.terms())?;
        let exhausted = matches!(row.ending, Some(Ending { kind: EndingKind::Leg2Exhausted, .. }));
        if let Some(change) = plan.step {
            self.move_step(at, change);
            self.mark(at, exhausted, GuidLedger::complete_work, ActivityLedger::complete_work);
        }
        if dies == Dies::AfterStep1 {
            return Ok(());
        }
        if let Some(spawn) = plan.spawn {
            let hit = spawn.settled.hit;
            let children = |guid: GuidLedger| guid.complete_children(hit);
            self.mark(at, exhausted, children, ActivityLedger::complete_children);
            self.write_spawn(at, spawn);
        }
        if dies == Dies::AfterStep2 {
            return Ok(());
        }
        if plan.completes {
            self.completions += 1;
            let completion = ActivityLedger::complete_completion;
            self.mark(at, exhausted, GuidLedger::complete_completion, completion);
        }
        let done = &mut self.attempts[at];
        done.is_ending_open = false;
        assert_eq!(done.row.ledger, plan.ledger, "the steps add up to what was decided");
        assert_eq!(done.row.ending.map(|ending| ending.guid), Some(plan.guid));
        Ok(())
    }

    fn mark(
        &mut self,
        at: usize,
        exhausted: bool,
        guid: impl Fn(GuidLedger) -> Result<GuidLedger, Refusal>,
        ledger: fn(ActivityLedger) -> Result<ActivityLedger, Refusal>,
    ) {
        let row = &mut self.attempts[at].row;
        let ending = row.ending.as_mut().expect("the message has entered");
        ending.guid = guid(ending.guid).expect("the marker follows its predecessor");
        if !exhausted {
            row.ledger = ledger(row.ledger).expect("the marker follows its predecessor");
        }
        self.commits += 1;
    }

    fn write_spawn(&mut self, at: usize, spawn: Spawn) {
        self.job.semaphore = spawn.settled.after;
        self.semaphores.push(spawn.settled.after.get());
        self.move_job(spawn.job);
        match spawn.follows {
            Follows::NextStep(step) => {
                self.job.current_step = step;
                let next = self.newest_of(step);
                self.attempts[next].due = Some(self.now);
            }
            Follows::NextAttempt { attempt_no, due } => {
                let row = self.attempts[at].row.successor();
                assert_eq!(row.attempt_no, attempt_no);
                let next = Attempt { row, due: Some(due), not_before: 0, is_ending_open: false };
                self.attempts.push(next);
            }
            Follows::Duty { .. } => unreachable!("these jobs are sequences"),
            Follows::Nothing => {}
        }
        if spawn.cancels_waiting {
            for step in 0..self.job.steps {
                let waiting = self.newest_of(step);
                if let Some(change) = cancel_waiting(self.attempts[waiting].row.state) {
                    self.move_step(waiting, change);
                }
            }
        }
    }

    // Writing.

    pub(crate) fn terms(&self) -> Terms<'_> {
        Terms { now: self.now, policy: &self.policy }
    }

    fn move_job(&mut self, change: Option<Change<JobState>>) {
        let Some(change) = change else { return };
        assert_eq!(change.from(), self.job.state, "decided on the row as it is");
        self.job.state = change.to();
        self.job.version += 1;
        self.job_events.push((change.from(), change.to()));
        self.commits += 1;
        if change.to().is_terminal() {
            assert_eq!(self.completed_at, None, "a job ends once");
            self.completed_at = Some(self.now);
        }
    }

    fn move_step(&mut self, at: usize, change: Change<StepState>) {
        let row = &mut self.attempts[at].row;
        assert_eq!(change.from(), row.state, "decided on the row as it is");
        row.state = change.to();
        row.version += 1;
        self.trace.push((self.now / 1000, row.attempt_no, row.state));
        self.commits += 1;
    }

    fn write_ledger(&mut self, at: usize, ledger: ActivityLedger) {
        let stored = &mut self.attempts[at].row.ledger;
        assert!(ledger >= *stored, "a ledger only grows");
        *stored = ledger;
        self.commits += 1;
    }

    fn write_entered(&mut self, at: usize, entered: Entered) {
        assert_eq!(self.attempts[at].row.ending, None, "one message ends an attempt");
        self.write_ledger(at, entered.ledger);
        self.attempts[at].row.ending = Some(entered.ending);
        self.attempts[at].is_ending_open = true;
    }

    // Playing.

    /// Plays engine, publisher, timers and `worker` second by second up to `until`, inclusive.
    pub(crate) fn play(&mut self, until: u64, mut worker: impl FnMut(&mut Self)) {
        loop {
            let mut rounds = 0;
            while self.play_once(&mut worker) {
                rounds += 1;
                assert!(rounds < 100, "a second has an end");
            }
            if self.now / 1000 >= until {
                return;
            }
            self.now += 1000;
        }
    }

    fn play_once(&mut self, worker: &mut impl FnMut(&mut Self)) -> bool {
        let before = self.commits;
        let Attempt { row, due, not_before, .. } = *self.attempt();
        if self.attempts.iter().any(|attempt| attempt.is_ending_open) {
            self.finish(Dies::Never).expect("the message is handled");
        } else if self.job.state.is_terminal() {
            return false;
        } else if due.is_some_and(|due| due <= self.now) {
            self.activate().expect("the activation is handled");
        } else if row.outbox == Some(OutboxState::Pending) && not_before <= self.now {
            self.publish().expect("the row is pending");
        } else {
            worker(self);
            self.fire_timers();
        }
        self.commits > before
    }
}

/// A worker that never answers.
pub(crate) fn silent(_: &mut World) {}

/// A worker that acknowledges at once and then falls silent.
pub(crate) fn acks_only(world: &mut World) {
    if world.row().state == StepState::AwaitingAck {
        world.ack(world.fence()).expect("the fence is current");
    }
}

/// A worker that acknowledges at once and reports this in the same second.
pub(crate) fn reports(report: Report) -> impl FnMut(&mut World) {
    move |world: &mut World| {
        acks_only(world);
        if world.row().state == StepState::InProgress && world.row().ending.is_none() {
            world.result(world.fence(), report, "result").expect("the attempt runs");
        }
    }
}
