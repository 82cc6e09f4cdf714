//! The two legs up to the entry of a message: directive, handler, and what comes of it. `finish.rs` goes on.

use std::sync::Arc;
use std::time::Duration;

use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::{EndingKind, LeaseId};
use sprag_kernel::{Cause, Code, Refusal, State};
use tokio::time::{Instant, timeout};

use super::phase::{Refused, is_soon};
use super::reconcile::Reconciling;
use super::{Dispatching, Doer, Done, Ending, Heart, Op, Running};
use crate::callback::Heard;
use crate::crash::crash_point;
use crate::directive::Failure;
use crate::graph::CONTROL;
use crate::ids::AttemptKey;
use crate::limits::{MAX_CODE_BYTES, MAX_GATHERED_BYTES, MAX_MESSAGE_BYTES, check_json, storable};
use crate::plan;
use crate::ran::Ran;
use crate::store::{
    Answer, AttemptError, DispatchOutcome, DispatchWrite, EndOutcome, HandOff, Held, NewChild,
    Store, StoreError,
};
use crate::worker::{Context, Returned, StopReason};

impl Dispatching {
    pub(super) fn of(held: Held, pull: Option<u64>, child: Option<Arc<NewChild>>) -> Self {
        let before = (held.job, held.attempt);
        Self { held, before, write: None, pull, child }
    }

    /// The outcome of its write is not known.
    pub(super) fn repeats(&mut self) {
        self.write.iter_mut().for_each(|write| write.repeats = true);
    }
}

fn report_of(failure: &Failure) -> Report {
    if failure.retryable { Report::Retryable } else { Report::NonRetryable }
}

/// A failure as every store can keep it.
fn attempt_error(failure: &Failure) -> AttemptError {
    AttemptError {
        code: storable(&failure.code, MAX_CODE_BYTES),
        message: storable(&failure.message, MAX_MESSAGE_BYTES),
    }
}

impl<S: Store> Heart<S> {
    pub(super) fn dispatch_later(&mut self, held: Held) {
        self.dispatch_for(held, None);
    }

    /// The directive goes to a slot of this engine, or to a claim.
    pub(super) fn dispatch_for(&mut self, held: Held, pull: Option<u64>) {
        self.dispatch_to(held, pull, None);
    }

    /// As above, or to a child job.
    pub(super) fn dispatch_to(
        &mut self,
        held: Held,
        pull: Option<u64>,
        child: Option<Arc<NewChild>>,
    ) {
        self.dispatches.push(Dispatching::of(held, pull, child));
    }

    /// Plans and writes directives.
    pub(super) fn dispatch(&mut self) {
        let Some(group) = self.dispatches.next_group() else { return };
        let planned = group.into_iter().filter_map(|dispatching| self.planned(dispatching));
        let (group, writes): (Vec<_>, Vec<_>) = planned.unzip();
        if group.is_empty() {
            return self.dispatches.done();
        }
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.dispatch(engine, writes).await;
            Done::Dispatched(group, answer)
        });
    }

    /// The write of a directive. A plan is kept until its outcome is known: the same write again is recognised by its
    /// lease.
    pub(super) fn planned(
        &mut self,
        mut dispatching: Dispatching,
    ) -> Option<(Dispatching, DispatchWrite)> {
        let planned = match dispatching.write.take() {
            Some(planned) => planned,
            None => match self.plan(&mut dispatching) {
                Ok(planned) => planned,
                // Its rows contradict each other, which the audit tells in full. Others go on.
                Err(refusal) => {
                    let (job_id, code) = (dispatching.held.key.job_id, refusal.code().name());
                    tracing::error!(code, %job_id, %refusal, "an activation cannot be dispatched");
                    self.vacate(&dispatching.held, dispatching.pull);
                    return None;
                }
            },
        };
        dispatching.write = Some(planned.clone());
        Some((dispatching, planned))
    }

    fn plan(&mut self, dispatching: &mut Dispatching) -> Result<DispatchWrite, Refusal> {
        let Dispatching { held, pull, child, .. } = dispatching;
        self.next_lease += 1;
        let own = if child.is_some() { HandOff::Pulled } else { self.hand_off(held) };
        let pinned = &self.protocols[&held.facts.protocol_id];
        let policy = &pinned.policies[held.key.step_index as usize];
        let claim = pull.and_then(|no| self.pulls.hand_off(no));
        let (hand_off, claim_id) = claim.map_or((own, None), |(hand_off, id)| (hand_off, Some(id)));
        let turns = pinned.graph.turns_before(held.key.place());
        let write = plan::dispatch_to(hand_off, held, LeaseId(self.next_lease), policy)?;
        let write = plan::after_turns(held, write, turns)?;
        // Nobody's lease: the time at which an engine looks after the child.
        let lease_ms = child.as_ref().map_or(write.lease_ms, |c| c.first_look_ms());
        Ok(DispatchWrite { claim_id, lease_ms, child: child.clone(), ..write })
    }

    pub(super) fn dispatched(
        &mut self,
        group: Vec<Dispatching>,
        answer: Answer<Vec<DispatchOutcome>>,
    ) -> Result<(), StoreError> {
        let outcomes = match answer {
            Ok(outcomes) => outcomes,
            Err(error) => return self.dispatch_failed(group, error),
        };
        self.dispatches.done();
        for (dispatching, outcome) in group.into_iter().zip(outcomes) {
            self.dispatched_one(dispatching, outcome);
        }
        Ok(())
    }

    pub(super) fn dispatched_one(&mut self, dispatching: Dispatching, outcome: DispatchOutcome) {
        let Dispatching { mut held, before, pull, child, .. } = dispatching;
        match outcome {
            DispatchOutcome::Done { version, lease_expires_at } => {
                held.attempt.version = version;
                held.attempt.deadline = Some(lease_expires_at);
                match (pull, child, self.hand_off(&held)) {
                    (_, Some(child), _) => self.child_started(&held, &child),
                    (Some(no), None, _) => self.hand_out(no, &held),
                    (None, None, HandOff::Outbox) => self.publish(held),
                    (None, None, _) => self.start(held),
                }
            }
            DispatchOutcome::Moved(state) if !state.is_terminal() => {
                // Planned again, for the job as another step has left it.
                (held.job, held.attempt) = before;
                held.job.state = state;
                self.dispatch_to(held, pull, child);
            }
            // What was taken up twice after a lost answer may find its job over.
            DispatchOutcome::Moved(_) | DispatchOutcome::Ending | DispatchOutcome::Gone => {
                self.vacate(&held, pull);
                if outcome == DispatchOutcome::Ending {
                    self.cancel_activation(held.key);
                }
            }
        }
    }

    fn dispatch_failed(
        &mut self,
        mut group: Vec<Dispatching>,
        error: StoreError,
    ) -> Result<(), StoreError> {
        // Whatever the error: on Postgres a group has several commits, and some may have been made.
        group.iter_mut().for_each(Dispatching::repeats);
        match error {
            StoreError::Fenced => Err(StoreError::Fenced),
            StoreError::Unavailable(_) => {
                self.dispatches.again(group);
                self.heard(Err::<(), _>(error)).map(|_| ())
            }
            StoreError::Poison(_) | StoreError::Refused(_) => {
                if let Refused::Culprit(culprit) = self.dispatches.refused(group) {
                    self.vacate(&culprit.held, culprit.pull);
                    let (key, code) = (culprit.held.key, Code::MessagePoison);
                    self.fail_activation(key, code, error.to_string());
                }
                Ok(())
            }
        }
    }

    /// How an attempt without a claim is handed on: to a slot of this engine, or to the outbox.
    fn hand_off(&self, held: &Held) -> HandOff {
        match self.services.get(&self.service_of(held)).map(|service| &service.doer) {
            Some(Doer::Bus(_)) => HandOff::Outbox,
            Some(
                Doer::Handler(_) | Doer::Batch(..) | Doer::Control | Doer::Exec | Doer::Http(_),
            )
            | None => HandOff::InProcess,
        }
    }

    /// The directive does not come about: the slot, or the place in the claim, is free again.
    pub(super) fn vacate(&mut self, held: &Held, pull: Option<u64>) {
        if let Some(no) = pull {
            self.withhold(no);
        } else {
            let service = self.service_of(held);
            self.release(&service);
        }
    }

    fn start(&mut self, held: Held) {
        crash_point("heart.before_handler");
        let pinned = self.pinned(&held);
        let index = held.key.step_index as usize;
        let doer = self.services[&pinned.steps[index].service].doer.clone();
        let (context, ends) = Context::new(self.stopping.map(|_| StopReason::Shutdown));
        let (key, ops) = (held.key, self.ops.clone());
        let limit = pinned.policies[index].step_ms;
        let limit = limit.map_or(Duration::MAX, Duration::from_millis);
        let answer = self.answer(&held, &pinned, doer, context);
        let now = Instant::now();
        self.running.insert(key, Running { held, ends, started_at: now, renewed_at: now });
        tokio::spawn(async move {
            let mut answer = std::pin::pin!(answer);
            let answer = if let Ok(answer) = timeout(limit, &mut answer).await {
                answer
            } else {
                // The heart may have stopped at its deadline.
                let _ = ops.send(Op::TimedOut { key });
                answer.await
            };
            // If the heart is gone, another engine takes the attempt up.
            let _ = ops.send(answer);
        });
    }

    pub(super) fn returned(
        &mut self,
        key: &AttemptKey,
        result: Result<Returned<S::Work>, Failure>,
    ) {
        crash_point("heart.after_handler");
        let Some(Running { held, ends, started_at, .. }) = self.running.remove(key) else { return };
        let limit = match self.service_of(&held).as_str() {
            CONTROL => self.config.max_output_bytes.max(MAX_GATHERED_BYTES),
            _ => self.config.max_output_bytes,
        };
        let result = result.and_then(|returned| Self::storable(returned, limit));
        let may_pass = result.as_ref().is_err_and(|failure| failure.retryable);
        let gave_up = may_pass && ends.told() == Some(StopReason::Shutdown);
        if !gave_up {
            let report = result.as_ref().map_or_else(report_of, |_| Report::Succeeded);
            self.tell_ran(&held, report, started_at);
        }
        match result {
            Ok((output, None)) => self.report(held, Report::Succeeded, output, None),
            Ok((output, Some(work))) => self.work_later(held, output, work),
            Err(failure) if gave_up => self.stopped(held, &failure),
            Err(failure) => self.report_failure(held, &failure),
        }
    }

    /// Tells whoever measures it how an attempt went. What the engine does for graphs is no step of anybody.
    pub(super) fn tell_ran(&self, held: &Held, report: Report, started_at: Instant) {
        if !self.watch.is_anybody() || self.service_of(held) == CONTROL {
            return;
        }
        let pinned = self.pinned(held);
        let node = &pinned.graph.nodes()[held.key.step_index as usize];
        self.watch.tell(&Ran {
            job_id: held.key.job_id,
            attempt_no: held.key.attempt_no,
            protocol_id: &held.facts.protocol_id,
            step_id: &node.step_id,
            traceparent: held.facts.traceparent.as_deref(),
            report,
            took: started_at.elapsed(),
        });
    }

    /// A handler gave up because the engine stops. That is none of its fault: as if the engine had been lost, the
    /// next attempt is there at once and no attempt of its budget is gone.
    fn stopped(&mut self, held: Held, failure: &Failure) {
        let is_open = held.attempt.ending.is_none();
        let error = attempt_error(failure);
        let ended = is_open.then(|| plan::ended_by(&held, EndingKind::OwnerLost, error).ok());
        match ended.flatten() {
            Some(write) => self.ends.push(Ending { held, write, has_slot: true, calling: None }),
            None => self.free_slot(&held),
        }
    }

    /// The output as text, if every store can keep it.
    fn storable(
        Returned { output, work }: Returned<S::Work>,
        limit: usize,
    ) -> Result<(Option<String>, Option<S::Work>), Failure> {
        let Some(output) = output else { return Ok((None, work)) };
        let text = output.to_string();
        match check_json("output", &text, limit) {
            Ok(()) => Ok((Some(text), work)),
            Err(refusal) => Err(Failure::fatal(refusal.code().name(), refusal.message())),
        }
    }

    pub(super) fn report_failure(&mut self, held: Held, failure: &Failure) {
        self.report(held, report_of(failure), None, Some(attempt_error(failure)));
    }

    pub(super) fn report(
        &mut self,
        held: Held,
        report: Report,
        output: Option<String>,
        error: Option<AttemptError>,
    ) {
        match plan::result(&held, report, output, error) {
            Ok(Some(write)) => {
                self.ends.push(Ending { held, write, has_slot: true, calling: None });
            }
            Ok(None) | Err(_) => self.free_slot(&held),
        }
    }

    /// Its handler is back, so its slot is free.
    pub(super) fn free_slot(&mut self, held: &Held) {
        let service = self.service_of(held);
        self.release(&service);
    }

    /// The handler is told to stop and keeps its slot; the attempt ends now.
    pub(super) fn timed_out(&mut self, key: &AttemptKey) {
        let Some(running) = self.running.get_mut(key) else { return };
        running.ends.stop(StopReason::TimedOut);
        let error = AttemptError {
            code: Cause::StepTimeout.name().to_owned(),
            message: "the handler did not return within the step's timeout".to_owned(),
        };
        let held = running.held.clone();
        if let Ok(Some(write)) = plan::result(&held, Report::Retryable, None, Some(error)) {
            // From here on a result of the handler finds the attempt over.
            running.held.attempt.ending = Some(write.ending);
            self.ends.push(Ending { held, write, has_slot: false, calling: None });
        }
    }

    pub(super) fn end(&mut self) {
        let bytes = |ending: &Ending| ending.write.output.as_ref().map_or(0, String::len);
        let Some(group) = self.ends.next_group_by(bytes) else { return };
        if is_soon(&group) && group.iter().all(|ending| self.may_finish_soon(ending)) {
            return self.end_soon(group);
        }
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let writes = group.iter().map(|ending| ending.write.clone()).collect();
            let answer = store.end(engine, writes).await;
            Done::Ended(group, answer)
        });
    }

    pub(super) fn ended(
        &mut self,
        group: Vec<Ending>,
        answer: Answer<Vec<EndOutcome>>,
    ) -> Result<(), StoreError> {
        let outcomes = match answer {
            Ok(outcomes) => outcomes,
            Err(error) => return self.end_failed(group, error),
        };
        self.ends.done();
        for (ending, outcome) in group.into_iter().zip(outcomes) {
            self.ended_one(ending, outcome);
        }
        Ok(())
    }

    pub(super) fn ended_one(&mut self, ending: Ending, outcome: EndOutcome) {
        let Ending { held, write, has_slot, calling } = ending;
        if has_slot {
            self.free_slot(&held);
        }
        match (outcome, calling) {
            (EndOutcome::Entered { .. }, calling) => {
                let held = plan::entered(held, &write);
                self.finish_perhaps_again(held, write.output, write.repeats);
                if let Some(calling) = calling {
                    calling.answer(Ok(Heard::Done));
                }
            }
            (EndOutcome::Stale, Some(calling)) => self.call_again(calling),
            (EndOutcome::Stale, None) => {
                if has_slot {
                    // A batch whose last commit was made although its answer got lost has its message already.
                    self.reconciling = Reconciling::Wanted;
                }
            }
        }
    }

    fn end_failed(&mut self, mut group: Vec<Ending>, error: StoreError) -> Result<(), StoreError> {
        for ending in &mut group {
            ending.write.repeats = true;
        }
        match error {
            StoreError::Fenced => Err(StoreError::Fenced),
            StoreError::Unavailable(_) => {
                self.ends.again(group);
                self.heard(Err::<(), _>(error)).map(|_| ())
            }
            StoreError::Poison(_) | StoreError::Refused(_) => {
                if let Refused::Culprit(ending) = self.ends.refused(group) {
                    self.end_poisoned(ending, &error);
                }
                Ok(())
            }
        }
    }

    /// What a handler returned cannot be stored: the attempt ends for good, without it.
    pub(super) fn end_poisoned(&mut self, ending: Ending, error: &StoreError) {
        let Ending { held, write, has_slot, calling } = ending;
        if let Some(calling) = calling {
            let refusal = Refusal::new(Code::MessagePoison).with("reason", error.to_string());
            calling.answer(Err(refusal));
        }
        let code = Code::MessagePoison.name();
        if write.error.as_ref().is_some_and(|error| error.code == code) {
            tracing::error!(code, job_id = %held.key.job_id, %error, "an ending cannot be stored");
            if has_slot {
                self.free_slot(&held);
            }
            return;
        }
        let error = AttemptError { code: code.to_owned(), message: error.to_string() };
        if let Ok(Some(write)) = plan::result(&held, Report::NonRetryable, None, Some(error)) {
            self.ends.push(Ending { held, write, has_slot, calling: None });
        }
    }
}
