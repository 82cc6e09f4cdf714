//! Panics and failures of the caller's code, and configurations that no run can follow.

use sprag_kernel::error::Code;
use sprag_lanes::{
    Backoff, Batch, Config, Context, Entry, ErrorClass, Failure, Items, Lanes, Outcome, Payload,
    SinkError, Source, Verdict,
};

use crate::stage::{Written, config, until};

#[allow(clippy::trivially_copy_pass_by_ref)] // compute takes its item by reference
fn double(number: &u64, _: &Context) -> Outcome<u64> {
    Outcome::Success(number * 2)
}

fn field(failure: &Failure, name: &str) -> String {
    failure.refusal.field(name).unwrap_or_else(|| panic!("no field {name}")).to_string()
}

#[test]
fn r8_an_empty_run_is_complete_at_once() {
    let report = Lanes::new(config(2, 4))
        .run(Items::of(0..0_u64), double, Written::default().sink())
        .unwrap();
    assert_eq!((report.summary.total, report.summary.counts.total()), (0, 0));
}

#[test]
fn a_panic_of_compute_fails_its_seq_and_no_other() {
    let failures = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let notes = std::sync::Arc::clone(&failures);
    let sink = move |batch: &mut Batch<u64>| {
        for (seq, envelope) in batch.iter() {
            if let Verdict::Fail(class, message) = envelope.verdict {
                notes.lock().unwrap().push((seq, class.name(), message.to_string()));
            }
        }
        Ok(())
    };
    let compute = |number: &u64, context: &Context| {
        assert!(context.seq() != 7, "seven is bad");
        Outcome::Success(*number)
    };
    let report = Lanes::new(config(2, 16)).run(Items::of(0..50_u64), compute, sink).unwrap();
    assert_eq!((report.summary.counts.success, report.summary.counts.fail), (49, 1));
    let failures = failures.lock().unwrap();
    assert_eq!(failures[..], [(7, "NON_RETRYABLE_INPUT", "panicked: seven is bad".to_string())]);
}

#[test]
fn a_sink_that_fails_ends_the_run_and_names_the_seq() {
    let written = Written::default();
    let mut sink = written.sink();
    let failing = move |batch: &mut Batch<u64>| {
        if batch.last() >= 20 {
            return Err(SinkError::transient("disk full").at(20));
        }
        sink(batch)
    };
    let failure = Lanes::new(config(2, 8)).run(Items::of(0..99_u64), double, failing).unwrap_err();
    assert_eq!(failure.code(), Code::SinkFailed);
    assert_eq!(
        (field(&failure, "seq"), field(&failure, "reason")),
        ("20".into(), "disk full".into())
    );
    let snapshot = failure.snapshot.as_ref().unwrap();
    assert_eq!(snapshot.next_commit_seq, written.pages().outcomes.len() as u64);
    assert_eq!(failure.resume.cursor, snapshot.next_commit_seq);
}

#[test]
fn a_sink_that_panics_ends_the_run_and_the_prefix_can_be_resumed() {
    let written = Written::default();
    let mut sink = written.sink();
    let panicking = move |batch: &mut Batch<u64>| {
        assert!(batch.last() < 30, "broken pipe");
        sink(batch)
    };
    let failure =
        Lanes::new(config(2, 8)).run(Items::of(0..99_u64), double, panicking).unwrap_err();
    assert_eq!(failure.code(), Code::SinkFailed);
    assert!(field(&failure, "reason").contains("broken pipe"));
    let resumed = Lanes::new(config(3, 8))
        .resume(failure.resume)
        .run(Items::of(0..99_u64), double, written.sink())
        .unwrap();
    assert_eq!(resumed.summary.counts.success, 99);
    assert_eq!(written.pages().writes.len(), 99);
}

/// A source that goes wrong at an item, in one way or the other.
struct Bad {
    next: u64,
    at: u64,
    how: How,
    total: Option<u64>,
}

#[derive(Clone, Copy, PartialEq)]
enum How {
    Error,
    Panic,
    TooShort,
}

impl Source for Bad {
    type Item = u64;

    fn next(&mut self) -> Result<Option<u64>, String> {
        if self.next == self.at {
            match self.how {
                How::Error => return Err("unreadable".into()),
                How::Panic => panic!("lost my place"),
                How::TooShort => return Ok(None),
            }
        }
        self.next += 1;
        Ok(Some(self.next - 1))
    }

    fn total(&self) -> Option<u64> {
        self.total
    }

    fn entry(&self, _: &u64) -> Entry {
        Entry { cost: 1, bytes: 0 }
    }
}

#[test]
fn a_source_that_fails_panics_or_ends_early_ends_the_run_and_names_the_seq() {
    for (how, reason) in [
        (How::Error, "unreadable"),
        (How::Panic, "lost my place"),
        (How::TooShort, "ended at 40, promised 100"),
    ] {
        // One that is read a claim at a time, and one that is read by itself and has no end to miss.
        for total in [Some(100), None].into_iter().filter(|t| t.is_some() || how != How::TooShort) {
            let source = Bad { next: 0, at: 40, how, total };
            let config = Config { max_claim: 8, ..config(2, 32) };
            let run = Lanes::new(config).run(source, double, Written::default().sink());
            let failure = run.unwrap_err();
            assert_eq!(failure.code(), Code::SourceFailed);
            assert_eq!(field(&failure, "seq"), "40");
            assert!(field(&failure, "reason").contains(reason), "{failure}");
        }
    }
}

#[test]
fn a_configuration_outside_of_its_limits_is_refused_by_name() {
    let mut window = Config::default();
    window.plan.max_entries = 1 << 21;
    window.plan.max_span = 1 << 21;
    let mut ratio = Config::default();
    ratio.pressure.resume_ratio = 1.0;
    let refused = [
        (Config { threads: 0, ..Config::default() }, "threads"),
        (Config { max_retries: 8_192, ..Config::default() }, "max_retries"),
        (Config { lease_ms: Some(0), ..Config::default() }, "lease_ms"),
        (Config { max_claim: 0, ..Config::default() }, "max_claim"),
        (Config { max_batch_bytes: 0, ..Config::default() }, "max_batch_bytes"),
        (window, "plan.maxEntries"),
        (ratio, "pressure.resume_ratio"),
    ];
    for (config, name) in refused {
        let failure = Lanes::new(config)
            .run(Items::of(0..1_u64), double, Written::default().sink())
            .unwrap_err();
        assert_eq!(failure.code(), Code::RunConfigInvalid);
        assert_eq!(field(&failure, "field"), name);
    }
}

#[test]
fn a_control_may_be_used_from_inside_a_source_and_a_sink() {
    let control = sprag_lanes::Control::new();
    let (asker, other) = (control.clone(), control.clone());
    let items = (0..1_000_u64).inspect(move |number| {
        if *number == 50 {
            asker.stop();
        }
    });
    let sink = move |_: &mut Batch<u64>| {
        other.stop();
        assert!(other.observe().is_some());
        Ok(())
    };
    let run = Lanes::new(config(2, 8)).control(&control);
    let summary = run.run(Items::stream(items), double, sink).unwrap().summary;
    assert!(summary.total < 1_000);
}

#[test]
fn progress_is_reported_on_the_calling_thread_and_never_goes_back() {
    let caller = std::thread::current().id();
    let seen = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let notes = std::sync::Arc::clone(&seen);
    let report = move |now: &sprag_lanes::Observation| {
        assert_eq!(std::thread::current().id(), caller);
        notes.lock().unwrap().push(now.next_commit_seq);
    };
    let run = Lanes::new(Config { threads: 2, ..Config::default() }).progress(1, report);
    run.run(Items::of(0..200_000_u64), double, |_: &mut Batch<u64>| Ok(())).unwrap();
    let seen = seen.lock().unwrap();
    assert!(!seen.is_empty(), "the first report comes at once");
    assert!(seen.is_sorted());
}

#[test]
fn a_progress_callback_that_panics_ends_the_run_and_nothing_is_written_behind_it() {
    let written = Written::default();
    let control = sprag_lanes::Control::new();
    let watch = control.clone();
    // The first report comes when the run begins; no item ends before that.
    let compute = move |number: &u64, context: &Context| {
        until("the run is ending", || context.should_end() || watch.observe().is_none());
        Outcome::Success(*number)
    };
    let run = Lanes::new(config(2, 8)).control(&control).progress(1, |_| panic!("no screen"));
    let failure = run.run(Items::of(0..400_u64), compute, written.sink()).unwrap_err();
    assert_eq!(failure.code(), Code::ProgressFailed);
    assert!(field(&failure, "reason").contains("no screen"));
    assert!(failure.resume.cursor < 400);
    assert_eq!(written.pages().outcomes.len() as u64, failure.resume.cursor);
}

#[test]
fn a_retry_that_comes_due_behind_another_is_not_forgotten() {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let config = Config { backoff: Backoff::new(vec![100]).unwrap(), ..config(1, 2) };
        let compute = |number: &u64, context: &Context| match context.attempts() {
            0 => {
                // The second retry is due after the first, when the one worker sleeps again.
                std::thread::sleep(std::time::Duration::from_millis(20 * number));
                Outcome::Fail(ErrorClass::RetryableTransient, "once".into())
            }
            _ => Outcome::Success(*number),
        };
        let report =
            Lanes::new(config).run(Items::of(0..3_u64), compute, Written::default().sink());
        ended.send(report.unwrap().summary).unwrap();
    });
    let summary = end.recv_timeout(std::time::Duration::from_secs(30)).expect("the run ends");
    assert_eq!(summary.counts.success, 3);
}

/// A result that some of its kind let nobody look at.
struct Shy(u64);

impl Payload for Shy {
    fn digest(&self) -> u64 {
        assert!(!matches!(self.0, 3 | 4), "do not look");
        self.0
    }

    fn weight(&self) -> u64 {
        assert!(self.0 != 11, "do not weigh");
        8
    }
}

#[test]
fn a_payload_that_panics_fails_its_seq_and_no_other() {
    let hashes = [1, 3].map(|threads| {
        let outcomes = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let notes = std::sync::Arc::clone(&outcomes);
        let sink = move |batch: &mut Batch<Shy>| {
            for (_, envelope) in batch.iter() {
                notes.lock().unwrap().push(match envelope.verdict {
                    Verdict::Success(_) => '.',
                    Verdict::Skip(_) => 's',
                    Verdict::Fail(ErrorClass::NonRetryableInput, _) => 'F',
                    Verdict::Fail(..) | Verdict::Cancel => '?',
                });
            }
            Ok(())
        };
        let compute = |number: &u64, _: &Context| match number {
            7 => panic!("this one does it by itself"),
            9 => Outcome::Skip("another outcome in between".into()),
            _ => Outcome::Success(Shy(*number)),
        };
        let run = Lanes::new(config(threads, 100)).run(Items::of(0..16_u64), compute, sink);
        assert_eq!(*outcomes.lock().unwrap(), "...FF..F.s.F....");
        run.unwrap().summary.outcome_hash
    });
    assert_eq!(hashes[0], hashes[1]);
}
