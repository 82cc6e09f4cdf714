//! Random runs against a sequential reference: outcomes, retries, panics, lost leases, cancellations
//! and crashes, on any number of threads. What the sink was given and the summary must be equal.
//!
//! The reference is a plain loop over the items; its hash comes from a drain that is fed in order. A
//! crash is a sink that refuses a batch: the run is dropped and another one resumes behind the
//! committed prefix, with nothing but the resume point.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;

use proptest::prelude::*;
use sprag_kernel::error::Code;
use sprag_lanes::{
    Backoff, Batch, Clock as _, Config, Context, Control, Drain, Ending, ErrorClass, Items, Lanes,
    Outcome, Resume, SinkError, Summary, TestClock, Verdict,
};

use crate::stage::{Written, config};

const LEASE_MS: u64 = 10;

/// What one attempt does.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Act {
    Succeed,
    Skip,
    Refuse,
    Panic,
    Transient,
    Resource,
    /// Silent until its lease must have expired, then a failure that may be retried.
    Hang,
}

/// An item: what its attempts do; the last act is repeated.
#[derive(Clone, Debug)]
struct Script {
    number: u64,
    acts: Vec<Act>,
}

impl Script {
    fn act(&self, attempt: usize) -> Act {
        self.acts[attempt.min(self.acts.len() - 1)]
    }

    fn outcome(&self, act: Act) -> Outcome<u64> {
        match act {
            Act::Succeed | Act::Hang => Outcome::Success(self.number),
            Act::Skip => Outcome::Skip(format!("skip {}", self.number)),
            Act::Refuse => Outcome::Fail(ErrorClass::NonRetryableSchema, "no".into()),
            Act::Panic => panic!("as the script says"),
            Act::Transient => Outcome::Fail(ErrorClass::RetryableTransient, "later".into()),
            Act::Resource => Outcome::Fail(ErrorClass::RetryableResource, "later".into()),
        }
    }

    /// What a sequential run makes of the item: its verdict and its retries.
    fn verdict(&self, max_retries: u16) -> (Verdict<u64>, u16) {
        for attempts in 0..=max_retries {
            let verdict = match self.act(usize::from(attempts)) {
                Act::Panic => Verdict::Fail(ErrorClass::NonRetryableInput, String::new()),
                Act::Transient | Act::Resource if attempts < max_retries => continue,
                act => match self.outcome(act) {
                    Outcome::Success(payload) => Verdict::Success(payload),
                    Outcome::Skip(reason) => Verdict::Skip(reason),
                    Outcome::Fail(class, message) => Verdict::Fail(class, message),
                },
            };
            return (verdict, attempts);
        }
        unreachable!("the last attempt has a verdict")
    }
}

#[derive(Clone, Debug)]
struct Plan {
    scripts: Vec<Script>,
    threads: usize,
    max_claim: usize,
    window: u64,
    max_retries: u16,
    /// The sink refuses its batch after so many seqs of a run, run by run.
    crashes: Vec<u64>,
}

fn act() -> impl Strategy<Value = Act> {
    prop_oneof![
        8 => Just(Act::Succeed),
        2 => Just(Act::Skip),
        1 => Just(Act::Refuse),
        1 => Just(Act::Panic),
        3 => Just(Act::Transient),
        1 => Just(Act::Resource),
    ]
}

fn plan() -> impl Strategy<Value = Plan> {
    let scripts = prop::collection::vec(prop::collection::vec(act(), 1..4), 0..40);
    let shape = (1..5_usize, 1..9_usize, 1..7_u64, 0..4_u16);
    (scripts, shape, prop::collection::vec(0..20_u64, 0..4)).prop_map(
        |(scripts, shape, crashes)| {
            let (threads, max_claim, window, max_retries) = shape;
            let numbered = (1..).zip(scripts).map(|(number, acts)| Script { number, acts });
            Plan { scripts: numbered.collect(), threads, max_claim, window, max_retries, crashes }
        },
    )
}

impl Plan {
    fn config(&self) -> Config {
        let mut config = config(self.threads, self.window);
        config.max_claim = self.max_claim;
        config.max_retries = self.max_retries.into();
        config.backoff = Backoff::new(vec![0]).unwrap();
        config
    }

    /// Outcome names and retries by seq, counts and outcome hash, by the sequential reference.
    fn reference(&self) -> (Vec<(&'static str, u16)>, Resume) {
        let sink = |_: &mut Batch<u64>| -> Result<(), SinkError> { Ok(()) };
        let mut drain = Drain::new(self.scripts.len() as u64, sink, u64::MAX);
        let mut told = Vec::new();
        for (seq, script) in (0..).zip(&self.scripts) {
            let (verdict, attempts) = script.verdict(self.max_retries);
            told.push((name_of(&verdict), attempts));
            drain.arrive(seq, verdict).unwrap();
            drain.drain().unwrap();
        }
        (told, drain.resume())
    }

    /// Runs, crashes and resumes until the end.
    fn run(&self, written: &Written) -> Summary {
        let mut resume = Resume::default();
        for crash in &self.crashes {
            match self.run_once(resume, Some(*crash), written) {
                Ok(summary) => return summary,
                Err(cut) => resume = cut,
            }
        }
        self.run_once(resume, None, written).unwrap()
    }

    fn run_once(
        &self,
        resume: Resume,
        crash: Option<u64>,
        written: &Written,
    ) -> Result<Summary, Resume> {
        let notes = written.clone();
        let sink = move |batch: &mut Batch<u64>| {
            if crash.is_some_and(|crash| batch.last() >= resume.cursor + crash) {
                return Err(SinkError::transient("crash"));
            }
            notes.take(batch);
            Ok(())
        };
        let compute = |script: &Script, context: &Context| {
            script.outcome(script.act(usize::from(context.attempts())))
        };
        let items = Items::of(self.scripts.clone());
        let run = Lanes::new(self.config()).resume(resume).run(items, compute, sink);
        run.map(|report| report.summary).map_err(|failure| {
            assert_eq!(failure.code(), Code::SinkFailed);
            assert!(failure.resume.cursor >= resume.cursor);
            failure.resume
        })
    }
}

fn name_of(verdict: &Verdict<u64>) -> &'static str {
    match verdict {
        Verdict::Success(_) => "success",
        Verdict::Skip(_) => "skip",
        Verdict::Fail(..) => "fail",
        Verdict::Cancel => "cancel",
    }
}

fn told(written: &Written) -> Vec<(&'static str, u16)> {
    let pages = written.pages();
    pages.outcomes.into_iter().zip(pages.attempts).collect()
}

/// Panics of scripted items are expected; their traces would drown the report.
fn quietly() {
    static QUIET: std::sync::Once = std::sync::Once::new();
    QUIET.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if panic.payload().downcast_ref::<&str>() != Some(&"as the script says") {
                usual(panic);
            }
        }));
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn any_run_with_any_crashes_equals_the_sequential_reference(plan in plan()) {
        quietly();
        let written = Written::default();
        let summary = plan.run(&written);
        let (expected, point) = plan.reference();
        prop_assert_eq!(told(&written), expected);
        prop_assert_eq!(summary.counts, point.counts);
        prop_assert_eq!(summary.outcome_hash, point.outcome_hash);
        prop_assert_eq!(summary.ending, Ending::Complete);
        let alone = Plan { threads: 1, crashes: Vec::new(), ..plan.clone() };
        prop_assert_eq!(summary.plan_hash, alone.run(&Written::default()).plan_hash);
    }

    #[test]
    fn a_cancel_at_any_item_gives_every_seq_one_outcome(plan in plan(), at in 0..40_u64) {
        quietly();
        let control = Control::new();
        let (asker, written) = (control.clone(), Written::default());
        let compute = move |script: &Script, context: &Context| {
            if context.seq() == at {
                asker.cancel();
            }
            script.outcome(script.act(usize::from(context.attempts())))
        };
        let run = Lanes::new(plan.config()).control(&control);
        let items = Items::of(plan.scripts.clone());
        let summary = run.run(items, compute, written.sink()).unwrap().summary;
        prop_assert_eq!(summary.counts.total(), plan.scripts.len() as u64);
        let (expected, _) = plan.reference();
        for (seq, (told, expected)) in told(&written).into_iter().zip(expected).enumerate() {
            // Done before the latch: as if undisturbed. After it: cancelled, or failed without a retry.
            let latched = told.0 == "cancel" || told.0 == "fail";
            prop_assert!(told == expected || latched, "seq {}: {:?}", seq, told);
        }
        if at >= plan.scripts.len() as u64 {
            prop_assert_eq!(summary.ending, Ending::Complete);
        }
    }
}

proptest! {
    // Fewer: another thread turns the clock as fast as it can, which is slow on a busy machine.
    #![proptest_config(ProptestConfig { cases: 80, ..ProptestConfig::default() })]

    #[test]
    fn leases_that_expire_at_any_time_change_no_outcome(
        troubles in prop::collection::vec(prop::collection::vec(
            prop_oneof![Just(Act::Transient), Just(Act::Hang)], 0..3), 1..12),
        threads in 1..4_usize,
    ) {
        let scripts: Vec<Script> = (1..).zip(troubles).map(|(number, mut acts)| {
            acts.push(if number % 3 == 0 { Act::Skip } else { Act::Succeed });
            Script { number, acts }
        }).collect();
        let plan = Plan {
            scripts, threads, max_claim: 2, window: 4, max_retries: 1_000, crashes: Vec::new(),
        };
        let (written, hash) = run_while_time_jumps(&plan);
        for ((outcome, _), script) in told(&written).iter().zip(&plan.scripts) {
            prop_assert_eq!(*outcome, if script.number % 3 == 0 { "skip" } else { "success" });
        }
        let mut calm = plan.clone();
        for script in &mut calm.scripts {
            script.acts.retain(|act| matches!(act, Act::Succeed | Act::Skip));
        }
        prop_assert_eq!(hash, calm.reference().1.outcome_hash);
    }
}

/// Runs a plan with leases while another thread moves the clock. Returns what was written and the hash.
fn run_while_time_jumps(plan: &Plan) -> (Written, u64) {
    let (clock, over) = (TestClock::new(), Arc::new(AtomicBool::new(false)));
    let (time, done) = (clock.clone(), Arc::clone(&over));
    let jumper = thread::spawn(move || {
        while !done.load(Ordering::SeqCst) {
            time.advance_ms(LEASE_MS / 2);
            thread::yield_now();
        }
    });
    let calls: Arc<Vec<AtomicU64>> =
        Arc::new(plan.scripts.iter().map(|_| AtomicU64::new(0)).collect());
    let time = clock.clone();
    let compute = move |script: &Script, context: &Context| {
        let place = usize::try_from(context.seq()).unwrap();
        let call = usize::try_from(calls[place].fetch_add(1, Ordering::SeqCst)).unwrap();
        let act = script.act(call);
        if act == Act::Hang {
            let until = time.now_ms() + 2 * LEASE_MS;
            while time.now_ms() < until {
                thread::yield_now();
            }
            // Late, it is dropped; if nobody took the lease yet, it is one more trouble.
            return Outcome::Fail(ErrorClass::RetryableTransient, "was silent".into());
        }
        script.outcome(act)
    };
    let written = Written::default();
    let config = Config { lease_ms: Some(LEASE_MS), ..plan.config() };
    let items = Items::of(plan.scripts.clone());
    let report = Lanes::new(config).clock(clock).run(items, compute, written.sink());
    over.store(true, Ordering::SeqCst);
    jumper.join().unwrap();
    (written, report.unwrap().summary.outcome_hash)
}
