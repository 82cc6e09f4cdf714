//! Waits: an activation that waits for a signal looks for it before it is dispatched. If there is none it is
//! parked, and its slot is free; the signal, or its time, brings it back here.

use super::phase::Refused;
use super::{Done, Heart, Seeing};
use crate::graph::Kind;
use crate::signals::{WaitOutcome, WaitWrite};
use crate::store::{Answer, Held, Store, StoreError};
use sprag_kernel::Code;

impl<S: Store> Heart<S> {
    /// Goes on with an activation that is to run: at once, or when its signal is there.
    pub(super) fn run_or_wait(&mut self, held: Held, pull: Option<u64>) {
        let pinned = self.pinned(&held);
        match pinned.graph.node(held.key.step_index).kind {
            Kind::Wait(..) => self.waits.push(Seeing { held, pull }),
            Kind::Work
            | Kind::Fan(_)
            | Kind::Gather { .. }
            | Kind::Begin { .. }
            | Kind::Loop(_)
            | Kind::Join
            | Kind::Sleep
            | Kind::Job(..)
            | Kind::Exec(_)
            | Kind::Http(..) => self.dispatch_for(held, pull),
        }
    }

    /// Asks for the signals of a group.
    pub(super) fn wait(&mut self) {
        let Some(group) = self.waits.next_group() else { return };
        let writes: Vec<WaitWrite> = group.iter().map(|seeing| self.wait_write(seeing)).collect();
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move { Done::Waited(group, store.wait(engine, writes).await) });
    }

    fn wait_write(&self, Seeing { held, .. }: &Seeing) -> WaitWrite {
        let pinned = &self.protocols[&held.facts.protocol_id];
        let Kind::Wait(wait, _) = &pinned.graph.node(held.key.step_index).kind else {
            unreachable!("only waits are asked for")
        };
        WaitWrite {
            key: held.key,
            version: held.attempt.version,
            signal: wait.signal.clone(),
            timeout_ms: wait.timeout,
        }
    }

    pub(super) fn waited(
        &mut self,
        group: Vec<Seeing>,
        answer: Answer<Vec<WaitOutcome>>,
    ) -> Result<(), StoreError> {
        let outcomes = match answer {
            Ok(outcomes) => outcomes,
            Err(StoreError::Fenced) => return Err(StoreError::Fenced),
            Err(error @ StoreError::Unavailable(_)) => {
                self.waits.again(group);
                return self.heard(Err::<(), _>(error)).map(|_| ());
            }
            Err(error @ (StoreError::Poison(_) | StoreError::Refused(_))) => {
                if let Refused::Culprit(Seeing { held, pull }) = self.waits.refused(group) {
                    self.vacate(&held, pull);
                    self.fail_activation(held.key, Code::MessagePoison, error.to_string());
                }
                return Ok(());
            }
        };
        self.waits.done();
        for (Seeing { held, pull }, outcome) in group.into_iter().zip(outcomes) {
            match outcome {
                WaitOutcome::Runs => self.dispatch_for(held, pull),
                WaitOutcome::Parked | WaitOutcome::Gone => self.vacate(&held, pull),
                WaitOutcome::Ending => {
                    self.vacate(&held, pull);
                    self.cancel_activation(held.key);
                }
            }
        }
        Ok(())
    }
}
