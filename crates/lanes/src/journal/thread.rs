//! The journal on a thread of its own, so that the commit lane waits for no disk.
//!
//! The lane hands over commits whose results the sink holds. They are gathered for
//! [`Settings::gather_ms`](super::Settings::gather_ms) and written as one: the thread first makes the
//! results durable, if the sink has a way to, then appends. Neighbours of equal outcome thereby become
//! one entry, and what comes while the disk is busy joins the next group. The lane waits only if
//! [`MAX_SEQS`] are behind, or for each commit if every one is to be synced. After a failure nothing is
//! written any more, and the next commit hears of it.

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use super::{CommitPoint, CommitRun, Ended, Journal, SyncPolicy};

/// Makes durable what a sink has written so far.
pub type Syncer = Box<dyn FnMut() -> io::Result<()> + Send>;

/// Seqs that may wait, half a MiB of them; beyond, the commit lane waits too.
const MAX_SEQS: usize = 64 << 10;
/// A group of this size waits for nobody.
const FULL_SEQS: usize = MAX_SEQS / 2;
/// How long the thread sleeps when there is nothing to do. It is woken for work.
const IDLE: Duration = Duration::from_secs(3_600);

/// Consecutive commits as one.
#[derive(Debug, Default)]
struct Group {
    ends: Vec<Ended>,
    point: CommitPoint,
}

#[derive(Default)]
struct Desk {
    waiting: Group,
    /// Everything below this seq is in the journal.
    written_to: u64,
    /// The commit lane has ended.
    closed: bool,
    /// The thread has ended, and why if it failed.
    deserted: bool,
    failure: Option<Refusal>,
}

#[derive(Default)]
struct Shared {
    desk: Mutex<Desk>,
    /// The thread waits here for commits.
    brought: Condvar,
    /// The lane waits here for room, or for its commit to be written.
    taken: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Desk> {
        self.desk.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lane's end: hands commits over. Dropped, it waits until they are written.
pub(super) struct JournalThread {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Journal>>,
    one_by_one: bool,
}

impl JournalThread {
    /// Moves the journal to a thread. `begun` is when the journal's time was 0.
    pub(super) fn start(
        journal: Journal,
        syncer: Option<Syncer>,
        begun: Instant,
    ) -> Result<Self, Refusal> {
        let settings = journal.settings();
        let one_by_one = settings.sync == SyncPolicy::Always;
        let gather = if one_by_one { 0 } else { settings.gather_ms };
        let syncer = syncer.filter(|_| settings.sync != SyncPolicy::None);
        let gather = Duration::from_millis(gather);
        let shared = Arc::<Shared>::default();
        let scribe = Scribe { journal, syncer, begun, gather, shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name("journal".into());
        let thread = thread.spawn(move || scribe.serve()).map_err(|error| {
            Refusal::new(Code::JournalUnavailable)
                .with("operation", "thread")
                .with("reason", error.to_string())
        })?;
        Ok(Self { shared, thread: Some(thread), one_by_one })
    }

    /// Hands over the commit of results that the sink holds. Refused if an earlier one failed.
    pub(super) fn commit(&self, run: &CommitRun<'_>) -> Result<(), Refusal> {
        let mut desk = self.wait_while(self.shared.lock(), |desk| {
            let behind = desk.waiting.ends.len();
            behind > 0 && behind + run.ends.len() > MAX_SEQS
        });
        if desk.deserted {
            return Err(desk.reason());
        }
        let before = desk.waiting.ends.len();
        desk.waiting.ends.extend_from_slice(run.ends);
        desk.waiting.point = run.point();
        // In between the thread needs no waking: it gathers.
        if before == 0 || desk.waiting.ends.len() >= FULL_SEQS {
            self.shared.brought.notify_one();
        }
        if self.one_by_one {
            desk = self.wait_while(desk, |desk| desk.written_to < run.end_seq());
        }
        if desk.deserted { Err(desk.reason()) } else { Ok(()) }
    }

    /// Waits until everything is written, and gives the journal back.
    pub(super) fn finish(mut self) -> Result<Journal, Refusal> {
        let journal = self.join();
        let mut desk = self.shared.lock();
        match desk.failure.take() {
            Some(refusal) => Err(refusal),
            None => journal.ok_or_else(|| desk.reason()),
        }
    }

    fn wait_while<'a>(
        &self,
        desk: MutexGuard<'a, Desk>,
        goes_on: impl Fn(&Desk) -> bool,
    ) -> MutexGuard<'a, Desk> {
        let waited = self.shared.taken.wait_while(desk, |desk| !desk.deserted && goes_on(desk));
        waited.unwrap_or_else(PoisonError::into_inner)
    }

    /// None if the thread was joined before, or panicked.
    fn join(&mut self) -> Option<Journal> {
        self.shared.lock().closed = true;
        self.shared.brought.notify_one();
        self.thread.take().and_then(|thread| thread.join().ok())
    }
}

impl Drop for JournalThread {
    fn drop(&mut self) {
        self.join();
    }
}

impl Desk {
    fn reason(&self) -> Refusal {
        self.failure.clone().unwrap_or_else(|| {
            Refusal::new(Code::InvariantBroken).with("reason", "the journal's thread panicked")
        })
    }
}

/// The thread's end.
struct Scribe {
    journal: Journal,
    syncer: Option<Syncer>,
    begun: Instant,
    gather: Duration,
    shared: Arc<Shared>,
}

/// What the thread finds on the desk.
enum Found {
    Commits,
    Nothing,
    End,
}

impl Scribe {
    fn serve(mut self) -> Journal {
        // Told however this ends, so that nobody waits for a thread that is gone.
        let _leaving = Leaving(Arc::clone(&self.shared));
        if let Err(refusal) = self.work() {
            self.shared.lock().failure = Some(refusal);
        }
        self.journal
    }

    fn work(&mut self) -> Result<(), Refusal> {
        let mut group = Group::default();
        loop {
            match self.take(&mut group) {
                Found::Commits => self.write(&group)?,
                Found::Nothing => self.journal.sync_if_due(now(self.begun))?,
                Found::End => return Ok(()),
            }
        }
    }

    /// Waits for commits or for the next due sync, then for more commits.
    fn take(&self, group: &mut Group) -> Found {
        let due = self.journal.sync_due_at();
        let idle =
            due.map_or(IDLE, |due| Duration::from_millis(due.saturating_sub(now(self.begun))));
        let mut desk = self.wait(self.shared.lock(), idle, |desk| desk.waiting.ends.is_empty());
        if !desk.waiting.ends.is_empty() {
            desk = self.wait(desk, self.gather, |desk| desk.waiting.ends.len() < FULL_SEQS);
        }
        group.ends.clear();
        std::mem::swap(group, &mut desk.waiting);
        self.shared.taken.notify_one();
        match group.ends.is_empty() {
            false => Found::Commits,
            true if desk.closed => Found::End,
            true => Found::Nothing,
        }
    }

    fn write(&mut self, group: &Group) -> Result<(), Refusal> {
        if let Some(syncer) = &mut self.syncer {
            syncer().map_err(|error| unsynced(&error))?;
        }
        let CommitPoint { end_seq, mark, input_hash, outcome_hash } = group.point;
        let first_seq = end_seq - group.ends.len() as u64;
        let run = CommitRun { first_seq, ends: &group.ends, mark, input_hash, outcome_hash };
        self.journal.append(&run, now(self.begun))?;
        self.shared.lock().written_to = end_seq;
        self.shared.taken.notify_one();
        Ok(())
    }

    fn wait<'a>(
        &self,
        desk: MutexGuard<'a, Desk>,
        time: Duration,
        goes_on: impl Fn(&Desk) -> bool,
    ) -> MutexGuard<'a, Desk> {
        if time.is_zero() {
            return desk;
        }
        let goes_on = |desk: &mut Desk| !desk.closed && goes_on(desk);
        let waited = self.shared.brought.wait_timeout_while(desk, time, goes_on);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

struct Leaving(Arc<Shared>);

impl Drop for Leaving {
    fn drop(&mut self) {
        self.0.lock().deserted = true;
        self.0.taken.notify_one();
    }
}

/// Milliseconds since `begun`.
pub(super) fn now(begun: Instant) -> Millis {
    Millis::try_from(begun.elapsed().as_millis()).unwrap_or(Millis::MAX)
}

/// The results could not be made durable, so their commit must not be written.
pub(super) fn unsynced(error: &io::Error) -> Refusal {
    Refusal::new(Code::JournalUnavailable)
        .with("operation", "sync the results")
        .with("reason", error.to_string())
}
