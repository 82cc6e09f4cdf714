//! Bringing commits to disk, beside the writer.
//!
//! The writer commits into SQLite's log without waiting for the disk; whoever made a call is answered when the log
//! has been synced since. Under load a thread of its own does that, for all transactions that have gathered, while
//! the writer is at the next one. Without load there is nothing to gain: the writer syncs by itself and wakes
//! nobody.
//!
//! Why nothing is lost: a sync brings everything to disk that was written to the log before it, and of a log that
//! was cut off SQLite keeps all transactions up to the first that is not whole. So what is answered is durable,
//! with all that it was built upon. Readers see a commit earlier, so they wait with their answers, too.
//!
//! After a sync that failed nobody knows what is on disk, and a second one may say that all is well. The store is
//! away from then on, until it is opened again and reads what there is.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use sprag_engine::crash::crash_point;
use sprag_engine::store::{Answer, StoreError};
use tokio::sync::watch;

/// How many transactions may wait for the disk before the writer waits, too.
const WAITING: usize = 64;

/// Tells the callers of a transaction that it is durable, or why it is not.
pub(super) type Answering = Box<dyn FnOnce(Option<&StoreError>) + Send>;

/// The writer's end.
pub(super) struct Log {
    disk: Arc<Disk>,
    over: Option<SyncSender<Over>>,
    thread: Option<JoinHandle<()>>,
}

/// The readers' end.
pub(super) struct Durable(Arc<Disk>);

/// A transaction that is over.
struct Over {
    number: u64,
    answering: Answering,
}

struct Disk {
    sync: Box<dyn Fn() -> io::Result<()> + Send + Sync>,
    turn: Mutex<()>,
    /// Number of the last transaction that can be seen.
    seen: AtomicU64,
    /// Number of the last transaction that is durable, or why none will be any more.
    durable: watch::Sender<Result<u64, String>>,
}

impl Log {
    /// A log that `sync` brings to disk.
    pub(super) fn start(sync: impl Fn() -> io::Result<()> + Send + Sync + 'static) -> Self {
        let (durable, seen) = (watch::Sender::new(Ok(0)), AtomicU64::new(0));
        let disk = Disk { sync: Box::new(sync), turn: Mutex::default(), seen, durable };
        let disk = Arc::new(disk);
        let (over, waiting) = sync_channel(WAITING);
        let syncing = disk.clone();
        let thread = std::thread::Builder::new()
            .name("sprag-sync".into())
            .spawn(move || syncing.follow(&waiting))
            .expect("a thread can be started");
        Self { disk, over: Some(over), thread: Some(thread) }
    }

    pub(super) fn durable(&self) -> Durable {
        Durable(self.disk.clone())
    }

    /// To be called before a COMMIT that changes something: from here on it may be seen.
    pub(super) fn commits(&self) {
        self.disk.seen.fetch_add(1, Ordering::SeqCst);
    }

    /// Why nothing becomes durable any more, if it is so.
    pub(super) fn failure(&self) -> Option<StoreError> {
        self.disk.durable.borrow().as_ref().err().cloned().map(StoreError::Unavailable)
    }

    /// Syncs, and answers the callers of the last transaction.
    pub(super) fn answer(&self, answering: Answering) {
        self.disk.settle(self.disk.seen.load(Ordering::SeqCst), [answering]);
    }

    /// The same, but does not wait for it.
    pub(super) fn answer_later(&self, answering: Answering) {
        let number = self.disk.seen.load(Ordering::SeqCst);
        let over = self.over.as_ref().expect("it is there until this is dropped");
        over.send(Over { number, answering }).expect("the thread lives until this is dropped");
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.over = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Durable {
    /// Waits until everything that can have been seen so far is durable.
    pub(super) async fn reached(&self) -> Answer<()> {
        let seen = self.0.seen.load(Ordering::SeqCst);
        let mut durable = self.0.durable.subscribe();
        let is_over = |durable: &Result<u64, String>| !durable.as_ref().is_ok_and(|n| *n < seen);
        let reached = durable.wait_for(is_over).await.expect("the sender is held here");
        reached.as_ref().map(|_| ()).map_err(|reason| StoreError::Unavailable(reason.clone()))
    }
}

impl Disk {
    fn follow(&self, waiting: &Receiver<Over>) {
        while let Ok(Over { mut number, answering }) = waiting.recv() {
            let mut group = vec![answering];
            while let Ok(next) = waiting.try_recv() {
                number = next.number;
                group.push(next.answering);
            }
            self.settle(number, group);
        }
    }

    /// Everything up to this number is in the log; answers when it is on disk.
    fn settle(&self, number: u64, group: impl IntoIterator<Item = Answering>) {
        let failure = self.synced(number).err().map(StoreError::Unavailable);
        crash_point("sqlite.after_sync");
        for answering in group {
            answering(failure.as_ref());
        }
    }

    /// Syncs up to this number, unless somebody has. One at a time: the disk tells only one of two that it has failed.
    fn synced(&self, number: u64) -> Result<(), String> {
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.durable.borrow().clone()?;
        if known < number {
            let synced = (self.sync)().map(|()| number).map_err(|error| lost(&error));
            self.durable.send_modify(|durable| durable.clone_from(&synced));
            synced?;
        }
        Ok(())
    }
}

fn lost(error: &io::Error) -> String {
    format!(
        "the log did not reach the disk ({error}); stop the engine, see to the disk, start it again"
    )
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use super::*;

    /// How long a test waits for what must come, and how long for what must not.
    const SOON: Duration = Duration::from_secs(10);
    const A_MOMENT: Duration = Duration::from_millis(50);

    type Told = Result<(), String>;

    /// Notes how a transaction was answered.
    fn noting(told: &Sender<Told>) -> Answering {
        let told = told.clone();
        Box::new(move |failure| {
            told.send(failure.map_or(Ok(()), |failure| Err(failure.to_string()))).unwrap();
        })
    }

    /// A disk on which each sync takes until the test gives its outcome.
    fn slow_disk() -> (Log, Sender<io::Result<()>>) {
        let (outcome, outcomes) = channel();
        let outcomes = Mutex::new(outcomes);
        (Log::start(move || outcomes.lock().unwrap().recv().unwrap()), outcome)
    }

    #[test]
    fn callers_and_readers_are_answered_after_the_sync() {
        let (log, disk) = slow_disk();
        let (told, answers) = channel();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let durable = log.durable();
        // What nobody has committed yet nobody waits for.
        runtime.block_on(durable.reached()).unwrap();

        log.commits();
        log.answer_later(noting(&told));
        let mut reading = Box::pin(durable.reached());
        let early = async { tokio::time::timeout(A_MOMENT, &mut reading).await };
        let early = runtime.block_on(early);
        assert!(early.is_err(), "a reader was answered before the sync");
        assert!(answers.try_recv().is_err(), "a caller was answered before the sync");

        disk.send(Ok(())).unwrap();
        assert_eq!(answers.recv_timeout(SOON).unwrap(), Ok(()));
        runtime.block_on(reading).unwrap();
    }

    #[test]
    fn one_sync_is_enough_for_all_that_have_gathered() {
        let (log, disk) = slow_disk();
        let (told, answers) = channel();
        for _ in 0..20 {
            log.commits();
            log.answer_later(noting(&told));
        }
        // One may have begun before the others came. A third would wait for ever.
        disk.send(Ok(())).unwrap();
        disk.send(Ok(())).unwrap();
        for _ in 0..20 {
            assert_eq!(answers.recv_timeout(SOON).unwrap(), Ok(()));
        }
    }

    #[test]
    fn nothing_is_synced_for_who_has_only_looked() {
        let (log, disk) = slow_disk();
        let (told, answers) = channel();
        // A sync would wait for ever.
        log.answer(noting(&told));
        log.commits();
        disk.send(Ok(())).unwrap();
        log.answer(noting(&told));
        log.answer(noting(&told));
        log.answer_later(noting(&told));
        for _ in 0..4 {
            assert_eq!(answers.recv_timeout(SOON).unwrap(), Ok(()));
        }
    }

    #[test]
    fn after_a_failed_sync_nothing_is_durable_any_more() {
        let (log, disk) = slow_disk();
        let (told, answers) = channel();
        log.commits();
        log.answer_later(noting(&told));
        disk.send(Err(io::Error::other("no such disk"))).unwrap();
        let first = answers.recv_timeout(SOON).unwrap().unwrap_err();
        assert!(first.contains("no such disk"), "{first}");
        assert!(log.failure().is_some());

        // The disk would say that all is well now; it is not asked.
        disk.send(Ok(())).unwrap();
        log.commits();
        log.answer(noting(&told));
        assert_eq!(answers.recv_timeout(SOON).unwrap(), Err(first));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = runtime.block_on(log.durable().reached());
        assert!(matches!(read, Err(StoreError::Unavailable(_))), "{read:?}");
    }

    #[test]
    fn nobody_is_told_that_all_is_well_beside_a_sync_that_fails() {
        let (log, disk) = slow_disk();
        let (told, answers) = channel();
        log.commits();
        log.answer_later(noting(&told));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                log.commits();
                log.answer(noting(&told));
            });
            // Both are to be under way.
            std::thread::sleep(A_MOMENT);
            disk.send(Err(io::Error::other("no such disk"))).unwrap();
            disk.send(Ok(())).unwrap();
        });
        for _ in 0..2 {
            assert!(answers.recv_timeout(SOON).unwrap().is_err());
        }
    }
}
