//! The heart: one task that moves attempts along, phase by phase, in groups.
//!
//! Each phase has a queue and at most one call under way: submit, claim, dispatch, end, finish. While a
//! call is under way the next group gathers, so a lone job commits at once and a loaded engine commits
//! groups. An attempt is in one place at a time: in a queue, in a call, or with its handler. Nothing
//! leaves for a handler before its dispatch is committed.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use sprag_kernel::Refusal;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::{EndingKind, JobRow, LeaseId};
use sprag_kernel::decide::submit::create;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval};

use crate::directive::{Directive, Failure};
use crate::engine::{EngineConfig, Pinned};
use crate::ids::{AttemptKey, EngineNo};
use crate::plan;
use crate::store::{
    Answer, AttemptError, DispatchOutcome, Due, EndOutcome, EndWrite, FinishOutcome, Held, NewJob,
    Store, StoreError, Submitted, Wish,
};
use crate::worker::{Context, Handler};

/// The most that one call carries.
const SLICE: usize = 500;

/// What is asked of the heart.
pub(crate) enum Op {
    Submit { job: NewJob, reply: Reply },
    Returned { key: AttemptKey, result: Result<Value, Failure> },
    Shutdown { deadline: Duration },
}

type Reply = oneshot::Sender<Result<Submitted, Refusal>>;

/// A service that this engine serves.
pub(crate) struct Service {
    handler: Handler,
    free: usize,
}

impl Service {
    pub(crate) fn new(handler: Handler, slots: usize) -> Self {
        Self { handler, free: slots }
    }
}

/// A handler that runs.
struct Running {
    held: Held,
    stop: watch::Sender<bool>,
}

/// A call that has ended, with what it was about.
enum Done {
    Submitted(Vec<(NewJob, Reply)>, Answer<Vec<Result<Submitted, Refusal>>>),
    Claimed(Vec<Wish>, Answer<Vec<Held>>),
    Dispatched(Vec<Held>, Answer<Vec<DispatchOutcome>>),
    Ended(Vec<(Held, EndWrite)>, Answer<Vec<EndOutcome>>),
    Finished(Vec<Finishing>, Answer<Vec<FinishOutcome>>),
    Beaten(Answer<()>),
    Silent(Answer<Vec<EngineNo>>),
    TakenOver(Answer<Vec<Held>>),
    Looked(Answer<Due>),
}

/// A message on its way through Steps 1 to 3.
struct Finishing {
    held: Held,
    output: Option<String>,
    enter_next: bool,
}

/// Which calls are under way.
#[derive(Default)]
#[allow(clippy::struct_excessive_bools)] // one flag per phase, none excludes another
struct Busy {
    submit: bool,
    claim: bool,
    dispatch: bool,
    end: bool,
    finish: bool,
}

pub(crate) struct Heart<S: Store> {
    store: Arc<S>,
    engine: EngineNo,
    config: EngineConfig,
    services: HashMap<String, Service>,
    protocols: HashMap<String, Arc<Pinned>>,
    ops: mpsc::UnboundedSender<Op>,
    queue: mpsc::UnboundedReceiver<Op>,
    calls: JoinSet<Done>,
    busy: Busy,
    submits: Vec<(NewJob, Reply)>,
    dispatches: Vec<Held>,
    ends: Vec<(Held, EndWrite)>,
    finishes: Vec<(Held, Option<String>)>,
    running: HashMap<AttemptKey, Running>,
    /// Whether the store may have activations that this engine could claim.
    may_claim: bool,
    stopping: Option<Instant>,
    next_lease: u64,
}

impl<S: Store> Heart<S> {
    pub(crate) fn new(
        (store, engine): (Arc<S>, EngineNo),
        (config, services): (EngineConfig, HashMap<String, Service>),
        protocols: Vec<Arc<Pinned>>,
        (ops, queue): (mpsc::UnboundedSender<Op>, mpsc::UnboundedReceiver<Op>),
    ) -> Self {
        let protocols =
            protocols.into_iter().map(|p| (p.protocol.protocol_id.clone(), p)).collect();
        Self {
            store,
            engine,
            config,
            services,
            protocols,
            ops,
            queue,
            calls: JoinSet::new(),
            busy: Busy::default(),
            submits: Vec::new(),
            dispatches: Vec::new(),
            ends: Vec::new(),
            finishes: Vec::new(),
            running: HashMap::new(),
            may_claim: true,
            stopping: None,
            next_lease: uuid_seed(),
        }
    }

    /// Beats until it is told to stop and everything it holds has come to rest.
    pub(crate) async fn run(mut self) -> Result<(), StoreError> {
        let mut beat = interval(self.config.beat);
        let mut poll = interval(self.config.poll);
        beat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut ops = Vec::with_capacity(SLICE);
        loop {
            self.pump();
            if self.is_at_rest() {
                return Ok(());
            }
            tokio::select! {
                biased;
                Some(done) = self.calls.join_next() => {
                    self.take(done.map_err(|e| StoreError::Unavailable(e.to_string()))?)?;
                }
                count = self.queue.recv_many(&mut ops, SLICE) => {
                    assert!(count > 0, "the heart holds a sender itself");
                    ops.drain(..).for_each(|op| self.hear(op));
                }
                _ = beat.tick() => self.beat(),
                _ = poll.tick() => self.look(),
            }
        }
    }

    fn is_at_rest(&self) -> bool {
        let Some(deadline) = self.stopping else { return false };
        let idle = self.running.is_empty()
            && self.ends.is_empty()
            && self.finishes.is_empty()
            && self.calls.is_empty();
        idle || Instant::now() >= deadline
    }

    fn hear(&mut self, op: Op) {
        match op {
            Op::Submit { job, reply } => self.submits.push((job, reply)),
            Op::Returned { key, result } => self.returned(&key, result),
            Op::Shutdown { deadline } => {
                self.stopping = Some(Instant::now() + deadline);
                for running in self.running.values() {
                    let _ = running.stop.send(true);
                }
            }
        }
    }

    /// Starts every call that has something to carry.
    fn pump(&mut self) {
        if !self.busy.end && !self.ends.is_empty() {
            self.end();
        }
        if !self.busy.finish && !self.finishes.is_empty() {
            self.finish();
        }
        if self.stopping.is_some() {
            return;
        }
        if !self.busy.dispatch && !self.dispatches.is_empty() {
            self.dispatch();
        }
        if !self.busy.submit && !self.submits.is_empty() {
            self.submit();
        }
        if !self.busy.claim && self.may_claim {
            self.claim();
        }
    }

    fn take(&mut self, done: Done) -> Result<(), StoreError> {
        match done {
            Done::Submitted(jobs, answer) => self.submitted(jobs, answer),
            Done::Claimed(wishes, answer) => self.claimed(&wishes, answer),
            Done::Dispatched(held, answer) => self.dispatched(held, answer),
            Done::Ended(ends, answer) => self.ended(ends, answer),
            Done::Finished(finishes, answer) => self.finished(finishes, answer),
            Done::Beaten(answer) => answer,
            Done::Silent(answer) => {
                answer?.into_iter().for_each(|dead| self.take_over(dead));
                Ok(())
            }
            Done::TakenOver(answer) => {
                answer?.into_iter().for_each(|held| self.adopt(held));
                self.may_claim = true;
                Ok(())
            }
            Done::Looked(answer) => {
                let due = answer?;
                self.may_claim |= due.promoted > 0;
                Ok(())
            }
        }
    }

    // Submit.

    fn submit(&mut self) {
        self.busy.submit = true;
        let mut jobs: Vec<_> = self.submits.drain(..self.submits.len().min(SLICE)).collect();
        for (job, _) in &mut jobs {
            job.enter = self.reserve(&job.steps[0].service);
        }
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let slice = jobs.iter().map(|(job, _)| job.clone()).collect();
            let answer = store.submit(engine, slice).await;
            Done::Submitted(jobs, answer)
        });
    }

    fn submitted(
        &mut self,
        jobs: Vec<(NewJob, Reply)>,
        answer: Answer<Vec<Result<Submitted, Refusal>>>,
    ) -> Result<(), StoreError> {
        self.busy.submit = false;
        for ((job, reply), submitted) in jobs.into_iter().zip(answer?) {
            let created = submitted.as_ref().is_ok_and(|submitted| submitted.created);
            match (created, job.enter) {
                (true, true) => self.dispatches.push(born(&job)),
                (false, true) => self.release(&job.steps[0].service),
                (true, false) => self.may_claim = true,
                (false, false) => {}
            }
            // Whoever asked may have gone away; the job stays.
            let _ = reply.send(submitted);
        }
        Ok(())
    }

    // Claim.

    fn claim(&mut self) {
        self.may_claim = false;
        let mut wishes = Vec::new();
        for (name, service) in &mut self.services {
            let max = service.free.min(SLICE);
            if max > 0 {
                service.free -= max;
                wishes.push(Wish { service: name.clone(), max: u32::try_from(max).unwrap_or(0) });
            }
        }
        if wishes.is_empty() {
            return;
        }
        self.busy.claim = true;
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.claim(engine, wishes.clone()).await;
            Done::Claimed(wishes, answer)
        });
    }

    fn claimed(&mut self, wishes: &[Wish], answer: Answer<Vec<Held>>) -> Result<(), StoreError> {
        self.busy.claim = false;
        for wish in wishes {
            let service = self.services.get_mut(&wish.service).expect("only served ones are asked");
            service.free += wish.max as usize;
        }
        let held = answer?;
        let asked: usize = wishes.iter().map(|wish| wish.max as usize).sum();
        self.may_claim |= held.len() == asked;
        for held in held {
            let service = self.service_of(&held);
            let reserved = self.reserve(&service);
            debug_assert!(reserved, "no more is claimed than was free");
            self.dispatches.push(held);
        }
        Ok(())
    }

    // Leg1's work.

    fn dispatch(&mut self) {
        let count = self.dispatches.len().min(SLICE);
        let mut group: Vec<Held> = self.dispatches.drain(..count).collect();
        let mut writes = Vec::with_capacity(count);
        group.retain_mut(|held| {
            self.next_lease += 1;
            let pinned = &self.protocols[&held.facts.protocol_id];
            let policy = &pinned.policies[held.key.step_index as usize];
            match plan::dispatch(held, LeaseId(self.next_lease), policy) {
                Ok(write) => {
                    writes.push(write);
                    true
                }
                Err(_) => false,
            }
        });
        self.busy.dispatch = true;
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.dispatch(engine, writes).await;
            Done::Dispatched(group, answer)
        });
    }

    fn dispatched(
        &mut self,
        group: Vec<Held>,
        answer: Answer<Vec<DispatchOutcome>>,
    ) -> Result<(), StoreError> {
        self.busy.dispatch = false;
        for (mut held, outcome) in group.into_iter().zip(answer?) {
            match outcome {
                DispatchOutcome::Done { version } => {
                    held.attempt.version = version;
                    self.start(held);
                }
                DispatchOutcome::Cancelling | DispatchOutcome::Gone => {
                    let service = self.service_of(&held);
                    self.release(&service);
                }
            }
        }
        Ok(())
    }

    // The handler.

    fn start(&mut self, held: Held) {
        let pinned = &self.protocols[&held.facts.protocol_id];
        let lease_id = held.attempt.lease_id.expect("dispatched with a lease");
        let directive = Directive::of(&held, lease_id, &pinned.protocol);
        let service = &pinned.steps[held.key.step_index as usize].service;
        let handler = self.services[service].handler.clone();
        let (stop, signal) = watch::channel(self.stopping.is_some());
        let (key, ops) = (held.key, self.ops.clone());
        self.running.insert(key, Running { held, stop });
        tokio::spawn(async move {
            let result = handler.run(directive, Context::new(signal)).await;
            // The heart may have stopped at its deadline; another engine takes the attempt up.
            let _ = ops.send(Op::Returned { key, result });
        });
    }

    fn returned(&mut self, key: &AttemptKey, result: Result<Value, Failure>) {
        let Some(Running { held, .. }) = self.running.remove(key) else { return };
        let (report, output, error) = match result {
            Ok(output) => (Report::Succeeded, Some(output.to_string()), None),
            Err(failure) => {
                let report =
                    if failure.retryable { Report::Retryable } else { Report::NonRetryable };
                let error = AttemptError { code: failure.code, message: failure.message };
                (report, None, Some(error))
            }
        };
        let write = plan::result(&held, report, output, error)
            .expect("the attempt runs under this engine's own fence");
        self.ends.extend(write.map(|write| (held, write)));
    }

    // Leg2.

    fn end(&mut self) {
        self.busy.end = true;
        let count = self.ends.len().min(SLICE);
        let group: Vec<_> = self.ends.drain(..count).collect();
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let writes = group.iter().map(|(_, write)| write.clone()).collect();
            let answer = store.end(engine, writes).await;
            Done::Ended(group, answer)
        });
    }

    fn ended(
        &mut self,
        group: Vec<(Held, EndWrite)>,
        answer: Answer<Vec<EndOutcome>>,
    ) -> Result<(), StoreError> {
        self.busy.end = false;
        for ((mut held, write), outcome) in group.into_iter().zip(answer?) {
            let service = self.service_of(&held);
            self.release(&service);
            if let EndOutcome::Entered { version } = outcome {
                held.attempt.version = version;
                held.attempt.ledger = write.ledger;
                held.attempt.ending = Some(write.ending);
                self.finishes.push((held, write.output));
            }
        }
        Ok(())
    }

    fn finish(&mut self) {
        let count = self.finishes.len().min(SLICE);
        let taken: Vec<_> = self.finishes.drain(..count).collect();
        let mut group = Vec::with_capacity(count);
        let mut writes = Vec::with_capacity(count);
        for (held, output) in taken {
            let pinned = self.protocols[&held.facts.protocol_id].clone();
            let index = held.key.step_index as usize;
            let next = pinned.steps.get(index + 1).filter(|_| self.stopping.is_none());
            let enter_next = next.is_some_and(|next| self.reserve(&next.service));
            let write = plan::finish(&held, &pinned.policies[index], enter_next)
                .expect("a message that has entered can be finished");
            writes.push(write);
            group.push(Finishing { held, output, enter_next });
        }
        self.busy.finish = true;
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.finish(engine, writes).await;
            Done::Finished(group, answer)
        });
    }

    fn finished(
        &mut self,
        group: Vec<Finishing>,
        answer: Answer<Vec<FinishOutcome>>,
    ) -> Result<(), StoreError> {
        self.busy.finish = false;
        for (Finishing { held, output, enter_next }, outcome) in group.into_iter().zip(answer?) {
            let entered = match outcome {
                FinishOutcome::Done { job_version, entered_next: true, .. } => {
                    Some(plan::entered_next(&held, job_version, output)?)
                }
                FinishOutcome::Done { job, .. } => {
                    self.may_claim |= !sprag_kernel::State::is_terminal(job);
                    None
                }
                FinishOutcome::Gone => None,
            };
            match entered {
                Some(next) => self.dispatches.push(next),
                None if enter_next => {
                    let pinned = self.protocols[&held.facts.protocol_id].clone();
                    self.release(&pinned.steps[held.key.step_index as usize + 1].service);
                }
                None => {}
            }
        }
        Ok(())
    }

    // Signs of life, timers, the work of the dead.

    fn beat(&mut self) {
        let (store, engine) = (self.store.clone(), self.engine);
        let low = self.running.keys().map(|key| key.job_id).min();
        self.calls.spawn(async move { Done::Beaten(store.beat(engine, low).await) });
        let (store, takeover) = (self.store.clone(), self.config.takeover);
        let timeout = u64::try_from(takeover.as_millis()).unwrap_or(u64::MAX);
        self.calls.spawn(async move { Done::Silent(store.silent_engines(timeout).await) });
    }

    fn look(&mut self) {
        self.may_claim = true;
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let limit = u32::try_from(SLICE).unwrap_or(u32::MAX);
            Done::Looked(store.due(engine, limit).await)
        });
    }

    fn take_over(&mut self, dead: EngineNo) {
        if dead == self.engine {
            return;
        }
        let (store, heir) = (self.store.clone(), self.engine);
        self.calls.spawn(async move { Done::TakenOver(store.take_over(dead, heir).await) });
    }

    /// Goes on with what a dead engine held: a message is finished, an attempt is lost.
    fn adopt(&mut self, held: Held) {
        if held.attempt.ending.is_some() {
            self.finishes.push((held, None));
            return;
        }
        let error = AttemptError {
            code: "OWNER_LOST".to_owned(),
            message: "the engine that ran this attempt has died".to_owned(),
        };
        if let Ok(write) = plan::ended_by(&held, EndingKind::OwnerLost, error) {
            self.ends.push((held, write));
        }
    }

    // Slots.

    fn service_of(&self, held: &Held) -> String {
        let pinned = &self.protocols[&held.facts.protocol_id];
        pinned.steps[held.key.step_index as usize].service.clone()
    }

    fn reserve(&mut self, service: &str) -> bool {
        match self.services.get_mut(service) {
            Some(service) if service.free > 0 => {
                service.free -= 1;
                true
            }
            Some(_) | None => false,
        }
    }

    fn release(&mut self, service: &str) {
        if let Some(service) = self.services.get_mut(service) {
            service.free += 1;
        }
    }
}

/// The first attempt of a job that was just created and entered.
fn born(job: &NewJob) -> Held {
    let steps = u32::try_from(job.steps.len()).expect("steps are limited");
    let (row, attempts): (JobRow, _) = create(steps);
    let mut attempt = attempts[0];
    attempt.ledger = attempt.ledger.enter_leg1().expect("a fresh ledger is below its ceiling");
    Held {
        key: AttemptKey::first(job.facts.job_id, 0),
        attempt,
        job: row,
        facts: job.facts.clone(),
        inputs: Vec::new(),
    }
}

/// Where an engine's lease ids begin: far from those of its other lives.
fn uuid_seed() -> u64 {
    let (high, _) = uuid::Uuid::now_v7().as_u64_pair();
    // Positive as a signed integer, with room to count.
    (high << 8) & (i64::MAX as u64)
}
