//! Streams that are silent: whatever does not wait for their next item goes on.

use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use sprag_lanes::{
    Backoff, Config, Context, Control, Ending, ErrorClass, Failure, Items, Lanes, Outcome, Summary,
    TestClock,
};

use crate::stage::{Written, config, until};

/// A stream gives up after so long, so that a run which waits for it fails its test and does not hang.
const PATIENCE: Duration = Duration::from_secs(20);

/// A run over what a test sends, with a clock that the test owns. The first attempt of 1 fails.
struct Fed {
    sender: Sender<u64>,
    control: Control,
    clock: TestClock,
    run: thread::JoinHandle<Result<Summary, Box<Failure>>>,
}

fn fed(config: Config) -> Fed {
    let (sender, receiver) = mpsc::channel();
    let (control, clock) = (Control::new(), TestClock::new());
    let (watch, time) = (control.clone(), clock.clone());
    let run = thread::spawn(move || {
        let items = std::iter::from_fn(move || match receiver.recv_timeout(PATIENCE) {
            Ok(item) => Some(item),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the test has waited for its run"),
        });
        let compute = |number: &u64, context: &Context| match (context.seq(), context.attempts()) {
            (1, 0) => Outcome::Fail(ErrorClass::RetryableTransient, "not yet".into()),
            _ => Outcome::Success(*number),
        };
        let lanes = Lanes::new(config).control(&watch).clock(time);
        lanes.run(Items::stream(items), compute, Written::default().sink()).map(|run| run.summary)
    });
    Fed { sender, control, clock, run }
}

impl Fed {
    fn send(&self, items: std::ops::Range<u64>) {
        items.for_each(|item| self.sender.send(item).unwrap());
    }

    fn until_committed(&self, seqs: u64) {
        let there = || self.control.observe().is_some_and(|seen| seen.next_commit_seq == seqs);
        until("everything that was sent is committed", there);
    }
}

#[test]
fn a_retry_runs_at_its_time_while_the_stream_is_silent() {
    let backoff = Backoff::new(vec![100]).unwrap();
    let fed = fed(Config { backoff, ..config(2, 100) });
    fed.send(0..2);
    until("1 waits for its retry", || {
        fed.control.observe().is_some_and(|seen| seen.waiting_retries == 1)
    });
    fed.clock.advance_ms(100);
    fed.until_committed(2);
    fed.send(2..3);
    drop(fed.sender);
    let summary = fed.run.join().unwrap().unwrap();
    assert_eq!((summary.ending, summary.counts.success), (Ending::Complete, 3));
}

#[test]
fn an_item_that_was_read_does_not_wait_for_the_one_behind_it() {
    let backoff = Backoff::new(vec![0]).unwrap();
    for threads in [1, 2, 5] {
        let config = Config { backoff: backoff.clone(), max_claim: 64, ..config(threads, 100) };
        let fed = fed(config);
        let mut sent = 0;
        for more in [1, 1, 3, 7, 50, 2] {
            fed.send(sent..sent + more);
            sent += more;
            fed.until_committed(sent);
        }
        drop(fed.sender);
        assert_eq!(fed.run.join().unwrap().unwrap().counts.success, sent);
    }
}

/// Asks something of a run whose stream is silent, and gives it no more than the grace.
fn ended_by(ask: fn(&Control), threads: usize) -> Summary {
    let fed = fed(config(threads, 100));
    fed.send(0..1);
    fed.until_committed(1);
    ask(&fed.control);
    until("the run is over", || {
        fed.clock.advance_ms(Config::default().grace_ms);
        fed.run.is_finished()
    });
    let summary = fed.run.join().unwrap().unwrap();
    // The stream was silent all the time, and its reader was left behind in it.
    fed.sender.send(1).unwrap();
    summary
}

#[test]
fn a_stop_and_a_cancel_do_not_wait_for_a_silent_stream_beyond_the_grace() {
    for threads in [1, 3] {
        let stopped = ended_by(Control::stop, threads);
        assert_eq!((stopped.ending, stopped.total), (Ending::Stopped, 1));
        let cancelled = ended_by(Control::cancel, threads);
        assert_eq!((cancelled.ending, cancelled.total), (Ending::Cancelled, 1));
    }
}

#[test]
fn the_same_items_have_one_summary_however_they_come() {
    let count = 3_000_u64;
    let summary = |source: Items<std::ops::Range<u64>>, threads| {
        let compute = |number: &u64, _: &Context| Outcome::Success(*number);
        let run = Lanes::new(config(threads, 64));
        run.run(source, compute, Written::default().sink()).unwrap().summary
    };
    let known = summary(Items::of(0..count), 2);
    assert_eq!((known.ending, known.total), (Ending::Complete, count));
    for threads in [1, 3] {
        assert_eq!(summary(Items::stream(0..count), threads), known);
        assert_eq!(summary(Items::stream(0..count).at_hand(), threads), known);
    }
}
