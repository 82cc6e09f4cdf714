//! What the threads of a run share, and the few moves they make on it.
//!
//! Locks, in the order in which they may be nested: dispatch, desk, ledger cells; commit lane, inbox
//! or trail. The dispatch lock and the commit lock are never held together. A worker that finds
//! nothing to do leaves a mark: the cursor at which it wants to be woken. It sets the mark and then
//! looks at the cursor; the committer sets the cursor and then looks at the mark; so one of them sees
//! the other and no wake-up is lost.

use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::planner::Window;

use crate::batch::Chunk;
use crate::bell::Bell;
use crate::claim::Claim;
use crate::clock::Clock;
use crate::config::Config;
use crate::control::Wish;
use crate::dispatch::{Dispatch, Phase, Take, View};
use crate::fault::{Fault, planted};
use crate::handoff::{Books, HandOff};
use crate::ledger::Ledger;
use crate::observe::{Blocked, Observation, Why, WindowView};
use crate::outcome::Payload;
use crate::sink::Sink;
use crate::source::Source;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, wait};
use crate::tally::{Event, LedgerCounts, Retries, Tally, Timings};
use crate::trail::Trail;
use crate::windows::Planned;

/// No waiter, or no total yet.
const NEVER: u64 = u64::MAX;

/// What a worker looks at between two items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Signal {
    Go,
    Stop,
    Cancel,
}

/// One run.
pub(crate) struct Shared<S: Source, P, K, F> {
    pub(crate) config: Config,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) compute: F,
    pub(crate) ledger: Ledger,
    pub(crate) trail: Trail,
    pub(crate) handoff: HandOff<P, K>,
    pub(crate) dispatch: Mutex<Dispatch<S, P>>,
    /// Workers wait here for work.
    pub(crate) idle: Condvar,
    /// The supervisor sleeps here until time or an ending calls it.
    pub(crate) bell: Bell,
    wake_at: AtomicU64,
    total: AtomicU64,
    signal: AtomicU64,
    /// One per worker, the last is the supervisor's.
    pub(crate) tallies: Vec<Tally>,
    began_ms: u64,
}

impl<S: Source, P: Payload, K: Sink<P>, F> Shared<S, P, K, F> {
    pub(crate) fn new(
        (config, clock, compute): (Config, Arc<dyn Clock>, F),
        dispatch: Dispatch<S, P>,
        handoff: HandOff<P, K>,
    ) -> Self {
        let ledger = Ledger::with_room_for(config.span());
        let keeps_time = config.lease_ms.is_some();
        Self {
            ledger: if keeps_time { ledger.with_heartbeats() } else { ledger },
            tallies: (0..=config.threads).map(|_| Tally::default()).collect(),
            began_ms: clock.now_ms(),
            config,
            clock,
            compute,
            trail: Trail::default(),
            handoff,
            dispatch: Mutex::new(dispatch),
            idle: Condvar::new(),
            bell: Bell::default(),
            wake_at: AtomicU64::new(NEVER),
            total: AtomicU64::new(NEVER),
            signal: AtomicU64::new(Signal::Go as u64),
        }
    }

    /// The supervisor's place among the tallies.
    pub(crate) fn supervisor(&self) -> usize {
        self.config.threads
    }

    pub(crate) fn view(&self, who: usize) -> View<'_> {
        View {
            ledger: &self.ledger,
            trail: &self.trail,
            tally: &self.tallies[who],
            cursor: self.handoff.cursor(),
            buffered_bytes: self.handoff.buffered_bytes(),
            now: self.clock.now_ms(),
            cancelled: self.signal() == Signal::Cancel,
        }
    }

    #[inline]
    pub(crate) fn signal(&self) -> Signal {
        match self.signal.load(Ordering::Relaxed) {
            0 => Signal::Go,
            1 => Signal::Stop,
            _ => Signal::Cancel,
        }
    }

    /// Latches what was asked: from here on nothing is dispatched, and nothing retried after a
    /// cancel. Needs no lock, so it may come from inside a source or a sink.
    pub(crate) fn hear(&self, wish: Wish) {
        let signal = match wish {
            Wish::GoOn => Signal::Go,
            Wish::Stop => Signal::Stop,
            Wish::Cancel => Signal::Cancel,
        };
        self.signal.fetch_max(signal as u64, Ordering::SeqCst);
        self.bell.ring();
    }

    /// The next claim for a worker; none when there is nothing more for it to do.
    pub(crate) fn take(&self, worker: usize, size: usize) -> Option<Arc<Claim<S::Item, P>>> {
        let mut dispatch = lock(&self.dispatch);
        loop {
            if dispatch.phase != Phase::Running || self.signal() != Signal::Go {
                dispatch.live[worker] = None;
                return None;
            }
            let view = self.view(worker);
            match dispatch.take(worker, size, view) {
                Ok(Take::Claim(claim)) => return Some(claim),
                Ok(Take::Wait(at)) => dispatch = self.await_work(dispatch, at, view.cursor),
                Err(refusal) => self.fail(&mut dispatch, refusal),
            }
        }
    }

    /// Hands over what lies on the desk of a claim.
    pub(crate) fn hand_over(&self, claim: &Claim<S::Item, P>, who: usize) {
        self.handoff.pick_up();
        self.publish(claim.clear_desk(), who);
        self.handoff.lay_down();
    }

    /// Hands envelopes over, commits what can be, and wakes whom that frees. The caller has said that
    /// it picks them up.
    pub(crate) fn publish(&self, chunks: Vec<Chunk<P>>, who: usize) {
        if chunks.is_empty() || planted(Fault::LostEnvelope) {
            return;
        }
        let (before, began) = (self.handoff.cursor(), self.clock.now_ns());
        let tally = &self.tallies[who];
        let books = Books { ledger: &self.ledger, trail: &self.trail, tally };
        if let Err(refusal) = self.handoff.publish(chunks, books) {
            self.fail(&mut lock(&self.dispatch), refusal);
        }
        tally.add(Event::CommitNs, self.clock.now_ns() - began);
        let cursor = self.handoff.cursor();
        let due = cursor >= self.wake_at.load(Ordering::SeqCst);
        if cursor != before && (due || cursor == self.total.load(Ordering::SeqCst)) {
            let mut dispatch = lock(&self.dispatch);
            self.wake_at.store(NEVER, Ordering::SeqCst);
            self.end_if_complete(&mut dispatch);
            self.wake_all();
        }
    }

    /// Ends the run with a failure; the first one counts.
    pub(crate) fn fail(&self, dispatch: &mut Dispatch<S, P>, refusal: Refusal) {
        tracing::error!(code = refusal.code().name(), %refusal, "run failed");
        dispatch.failure.get_or_insert(refusal);
        self.end(dispatch);
    }

    pub(crate) fn wake_all(&self) {
        self.idle.notify_all();
        self.bell.ring();
    }

    /// Notes what dispatch knows of the total, and ends the run if the cursor is there.
    pub(crate) fn end_if_complete(&self, dispatch: &mut Dispatch<S, P>) {
        let Some(total) = dispatch.total else { return };
        self.total.store(total, Ordering::SeqCst);
        if self.handoff.cursor() == total {
            self.end(dispatch);
        }
    }

    /// The run at this moment.
    pub(crate) fn observe(&self) -> Observation {
        self.observe_locked(&lock(&self.dispatch))
    }

    pub(crate) fn observe_locked(&self, dispatch: &Dispatch<S, P>) -> Observation {
        let cursor = self.handoff.cursor();
        let total = dispatch.total;
        Observation {
            next_commit_seq: cursor,
            max_seen_seq: dispatch.next_seq.checked_sub(1),
            commit_lag: dispatch.lag(cursor),
            total,
            ledger: LedgerCounts::of(&self.tallies),
            windows: windows(dispatch, cursor),
            oldest_blocked: (Some(cursor) != total).then(|| self.blocked(dispatch, cursor)),
            buffered_bytes: self.handoff.buffered_bytes(),
            paused_by: dispatch.pressure.paused_by(),
            retries: Retries::of(&self.tallies),
            waiting_retries: dispatch.retries.len() as u64,
            batches: self.handoff.figures(),
            busy_workers: dispatch.busy(),
            elapsed_ms: self.clock.now_ms().saturating_sub(self.began_ms),
            timings: Timings::of(&self.tallies),
        }
    }

    fn await_work<'a>(
        &self,
        mut dispatch: MutexGuard<'a, Dispatch<S, P>>,
        at: u64,
        cursor: u64,
    ) -> MutexGuard<'a, Dispatch<S, P>> {
        self.end_if_complete(&mut dispatch);
        if dispatch.phase != Phase::Running {
            return dispatch;
        }
        self.wake_at.fetch_min(at, Ordering::SeqCst);
        // First this, then the cursor: who lays down in between has moved it, or can not.
        let quiet = self.handoff.is_quiet();
        if self.handoff.cursor() != cursor {
            return dispatch;
        }
        if quiet && dispatch.is_stalled(cursor) {
            let stalled = Refusal::new(Code::SeqStall).with("seq", cursor);
            self.fail(&mut dispatch, stalled);
            return dispatch;
        }
        wait(&self.idle, dispatch)
    }

    fn end(&self, dispatch: &mut Dispatch<S, P>) {
        dispatch.phase = Phase::Over;
        self.signal.fetch_max(Signal::Stop as u64, Ordering::SeqCst);
        self.wake_all();
    }

    fn blocked(&self, dispatch: &Dispatch<S, P>, seq: u64) -> Blocked {
        if seq >= dispatch.next_seq {
            let state = sprag_kernel::SeqState::Unseen;
            return Blocked { seq, state, attempts: 0, owner: 0, why: Why::NotDispatched };
        }
        let slot = self.ledger.slot(seq);
        let why = Why::of(slot.state, slot.lease.owner);
        Blocked { seq, state: slot.state, attempts: slot.attempts, owner: slot.lease.owner, why }
    }
}

fn windows<S: Source, P>(dispatch: &Dispatch<S, P>, cursor: u64) -> Vec<WindowView> {
    let view = |(bounds, planned): (Window, &Planned)| WindowView {
        window: bounds.window,
        start: bounds.start,
        end: bounds.end,
        terminal: planned.gauge.terminal.load(Ordering::Relaxed),
        committed: cursor.clamp(bounds.start, bounds.end + 1) - bounds.start,
        buffered_bytes: planned.buffered(),
    };
    dispatch.windows.active(cursor).map(view).collect()
}
