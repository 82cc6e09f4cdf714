//! What the threads of a run share, and the few moves they make on it.
//!
//! Locks, in the order in which they may be nested: dispatch, desk, ledger cells; dispatch, inflow;
//! commit lane, inbox or trail. The dispatch lock and the commit lock are never held together. A worker that finds
//! nothing to do leaves a mark: the cursor at which it wants to be woken. It sets the mark and then
//! looks at the cursor; the committer sets the cursor and then looks at the mark; so one of them sees
//! the other and no wake-up is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};

use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::planner::Window;

use crate::batch::Chunk;
use crate::bell::Bell;
use crate::claim::Claim;
use crate::clock::Clock;
use crate::commit::panic_text;
use crate::config::Config;
use crate::control::Wish;
use crate::dispatch::{Dispatch, Phase, Take, View};
use crate::fault::{Fault, planted};
use crate::handoff::{Books, HandOff};
use crate::input::Reader;
use crate::ledger::Ledger;
use crate::observe::{Blocked, Observation, Why, WindowView};
use crate::outcome::Payload;
use crate::sink::Sink;
use crate::source::Source;
use crate::sync::{Arc, AtomicU64, Condvar, Mutex, MutexGuard, Ordering, lock, lock_soon, wait};
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
    idle: Condvar,
    /// Workers wait here for items of a stream.
    fed: Condvar,
    /// How many of them nobody has called yet. Changed under the dispatch lock.
    hungry: AtomicU64,
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
            tallies: (0..=dispatch.workers()).map(|_| Tally::default()).collect(),
            began_ms: clock.now_ms(),
            config,
            clock,
            compute,
            trail: Trail::default(),
            handoff,
            dispatch: Mutex::new(dispatch),
            idle: Condvar::new(),
            fed: Condvar::new(),
            hungry: AtomicU64::new(0),
            bell: Bell::default(),
            wake_at: AtomicU64::new(NEVER),
            total: AtomicU64::new(NEVER),
            signal: AtomicU64::new(Signal::Go as u64),
        }
    }

    /// The supervisor's place among the tallies.
    pub(crate) fn supervisor(&self) -> usize {
        self.tallies.len() - 1
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
        let mut dispatch = lock_soon(&self.dispatch);
        loop {
            if dispatch.phase != Phase::Running || self.signal() != Signal::Go {
                dispatch.live[worker] = None;
                return None;
            }
            let view = self.view(worker);
            match dispatch.take(worker, size, view) {
                Ok(Take::Claim(claim)) => {
                    // Whoever leaves something to do, such as to read, calls one that does it.
                    if dispatch.has_more() {
                        self.call_hungry(&dispatch);
                    }
                    return Some(claim);
                }
                Ok(Take::Read(reader)) => {
                    drop(dispatch);
                    dispatch = self.read(reader);
                }
                Ok(Take::Wait(at)) => dispatch = self.await_work(dispatch, at, view.cursor),
                Ok(Take::WaitForItems) => dispatch = self.await_items(dispatch, view.cursor),
                Err(refusal) => self.fail(&mut dispatch, refusal),
            }
        }
    }

    /// Reads a stream, without any lock, for as long as it takes.
    fn read(&self, mut reader: Reader<S>) -> MutexGuard<'_, Dispatch<S, P>> {
        let go_on = || {
            if self.hungry.load(Ordering::SeqCst) > 0 {
                self.call_hungry(&lock(&self.dispatch));
            }
            self.signal() == Signal::Go
        };
        let said = catch_unwind(AssertUnwindSafe(|| reader.read(go_on)));
        let said = said.unwrap_or_else(|panic| Err(panic_text(&*panic)));
        let mut dispatch = lock(&self.dispatch);
        if let Err(refusal) = dispatch.take_back(reader, said)
            && dispatch.phase != Phase::Over
        {
            self.fail(&mut dispatch, refusal);
        }
        dispatch
    }

    /// Calls one of the workers that wait for items, if there are any.
    fn call_hungry(&self, _: &Dispatch<S, P>) {
        let hungry = self.hungry.load(Ordering::SeqCst);
        if hungry > 0 {
            self.hungry.store(hungry - 1, Ordering::SeqCst);
            self.fed.notify_one();
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
            self.wake_all(&dispatch);
        }
    }

    /// Ends the run with a failure; the first one counts.
    pub(crate) fn fail(&self, dispatch: &mut Dispatch<S, P>, refusal: Refusal) {
        tracing::error!(code = refusal.code().name(), %refusal, "run failed");
        dispatch.failure.get_or_insert(refusal);
        self.end(dispatch);
    }

    /// Wakes everybody.
    pub(crate) fn wake_all(&self, dispatch: &Dispatch<S, P>) {
        self.wake_workers(dispatch);
        self.bell.ring();
    }

    /// Wakes all workers.
    pub(crate) fn wake_workers(&self, _: &Dispatch<S, P>) {
        self.idle.notify_all();
        if self.hungry.swap(0, Ordering::SeqCst) > 0 {
            self.fed.notify_all();
        }
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

    /// Waits until the cursor is there, unless it has moved meanwhile or the run is at its end.
    fn await_work<'a>(
        &self,
        mut dispatch: MutexGuard<'a, Dispatch<S, P>>,
        at: u64,
        cursor: u64,
    ) -> MutexGuard<'a, Dispatch<S, P>> {
        self.wake_at.fetch_min(at, Ordering::SeqCst);
        if self.may_wait(&mut dispatch, cursor) { wait(&self.idle, dispatch) } else { dispatch }
    }

    /// Waits until an item of a stream was read, or somebody must read.
    fn await_items<'a>(
        &self,
        mut dispatch: MutexGuard<'a, Dispatch<S, P>>,
        cursor: u64,
    ) -> MutexGuard<'a, Dispatch<S, P>> {
        if !self.may_wait(&mut dispatch, cursor) {
            return dispatch;
        }
        // First this, then the inflow: the reader lays an item there and then looks who is hungry.
        self.hungry.fetch_add(1, Ordering::SeqCst);
        if dispatch.has_inflow() {
            self.hungry.fetch_sub(1, Ordering::SeqCst);
            return dispatch;
        }
        wait(&self.fed, dispatch)
    }

    /// Whether a worker that has found nothing to do at this cursor may sleep. Ends the run if it is
    /// complete, and if nobody could ever wake the worker.
    fn may_wait(&self, dispatch: &mut Dispatch<S, P>, cursor: u64) -> bool {
        self.end_if_complete(dispatch);
        if dispatch.phase != Phase::Running {
            return false;
        }
        // First this, then the cursor: who lays down in between has moved it, or can not.
        let quiet = self.handoff.is_quiet();
        if self.handoff.cursor() != cursor {
            return false;
        }
        if quiet && dispatch.is_stalled(cursor) {
            let stalled = Refusal::new(Code::SeqStall).with("seq", cursor);
            self.fail(dispatch, stalled);
            return false;
        }
        true
    }

    fn end(&self, dispatch: &mut Dispatch<S, P>) {
        dispatch.phase = Phase::Over;
        self.signal.fetch_max(Signal::Stop as u64, Ordering::SeqCst);
        self.wake_all(dispatch);
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
