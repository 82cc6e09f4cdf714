//! Steps 1 to 3 of messages that have entered, and the next step of a sequence, which keeps a slot of this engine.

use std::sync::Arc;

use sprag_kernel::decide::rows::EndingKind;
use sprag_kernel::{Code, Refusal, State, StepState};

use super::phase::Refused;
use super::reconcile::Reconciling;
use super::{Done, Ending, Finishing, Heart};
use crate::callback::Heard;
use crate::engine::Pinned;
use crate::graph::Kind;
use crate::graph::duties::End;
use crate::pairs::Over;
use crate::plan;
use crate::store::{Answer, FinishOutcome, FinishWrite, Held, Store, StoreError, Tells};

impl Finishing {
    /// The end of the attempt, as it is if nothing follows in its place.
    fn end(&self) -> End<'_> {
        let kind = self.held.attempt.ending.map(|ending| ending.kind);
        let state = match kind {
            Some(EndingKind::Success) => StepState::Succeeded,
            Some(EndingKind::Skip) => StepState::Skipped,
            Some(_) | None => StepState::FailedFinal,
        };
        End {
            place: self.held.key.place(),
            state,
            output: self.output.as_deref(),
            item: self.held.item.as_deref(),
            facts: &self.held.facts,
        }
    }
}

/// Steps 1 to 3 of a message, as they are planned: at once, or beside the heart.
enum Planned {
    Here(Box<FinishWrite>),
    Beside(Arc<Pinned>, Box<Finishing>),
}

/// Whether an end opens branches: each has an item, and perhaps a key that is evaluated, and there may be many.
fn is_opener(held: &Held, pinned: &Pinned) -> bool {
    matches!(pinned.graph.node(held.key.step_index).kind, Kind::Fan(_))
}

/// Steps 1 to 3 of a message of a graph.
fn in_graph(finishing: &Finishing, pinned: &Pinned) -> FinishWrite {
    let (held, end) = (&finishing.held, finishing.end());
    let policy = &pinned.policies[held.key.step_index as usize];
    let duties = pinned.graph.duties(&end, &pinned.steps);
    let is_tolerated = pinned.graph.scope_of(end.place.step_index).tolerates;
    let planned =
        duties.and_then(|duties| plan::finish_in_graph(held, policy, (duties, is_tolerated)));
    planned.expect("a message that has entered can be finished")
}

impl<S: Store> Heart<S> {
    pub(super) fn finish_later(&mut self, held: Held, output: Option<String>) {
        self.finish_perhaps_again(held, output, false);
    }

    /// The same for a message that may have been finished already, by a call whose outcome was lost.
    pub(super) fn finish_perhaps_again(
        &mut self,
        held: Held,
        output: Option<String>,
        repeats: bool,
    ) {
        let output = output.or_else(|| held.output.clone());
        if self.may_have_got_ahead(&held, held.attempt.ending.map(|ending| ending.kind)) {
            self.measure(held, output);
        } else {
            // What a first try has entered is found in the books: a second one enters nothing.
            let enter_next = !repeats && self.reserve_next(&held);
            self.finishes.push(Finishing { held, output, enter_next, repeats });
        }
    }

    /// Takes a slot for the next step of a sequence as soon as this one is done with its own: what has begun goes on
    /// before anything else begins, and need not be claimed.
    fn reserve_next(&mut self, held: &Held) -> bool {
        let ending = held.attempt.ending.map(|ending| ending.kind);
        if held.job.is_graph || ending != Some(EndingKind::Success) {
            return false;
        }
        let pinned = self.pinned(held);
        let next = pinned.steps.get(held.key.step_index as usize + 1);
        next.is_some_and(|next| next.limit.is_none() && self.reserve(&next.service))
    }

    /// Gives that slot back.
    fn release_next(&mut self, finishing: &mut Finishing) {
        if std::mem::take(&mut finishing.enter_next) {
            let pinned = self.pinned(&finishing.held);
            self.release(&pinned.steps[finishing.held.key.step_index as usize + 1].service);
        }
    }

    /// Whether Steps 1 to 3 can be planned before the message is stored, and here.
    pub(super) fn may_finish_soon(&self, Ending { held, write, .. }: &Ending) -> bool {
        let is_known = !write.repeats && !self.may_have_got_ahead(held, Some(write.ending.kind));
        is_known && !is_opener(held, &self.pinned(held))
    }

    /// Stores a few messages and finishes them at once.
    pub(super) fn end_soon(&mut self, group: Vec<Ending>) {
        let (mut pairs, mut messages) = (Vec::new(), Vec::new());
        for mut ending in group {
            // What the next step is given may be much, and goes along.
            let inputs = std::mem::take(&mut ending.held.inputs);
            let held = Held { inputs, ..plan::entered(ending.held.clone(), &ending.write) };
            let output = ending.write.output.clone().or_else(|| held.output.clone());
            // Its slot is free for the next step.
            if ending.has_slot {
                self.free_slot(&held);
            }
            let enter_next = self.reserve_next(&held);
            let mut finishing = Finishing { held, output, enter_next, repeats: false };
            let (tasks, tells) = self.besides(&finishing.held);
            let write = FinishWrite { tasks, tells, ..self.finish_write(&mut finishing) };
            messages.push((ending.write.clone(), write));
            pairs.push((ending, finishing));
        }
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = store.end_and_finish(engine, messages).await;
            Done::Over(pairs, answer)
        });
    }

    pub(super) fn over_soon(
        &mut self,
        group: Vec<(Ending, Finishing)>,
        answer: Answer<Vec<Over>>,
    ) -> Result<(), StoreError> {
        let outcomes = match answer {
            Ok(outcomes) => outcomes,
            Err(error) => return self.over_failed(group, error),
        };
        self.ends.done();
        for ((mut ending, mut finishing), (ended, finished)) in group.into_iter().zip(outcomes) {
            let Some(outcome) = finished else {
                self.take_back(&mut ending, &mut finishing);
                self.ended_one(ending, ended);
                continue;
            };
            if let Some(calling) = ending.calling {
                calling.answer(Ok(Heard::Done));
            }
            self.finished_one(finishing, outcome)?;
        }
        Ok(())
    }

    /// Nobody knows how far the two commits came. The messages are stored again, one phase after the other, and what has
    /// entered is known by its content.
    fn over_failed(
        &mut self,
        group: Vec<(Ending, Finishing)>,
        error: StoreError,
    ) -> Result<(), StoreError> {
        let mut endings = Vec::with_capacity(group.len());
        for (mut ending, mut finishing) in group {
            self.take_back(&mut ending, &mut finishing);
            ending.write.repeats = true;
            endings.push(ending);
        }
        self.ends.again(endings);
        match error {
            StoreError::Fenced => Err(StoreError::Fenced),
            StoreError::Unavailable(_) => self.heard(Err::<(), _>(error)).map(|_| ()),
            StoreError::Poison(_) | StoreError::Refused(_) => Ok(()),
        }
    }

    /// As it was before Steps 1 to 3 were planned.
    fn take_back(&mut self, ending: &mut Ending, finishing: &mut Finishing) {
        self.release_next(finishing);
        ending.held.inputs = std::mem::take(&mut finishing.held.inputs);
        if ending.has_slot {
            let service = self.service_of(&ending.held);
            self.occupy(&service);
        }
    }

    /// What the closing commit of a job writes besides, and whom it tells.
    fn besides(&self, held: &Held) -> (Arc<[String]>, Option<Tells>) {
        let pinned = self.pinned(held);
        let tells = held.facts.parent().map(|(parent, _)| {
            let results = pinned.results.clone();
            Tells { parent, results, max_bytes: self.config.max_output_bytes }
        });
        (self.tasks(&pinned), tells)
    }

    pub(super) fn finish(&mut self) {
        let Some(mut group) = self.finishes.next_group() else { return };
        let mut planned = Vec::with_capacity(group.len());
        for finishing in &mut group {
            let pinned = self.pinned(&finishing.held);
            let (tasks, tells) = self.besides(&finishing.held);
            let write = if is_opener(&finishing.held, &pinned) {
                Planned::Beside(pinned, Box::new(finishing.clone()))
            } else {
                Planned::Here(Box::new(self.finish_write(finishing)))
            };
            planned.push((write, finishing.repeats, tasks, tells));
        }
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let mut writes = Vec::with_capacity(planned.len());
            for (write, repeats, tasks, tells) in planned {
                let write = match write {
                    Planned::Here(write) => *write,
                    Planned::Beside(pinned, finishing) => {
                        let plan = move || in_graph(&finishing, &pinned);
                        match tokio::task::spawn_blocking(plan).await {
                            Ok(write) => write,
                            Err(error) => {
                                let error = StoreError::Poison(error.to_string());
                                return Done::Finished(group, Err(error));
                            }
                        }
                    }
                };
                writes.push(FinishWrite { tasks, tells, repeats, ..write });
            }
            let answer = store.finish(engine, writes).await;
            Done::Finished(group, answer)
        });
    }

    /// What the closing commit of a job records besides.
    fn tasks(&self, pinned: &Pinned) -> Arc<[String]> {
        if self.every_end.is_empty() {
            return pinned.tasks.clone();
        }
        let named = pinned.tasks.iter().filter(|task| !self.every_end.contains(task));
        self.every_end.iter().chain(named).cloned().collect()
    }

    fn finish_write(&mut self, finishing: &mut Finishing) -> FinishWrite {
        let pinned = self.pinned(&finishing.held);
        if finishing.held.job.is_graph {
            return in_graph(finishing, &pinned);
        }
        if self.stopping.is_some() {
            self.release_next(finishing);
        }
        let index = finishing.held.key.step_index as usize;
        plan::finish(&finishing.held, &pinned.policies[index], finishing.enter_next)
            .expect("a message that has entered can be finished")
    }

    pub(super) fn finished(
        &mut self,
        group: Vec<Finishing>,
        answer: Answer<Vec<FinishOutcome>>,
    ) -> Result<(), StoreError> {
        let outcomes = match answer {
            Ok(outcomes) => outcomes,
            Err(error) => return self.finish_failed(group, error),
        };
        self.finishes.done();
        for (finishing, outcome) in group.into_iter().zip(outcomes) {
            self.finished_one(finishing, outcome)?;
        }
        Ok(())
    }

    fn finish_failed(
        &mut self,
        mut group: Vec<Finishing>,
        error: StoreError,
    ) -> Result<(), StoreError> {
        // As with directives: some of the group may be finished.
        for finishing in &mut group {
            self.release_next(finishing);
            finishing.repeats = true;
        }
        match error {
            StoreError::Fenced => Err(StoreError::Fenced),
            StoreError::Unavailable(_) => {
                self.finishes.again(group);
                self.heard(Err::<(), _>(error)).map(|_| ())
            }
            StoreError::Poison(_) | StoreError::Refused(_) => {
                if let Refused::Culprit(Finishing { held, .. }) = self.finishes.refused(group) {
                    let (key, code) = (held.key, Code::MessagePoison.name());
                    tracing::error!(code, job_id = %key.job_id, %error, "a message cannot be finished");
                    let is_final = |ending: sprag_kernel::decide::rows::Ending| {
                        ending.kind == EndingKind::NonRetryable
                    };
                    // If even that is refused, the message stays with this engine for an operator to see.
                    if !held.attempt.ending.is_some_and(is_final) {
                        self.poison_message(key, error.to_string());
                    }
                }
                Ok(())
            }
        }
    }

    fn finished_one(
        &mut self,
        mut finishing: Finishing,
        outcome: FinishOutcome,
    ) -> Result<(), Refusal> {
        self.finished_at_gate(&finishing.held);
        if let FinishOutcome::Done { job_version, entered_next: true, .. } = outcome {
            if finishing.enter_next {
                let Finishing { held, output, .. } = finishing;
                self.dispatch_later(plan::entered_next(&held, job_version, output)?);
            } else {
                // A try whose answer got lost has entered it.
                self.reconciling = Reconciling::Wanted;
            }
            return Ok(());
        }
        if let FinishOutcome::Done { job, .. } = outcome {
            self.may_claim |= !job.is_terminal();
            if job.is_terminal() {
                self.ended.notify_one();
                self.closings.tell(finishing.held.key.job_id, job);
                self.tell_parent(&finishing.held);
            }
        }
        self.release_next(&mut finishing);
        Ok(())
    }
}
