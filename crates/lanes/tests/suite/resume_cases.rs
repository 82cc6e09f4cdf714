//! Going on after a crash: the committed prefix is trusted, the input before it is checked.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sprag_kernel::error::Code;
use sprag_lanes::{Batch, Config, Context, Items, Lanes, Outcome, Resume, SinkError, Summary};

use crate::stage::{Written, config};

#[allow(clippy::trivially_copy_pass_by_ref)] // compute takes its item by reference
fn double(number: &u64, _: &Context) -> Outcome<u64> {
    Outcome::Success(number * 2)
}

fn bytes_of(text: &String) -> &[u8] {
    text.as_bytes()
}

fn whole(total: u64) -> Summary {
    let run = Lanes::new(config(1, 8));
    run.run(Items::of(0..total), double, Written::default().sink()).unwrap().summary
}

/// The resume points behind the batches of a run over `total` numbers.
fn points(total: u64) -> Vec<Resume> {
    let points = Arc::new(std::sync::Mutex::new(vec![Resume::default()]));
    let notes = Arc::clone(&points);
    let sink = move |batch: &mut Batch<u64>| {
        notes.lock().unwrap().push(*batch.resume());
        Ok(())
    };
    Lanes::new(config(2, 8)).run(Items::of(0..total), double, sink).unwrap();
    let points = points.lock().unwrap();
    points.clone()
}

#[test]
fn every_batch_is_a_point_to_go_on_from_and_nothing_before_it_is_computed_again() {
    let expected = whole(60);
    for point in points(60) {
        let lowest = Arc::new(AtomicU64::new(u64::MAX));
        let low = Arc::clone(&lowest);
        let compute = move |number: &u64, context: &Context| {
            low.fetch_min(context.seq(), Ordering::SeqCst);
            double(number, context)
        };
        let sink = |_: &mut Batch<u64>| -> Result<(), SinkError> { Ok(()) };
        let run = Lanes::new(config(2, 8)).resume(point);
        let resumed = run.run(Items::of(0..60_u64), compute, sink).unwrap().summary;
        assert_eq!(resumed, expected);
        assert!(lowest.load(Ordering::SeqCst) >= point.cursor);
    }
}

#[test]
fn a_longer_input_with_the_same_prefix_is_accepted() {
    let expected = whole(90);
    let point = whole(60).resume();
    let sink = |_: &mut Batch<u64>| -> Result<(), SinkError> { Ok(()) };
    let run = Lanes::new(config(2, 8)).resume(point);
    assert_eq!(run.run(Items::of(0..90_u64), double, sink).unwrap().summary, expected);
}

#[test]
fn another_input_a_shorter_one_and_another_plan_are_refused_before_anything_runs() {
    let texts = |edit: &str| -> Vec<String> {
        (0..50).map(|n| if n == 20 { edit.to_string() } else { format!("line {n}") }).collect()
    };
    let compute = |text: &String, _: &Context| Outcome::Success(text.len() as u64);
    let sink = || |_: &mut Batch<u64>| -> Result<(), SinkError> { Ok(()) };
    let items = |edit: &str| Items::of(texts(edit)).content(bytes_of);
    let point = Lanes::new(config(1, 8)).run(items("aaaa"), compute, sink()).unwrap();
    let point = point.summary.resume();
    let refused = |config: Config, items| {
        let failure = Lanes::new(config).resume(point).run(items, compute, sink()).unwrap_err();
        assert_eq!(failure.code(), Code::PlanChanged);
        failure.refusal.field("seq").unwrap().to_string()
    };
    assert_eq!(refused(config(1, 8), items("bbbb")), "50", "same length, other text");
    assert_eq!(refused(config(1, 9), items("aaaa")), "50", "other windows");
    let shorter: Vec<String> = texts("aaaa").into_iter().take(30).collect();
    assert_eq!(refused(config(1, 8), Items::of(shorter).content(bytes_of)), "30");
    let again = Lanes::new(config(2, 8)).resume(point).run(items("aaaa"), compute, sink());
    assert_eq!(again.unwrap().summary.total, 50, "the same input is complete already");
}
