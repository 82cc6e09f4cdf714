//! The process groups of the commands that run now.
//!
//! Every command leads a group of its own, so that ending it ends what it started, and so that a
//! Ctrl-C at the terminal reaches the run and not the commands. A leader is taken off the list
//! before it is reaped; as long as it is on it, its number belongs to nobody else.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// Between asking a command to end and ending it.
pub const KILL_AFTER: Duration = Duration::from_millis(500);

/// The groups of a run.
#[derive(Debug, Default)]
pub struct Groups(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    leaders: HashSet<Pid>,
    ending: bool,
}

impl Groups {
    /// Takes a new command in; if all are to end, this one too.
    pub fn enter(&self, leader: Pid) {
        let mut state = self.lock();
        state.leaders.insert(leader);
        if state.ending {
            signal(leader, Signal::KILL);
        }
    }

    /// Takes out a command that has ended and is about to be reaped.
    pub fn leave(&self, leader: Pid) {
        self.lock().leaders.remove(&leader);
    }

    /// Whether all commands are being ended.
    pub fn is_ending(&self) -> bool {
        self.lock().ending
    }

    /// Ends every command: asks first, then kills.
    pub fn end_all(&self) {
        let mut state = self.lock();
        state.ending = true;
        for &leader in &state.leaders {
            signal(leader, Signal::TERM);
        }
        let asked = Instant::now();
        while asked.elapsed() < KILL_AFTER && !state.leaders.is_empty() {
            drop(state);
            std::thread::sleep(Duration::from_millis(5));
            state = self.lock();
        }
        for &leader in &state.leaders {
            signal(leader, Signal::KILL);
        }
    }

    /// Ends every command after this time, and lets the caller go on. The thread ends with the process.
    pub fn end_all_in(self: &Arc<Self>, time: Duration) {
        let groups = Arc::clone(self);
        std::thread::spawn(move || {
            std::thread::sleep(time);
            groups.end_all();
        });
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Signals a group. One that is gone already needs none.
pub fn signal(leader: Pid, signal: Signal) {
    let _ = kill_process_group(leader, signal);
}
