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

use crate::claim::{Claim, Desk, Held};
use crate::commit::panic_text;
use crate::outcome::{Envelope, Outcome, Payload, Verdict};
use crate::reclaim::{Claimed, cancel_claimed, cancel_places};
use crate::runtime::{Shared, Signal};
use crate::sealed::Sealed;
use crate::sink::Sink;
use crate::source::Source;
use crate::summary::Counts;
use crate::sync::lock;
use crate::tally::Event;

/// How long a claim should take: taking one and handing it over costs some microseconds.
const CLAIM_NS: u64 = 4_000_000;
/// Finished envelopes are handed over at least this often, if items end at all.
const HOLD_BACK_NS: u64 = 4_000_000;
/// The items of a claim start and settle in so many groups, which share the clock and the desk's lock.
const GROUPS: usize = 4;

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
    fn break_ledger(&self, seq: u64, lease: Lease);
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

    /// Whether the run is stopping or being cancelled. Long work may then return early, with a failure of
    /// class [`ErrorClass::NonRetryableCancellation`]: it has no outcome of its own. A run that stops
    /// leaves the seq to its resume, one that is cancelled commits it as cancelled. Any other
    /// failure counts as ever.
    pub fn should_end(&self) -> bool {
        self.run.told() != Signal::Go
    }

    /// Gives this seq an outcome behind the back of its worker, so that the worker's own is an illegal
    /// transition: a defect, for tests of what a caller makes of it.
    #[doc(hidden)]
    pub fn break_ledger(&self) {
        self.run.break_ledger(self.seq, self.lease);
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
        self.item_ns =
            if self.item_ns == 0 { seen } else { u64::midpoint(self.item_ns, seen) }.max(1);
        let fits = CLAIM_NS / self.item_ns;
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
        // Where a lease can be lost each item stands for itself: none is charged for a neighbour that hangs.
        let group = if self.config.lease_ms.is_some() { 1 } else { claim.len().div_ceil(GROUPS) };
        let mut kept = Sealed::empty(claim.first, claim.attempts);
        let mut done = 0;
        while done < claim.len() {
            match self.signal() {
                Signal::Go => {}
                Signal::Stop => {
                    lock(&self.dispatch).leave(claim, done..claim.len());
                    break;
                }
                Signal::Cancel => {
                    self.cancel_rest(worker, claim, done);
                    break;
                }
            }
            if done > 0 {
                now = self.clock.now_ns();
                if now - published > HOLD_BACK_NS {
                    self.hand_over(claim, worker);
                    published = now;
                }
            }
            let places = done..(done + group).min(claim.len());
            done = places.end;
            if let Err(refusal) = self.compute_group((worker, claim), places, now, &mut kept) {
                self.fail(&mut lock(&self.dispatch), refusal);
                break;
            }
        }
        let took = self.clock.now_ns() - began;
        self.tallies[worker].add(Event::ComputeNs, took);
        if done > 0 {
            pace.learn(done, took);
        }
        self.hand_over(claim, worker);
    }

    /// Starts some seqs, computes them, and settles them. A refusal from here is fatal to the run.
    fn compute_group(
        &self,
        (worker, claim): (usize, &Held<S::Item, P>),
        places: Range<usize>,
        now: u64,
        kept: &mut Sealed<P>,
    ) -> Result<(), Refusal> {
        let strays = self.start(worker, claim, places.clone(), now / 1_000_000)?;
        kept.expect(places.len());
        let mut place = places.start;
        for stop in strays.into_iter().chain([places.end]) {
            while place < stop {
                let failure = self.compute_run(claim, place..stop, kept).err();
                let ended = place..place + kept.len();
                place = ended.end;
                self.settle((worker, claim), ended, kept)?;
                if let Some(failure) = failure {
                    self.fail_one(worker, Claimed { claim, place }, failure)?;
                    place += 1;
                    kept.first = claim.seq(place);
                }
            }
            if stop < places.end {
                // Taken away before it began.
                place = stop + 1;
                kept.first = claim.seq(place);
            }
        }
        Ok(())
    }

    /// Starts the seqs that this claim still holds. Returns the places of the others.
    fn start(
        &self,
        worker: usize,
        claim: &Claim<S::Item, P>,
        places: Range<usize>,
        now_ms: u64,
    ) -> Result<Vec<usize>, Refusal> {
        let (first, count) = (places.start, places.len());
        // Held against reclaim and cancel, so that the moves are plain stores.
        let desk = lock(&claim.desk);
        let mut strays = self.ledger.start_run(claim.hold(places), now_ms)?;
        drop(desk);
        self.tallies[worker].add(Event::Started, (count - strays.len()) as u64);
        for place in &mut strays {
            *place += first;
        }
        Ok(strays)
    }

    /// Computes seqs and keeps their outcomes, up to the first attempt that fails.
    fn compute_run(
        &self,
        claim: &Claim<S::Item, P>,
        places: Range<usize>,
        kept: &mut Sealed<P>,
    ) -> Result<(), (ErrorClass, String)> {
        let (seqs, attempts) = (claim.seq(places.start).., claim.attempts);
        let computed = catch_unwind(AssertUnwindSafe(|| {
            for ((item, lease), seq) in claim.items(places).zip(seqs) {
                let context = Context { seq, attempts, lease, run: self };
                match (self.compute)(item, &context) {
                    Outcome::Success(payload) => kept.seal_success(payload, attempts),
                    Outcome::Skip(reason) => {
                        kept.seal(Envelope::new(Verdict::Skip(reason), attempts));
                    }
                    Outcome::Fail(class, message) => return Err((class, message)),
                }
            }
            Ok(())
        }));
        computed.unwrap_or_else(|panic| Err((ErrorClass::NonRetryableInput, panic_text(&*panic))))
    }

    /// Settles an attempt that failed, or gave up because the run ends.
    fn fail_one(
        &self,
        worker: usize,
        claimed: Claimed<S::Item, P>,
        failure: (ErrorClass, String),
    ) -> Result<(), Refusal> {
        let gave_up = failure.0 == ErrorClass::NonRetryableCancellation;
        let mut dispatch = lock(&self.dispatch);
        let view = self.view(worker);
        match self.signal() {
            Signal::Stop if gave_up => {
                dispatch.leave(claimed.claim, claimed.place..claimed.place + 1);
            }
            Signal::Cancel if gave_up => cancel_claimed(claimed, view)?,
            Signal::Go | Signal::Stop | Signal::Cancel => {
                dispatch.fail(claimed, failure, &self.config, view)?;
            }
        }
        self.wake_all(&dispatch);
        Ok(())
    }

    /// Lets outcomes reach the ledger and the desk together.
    fn settle(
        &self,
        (worker, claim): (usize, &Claim<S::Item, P>),
        places: Range<usize>,
        kept: &mut Sealed<P>,
    ) -> Result<(), Refusal> {
        if places.is_empty() {
            return Ok(());
        }
        let (hold, mut ended) = (claim.hold(places), kept.counts());
        let mut desk = lock(&claim.desk);
        let strays = if kept.is_all_success() {
            self.ledger.succeed_run(hold)?
        } else {
            self.ledger.finish_run(hold, kept.iter().map(|envelope| kind(&envelope)))?
        };
        if strays.is_empty() {
            desk.lay_run(kept);
        } else {
            tracing::debug!(first = kept.first, dropped = strays.len(), "late results dropped");
            ended = lay_others(&mut desk, kept, &strays);
        }
        drop(desk);
        self.tallies[worker].add(Event::Succeeded, ended.success);
        self.tallies[worker].add(Event::Skipped, ended.skip);
        Ok(())
    }

    fn cancel_rest(&self, worker: usize, claim: &Held<S::Item, P>, from: usize) {
        if let Err(refusal) = cancel_places(claim, from..claim.len(), self.view(worker)) {
            self.fail(&mut lock(&self.dispatch), refusal);
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

    fn break_ledger(&self, seq: u64, lease: Lease) {
        // If the lease is gone there is nothing to break.
        let _ = self.ledger.finish(seq, lease, Ended::Skip);
    }
}

/// Lays down what was not taken away meanwhile, and counts it.
fn lay_others<P: Payload>(desk: &mut Desk<P>, kept: &mut Sealed<P>, strays: &[usize]) -> Counts {
    let mut counts = Counts::default();
    let mut all = kept.take();
    let first = all.first;
    for (place, envelope) in all.drain().enumerate() {
        if !strays.contains(&place) {
            counts.count(envelope.verdict.state());
            desk.lay(first + place as u64, envelope);
        }
    }
    counts
}

fn kind<P, T>(envelope: &Envelope<P, T>) -> Ended {
    match envelope.verdict {
        Verdict::Success(_) => Ended::Success,
        Verdict::Skip(_) => Ended::Skip,
        Verdict::Fail(..) | Verdict::Cancel => unreachable!("settled where it failed"),
    }
}
