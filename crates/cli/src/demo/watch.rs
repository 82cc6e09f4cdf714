//! What is shown while a demo runs: two bars on a terminal, counted from the server's own events.

use std::io::IsTerminal;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::Value;
use sprag_engine::graph::{CONTROL, Graph};
use sprag_kernel::{JobState, Refusal, State, StepState};

use super::act;
use super::crew::failed;
use crate::client::Client;
use crate::feed::Feed;

/// When documents have ended in so many hundredths, a worker is killed.
const KILL_AT_PERCENT: u64 = 30;
const TEMPLATE: &str = "{prefix:10} {bar:40} {pos:>4}/{len:4} {msg}";

/// What has happened so far.
struct Counts {
    graph: Graph,
    ended: u64,
    steps: u64,
    tried_again: u64,
}

impl Counts {
    /// Whether an event is about a step that a worker does, and not about the fan-out itself.
    fn is_work(&self, event: &Value) -> bool {
        let index = event["data"]["step_index"].as_u64();
        let node = index.and_then(|index| self.graph.nodes().get(usize::try_from(index).ok()?));
        node.is_some_and(|node| node.service != CONTROL)
    }

    /// Takes one event in.
    fn count(&mut self, event: &Value) {
        let work = u64::from(self.is_work(event));
        for change in event["data"]["changes"].as_array().into_iter().flatten() {
            let to = change["to"].as_str().unwrap_or_default();
            match change["machine"].as_str().unwrap_or_default() {
                "job" => {
                    self.ended +=
                        u64::from(JobState::from_name(to).is_some_and(JobState::is_terminal));
                }
                "step" => match StepState::from_name(to) {
                    Some(StepState::Succeeded) => self.steps += work,
                    Some(StepState::FailedRetry) => self.tried_again += work,
                    Some(_) | None => {}
                },
                _ => {}
            }
        }
    }
}

/// Watches until so many documents have ended. `kill` is called once on the way.
pub(super) fn watch(
    client: &Client,
    documents: u64,
    limit: Duration,
    kill: impl FnOnce(&Watched) -> Result<(), Refusal>,
) -> Result<(), Refusal> {
    let watched = Watched::new(documents);
    let begun = std::time::Instant::now();
    let graph = super::protocol()?.graph()?;
    let mut counts = Counts { graph, ended: 0, steps: 0, tried_again: 0 };
    let mut kill = Some(kill);
    Feed::new(client, None).follow(|event| {
        counts.count(event);
        watched.show(&counts);
        if counts.ended * 100 >= documents * KILL_AT_PERCENT
            && let Some(kill) = kill.take()
        {
            kill(&watched)?;
        }
        if begun.elapsed() > limit {
            return Err(failed(&format!(
                "after {} s not all documents have ended",
                limit.as_secs()
            )));
        }
        Ok(counts.ended >= documents)
    })?;
    watched.documents.finish();
    watched.steps.finish();
    Ok(())
}

/// The bars, or nothing where there is no terminal.
pub(super) struct Watched {
    bars: MultiProgress,
    documents: ProgressBar,
    steps: ProgressBar,
    is_drawn: bool,
}

impl Watched {
    fn new(documents: u64) -> Self {
        let is_drawn = std::io::stderr().is_terminal();
        let target =
            if is_drawn { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bars = MultiProgress::with_draw_target(target);
        let style = ProgressStyle::with_template(TEMPLATE).expect("the template is well formed");
        let bar = |name: &'static str, total| {
            let bar = ProgressBar::new(total).with_style(style.clone()).with_prefix(name);
            bars.add(bar)
        };
        let steps = (1..=documents).map(act::steps).sum();
        Self { documents: bar("documents", documents), steps: bar("steps", steps), bars, is_drawn }
    }

    fn show(&self, counts: &Counts) {
        self.documents.set_position(counts.ended);
        self.steps.set_position(counts.steps.min(self.steps.length().unwrap_or_default()));
        self.steps.set_message(format!("{} tried again", counts.tried_again));
    }

    /// Says something beside the bars.
    pub(super) fn say(&self, line: &str) {
        if self.is_drawn {
            // A terminal that is gone has nobody who would miss it.
            let _ = self.bars.println(line);
        } else {
            eprintln!("{line}");
        }
    }
}
