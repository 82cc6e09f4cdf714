//! Failed attempts and lost leases: who gets another try, and what becomes of the others.
//!
//! A failure is decided under the dispatch lock, because the retry budget of a window is shared, and
//! then under the desk's lock, because the outcome and its envelope appear together. Reclaim walks
//! the claims of silent workers in ascending seq order; nothing else is ever looked at.

use std::ops::Range;

use sprag_kernel::decide::seq::{AfterFailure, FailRules, Reclaim};
use sprag_kernel::error::Refusal;
use sprag_kernel::machines::SeqState;
use sprag_kernel::retry::{Budget, ErrorClass};

use crate::batch::Chunk;
use crate::claim::{Claim, Held};
use crate::config::Config;
use crate::dispatch::{Dispatch, View};
use crate::ledger::{Expiry, is_stale};
use crate::outcome::{Envelope, Payload, Verdict};
use crate::retries::Waiting;
use crate::seq_ledger::CANCELLER;
use crate::source::Source;
use crate::sync::{Arc, lock};
use crate::tally::Event;

/// One seq of a claim.
pub(crate) struct Claimed<'a, T, P> {
    pub(crate) claim: &'a Arc<Claim<T, P>>,
    pub(crate) place: usize,
}

impl<T, P> Clone for Claimed<'_, T, P> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, P> Copy for Claimed<'_, T, P> {}

impl<S: Source, P: Payload> Dispatch<S, P> {
    /// An attempt failed: the seq waits for another one, or its envelope lies on the desk.
    pub(crate) fn fail(
        &mut self,
        claimed: Claimed<S::Item, P>,
        (class, message): (ErrorClass, String),
        config: &Config,
        view: View,
    ) -> Result<(), Refusal> {
        let (seq, lease) = (claimed.claim.seq(claimed.place), claimed.claim.lease(claimed.place));
        let rules = self.rules(claimed.claim, config, view);
        let mut desk = lock(&claimed.claim.desk);
        match view.ledger.fail(seq, lease, class, rules) {
            Ok(AfterFailure::Retry(slot)) => {
                drop(desk);
                tracing::debug!(seq, class = class.name(), message, "retry");
                self.wait_for_retry(claimed, (class, slot.attempts), config, view);
            }
            Ok(AfterFailure::Final(slot)) => {
                view.tally.add(Event::Failed, 1);
                desk.lay(seq, Envelope::new(Verdict::Fail(class, message), slot.attempts));
            }
            Err(refusal) if is_stale(&refusal) => tracing::debug!(seq, "late failure dropped"),
            Err(refusal) => return Err(refusal),
        }
        Ok(())
    }

    /// Takes every expired lease. Returns the envelopes to publish: final failures, and what silent
    /// workers had finished before they fell silent.
    pub(crate) fn reclaim(
        &mut self,
        timeout: u64,
        config: &Config,
        view: View,
    ) -> Result<Vec<Chunk<P>>, Refusal> {
        let mut chunks = Vec::new();
        let mut claims: Vec<_> = self.live.iter().flatten().map(Arc::clone).collect();
        claims.retain(|claim| !claim.is_abandoned());
        claims.sort_by_key(|claim| claim.first);
        for claim in claims {
            let mut taken = false;
            for place in 0..claim.len() {
                taken |= self.reclaim_one(
                    Claimed { claim: &claim, place },
                    Expiry { now: view.now, timeout },
                    (config, view),
                    &mut chunks,
                )?;
            }
            if taken {
                // In this order: of a claim that holds nothing any more nothing is left on the desk.
                let settled = is_settled(&claim, view);
                chunks.extend(claim.clear_desk());
                if settled {
                    claim.abandon();
                }
            }
        }
        Ok(chunks)
    }

    /// Cancels everything that the workers' claims still hold. For use after the grace.
    pub(crate) fn cancel_claims(&mut self, view: View) -> Result<Vec<Chunk<P>>, Refusal> {
        let mut chunks = Vec::new();
        let mut claims: Vec<_> = self.live.iter().flatten().map(Arc::clone).collect();
        claims.sort_by_key(|claim| claim.first);
        for claim in claims {
            cancel_places(&claim, 0..claim.len(), view)?;
            chunks.extend(claim.clear_desk());
            claim.abandon();
        }
        Ok(chunks)
    }

    /// These places of a claim stay without an outcome, for the resume.
    pub(crate) fn leave(&mut self, claim: &Held<S::Item, P>, places: Range<usize>) {
        self.left.push((Arc::clone(claim), places));
    }

    /// Cancels what was left, since the stop was overruled.
    pub(crate) fn cancel_left(&mut self, view: View) -> Result<Vec<Chunk<P>>, Refusal> {
        let mut chunks = Vec::new();
        for (claim, places) in std::mem::take(&mut self.left) {
            cancel_places(&claim, places, view)?;
            chunks.extend(claim.clear_desk());
        }
        Ok(chunks)
    }

    fn reclaim_one(
        &mut self,
        claimed: Claimed<S::Item, P>,
        expiry: Expiry,
        (config, view): (&Config, View),
        chunks: &mut Vec<Chunk<P>>,
    ) -> Result<bool, Refusal> {
        let seq = claimed.claim.seq(claimed.place);
        // Held against the worker's own cancel, which must not meet a seq that waits for a retry.
        let _desk = lock(&claimed.claim.desk);
        if view.ledger.slot(seq).lease != claimed.claim.lease(claimed.place) {
            return Ok(false);
        }
        let rules = self.rules(claimed.claim, config, view);
        match view.ledger.reclaim(seq, expiry, rules)? {
            Reclaim::Keep => return Ok(false),
            Reclaim::Freed(_) => self.push_waiting(claimed, view.now),
            Reclaim::Failed(AfterFailure::Retry(slot)) => {
                let class = ErrorClass::LeaseExpired;
                self.wait_for_retry(claimed, (class, slot.attempts), config, view);
            }
            Reclaim::Failed(AfterFailure::Final(slot)) => {
                view.tally.add(Event::Failed, 1);
                let message = format!("no sign of life for {} ms", expiry.timeout);
                let verdict = Verdict::Fail(ErrorClass::LeaseExpired, message);
                let envelope = Envelope::new(verdict, slot.attempts);
                chunks.push(Chunk::single(seq, envelope, Arc::clone(&claimed.claim.window)));
            }
        }
        tracing::warn!(seq, owner = claimed.claim.owner, "lease expired, seq reclaimed");
        Ok(true)
    }

    fn rules(&mut self, claim: &Claim<S::Item, P>, config: &Config, view: View) -> FailRules {
        let window_left = self.windows.by_number(claim.window.number).and_then(|w| w.retries_left);
        FailRules {
            budget: Budget { max_retries: config.max_retries, window_left },
            cancelled: view.cancelled,
        }
    }

    fn wait_for_retry(
        &mut self,
        claimed: Claimed<S::Item, P>,
        (class, attempts): (ErrorClass, u16),
        config: &Config,
        view: View,
    ) {
        view.tally.add(Event::retried(class), 1);
        if let Some(window) = self.windows.by_number(claimed.claim.window.number) {
            window.retries_left = window.retries_left.map(|left| left - 1);
        }
        let due = view.now.saturating_add(config.backoff.after(u32::from(attempts)));
        self.push_waiting(claimed, due);
    }

    fn push_waiting(&mut self, claimed: Claimed<S::Item, P>, due: u64) {
        let Claimed { claim, place } = claimed;
        self.retries.push(Waiting {
            seq: claim.seq(place),
            due,
            shelf: Arc::clone(&claim.shelf),
            place: claim.offset + place,
            window: Arc::clone(&claim.window),
        });
    }
}

/// Whether the claim holds no seq any more.
fn is_settled<T, P>(claim: &Claim<T, P>, view: View) -> bool {
    let holds = |place| {
        let slot = view.ledger.slot(claim.seq(place));
        let open = matches!(slot.state, SeqState::Dispatched | SeqState::InFlight);
        open && slot.lease == claim.lease(place)
    };
    !(0..claim.len()).any(holds)
}

/// Cancels those of these places that the claim still holds.
pub(crate) fn cancel_places<T, P: Payload>(
    claim: &Held<T, P>,
    mut places: Range<usize>,
    view: View,
) -> Result<(), Refusal> {
    places.try_for_each(|place| cancel_claimed(Claimed { claim, place }, view))
}

/// Cancels a seq of a claim if the claim still holds it; its envelope goes to the desk.
pub(crate) fn cancel_claimed<T, P: Payload>(
    claimed: Claimed<T, P>,
    view: View,
) -> Result<(), Refusal> {
    let (claim, seq) = (claimed.claim, claimed.claim.seq(claimed.place));
    let mut desk = lock(&claim.desk);
    let slot = view.ledger.slot(seq);
    let open = matches!(slot.state, SeqState::Dispatched | SeqState::InFlight);
    if !open || slot.lease != claim.lease(claimed.place) {
        return Ok(());
    }
    let before = view.ledger.cancel(seq, CANCELLER)?;
    let running = before.state == SeqState::InFlight;
    let event = if running { Event::CancelledRunning } else { Event::CancelledWaiting };
    view.tally.add(event, 1);
    desk.lay(seq, Envelope::new(Verdict::Cancel, before.attempts));
    Ok(())
}
