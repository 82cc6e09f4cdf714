//! The load: jobs of no-op steps, submitted by twenty tasks and run by one engine, until all are closed.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use sprag_engine::directive::Failure;
use sprag_engine::engine::{Engine, EngineBuilder};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::Store;
use sprag_engine::worker::Handler;

const SUBMITTERS: usize = 20;
/// Submits of one task that are under way.
const UNDER_WAY: usize = 200;
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

/// An engine whose service counts what it did, and a protocol of so many steps.
async fn engine<S: Store>(store: S, steps: usize, done: &Arc<AtomicUsize>) -> Arc<Engine<S>> {
    let counter = done.clone();
    let handler = Handler::new(move |_: serde_json::Value, _, _| {
        counter.fetch_add(1, Ordering::Relaxed);
        async { Ok::<_, Failure>(serde_json::json!({"ok": true})) }
    });
    let mut protocol = Protocol::new(&format!("bench-{steps}.v1"), "BENCH");
    for n in 0..steps {
        protocol = protocol.step(&format!("s{n}"), "work");
    }
    let builder = EngineBuilder::new(store).protocol(protocol).service("work", 2_000, handler);
    Arc::new(builder.start().await.unwrap())
}

async fn submit<S: Store>(engine: &Arc<Engine<S>>, (jobs, keys): (usize, Keys)) {
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..SUBMITTERS {
        let engine = engine.clone();
        tasks.spawn(async move {
            let mut inner = tokio::task::JoinSet::new();
            for _ in 0..jobs / SUBMITTERS {
                let engine = engine.clone();
                inner.spawn(async move { engine.submit(envelope(keys).as_bytes()).await.unwrap() });
                if inner.len() > UNDER_WAY {
                    inner.join_next().await;
                }
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
    let done = Arc::new(AtomicUsize::new(0));
    let engine = engine(store, steps, &done).await;
    let start = Instant::now();
    submit(&engine, (jobs, keys)).await;
    while done.load(Ordering::Relaxed) < jobs * steps {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while is_any_open(engine.store()).await {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let rate = jobs as f64 / start.elapsed().as_secs_f64();
    let looked = look(engine.store()).await;
    let engine = Arc::into_inner(engine).unwrap();
    engine.shutdown(Duration::from_secs(30)).await.unwrap();
    (rate, looked)
}

async fn is_any_open<S: Store>(store: &S) -> bool {
    use sprag_kernel::State as _;
    let counts = store.counts().await.unwrap();
    counts.iter().any(|(state, jobs)| !state.is_terminal() && *jobs > 0)
}

/// How long a job takes from submit to closed when nothing else runs: the middle one.
pub(crate) async fn lone<S: Store>(store: S) -> Duration {
    let engine = engine(store, 1, &Arc::default()).await;
    let mut times = Vec::new();
    for _ in 0..LONE_JOBS {
        let start = Instant::now();
        let job_id = engine.submit(envelope(Keys::Content).as_bytes()).await.unwrap().job_id;
        engine.closed(job_id).await.unwrap();
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
    submit(&engine, (jobs, Keys::Content)).await;
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    let kib: f64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    Arc::into_inner(engine).unwrap().shutdown(Duration::from_secs(5)).await.unwrap();
    kib / 1024.0
}
