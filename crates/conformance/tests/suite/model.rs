//! The model: rows in memory that only decisions of the kernel move. What a store says it has done is done
//! here too, without any plan or statement, and the rows must come out the same.
//!
//! Versions of attempts and times are the store's own business and are taken over from it.

use std::collections::BTreeMap;

use sprag_engine::ids::{AttemptKey, JobId};
use sprag_engine::store::{DispatchWrite, HandOff, NewJob, Store};
use sprag_kernel::decide::callback::{self, Ack};
use sprag_kernel::decide::cancel::{self, Begin, Cancel};
use sprag_kernel::decide::leg1::{self, Entry, Leg1, Publish};
use sprag_kernel::decide::leg2::{self, Entered, Follows};
use sprag_kernel::decide::rows::{
    AttemptRow, Ending, EndingKind, Fence, JobRow, LeaseId, NewLease, Terms,
};
use sprag_kernel::decide::submit::create;
use sprag_kernel::keys::Hash;
use sprag_kernel::retry::RetryPolicy;
use sprag_kernel::{Code, OutboxState, Refusal, StepState};

/// A job with its attempts, by step and number.
#[derive(Clone, Debug)]
pub struct Rows {
    pub job: JobRow,
    pub attempts: BTreeMap<(u32, u32), AttemptRow>,
}

/// All jobs.
#[derive(Default)]
pub struct Model {
    pub jobs: BTreeMap<JobId, Rows>,
    policy: RetryPolicy,
}

fn place(key: &AttemptKey) -> (u32, u32) {
    (key.step_index, key.attempt_no)
}

impl Rows {
    /// The newest attempt of the current step.
    fn newest(&self) -> AttemptRow {
        let step = self.job.current_step;
        *self.attempts.range((step, 0)..=(step, u32::MAX)).next_back().unwrap().1
    }

    fn put(&mut self, attempt: AttemptRow) {
        self.attempts.insert((attempt.step_index, attempt.attempt_no), attempt);
    }

    fn enter(&mut self, mut attempt: AttemptRow, entered: Entered) {
        attempt.ledger = entered.ledger;
        attempt.ending = Some(entered.ending);
        self.put(attempt);
    }
}

impl Model {
    fn terms(&self) -> Terms<'_> {
        Terms { now: 0, policy: &self.policy }
    }

    pub fn created(&mut self, job: &NewJob, entered: bool) {
        let (row, attempts) = create(u32::try_from(job.steps.len()).unwrap());
        let mut rows = Rows { job: row, attempts: BTreeMap::new() };
        for attempt in attempts {
            rows.put(attempt);
        }
        if entered {
            enter_leg1(rows.attempts.get_mut(&(0, 1)).unwrap());
        }
        self.jobs.insert(job.facts.job_id, rows);
    }

    pub fn claimed(&mut self, key: &AttemptKey) {
        enter_leg1(self.attempt(key));
    }

    /// A message that passes to an heir is delivered again.
    pub fn taken_over(&mut self, key: &AttemptKey) {
        let attempt = self.attempt(key);
        if attempt.ending.is_some() {
            attempt.ledger = leg2::enter_again(attempt);
        }
    }

    /// Jobs with a directive that waits to be published.
    pub fn unpublished(&self) -> impl Iterator<Item = JobId> {
        let waits =
            |row: &AttemptRow| row.outbox == Some(OutboxState::Pending) && row.ending.is_none();
        let jobs = self.jobs.iter();
        jobs.filter(move |(_, rows)| rows.attempts.values().any(waits)).map(|(job_id, _)| *job_id)
    }

    fn attempt(&mut self, key: &AttemptKey) -> &mut AttemptRow {
        self.jobs.get_mut(&key.job_id).unwrap().attempts.get_mut(&place(key)).unwrap()
    }

    pub fn dispatched(&mut self, write: &DispatchWrite) {
        let mut rows = self.jobs[&write.key.job_id].clone();
        let attempt = rows.attempts[&place(&write.key)];
        let lease = NewLease { id: write.lease_id, expires_at: 0 };
        let Leg1::Dispatch(decided) = leg1::dispatch(&rows.job, &attempt, lease).unwrap() else {
            panic!("a store that dispatches has not found a cancel")
        };
        rows.job.state = decided.job.map_or(rows.job.state, |change| change.to());
        rows.job.attempts_total += 1;
        rows.job.version += 1;
        rows.put(AttemptRow {
            state: decided.step.to(),
            ledger: decided.ledger,
            lease_id: Some(write.lease_id),
            outbox: Some(decided.outbox),
            ..attempt
        });
        self.jobs.insert(write.key.job_id, rows);
        match write.hand_off {
            HandOff::Outbox => {}
            HandOff::InProcess => {
                let version = self.attempt(&write.key).version;
                self.publish(write.key.job_id, version).unwrap();
                let fence = Fence { attempt_no: write.key.attempt_no, lease_id: write.lease_id };
                self.ack(write.key.job_id, fence).unwrap();
                // One commit, one version of the job.
                self.jobs.get_mut(&write.key.job_id).unwrap().job.version -= 2;
            }
            HandOff::Pulled | HandOff::PulledUnacked => panic!("nobody pulls here"),
        }
    }

    pub fn publish(&mut self, job_id: JobId, version: u64) -> Result<(), Refusal> {
        let mut attempt = self.jobs[&job_id].newest();
        let sent = leg1::published(&attempt, version, self.terms())?;
        let Publish::Sent { outbox, step, .. } = sent else { unreachable!("published is sent") };
        attempt.outbox = Some(outbox.to());
        attempt.state = step.to();
        let rows = self.jobs.get_mut(&job_id).unwrap();
        rows.put(attempt);
        rows.job.version += 1;
        Ok(())
    }

    pub fn ack(&mut self, job_id: JobId, fence: Fence) -> Result<(), Refusal> {
        let rows = &self.jobs[&job_id];
        let mut attempt = rows.newest();
        let ack = callback::ack(&rows.job, &attempt, fence, self.terms())?;
        let Ack::Accepted { job, step, .. } = ack else { return Ok(()) };
        attempt.acked = true;
        attempt.state = step.to();
        let rows = self.jobs.get_mut(&job_id).unwrap();
        rows.put(attempt);
        rows.job.state = job.map_or(rows.job.state, |change| change.to());
        rows.job.version += 1;
        Ok(())
    }

    pub fn ended(&mut self, key: &AttemptKey, kind: EndingKind, content: Option<Hash>) {
        let attempt = *self.attempt(key);
        let entered = leg2::enter(&attempt, kind, content).unwrap();
        self.jobs.get_mut(&key.job_id).unwrap().enter(attempt, entered);
    }

    pub fn finished(&mut self, key: &AttemptKey, entered_next: bool) {
        let mut rows = self.jobs[&key.job_id].clone();
        let mut attempt = rows.attempts[&place(key)];
        let finish = leg2::finish(&rows.job, &attempt, self.terms()).unwrap();
        let spawn = finish.spawn.expect("a message is finished once");
        let successor = AttemptRow { version: 1, ..attempt.successor() };
        attempt.state = finish.step.map_or(attempt.state, |change| change.to());
        attempt.ledger = finish.ledger;
        attempt.ending = attempt.ending.map(|ending| Ending { guid: finish.guid, ..ending });
        rows.put(attempt);
        rows.job.version += 1;
        rows.job.semaphore = spawn.settled.after;
        rows.job.state = spawn.job.map_or(rows.job.state, |change| change.to());
        match spawn.follows {
            Follows::NextStep(step) => {
                rows.job.current_step = step;
                if entered_next {
                    enter_leg1(rows.attempts.get_mut(&(step, 1)).unwrap());
                }
            }
            Follows::NextAttempt { .. } => rows.put(successor),
            Follows::Duty { .. } => unreachable!("these jobs are sequences"),
            Follows::Nothing => {}
        }
        if spawn.cancels_waiting {
            for row in rows.attempts.values_mut().filter(|row| row.ending.is_none()) {
                row.state = cancel::cancel_waiting(row.state).map_or(row.state, |to| to.to());
            }
        }
        self.jobs.insert(key.job_id, rows);
    }

    pub fn cancel(&mut self, job_id: JobId, version: Option<u64>) -> Result<(), Refusal> {
        let rows = self.jobs.get_mut(&job_id).unwrap();
        let mut attempt = rows.newest();
        let Cancel::Begin { job, attempt: begin } = cancel::cancel(&rows.job, &attempt, version)?
        else {
            return Ok(());
        };
        rows.job.state = job.to();
        rows.job.version += 1;
        match begin {
            Begin::MakeDue | Begin::Wait => {}
            Begin::CloseUnpublished { outbox, entered } => {
                attempt.outbox = Some(outbox.to());
                rows.enter(attempt, entered);
            }
        }
        Ok(())
    }

    /// Leg1 finds that the job is being cancelled; if it is not, nothing happens.
    pub fn refuse_leg1(&mut self, job_id: JobId) -> Result<(), Refusal> {
        let rows = self.jobs.get_mut(&job_id).unwrap();
        let attempt = rows.newest();
        let lease = NewLease { id: LeaseId(0), expires_at: 0 };
        if let Leg1::Cancelled(entered) = leg1::dispatch(&rows.job, &attempt, lease)? {
            rows.enter(attempt, entered);
            rows.job.version += 1;
        }
        Ok(())
    }

    /// Leg1 can never succeed.
    pub fn fail_leg1(&mut self, job_id: JobId, lease_id: LeaseId) -> Result<(), Refusal> {
        let rows = self.jobs.get_mut(&job_id).unwrap();
        let mut attempt = rows.newest();
        let lease = NewLease { id: lease_id, expires_at: 0 };
        match leg1::fail(&rows.job, &attempt, lease, Code::MessagePoison)? {
            Leg1::Cancelled(entered) => rows.enter(attempt, entered),
            Leg1::Failed(failed) => {
                rows.job.state = failed.dispatch.job.map_or(rows.job.state, |change| change.to());
                rows.job.attempts_total += 1;
                attempt.state = failed.dispatch.step.to();
                attempt.lease_id = Some(lease_id);
                attempt.outbox = Some(failed.outbox.to());
                rows.enter(attempt, failed.entered);
            }
            Leg1::Dispatch(_) => panic!("a failure is no directive"),
        }
        rows.job.version += 1;
        Ok(())
    }

    /// A message that cannot be finished becomes one that ends its step for good.
    pub fn poison(&mut self, key: &AttemptKey) {
        let rows = self.jobs.get_mut(&key.job_id).unwrap();
        let mut attempt = rows.newest();
        let Some(ending) = attempt.ending else { return };
        let is_open = !ending.guid.work_done() && attempt.state == StepState::InProgress;
        if is_open && attempt.attempt_no == key.attempt_no {
            attempt.ending = Some(Ending { kind: EndingKind::NonRetryable, ..ending });
            rows.put(attempt);
            rows.job.version += 1;
        }
    }

    /// The rows of a job in the store are those of the model.
    pub async fn expect<S: Store>(&mut self, store: &S, job_id: JobId, after: &str) {
        let job = store.job(job_id).await.unwrap().unwrap().row;
        let rows = self.jobs.get_mut(&job_id).unwrap();
        assert_eq!(job, rows.job, "the job after {after}");
        let attempts = store.attempts(job_id).await.unwrap();
        assert_eq!(attempts.len(), rows.attempts.len(), "attempts after {after}");
        for found in attempts {
            let row = rows.attempts.get_mut(&place(&found.key)).unwrap();
            row.version = found.row.version;
            row.deadline = found.row.deadline;
            assert_eq!(found.row, *row, "{:?} after {after}", found.key);
        }
    }
}

fn enter_leg1(attempt: &mut AttemptRow) {
    match leg1::enter(attempt).unwrap() {
        Entry::Work(ledger) | Entry::Replay(ledger) => attempt.ledger = ledger,
    }
}
