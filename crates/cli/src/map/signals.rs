//! Ctrl-C and SIGTERM: the first one stops or cancels, a second one ends the commands, and the run itself
//! if it waits for somebody to read what it writes.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sprag_kernel::{Code, Refusal};
use sprag_lanes::Control;

use super::groups::Groups;
use super::outlet::Outlet;
use crate::output::report_refusal;

/// How long a write may take after the second signal.
const WRITE_LIMIT: Duration = Duration::from_secs(1);
/// How long the last words may take: stderr may be what nobody reads.
const WORDS_LIMIT: Duration = Duration::from_millis(200);
const EXIT_FORCED: i32 = 1;

/// What a signal acts on.
#[derive(Clone)]
pub struct Reach {
    /// The run.
    pub control: Control,
    /// The commands that run.
    pub groups: Arc<Groups>,
    /// Whoever reads items looks at it.
    pub stop: Arc<AtomicBool>,
    /// Writes that somebody has to read.
    pub outlet: Arc<Outlet>,
    /// How long commands may go on.
    pub grace: Duration,
    /// Whether to cancel instead of to stop.
    pub cancel: bool,
    /// Whether a program reads the last words.
    pub json: bool,
}

/// Listens to signals, to the end of the process.
pub struct Listener;

impl Listener {
    /// Begins to listen. From here on a signal no longer ends the process.
    pub fn start(reach: Reach) -> io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let listen = move || {
            for (count, _) in signals.forever().enumerate() {
                if count == 0 { first(&reach) } else { second(&reach) }
            }
        };
        std::thread::Builder::new().name("signals".into()).spawn(listen).map(drop)
    }
}

fn first(reach: &Reach) {
    if reach.cancel {
        reach.control.cancel();
    } else {
        reach.control.stop();
    }
    reach.stop.store(true, Ordering::SeqCst);
    reach.groups.end_all_in(reach.grace);
}

/// The run ends by itself once its commands have, unless a write holds it up. Then it ends here, as by a
/// kill: what was not written is not journalled.
fn second(reach: &Reach) -> ! {
    reach.groups.end_all();
    reach.outlet.await_stuck(WRITE_LIMIT);
    let json = reach.json;
    let words = std::thread::spawn(move || {
        let refusal = Refusal::new(Code::RunStopped).with("reason", "nobody reads the output");
        report_refusal(&refusal, json);
    });
    let begun = Instant::now();
    while !words.is_finished() && begun.elapsed() < WORDS_LIMIT {
        std::thread::sleep(Duration::from_millis(5));
    }
    std::process::exit(EXIT_FORCED)
}
