//! Intake: new jobs and claimed activations. An engine takes no more than it has free slots.

use std::collections::HashMap;

use sprag_kernel::{Code, Refusal};

use super::phase::{Refused, is_soon};
use super::reconcile::Reconciling;
use super::{Claiming, Dispatching, Done, Heart, Origin, Seeing, Submitting};
use crate::crash::crash_point;
use crate::graph::CONTROL;
use crate::pairs::Begun;
use crate::plan;
use crate::store::{Answer, DispatchOutcome, Held, Pick, Store, StoreError, Submitted, Wish};

impl<S: Store> Heart<S> {
    pub(super) fn submit(&mut self) {
        let bytes = |submitting: &Submitting| submitting.job.facts.payload.len();
        let Some(mut jobs) = self.submits.next_group_by(bytes) else { return };
        for Submitting { job, repeats, .. } in &mut jobs {
            // A graph looks at what it can see before it runs, and may begin at several places.
            // What has a gate is let in there, and what has a time when that has come.
            let waits = job.is_graph || job.steps[0].limit.is_some() || job.not_before.is_some();
            job.enter = !waits && !*repeats && self.reserve(&job.steps[0].service);
        }
        // What is tried again may be what the store refuses, which is looked for with plain submits.
        let is_any_entered = jobs.iter().any(|submitting| submitting.job.enter);
        if is_soon(&jobs) && is_any_entered && jobs.iter().all(|submitting| !submitting.repeats) {
            return self.submit_soon(jobs);
        }
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let slice = jobs.iter().map(|submitting| submitting.job.clone()).collect();
            let answer = store.submit(engine, slice).await;
            Done::Submitted(jobs, answer)
        });
    }

    /// The same for a few jobs, whose first directives are written at once.
    fn submit_soon(&mut self, jobs: Vec<Submitting>) {
        let mut beginnings = Vec::with_capacity(jobs.len());
        let mut group = Vec::with_capacity(jobs.len());
        for submitting in jobs {
            let job = submitting.job.clone();
            let entered = job.enter.then(|| Dispatching::of(plan::born(&job), None, None));
            let planned = entered.map(|entered| {
                self.planned(entered).expect("the first step of a new job can be dispatched")
            });
            let (dispatching, write) = planned.unzip();
            beginnings.push((job, write));
            group.push((submitting, dispatching));
        }
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.submit_and_dispatch(engine, beginnings).await;
            Done::Begun(group, answer)
        });
    }

    pub(super) fn begun(
        &mut self,
        group: Vec<(Submitting, Option<Dispatching>)>,
        answer: Answer<Vec<Begun>>,
    ) -> Result<(), StoreError> {
        let answers = match answer {
            Ok(answers) => answers,
            Err(error) => return self.begin_failed(group, error),
        };
        self.submits.done();
        for ((submitting, dispatching), (submitted, outcome)) in group.into_iter().zip(answers) {
            self.submitted_one(submitting, submitted, dispatching.zip(outcome));
        }
        Ok(())
    }

    /// Nobody knows how far the two commits came. The jobs are submitted again, one by one if the store has refused any,
    /// and take their directives along.
    fn begin_failed(
        &mut self,
        group: Vec<(Submitting, Option<Dispatching>)>,
        error: StoreError,
    ) -> Result<(), StoreError> {
        let again = |(submitting, directive): (Submitting, Option<Dispatching>)| {
            let ahead = directive.map(|mut directive| {
                directive.repeats();
                Box::new(directive)
            });
            Submitting { repeats: true, ahead, ..submitting }
        };
        self.submits.again(group.into_iter().map(again).collect());
        match error {
            StoreError::Fenced => Err(StoreError::Fenced),
            StoreError::Unavailable(_) => self.heard(Err::<(), _>(error)).map(|_| ()),
            StoreError::Poison(_) | StoreError::Refused(_) => {
                self.reconciling = Reconciling::Wanted;
                Ok(())
            }
        }
    }

    pub(super) fn submitted(
        &mut self,
        jobs: Vec<Submitting>,
        answer: Answer<Vec<Result<Submitted, Refusal>>>,
    ) -> Result<(), StoreError> {
        match answer {
            Ok(answers) => {
                self.submits.done();
                for (submitting, submitted) in jobs.into_iter().zip(answers) {
                    self.submitted_one(submitting, submitted, None);
                }
                Ok(())
            }
            Err(error) => {
                for Submitting { job, .. } in jobs.iter().filter(|it| it.job.enter) {
                    self.release(&job.steps[0].service);
                }
                self.submit_failed(jobs, error)
            }
        }
    }

    /// A job is in the store. If its first directive is written already, it goes on from there.
    fn submitted_one(
        &mut self,
        Submitting { job, reply, repeats, ahead }: Submitting,
        submitted: Result<Submitted, Refusal>,
        dispatched: Option<(Dispatching, DispatchOutcome)>,
    ) {
        let created = submitted.as_ref().is_ok_and(|submitted| submitted.created);
        if repeats {
            // The first try may have been on its way still when the books were last compared.
            self.reconciling = Reconciling::Wanted;
        }
        if created {
            self.gates.hint(job.gates.iter().flatten().cloned());
        }
        match ahead {
            Some(directive) if created => self.dispatches.push(*directive),
            Some(directive) => self.vacate(&directive.held, None),
            None => {}
        }
        match (created, job.enter, dispatched) {
            (true, true, Some((dispatching, outcome))) => self.dispatched_one(dispatching, outcome),
            (true, true, None) => self.dispatch_later(plan::born(&job)),
            (true, false, _) => self.may_claim = true,
            (false, true, _) => self.release(&job.steps[0].service),
            (false, false, _) => {}
        }
        crash_point("heart.before_reply");
        // Whoever asked may have gone away; the job stays.
        let _ = reply.send(submitted);
        crash_point("heart.after_reply");
    }

    fn submit_failed(
        &mut self,
        mut jobs: Vec<Submitting>,
        error: StoreError,
    ) -> Result<(), StoreError> {
        // On Postgres jobs of tenants with a limit have a commit of their own: others may be there, and entered.
        for submitting in &mut jobs {
            submitting.repeats = true;
        }
        if jobs.len() > 1 {
            self.reconciling = Reconciling::Wanted;
        }
        match error {
            StoreError::Fenced => Err(StoreError::Fenced),
            StoreError::Unavailable(_) => {
                self.submits.again(jobs);
                self.heard(Err::<(), _>(error)).map(|_| ())
            }
            StoreError::Poison(reason) => {
                self.submit_refused(jobs, Refusal::new(Code::MessagePoison).with("reason", reason));
                Ok(())
            }
            StoreError::Refused(refusal) => {
                self.submit_refused(jobs, refusal);
                Ok(())
            }
        }
    }

    fn submit_refused(&mut self, jobs: Vec<Submitting>, refusal: Refusal) {
        if let Refused::Culprit(Submitting { reply, ahead, .. }) = self.submits.refused(jobs) {
            if let Some(directive) = ahead {
                self.vacate(&directive.held, None);
            }
            let _ = reply.send(Err(refusal));
        }
    }

    pub(super) fn claim(&mut self) {
        if self.claiming || !(self.may_claim || self.pulls.is_round_open()) {
            return;
        }
        let mut slots = HashMap::new();
        if std::mem::take(&mut self.may_claim) {
            self.pulls.begin_round();
            // Workers outside are not held back: they do not die with this process.
            if !self.lone.holds_back() {
                slots = self.reserve_free();
            }
        }
        let mut wishes = self.pulls.wishes();
        for (service, max) in slots.clone() {
            // What the engine does itself brings down no process: nothing of it is a suspect.
            let pick = if service == CONTROL { Pick::Any } else { Pick::Fresh };
            wishes.push(Wish { service, max: max.min(SLICE), pick, tenant_id: None });
        }
        if !self.lone.holds_back() {
            wishes.extend(self.wish_for_a_suspect());
        }
        if wishes.is_empty() {
            return;
        }
        self.claiming = true;
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.claim(engine, wishes.clone()).await;
            Done::Claimed(Claiming { wishes, slots }, answer)
        });
    }

    /// Takes all slots that are free, so that nobody else takes them while a claim is under way.
    fn reserve_free(&mut self) -> HashMap<String, u32> {
        let mut slots = HashMap::new();
        for (name, service) in &mut self.services {
            let max = u32::try_from(service.free).unwrap_or(0).min(SLICE);
            if max > 0 {
                service.free -= max.cast_signed() as isize;
                slots.insert(name.clone(), max);
            }
        }
        slots
    }

    pub(super) fn claimed(
        &mut self,
        Claiming { wishes, slots }: Claiming,
        answer: Answer<Vec<Held>>,
    ) -> Result<(), StoreError> {
        self.claiming = false;
        for (name, max) in slots {
            let service = self.services.get_mut(&name).expect("only own slots are reserved");
            service.free += max.cast_signed() as isize;
        }
        let answer = self.heard(answer)?;
        // What a failed one asked for, nobody has asked for.
        self.may_claim |= answer.is_none();
        let held = answer.unwrap_or_default();
        let asks_for_a_suspect = wishes.iter().any(|wish| wish.pick == Pick::Lone);
        let filled = self.filled(&wishes, &held);
        for held in held {
            if asks_for_a_suspect && held.attempt.runs_alone() {
                self.lone.push(held);
            } else {
                self.admit(Origin::Claimed, held);
            }
        }
        // There may be more for those with room left: one claim asks for no more than a slice, and what is cancelled
        // takes no slot.
        self.may_claim |= filled.iter().any(|service| self.has_room(service));
        Ok(())
    }

    /// The services that got all they asked for. What has a protocol that must be learnt first is not counted.
    fn filled(&self, wishes: &[Wish], held: &[Held]) -> Vec<String> {
        let mut wanted: HashMap<&str, usize> = HashMap::new();
        for wish in wishes.iter().filter(|wish| wish.pick != Pick::Lone) {
            *wanted.entry(&wish.service).or_default() += wish.max as usize;
        }
        let known = held.iter().filter(|held| self.protocols.contains_key(&held.facts.protocol_id));
        for held in known {
            if let Some(wanted) = wanted.get_mut(self.service_of(held).as_str()) {
                *wanted = wanted.saturating_sub(1);
            }
        }
        wanted.retain(|_, wanted| *wanted == 0);
        wanted.into_keys().map(ToOwned::to_owned).collect()
    }

    /// Whether this engine or a claim that waits at it could take more of a service.
    fn has_room(&self, service: &str) -> bool {
        let is_free = self.services.get(service).is_some_and(|service| service.free > 0);
        is_free || self.pulls.want(service)
    }

    /// One suspect of one service of handlers, each in its turn. It takes no slot: it will have them all.
    fn wish_for_a_suspect(&mut self) -> Option<Wish> {
        if !self.may_claim_lone || !self.lone.is_free() || self.services.is_empty() {
            return None;
        }
        self.may_claim_lone = false;
        self.suspect_turn += 1;
        let names: Vec<&String> = self.services.keys().filter(|name| *name != CONTROL).collect();
        let service = (*names.get(self.suspect_turn % names.len().max(1))?).clone();
        Some(Wish { service, max: 1, pick: Pick::Lone, tenant_id: None })
    }

    /// Goes on with a claimed activation, in a slot or for a claim that was there when it was asked for.
    pub(super) fn take_up(&mut self, held: Held) {
        if held.job.is_ending() {
            self.cancel_activation(held.key);
            return;
        }
        if let Some(reason) = held.damage {
            self.fail_activation(held.key, Code::MessagePoison, reason);
            return;
        }
        if held.is_unentered {
            let code = Code::Leg1AttemptsExhausted;
            self.fail_activation(held.key, code, code.what().to_owned());
            return;
        }
        if let Some(reason) = self.has_no_gate(&held) {
            self.fail_activation(held.key, Code::ExpressionFailed, reason);
            return;
        }
        let service = self.service_of(&held);
        if self.reserve(&service) {
            self.take_up_for(held, None);
        } else if let Some(no) = self.pulls.seat(&service, &held.facts.tenant_id) {
            self.take_up_for(held, Some(no));
        } else if self.services.contains_key(&service) {
            self.occupy(&service);
            self.take_up_for(held, None);
        } else {
            self.give_back(&held);
        }
    }

    /// Goes on with it in a slot of this engine, or for a claim. A graph looks around first.
    fn take_up_for(&mut self, held: Held, pull: Option<u64>) {
        if held.job.is_graph {
            self.sights.push(Seeing { held, pull });
        } else {
            self.dispatch_for(held, pull);
        }
    }

    /// Nobody here waits for it any more: whoever does, claims it.
    pub(super) fn give_back(&mut self, held: &Held) {
        let (store, engine) = (self.store.clone(), self.engine);
        let activation = (held.key, held.attempt.version);
        self.calls
            .spawn(async move { Done::Released(store.release(engine, vec![activation]).await) });
    }
}

/// The most that one claim asks for of a service.
pub(super) const SLICE: u32 = 500;
