//! A worker: take a claim, compute its items, hand the results over, commit if nobody else does.
//!
//! Claims are sized so that one takes about [`CLAIM_NS`]: large enough that taking and handing over do not
//! count, small enough that nobody waits for it. A panic of the compute function is a failed attempt;
//! a result whose lease was taken away meanwhile is dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sprag_kernel::decide::seq::{Lease, Outcome as Kept};
use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::retry::ErrorClass;

use crate::claim::Claim;
use crate::commit::panic_text;
use crate::ledger::is_stale;
use crate::outcome::{Envelope, Outcome, Payload, Verdict};
use crate::reclaim::{Claimed, cancel_claimed};
use crate::runtime::{Shared, Signal};
use crate::sink::Sink;
use crate::source::Source;
use crate::sync::{Arc, lock};
use crate::tally::Event;

/// How long a claim should take.
const CLAIM_NS: u64 = 75_000;
/// Finished envelopes are handed over at least this often, if items end at all.
const HOLD_BACK_NS: u64 = 1_000_000;
/// In large claims the time is read once per so many items; they are fast, or the claim were small.
const STRIDE: usize = 16;
/// Up to this size of a claim the time is read for every item.
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

    fn compute_claim(&self, worker: usize, claim: &Arc<Claim<S::Item, P>>, pace: &mut Pace) {
        let began = self.clock.now_ns();
        let (mut now, mut published) = (began, began);
        let stride = if claim.len() <= SMALL_CLAIM { 1 } else { STRIDE };
        let mut done = 0;
        for place in 0..claim.len() {
            match self.signal() {
                Signal::Go => {}
                Signal::Stop => break,
                Signal::Cancel => {
                    self.cancel_rest(worker, claim, place);
                    break;
                }
            }
            if place > 0 && place % stride == 0 {
                now = self.clock.now_ns();
                if now - published > HOLD_BACK_NS {
                    self.publish(claim.clear_desk(), worker);
                    published = now;
                }
            }
            if let Err(refusal) = self.compute_one(worker, Claimed { claim, place }, now) {
                self.fail(&mut lock(&self.dispatch), refusal);
                break;
            }
            done += 1;
        }
        self.publish(claim.clear_desk(), worker);
        if done > 0 {
            pace.learn(done, self.clock.now_ns() - began);
        }
    }

    /// Computes one seq and settles it. A refusal from here is fatal to the run.
    #[inline]
    fn compute_one(
        &self,
        worker: usize,
        claimed: Claimed<S::Item, P>,
        now: u64,
    ) -> Result<(), Refusal> {
        let (seq, lease) = (claimed.claim.seq(claimed.place), claimed.claim.lease(claimed.place));
        match self.ledger.start(seq, lease, now / 1_000_000) {
            Ok(()) => self.tallies[worker].add(Event::Started, 1),
            // The lease was taken away before the work began.
            Err(refusal) if is_stale(&refusal) => return Ok(()),
            Err(refusal) => return Err(refusal),
        }
        let attempts = self.ledger.slot(seq).attempts;
        let context = Context { seq, attempts, lease, run: self };
        let item = claimed.claim.item(claimed.place);
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            let outcome = (self.compute)(item, &context);
            Sealed::of(outcome, attempts)
        }));
        let failure = match outcome {
            Ok(Sealed::Kept(kept, envelope)) => {
                return self.settle(worker, claimed, kept, envelope);
            }
            Ok(Sealed::Failed(class, message)) => (class, message),
            Err(panic) => (ErrorClass::NonRetryableInput, panic_text(&*panic)),
        };
        let mut dispatch = lock(&self.dispatch);
        let failed = dispatch.fail(claimed, failure, &self.config, self.view(worker));
        drop(dispatch);
        self.wake_all();
        failed
    }

    #[inline]
    fn settle(
        &self,
        worker: usize,
        claimed: Claimed<S::Item, P>,
        kept: Kept,
        envelope: Envelope<P>,
    ) -> Result<(), Refusal> {
        let (seq, lease) = (claimed.claim.seq(claimed.place), claimed.claim.lease(claimed.place));
        let mut desk = lock(&claimed.claim.desk);
        match self.ledger.finish(seq, lease, kept) {
            Ok(_) => {
                desk.lay(seq, envelope);
                let event = match kept {
                    Kept::Success => Event::Succeeded,
                    Kept::Skip => Event::Skipped,
                };
                self.tallies[worker].add(event, 1);
                Ok(())
            }
            Err(refusal) if is_stale(&refusal) => {
                tracing::debug!(seq, "late result dropped");
                Ok(())
            }
            Err(refusal) => Err(refusal),
        }
    }

    fn cancel_rest(&self, worker: usize, claim: &Arc<Claim<S::Item, P>>, from: usize) {
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

/// An outcome, its envelope sealed where the work was done.
enum Sealed<P> {
    Kept(Kept, Envelope<P>),
    Failed(ErrorClass, String),
}

impl<P: Payload> Sealed<P> {
    #[inline]
    fn of(outcome: Outcome<P>, attempts: u16) -> Self {
        match outcome {
            Outcome::Success(payload) => {
                Self::Kept(Kept::Success, Envelope::seal(Verdict::Success(payload), attempts))
            }
            Outcome::Skip(reason) => {
                Self::Kept(Kept::Skip, Envelope::seal(Verdict::Skip(reason), attempts))
            }
            Outcome::Fail(class, message) => Self::Failed(class, message),
        }
    }
}
