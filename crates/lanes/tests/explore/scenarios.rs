//! Small worlds with few threads, each with everything asserted that must hold at its end.

use sprag_kernel::decide::seq::{FailRules, Lease, Outcome as Kept};
use sprag_kernel::error::Code;
use sprag_kernel::machines::SeqState;
use sprag_kernel::planner::{Entry, PlanHasher};
use sprag_kernel::retry::{Backoff, Budget, ErrorClass};

use crate::batch::{Batch, Chunk};
use crate::claim::{Claim, Desk};
use crate::clock::TestClock;
use crate::commit::CommitLane;
use crate::config::Config;
use crate::control::Control;
use crate::dispatch::View;
use crate::handoff::{Books, HandOff};
use crate::lanes::Lanes;
use crate::ledger::{Expiry, Ledger};
use crate::outcome::{Envelope, Outcome, Verdict};
use crate::reclaim::{Claimed, cancel_claimed};
use crate::sink::{Sink, SinkError};
use crate::source::{Items, Source};
use crate::summary::{Ending, Resume, Summary};
use crate::sync::{Arc, AtomicBool, Mutex, lock, thread};
use crate::tally::Tally;
use crate::trail::{Steps, Trail};
use crate::worker::Context;

thread_local! {
    /// Batches so far that had a claim of several seqs in them.
    pub(crate) static LARGE_CLAIMS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// (seq, payload) in the order in which a sink was given them.
type Written = Arc<std::sync::Mutex<Vec<(u64, u64)>>>;

struct Notes(Written);

impl Sink<u64> for Notes {
    fn commit(&mut self, batch: &mut Batch<u64>) -> Result<(), SinkError> {
        // A scheduling point inside of the write: whoever could get between, does.
        thread::yield_now();
        let mut written = self.0.lock().unwrap();
        // A piece is what one worker made of one claim.
        if batch.chunks.iter().any(|chunk| chunk.sealed.len() > 1) {
            LARGE_CLAIMS.set(LARGE_CLAIMS.get() + 1);
        }
        for (seq, envelope) in batch.iter() {
            if let Verdict::Success(payload) = envelope.verdict {
                written.push((seq, *payload));
            }
        }
        Ok(())
    }
}

struct World {
    ledger: Ledger,
    trail: Trail,
    handoff: HandOff<u64, Notes>,
    written: Written,
}

/// Three threads each finish one seq and hand it over.
pub(crate) fn hand_off() {
    const SEQS: u64 = 3;
    let world = Arc::new(world(SEQS));
    let finish = |seq: u64| {
        let world = Arc::clone(&world);
        thread::spawn(move || {
            let lease = world.ledger.dispatch(seq, owner(seq), 0).unwrap();
            world.ledger.start(seq, lease, 0).unwrap();
            world.ledger.finish(seq, lease, Kept::Success).unwrap();
            let envelope = Envelope::new(Verdict::Success(seq * 10), 0);
            let chunk = Chunk::single(seq, envelope, Arc::default());
            let tally = Tally::default();
            let books = Books { ledger: &world.ledger, trail: &world.trail, tally: &tally };
            world.handoff.publish(vec![chunk], books).unwrap();
        })
    };
    let threads: Vec<_> = (0..SEQS).map(finish).collect();
    for thread in threads {
        thread.join().unwrap();
    }
    assert_eq!(world.handoff.cursor(), SEQS, "nothing is left in the inbox");
    let expected: Vec<_> = (0..SEQS).map(|seq| (seq, seq * 10)).collect();
    assert_eq!(*world.written.lock().unwrap(), expected);
}

/// An owner that was silent for too long, and the one that takes its place.
pub(crate) fn reclaim_against_result() {
    let ledger = Arc::new(Ledger::with_room_for(1).with_heartbeats());
    let accepted = Arc::new(Mutex::new(Vec::new()));
    let silent = Arc::new(claim(ledger.dispatch(0, 1, 0).unwrap(), 0));
    assert!(ledger.start_run(silent.hold(0..1), 0).unwrap().is_empty());
    let (books, notes, held) = (Arc::clone(&ledger), Arc::clone(&accepted), Arc::clone(&silent));
    let late = thread::spawn(move || {
        let _desk = lock(&held.desk);
        if books.succeed_run(held.hold(0..1)).unwrap().is_empty() {
            lock(&notes).push(1);
        }
    });
    let (books, notes) = (Arc::clone(&ledger), Arc::clone(&accepted));
    let other = thread::spawn(move || {
        let budget = Budget { max_retries: 1, window_left: None };
        let rules = FailRules { budget, cancelled: false };
        let desk = lock(&silent.desk);
        if books.slot(0).lease == silent.lease(0) {
            books.reclaim(0, Expiry { now: 10, timeout: 5 }, rules).unwrap();
        }
        drop(desk);
        if books.slot(0).state != SeqState::Dispatched {
            return;
        }
        let again = claim(books.dispatch(0, 2, 10).unwrap(), 1);
        let seqs = || again.hold(0..1);
        assert!(books.start_run(seqs(), 10).unwrap().is_empty());
        thread::yield_now();
        assert!(books.succeed_run(seqs()).unwrap().is_empty(), "the new owner is no stranger");
        lock(&notes).push(2);
    });
    late.join().unwrap();
    other.join().unwrap();
    assert_eq!(ledger.slot(0).state, SeqState::TerminalSuccess);
    assert_eq!(lock(&accepted).len(), 1, "one result counts: {accepted:?}");
}

/// A forced cancel and the result it comes too late or too early for.
pub(crate) fn cancel_against_result() {
    let ledger = Arc::new(Ledger::with_room_for(1).with_heartbeats());
    let held = Arc::new(claim(ledger.dispatch(0, 1, 0).unwrap(), 0));
    let (books, mine) = (Arc::clone(&ledger), Arc::clone(&held));
    let worker = thread::spawn(move || {
        let seqs = || mine.hold(0..1);
        let desk = lock(&mine.desk);
        let begun = books.start_run(seqs(), 0).unwrap().is_empty();
        drop(desk);
        let _desk = lock(&mine.desk);
        begun && books.finish_run(seqs(), [Kept::Skip].into_iter()).unwrap().is_empty()
    });
    let (trail, tally) = (Trail::default(), Tally::default());
    let view = View {
        ledger: &ledger,
        trail: &trail,
        tally: &tally,
        cursor: 0,
        buffered_bytes: 0,
        now: 0,
        cancelled: true,
    };
    cancel_claimed(Claimed { claim: &held, place: 0 }, view).unwrap();
    let cancelled = !held.clear_desk().is_empty();
    let finished = worker.join().unwrap();
    assert!(cancelled != finished, "one of them, not both");
    let expected = if cancelled { SeqState::TerminalCancel } else { SeqState::TerminalSkip };
    assert_eq!(ledger.slot(0).state, expected);
}

/// Two workers, windows of two, and a first attempt that fails.
pub(crate) fn run_with_retries() {
    let written = Written::default();
    let compute = |number: &u64, context: &Context| match (context.seq(), context.attempts()) {
        (1, 0) => Outcome::Fail(ErrorClass::RetryableTransient, "again".into()),
        _ => Outcome::Success(number * 10),
    };
    let run = Lanes::new(config()).clock(TestClock::new());
    let summary = run.run(Items::of(0..5_u64), compute, Notes(Arc::clone(&written)));
    let summary = summary.unwrap().summary;
    let expected: Vec<_> = (0..5).map(|seq| (seq, seq * 10)).collect();
    assert_eq!(*written.lock().unwrap(), expected);
    assert_eq!((summary.counts.success, summary.retries.transient), (5, 1));
    assert_eq!(
        summary.outcome_hash,
        EXPECTED.with(|hash| *hash.get_or_init(|| summary.outcome_hash))
    );
}

thread_local! {
    /// The outcome hash of the first schedule; all others must agree.
    static EXPECTED: std::cell::OnceCell<u64> = const { std::cell::OnceCell::new() };
}

pub(crate) fn run_cancelled() {
    let (summary, written) = disturbed(Items::of(0..4_u64), config(), Control::cancel);
    assert_eq!((summary.counts.total(), summary.total), (4, 4));
    assert_eq!(written.len() as u64, summary.counts.success);
    assert_ne!(summary.ending, Ending::Stopped);
}

pub(crate) fn stream_cancelled() {
    let (summary, written) = disturbed(stream(5), wide(), Control::cancel);
    assert_eq!(summary.counts.total(), summary.total, "every seq that was read has an outcome");
    assert_eq!(written.len() as u64, summary.counts.success);
    assert_ne!(summary.ending, Ending::Stopped);
    assert!(summary.ending == Ending::Cancelled || summary.total == 5);
}

pub(crate) fn run_stopped() {
    let (summary, written) = disturbed(stream(5), wide(), Control::stop);
    assert_eq!(summary.counts.cancel, 0);
    let prefix: Vec<_> = (0..summary.total).map(|seq| (seq, seq)).collect();
    assert_eq!(written, prefix);
}

/// A run of a few items and a thread that asks something of it at some time.
fn disturbed(
    items: impl Source<Item = u64>,
    config: Config,
    ask: fn(&Control),
) -> (Summary, Vec<(u64, u64)>) {
    let (control, written) = (Control::new(), Written::default());
    let asker = control.clone();
    let other = thread::spawn(move || ask(&asker));
    let compute = |number: &u64, _: &Context| Outcome::Success(*number);
    let run = Lanes::new(config).clock(TestClock::new()).control(&control);
    let report = run.run(items, compute, Notes(Arc::clone(&written))).unwrap();
    other.join().unwrap();
    let written = written.lock().unwrap().clone();
    (report.summary, written)
}

pub(crate) fn run_that_stalls() {
    stalls(Items::of(0..4_u64));
}

pub(crate) fn stream_that_stalls() {
    stalls(stream(5));
}

/// Envelopes get lost, so the cursor can never move: the run must say so.
fn stalls(items: impl Source<Item = u64>) {
    let compute = |number: &u64, _: &Context| Outcome::Success(*number);
    let run = Lanes::new(config()).clock(TestClock::new());
    let failure = run.run(items, compute, Notes(Written::default())).unwrap_err();
    assert_eq!(failure.code(), Code::SeqStall);
    let snapshot = failure.snapshot.unwrap();
    assert_eq!((snapshot.next_commit_seq, snapshot.ledger.committed), (0, 0));
    let blocked = snapshot.oldest_blocked.unwrap();
    assert_eq!((blocked.seq, blocked.state), (0, SeqState::TerminalSuccess));
}

/// Time jumps past every lease while two workers compute.
pub(crate) fn run_with_expiring_leases() {
    let (clock, written) = (TestClock::new(), Written::default());
    let time = clock.clone();
    let jumper = thread::spawn(move || {
        time.advance_ms(10);
        time.advance_ms(10);
    });
    let mut config = wide();
    config.lease_ms = Some(10);
    config.max_retries = 10;
    let compute = |number: &u64, _: &Context| {
        thread::yield_now();
        Outcome::Success(*number)
    };
    let run = Lanes::new(config).clock(clock);
    let report = run.run(stream(5), compute, Notes(Arc::clone(&written))).unwrap();
    jumper.join().unwrap();
    assert_eq!(report.summary.counts.success, 5);
    let expected: Vec<_> = (0..5).map(|seq| (seq, seq)).collect();
    assert_eq!(*written.lock().unwrap(), expected);
}

/// Items of which nobody knows how many will come. Claims of them are not made smaller towards an end.
fn stream(items: u64) -> impl Source<Item = u64> {
    Items::stream(0..items)
}

/// Seq 0 under this lease, after so many retries.
fn claim(lease: Lease, attempts: u16) -> Claim<u64, u64> {
    Claim {
        first: 0,
        owner: lease.owner,
        window: Arc::default(),
        shelf: Arc::new(vec![0]),
        offset: 0,
        attempts,
        generations: vec![lease.generation],
        desk: Mutex::new(Desk::empty()),
        abandoned: AtomicBool::new(false),
    }
}

fn config() -> Config {
    let mut config = Config { threads: 2, max_claim: 2, ..Config::default() };
    config.plan.max_entries = 2;
    config.backoff = Backoff::new(vec![0]).unwrap();
    config
}

/// Windows with room for a claim of two behind the first seq.
fn wide() -> Config {
    let mut config = config();
    config.plan.max_entries = 4;
    config
}

fn world(seqs: u64) -> World {
    let (trail, mut steps, written) = (Trail::default(), Steps::default(), Written::default());
    for _ in 0..seqs {
        steps.note(Entry { cost: 1, bytes: 0 }, None);
    }
    trail.append(&mut steps);
    let hasher = PlanHasher::new(&Config::default().plan);
    let notes = Notes(Arc::clone(&written));
    let lane = CommitLane::new(notes, Resume::default(), hasher, u64::MAX);
    World {
        ledger: Ledger::with_room_for(seqs).with_heartbeats(),
        trail,
        handoff: HandOff::new(lane),
        written,
    }
}

fn owner(seq: u64) -> u16 {
    u16::try_from(seq + 1).unwrap()
}
