//! What runs under an attempt, a handler or a batch, and how a batch ends its attempt.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use serde_json::Value;
use sprag_kernel::Cause;
use sprag_kernel::decide::callback::Report;
use sprag_kernel::decide::rows::EndingKind;

use super::reconcile::Reconciling;
use super::{Doer, Done, Ending, Finishing, Heart, Op, Running, control};
use crate::batch::keys::BatchPlan;
use crate::batch::run::{BatchEnd, BatchRun};
use crate::batch::store::BatchView;
use crate::batch::{BatchHandler, OutputHandler};
use crate::command;
use crate::directive::{Directive, Failure};
use crate::engine::Pinned;
use crate::graph::Kind;
use crate::ids::AttemptKey;
use crate::outbound;
use crate::plan;
use crate::store::{Answer, AttemptError, Held, Store, StoreError};
use crate::worker::{Context, Returned};

/// What an attempt comes to, as the heart hears it.
pub(super) type Answering<W> = Pin<Box<dyn Future<Output = Op<W>> + Send>>;

impl<S: Store> Heart<S> {
    /// The work of a service for one attempt, about to begin.
    pub(super) fn answer(
        &self,
        held: &Held,
        pinned: &Arc<Pinned>,
        doer: Doer<S::Work>,
        context: Context,
    ) -> Answering<S::Work> {
        let (key, store) = (held.key, self.store.clone());
        let root = &self.config.workspace_root;
        let directive = || Directive::of(held, &pinned.graph, root, &self.payloads, usize::MAX);
        match (pinned.graph.node(key.step_index).batch.clone(), doer) {
            (_, Doer::Control) => {
                let (pinned, held) = (pinned.clone(), held.clone());
                Box::pin(async move {
                    let output = control::run(store, pinned, held).await;
                    let result = output.map(|output| Returned { output, work: None });
                    Op::Returned { key, result }
                })
            }
            (Some(plan), Doer::Exec) => {
                let Kind::Exec(exec) = &pinned.graph.node(key.step_index).kind else {
                    unreachable!("only exec steps have this service")
                };
                let handler = command::for_items(exec.clone());
                self.on_lanes(held, directive(), (plan, handler, None), context)
            }
            (None, Doer::Exec) => {
                let (pinned, directive) = (pinned.clone(), directive());
                beside(key, move || {
                    let Kind::Exec(exec) = &pinned.graph.node(key.step_index).kind else {
                        unreachable!("only exec steps have this service")
                    };
                    command::run(exec, &directive, &context)
                })
            }
            (_, Doer::Http(caller)) => {
                let (pinned, held) = (pinned.clone(), held.clone());
                let max_bytes = self.config.max_output_bytes;
                beside(key, move || {
                    let answer = caller(&outbound::call(&pinned, &held, max_bytes)?)?;
                    outbound::outcome(&answer)
                })
            }
            (None, Doer::Handler(runner)) => {
                let directive = directive();
                Box::pin(async move {
                    Op::Returned { key, result: runner.run(directive, context).await }
                })
            }
            (Some(plan), Doer::Batch(handler, output)) => {
                self.on_lanes(held, directive(), (plan, handler, output), context)
            }
            (_, Doer::Bus(_)) => unreachable!("a directive for a bus goes through the outbox"),
            (Some(_), Doer::Handler(_)) => mismatch(key, "the step is a batch, its service is not"),
            (None, Doer::Batch(..)) => mismatch(key, "the service is of batches, the step is none"),
        }
    }

    /// A batch, about to begin.
    fn on_lanes(
        &self,
        held: &Held,
        directive: Directive,
        (plan, handler, output): (BatchPlan, BatchHandler, Option<OutputHandler<S::Work>>),
        context: Context,
    ) -> Answering<S::Work> {
        let key = held.key;
        let run = BatchRun {
            store: self.store.clone(),
            engine: self.engine,
            held: held.clone(),
            pinned: self.pinned(held),
            directive,
            plan,
            handler,
            output,
            work_limit: self.config.work_limit,
            files: self.config.files.clone(),
            context,
        };
        Box::pin(async move { Op::Batched { key, end: run.run().await } })
    }

    /// A batch has ended, one way or the other.
    pub(super) fn batched(&mut self, key: &AttemptKey, end: BatchEnd) {
        let Some(Running { held, started_at, .. }) = self.running.remove(key) else { return };
        match end {
            BatchEnd::Stored { held, output } => {
                let ending = held.attempt.ending.as_ref();
                let is_done = ending.is_some_and(|ending| ending.kind == EndingKind::Success);
                let report = if is_done { Report::Succeeded } else { Report::NonRetryable };
                self.tell_ran(&held, report, started_at);
                self.vacate_slot(&held);
                self.finish_later(*held, output);
            }
            BatchEnd::Report { report, output, error } => {
                self.tell_ran(&held, report, started_at);
                self.report(held, report, output, Some(error));
            }
            BatchEnd::Stopped => self.batch_stopped(held),
            BatchEnd::Superseded => self.vacate_slot(&held),
        }
    }

    /// It was told to stop, by the end of its time, which has ended the attempt, or by that of this engine.
    /// The latter is none of its fault: as if the engine had been lost, and at once.
    fn batch_stopped(&mut self, held: Held) {
        let error = AttemptError {
            code: Cause::EngineStopped.name().to_owned(),
            message: "the engine stopped; the batch goes on behind what is committed".to_owned(),
        };
        let is_open = held.attempt.ending.is_none();
        let ended = is_open.then(|| plan::ended_by(&held, EndingKind::OwnerLost, error).ok());
        if let Some(write) = ended.flatten() {
            self.ends.push(Ending { held, write, has_slot: true, calling: None });
        } else {
            // It may have given up on a store that was away, with its last commit made all the same.
            self.reconciling = Reconciling::Wanted;
            self.vacate_slot(&held);
        }
    }

    /// Whether an attempt lost its engine over a batch: then its end depends on what it has committed.
    pub(super) fn may_have_got_ahead(&self, held: &Held, ending: Option<EndingKind>) -> bool {
        let lost = ending == Some(EndingKind::OwnerLost);
        lost && self.pinned(held).graph.node(held.key.step_index).batch.is_some()
    }

    /// Looks how far the batch of an attempt has come that is over: nobody moves it any more.
    pub(super) fn measure(&mut self, held: Held, output: Option<String>) {
        let store = self.store.clone();
        self.calls.spawn(async move {
            let answer = store.batch((&held.key).into()).await;
            Done::Measured(Box::new(held), output, answer)
        });
    }

    pub(super) fn measured(
        &mut self,
        mut held: Held,
        output: Option<String>,
        answer: Answer<Option<BatchView>>,
    ) -> Result<(), StoreError> {
        // If the store was away the message is still this engine's: it is found there and measured again.
        let Some(batch) = self.heard(answer)? else {
            self.reconciling = Reconciling::Wanted;
            return Ok(());
        };
        let is_own = |batch: &BatchView| batch.attempt_no == held.key.attempt_no;
        let batch = batch.filter(is_own);
        held.attempt.got_ahead =
            batch.is_some_and(|batch| batch.point.resume.cursor > batch.opened);
        self.finishes.push(Finishing { held, output, enter_next: false, repeats: false });
        Ok(())
    }

    fn vacate_slot(&mut self, held: &Held) {
        let service = self.service_of(held);
        self.release(&service);
    }
}

/// Work that blocks, on a thread that may.
fn beside<W: Send + 'static>(
    key: AttemptKey,
    work: impl FnOnce() -> Result<Value, Failure> + Send + 'static,
) -> Answering<W> {
    Box::pin(async move {
        let ended = tokio::task::spawn_blocking(work).await;
        let result = ended
            .unwrap_or_else(|error| Err(Failure::retryable(Cause::HandlerPanic.name(), error)));
        Op::Returned {
            key,
            result: result.map(|output| Returned { output: Some(output), work: None }),
        }
    })
}

fn mismatch<W: 'static>(key: AttemptKey, message: &'static str) -> Answering<W> {
    let failure = Failure::fatal(Cause::ServiceMismatch.name(), message);
    Box::pin(async move { Op::Returned { key, result: Err(failure) } })
}
