//! Strangers: attempts of a protocol that this engine has not met. It asks the store for the protocol, once, and goes on
//! with them.
//!
//! One that it cannot read was registered by a newer version, or is damaged. What this engine holds of it waits, so that
//! it is not claimed all the time, and is then given back to the queue for an engine that can read it; but not so often that
//! it would run alone, which takes an engine from everybody else. After that it stays here and the protocol is asked for now
//! and then, until it can be read or this engine ends.

use std::collections::HashMap;
use std::sync::Arc;

use sprag_kernel::decide::rows::LONE_DELIVERY;
use sprag_kernel::{Code, Refusal};
use tokio::time::Instant;

use super::{Done, Heart, Origin};
use crate::engine::Pinned;
use crate::protocol::Protocol;
use crate::store::{Held, Store};

#[derive(Default)]
pub(super) struct Strangers {
    /// Those whose protocol is being asked for.
    learning: HashMap<String, Vec<(Origin, Held)>>,
    /// Those whose protocol could not be read, and since when.
    unreadable: Vec<(Instant, Origin, Held)>,
}

impl Strangers {
    /// Whether any are about to be gone on with.
    pub(super) fn are_expected(&self) -> bool {
        !self.learning.is_empty()
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &Held> {
        let learning = self.learning.values().flatten().map(|(_, held)| held);
        learning.chain(self.unreadable.iter().map(|(_, _, held)| held))
    }
}

impl<S: Store> Heart<S> {
    /// Goes on with an attempt that came from the store, once its protocol is known.
    pub(super) fn admit(&mut self, origin: Origin, held: Held) {
        if !self.protocols.contains_key(&held.facts.protocol_id) {
            self.learn(origin, held);
            return;
        }
        match origin {
            Origin::Claimed => self.take_up(held),
            Origin::Due(now) => self.time_has_come(held, now),
            Origin::Orphan => self.adopt(held),
            Origin::Replayed(no) => self.hand_out(no, &held),
            Origin::Unpublished => self.take_from_outbox(held),
            Origin::Called(calling) => self.called(*calling, held),
        }
    }

    /// Asks the store for a protocol that this engine does not know, once. The attempt waits meanwhile.
    fn learn(&mut self, origin: Origin, held: Held) {
        let protocol_id = held.facts.protocol_id.clone();
        let waiting = self.strangers.learning.entry(protocol_id.clone()).or_default();
        waiting.push((origin, held));
        if waiting.len() == 1 {
            let store = self.store.clone();
            self.calls.spawn(async move {
                let answer = store.protocol(&protocol_id).await;
                Done::Learned(protocol_id, answer)
            });
        }
    }

    pub(super) fn learned(&mut self, protocol_id: &str, definition: Option<&str>) {
        let waiting = self.strangers.learning.remove(protocol_id).unwrap_or_default();
        let Some(protocol) = definition.and_then(|text| Protocol::read(text).ok()) else {
            let code = "PROTOCOL_UNREADABLE";
            tracing::error!(code, protocol_id, "cannot go on with its jobs, another engine may");
            for (origin, held) in waiting {
                self.keep_unreadable(origin, held);
            }
            return;
        };
        self.know(Arc::new(Pinned::new(protocol)));
        for (origin, held) in waiting {
            self.admit(origin, held);
        }
    }

    /// What this engine holds waits; whoever waits for the rest hears that it cannot be gone on with.
    fn keep_unreadable(&mut self, origin: Origin, held: Held) {
        match origin {
            Origin::Claimed | Origin::Orphan | Origin::Unpublished => {
                self.strangers.unreadable.push((Instant::now(), origin, held));
            }
            // The next look at the timers finds it again.
            Origin::Due(_) => {}
            Origin::Replayed(no) => self.withhold(no),
            Origin::Called(calling) => calling.answer(Err(Refusal::new(Code::StoreUnavailable)
                .with("reason", "the protocol of the job cannot be read"))),
        }
    }

    /// Gives those back that have waited as long as it would take somebody to take over from this engine, or asks for
    /// their protocol again.
    pub(super) fn look_after_unreadable(&mut self) {
        let patience = self.config.takeover;
        let over = |(since, _, _): &mut (Instant, Origin, Held)| since.elapsed() >= patience;
        let over: Vec<_> = self.strangers.unreadable.extract_if(.., over).collect();
        for (_, origin, held) in over {
            let may_be_claimed = held.attempt.deliveries() + 1 < u64::from(LONE_DELIVERY);
            if matches!(origin, Origin::Claimed) && may_be_claimed {
                self.give_back(&held);
            } else {
                self.admit(origin, held);
            }
        }
        if let Some((since, _, _)) = self.strangers.unreadable.first() {
            let left = patience.saturating_sub(since.elapsed());
            self.rest.wake_in(u64::try_from(left.as_millis()).unwrap_or(u64::MAX));
        }
    }
}
