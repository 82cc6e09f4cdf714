//! The publisher: directives of bus services, from the outbox to the transport.
//!
//! A row is published by the engine that owns it: the one that wrote it, or one that took it from the queue of
//! rows whose time has come. So of two publishers one publishes. It leaves after its commit, and is marked as
//! sent afterwards; if the engine dies in between it is published again, and a worker may see it twice. Until
//! it is marked, or waits for its next try, it holds one of the places that limit how much is under way.

use std::time::Duration;

use super::{Doer, Done, Heart, Op, Origin, Renewing};
use crate::bus::Letter;
use crate::crash::crash_point;
use crate::directive::Directive;
use crate::ids::AttemptKey;
use crate::limits::MAX_HANDED_BYTES;
use crate::plan::worker;
use crate::store::{Answer, Held, Store, StoreError};

/// How long a transport may take to take a directive.
const PUBLISH_LIMIT: Duration = Duration::from_secs(10);

impl<S: Store> Heart<S> {
    /// Hands a committed directive to its transport.
    pub(super) fn publish(&mut self, held: Held) {
        crash_point("heart.before_publish");
        let pinned = self.pinned(&held);
        let service = self.service_of(&held);
        let Some(Doer::Bus(bus)) = self.services.get(&service).map(|service| &service.doer) else {
            unreachable!("only directives of bus services wait in the outbox")
        };
        let (bus, ops) = (bus.clone(), self.ops.clone());
        let root = &self.config.workspace_root;
        let directive = Directive::of(&held, &pinned.graph, root, &self.payloads, MAX_HANDED_BYTES);
        let route = held.facts.route.clone();
        let letter = Letter { service, lane: route.lane, routing_key: route.key, directive };
        self.publishing.insert(held.key);
        tokio::spawn(async move {
            let taken = tokio::time::timeout(PUBLISH_LIMIT, bus.publish(letter)).await;
            let taken = taken.unwrap_or_else(|_| Err("the transport did not answer".to_owned()));
            // If the heart is gone, whoever takes over publishes again.
            let _ = ops.send(Op::Published { held: Box::new(held), taken });
        });
    }

    /// The transport has answered.
    pub(super) fn published(&mut self, held: Held, taken: Result<(), String>) {
        crash_point("heart.after_publish");
        let pinned = self.pinned(&held);
        let policy = &pinned.policies[held.key.step_index as usize];
        match taken {
            Ok(()) => match worker::published(&held, policy) {
                Ok(write) => self.renews.push(Renewing::sent(held, write)),
                Err(refusal) => {
                    tracing::error!(code = refusal.code().name(), job_id = %held.key.job_id,
                        "a directive that was published cannot be marked so");
                    self.no_longer_publishing(&held);
                }
            },
            Err(reason) => self.publish_failed(&held, reason),
        }
    }

    /// The row waits for its next try, or its message ends the step.
    fn publish_failed(&mut self, held: &Held, reason: String) {
        let pinned = self.pinned(held);
        let (store, engine, key) = (self.store.clone(), self.engine, held.key);
        let version = held.attempt.version;
        self.no_longer_publishing(held);
        self.calls.spawn(async move {
            let policy = pinned.policies[key.step_index as usize].clone();
            let decide = Box::new(move |held: &Held, now| {
                worker::publish_failed(held, version, &policy, (now, &reason))
            });
            let answer = store.amend(engine, key.job_id, Some(key.place()), decide).await;
            Done::Entered(answer.map(|found| found.and_then(Result::ok).flatten()))
        });
    }

    /// Its place is free: it is sent, waits, or was cancelled meanwhile.
    pub(super) fn no_longer_publishing(&mut self, held: &Held) {
        self.publishing.remove(&held.key);
        let service = self.service_of(held);
        self.release(&service);
    }

    /// Takes rows whose time has come from the outbox.
    pub(super) fn look_into_outbox(&mut self) {
        let wishes: Vec<(String, u32)> = self
            .services
            .iter()
            .filter(|(_, service)| matches!(service.doer, Doer::Bus(_)) && service.free > 0)
            .map(|(name, service)| (name.clone(), u32::try_from(service.free).unwrap_or(u32::MAX)))
            .collect();
        if wishes.is_empty() || self.stopping.is_some() {
            return;
        }
        let most = wishes.iter().map(|(_, free)| *free).max().unwrap_or_default();
        let services = wishes.into_iter().map(|(name, _)| name).collect();
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            Done::Unpublished(store.unpublished(engine, services, most).await)
        });
    }

    pub(super) fn unpublished(&mut self, answer: Answer<Vec<Held>>) -> Result<(), StoreError> {
        for held in self.heard(answer)?.unwrap_or_default() {
            self.admit(Origin::Unpublished, held);
        }
        Ok(())
    }

    /// A row that this engine has taken from the outbox. If its job is ending, nobody is to begin any more.
    pub(super) fn take_from_outbox(&mut self, held: Held) {
        if held.job.is_ending() {
            self.close_unpublished(held.key, held.attempt.version);
            return;
        }
        let service = self.service_of(&held);
        self.occupy(&service);
        self.publish(held);
    }

    fn close_unpublished(&mut self, key: AttemptKey, version: u64) {
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let decide =
                Box::new(move |held: &Held, _now| worker::close_unpublished(held, version));
            let answer = store.amend(engine, key.job_id, Some(key.place()), decide).await;
            Done::Entered(answer.map(|found| found.and_then(Result::ok).flatten()))
        });
    }
}
