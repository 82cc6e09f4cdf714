//! The model: rows in memory that only decisions of the kernel move. What a store says it has done is done
//! here too, without any plan or statement, and the rows must come out the same. Of a graph it knows besides which
//! rows are obligations, and how many others each is parked for.
//!
//! Versions of attempts and times are the store's own business and are taken over from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use sprag_engine::graph::{Graph, Kind};
use sprag_engine::ids::{AttemptKey, JobId, Place};
use sprag_engine::store::{
    Begins, DispatchWrite, Duties, FinishWrite, HandOff, NewJob, RenewWrite, Renewal, Store,
};
use sprag_kernel::decide::callback::{self, Ack};
use sprag_kernel::decide::cancel::{self, Begin, Cancel};
use sprag_kernel::decide::leg1::{self, Entry, Leg1, Publish, Skip};
use sprag_kernel::decide::leg2::{self, Duty, Entered, Finish, Follows};
use sprag_kernel::decide::rows::{
    AttemptRow, Ending, EndingKind, Fence, JobRow, LeaseId, NewLease, Terms,
};
use sprag_kernel::decide::submit::{create, create_graph};
use sprag_kernel::keys::Hash;
use sprag_kernel::ledger::Semaphore;
use sprag_kernel::retry::RetryPolicy;
use sprag_kernel::{Code, JobState, OutboxState, Refusal, StepState};

use super::command::{After, Spot};

/// An attempt, with what it is to its graph.
#[derive(Clone, Debug)]
struct Held {
    row: AttemptRow,
    /// For how many others it is parked.
    countdown: u32,
    /// Whether it is an obligation of the job.
    is_open: bool,
}

/// Where an attempt is in its job.
type At = (u32, u64, u32, u32);

/// A job with its attempts.
#[derive(Clone, Debug)]
struct Rows {
    job: JobRow,
    attempts: BTreeMap<At, Held>,
    graph: Option<Arc<Graph>>,
}

/// All jobs.
#[derive(Default)]
pub struct Model {
    jobs: BTreeMap<JobId, Rows>,
    policy: RetryPolicy,
}

/// What a decision came to: the attempt whose message it has entered, or that a cancel is about.
pub type Decided = Result<Option<AttemptKey>, Refusal>;

fn at(key: &AttemptKey) -> At {
    (key.step_index, key.branch, key.turn, key.attempt_no)
}

impl Rows {
    /// The newest attempt at a place, or of the current step, and its key.
    fn newest(&self, (job_id, place): Spot) -> (AttemptKey, AttemptRow) {
        let Place { step_index, branch, turn } =
            place.unwrap_or_else(|| self.job.current_step.into());
        let all = (step_index, branch, turn, 0)..=(step_index, branch, turn, u32::MAX);
        let (key, held) = self.attempts.range(all).next_back().unwrap();
        (AttemptKey { job_id, step_index, branch, turn, attempt_no: key.3 }, held.row)
    }

    fn put(&mut self, key: &AttemptKey, row: AttemptRow) {
        let begun = Held { row, countdown: 0, is_open: true };
        self.attempts.entry(at(key)).or_insert(begun).row = row;
    }

    fn enter(&mut self, key: &AttemptKey, mut attempt: AttemptRow, entered: Entered) {
        attempt.ledger = entered.ledger;
        attempt.ending = Some(entered.ending);
        self.put(key, attempt);
    }

    /// Obligations that nobody has begun.
    fn unbegun(&mut self) -> impl Iterator<Item = &mut Held> {
        let is_unbegun = |held: &&mut Held| {
            held.is_open
                && held.row.ending.is_none()
                && cancel::close_unbegun(held.row.state).is_some()
        };
        self.attempts.values_mut().filter(is_unbegun)
    }

    /// What waits becomes CANCELLED.
    fn cancel_waiting(&mut self) {
        for held in self.attempts.values_mut().filter(|held| held.row.ending.is_none()) {
            let row = &mut held.row;
            row.state = cancel::cancel_waiting(row.state).map_or(row.state, |to| to.to());
        }
    }

    /// What the end of a node opens and counts down.
    fn heed(&mut self, duties: &Duties) {
        let first = |place: &Place| (place.step_index, place.branch, place.turn, 1);
        for place in &duties.activates {
            self.attempts.get_mut(&first(place)).unwrap().is_open = true;
        }
        for place in &duties.counts_down {
            self.attempts.get_mut(&first(place)).unwrap().countdown -= 1;
        }
        for place in &duties.lets_in {
            if let Some(held) = self.attempts.get_mut(&first(place)) {
                held.countdown -= 1;
            }
        }
        for new in &duties.inserts {
            let held = born(new.place.step_index, new.begins);
            assert!(self.attempts.insert(first(&new.place), held).is_none(), "{new:?} is new");
        }
    }
}

fn born(step_index: u32, begins: Begins) -> Held {
    let (countdown, is_open) = (begins.countdown(), begins.is_open());
    Held { row: AttemptRow::first(step_index), countdown, is_open }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap()
}

impl Model {
    fn terms(&self) -> Terms<'_> {
        Terms { now: 0, policy: &self.policy }
    }

    pub fn knows(&self, job_id: JobId) -> bool {
        self.jobs.contains_key(&job_id)
    }

    /// Jobs that are not over.
    pub fn open(&self) -> impl Iterator<Item = JobId> {
        self.jobs.iter().filter(|(_, rows)| rows.job.semaphore.get() > 0).map(|(id, _)| *id)
    }

    /// The job was deleted: it must have been over.
    pub fn retired(&mut self, job_id: JobId) {
        let rows = self.jobs.remove(&job_id).unwrap();
        assert_eq!(rows.job.semaphore.get(), 0, "{job_id} was open and is gone");
    }

    pub fn created(&mut self, job: &NewJob, graph: Option<Arc<Graph>>, entered: bool) {
        let steps = count(job.steps.len());
        let is = |wanted: fn(Begins) -> bool| {
            count(job.steps.iter().filter(|step| wanted(step.begins)).count())
        };
        let row = if job.is_graph {
            let parked = is(|begins| matches!(begins, Begins::Parked(_)));
            create_graph(steps, is(|begins| begins == Begins::Ready), parked)
        } else {
            create(steps).0
        };
        let mut rows = Rows { job: row, attempts: BTreeMap::new(), graph };
        for (step_index, step) in (0..).zip(&job.steps[..]) {
            if step.begins != Begins::Unborn {
                rows.attempts.insert((step_index, 0, 0, 1), born(step_index, step.begins));
            }
        }
        if entered {
            enter_leg1(&mut rows.attempts.get_mut(&(0, 0, 0, 1)).unwrap().row);
        }
        self.jobs.insert(job.facts.job_id, rows);
    }

    pub fn claimed(&mut self, key: &AttemptKey) {
        enter_leg1(self.attempt(key));
    }

    /// A message that passes to an heir is delivered again, if not alone.
    pub fn taken_over(&mut self, key: &AttemptKey) {
        let attempt = self.attempt(key);
        if let Some(ledger) = leg2::enter_with_takeover(attempt) {
            attempt.ledger = ledger;
        }
    }

    fn rows(&mut self, job_id: JobId) -> &mut Rows {
        self.jobs.get_mut(&job_id).unwrap()
    }

    fn attempt(&mut self, key: &AttemptKey) -> &mut AttemptRow {
        &mut self.rows(key.job_id).attempts.get_mut(&at(key)).unwrap().row
    }

    pub fn dispatched(&mut self, write: &DispatchWrite) {
        let key = &write.key;
        let attempt = *self.attempt(key);
        let rows = self.rows(key.job_id);
        let lease = NewLease { id: write.lease_id, expires_at: 0 };
        let Leg1::Dispatch(decided) = leg1::dispatch(&rows.job, &attempt, lease).unwrap() else {
            panic!("a store that dispatches has not found a cancel")
        };
        let is_closer = rows
            .graph
            .as_ref()
            .is_some_and(|graph| matches!(graph.node(key.step_index).kind, Kind::Loop(_)));
        let turns = if is_closer { key.turn } else { 0 };
        rows.job.state = decided.job.map_or(rows.job.state, |change| change.to());
        rows.job.attempts_total += 1;
        let row = AttemptRow {
            state: decided.step.to(),
            ledger: decided.ledger.after_turns(turns).unwrap(),
            lease_id: Some(write.lease_id),
            outbox: Some(decided.outbox),
            ..attempt
        };
        rows.put(key, row);
        let fence = Fence { attempt_no: key.attempt_no, lease_id: write.lease_id };
        match write.hand_off {
            HandOff::Outbox => {}
            HandOff::PulledUnacked => self.publish_at(key, row.version).unwrap(),
            HandOff::InProcess | HandOff::Pulled => {
                self.publish_at(key, row.version).unwrap();
                self.ack_at(key, fence).unwrap();
            }
        }
        // One commit, one version of the job.
        self.rows(key.job_id).job.version += 1;
    }

    fn publish_at(&mut self, key: &AttemptKey, version: u64) -> Result<(), Refusal> {
        let mut attempt = *self.attempt(key);
        let sent = leg1::published(&attempt, version, self.terms())?;
        let Publish::Sent { outbox, step, .. } = sent else { unreachable!("published is sent") };
        attempt.outbox = Some(outbox.to());
        attempt.state = step.to();
        self.rows(key.job_id).put(key, attempt);
        Ok(())
    }

    fn ack_at(&mut self, key: &AttemptKey, fence: Fence) -> Result<bool, Refusal> {
        let mut attempt = *self.attempt(key);
        let ack = callback::ack(&self.jobs[&key.job_id].job, &attempt, fence, self.terms())?;
        let Ack::Accepted { job, step, .. } = ack else { return Ok(false) };
        attempt.acked = true;
        attempt.state = step.to();
        let rows = self.rows(key.job_id);
        rows.put(key, attempt);
        rows.job.state = job.map_or(rows.job.state, |change| change.to());
        Ok(true)
    }

    pub fn publish(&mut self, spot: Spot, version: u64) -> Decided {
        let key = self.jobs[&spot.0].newest(spot).0;
        self.publish_at(&key, version)?;
        self.rows(spot.0).job.version += 1;
        Ok(None)
    }

    pub fn ack(&mut self, spot: Spot, fence: Fence) -> Decided {
        let key = self.jobs[&spot.0].newest(spot).0;
        let accepted = self.ack_at(&key, fence)?;
        self.rows(spot.0).job.version += u64::from(accepted);
        Ok(None)
    }

    /// A worker outside, or a bus, has moved its attempt along.
    pub fn renewed(&mut self, write: &RenewWrite) {
        let (key, lease_id) = (&write.key, write.lease_id);
        match write.renewal {
            Renewal::Sent => self.publish_at(key, write.version).unwrap(),
            Renewal::Acked => {
                let fence = Fence { attempt_no: key.attempt_no, lease_id };
                assert!(self.ack_at(key, fence).unwrap(), "a repeat renews nothing");
            }
            // A lease is a time.
            Renewal::Alive => return,
        }
        self.rows(key.job_id).job.version += 1;
    }

    pub fn ended(&mut self, key: &AttemptKey, kind: EndingKind, content: Option<Hash>) {
        let attempt = *self.attempt(key);
        let entered = leg2::enter(&attempt, kind, content).unwrap();
        self.rows(key.job_id).enter(key, attempt, entered);
    }

    /// The end of a child is the message that ends the attempt of its parent; what that says is the engine's.
    pub async fn told<S: Store>(&mut self, parent: &AttemptKey, store: &S) {
        let attempts = store.attempts(parent.job_id).await.unwrap();
        let Some(found) = attempts.iter().find(|attempt| attempt.key == *parent) else { return };
        let attempt = self.attempt(parent);
        if attempt.ending.is_some() || attempt.lease_id.is_none() {
            return;
        }
        let ending = found.row.ending.expect("the parent is told");
        self.ended(parent, ending.kind, ending.content);
        self.rows(parent.job_id).job.version += 1;
    }

    pub fn finished(&mut self, write: &FinishWrite, entered_next: bool) {
        let key = &write.key;
        let mut rows = self.jobs[&key.job_id].clone();
        let attempt = rows.attempts[&at(key)].row;
        let duties = write.graph.as_ref().map(|graph| &graph.duties);
        let finish = match duties {
            None => leg2::finish(&rows.job, &attempt, self.terms()).unwrap(),
            Some(duties) => finish_in_graph(&mut rows, &attempt, duties),
        };
        let spawn = finish.spawn.expect("a message is finished once");
        let ending = attempt.ending.map(|ending| Ending { guid: finish.guid, ..ending });
        let state = finish.step.map_or(attempt.state, |change| change.to());
        let over = AttemptRow { state, ledger: finish.ledger, ending, ..attempt };
        rows.attempts.insert(at(key), Held { row: over, countdown: 0, is_open: false });
        rows.job.version += 1;
        rows.job.semaphore = spawn.settled.after;
        rows.job.state = spawn.job.map_or(rows.job.state, |change| change.to());
        rows.job.verdict = rows.job.verdict.or(spawn.pins);
        match spawn.follows {
            Follows::NextStep(step) => {
                rows.job.current_step = step;
                if entered_next {
                    enter_leg1(&mut rows.attempts.get_mut(&(step, 0, 0, 1)).unwrap().row);
                }
            }
            Follows::NextAttempt { attempt_no, .. } => {
                let successor = AttemptRow { version: 1, ..attempt.successor() };
                rows.put(&AttemptKey { attempt_no, ..*key }, successor);
            }
            Follows::Duty { .. } => rows.heed(duties.expect("only a graph has duties")),
            Follows::Nothing => {}
        }
        if spawn.cancels_waiting {
            rows.cancel_waiting();
        }
        self.jobs.insert(key.job_id, rows);
    }

    /// `about` is the obligation that the store has looked at: in a graph it may be any.
    pub fn cancel(
        &mut self,
        job_id: JobId,
        version: Option<u64>,
        about: Option<AttemptKey>,
    ) -> Decided {
        let rows = self.jobs.get_mut(&job_id).unwrap();
        let (key, mut attempt) = match about.filter(|_| rows.job.is_graph) {
            Some(key) => (key, rows.attempts[&at(&key)].row),
            // A refusal does not depend on it.
            None if rows.job.is_graph => (AttemptKey::first(job_id, 0), AttemptRow::first(0)),
            None => rows.newest((job_id, None)),
        };
        let Cancel::Begin { job, attempt: begin } = cancel::cancel(&rows.job, &attempt, version)?
        else {
            return Ok(Some(key));
        };
        rows.job.state = job.to();
        rows.job.version += 1;
        if rows.job.is_graph {
            rows.job.verdict = Some(JobState::Cancelled);
        }
        match begin {
            Begin::Wait => {}
            // Whoever claims it will end it; it waits for nobody any more.
            Begin::MakeDue => rows.attempts.get_mut(&at(&key)).unwrap().countdown = 0,
            Begin::CloseUnpublished { outbox, entered } => {
                attempt.outbox = Some(outbox.to());
                rows.enter(&key, attempt, entered);
            }
        }
        Ok(Some(key))
    }

    /// Leg1 finds that the job is being cancelled; if it is not, nothing happens.
    pub fn refuse_leg1(&mut self, spot: Spot) -> Decided {
        let rows = self.rows(spot.0);
        let (key, attempt) = rows.newest(spot);
        let lease = NewLease { id: LeaseId(0), expires_at: 0 };
        let Leg1::Cancelled(entered) = leg1::dispatch(&rows.job, &attempt, lease)? else {
            return Ok(None);
        };
        rows.enter(&key, attempt, entered);
        rows.job.version += 1;
        Ok(Some(key))
    }

    /// Leg1 finds that the step is not to run.
    pub fn skip_leg1(&mut self, spot: Spot) -> Decided {
        let rows = self.rows(spot.0);
        let (key, attempt) = rows.newest(spot);
        let entered = match leg1::skip(&rows.job, &attempt)? {
            Skip::Cancelled(entered) => entered,
            Skip::Skipped { job, entered } => {
                let last = job.into_iter().flatten().last();
                rows.job.state = last.map_or(rows.job.state, |change| change.to());
                entered
            }
        };
        rows.enter(&key, attempt, entered);
        rows.job.version += 1;
        Ok(Some(key))
    }

    /// Leg1 can never succeed.
    pub fn fail_leg1(&mut self, spot: Spot, lease_id: LeaseId) -> Decided {
        let rows = self.rows(spot.0);
        let (key, mut attempt) = rows.newest(spot);
        let lease = NewLease { id: lease_id, expires_at: 0 };
        match leg1::fail(&rows.job, &attempt, lease, Code::MessagePoison)? {
            Leg1::Cancelled(entered) => rows.enter(&key, attempt, entered),
            Leg1::Failed(failed) => {
                rows.job.state = failed.dispatch.job.map_or(rows.job.state, |change| change.to());
                rows.job.attempts_total += 1;
                attempt.state = failed.dispatch.step.to();
                attempt.lease_id = Some(lease_id);
                attempt.outbox = Some(failed.outbox.to());
                rows.enter(&key, attempt, failed.entered);
            }
            Leg1::Dispatch(_) => panic!("a failure is no directive"),
        }
        rows.job.version += 1;
        Ok(Some(key))
    }

    /// A bus does not take the directive.
    pub fn publish_failed(&mut self, spot: Spot, version: u64) -> Decided {
        let (key, mut attempt) = self.jobs[&spot.0].newest(spot);
        if attempt.version != version || attempt.outbox != Some(OutboxState::Pending) {
            return Ok(None);
        }
        if self.jobs[&spot.0].job.is_ending() {
            return self.close_unpublished(spot, version);
        }
        let failed = leg1::publish_failed(&attempt, version, self.terms())?;
        let rows = self.rows(spot.0);
        rows.job.version += 1;
        match failed {
            Publish::Again { publish_attempts, .. } => {
                attempt.publish_attempts = publish_attempts;
                rows.put(&key, attempt);
                Ok(None)
            }
            Publish::Failed { outbox, entered } => {
                attempt.outbox = Some(outbox.to());
                rows.enter(&key, attempt, entered);
                Ok(Some(key))
            }
            Publish::Sent { .. } | Publish::Superseded(_) => unreachable!("it was refused"),
        }
    }

    /// A directive that is not out while its job is ending.
    pub fn close_unpublished(&mut self, spot: Spot, version: u64) -> Decided {
        let rows = self.rows(spot.0);
        let (key, mut attempt) = rows.newest(spot);
        if attempt.version != version {
            return Ok(None);
        }
        let Some((outbox, entered)) = cancel::close_unpublished(&rows.job, &attempt)? else {
            return Ok(None);
        };
        attempt.outbox = Some(outbox.to());
        rows.enter(&key, attempt, entered);
        rows.job.version += 1;
        Ok(Some(key))
    }

    /// A message that cannot be finished becomes one that ends its step for good.
    pub fn poison(&mut self, key: &AttemptKey) -> Option<AttemptKey> {
        let rows = self.rows(key.job_id);
        let (newest, mut attempt) = rows.newest((key.job_id, Some(key.place())));
        let ending = attempt.ending?;
        let is_open = !ending.guid.work_done() && attempt.state == StepState::InProgress;
        if !is_open || newest != *key {
            return None;
        }
        attempt.ending = Some(Ending { kind: EndingKind::NonRetryable, ..ending });
        rows.put(key, attempt);
        rows.job.version += 1;
        Some(*key)
    }

    pub fn signalled(&mut self, job_id: JobId) {
        self.rows(job_id).job.version += 1;
    }

    /// The rows of a job in the store are those of the model.
    pub async fn expect<S: Store>(&mut self, store: &S, job_id: JobId, after: &After<'_>) {
        let job = store.job(job_id).await.unwrap().unwrap().row;
        let rows = self.jobs.get_mut(&job_id).unwrap();
        assert_eq!(job, rows.job, "the job after {after}");
        let attempts = store.attempts(job_id).await.unwrap();
        assert_eq!(attempts.len(), rows.attempts.len(), "attempts after {after}");
        for found in attempts {
            let held = rows.attempts.get_mut(&at(&found.key)).unwrap();
            held.row.version = found.row.version;
            held.row.deadline = found.row.deadline;
            let (here, there) = ((&held.row, held.countdown), (&found.row, found.countdown));
            assert_eq!(there, here, "{:?} after {after}", found.key);
        }
    }
}

/// Steps 1 to 3 of a node. If the job is ending, what nobody has begun is closed first, each an obligation less.
fn finish_in_graph(rows: &mut Rows, attempt: &AttemptRow, duties: &Duties) -> Finish {
    let graph = rows.graph.clone().expect("a node is part of a graph");
    let is_tolerated = graph.scope_of(attempt.step_index).tolerates;
    let duty = Duty { children: duties.children(), is_tolerated };
    let terms = Terms { now: 0, policy: &graph.node(attempt.step_index).policy };
    let finish = leg2::finish_in_graph(&rows.job, attempt, terms, duty).unwrap();
    if !finish.spawn.is_some_and(|spawn| spawn.closes_parked) {
        return finish;
    }
    let mut closed = 0;
    for held in rows.unbegun() {
        let (step, outbox) = cancel::close_unbegun(held.row.state).unwrap();
        held.row.state = step.to();
        held.row.outbox = outbox.map_or(held.row.outbox, |outbox| Some(outbox.to()));
        (held.is_open, held.countdown) = (false, 0);
        closed += 1;
    }
    let semaphore = Semaphore::new(rows.job.semaphore.get() - closed);
    let job = JobRow { semaphore, ..rows.job };
    leg2::finish_in_graph(&job, attempt, terms, duty).unwrap()
}

fn enter_leg1(attempt: &mut AttemptRow) {
    match leg1::enter(attempt).unwrap() {
        Entry::Work(ledger) | Entry::Replay(ledger) => attempt.ledger = ledger,
    }
}
