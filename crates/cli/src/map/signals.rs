//! Ctrl-C and SIGTERM: the first one stops or cancels, a second one ends the commands.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use sprag_lanes::Control;

use super::groups::Groups;

/// What a signal acts on.
#[derive(Clone)]
pub struct Reach {
    /// The run.
    pub control: Control,
    /// The commands that run.
    pub groups: Arc<Groups>,
    /// Whoever reads items looks at it.
    pub stop: Arc<AtomicBool>,
    /// How long commands may go on.
    pub grace: Duration,
    /// Whether to cancel instead of to stop.
    pub cancel: bool,
}

/// Listens to signals, to the end of the process.
pub struct Listener;

impl Listener {
    /// Begins to listen. From here on a signal no longer ends the process.
    pub fn start(reach: Reach) -> io::Result<()> {
        let mut signals = Signals::new([SIGINT, SIGTERM])?;
        let listen = move || {
            for (count, _) in signals.forever().enumerate() {
                if count == 0 { first(&reach) } else { reach.groups.end_all() }
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
