//! The three parts that `sprag map` gives to the lanes: items, commands, results.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGHUP, SIGINT, SIGKILL, SIGTERM};

use sprag_kernel::Refusal;
use sprag_kernel::planner::PlanHasher;
use sprag_lanes::journal::{Ended, InputCheck, Outcomes, RunState};
use sprag_lanes::{
    Batch, Context, Control, Entry, Envelope, ErrorClass, Outcome, Payload, PlanConfig, Sink,
    SinkError, Source, Verdict, digest, hash_entry,
};

use super::command::{self, End, Finished, Limits};
use super::groups::Groups;
use super::inbox::Sender;
use super::items::{Item, Items};
use super::policy::{ExitCodes, Halt};
use super::render::{Format, Settled};
use super::template::Template;
use super::writer::Group;

/// Items for the lanes; of an earlier run's items only the failed ones, if that was asked for.
pub struct ItemSource {
    /// Where they come from.
    pub items: Items,
    /// The earlier run that chooses among them.
    pub again: Option<Again>,
    /// How many were read.
    pub read: u64,
    /// Set when the run is to stop: then the items have not ended, reading has.
    pub stop: Arc<AtomicBool>,
    /// Told when reading ended because of that.
    pub cut_short: Arc<AtomicBool>,
}

/// An earlier run whose failed items run again. Its journal also knows what its input was.
pub struct Again {
    outcomes: Outcomes,
    check: InputCheck,
    hash: PlanHasher,
    /// Chosen, but not yet known to be of the same input.
    held: Vec<Item>,
    ready: VecDeque<Item>,
    /// Why the input is not that of the earlier run.
    pub refused: Arc<Mutex<Option<Refusal>>>,
}

impl Again {
    /// The items of a run with this plan that did not succeed.
    pub fn new(state: &RunState, plan: &PlanConfig) -> Self {
        Self {
            outcomes: state.outcomes.clone(),
            check: state.input_check(),
            hash: PlanHasher::new(plan),
            held: Vec::new(),
            ready: VecDeque::new(),
            refused: Arc::default(),
        }
    }

    /// Takes the next item of the input. It is given out once the input was found to be the same.
    fn take(&mut self, item: Item) -> Result<(), String> {
        use sprag_lanes::journal::Outcome::{Cancel, Fail};
        let Item { origin, text } = &item;
        let read = origin + 1;
        hash_entry(&mut self.hash, entry_of(text), Some(text));
        let same = self.check.at(read, &self.hash);
        self.note(same)?;
        let ended = self.outcomes.get(*origin);
        if ended.is_some_and(|ended| matches!(ended.outcome, Fail | Cancel)) {
            self.held.push(item);
        }
        if self.check.checked_to() == read {
            self.ready.extend(self.held.drain(..));
        }
        Ok(())
    }

    fn ends(&self, read: u64) -> Result<(), String> {
        self.note(self.check.finish(read))
    }

    fn note(&self, same: Result<(), Refusal>) -> Result<(), String> {
        same.map_err(|refusal| {
            let text = refusal.to_string();
            *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(refusal);
            text
        })
    }
}

fn entry_of(text: &[u8]) -> Entry {
    Entry { cost: 1, bytes: text.len() as u64 }
}

impl Source for ItemSource {
    type Item = Item;

    fn next(&mut self) -> Result<Option<Item>, String> {
        loop {
            let ready = self.again.as_mut().and_then(|again| again.ready.pop_front());
            if ready.is_some() {
                return Ok(ready);
            }
            let next = self.items.next_item().map_err(|error| error.to_string())?;
            let Some(text) = next else { break };
            let item = Item { origin: self.read, text };
            self.read += 1;
            match &mut self.again {
                Some(again) => again.take(item)?,
                None => return Ok(Some(item)),
            }
        }
        let stopped = self.stop.load(Ordering::SeqCst);
        self.cut_short.store(stopped, Ordering::SeqCst);
        match &self.again {
            Some(again) if !stopped => again.ends(self.read).map(|()| None),
            Some(_) | None => Ok(None),
        }
    }

    fn total(&self) -> Option<u64> {
        let read = self.read;
        self.items.known().filter(|_| self.again.is_none()).map(|left| left + read)
    }

    fn entry(&self, item: &Item) -> Entry {
        entry_of(&item.text)
    }

    fn content<'a>(&self, item: &'a Item) -> Option<&'a [u8]> {
        Some(&item.text)
    }
}

/// An item and what its command left.
#[derive(Debug)]
pub struct Ran {
    /// The item.
    pub item: Item,
    /// What its command left.
    pub finished: Finished,
}

impl Payload for Ran {
    fn digest(&self) -> u64 {
        digest(&self.finished.stdout)
    }

    fn weight(&self) -> u64 {
        let Finished { stdout, stderr, .. } = &self.finished;
        (self.item.text.len() + stdout.len() + stderr.len()) as u64
    }
}

/// What failed items left, until they are committed. The lanes carry results, and of a failure its words:
/// so the output of a failed command travels as those, and is counted against the byte budgets.
#[derive(Debug, Default)]
pub struct Failures(Mutex<HashMap<u64, Ran>>);

/// Between stdout and stderr. Bytes become the characters below it.
const BETWEEN: char = '\u{100}';

impl Failures {
    /// Keeps what a failed attempt left but its output, which is returned as words.
    fn keep(&self, seq: u64, mut ran: Ran) -> String {
        let Finished { end, stdout, stderr } = &mut ran.finished;
        let words = match end {
            // Nothing is begun after it, so these are few; and a cancelled item has no words.
            End::Ended => String::new(),
            End::Exit(_) | End::Signal(_) | End::Timeout | End::NotStarted => {
                let (stdout, stderr) = (std::mem::take(stdout), std::mem::take(stderr));
                let chars = |bytes: Vec<u8>| bytes.into_iter().map(char::from);
                chars(stdout).chain([BETWEEN]).chain(chars(stderr)).collect()
            }
        };
        self.lock().insert(seq, ran);
        words
    }

    /// What the last attempt at an item left, if it failed.
    fn take(&self, seq: u64) -> Option<Ran> {
        self.lock().remove(&seq)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Ran>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ran {
    /// The same with the output that travelled as words. Those of a panic are none.
    fn with_output(mut self, words: &str) -> Self {
        let bytes = |text: &str| text.chars().filter_map(|char| u8::try_from(char).ok()).collect();
        if let Some((stdout, stderr)) = words.split_once(BETWEEN) {
            (self.finished.stdout, self.finished.stderr) = (bytes(stdout), bytes(stderr));
        }
        self
    }
}

/// Runs the command of an item.
pub struct Commands {
    /// The command.
    pub template: Template,
    /// Its limits.
    pub limits: Limits,
    /// Which failures may be retried; none means all.
    pub retry_exit: Option<ExitCodes>,
    /// How often.
    pub retries: u16,
    /// When to end the run early.
    pub halt: Halt,
    /// How long other commands may go on then.
    pub grace: Duration,
    /// What of a failed command will be written.
    pub format: Format,
    /// The commands that run.
    pub groups: Arc<Groups>,
    /// The run itself.
    pub control: Control,
    /// Whoever reads items looks at it.
    pub stop: Arc<AtomicBool>,
    /// What failed items left.
    pub failures: Arc<Failures>,
    /// Told when the run ends early.
    pub halted: Arc<AtomicBool>,
    /// Items of this process that ended well and badly.
    pub succeeded: AtomicU64,
    /// See `succeeded`.
    pub failed: AtomicU64,
}

/// How far apart the run and its commands may hear of the same order.
const SAME_ORDER: Duration = Duration::from_millis(100);

impl Commands {
    /// One attempt at an item.
    pub fn attempt(&self, item: &Item, context: &Context<'_>) -> Outcome<Ran> {
        let mut finished = command::run(&self.template.words(item), self.limits, &self.groups);
        if is_swept_up(finished.end, context) {
            finished.end = End::Ended;
        }
        let end = finished.end;
        let class = match end {
            End::Exit(0) => {
                self.count(true);
                return Outcome::Success(Ran { item: item.clone(), finished });
            }
            // It has no outcome of its own: the lanes leave it to the resume, or cancel it.
            End::Ended => ErrorClass::NonRetryableCancellation,
            End::NotStarted => ErrorClass::RetryableResource,
            End::Exit(_) | End::Signal(_) | End::Timeout if self.may_retry(end) => {
                ErrorClass::RetryableTransient
            }
            End::Exit(_) | End::Signal(_) | End::Timeout => ErrorClass::NonRetryableInput,
        };
        self.format.trim_failed(&mut finished);
        let words = self.failures.keep(context.seq(), Ran { item: item.clone(), finished });
        if end != End::Ended && (!class.is_retryable() || context.attempts() >= self.retries) {
            self.count(false);
        }
        Outcome::Fail(class, words)
    }

    fn may_retry(&self, end: End) -> bool {
        self.retry_exit.as_ref().is_none_or(|codes| codes.contains(end))
    }

    /// Counts an item that has its outcome, and ends the run if that was the last straw. The item's own
    /// outcome does not wait until the others have ended.
    fn count(&self, well: bool) {
        let counter = if well { &self.succeeded } else { &self.failed };
        counter.fetch_add(1, Ordering::SeqCst);
        let [succeeded, failed] =
            [&self.succeeded, &self.failed].map(|counter| counter.load(Ordering::SeqCst));
        let Halt::Once { now, .. } = self.halt else { return };
        if self.halt.reached(succeeded, failed) && !self.halted.swap(true, Ordering::SeqCst) {
            self.control.stop();
            self.stop.store(true, Ordering::SeqCst);
            self.groups.end_all_in(if now { Duration::ZERO } else { self.grace });
        }
    }
}

/// Whether a command died of the same order to end that the run itself got: a service manager or a
/// `kill` on a whole session tells everyone, in any order.
fn is_swept_up(end: End, context: &Context<'_>) -> bool {
    let End::Signal(SIGTERM | SIGINT | SIGHUP | SIGKILL) = end else { return false };
    let begun = Instant::now();
    while !context.should_end() && begun.elapsed() < SAME_ORDER {
        std::thread::sleep(Duration::from_millis(5));
    }
    context.should_end()
}

/// Hands results to the writer.
pub struct Results {
    /// How they look.
    pub format: Format,
    /// What failed items left.
    pub failures: Arc<Failures>,
    /// The writer.
    pub writer: Sender,
}

impl Sink<Ran> for Results {
    fn commit(&mut self, batch: &mut Batch<Ran>) -> Result<(), SinkError> {
        let resume = *batch.resume();
        let mut group = Group {
            first_seq: batch.first(),
            ends: Vec::new(),
            out: Vec::new(),
            err: Vec::new(),
            input_hash: resume.input_hash,
            outcome_hash: resume.outcome_hash,
        };
        for (seq, envelope) in batch.drain() {
            self.add(&mut group, seq, envelope);
        }
        let taken = self.writer.send(group);
        if taken { Ok(()) } else { Err(SinkError::transient("the writer has ended")) }
    }
}

impl Results {
    fn add(&self, group: &mut Group, seq: u64, envelope: Envelope<Ran>) {
        use sprag_lanes::journal::Outcome as Kept;
        let failed = self.failures.take(seq);
        let (outcome, ran) = match envelope.verdict {
            Verdict::Success(ran) => (Kept::Success, Some(ran)),
            Verdict::Skip(_) => (Kept::Skip, None),
            Verdict::Fail(_, words) => (Kept::Fail, failed.map(|ran| ran.with_output(&words))),
            Verdict::Cancel => (Kept::Cancel, failed),
        };
        let attempts = u32::from(envelope.attempts);
        group.ends.push(Ended { outcome, attempts });
        let ran = ran.as_ref().map(|ran| (&ran.item, &ran.finished));
        let settled = Settled { seq, outcome, attempts, ran };
        self.format.out(&settled, &mut group.out);
        self.format.err(&settled, &mut group.err);
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::fs;

    use clap::Parser;
    use sprag_lanes::{Config, Lanes};

    use super::*;
    use crate::map::args::RunArgs;
    use crate::map::inbox::{Found, inbox};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    fn commands(line: &Line, control: &Control, failures: &Arc<Failures>) -> Commands {
        Commands {
            template: Template::new(&line.run.words, None),
            limits: Limits { timeout: None, stderr: line.run.stderr },
            retry_exit: None,
            retries: 0,
            halt: Halt::Never,
            grace: Duration::ZERO,
            format: Format::new(&line.run),
            groups: Arc::default(),
            control: control.clone(),
            stop: Arc::default(),
            failures: Arc::clone(failures),
            halted: Arc::default(),
            succeeded: 0.into(),
            failed: 0.into(),
        }
    }

    #[test]
    fn the_output_of_failed_items_is_weighed_while_it_waits_and_comes_out_whole() {
        let folder = tempfile::tempdir().unwrap();
        let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(1 << 20).collect();
        fs::write(folder.path().join("bytes"), &bytes).unwrap();
        let script = format!(
            "cd {}; [ {{}} = a ] && {{ until [ -e go ]; do sleep 0.01; done; exit 0; }}; \
             cat bytes; cat bytes >&2; exit 1",
            folder.path().display()
        );
        let line = Line::parse_from(["map", "--keep-failed", "--", &script]);
        let (control, failures) = (Control::new(), Arc::<Failures>::default());
        let (writer, receiver) = inbox(false);
        let results = Results { format: Format::new(&line.run), failures, writer };
        let commands = commands(&line, &control, &results.failures);
        let source = ItemSource {
            items: Items::Words(["a", "b"].map(OsString::from).into()),
            again: None,
            read: 0,
            stop: Arc::default(),
            cut_short: Arc::default(),
        };
        let lanes = Lanes::new(Config { threads: 2, max_claim: 1, ..Config::default() });
        let lanes = lanes.control(&control);
        let run = std::thread::spawn(move || {
            let attempt = move |item: &Item, context: &Context<'_>| commands.attempt(item, context);
            lanes.run(source, attempt, results).unwrap().summary
        });
        let begun = Instant::now();
        while control.observe().is_none_or(|now| now.buffered_bytes < 2 << 20) {
            assert!(begun.elapsed() < Duration::from_secs(20), "2 MiB wait and weigh nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::write(folder.path().join("go"), "").unwrap();
        assert_eq!(run.join().unwrap().counts.fail, 1);
        let Found::Group(group) = receiver.take(Duration::ZERO, Duration::ZERO) else {
            panic!("nothing was handed over")
        };
        assert!(group.out == bytes && group.err == bytes, "some bytes are others");
    }
}
