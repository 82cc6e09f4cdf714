//! What a journal costs: the same run without one and with one, under each sync policy.
//!
//! Two threads, items of a calibrated cost, a sink that folds a hash which must be the sequential one.
//! The contenders take turns, best of seven each, printed as Markdown. The names of costs may be given
//! (`cargo bench --bench journal -- 10us`).

#[path = "order/work.rs"]
mod work;

use std::time::Instant;

use sprag_lanes::journal::{
    Ending, Identity, Journal, JournalSink, MarkedSink, Settings, SyncPolicy,
};
use sprag_lanes::{Batch, Config, Context, Items, Lanes, Outcome, SinkError, Verdict};
use work::{Load, fold};

const ROUNDS: usize = 7;
const THREADS: usize = 2;

/// Folds results in order. Its mark is how many.
#[derive(Default)]
struct Fold {
    hash: u64,
    results: u64,
}

impl Fold {
    fn take(&mut self, batch: &mut Batch<u64>) {
        for (_, envelope) in batch.drain() {
            if let Verdict::Success(result) = envelope.verdict {
                self.hash = fold(self.hash, result);
                self.results += 1;
            }
        }
    }
}

impl MarkedSink<u64> for Fold {
    fn write(&mut self, batch: &mut Batch<u64>) -> Result<u64, SinkError> {
        self.take(batch);
        Ok(self.results)
    }
}

fn config() -> Config {
    Config { threads: THREADS, ..Config::default() }
}

fn compute(load: Load) -> impl Fn(&u64, &Context<'_>) -> Outcome<u64> + Send + Sync + 'static {
    move |item, _| Outcome::Success(load.compute(*item))
}

fn without(load: Load) -> u64 {
    let sink = std::sync::Arc::new(std::sync::Mutex::new(Fold::default()));
    let theirs = std::sync::Arc::clone(&sink);
    let commit = move |batch: &mut Batch<u64>| -> Result<(), SinkError> {
        theirs.lock().expect("one committer").take(batch);
        Ok(())
    };
    Lanes::new(config()).run(Items::of(0..load.items), compute(load), commit).expect("it runs");
    sink.lock().expect("one committer").hash
}

fn with(load: Load, sync: SyncPolicy) -> u64 {
    let folder = tempfile::tempdir_in(".").expect("a folder on a disk");
    let settings = Settings { sync, ..Settings::default() };
    let path = folder.path().join("run.journal");
    let (journal, _) =
        Journal::open_or_create(&path, &Identity::of(b"bench"), settings).expect("it is new");
    let sink = JournalSink::new(Fold::default(), journal).expect("a thread");
    let ran = Lanes::new(config()).run(Items::of(0..load.items), compute(load), sink);
    ran.expect("it runs").sink.close(Ending::Complete).expect("it closes").hash
}

/// Time that the threads of this process have spent computing, whoever else uses the machine.
fn cpu_seconds() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}

/// The best wall and processor time of each contender.
fn measure(load: Load) -> [(f64, f64); 4] {
    let expected = load.sequential();
    let contenders: [&dyn Fn() -> u64; 4] = [
        &|| without(load),
        &|| with(load, SyncPolicy::None),
        &|| with(load, SyncPolicy::Batch),
        &|| with(load, SyncPolicy::Always),
    ];
    let mut best = [(f64::MAX, f64::MAX); 4];
    for _ in 0..ROUNDS {
        for (best, run) in best.iter_mut().zip(contenders) {
            let (begun, before) = (Instant::now(), cpu_seconds());
            assert_eq!(run(), expected, "every contender commits in order");
            best.0 = best.0.min(begun.elapsed().as_secs_f64());
            best.1 = best.1.min(cpu_seconds() - before);
        }
    }
    best
}

fn main() {
    println!("Two threads, best of {ROUNDS}, rate in thousand items per second.\n");
    println!(
        "| cost | no journal | none | batch | always | batch / no journal | processor time, no journal / batch |"
    );
    println!("|---|---|---|---|---|---|---|");
    let named: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with('-')).collect();
    let wanted = |load: &Load| match &named[..] {
        [] => ["1us", "10us", "100us"].contains(&load.name),
        some => some.iter().any(|name| name == load.name),
    };
    for load in Load::all().into_iter().filter(wanted) {
        let load = load.with_items(load.items * 5);
        let best = measure(load);
        let [plain, none, batch, always] = best.map(|(wall, _)| load.items as f64 / wall / 1_000.0);
        let (share, spent) = (batch / plain, best[0].1 / best[2].1);
        println!(
            "| {} | {plain:.0} | {none:.0} | {batch:.0} | {always:.0} | {share:.2} | {spent:.2} |",
            load.name
        );
    }
}
