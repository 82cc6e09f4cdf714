//! The supervisor: the caller's own thread, which keeps time for the run.
//!
//! It looks at what others asked for, takes expired leases, wakes workers when a retry is due, ends
//! the grace, reports progress and, at the end, says how the run went. It sleeps in between. A worker
//! that does not return from its item is not waited for beyond the grace: its seqs are settled
//! without it and its late result will be dropped.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::retry::Millis;

use crate::batch::Chunk;
use crate::commit::panic_text;
use crate::control::{Control, Wish};
use crate::dispatch::{Dispatch, Phase};
use crate::failure::Failure;
use crate::observe::Observation;
use crate::outcome::Payload;
use crate::runtime::Shared;
use crate::sink::Sink;
use crate::source::Source;
use crate::summary::{Ending, Resume, Summary};
use crate::sync::lock;
use crate::tally::{LedgerCounts, Retries};

/// A callback and how often it wants to be called.
pub(crate) struct Progress {
    pub(crate) every_ms: Millis,
    pub(crate) report: Box<dyn FnMut(&Observation) + Send>,
}

impl<S: Source, P: Payload, K: Sink<P>, F> Shared<S, P, K, F> {
    /// Watches over the run until it is over and its workers are done or given up.
    pub(crate) fn supervise(&self, control: &Control, mut progress: Option<Progress>) {
        let mut report_at = progress.as_ref().map(|_| self.clock.now_ms());
        let mut give_up = None;
        loop {
            self.bell.hush();
            let mut dispatch = lock(&self.dispatch);
            let now = self.clock.now_ms();
            self.obey(&mut dispatch, control.wish(), now);
            self.handoff.pick_up();
            let chunks = self.look_after(&mut dispatch, now);
            if chunks.is_empty() {
                self.handoff.lay_down();
            }
            if dispatch.phase == Phase::Over {
                let limit = *give_up.get_or_insert(now.saturating_add(self.config.grace_ms));
                if now >= limit || dispatch.is_deserted() {
                    return;
                }
            }
            let next_look = self.next_look(&dispatch, give_up, now);
            drop(dispatch);
            if Some(now) >= report_at {
                report_at = progress.as_mut().and_then(|progress| self.report(progress, now));
            }
            if chunks.is_empty() {
                let next = next_look.into_iter().chain(report_at).min();
                let limit = next.map(|at| self.clock.sleep(at.saturating_sub(now).max(1)));
                self.bell.listen(limit.flatten());
            } else {
                self.deliver(chunks);
            }
        }
    }

    /// Tells the caller how far the run is. When to do so again; never, if the caller panics: then the
    /// run fails.
    fn report(&self, progress: &mut Progress, now: Millis) -> Option<Millis> {
        let seen = self.observe();
        match catch_unwind(AssertUnwindSafe(|| (progress.report)(&seen))) {
            Ok(()) => Some(now.saturating_add(progress.every_ms)),
            Err(panic) => {
                let reason = panic_text(&*panic);
                let refusal = Refusal::new(Code::ProgressFailed).with("reason", reason);
                self.fail(&mut lock(&self.dispatch), refusal);
                None
            }
        }
    }

    /// How the run went. Takes the sink back.
    pub(crate) fn conclude(&self) -> Result<(Summary, K), Box<Failure>> {
        let mut dispatch = lock(&self.dispatch);
        let failure = dispatch.failure.take().or_else(|| self.broken_books(&dispatch));
        let snapshot = failure.is_some().then(|| self.observe_locked(&dispatch));
        let (total, cancelled) = (dispatch.total, dispatch.cancelled);
        drop(dispatch);
        let mut lane = lock(self.handoff.lane());
        let point = lane.point();
        let sink = lane.close().expect("a run is concluded once");
        drop(lane);
        match failure {
            Some(refusal) => Err(Box::new(Failure { refusal, snapshot, resume: point })),
            None => Ok((self.summary(point, total, cancelled), sink)),
        }
    }

    fn summary(&self, point: Resume, total: Option<u64>, cancelled: bool) -> Summary {
        let ending = match total {
            Some(total) if point.cursor == total && cancelled => Ending::Cancelled,
            Some(total) if point.cursor == total => Ending::Complete,
            Some(_) | None => Ending::Stopped,
        };
        let summary = Summary {
            ending,
            total: point.cursor,
            counts: point.counts,
            plan_hash: point.input_hash,
            outcome_hash: point.outcome_hash,
            retries: Retries::of(&self.tallies),
        };
        tracing::info!(?ending, total = summary.total, counts = ?summary.counts, "run ended");
        summary
    }

    /// At completion every seq is terminal and committed, by the ledger's own count.
    fn broken_books(&self, dispatch: &Dispatch<S, P>) -> Option<Refusal> {
        let cursor = self.handoff.cursor();
        let counts = LedgerCounts::of(&self.tallies);
        let complete = dispatch.total == Some(cursor);
        let even =
            counts.terminal == counts.committed && counts.dispatched == 0 && counts.in_flight == 0;
        (complete && !even).then(|| {
            Refusal::new(Code::InvariantBroken)
                .with("reason", "terminal and committed counts differ at completion")
                .with("terminal", counts.terminal)
                .with("committed", counts.committed)
        })
    }

    fn obey(&self, dispatch: &mut Dispatch<S, P>, wish: Wish, now: Millis) {
        let until = now.saturating_add(self.config.grace_ms);
        match (wish, dispatch.phase) {
            (Wish::Stop, Phase::Running) => {
                tracing::info!(cursor = self.handoff.cursor(), "stopping");
                dispatch.phase = Phase::Stopping(until);
                self.wake_all(dispatch);
            }
            (Wish::Cancel, Phase::Running | Phase::Stopping(_)) => {
                tracing::info!(cursor = self.handoff.cursor(), "cancelling");
                dispatch.phase = Phase::Cancelling(until);
                dispatch.cancelled = true;
                self.wake_all(dispatch);
            }
            (Wish::GoOn | Wish::Stop | Wish::Cancel, _) => {}
        }
    }

    /// Leases, due retries, grace. Returns envelopes that must be published.
    fn look_after(&self, dispatch: &mut Dispatch<S, P>, now: Millis) -> Vec<Chunk<P>> {
        let view = self.view(self.supervisor());
        let outcome = match (dispatch.phase, self.config.lease_ms) {
            (Phase::Running, lease) => {
                let taken =
                    lease.map_or(Ok(Vec::new()), |ms| dispatch.reclaim(ms, &self.config, view));
                // Behind it: what was taken from somebody who had not begun is due at once.
                if dispatch.retries.has_due(now) {
                    self.wake_workers(dispatch);
                }
                taken
            }
            (Phase::Stopping(until), _) => {
                if now >= until || dispatch.busy() == 0 {
                    dispatch.phase = Phase::Over;
                }
                Ok(Vec::new())
            }
            (Phase::Cancelling(until), _) => {
                let forced =
                    if now >= until { dispatch.cancel_claims(view) } else { Ok(Vec::new()) };
                forced.and_then(|mut chunks| {
                    chunks.extend(dispatch.cancel_more(view)?);
                    self.end_if_complete(dispatch);
                    Ok(chunks)
                })
            }
            (Phase::Over, _) => Ok(Vec::new()),
        };
        outcome.unwrap_or_else(|refusal| {
            self.fail(dispatch, refusal);
            Vec::new()
        })
    }

    fn deliver(&self, chunks: Vec<Chunk<P>>) {
        self.publish(chunks, self.supervisor());
        self.handoff.lay_down();
        let mut dispatch = lock(&self.dispatch);
        self.end_if_complete(&mut dispatch);
        self.wake_workers(&dispatch);
    }

    /// When time alone gives the supervisor something to do.
    fn next_look(
        &self,
        dispatch: &Dispatch<S, P>,
        give_up: Option<Millis>,
        now: Millis,
    ) -> Option<Millis> {
        let lease_look = self.config.lease_ms.map(|ms| now.saturating_add((ms / 4).max(1)));
        match dispatch.phase {
            // A retry that is due already waits for a worker, not for the time; one behind it does not.
            Phase::Running => dispatch.retries.next_due(now).into_iter().chain(lease_look).min(),
            Phase::Stopping(until) | Phase::Cancelling(until) => Some(until).filter(|at| *at > now),
            Phase::Over => give_up,
        }
    }
}
