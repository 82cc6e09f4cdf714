//! Crash points: places where a test can end the process, as a power cut would.
//!
//! `SPRAG_CRASH=name:3` aborts at the third pass of a point; `SPRAG_CRASH_LOG=file` appends the name of
//! each point at every pass, so that a test knows which passes there are. In a release build a point is nothing.

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Mutex, OnceLock};

struct Armed {
    at: Option<(String, u64)>,
    log: Option<String>,
    passes: Mutex<HashMap<&'static str, u64>>,
}

/// A place where the process may end.
#[inline]
pub fn crash_point(name: &'static str) {
    if cfg!(debug_assertions) {
        static ARMED: OnceLock<Option<Armed>> = OnceLock::new();
        if let Some(armed) = ARMED.get_or_init(arm) {
            pass(armed, name);
        }
    }
}

fn arm() -> Option<Armed> {
    let log = std::env::var("SPRAG_CRASH_LOG").ok();
    let at = std::env::var("SPRAG_CRASH").ok().and_then(|at| {
        let (name, count) = at.split_once(':')?;
        Some((name.to_owned(), count.parse().ok()?))
    });
    (at.is_some() || log.is_some()).then(|| Armed { at, log, passes: Mutex::default() })
}

#[cold]
fn pass(armed: &Armed, name: &'static str) {
    let mut passes = armed.passes.lock().expect("no panic under this lock");
    let count = passes.entry(name).or_default();
    *count += 1;
    if let Some(log) = &armed.log {
        let file = std::fs::OpenOptions::new().create(true).append(true).open(log);
        // A pass that cannot be logged is one that the test does not know of.
        let _ = file.and_then(|mut file| writeln!(file, "{name}"));
    }
    if armed.at.as_ref().is_some_and(|(at, nth)| at == name && nth == count) {
        std::process::abort();
    }
}
