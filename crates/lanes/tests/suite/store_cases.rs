//! A run over a store: batch and point in one transaction, behind a fence, with a store that goes away.

use std::sync::{Arc, Mutex};

use sprag_kernel::error::Code;
use sprag_lanes::{
    Batch, Context, Control, Ending, ErrorClass, Items, Lanes, Outcome, Resume, SinkError, Verdict,
};

use crate::stage::{config, until};

const ITEMS: u64 = 60;

/// One row of a store and the effects that were committed with it.
#[derive(Default)]
struct Table {
    rows: Vec<(u64, u64)>,
    point: Resume,
    done: u32,
    fence: u32,
    /// Commits until the store goes away, if it does.
    away_after: Option<u32>,
    refused: u32,
}

#[derive(Clone, Default)]
struct Store(Arc<Mutex<Table>>);

impl Store {
    fn with<T>(&self, look: impl FnOnce(&mut Table) -> T) -> T {
        look(&mut self.0.lock().unwrap())
    }

    /// One transaction: everything or nothing.
    fn commit(&self, fence: u32, batch: &mut Batch<u64>) -> Result<(), SinkError> {
        self.with(|table| {
            if table.fence != fence {
                table.refused += 1;
                return Err(SinkError::superseded("fence 1 was lost"));
            }
            if table.away_after == Some(0) {
                return Err(SinkError::transient("the store is away"));
            }
            table.away_after = table.away_after.map(|left| left - 1);
            assert_eq!(table.point.cursor, batch.first(), "no gap, nothing twice");
            table.point = *batch.resume();
            table.done += u32::from(batch.is_last());
            table.rows.extend(batch.drain().filter_map(|(seq, envelope)| match envelope.verdict {
                Verdict::Success(result) => Some((seq, result)),
                Verdict::Skip(_) | Verdict::Fail(..) | Verdict::Cancel => None,
            }));
            Ok(())
        })
    }

    fn sink(&self, fence: u32) -> impl FnMut(&mut Batch<u64>) -> Result<(), SinkError> + use<> {
        let store = self.clone();
        move |batch: &mut Batch<u64>| store.commit(fence, batch)
    }
}

#[allow(clippy::trivially_copy_pass_by_ref)] // compute takes its item by reference
fn double(number: &u64, _: &Context) -> Outcome<u64> {
    Outcome::Success(number * 2)
}

#[test]
fn the_last_batch_says_so_once_however_often_the_store_went_away() {
    for threads in 1..4 {
        let store = Store::default();
        let mut lost = 0;
        loop {
            store.with(|table| table.away_after = Some(2));
            let point = store.with(|table| table.point);
            let run = Lanes::new(config(threads, 8)).resume(point);
            match run.run(Items::of(0..ITEMS), double, store.sink(0)) {
                Ok(report) => break assert_eq!(report.summary.ending, Ending::Complete),
                Err(failure) => {
                    assert_eq!(failure.class(), Some(ErrorClass::RetryableTransient));
                    assert!(failure.is_retryable());
                    assert_eq!(failure.resume, store.with(|table| table.point));
                }
            }
            lost += 1;
        }
        assert!(lost > 0, "it never went away");
        let whole: Vec<_> = (0..ITEMS).map(|seq| (seq, seq * 2)).collect();
        store.with(|table| assert_eq!((&table.rows, table.done), (&whole, 1)));
    }
}

#[test]
fn a_stream_has_no_last_batch_and_a_cancelled_run_has_one() {
    let store = Store::default();
    Lanes::new(config(2, 8)).run(Items::stream(0..ITEMS), double, store.sink(0)).unwrap();
    store.with(|table| assert_eq!((table.point.cursor, table.done), (ITEMS, 0)));

    let (store, control) = (Store::default(), Control::new());
    control.cancel();
    let run = Lanes::new(config(2, 8)).control(&control);
    let summary = run.run(Items::of(0..ITEMS), double, store.sink(0)).unwrap().summary;
    assert_eq!((summary.ending, summary.counts.cancel), (Ending::Cancelled, ITEMS));
    store.with(|table| assert_eq!((table.point.cursor, table.done), (ITEMS, 1)));
}

#[test]
fn a_lost_fence_stops_the_run_and_nothing_is_written_behind_it() {
    let store = Store::default();
    let theirs = store.clone();
    let takeover = move |number: &u64, context: &Context| {
        if context.seq() == 20 {
            theirs.with(|table| table.fence = 1);
        }
        double(number, context)
    };
    let run = Lanes::new(config(2, 8));
    let failure = run.run(Items::of(0..ITEMS), takeover, store.sink(0)).unwrap_err();
    assert_eq!(failure.code(), Code::SinkFailed);
    assert_eq!(failure.class(), Some(ErrorClass::NonRetryableCancellation));
    assert!(!failure.is_retryable());
    store.with(|table| {
        assert_eq!(table.refused, 1, "it does not try again");
        assert!(table.point.cursor <= 20, "20 was computed behind the fence");
        assert_eq!(table.point, failure.resume);
    });
    // All of it as a value that can be kept beside the job.
    let kept = serde_json::to_value(&*failure).unwrap();
    assert_eq!(kept["refusal"]["error_code"], "SINK_FAILED");
    assert_eq!(kept["resume"]["cursor"], failure.resume.cursor);
    assert_eq!(kept["snapshot"]["next_commit_seq"], failure.resume.cursor);
    for field in ["max_seen_seq", "ledger", "windows", "oldest_blocked", "buffered_bytes"] {
        assert!(!kept["snapshot"][field].is_null(), "{field} in {kept}");
    }
}

#[test]
fn a_sink_that_waits_for_its_store_hears_a_stop() {
    let (control, waits) = (Control::new(), Arc::new(Mutex::new(false)));
    let (told, mark) = (control.clone(), Arc::clone(&waits));
    let stuck = move |_: &mut Batch<u64>| -> Result<(), SinkError> {
        *mark.lock().unwrap() = true;
        until("somebody asks it to end", || told.is_ending());
        Err(SinkError::transient("the store is away"))
    };
    let ours = control.clone();
    let run = std::thread::spawn(move || {
        Lanes::new(config(2, 8)).control(&ours).run(Items::of(0..ITEMS), double, stuck)
    });
    until("the sink waits", || *waits.lock().unwrap());
    assert!(!control.is_ending());
    control.stop();
    let failure = run.join().unwrap().unwrap_err();
    assert!(failure.is_retryable());
    assert_eq!(failure.resume.cursor, 0);
}
