//! A run from the outside: configure, start, get a report.

use std::fmt;

use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::planner::{PlanHasher, Snapshot};

use crate::clock::{Clock, SystemClock};
use crate::commit::{CommitLane, panic_text};
use crate::config::Config;
use crate::control::Control;
use crate::dispatch::Dispatch;
use crate::failure::Failure;
use crate::handoff::HandOff;
use crate::observe::Observation;
use crate::outcome::{Outcome, Payload};
use crate::runtime::Shared;
use crate::sink::Sink;
use crate::source::Source;
use crate::summary::{Resume, Summary};
use crate::supervisor::Progress;
use crate::sync::{Arc, lock, thread};
use crate::trail::hash_entry;
use crate::windows::Windows;
use crate::worker::Context;

/// A run that ended well.
pub struct Report<K> {
    /// What it amounts to.
    pub summary: Summary,
    /// The sink, given back.
    pub sink: K,
}

// By hand, since sinks are often closures, which have no Debug.
impl<K> fmt::Debug for Report<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Report").field("summary", &self.summary).finish_non_exhaustive()
    }
}

/// Looks at the input up to the cursor.
type Reread = Box<dyn FnMut(u64, &PlanHasher) -> Result<(), Refusal> + Send>;

/// A run about to begin.
pub struct Lanes {
    config: Config,
    clock: Arc<dyn Clock>,
    control: Control,
    resume: Resume,
    reread: Option<Reread>,
    progress: Option<Progress>,
}

impl Lanes {
    /// A run with this configuration.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            clock: Arc::new(SystemClock::start()),
            control: Control::new(),
            resume: Resume::default(),
            reread: None,
            progress: None,
        }
    }

    /// Uses another clock.
    #[must_use]
    pub fn clock(self, clock: impl Clock + 'static) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Lets others stop, cancel and watch the run.
    #[must_use]
    pub fn control(self, control: &Control) -> Self {
        Self { control: control.clone(), ..self }
    }

    /// Goes on behind a committed prefix. The source is read again from its start; the run is refused
    /// with [`Code::PlanChanged`] if the entries before the cursor are not the same.
    #[must_use]
    pub fn resume(self, resume: Resume) -> Self {
        Self { resume, ..self }
    }

    /// Looks at the input that a resumed run reads again: called with the number of entries so far and
    /// their hash after each of them. What it refuses, the run refuses.
    #[must_use]
    pub fn reread(
        self,
        look: impl FnMut(u64, &PlanHasher) -> Result<(), Refusal> + Send + 'static,
    ) -> Self {
        Self { reread: Some(Box::new(look)), ..self }
    }

    /// Calls `report` now and then, on the thread that called [`Lanes::run`].
    #[must_use]
    pub fn progress(
        self,
        every_ms: u64,
        report: impl FnMut(&Observation) + Send + 'static,
    ) -> Self {
        let progress = Progress { every_ms: every_ms.max(1), report: Box::new(report) };
        Self { progress: Some(progress), ..self }
    }

    /// Computes every item of `source` on the run's threads and commits the outcomes to `sink` in
    /// order. Returns when every seq is committed, or the run was stopped, cancelled, or failed.
    pub fn run<S, P, K, F>(self, source: S, compute: F, sink: K) -> Result<Report<K>, Box<Failure>>
    where
        S: Source,
        P: Payload,
        K: Sink<P>,
        F: Fn(&S::Item, &Context) -> Outcome<P> + Send + Sync + 'static,
    {
        let Self { config, clock, control, resume, reread, progress } = self;
        let refused = |refusal| Box::new(Failure { refusal, snapshot: None, resume });
        config.check().map_err(refused)?;
        let (dispatch, hasher, total) =
            prepare(source, &config, &resume, reread).map_err(refused)?;
        let lane = CommitLane::new(sink, resume, hasher, config.max_batch_bytes).of_total(total);
        let workers = dispatch.workers();
        let shared = Arc::new(Shared::new((config, clock, compute), dispatch, HandOff::new(lane)));
        attach(&shared, &control);
        let workers: Vec<_> = (0..workers).map(|worker| spawn(&shared, worker)).collect();
        shared.supervise(&control, progress);
        control.detach();
        join(&shared, workers);
        let (summary, sink) = shared.conclude()?;
        Ok(Report { summary, sink })
    }
}

impl fmt::Debug for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { config, resume, .. } = self;
        f.debug_struct("Lanes").field("config", config).field("resume", resume).finish()
    }
}

/// Starts a worker. If the system gives no thread, the run fails and the others end.
fn spawn<S, P, K, F>(
    shared: &Arc<Shared<S, P, K, F>>,
    worker: usize,
) -> Option<thread::JoinHandle<()>>
where
    S: Source,
    P: Payload,
    K: Sink<P>,
    F: Fn(&S::Item, &Context) -> Outcome<P> + Send + Sync + 'static,
{
    let ours = Arc::clone(shared);
    let named = thread::Builder::new().name(format!("lane-{}", worker + 1));
    let spawned = named.spawn(move || ours.work(worker));
    spawned
        .map_err(|error| {
            let mut dispatch = lock(&shared.dispatch);
            dispatch.exited[worker] = true;
            let refusal = Refusal::new(Code::RunConfigInvalid).with("field", "threads");
            shared.fail(&mut dispatch, refusal.with("reason", error.to_string()));
        })
        .ok()
}

/// Joins the workers that are at their end. The others were given up: each thread ends by itself when
/// its item does, and finds that nobody wants its result.
fn join<S: Source, P, K, F>(
    shared: &Shared<S, P, K, F>,
    workers: Vec<Option<thread::JoinHandle<()>>>,
) {
    let exited = lock(&shared.dispatch).exited.clone();
    for (worker, exited) in workers.into_iter().zip(exited) {
        if let Some(worker) = worker.filter(|_| exited) {
            worker.join().expect("a worker catches its panics");
        }
    }
}

fn attach<S, P, K, F>(shared: &Arc<Shared<S, P, K, F>>, control: &Control)
where
    S: Source,
    P: Payload,
    K: Sink<P>,
    F: Send + Sync + 'static,
{
    let waker = Arc::downgrade(shared);
    shared.clock.on_jump(Arc::new(move || {
        if let Some(shared) = waker.upgrade() {
            shared.bell.ring();
        }
    }));
    let (told, watched) = (Arc::clone(shared), Arc::clone(shared));
    control.attach(Arc::new(move |wish| told.hear(wish)), Arc::new(move || watched.observe()));
}

/// A source read up to the cursor, the hash of that part, and the total if the source knows it.
type Prepared<S, P> = (Dispatch<S, P>, PlanHasher, Option<u64>);

/// Reads the source up to the cursor and refuses it if it is not the one of the committed prefix.
fn prepare<S: Source, P: Payload>(
    mut source: S,
    config: &Config,
    resume: &Resume,
    mut reread: Option<Reread>,
) -> Result<Prepared<S, P>, Refusal> {
    let read = || -> Result<_, Refusal> {
        let mut hasher = PlanHasher::new(&config.plan);
        let mut windows = Windows::new(config.plan, config.window_retries);
        for seq in 0..resume.cursor {
            skip(&mut source, seq, &mut hasher, &mut windows)?;
            reread.as_mut().map_or(Ok(()), |look| look(seq + 1, &hasher))?;
        }
        if resume.cursor > 0 && hasher.digest() != resume.input_hash {
            return Err(changed(resume.cursor, "an entry before the cursor, or the configuration"));
        }
        let total = source.total();
        Ok((Dispatch::new(source, windows, resume.cursor, config), hasher, total))
    };
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(read)).unwrap_or_else(|panic| {
        Err(Refusal::new(Code::SourceFailed).with("reason", panic_text(&*panic)))
    })
}

fn skip<S: Source>(
    source: &mut S,
    seq: u64,
    hasher: &mut PlanHasher,
    windows: &mut Windows,
) -> Result<(), Refusal> {
    let failed = |reason| Refusal::new(Code::SourceFailed).with("seq", seq).with("reason", reason);
    let Some(item) = source.next().map_err(failed)? else {
        return Err(changed(seq, "the input is shorter than its committed part"));
    };
    let entry = source.entry(&item);
    entry.check()?;
    hash_entry(hasher, entry, source.content(&item));
    windows.plan(entry, || Snapshot { commit_lag: 0, buffered_bytes: 0, util: 1.0 });
    windows.retire(seq);
    Ok(())
}

fn changed(seq: u64, what: &'static str) -> Refusal {
    Refusal::new(Code::PlanChanged).with("seq", seq).with("reason", what)
}
