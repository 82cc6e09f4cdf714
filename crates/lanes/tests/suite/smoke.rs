//! One run from end to end on several thread counts.

use sprag_lanes::{Batch, Config, Context, Items, Lanes, Outcome, Summary, Verdict};

fn run(threads: usize) -> Summary {
    let mut next = 0;
    let sink = move |batch: &mut Batch<u64>| {
        for (seq, envelope) in batch.iter() {
            assert_eq!(seq, next);
            assert_eq!(envelope.verdict, Verdict::Success(&(seq * 3)));
            next += 1;
        }
        Ok(())
    };
    let config = Config { threads, ..Config::default() };
    let compute = |number: &u64, _: &Context| Outcome::Success(number * 3);
    Lanes::new(config).run(Items::of(0..100_000), compute, sink).unwrap().summary
}

#[test]
fn the_summary_is_the_same_for_any_number_of_threads() {
    let alone = run(1);
    assert_eq!(alone.counts.success, 100_000);
    assert_eq!(run(2), alone);
    assert_eq!(run(7), alone);
}
