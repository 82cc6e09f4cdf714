//! Ordered parallel maps side by side: what the ledger costs, and what order costs the others.
//!
//! Every contender computes the same items on two threads and folds the results in order into a hash
//! that must equal the sequential one. Printed as Markdown, the best of many short rounds; nothing is asserted but the
//! hashes. Processor time is that of both threads: it tells apart what a contender costs and what a
//! busy machine does to it, since on one core nothing travels between caches. `cargo bench -p sprag-lanes --profile dev`, with names of contenders or costs to pick some.

#[path = "order/peers.rs"]
mod peers;
#[path = "order/work.rs"]
mod work;

use std::process::Command;
use std::time::Instant;

use work::Load;

/// Many and short: a processor's speed moves within a second by more than what is compared, and so everybody
/// gets a round at its best. Three for every place in the order of all.
const ROUNDS: usize = 24;
const THREADS: usize = 2;
const MEMORY_ITEMS: u64 = 10_000_000;

/// One way to compute in parallel and fold in order.
struct Contender {
    name: &'static str,
    /// Whether it holds a bounded number of results, however many items there are.
    bounded: bool,
    run: fn(Load) -> u64,
}

const CONTENDERS: [Contender; 7] = [
    Contender { name: "lanes", bounded: true, run: peers::lanes },
    Contender { name: "bare ring", bounded: true, run: peers::bare_ring },
    Contender { name: "rayon collect", bounded: false, run: peers::rayon_collect },
    Contender { name: "rayon chunks", bounded: true, run: peers::rayon_chunks },
    Contender { name: "pariter", bounded: true, run: peers::pariter },
    Contender { name: "futures buffered", bounded: true, run: peers::futures_buffered },
    Contender { name: "crossbeam reorder", bounded: true, run: peers::crossbeam_reorder },
];

fn main() {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| arg != "--bench").collect();
    if args.first().is_some_and(|arg| arg == "--peak-memory") {
        return print_peak_memory(&args[1]);
    }
    let (costs, names): (Vec<String>, Vec<String>) = args.into_iter().partition(|arg| is_cost(arg));
    let picked =
        |list: &[String], name: &str| list.is_empty() || list.iter().any(|arg| arg == name);
    let contenders: Vec<&Contender> =
        CONTENDERS.iter().filter(|c| picked(&names, c.name)).collect();
    let loads: Vec<Load> =
        Load::all().into_iter().filter(|load| picked(&costs, load.name)).collect();
    println!(
        "Two threads, best of {ROUNDS}. Efficiency is speed-up over one thread, divided by two.\n"
    );
    print_times(&contenders, &loads);
    println!("\nPeak memory of a whole process at {MEMORY_ITEMS} items of cost 0:\n");
    println!("| contender | MiB |\n|---|---|");
    for contender in contenders {
        println!("| {} | {} |", contender.name, peak_memory_of(contender.name));
    }
}

fn is_cost(arg: &str) -> bool {
    Load::all().iter().any(|load| load.name == arg)
}

fn print_times(contenders: &[&Contender], loads: &[Load]) {
    println!("| cost | contender | bounded | ns per item | processor ns per item | efficiency |");
    println!("|---|---|---|---|---|---|");
    for load in loads {
        let expected = load.sequential();
        let mut best = vec![Took::MOST; contenders.len() + 1];
        // Rounds outside, so that a noisy moment hits everybody and not one; each begins with another contender,
        // since whoever comes after the one thread finds the other core asleep.
        for round in 0..ROUNDS {
            for turn in 0..best.len() {
                let who = (round + turn) % best.len();
                let run =
                    contenders.get(who).map_or(Load::sequential as fn(Load) -> u64, |c| c.run);
                best[who] = best[who].min(timed(expected, || run(*load)));
            }
        }
        let alone = best[contenders.len()];
        let per_item = |seconds: f64| seconds * 1e9 / load.items as f64;
        let (time, work) = (per_item(alone.seconds), per_item(alone.processor));
        println!("| {} | one thread | yes | {time:.1} | {work:.1} | |", load.name);
        for (contender, best) in contenders.iter().zip(best) {
            let efficiency = alone.seconds / best.seconds / THREADS as f64;
            let bounded = if contender.bounded { "yes" } else { "no" };
            let (time, work) = (per_item(best.seconds), per_item(best.processor));
            print!("| {} | {} | {bounded} | {time:.1} | {work:.1} ", load.name, contender.name);
            println!("| {efficiency:.3} |");
        }
    }
}

/// What a run took, in seconds.
#[derive(Clone, Copy)]
struct Took {
    seconds: f64,
    /// Of all its threads.
    processor: f64,
}

impl Took {
    const MOST: Self = Self { seconds: f64::MAX, processor: f64::MAX };

    /// The better of each.
    fn min(self, other: Self) -> Self {
        Self {
            seconds: self.seconds.min(other.seconds),
            processor: self.processor.min(other.processor),
        }
    }
}

fn timed(expected: u64, run: impl FnOnce() -> u64) -> Took {
    let (began, worked) = (Instant::now(), processor_seconds());
    let hash = run();
    let took =
        Took { seconds: began.elapsed().as_secs_f64(), processor: processor_seconds() - worked };
    assert_eq!(hash, expected, "the order or the content is wrong");
    took
}

fn processor_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The peak of one contender, measured in a process of its own.
fn peak_memory_of(name: &str) -> String {
    let program = std::env::current_exe().expect("this program has a path");
    let child = Command::new(program).args(["--peak-memory", name]).output();
    let output = child.expect("this program starts again").stdout;
    String::from_utf8_lossy(&output).trim().to_string()
}

fn print_peak_memory(name: &str) {
    let contender = CONTENDERS.iter().find(|c| c.name == name).expect("a known contender");
    let load = Load::free().with_items(MEMORY_ITEMS);
    std::hint::black_box((contender.run)(load));
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = peak.and_then(|text| text.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
    match kib {
        Some(kib) => println!("{:.1}", kib as f64 / 1024.0),
        None => println!("unknown here"),
    }
}
