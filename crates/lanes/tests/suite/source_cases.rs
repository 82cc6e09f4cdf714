//! Sources that are read by the claim: only the cost tells them from those that are read item by item.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use sprag_kernel::error::Code;
use sprag_lanes::{
    Batch, Config, Context, Control, Entry, Failure, Items, Lanes, Outcome, Resume, SinkError,
    Source, Summary, TestClock,
};

use crate::stage::{Written, config};

const TOTAL: u64 = 500;
const ENTRY: Entry = Entry { cost: 3, bytes: 5 };

#[allow(clippy::trivially_copy_pass_by_ref)] // compute takes its item by reference
fn double(number: &u64, _: &Context) -> Outcome<u64> {
    Outcome::Success(number * 2)
}

/// Numbers that have one entry and may say so.
struct Numbers {
    left: std::ops::Range<u64>,
    says_so: bool,
    /// How many items were looked at.
    asked: Arc<AtomicU64>,
}

impl Numbers {
    fn new(says_so: bool) -> Self {
        Self { left: 0..TOTAL, says_so, asked: Arc::default() }
    }
}

impl Source for Numbers {
    type Item = u64;

    fn next(&mut self) -> Result<Option<u64>, String> {
        Ok(self.left.next())
    }

    fn is_at_hand(&self) -> bool {
        true
    }

    fn common_entry(&self) -> Option<Entry> {
        self.says_so.then_some(ENTRY)
    }

    fn entry(&self, _: &u64) -> Entry {
        self.asked.fetch_add(1, Ordering::SeqCst);
        ENTRY
    }
}

/// All that shows of a run: writes, batches, the bounds of its windows, the summary.
#[derive(Debug, PartialEq)]
struct Seen {
    writes: Vec<(u64, u64)>,
    batches: Vec<(u64, u64)>,
    windows: BTreeMap<u64, (u64, u64)>,
    summary: Summary,
}

/// A run on one thread, whose clock stands still: claims grow to the largest, by the same steps.
fn seen(config: &Config, source: impl Source<Item = u64>) -> Seen {
    let (control, written) = (Control::new(), Written::default());
    let windows = Arc::new(Mutex::new(BTreeMap::new()));
    let (watch, notes, mut sink) = (control.clone(), Arc::clone(&windows), written.sink());
    let watched = move |batch: &mut Batch<u64>| {
        for window in watch.observe().unwrap().windows {
            notes.lock().unwrap().insert(window.window, (window.start, window.end));
        }
        sink(batch)
    };
    let run = Lanes::new(config.clone()).control(&control).clock(TestClock::new());
    let summary = run.run(source, double, watched).unwrap().summary;
    let (pages, windows) = (written.pages(), windows.lock().unwrap().clone());
    Seen { writes: pages.writes, batches: pages.runs, windows, summary }
}

/// Windows that are cut by entries, cost, target and bytes, and claims of up to so many items.
fn shapes() -> Vec<Config> {
    let mut shapes = Vec::new();
    for max_claim in [1, 5, 64] {
        let shape = Config { max_claim, ..config(1, 48) };
        let (mut by_cost, mut by_target, mut by_bytes) =
            (shape.clone(), shape.clone(), shape.clone());
        by_cost.plan.max_cost = 50;
        by_target.plan.target_cost = 61.0;
        by_bytes.plan.max_bytes = 99;
        shapes.extend([shape, by_cost, by_target, by_bytes]);
    }
    shapes
}

#[test]
fn items_that_are_read_by_the_claim_make_the_same_run_as_one_by_one() {
    for config in shapes() {
        let (each, all) = (Numbers::new(false), Numbers::new(true));
        let (asked_each, asked_all) = (Arc::clone(&each.asked), Arc::clone(&all.asked));
        let one_by_one = seen(&config, each);
        assert_eq!(one_by_one, seen(&config, all), "{config:?}");
        assert!(one_by_one.windows.len() > 9, "{one_by_one:?}");
        assert!(asked_each.load(Ordering::SeqCst) >= TOTAL);
        let claims = if config.max_claim == 1 { TOTAL } else { TOTAL / 3 };
        assert!(asked_all.load(Ordering::SeqCst) <= claims, "once for a claim");
    }
}

#[test]
fn an_iterator_whose_items_have_no_entry_makes_the_same_run_as_one_that_is_asked() {
    let asked = |_: &u64| Entry { cost: 1, bytes: 0 };
    for config in shapes() {
        let one_by_one = seen(&config, Items::of(0..TOTAL).entry(asked));
        assert_eq!(one_by_one, seen(&config, Items::of(0..TOTAL)), "{config:?}");
        // One of unknown length, that may not be asked again behind its end.
        let mut left = (0..TOTAL).map(Some).chain([None]);
        let lines = Items::stream(std::iter::from_fn(move || left.next().expect("one end")));
        let mut unknown = seen(&config, lines.at_hand());
        // Only towards an end that is known claims get smaller, and so batches.
        unknown.batches.clone_from(&one_by_one.batches);
        assert_eq!(one_by_one, unknown, "{config:?}");
    }
}

#[test]
fn a_run_that_was_read_by_the_claim_is_resumed_item_by_item_and_the_other_way_round() {
    let config = Config { max_claim: 64, ..config(2, 48) };
    let run = |resume| Lanes::new(config.clone()).resume(resume);
    let written = Written::default();
    let whole = run(Resume::default()).run(Numbers::new(false), double, written.sink());
    let whole = whole.unwrap().summary;
    for says_so in [false, true] {
        let written = Written::default();
        let mut sink = written.sink();
        let crashing = move |batch: &mut Batch<u64>| match batch.last() {
            ..200 => sink(batch),
            _ => Err(SinkError::permanent("crash")),
        };
        let crashed = run(Resume::default()).run(Numbers::new(says_so), double, crashing);
        let point = crashed.unwrap_err().resume;
        let resumed = run(point).run(Numbers::new(!says_so), double, written.sink());
        assert_eq!(resumed.unwrap().summary, whole);
        assert_eq!(written.pages().writes.len() as u64, TOTAL);
    }
}

/// What becomes of a run whose source fails, in claims of up to 64.
fn failure(source: impl Source<Item = u64>) -> Box<Failure> {
    let config = Config { max_claim: 64, ..config(1, 1_000) };
    let run = Lanes::new(config).clock(TestClock::new());
    let failure = run.run(source, double, Written::default().sink()).unwrap_err();
    assert_eq!(failure.code(), Code::SourceFailed);
    failure
}

fn field(failure: &Failure, name: &str) -> String {
    failure.refusal.field(name).unwrap().to_string()
}

#[test]
fn a_panic_in_the_middle_of_a_claim_names_its_seq() {
    for at in 0..200 {
        let bad = move |number| {
            assert!(number != at, "lost my place");
            number
        };
        // Of the one the length is known and it is copied at once, of the other it is not.
        let known = failure(Items::of((0..TOTAL).map(bad)));
        let unknown = failure(Items::stream((0..TOTAL).map(bad).filter(|_| true)).at_hand());
        for failure in [known, unknown] {
            assert_eq!(field(&failure, "seq"), at.to_string());
            assert_eq!(field(&failure, "reason"), "panicked: lost my place");
        }
    }
}

/// Numbers that cannot be read from the last one on.
struct Torn(Numbers);

impl Source for Torn {
    type Item = u64;

    fn next(&mut self) -> Result<Option<u64>, String> {
        self.0.left.next().map(Some).ok_or_else(|| "torn".into())
    }

    fn total(&self) -> Option<u64> {
        Some(TOTAL)
    }

    fn common_entry(&self) -> Option<Entry> {
        self.0.common_entry()
    }
}

#[test]
fn an_error_in_the_middle_of_a_claim_names_its_seq() {
    for (end, says_so) in (0..200).flat_map(|end| [(end, false), (end, true)]) {
        let failure = failure(Torn(Numbers { left: 0..end, ..Numbers::new(says_so) }));
        assert_eq!(field(&failure, "seq"), end.to_string());
        assert_eq!(field(&failure, "reason"), "torn");
    }
}

/// Numbers whose next many are one too many, or fewer than none.
struct Liar {
    next: u64,
    takes_away: bool,
}

impl Source for Liar {
    type Item = u64;

    fn next(&mut self) -> Result<Option<u64>, String> {
        self.next += 1;
        Ok(Some(self.next - 1))
    }

    fn next_many(&mut self, most: usize, items: &mut Vec<u64>) -> Result<(), String> {
        if self.takes_away {
            items.clear();
            return Ok(());
        }
        items.extend(self.next..=self.next + most as u64);
        Ok(())
    }

    fn is_at_hand(&self) -> bool {
        true
    }

    fn common_entry(&self) -> Option<Entry> {
        Some(ENTRY)
    }
}

#[test]
fn a_source_that_does_not_append_what_it_was_asked_for_ends_the_run() {
    for (takes_away, made) in [(false, 5), (true, 0)] {
        // The first claim has one item, the second four, of which the first is read by itself.
        let failure = failure(Liar { next: 0, takes_away });
        assert_eq!(field(&failure, "seq"), "2");
        assert_eq!(
            field(&failure, "reason"),
            format!("asked for 3 items, next_many made 1 into {made}")
        );
    }
}
