//! Endings with work: the RESULT of a transactional handler is stored in the transaction that runs its
//! work. Each is a call of its own, so that one that is slow or fails holds up nobody; a store that commits
//! groups still commits them together.

use std::collections::VecDeque;

use sprag_kernel::decide::callback::Report;

use super::{Done, Ending, Heart};
use crate::ids::AttemptKey;
use crate::plan;
use crate::store::{Answer, EndOutcome, Held, Store, StoreError, Worked};

/// How many calls with work may be under way.
const CALLS: usize = 64;

/// A message on its way into Leg2, with the work that it brings along.
pub(super) struct Working<W> {
    ending: Ending,
    work: W,
}

/// Those that wait, and how many are under way.
pub(super) struct Works<W> {
    waiting: VecDeque<Working<W>>,
    under_way: usize,
}

impl<W> Default for Works<W> {
    fn default() -> Self {
        Self { waiting: VecDeque::new(), under_way: 0 }
    }
}

impl<W> Works<W> {
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The attempts of those that wait.
    pub(super) fn keys(&self) -> impl Iterator<Item = AttemptKey> {
        self.waiting.iter().map(|working| working.ending.held.key)
    }
}

impl<S: Store> Heart<S> {
    pub(super) fn work_later(&mut self, held: Held, output: Option<String>, work: S::Work) {
        match plan::result(&held, Report::Succeeded, output, None) {
            Ok(Some(write)) => {
                let ending = Ending { held, write, has_slot: true, calling: None };
                self.works.waiting.push_back(Working { ending, work });
            }
            Ok(None) | Err(_) => self.free_slot(&held),
        }
    }

    pub(super) fn work(&mut self) {
        while self.works.under_way < CALLS
            && let Some(working) = self.works.waiting.pop_front()
        {
            self.works.under_way += 1;
            let (store, engine, limit) = (self.store.clone(), self.engine, self.config.work_limit);
            let (write, work) = (working.ending.write.clone(), working.work.clone());
            self.calls.spawn(async move {
                let answer = store.end_with(engine, write, work, limit).await;
                Done::Worked(Box::new(working), answer)
            });
        }
    }

    pub(super) fn worked(
        &mut self,
        mut working: Working<S::Work>,
        answer: Answer<Worked>,
    ) -> Result<(), StoreError> {
        self.works.under_way -= 1;
        match answer {
            Ok(Worked::Entered { version }) => {
                self.ended_one(working.ending, EndOutcome::Entered { version });
            }
            Ok(Worked::Stale) => self.ended_one(working.ending, EndOutcome::Stale),
            Ok(Worked::Failed(failure)) => self.report_failure(working.ending.held, &failure),
            Err(StoreError::Fenced) => return Err(StoreError::Fenced),
            Err(error @ StoreError::Unavailable(_)) => {
                // Both may be committed already; the store recognises that, and then leaves the work alone.
                working.ending.write.repeats = true;
                self.works.waiting.push_front(working);
                self.heard(Err::<(), _>(error))?;
            }
            Err(error @ (StoreError::Poison(_) | StoreError::Refused(_))) => {
                self.end_poisoned(working.ending, &error);
            }
        }
        Ok(())
    }
}
