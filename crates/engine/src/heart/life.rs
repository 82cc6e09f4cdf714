//! Life: signs of it, timers, cancelled activations, and the work of the dead.

use std::time::Duration;

use sprag_kernel::decide::rows::{EndingKind, LeaseId};
use sprag_kernel::decide::timer::{self, Fired};
use sprag_kernel::retry::Millis;
use sprag_kernel::{Cause, Code, StepState};
use tokio::time::Instant;

use super::phase::SLICE;
use super::{Done, Ending, Heart};
use crate::context::StopReason;
use crate::ids::{AttemptKey, EngineNo, JobId};
use crate::plan;
use crate::store::{Answer, AttemptError, Held, Pulse, Signs, Store, StoreError};

/// How long an engine that is too old for its store waits for its handlers.
const DRAIN: Duration = Duration::from_secs(30);

impl<S: Store> Heart<S> {
    /// A sign of life, and a look at who shows none any more; not right after the store was away, when the
    /// others have not had the time to show any.
    pub(super) fn beat(&mut self) {
        if self.beats_since.is_some() {
            return;
        }
        self.beats_since = Some(Instant::now());
        let (store, engine) = (self.store.clone(), self.engine);
        let is_fresh = |at: Instant| at.elapsed() <= self.config.takeover;
        let silence = if store.is_exclusive() {
            Some(Duration::ZERO)
        } else {
            Some(self.config.takeover).filter(|_| !self.last_away.is_some_and(is_fresh))
        };
        let silence = silence.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
        self.calls.spawn(async move { Done::Beaten(store.beat(engine, silence).await) });
        self.note_services();
    }

    /// A store that has moved on to a version which this binary does not understand says so with the beat.
    /// What runs is brought to rest, and the engine ends with that refusal.
    pub(super) fn beaten(&mut self, answer: Answer<Signs>) -> Result<(), StoreError> {
        self.beats_since = None;
        match answer {
            Err(StoreError::Refused(refusal)) if refusal.code() == Code::SchemaTooNew => {
                if self.too_old.is_none() {
                    tracing::error!(code = refusal.code().name(), %refusal, "this engine drains");
                    self.too_old = Some(refusal);
                    self.stop(DRAIN);
                }
                Ok(())
            }
            answer => {
                let signs = self.heard(answer)?.unwrap_or_default();
                signs.silent.into_iter().for_each(|dead| self.take_over(dead));
                if signs.has_mail {
                    self.look_into_inbox();
                }
                Ok(())
            }
        }
    }

    /// Something was left to do, by this process.
    pub(super) fn wake(&mut self) {
        self.may_claim = true;
        self.rest.stir();
    }

    /// Something may have been left to do by somebody else.
    pub(super) fn follow_hint(&mut self) {
        self.rest.follow();
        self.may_claim = true;
    }

    /// A look at the timers, and at what others have left to claim.
    pub(super) fn look(&mut self) {
        let is_busy = !self.running.is_empty()
            || !self.publishing.is_empty()
            || self.strangers.are_expected()
            || !self.lone.is_free();
        self.rest.begin(is_busy);
        self.ended.notify_one();
        self.may_claim = true;
        self.may_claim_lone = true;
        let (store, engine) = (self.store.clone(), self.engine);
        let limit = u32::try_from(SLICE).unwrap_or(u32::MAX);
        self.calls.spawn(async move { Done::Looked(store.due(engine, limit).await) });
        self.gates.look_now_and_then();
        if !self.rest.is_long() {
            // Else the beat tells.
            self.look_into_inbox();
        }
        self.look_into_outbox();
        self.look_after_running();
        self.look_after_unreadable();
    }

    /// Renews the leases of handlers that run for long or have something to say, and asks whether their
    /// jobs are being cancelled, by whomever. A handler is first looked after at the second look it sees, so
    /// that short ones cost nothing.
    fn look_after_running(&mut self) {
        let (mut pulses, mut jobs) = (Vec::new(), Vec::new());
        for (key, running) in &mut self.running {
            if running.started_at.elapsed() < self.config.poll {
                continue;
            }
            jobs.push(key.job_id);
            let pinned = &self.protocols[&running.held.facts.protocol_id];
            let lease_ms = pinned.policies[key.step_index as usize].lease_ms;
            let progress = running.ends.take_progress();
            let is_due = running.renewed_at.elapsed() >= Duration::from_millis(lease_ms / 3);
            if progress.is_some() || is_due {
                running.renewed_at = Instant::now();
                let lease_id = running.held.attempt.lease_id.expect("dispatched with a lease");
                pulses.push(Pulse { key: *key, lease_id, lease_ms, progress });
            }
        }
        if !jobs.is_empty() {
            let store = self.store.clone();
            self.calls.spawn(async move { Done::Cancelling(store.cancelling(jobs).await) });
        }
        if !pulses.is_empty() {
            let (store, engine) = (self.store.clone(), self.engine);
            self.calls.spawn(async move { Done::Pulsed(store.pulse(engine, pulses).await) });
        }
    }

    /// Tells the handlers of a job that it is being cancelled.
    pub(super) fn tell_cancelled(&self, job_id: JobId) {
        for (_, running) in self.running.iter().filter(|(key, _)| key.job_id == job_id) {
            running.ends.stop(StopReason::Cancelled);
        }
    }

    /// A deadline was reached: the kernel says what that means.
    pub(super) fn time_has_come(&mut self, held: Held, now: Millis) {
        if held.attempt.lease_id.is_none() || self.running.contains_key(&held.key) {
            return;
        }
        if self.waits_for_child(&held) {
            self.tend_child(held, now);
            return;
        }
        let fence = plan::fence(&held.attempt);
        let (fired, code) = match held.attempt.state {
            StepState::AwaitingAck => {
                (timer::ack_timeout(&held.attempt, fence, now), Cause::AckTimeout.name())
            }
            StepState::InProgress => {
                let is_over = self.has_had_its_time(&held, now);
                let cause = if is_over { Cause::StepTimeout } else { Cause::LeaseExpired };
                (timer::lease_expiry(&held.attempt, fence, now), cause.name())
            }
            // Published by whoever publishes; over; or an activation, which the store has freed.
            StepState::Dispatching
            | StepState::Pending
            | StepState::FailedRetry
            | StepState::Succeeded
            | StepState::FailedFinal
            | StepState::Cancelled
            | StepState::Skipped => return,
        };
        if let Ok(Fired::End(entered)) = fired {
            let message = "the deadline of the attempt has passed".to_owned();
            let error = AttemptError { code: code.to_owned(), message };
            let write = plan::end(&held, entered, None, Some(error));
            self.ends.push(Ending { held, write, has_slot: false, calling: None });
        }
    }

    /// Whether an attempt has taken as long as it may, however alive its worker is.
    fn has_had_its_time(&self, held: &Held, now: Millis) -> bool {
        let pinned = self.pinned(held);
        let policy = &pinned.policies[held.key.step_index as usize];
        held.acked_at.and_then(|at| policy.ends_at(at)).is_some_and(|ends_at| ends_at <= now)
    }

    pub(super) fn take_over(&mut self, dead: EngineNo) {
        if dead == self.engine {
            return;
        }
        let (store, heir) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let taken = store.take_over(dead, heir).await;
            // One that was stopped has given back what it held.
            let (held, dead) = (taken.as_ref().map_or(0, Vec::len), dead.0);
            if held > 0 {
                tracing::warn!(code = "ENGINE_TAKEN_OVER", dead, held, "a silent engine held work");
            } else {
                tracing::info!(code = "ENGINE_TAKEN_OVER", dead, "an engine has gone");
            }
            Done::TakenOver(taken)
        });
    }

    /// Goes on with what a dead engine held: a message is finished, an attempt is lost.
    pub(super) fn adopt(&mut self, held: Held) {
        if held.attempt.ending.is_some() && (held.is_unentered || held.attempt.runs_alone()) {
            self.lone.push(held);
            return;
        }
        if held.attempt.ending.is_some() {
            self.deliver_message(held);
            return;
        }
        let error = AttemptError {
            code: Cause::OwnerLost.name().to_owned(),
            message: "the engine that ran this attempt has died".to_owned(),
        };
        if let Ok(write) = plan::ended_by(&held, EndingKind::OwnerLost, error) {
            self.ends.push(Ending { held, write, has_slot: false, calling: None });
        }
    }

    /// A message that was delivered before: it is finished, unless too many engines have died over it.
    pub(super) fn deliver_message(&mut self, held: Held) {
        let pinned = self.pinned(&held);
        if held.attempt.is_worn_out(&pinned.policies[held.key.step_index as usize]) {
            self.end_message(held.key, plan::wear_out);
        } else {
            self.finish_later(held, None);
        }
    }

    /// A message that cannot be finished as it is: it ends its step for good, with nothing behind it.
    pub(super) fn poison_message(&mut self, key: AttemptKey, reason: String) {
        self.end_message(key, move |held, key| plan::poison_message(held, key, &reason));
    }

    fn end_message(
        &mut self,
        key: AttemptKey,
        end: impl Fn(&Held, &AttemptKey) -> plan::Entering + Send + 'static,
    ) {
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let decide = Box::new(move |held: &Held, _now| Ok(end(held, &key)));
            let answer = store.amend(engine, key.job_id, Some(key.place()), decide).await;
            Done::Entered(answer.map(|found| found.and_then(Result::ok).flatten()))
        });
    }

    /// An activation that can never run: Leg1 fails and its message ends the step.
    pub(super) fn fail_activation(&mut self, key: AttemptKey, code: Code, reason: String) {
        self.next_lease += 1;
        let (store, engine, lease) = (self.store.clone(), self.engine, LeaseId(self.next_lease));
        self.calls.spawn(async move {
            let decide = Box::new(move |held: &Held, now| {
                plan::fail_in_leg1(held, lease, now, (code, reason.as_str()))
            });
            let answer = store.amend(engine, key.job_id, Some(key.place()), decide).await;
            Done::Entered(answer.map(|found| found.and_then(Result::ok).flatten()))
        });
    }

    /// An activation of a job that is being cancelled: Leg1 ends it instead of writing a directive.
    pub(super) fn cancel_activation(&mut self, key: AttemptKey) {
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store
                .amend(
                    engine,
                    key.job_id,
                    Some(key.place()),
                    Box::new(|held: &Held, _now| plan::cancel_in_leg1(held)),
                )
                .await;
            Done::Entered(answer.map(|found| found.and_then(Result::ok).flatten()))
        });
    }
}
