//! What was delivered too often runs alone. A handler that ends its process, or a message that does, takes
//! with it whatever else the engine runs at that moment; so from its third delivery on it gets the engine
//! for itself. The engine starts nothing new, lets what runs end, runs the suspect, and goes on. Both waits
//! have limits: a long handler is not worth standing still for.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

use super::{Done, Heart, Origin};
use crate::plan;
use crate::store::{Answer, Held, Store, StoreError};

/// How long the engine waits for what runs to end before it runs the suspect beside it.
const DRAIN: Duration = Duration::from_secs(30);
/// How long nothing else is started beside a suspect: what brings down its process does so early.
const ALONE: Duration = Duration::from_secs(5);

/// The suspects of an engine, and how far it is with the first.
#[derive(Default)]
pub(super) struct Lone {
    waiting: VecDeque<Held>,
    turn: Option<Turn>,
}

enum Turn {
    /// Nothing new starts, until this time at the latest.
    Drains(Instant),
    /// The suspect is a message, and its delivery is being written down.
    Enters,
    /// The suspect is on its way, until this time at the latest.
    Runs(Instant),
}

impl Lone {
    /// Those that were delivered least come first: they are the least likely culprits.
    pub(super) fn push(&mut self, held: Held) {
        let deliveries = |held: &Held| {
            held.attempt.message_deliveries().unwrap_or(0) + held.attempt.deliveries()
        };
        let at = self.waiting.partition_point(|other| deliveries(other) <= deliveries(&held));
        self.waiting.insert(at, held);
    }

    /// The suspects whose turn has not come.
    pub(super) fn waiting(&self) -> impl Iterator<Item = &Held> {
        self.waiting.iter()
    }

    /// Whether nothing else may start now.
    pub(super) fn holds_back(&self) -> bool {
        self.turn.is_some()
    }

    /// Whether another suspect can be taken in. One at a time: it may not come to its turn.
    pub(super) fn is_free(&self) -> bool {
        self.waiting.is_empty() && self.turn.is_none()
    }

    /// The suspect whose turn it is now, if so.
    fn next(&mut self, is_idle: bool, now: Instant) -> Option<Held> {
        if matches!(self.turn, Some(Turn::Runs(until)) if is_idle || now >= until) {
            self.turn = None;
        }
        if self.turn.is_none() && !self.waiting.is_empty() {
            self.turn = Some(Turn::Drains(now + DRAIN));
        }
        match self.turn {
            Some(Turn::Drains(until)) if is_idle || now >= until => {
                self.turn = Some(Turn::Runs(now + ALONE));
                self.waiting.pop_front()
            }
            Some(Turn::Drains(_) | Turn::Enters | Turn::Runs(_)) | None => None,
        }
    }
}

impl<S: Store> Heart<S> {
    /// Starts the suspect whose turn it is.
    pub(super) fn attend_suspects(&mut self) {
        let is_idle = self.is_idle();
        let held_back = self.lone.holds_back();
        let next = self.lone.next(is_idle, Instant::now());
        if held_back && self.lone.is_free() {
            // What has waited meanwhile, and the next suspect.
            self.may_claim = true;
            self.may_claim_lone = true;
        }
        let Some(held) = next else { return };
        if held.attempt.ending.is_none() {
            self.admit(Origin::Claimed, held);
        } else if held.is_unentered {
            self.enter_alone(&held);
        } else {
            self.deliver_message(held);
        }
    }

    /// Counts the delivery of a message whose turn has come. Not before, with the takeover, or engines that die one
    /// after the other would wear out messages that they never got to.
    fn enter_alone(&mut self, held: &Held) {
        self.lone.turn = Some(Turn::Enters);
        let (store, engine, key) = (self.store.clone(), self.engine, held.key);
        let policy = self.pinned(held).policies[key.step_index as usize].clone();
        self.calls.spawn(async move {
            let decide =
                Box::new(move |held: &Held, _now| Ok(plan::deliver_alone(held, &key, &policy)));
            let answer = store.amend(engine, key.job_id, Some(key.place()), decide).await;
            Done::EnteredAlone(answer.map(|found| found.and_then(Result::ok).flatten()))
        });
    }

    /// The delivery is written down, or nobody knows: then the books are compared, and its turn comes again.
    pub(super) fn entered_alone(&mut self, answer: Answer<Option<Held>>) -> Result<(), StoreError> {
        self.lone.turn = Some(Turn::Runs(Instant::now() + ALONE));
        if let Some(held) = self.heard(answer)?.flatten() {
            self.finish_later(held, None);
        }
        Ok(())
    }

    /// Whether no attempt is on its way through this engine.
    fn is_idle(&self) -> bool {
        self.running.is_empty()
            && self.submits.is_idle()
            && self.sights.is_idle()
            && self.dispatches.is_idle()
            && self.ends.is_idle()
            && self.finishes.is_idle()
            && !self.strangers.are_expected()
            && !self.claiming
    }
}
