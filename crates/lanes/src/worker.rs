//! A worker: take a claim, compute its items, hand the results over, commit if nobody else does.
//!
//! Claims are sized so that one takes about [`CLAIM_NS`]: large enough that taking and handing over do not
//! count, small enough that nobody waits for it. A panic of the compute function is a failed attempt;
//! a result whose lease was taken away meanwhile is dropped.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sprag_kernel::decide::seq::{Lease, Outcome as Ended};
use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::retry::ErrorClass;

use crate::claim::{Claim, Held};
use crate::commit::panic_text;
use crate::ledger::is_stale;
use crate::outcome::{Envelope, Outcome, Payload, Verdict};
use crate::reclaim::{Claimed, cancel_claimed};
use crate::runtime::{Shared, Signal};
use crate::sink::Sink;
use crate::source::Source;
use crate::sync::lock;
use crate::tally::Event;

/// How long a claim should take.
const CLAIM_NS: u64 = 75_000;
/// Finished envelopes are handed over at least this often, if items end at all.
const HOLD_BACK_NS: u64 = 1_000_000;
/// In large claims so many items go together; they are fast, or the claim would be small.
const GROUP: usize = 16;
/// Up to this size of a claim every item goes by itself.
const SMALL_CLAIM: usize = 32;

/// What a compute function is told besides its item.
pub struct Context<'a> {
    seq: u64,
    attempts: u16,
    lease: Lease,
    run: &'a dyn Run,
}

/// What a context asks of its run.
pub(crate) trait Run: Sync {
    fn beat(&self, seq: u64, lease: Lease) -> bool;
    fn told(&self) -> Signal;
}

impl Context<'_> {
    /// The seq of the item.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Retries before this attempt: 0 at the first.
    pub fn attempts(&self) -> u16 {
        self.attempts
    }

    /// Gives a sign of life. False if the seq was given to somebody else: the result will be dropped.
    pub fn heartbeat(&self) -> bool {
        self.run.beat(self.seq, self.lease)
    }

    /// Whether the run is stopping or being cancelled. Long work may return early with any failure.
    pub fn should_end(&self) -> bool {
        self.run.told() != Signal::Go
    }
}

/// How many items to take, learnt from how long they took.
pub(crate) struct Pace {
    item_ns: u64,
    size: usize,
    max: usize,
}

impl Pace {
    pub(crate) fn new(max: usize) -> Self {
        Self { item_ns: 0, size: 1, max }
    }

    pub(crate) fn size(&self) -> usize {
        self.size
    }

    fn learn(&mut self, items: usize, took_ns: u64) {
        let seen = took_ns / items.max(1) as u64;
        // Half old, half new: follows a change within a few claims and shrugs off one slow item.
        self.item_ns = if self.item_ns == 0 { seen } else { u64::midpoint(self.item_ns, seen) };
        let fits = CLAIM_NS / self.item_ns.max(1);
        let fits = usize::try_from(fits).unwrap_or(usize::MAX);
        self.size = fits.clamp(1, self.max.min(self.size * 4));
    }
}

impl<S, P, K, F> Shared<S, P, K, F>
where
    S: Source,
    P: Payload,
    K: Sink<P>,
    F: Fn(&S::Item, &Context) -> Outcome<P> + Send + Sync + 'static,
{
    /// The life of a worker thread.
    pub(crate) fn work(&self, worker: usize) {
        let lived = catch_unwind(AssertUnwindSafe(|| {
            let mut pace = Pace::new(self.config.max_claim);
            while let Some(claim) = self.take(worker, pace.size()) {
                self.compute_claim(worker, &claim, &mut pace);
            }
        }));
        let mut dispatch = lock(&self.dispatch);
        if let Err(panic) = lived {
            let broken = Refusal::new(Code::InvariantBroken).with("reason", panic_text(&*panic));
            self.fail(&mut dispatch, broken);
        }
        dispatch.exited[worker] = true;
        self.bell.ring();
    }

    fn compute_claim(&self, worker: usize, claim: &Held<S::Item, P>, pace: &mut Pace) {
        let began = self.clock.now_ns();
        let (mut now, mut published) = (began, began);
        let group = self.group_of(claim.len());
        let mut done = 0;
        while done < claim.len() {
            match self.signal() {
                Signal::Go => {}
                Signal::Stop => break,
                Signal::Cancel => {
                    self.cancel_rest(worker, claim, done);
                    break;
                }
            }
            if done > 0 {
                now = self.clock.now_ns();
                if now - published > HOLD_BACK_NS {
                    self.publish(claim.clear_desk(), worker);
                    published = now;
                }
            }
            let places = done..(done + group).min(claim.len());
            done = places.end;
            if let Err(refusal) = self.compute_group(worker, claim, places, now) {
                self.fail(&mut lock(&self.dispatch), refusal);
                break;
            }
        }
        let took = self.clock.now_ns() - began;
        self.tallies[worker].add(Event::ComputeNs, took);
        if done > 0 {
            pace.learn(done, took);
        }
        self.publish(claim.clear_desk(), worker);
    }

    /// How many items are started and settled together. Fast items share the cost of the desk's lock
    /// and of the clock; where a lease can be lost each item stands for itself, so that none is
    /// charged for a neighbour that hangs.
    fn group_of(&self, claimed: usize) -> usize {
        if claimed <= SMALL_CLAIM || self.config.lease_ms.is_some() { 1 } else { GROUP }
    }

    /// Starts some seqs, computes them, and settles them. A refusal from here is fatal to the run.
    fn compute_group(
        &self,
        worker: usize,
        claim: &Held<S::Item, P>,
        places: Range<usize>,
        now: u64,
    ) -> Result<(), Refusal> {
        let started = self.start(claim, places.clone(), now / 1_000_000)?;
        self.tallies[worker].add(Event::Started, u64::from(started.count_ones()));
        let mut kept = Kept::new(places.start, places.len());
        for (bit, place) in places.enumerate() {
            let computed = started >> bit & 1 == 1
                && self.compute_one(worker, Claimed { claim, place }, &mut kept)?;
            if !computed {
                self.settle(worker, claim, &mut kept)?;
                kept.from = place + 1;
            }
        }
        self.settle(worker, claim, &mut kept)
    }

    /// Starts the seqs that this claim still holds; the others were taken away. One bit per place.
    #[inline]
    fn start(
        &self,
        claim: &Claim<S::Item, P>,
        places: Range<usize>,
        now_ms: u64,
    ) -> Result<u32, Refusal> {
        let mut started = 0;
        // Held against reclaim and cancel, so that the moves are plain stores.
        let _desk = lock(&claim.desk);
        for (bit, place) in places.enumerate() {
            match self.ledger.start_held(claim.seq(place), claim.lease(place), now_ms) {
                Ok(()) => started |= 1 << bit,
                Err(refusal) if is_stale(&refusal) => {}
                Err(refusal) => return Err(refusal),
            }
        }
        Ok(started)
    }

    /// Computes one seq. Its envelope is kept to be settled, unless the attempt failed: that is settled
    /// here.
    #[inline]
    fn compute_one(
        &self,
        worker: usize,
        claimed: Claimed<S::Item, P>,
        kept: &mut Kept<P>,
    ) -> Result<bool, Refusal> {
        let Claimed { claim, place } = claimed;
        let (seq, attempts) = (claim.seq(place), claim.attempts);
        let context = Context { seq, attempts, lease: claim.lease(place), run: self };
        let computed = catch_unwind(AssertUnwindSafe(|| {
            match (self.compute)(claim.item(place), &context) {
                Outcome::Success(payload) => kept.keep(Verdict::Success(payload), attempts),
                Outcome::Skip(reason) => kept.keep(Verdict::Skip(reason), attempts),
                Outcome::Fail(class, message) => return Err((class, message)),
            }
            Ok(())
        }));
        let failure = match computed {
            Ok(Ok(())) => return Ok(true),
            Ok(Err(failure)) => failure,
            Err(panic) => (ErrorClass::NonRetryableInput, panic_text(&*panic)),
        };
        let mut dispatch = lock(&self.dispatch);
        dispatch.fail(claimed, failure, &self.config, self.view(worker))?;
        drop(dispatch);
        self.wake_all();
        Ok(false)
    }

    /// Lets outcomes reach the ledger and the desk together.
    #[inline]
    fn settle(
        &self,
        worker: usize,
        claim: &Claim<S::Item, P>,
        kept: &mut Kept<P>,
    ) -> Result<(), Refusal> {
        if kept.envelopes.is_empty() {
            return Ok(());
        }
        let mut taken_away = Vec::new();
        let (mut succeeded, mut skipped) = (0, 0);
        let mut desk = lock(&claim.desk);
        for (place, envelope) in (kept.from..).zip(&kept.envelopes) {
            let (kind, count) = match &envelope.verdict {
                Verdict::Success(_) => (Ended::Success, &mut succeeded),
                Verdict::Skip(_) => (Ended::Skip, &mut skipped),
                Verdict::Fail(..) | Verdict::Cancel => unreachable!("settled where it failed"),
            };
            match self.ledger.finish_held(claim.seq(place), claim.lease(place), kind) {
                Ok(()) => *count += 1,
                Err(refusal) if is_stale(&refusal) => taken_away.push(place),
                Err(refusal) => return Err(refusal),
            }
        }
        if taken_away.is_empty() {
            desk.lay_run(claim.seq(kept.from), &mut kept.envelopes, kept.bytes);
        } else {
            tracing::debug!(first = claim.seq(taken_away[0]), "late results dropped");
            let late = (kept.from..).zip(kept.envelopes.drain(..));
            for (place, envelope) in late.filter(|(place, _)| !taken_away.contains(place)) {
                desk.lay(claim.seq(place), envelope);
            }
        }
        drop(desk);
        kept.bytes = 0;
        self.tallies[worker].add(Event::Succeeded, succeeded);
        self.tallies[worker].add(Event::Skipped, skipped);
        Ok(())
    }

    fn cancel_rest(&self, worker: usize, claim: &Held<S::Item, P>, from: usize) {
        for place in from..claim.len() {
            if let Err(refusal) = cancel_claimed(Claimed { claim, place }, self.view(worker)) {
                self.fail(&mut lock(&self.dispatch), refusal);
            }
        }
    }
}

impl<S, P, K, F> Run for Shared<S, P, K, F>
where
    S: Source,
    P: Payload,
    K: Sink<P>,
    F: Send + Sync,
{
    fn beat(&self, seq: u64, lease: Lease) -> bool {
        self.ledger.heartbeat(seq, lease, self.clock.now_ms())
    }

    fn told(&self) -> Signal {
        self.signal()
    }
}

/// Envelopes of neighbours that are computed and not settled yet.
struct Kept<P> {
    /// The place of the first one in its claim.
    from: usize,
    envelopes: Vec<Envelope<P>>,
    bytes: u64,
}

impl<P: Payload> Kept<P> {
    fn new(from: usize, expected: usize) -> Self {
        Self { from, envelopes: Vec::with_capacity(expected), bytes: 0 }
    }

    #[inline]
    fn keep(&mut self, verdict: Verdict<P>, attempts: u16) {
        let envelope = Envelope::seal(verdict, attempts);
        self.bytes += envelope.weight();
        self.envelopes.push(envelope);
    }
}
