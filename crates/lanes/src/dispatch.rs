//! Dispatch: what may be worked on next. Everything here happens under the dispatch lock.
//!
//! It draws items, plans windows, and gives out claims: due retries first, then fresh seqs in order,
//! from the two active windows only and as far as back-pressure allows. A stream that has said
//! nothing yet is given to the worker that asks, to be read without the lock. The seq at the cursor
//! may always be given out. The first dispatch of a seq is the only place where it enters the ledger.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::planner::{Entry, Snapshot};
use sprag_kernel::retry::Millis;

use crate::batch::Chunk;
use crate::claim::{Claim, Desk, Held};
use crate::commit::panic_text;
use crate::config::Config;
use crate::input::{Input, Next, Read, Reader, read_many};
use crate::ledger::Ledger;
use crate::outcome::{Envelope, Payload, Verdict};
use crate::pressure::{Pressure, Readings, Throttle};
use crate::retries::{RetryQueue, Waiting};
use crate::seq_ledger::CANCELLER;
use crate::source::Source;
use crate::sync::{Arc, AtomicBool, Mutex};
use crate::tally::{Event, Tally};
use crate::trail::{Steps, Trail};
use crate::windows::{Planned, WindowGauge, Windows};

/// Seqs that one step of a cancel walks through.
const CANCEL_STEP: usize = 1_024;

/// What dispatch looks at and writes to besides its own state.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub(crate) ledger: &'a Ledger,
    pub(crate) trail: &'a Trail,
    pub(crate) tally: &'a Tally,
    pub(crate) cursor: u64,
    pub(crate) buffered_bytes: u64,
    pub(crate) now: Millis,
    /// The cancel latch.
    pub(crate) cancelled: bool,
}

/// The answer to a worker that asks for work.
pub(crate) enum Take<S: Source, P> {
    /// Compute this.
    Claim(Held<S::Item, P>),
    /// Read this, bring it back, and ask again.
    Read(Reader<S>),
    /// Nothing now; ask again when the cursor is here.
    Wait(u64),
    /// Nothing now; ask again when called, because there is an item or nobody to read one.
    WaitForItems,
}

/// Items for a claim, and their window.
type Gathered<T> = (Vec<T>, Arc<WindowGauge>);

/// Some places of a claim.
type Places<T, P> = (Held<T, P>, Range<usize>);

/// Where a run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Running,
    /// No dispatch; work in flight may end until then.
    Stopping(Millis),
    /// As stopping, then everything without an outcome is cancelled.
    Cancelling(Millis),
    /// Complete, stopped, or failed.
    Over,
}

pub(crate) struct Dispatch<S: Source, P> {
    input: Input<S>,
    /// Read and planned, but its window is not active yet.
    held: Option<Read<S::Item>>,
    pub(crate) next_seq: u64,
    /// The number of seqs, once the source has ended.
    pub(crate) total: Option<u64>,
    pub(crate) windows: Windows,
    steps: Steps,
    pub(crate) pressure: Pressure,
    pub(crate) retries: RetryQueue<S::Item>,
    /// How many workers may hold a claim.
    lanes: usize,
    /// What each worker holds.
    pub(crate) live: Vec<Option<Held<S::Item, P>>>,
    /// Places of claims that a stop left without an outcome; a cancel that overrules it gives them one.
    pub(crate) left: Vec<Places<S::Item, P>>,
    /// Workers whose thread has ended.
    pub(crate) exited: Vec<bool>,
    pub(crate) phase: Phase,
    pub(crate) cancelled: bool,
    pub(crate) failure: Option<Refusal>,
}

impl<S: Source, P: Payload> Dispatch<S, P> {
    /// Dispatch over a source whose first `next_seq` entries were read into `windows`.
    pub(crate) fn new(source: S, windows: Windows, next_seq: u64, config: &Config) -> Self {
        let input = Input::new(source);
        let workers = config.threads + usize::from(input.is_stream());
        Self {
            input,
            held: None,
            next_seq,
            total: None,
            windows,
            steps: Steps::default(),
            pressure: Pressure::new(&config.pressure),
            retries: RetryQueue::default(),
            lanes: config.threads,
            live: (0..workers).map(|_| None).collect(),
            left: Vec::new(),
            exited: vec![false; workers],
            phase: Phase::Running,
            cancelled: false,
            failure: None,
        }
    }

    /// Work for this worker, at most `size` items. Its former claim is settled.
    pub(crate) fn take(
        &mut self,
        worker: usize,
        size: usize,
        view: View,
    ) -> Result<Take<S, P>, Refusal> {
        self.live[worker] = None;
        if self.is_full() {
            return Ok(Take::WaitForItems);
        }
        self.windows.retire(view.cursor);
        let throttle = self.feel(view);
        let head_only = matches!(throttle, Throttle::Paused(_));
        if let Some(waiting) = self.due_retry(head_only, view) {
            return self.again(worker, waiting, view).map(Take::Claim);
        }
        let size = match throttle {
            Throttle::Open => self.share(size),
            Throttle::Smaller => self.share(size / 4),
            Throttle::Paused(_) => usize::from(self.next_seq == view.cursor),
        };
        let first = self.next_seq;
        let filled = catch_unwind(AssertUnwindSafe(|| self.fill(worker, size, view)));
        let filled =
            filled.unwrap_or_else(|panic| Err(source_refusal(self.next_seq, panic_text(&*panic))));
        if filled.is_err() {
            // What was read for this claim is given to nobody.
            self.next_seq = first;
        }
        match filled? {
            Some(claim) => Ok(Take::Claim(claim)),
            None if size > 0 && self.held.is_none() && self.total.is_none() => {
                let reader = self.input.lend(size, self.windows.planner());
                Ok(reader.map_or(Take::WaitForItems, Take::Read))
            }
            None => Ok(Take::Wait(self.wake_at(head_only, view.cursor))),
        }
    }

    /// Takes a stream back from the worker that has read it: whether it has ended, or why it failed.
    pub(crate) fn take_back(
        &mut self,
        reader: Reader<S>,
        said: Result<bool, String>,
    ) -> Result<(), Refusal> {
        self.input.take_back(reader, said == Ok(true));
        // A stream that was cut has nothing to say any more.
        let (Err(why), Some(unplanned)) = (said, self.input.unplanned()) else { return Ok(()) };
        Err(source_refusal(self.next_seq + u64::from(self.held.is_some()) + unplanned, why))
    }

    /// Whether there is something to do for another worker that waits for items.
    pub(crate) fn has_more(&self) -> bool {
        self.held.is_none() && self.input.has_more() && !self.is_full()
    }

    /// Whether a worker that is about to wait for items would find one by now.
    pub(crate) fn has_inflow(&self) -> bool {
        self.input.has_inflow() && !self.is_full()
    }

    /// Whether as many workers as may hold a claim do.
    fn is_full(&self) -> bool {
        self.live.len() > self.lanes && self.busy() >= self.lanes
    }

    pub(crate) fn workers(&self) -> usize {
        self.live.len()
    }

    /// Whether nobody holds, awaits or reads anything. If nobody carries anything either, the cursor
    /// can never move again.
    pub(crate) fn is_stalled(&self, cursor: u64) -> bool {
        let open = |claim: &Held<S::Item, P>| !claim.is_abandoned();
        self.total.is_none_or(|total| cursor < total)
            && !self.live.iter().flatten().any(open)
            && self.retries.len() == 0
            && !self.input.is_lent()
    }

    /// Cancels what a stop left, what waits and what was never dispatched, as far as the windows reach.
    pub(crate) fn cancel_more(&mut self, view: View) -> Result<Vec<Chunk<P>>, Refusal> {
        let mut chunks = self.cancel_left(view)?;
        while let Some(waiting) = self.retries.pop_lowest() {
            let before = view.ledger.cancel(waiting.seq, CANCELLER)?;
            view.tally.add(Event::CancelledWaiting, 1);
            let envelope = Envelope::new(Verdict::Cancel, before.attempts);
            chunks.push(Chunk::single(waiting.seq, envelope, waiting.window));
        }
        self.windows.retire(view.cursor);
        let walked = catch_unwind(AssertUnwindSafe(|| self.cancel_unseen(view, &mut chunks)));
        walked.unwrap_or_else(|panic| Err(source_refusal(self.next_seq, panic_text(&*panic))))?;
        Ok(chunks)
    }

    /// Workers that hold a claim which is not settled.
    pub(crate) fn busy(&self) -> usize {
        self.live.iter().flatten().filter(|claim| !claim.is_abandoned()).count()
    }

    /// Whether no worker is left that must be waited for.
    pub(crate) fn is_deserted(&self) -> bool {
        let gone = |(exited, held): (&bool, &Option<Held<S::Item, P>>)| {
            *exited || held.as_ref().is_some_and(|claim| claim.is_abandoned())
        };
        self.exited.iter().zip(&self.live).all(gone)
    }

    fn feel(&mut self, view: View) -> Throttle {
        let window_bytes = self.windows.newest().map_or(0, Planned::buffered);
        let commit_lag = self.lag(view.cursor);
        let before = self.pressure.paused_by();
        let readings = Readings { buffered_bytes: view.buffered_bytes, window_bytes, commit_lag };
        let throttle = self.pressure.feel(readings);
        let after = self.pressure.paused_by();
        if before != after {
            tracing::debug!(?before, ?after, ?readings, "back-pressure changed");
        }
        throttle
    }

    /// Seqs between the cursor and the highest one dispatched.
    pub(crate) fn lag(&self, cursor: u64) -> u64 {
        self.next_seq.saturating_sub(cursor + 1)
    }

    /// Towards a known end claims get smaller, so that no worker is left with the last large one.
    fn share(&self, size: usize) -> usize {
        let fair = self.input.total().map_or(u64::MAX, |total| {
            total.saturating_sub(self.next_seq) / (2 * self.live.len() as u64)
        });
        size.min(usize::try_from(fair).unwrap_or(usize::MAX)).max(1)
    }

    fn due_retry(&mut self, head_only: bool, view: View) -> Option<Waiting<S::Item>> {
        if head_only {
            return self.retries.take_due(view.cursor, view.now);
        }
        self.retries.pop_due(view.now)
    }

    fn again(
        &mut self,
        worker: usize,
        waiting: Waiting<S::Item>,
        view: View,
    ) -> Result<Held<S::Item, P>, Refusal> {
        let owner = owner_of(worker);
        let lease = view.ledger.dispatch(waiting.seq, owner, view.now)?;
        let claim = Arc::new(Claim {
            first: waiting.seq,
            owner,
            window: waiting.window,
            shelf: waiting.shelf,
            offset: waiting.place,
            attempts: view.ledger.slot(waiting.seq).attempts,
            generations: vec![lease.generation],
            desk: Mutex::new(Desk::empty()),
            abandoned: AtomicBool::new(false),
        });
        self.live[worker] = Some(Arc::clone(&claim));
        Ok(claim)
    }

    fn fill(
        &mut self,
        worker: usize,
        size: usize,
        view: View,
    ) -> Result<Option<Held<S::Item, P>>, Refusal> {
        let (first, owner) = (self.next_seq, owner_of(worker));
        let Some((items, window)) = self.gather(size, view)? else { return Ok(None) };
        let generations = view.ledger.enter_run((first, items.len()), owner, view.now)?;
        view.trail.append(&mut self.steps);
        view.tally.add(Event::Dispatched, items.len() as u64);
        let claim = Arc::new(Claim {
            first,
            owner,
            window,
            shelf: Arc::new(items),
            offset: 0,
            attempts: 0,
            generations,
            desk: Mutex::new(Desk::empty()),
            abandoned: AtomicBool::new(false),
        });
        self.live[worker] = Some(Arc::clone(&claim));
        Ok(Some(claim))
    }

    /// Reads up to `size` items of one active window.
    fn gather(&mut self, size: usize, view: View) -> Result<Option<Gathered<S::Item>>, Refusal> {
        if size == 0 {
            return Ok(None);
        }
        let mut next = self.next_item(view)?;
        if !self.windows.admits_newest() {
            self.held = next;
            return Ok(None);
        }
        let Some(newest) = self.windows.newest().filter(|_| next.is_some()) else {
            return Ok(None);
        };
        let (number, window) = (newest.number, Arc::clone(&newest.gauge));
        let size = self.input.limit(size);
        let mut items = Vec::with_capacity(size);
        while let Some(read) = next {
            if self.windows.newest().is_some_and(|newest| newest.number != number) {
                self.held = Some(read);
                break;
            }
            items.push(read.item);
            self.next_seq += 1;
            next = self.read_alike(read.entry, size, &mut items)?;
            next.as_ref().map_or(Ok(()), |read| self.plan(read, view))?;
        }
        Ok(Some((items, window)))
    }

    /// Reads on while entries are like the last one and join its window, which then costs the planner
    /// one step for all of them. Returns the item that is not or does not: it is to be planned.
    fn read_alike(
        &mut self,
        entry: Entry,
        size: usize,
        items: &mut Vec<S::Item>,
    ) -> Result<Option<Read<S::Item>>, Refusal> {
        if self.total.is_some() || items.len() >= size {
            return Ok(None);
        }
        let Input::AtHand(source) = &mut self.input else { return self.draw() };
        let (room, mut alike, mut other) = (self.windows.room_for(entry), 0, None);
        let mut ended = false;
        // Where it is known that all are alike none is looked at, up to the end of the window.
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(size - items.len());
        let most = if source.common_entry() == Some(entry) { fits } else { 0 };
        if most > 0 {
            let (came, said) = read_many(source, most, items);
            alike = came as u64;
            self.next_seq += alike;
            said.map_err(|why| source_refusal(self.next_seq, why))?;
            ended = came < most;
        }
        while !ended && items.len() < size {
            let next = source.next().map_err(|why| source_refusal(self.next_seq, why))?;
            let Some(item) = next else {
                ended = true;
                break;
            };
            let is_alike = source.entry(&item) == entry;
            if alike == room || !is_alike || source.content(&item).is_some() {
                other = Some(Read::of(source, item));
                break;
            }
            items.push(item);
            self.next_seq += 1;
            alike += 1;
        }
        if alike > 0 {
            self.windows.extend(entry, alike);
            self.steps.note_equal(entry, alike);
        }
        if ended {
            self.end_discovery()?;
        }
        Ok(other)
    }

    #[inline]
    fn next_item(&mut self, view: View) -> Result<Option<Read<S::Item>>, Refusal> {
        if self.held.is_some() {
            return Ok(self.held.take());
        }
        if self.total.is_some() {
            return Ok(None);
        }
        let next = self.draw()?;
        next.as_ref().map_or(Ok(()), |read| self.plan(read, view))?;
        Ok(next)
    }

    /// The next item as it comes; none at the end, or while it must be read first.
    #[inline]
    fn draw(&mut self) -> Result<Option<Read<S::Item>>, Refusal> {
        match self.input.next().map_err(|why| source_refusal(self.next_seq, why))? {
            Next::Item(read) => Ok(Some(read)),
            Next::End => self.end_discovery().map(|()| None),
            Next::Unread => Ok(None),
        }
    }

    #[inline]
    fn plan(&mut self, read: &Read<S::Item>, view: View) -> Result<(), Refusal> {
        read.entry.check()?;
        self.steps.note(read.entry, read.content);
        let (next_seq, live, lanes) = (self.next_seq, &self.live, self.lanes);
        self.windows.plan(read.entry, || Snapshot {
            commit_lag: next_seq.saturating_sub(view.cursor + 1),
            buffered_bytes: view.buffered_bytes,
            util: live.iter().flatten().count() as f64 / lanes as f64,
        });
        Ok(())
    }

    fn end_discovery(&mut self) -> Result<(), Refusal> {
        self.windows.finish();
        let total = self.next_seq + u64::from(self.held.is_some());
        if let Some(known) = self.input.total().filter(|known| *known != total) {
            let why = format!("ended at {total}, promised {known}");
            return Err(source_refusal(self.next_seq, why));
        }
        tracing::debug!(total, "discovery ended");
        self.total = Some(total);
        Ok(())
    }

    fn cancel_unseen(&mut self, view: View, chunks: &mut Vec<Chunk<P>>) -> Result<(), Refusal> {
        // What was not read yet is no part of the run, if nobody knows how much it is.
        self.input.cut();
        for _ in 0..CANCEL_STEP {
            let Some(read) = self.next_item(view)? else { break };
            if !self.windows.admits_newest() {
                self.held = Some(read);
                break;
            }
            view.ledger.enter_cancelled(self.next_seq, CANCELLER)?;
            view.tally.add(Event::Dispatched, 1);
            view.tally.add(Event::CancelledWaiting, 1);
            let window = &self.windows.newest().expect("an entry was planned").gauge;
            let envelope = Envelope::new(Verdict::Cancel, 0);
            chunks.push(Chunk::single(self.next_seq, envelope, Arc::clone(window)));
            self.next_seq += 1;
        }
        view.trail.append(&mut self.steps);
        Ok(())
    }

    fn wake_at(&self, head_only: bool, cursor: u64) -> u64 {
        match (&self.held, self.total) {
            _ if head_only => cursor + 1,
            (Some(_), _) => self.windows.closes_at().unwrap_or(cursor + 1),
            (None, Some(total)) => total,
            (None, None) => cursor + 1,
        }
    }
}

fn source_refusal(seq: u64, reason: String) -> Refusal {
    Refusal::new(Code::SourceFailed).with("seq", seq).with("reason", reason)
}

/// Owner 0 is nobody, so workers count from 1.
pub(crate) fn owner_of(worker: usize) -> u16 {
    u16::try_from(worker + 1).expect("threads are limited")
}
