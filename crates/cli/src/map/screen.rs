//! What is drawn on a terminal while a run goes on, and how to write past it.

use std::fmt;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};
use sprag_lanes::Observation;

/// The progress bar, or nothing.
#[derive(Clone, Debug, Default)]
pub struct Screen(Option<ProgressBar>);

const KNOWN: &str = "{bar:30} {pos}/{len} {rate} eta {eta} {msg}";
const UNKNOWN: &str = "{spinner} {pos} done {rate} {msg}";

impl Screen {
    /// A bar on stderr that begins at `position`, for `total` items if that is known.
    pub fn bar(position: u64, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr_with_hz(10));
        let template = if total.is_some() { KNOWN } else { UNKNOWN };
        let style = ProgressStyle::with_template(template).expect("the templates are well formed");
        let rate = |state: &ProgressState, text: &mut dyn fmt::Write| {
            let _ = write!(text, "{:.0}/s", state.per_sec());
        };
        bar.set_style(style.with_key("rate", rate));
        bar.set_position(position);
        bar.reset_eta();
        Self(Some(bar))
    }

    /// Draws how the run goes.
    pub fn show(&self, now: &Observation) {
        let Some(bar) = &self.0 else { return };
        if let Some(total) = now.total.filter(|_| bar.length().is_none()) {
            bar.set_length(total);
        }
        bar.set_position(now.next_commit_seq);
        let retries = now.retries.total();
        let suffix = if retries > 0 { format!(", {retries} retries") } else { String::new() };
        bar.set_message(format!("cursor {}, lag {}{suffix}", now.next_commit_seq, now.commit_lag));
    }

    /// Writes something while the bar is out of the way.
    pub fn around<T>(&self, write: impl FnOnce() -> T) -> T {
        match &self.0 {
            Some(bar) => bar.suspend(write),
            None => write(),
        }
    }

    /// Takes the bar away.
    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
