//! Small worlds with few threads, each with everything asserted that must hold at its end.

use sprag_kernel::decide::seq::{FailRules, Outcome as Kept};
use sprag_kernel::error::Code;
use sprag_kernel::machines::SeqState;
use sprag_kernel::planner::{Entry, PlanHasher};
use sprag_kernel::retry::{Backoff, Budget, ErrorClass};

use crate::batch::{Batch, Chunk};
use crate::clock::TestClock;
use crate::commit::CommitLane;
use crate::config::Config;
use crate::control::Control;
use crate::handoff::{Books, HandOff};
use crate::lanes::Lanes;
use crate::ledger::{Expiry, Ledger, is_stale};
use crate::outcome::{Envelope, Outcome, Verdict};
use crate::seq_ledger::CANCELLER;
use crate::sink::{Sink, SinkError};
use crate::source::Items;
use crate::summary::{Ending, Resume, Summary};
use crate::sync::{Arc, Mutex, lock, thread};
use crate::tally::Tally;
use crate::trail::{Steps, Trail};
use crate::worker::Context;

/// (seq, payload) in the order in which a sink was given them.
type Written = Arc<std::sync::Mutex<Vec<(u64, u64)>>>;

struct Notes(Written);

impl Sink<u64> for Notes {
    fn commit(&mut self, batch: &mut Batch<u64>) -> Result<(), SinkError> {
        // A scheduling point inside of the write: whoever could get between, does.
        thread::yield_now();
        let mut written = self.0.lock().unwrap();
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
    let silent = ledger.dispatch(0, 1, 0).unwrap();
    ledger.start(0, silent, 0).unwrap();
    let (books, notes) = (Arc::clone(&ledger), Arc::clone(&accepted));
    let late = thread::spawn(move || match books.finish(0, silent, Kept::Success) {
        Ok(_) => lock(&notes).push(1),
        Err(refusal) => assert!(is_stale(&refusal), "a late result is dropped: {refusal}"),
    });
    let (books, notes) = (Arc::clone(&ledger), Arc::clone(&accepted));
    let other = thread::spawn(move || {
        let budget = Budget { max_retries: 1, window_left: None };
        let rules = FailRules { budget, cancelled: false };
        books.reclaim(0, Expiry { now: 10, timeout: 5 }, rules).unwrap();
        if books.slot(0).state != SeqState::Dispatched {
            return;
        }
        let lease = books.dispatch(0, 2, 10).unwrap();
        books.start(0, lease, 10).unwrap();
        books.finish(0, lease, Kept::Success).unwrap();
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
    let lease = ledger.dispatch(0, 1, 0).unwrap();
    let books = Arc::clone(&ledger);
    let worker = thread::spawn(move || {
        let worked = books.start(0, lease, 0).and_then(|()| books.finish(0, lease, Kept::Skip));
        worked.map_err(|refusal| assert!(is_stale(&refusal), "{refusal}")).is_ok()
    });
    // Fatal only to itself: a seq that has ended is not cancelled.
    let cancelled = ledger.cancel(0, CANCELLER).is_ok();
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
    let (summary, written) = disturbed(Control::cancel);
    assert_eq!((summary.counts.total(), summary.total), (4, 4));
    assert_eq!(written.len() as u64, summary.counts.success);
    assert_ne!(summary.ending, Ending::Stopped);
}

pub(crate) fn run_stopped() {
    let (summary, written) = disturbed(Control::stop);
    assert_eq!(summary.counts.cancel, 0);
    let prefix: Vec<_> = (0..summary.total).map(|seq| (seq, seq)).collect();
    assert_eq!(written, prefix);
}

/// A run of four items and a thread that asks something of it at some time.
fn disturbed(ask: fn(&Control)) -> (Summary, Vec<(u64, u64)>) {
    let (control, written) = (Control::new(), Written::default());
    let asker = control.clone();
    let other = thread::spawn(move || ask(&asker));
    let compute = |number: &u64, _: &Context| Outcome::Success(*number);
    let run = Lanes::new(config()).clock(TestClock::new()).control(&control);
    let report = run.run(Items::of(0..4_u64), compute, Notes(Arc::clone(&written))).unwrap();
    other.join().unwrap();
    let written = written.lock().unwrap().clone();
    (report.summary, written)
}

/// Envelopes get lost, so the cursor can never move: the run must say so.
pub(crate) fn run_that_stalls() {
    let compute = |number: &u64, _: &Context| Outcome::Success(*number);
    let run = Lanes::new(config()).clock(TestClock::new());
    let failure = run.run(Items::of(0..4_u64), compute, Notes(Written::default())).unwrap_err();
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
    let mut config = config();
    config.lease_ms = Some(10);
    config.max_retries = 10;
    let compute = |number: &u64, _: &Context| {
        thread::yield_now();
        Outcome::Success(*number)
    };
    let run = Lanes::new(config).clock(clock);
    let report = run.run(Items::of(0..3_u64), compute, Notes(Arc::clone(&written))).unwrap();
    jumper.join().unwrap();
    assert_eq!(report.summary.counts.success, 3);
    assert_eq!(*written.lock().unwrap(), [(0, 0), (1, 1), (2, 2)]);
}

fn config() -> Config {
    let mut config = Config { threads: 2, max_claim: 2, ..Config::default() };
    config.plan.max_entries = 2;
    config.backoff = Backoff::new(vec![0]).unwrap();
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
