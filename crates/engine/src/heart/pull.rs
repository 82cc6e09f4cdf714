//! Pull: workers outside claim work. A claim waits here until its directives are committed, or its time is
//! over.
//!
//! First the store is asked what was handed out under the claim's id before; that is the answer then, whoever
//! gave it. Else the claim asks for activations, one service after the other and never for more than it can
//! take: what is claimed has entered Leg1, and the entries of an activity are counted. Directives carry the
//! claim's id into the store in the commit that hands them out, so an answer that gets lost can be had again.

use std::collections::{BTreeMap, HashMap};

use sprag_kernel::{Code, Refusal};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::intake::SLICE;
use super::phase::Phase;
use super::{Done, Heart, Origin};
use crate::callback::{AckMode, Claim, MAX_WAIT};
use crate::crash::crash_point;
use crate::directive::Directive;
use crate::limits::MAX_HANDED_BYTES;
use crate::store::{Answer, HandOff, Held, Pick, Store, StoreError, Wish};

/// How many claims may wait at one engine: each is a connection of a worker.
const MAX_PULLS: usize = 10_000;

pub(crate) type ClaimReply = oneshot::Sender<Result<Vec<Directive>, Refusal>>;

/// A claim that waits for its answer.
pub(super) struct Pull {
    claim: Claim,
    /// More than one if the worker repeats itself while it waits.
    replies: Vec<ClaimReply>,
    until: Instant,
    /// Whether the store was asked what the claim has got before.
    is_looked_up: bool,
    /// How many of its services were asked since something new may be there.
    asked: usize,
    /// Directives on their way.
    expected: usize,
    ready: Vec<Directive>,
}

impl Pull {
    /// Whether it can be given activations.
    fn is_open(&self) -> bool {
        self.is_looked_up && self.expected == 0 && self.ready.is_empty()
    }

    /// Whether it may end with nothing once its time is over: it has asked for everything, or the store
    /// is away and cannot be asked.
    fn may_expire(&self, is_away: bool) -> bool {
        let has_asked = self.is_open() && self.asked >= self.claim.services.len();
        self.expected == 0 && (has_asked || is_away)
    }

    fn has_room(&self) -> bool {
        self.is_looked_up && self.expected + self.ready.len() < self.claim.max as usize
    }
}

/// The claims that wait, in the order in which they came.
pub(super) struct Pulls {
    waiting: BTreeMap<u64, Pull>,
    by_claim: HashMap<String, u64>,
    next_no: u64,
    pub(super) lookups: Phase<u64>,
}

impl Pulls {
    pub(super) fn new() -> Self {
        Self {
            waiting: BTreeMap::new(),
            by_claim: HashMap::new(),
            next_no: 0,
            lookups: Phase::new(),
        }
    }

    /// Something new may be there for everyone.
    pub(super) fn begin_round(&mut self) {
        self.waiting.values_mut().for_each(|pull| pull.asked = 0);
    }

    /// Whether some claim has not asked all its services yet.
    pub(super) fn is_round_open(&self) -> bool {
        self.waiting.values().any(|pull| pull.is_open() && pull.asked < pull.claim.services.len())
    }

    /// Whether a claim could still be given activations of a service.
    pub(super) fn want(&self, service: &str) -> bool {
        let serves = |pull: &Pull| pull.claim.services.iter().any(|name| name == service);
        self.waiting.values().any(|pull| pull.is_open() && serves(pull))
    }

    /// What the claims ask for now, by service and tenant.
    pub(super) fn wishes(&mut self) -> Vec<Wish> {
        let mut wishes: HashMap<(String, Option<String>), u32> = HashMap::new();
        for pull in self.waiting.values_mut().filter(|pull| pull.is_open()) {
            if let Some(service) = pull.claim.services.get(pull.asked) {
                let whose = (service.clone(), pull.claim.tenant_id.clone());
                *wishes.entry(whose).or_default() += pull.claim.max;
                pull.asked += 1;
            }
        }
        // Who takes work outside does not die with this process: nothing is a suspect there.
        let wish = |((service, tenant_id), max): ((String, Option<String>), u32)| Wish {
            service,
            max: max.min(SLICE),
            pick: Pick::Any,
            tenant_id,
        };
        wishes.into_iter().map(wish).collect()
    }

    /// A place for an activation of a service and tenant, with the claim that waited longest. One that takes
    /// nothing else comes first, or what was claimed for it would go to those who have a choice.
    pub(super) fn seat(&mut self, service: &str, tenant_id: &str) -> Option<u64> {
        let fits = |pull: &Pull| {
            let is_served = pull.claim.services.iter().any(|name| name == service);
            pull.has_room() && is_served && pull.claim.takes(tenant_id)
        };
        let mut fitting = self.waiting.iter().filter(|(_, pull)| fits(pull));
        let bound = |(_, pull): &(&u64, &Pull)| pull.claim.tenant_id.is_some();
        let first = fitting.clone().find(bound).or_else(|| fitting.next());
        let no = first.map(|(no, _)| *no)?;
        self.waiting.get_mut(&no).expect("it was just found").expected += 1;
        Some(no)
    }

    /// How the directives of a claim are handed out, and under which id.
    pub(super) fn hand_off(&self, no: u64) -> Option<(HandOff, String)> {
        let claim = &self.waiting.get(&no)?.claim;
        let hand_off = match claim.ack {
            AckMode::Auto => HandOff::Pulled,
            AckMode::Explicit => HandOff::PulledUnacked,
        };
        Some((hand_off, claim.key()))
    }

    fn remove(&mut self, no: u64) -> Option<Pull> {
        let pull = self.waiting.remove(&no)?;
        self.by_claim.remove(&pull.claim.key());
        Some(pull)
    }

    /// When the next claim gives up, of those that can.
    pub(super) fn next_deadline(&self, is_away: bool) -> Option<Instant> {
        let idle = self.waiting.values().filter(|pull| pull.may_expire(is_away));
        idle.map(|pull| pull.until).min()
    }
}

impl<S: Store> Heart<S> {
    pub(super) fn pull(&mut self, claim: Claim, reply: ClaimReply) {
        self.serving.pulled(&claim.services);
        let key = claim.key();
        if let Some(no) = self.pulls.by_claim.get(&key) {
            let pull = self.pulls.waiting.get_mut(no).expect("both are kept together");
            pull.replies.push(reply);
            return;
        }
        if self.stopping.is_some() || self.pulls.waiting.len() >= MAX_PULLS {
            let refusal = Refusal::new(Code::StoreUnavailable)
                .with("reason", "the engine stops, or too many claims wait at it");
            let _ = reply.send(Err(refusal));
            return;
        }
        let no = self.pulls.next_no;
        self.pulls.next_no += 1;
        self.pulls.by_claim.insert(key, no);
        let pull = Pull {
            until: Instant::now() + claim.wait.min(MAX_WAIT),
            replies: vec![reply],
            is_looked_up: false,
            asked: 0,
            expected: 0,
            ready: Vec::new(),
            claim,
        };
        self.pulls.waiting.insert(no, pull);
        self.pulls.lookups.push(no);
    }

    /// Asks what the newest claims have got before.
    pub(super) fn look_up_claims(&mut self) {
        let Some(group) = self.pulls.lookups.next_group() else { return };
        let waiting = &self.pulls.waiting;
        let id = |no: &u64| waiting.get(no).map(|pull| pull.claim.key());
        let claim_ids: Vec<String> = group.iter().filter_map(id).collect();
        let store = self.store.clone();
        self.calls.spawn(async move {
            let answer = store.claimed(claim_ids).await;
            Done::LookedUp(group, answer)
        });
    }

    pub(super) fn looked_up(
        &mut self,
        group: Vec<u64>,
        answer: Answer<Vec<(String, Held)>>,
    ) -> Result<(), StoreError> {
        let Some(found) = self.heard(answer)? else {
            self.pulls.lookups.again(group);
            return Ok(());
        };
        self.pulls.lookups.done();
        let mut replayed = Vec::with_capacity(found.len());
        for (claim_id, held) in found {
            if let Some(no) = self.pulls.by_claim.get(&claim_id) {
                self.pulls.waiting.get_mut(no).expect("both are kept together").expected += 1;
                replayed.push((*no, held));
            }
        }
        for no in group {
            if let Some(pull) = self.pulls.waiting.get_mut(&no) {
                pull.is_looked_up = true;
            }
        }
        for (no, held) in replayed {
            self.admit(Origin::Replayed(no), held);
        }
        Ok(())
    }

    /// A directive of this claim is committed.
    pub(super) fn hand_out(&mut self, no: u64, held: &Held) {
        let pinned = self.pinned(held);
        let root = &self.config.workspace_root;
        let directive = Directive::of(held, &pinned.graph, root, &self.payloads, MAX_HANDED_BYTES);
        if let Some(pull) = self.pulls.waiting.get_mut(&no) {
            pull.expected -= 1;
            pull.ready.push(directive);
        }
        self.answer_claim(no);
    }

    /// A directive of this claim will not come.
    pub(super) fn withhold(&mut self, no: u64) {
        if let Some(pull) = self.pulls.waiting.get_mut(&no) {
            pull.expected -= 1;
            self.may_claim = true;
        }
        self.answer_claim(no);
    }

    fn answer_claim(&mut self, no: u64) {
        let is_due = |pull: &Pull| pull.expected == 0 && !pull.ready.is_empty();
        if self.pulls.waiting.get(&no).is_some_and(is_due)
            && let Some(pull) = self.pulls.remove(no)
        {
            for reply in pull.replies {
                crash_point("heart.before_claim_reply");
                // Whoever is gone asks again with the same id.
                let _ = reply.send(Ok(pull.ready.clone()));
                crash_point("heart.after_claim_reply");
            }
        }
    }

    /// Answers the claims whose time is over with nothing, once they have asked for everything.
    pub(super) fn expire_claims(&mut self) {
        let (now, is_away) = (Instant::now(), self.away_until.is_some());
        let is_over = |pull: &Pull| pull.may_expire(is_away) && pull.until <= now;
        let over: Vec<u64> = self
            .pulls
            .waiting
            .iter()
            .filter(|(_, pull)| is_over(pull))
            .map(|(no, _)| *no)
            .collect();
        for pull in over.into_iter().filter_map(|no| self.pulls.remove(no)) {
            for reply in pull.replies {
                let _ = reply.send(Ok(Vec::new()));
            }
        }
    }

    /// Answers every claim that nothing is on its way for: the engine stops.
    pub(super) fn dismiss_claims(&mut self) {
        let idle = self.pulls.waiting.iter().filter(|(_, pull)| pull.expected == 0);
        let idle: Vec<u64> = idle.map(|(no, _)| *no).collect();
        for pull in idle.into_iter().filter_map(|no| self.pulls.remove(no)) {
            for reply in pull.replies {
                let _ = reply.send(Ok(Vec::new()));
            }
        }
    }
}
