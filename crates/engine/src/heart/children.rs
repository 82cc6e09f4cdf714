//! Children: the jobs that steps of kind `job` hand their work to. The directive of such an attempt and the
//! child are one commit, and so are the end of the child and the message that it is to the attempt; here is
//! what leads to the one and follows from the other.

use std::sync::Arc;

use sprag_kernel::decide::rows::Ending;
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal, StepState};

use super::reconcile::Reconciling;
use super::{Done, Heart, Origin, Seeing};
use crate::child::{LOOK_MS, child_of, depth_below, next_look_ms};
use crate::control;
use crate::engine::Pinned;
use crate::graph::Kind;
use crate::ids::EngineNo;
use crate::plan;
use crate::protocol::Protocol;
use crate::store::{Answer, Held, NewChild, NewJob, Store, StoreError};

impl<S: Store> Heart<S> {
    /// Looks for the protocol that the child of an activation follows, and makes the child.
    pub(super) fn seed_child(&mut self, seeing: Seeing, payload: String) {
        let pinned = self.pinned(&seeing.held);
        let Kind::Job(child, _) = &pinned.graph.node(seeing.held.key.step_index).kind else {
            unreachable!("only a step of kind job has a child")
        };
        let (request_type, limit) = (child.request_type.clone(), self.config.max_envelope_bytes);
        let (store, own) = (self.store.clone(), self.own.clone());
        self.calls.spawn(async move {
            let found = serving(store.as_ref(), &own, &request_type).await;
            let seed = (request_type.as_str(), payload.as_str());
            let child = found.map(|found| {
                // Depth first: a protocol that is its own child should hear of that.
                depth_below(&seeing.held)?;
                child_of(&seeing.held, seed, &*found?, limit)
            });
            Done::Seeded(Box::new(seeing), child)
        });
    }

    pub(super) fn seeded(
        &mut self,
        seeing: Seeing,
        answer: Answer<Result<NewJob, Refusal>>,
    ) -> Result<(), StoreError> {
        match answer {
            Ok(Ok(job)) => {
                let node = seeing.held.key.step_index;
                let timeout_ms = self.pinned(&seeing.held).graph.node(node).policy.step_ms;
                let child = Arc::new(NewChild { job, timeout_ms });
                self.dispatch_to(seeing.held, seeing.pull, Some(child));
            }
            Ok(Err(refusal)) => {
                self.vacate(&seeing.held, seeing.pull);
                let (code, reason) = (refusal.code(), refusal.to_string());
                self.fail_activation(seeing.held.key, code, reason);
            }
            Err(error) => {
                // It looks around once more when the store is back.
                self.sights.push(seeing);
                self.heard(Err::<(), _>(error))?;
            }
        }
        Ok(())
    }

    /// The child is there: its parent's attempt is nobody's from now on.
    pub(super) fn child_started(&mut self, held: &Held, child: &NewChild) {
        self.gates.hint(child.job.gates.iter().flatten().cloned());
        self.vacate(held, None);
        self.may_claim = true;
    }

    /// A child was closed by this engine: the message that its end is to the parent is this engine's too.
    pub(super) fn tell_parent(&mut self, child: &Held) {
        let Some((parent, _)) = child.facts.parent() else { return };
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            // Only a look; nothing is amended.
            let look = Box::new(|held: &Held, _now| Ok((None, held.clone())));
            let found = store.amend(engine, parent.job_id, Some(parent.place()), look).await;
            Done::Told(found.map(|found| found.and_then(Result::ok)))
        });
    }

    pub(super) fn told(&mut self, answer: Answer<Option<Held>>) -> Result<(), StoreError> {
        let Some(found) = self.heard(answer)? else {
            self.reconciling = Reconciling::Wanted;
            return Ok(());
        };
        let is_open = |ending: Ending| !ending.guid.children_spawned();
        if let Some(held) = found.filter(|held| held.attempt.ending.is_some_and(is_open)) {
            self.admit(Origin::Orphan, held);
        }
        Ok(())
    }

    /// Whether a child does the work of an attempt.
    pub(super) fn waits_for_child(&self, held: &Held) -> bool {
        let pinned = self.pinned(held);
        let is_job = matches!(pinned.graph.node(held.key.step_index).kind, Kind::Job(..));
        is_job && held.attempt.state == StepState::InProgress && held.attempt.ending.is_none()
    }

    /// The time to look after a child: if its parent is being cancelled, or will not wait any longer, it is
    /// cancelled.
    pub(super) fn tend_child(&mut self, held: Held, now: Millis) {
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let answer = tended(store.as_ref(), engine, (held, now)).await;
            Done::Tended(answer)
        });
    }

    pub(super) fn tended(&mut self, answer: Answer<Vec<Held>>) -> Result<(), StoreError> {
        for held in self.heard(answer)?.into_iter().flatten() {
            self.admit(Origin::Orphan, held);
        }
        self.may_claim = true;
        Ok(())
    }
}

/// Asks for the next look; cancels the children of a job that is ending, or the child whose time is over. Returns
/// the messages that this has entered. The attempt ends when the child has: nothing of an attempt that was given
/// up runs beside the next one.
async fn tended<S: Store>(
    store: &S,
    engine: EngineNo,
    (held, now): (Held, Millis),
) -> Answer<Vec<Held>> {
    let next_look = next_look_ms(&held, now);
    let again = plan::worker::look_again(&held, next_look.unwrap_or(LOOK_MS));
    store.renew(engine, vec![again]).await?;
    let job_id = held.key.job_id;
    let whose = match next_look {
        _ if held.job.is_ending() => (job_id, None),
        None => (job_id, Some(held.key.place())),
        Some(_) => return Ok(Vec::new()),
    };
    let cancelled = control::cancel_children(store, engine, whose).await;
    Ok(cancelled?.into_iter().filter_map(|(_, entered)| entered).collect())
}

/// The protocol that serves a request type: of those that this engine was built with, else the newest stored.
async fn serving<S: Store>(
    store: &S,
    own: &[Arc<Pinned>],
    request_type: &str,
) -> Answer<Result<Arc<Pinned>, Refusal>> {
    if let Some(own) = own.iter().find(|pinned| pinned.protocol.serves(request_type)) {
        return Ok(Ok(own.clone()));
    }
    let stored = store.protocols().await?;
    let mut stored = stored.iter().filter_map(|text| Protocol::read(text).ok());
    let found = stored.find(|protocol| protocol.serves(request_type));
    Ok(found.map(|protocol| Arc::new(Pinned::new(protocol))).ok_or_else(|| {
        Refusal::new(Code::ProtocolUnknown).with("request_type", request_type.to_owned())
    }))
}
