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
        Self::on(ProgressDrawTarget::stderr_with_hz(10), position, total)
    }

    fn on(target: ProgressDrawTarget, position: u64, total: Option<u64>) -> Self {
        let bar = ProgressBar::with_draw_target(total, target);
        bar.set_style(style(if total.is_some() { KNOWN } else { UNKNOWN }));
        bar.set_position(position);
        bar.reset_eta();
        Self(Some(bar))
    }

    /// Draws how the run goes.
    pub fn show(&self, now: &Observation) {
        let Some(bar) = &self.0 else { return };
        if let Some(total) = now.total.filter(|_| bar.length().is_none()) {
            // A pipe has shown its end: from here on there is something to estimate.
            bar.set_length(total);
            bar.set_style(style(KNOWN));
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

fn style(template: &str) -> ProgressStyle {
    let rate = |state: &ProgressState, text: &mut dyn fmt::Write| {
        let _ = write!(text, "{:.0}/s", state.per_sec());
    };
    let style = ProgressStyle::with_template(template).expect("the templates are well formed");
    style.with_key("rate", rate)
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use indicatif::TermLike;
    use sprag_lanes::{Batch, Config, Control, ErrorClass, Items, Lanes, Outcome, SinkError};

    use super::*;

    /// A terminal that keeps everything.
    #[derive(Clone, Debug, Default)]
    struct Paper(Arc<Mutex<String>>);

    impl TermLike for Paper {
        fn width(&self) -> u16 {
            200
        }
        fn move_cursor_up(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_down(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_right(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn move_cursor_left(&self, _: usize) -> io::Result<()> {
            Ok(())
        }
        fn write_line(&self, text: &str) -> io::Result<()> {
            self.write_str(text)
        }
        fn write_str(&self, text: &str) -> io::Result<()> {
            self.0.lock().unwrap().push_str(text);
            Ok(())
        }
        fn clear_line(&self) -> io::Result<()> {
            Ok(())
        }
        fn flush(&self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A run as it looks from its second attempt at an item.
    fn observation() -> Observation {
        let (control, seen) = (Control::new(), Arc::new(Mutex::new(None)));
        let (watch, keep) = (control.clone(), Arc::clone(&seen));
        let config = Config { threads: 1, max_retries: 1, ..Config::default() };
        let sink = |_: &mut Batch<u64>| -> Result<(), SinkError> { Ok(()) };
        let compute = move |item: &u64, context: &sprag_lanes::Context<'_>| {
            if context.attempts() == 0 {
                return Outcome::Fail(ErrorClass::RetryableTransient, "once".into());
            }
            *keep.lock().unwrap() = watch.observe();
            Outcome::Success(*item)
        };
        Lanes::new(config).control(&control).run(Items::of(0..1_u64), compute, sink).unwrap();
        seen.lock().unwrap().take().unwrap()
    }

    #[test]
    fn the_bar_shows_rate_estimate_cursor_lag_and_retries() {
        let paper = Paper::default();
        let target = ProgressDrawTarget::term_like_with_hz(Box::new(paper.clone()), 255);
        let screen = Screen::on(target, 10, None);
        let draw = |now: &Observation| {
            paper.0.lock().unwrap().clear();
            screen.show(now);
            screen.0.as_ref().unwrap().force_draw();
            paper.0.lock().unwrap().clone()
        };
        let mut now =
            Observation { next_commit_seq: 12, commit_lag: 3, total: None, ..observation() };
        let piped = draw(&now);
        for fact in ["12 done", "/s", "cursor 12, lag 3", "1 retries"] {
            assert!(piped.contains(fact), "{fact} in {piped}");
        }
        assert!(!piped.contains("eta"), "nothing is known of the end: {piped}");
        now.total = Some(20);
        let ended = draw(&now);
        for fact in ["12/20", "eta", "/s", "cursor 12, lag 3", "1 retries"] {
            assert!(ended.contains(fact), "{fact} in {ended}");
        }
    }
}
