//! Real processes, really killed. This program is both sides: run by the test command it is the killer,
//! and it starts itself again as the victim, an engine under load. Words after `--` choose the parts whose
//! names contain one of them.

#![allow(clippy::unwrap_used)]

mod batches;
mod crashes;
mod effects;
mod killer;
mod left;
mod old;
mod outage;
mod owner;
mod pause;
mod points;
mod poison;
mod requests;
mod scenarios;
mod seam;
mod victim;

use std::time::Instant;

/// Each part with its name, in the order in which they run.
const PARTS: &[(&str, fn())] = &[
    ("points_are_listed", points::expect_complete),
    ("crashes_on_sqlite", crashes::on_sqlite),
    ("crashes_on_postgres", crashes::on_postgres),
    ("kills_on_sqlite", killer::on_sqlite),
    ("kills_on_postgres", killer::on_postgres),
    ("one_process_owns_a_file", owner::one_process_owns_a_file),
    ("pauses_of_an_engine", pause::of_an_engine),
    ("outages_of_the_server", outage::of_the_server),
    ("poison_on_sqlite", poison::on_sqlite),
    ("poison_on_postgres", poison::on_postgres),
    ("batch_killed_on_sqlite", batches::killed_on_sqlite),
    ("batch_poisoned_on_sqlite", batches::poisoned_on_sqlite),
];

fn main() {
    if let Ok(folder) = std::env::var("SPRAG_VICTIM") {
        victim::run(folder.as_ref());
        return;
    }
    // Flags are meant for the harness that this program does not have.
    let words: Vec<String> =
        std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let chosen =
        |name: &str| words.is_empty() || words.iter().any(|word| name.contains(word.as_str()));
    let mut passed = 0;
    for (name, part) in PARTS.iter().filter(|(name, _)| chosen(name)) {
        let begun = Instant::now();
        part();
        passed += 1;
        println!("{name}: passed in {:.1} s", begun.elapsed().as_secs_f64());
    }
    println!("{passed} passed, 0 failed");
}
