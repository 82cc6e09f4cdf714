//! The contenders. Each is written as its documentation suggests, with the obvious bounds.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use futures::StreamExt as _;
use pariter::IteratorExt as _;
use rayon::iter::{IntoParallelIterator as _, ParallelIterator as _};
use sprag_lanes::{Batch, Config, Context, Items, Lanes, Outcome, Verdict};

use crate::THREADS;
use crate::work::{Load, fold};

const CLAIM: u64 = 64;
const RING: u64 = 8_192;
const CHUNK: u64 = 4_096;
const IN_FLIGHT: usize = 256;

pub(crate) fn lanes(load: Load) -> u64 {
    let hash = Arc::new(AtomicU64::new(0));
    let folded = Arc::clone(&hash);
    let sink = move |batch: &mut Batch<u64>| {
        let mut hash = folded.load(Ordering::Relaxed);
        for (_, envelope) in batch.iter() {
            if let Verdict::Success(result) = envelope.verdict {
                hash = fold(hash, *result);
            }
        }
        folded.store(hash, Ordering::Relaxed);
        Ok(())
    };
    let config = Config { threads: THREADS, ..Config::default() };
    let compute = move |item: &u64, _: &Context| Outcome::Success(load.compute(*item));
    Lanes::new(config)
        .run(Items::of(0..load.items), compute, sink)
        .expect("a run without failures");
    hash.load(Ordering::Relaxed)
}

/// The least that ordered claims need: a counter, a ring with a cell per item, a fold under a lock. No
/// ledger, no retries, no leases, no windows, no back-pressure but the ring itself.
pub(crate) fn bare_ring(load: Load) -> u64 {
    let ring: Vec<Cell> = (0..RING).map(|_| Cell::default()).collect();
    let (next, done, folded) = (AtomicU64::new(0), AtomicU64::new(0), Mutex::new(0));
    let cell = |item: u64| &ring[usize::try_from(item % RING).expect("small")];
    let is_ready = |item: u64| cell(item).ready.load(Ordering::SeqCst) == item + 1;
    let drain = || {
        while let Ok(mut hash) = folded.try_lock() {
            let mut item = done.load(Ordering::Relaxed);
            while is_ready(item) {
                *hash = fold(*hash, cell(item).result.load(Ordering::Relaxed));
                item += 1;
            }
            done.store(item, Ordering::SeqCst);
            drop(hash);
            if !is_ready(item) {
                return;
            }
        }
    };
    let work = || {
        loop {
            let first = next.fetch_add(CLAIM, Ordering::Relaxed);
            if first >= load.items {
                return;
            }
            let items = first..(first + CLAIM).min(load.items);
            while items.end > done.load(Ordering::SeqCst) + RING {
                drain();
                thread::yield_now();
            }
            for item in items {
                cell(item).result.store(load.compute(item), Ordering::Relaxed);
                cell(item).ready.store(item + 1, Ordering::Release);
            }
            drain();
        }
    };
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(work);
        }
    });
    drain();
    folded.into_inner().expect("no panics")
}

#[derive(Default)]
struct Cell {
    result: AtomicU64,
    /// The item whose result this is, plus one.
    ready: AtomicU64,
}

fn pool() -> rayon::ThreadPool {
    rayon::ThreadPoolBuilder::new().num_threads(THREADS).build().expect("a pool")
}

pub(crate) fn rayon_collect(load: Load) -> u64 {
    let results: Vec<u64> =
        pool().install(|| (0..load.items).into_par_iter().map(|item| load.compute(item)).collect());
    results.into_iter().fold(0, fold)
}

pub(crate) fn rayon_chunks(load: Load) -> u64 {
    let pool = pool();
    // With all items in one chunk nothing would be bounded.
    let chunk = CHUNK.min(load.items / 8);
    let mut hash = 0;
    for first in (0..load.items).step_by(usize::try_from(chunk).expect("small")) {
        let items = first..(first + chunk).min(load.items);
        let results: Vec<u64> =
            pool.install(|| items.into_par_iter().map(|item| load.compute(item)).collect());
        hash = results.into_iter().fold(hash, fold);
    }
    hash
}

pub(crate) fn pariter(load: Load) -> u64 {
    (0..load.items)
        .parallel_map_custom(
            |options| options.threads(THREADS).buffer_size(IN_FLIGHT),
            move |item| load.compute(item),
        )
        .fold(0, fold)
}

pub(crate) fn futures_buffered(load: Load) -> u64 {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(THREADS)
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        futures::stream::iter(0..load.items)
            .map(|item| tokio::spawn(async move { load.compute(item) }))
            .buffered(IN_FLIGHT)
            .fold(0, |hash, result| async move { fold(hash, result.expect("no panics")) })
            .await
    })
}

pub(crate) fn crossbeam_reorder(load: Load) -> u64 {
    let (give, take) = crossbeam_channel::bounded::<u64>(IN_FLIGHT);
    let (hand_in, results) = crossbeam_channel::bounded::<(u64, u64)>(IN_FLIGHT);
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let (take, hand_in) = (take.clone(), hand_in.clone());
            scope.spawn(move || {
                for item in take {
                    hand_in.send((item, load.compute(item))).expect("the reader stays");
                }
            });
        }
        drop((take, hand_in));
        scope
            .spawn(move || (0..load.items).for_each(|item| give.send(item).expect("workers stay")));
        let (mut ahead, mut next, mut hash) = (BTreeMap::new(), 0, 0);
        for (item, result) in results {
            ahead.insert(item, result);
            while let Some(result) = ahead.remove(&next) {
                hash = fold(hash, result);
                next += 1;
            }
        }
        hash
    })
}
