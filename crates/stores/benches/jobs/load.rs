//! The load: jobs of no-op steps, submitted by twenty tasks and run by one engine, until all are closed. So many jobs are
//! under way at a time, each of which finds a slot: what waits for one is claimed, which `--bench gates` measures.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sprag_engine::directive::Failure;
use sprag_engine::engine::{Engine, EngineBuilder};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;
use tokio::sync::Semaphore;

const SUBMITTERS: usize = 20;
/// Jobs that are under way, up to the return of the last of their handlers.
const UNDER_WAY: usize = 4_000;
/// A slot is taken until the end of its step is stored.
const SLOTS: usize = 2 * UNDER_WAY;
const LONE_JOBS: usize = 300;

/// By what jobs are known. An index of them is written all over, or at its end.
#[derive(Clone, Copy)]
pub(crate) enum Keys {
    /// Their content.
    Content,
    /// Keys that their callers give, in order.
    Given,
}

impl std::fmt::Display for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Content => "their content",
            Self::Given => "keys in order",
        })
    }
}

/// So many jobs of so many steps.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) steps: usize,
    pub(crate) jobs: usize,
    pub(crate) keys: Keys,
}

/// Content that no other job of this process has.
fn envelope(keys: Keys) -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let n = NEXT.fetch_add(1, Ordering::Relaxed);
    let key = match keys {
        Keys::Content => String::new(),
        Keys::Given => format!(r#""idempotency_key":"job-{n:09}","#),
    };
    format!(
        r#"{{"tenant_id":"t","request_type":"BENCH",{key}"input_ref":"in","output_ref":"out","payload":{{"n":{n}}},"schema_version":"1"}}"#
    )
}

/// What the handlers have done.
struct Done {
    calls: AtomicUsize,
    /// One for each job more that may be under way.
    free: Semaphore,
}

impl Done {
    fn nothing() -> Arc<Self> {
        Arc::new(Self { calls: AtomicUsize::new(0), free: Semaphore::new(UNDER_WAY) })
    }

    /// A handler has returned; with each `steps` of them a job is nearly over.
    fn note(&self, steps: usize) {
        if self.calls.fetch_add(1, Ordering::Relaxed) % steps == steps - 1 {
            self.free.add_permits(1);
        }
    }
}

/// An engine whose service counts what it did, and a protocol of so many steps.
async fn engine<S: Store>(store: S, steps: usize, done: &Arc<Done>) -> Arc<Engine<S>> {
    let done = done.clone();
    let handler = Handler::new(move |_: serde_json::Value, _, _| {
        done.note(steps);
        async { Ok::<_, Failure>(serde_json::json!({"ok": true})) }
    });
    let mut protocol = Protocol::new(&format!("bench-{steps}.v1"), "BENCH");
    for n in 0..steps {
        protocol = protocol.step(&format!("s{n}"), "work");
    }
    let builder = EngineBuilder::new(store).protocol(protocol).service("work", SLOTS, handler);
    Arc::new(builder.start().await.unwrap())
}

/// Submits jobs as others are over, or all at once if none will be.
async fn submit<S: Store>(
    engine: &Arc<Engine<S>>,
    jobs: usize,
    keys: Keys,
    done: Option<&Arc<Done>>,
) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..SUBMITTERS {
        let (engine, done) = (engine.clone(), done.cloned());
        tasks.spawn(async move {
            let mut inner = tokio::task::JoinSet::new();
            for _ in 0..jobs / SUBMITTERS {
                if let Some(done) = &done {
                    done.free.acquire().await.unwrap().forget();
                } else if inner.len() > UNDER_WAY / SUBMITTERS {
                    inner.join_next().await;
                }
                let engine = engine.clone();
                inner.spawn(async move { engine.submit(envelope(keys).as_bytes()).await.unwrap() });
            }
            inner.join_all().await
        });
    }
    tasks.join_all().await;
}

/// Jobs per second from the first submit until the engine has come to rest, and what `look` says of the store
/// before it is closed.
pub(crate) async fn run<S: Store, T>(
    store: S,
    Load { steps, jobs, keys }: Load,
    look: impl AsyncFnOnce(&S) -> T,
) -> (f64, T) {
    let done = Done::nothing();
    let engine = engine(store, steps, &done).await;
    let (start, before) = (Instant::now(), writer_ns());
    submit(&engine, jobs, keys, Some(&done)).await;
    while done.calls.load(Ordering::Relaxed) < jobs * steps {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while is_any_open(engine.store()).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rate = jobs as f64 / start.elapsed().as_secs_f64();
    if std::env::var_os("SPRAG_STATS").is_some() {
        let writer_us = (writer_ns() - before) as f64 / 1e3 / jobs as f64;
        eprintln!(
            "{steps} steps: {rate:.0} jobs/s, {writer_us:.1} us per job of the writer of SQLite"
        );
    }
    let looked = look(engine.store()).await;
    let engine = Arc::into_inner(engine).unwrap();
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    (rate, looked)
}

/// Processor time of the threads that write to SQLite, where the kernel tells.
fn writer_ns() -> u64 {
    let Ok(tasks) = std::fs::read_dir("/proc/self/task") else { return 0 };
    let read = |task: &Path, file| std::fs::read_to_string(task.join(file)).ok();
    let is_writer =
        |task: &PathBuf| read(task, "comm").is_some_and(|name| name.trim() == "sprag-sqlite");
    let own = tasks.flatten().map(|task| task.path()).filter(is_writer);
    own.filter_map(|task| read(&task, "schedstat")?.split(' ').next()?.parse::<u64>().ok()).sum()
}

async fn is_any_open<S: Store>(store: &S) -> bool {
    use sprag_kernel::State as _;
    let counts = store.counts().await.unwrap();
    counts.iter().any(|(state, jobs)| !state.is_terminal() && *jobs > 0)
}

/// How long a job takes from submit to closed when nothing else runs: the middle one.
pub(crate) async fn lone<S: Store>(store: S) -> Duration {
    let engine = engine(store, 1, &Done::nothing()).await;
    let mut times = Vec::new();
    for _ in 0..LONE_JOBS {
        let start = Instant::now();
        let job_id = engine.submit(envelope(Keys::Content).as_bytes()).await.unwrap().job_id;
        engine.outcome(job_id).await.unwrap();
        times.push(start.elapsed());
    }
    times.sort();
    Arc::into_inner(engine).unwrap().shutdown(Duration::from_secs(1)).await.unwrap();
    times[times.len() / 2]
}

/// MiB that this process holds when so many jobs wait for a service that nobody serves.
pub(crate) async fn resident<S: Store>(store: S, jobs: usize) -> f64 {
    let protocol = Protocol::new("bench.v1", "BENCH").step("s", "nobody");
    let engine = Arc::new(EngineBuilder::new(store).protocol(protocol).start().await.unwrap());
    submit(&engine, jobs, Keys::Content, None).await;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    Arc::into_inner(engine).unwrap().shutdown(Duration::from_secs(5)).await.unwrap();
    kib / 1024.0
}
