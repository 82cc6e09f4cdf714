//! Reconciling: after an answer that got lost, the store may say that this engine holds something that the
//! heart has never heard of: a claim or a takeover that was committed all the same, the first step of a job
//! that was submitted. Nobody else would touch it while this engine lives. So the two are compared.
//!
//! It is done when no call is under way, so that nothing is about to be heard of; and what is taken up twice
//! in spite of it finds its row moved on, by the guards.

use std::collections::HashSet;

use sprag_kernel::StepState;

use super::{Done, Heart, Origin};
use crate::ids::AttemptKey;
use crate::store::{Answer, Held, Store, StoreError};

/// How far an engine is with it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Reconciling {
    /// The heart knows all that it holds.
    #[default]
    No,
    /// As soon as no call is under way.
    Wanted,
    /// The store is being asked.
    Asking,
}

impl<S: Store> Heart<S> {
    /// Whether nothing may start before the books are compared; asks for them if the moment is there.
    pub(super) fn reconciles(&mut self) -> bool {
        match self.reconciling {
            Reconciling::No => false,
            Reconciling::Asking => true,
            Reconciling::Wanted => {
                if self.calls.is_empty() {
                    self.reconciling = Reconciling::Asking;
                    let (store, engine) = (self.store.clone(), self.engine);
                    self.calls.spawn(async move { Done::Reconciled(store.held_by(engine).await) });
                }
                true
            }
        }
    }

    pub(super) fn reconciled(&mut self, answer: Answer<Vec<Held>>) -> Result<(), StoreError> {
        self.reconciling = Reconciling::No;
        // If the store is away again, this asks for another time.
        let Some(all) = self.heard(answer)? else { return Ok(()) };
        let known = self.known();
        for held in all.into_iter().filter(|held| !known.contains(&held.key)) {
            let origin = if held.attempt.ending.is_some() {
                Origin::Orphan
            } else if held.attempt.lease_id.is_none() {
                Origin::Claimed
            } else if held.attempt.state == StepState::Dispatching {
                Origin::Unpublished
            } else {
                Origin::Orphan
            };
            tracing::warn!(code = "ATTEMPT_RECONCILED", job_id = %held.key.job_id, "found again");
            self.admit(origin, held);
        }
        Ok(())
    }

    /// Every attempt that the heart has on its mind.
    fn known(&self) -> HashSet<AttemptKey> {
        self.running
            .keys()
            .copied()
            .chain(self.publishing.iter().copied())
            .chain(self.sights.waiting().map(|seeing| seeing.held.key))
            .chain(self.bench.waiting())
            .chain(self.waits.waiting().map(|seeing| seeing.held.key))
            .chain(self.submits.waiting().filter_map(|it| Some(it.ahead.as_ref()?.held.key)))
            .chain(self.dispatches.waiting().map(|dispatching| dispatching.held.key))
            .chain(self.ends.waiting().map(|ending| ending.held.key))
            .chain(self.works.keys())
            .chain(self.finishes.waiting().map(|finishing| finishing.held.key))
            .chain(self.lone.waiting().map(|held| held.key))
            .chain(self.strangers.all().map(|held| held.key))
            .collect()
    }
}
