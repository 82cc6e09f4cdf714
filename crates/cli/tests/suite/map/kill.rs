//! Killed with SIGKILL, again and again, at random times and at every write point: the output ends up
//! byte for byte as if nothing had happened, and nothing committed runs again.

use std::collections::HashMap;
use std::fs;
use std::process::Child;
use std::time::Duration;

use super::{Bench, said};

/// A repeatable stream of numbers.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Follows one run over all its kills.
struct Watch {
    bench: Bench,
    /// Notes and cursor when the last process was found dead.
    seen: usize,
    cursor: u64,
    kills: u32,
}

impl Watch {
    fn new(items: u64) -> Self {
        Self { bench: Bench::new(items), seen: 0, cursor: 0, kills: 0 }
    }

    /// Looks at what a process left; true if it came to its end.
    fn look(&mut self, child: Child) -> bool {
        let said = said(child);
        let killed = said.code == -1;
        assert!(killed || said.stderr.contains("ITEMS_FAILED"), "{} {}", said.code, said.stderr);
        self.check_repeats();
        if killed {
            self.kills += 1;
            if self.bench.path("run.journal").exists() {
                self.cursor = self.bench.status()["cursor"].as_u64().unwrap();
            }
            self.seen = self.bench.notes().len();
        }
        !killed
    }

    /// Nothing that was committed when the last process died was begun again.
    fn check_repeats(&self) {
        for (begins, item) in self.bench.notes().into_iter().skip(self.seen) {
            assert!(!begins || item > self.cursor, "item {item} ran again, cursor {}", self.cursor);
        }
    }

    /// Nothing lost, repeated, torn or run twice at the same time.
    fn check_end(&self) {
        assert_eq!(self.bench.out(), self.bench.expected());
        let mut running: HashMap<u64, bool> = HashMap::new();
        for (begins, item) in self.bench.notes() {
            let before = running.insert(item, begins);
            assert!(!(begins && before == Some(true)), "item {item} ran beside itself");
        }
        assert_eq!(running.len() as u64, self.bench.items);
        let status = self.bench.status();
        assert_eq!(status["state"], "complete");
        assert_eq!(status["success"], self.bench.items - self.bench.items / 7);
        assert_eq!(status["fail"], self.bench.items / 7);
        assert!(!self.bench.path("run.journal.commands").exists());
    }
}

fn options(sync: &'static str) -> [&'static str; 3] {
    ["-j4", "--sync", sync]
}

/// One commit after the other, so that every run passes the same write points.
const STEADY: [&str; 3] = ["-j1", "--sync", "always"];

#[test]
fn killed_at_random_times_the_output_is_that_of_an_undisturbed_run() {
    let mut dice = Dice(11);
    let mut kills = 0;
    while kills < 200 {
        let mut watch = Watch::new(60);
        let sync = match dice.roll(3) {
            0 => "batch",
            1 => "always",
            _ => "none",
        };
        loop {
            let mut child = watch.bench.command(&options(sync)).spawn().unwrap();
            std::thread::sleep(Duration::from_micros(2_000 + dice.roll(70_000)));
            child.kill().unwrap();
            if watch.look(child) {
                break;
            }
        }
        watch.check_end();
        kills += watch.kills;
    }
}

/// One run per write point: killed there (if `torn`, after half of the write), then killed at the same
/// point of the resume, then left alone.
fn killed_at_every_write_point(options: [&str; 3], torn: bool) -> u32 {
    let mut kills = 0;
    for point in 1.. {
        let mut watch = Watch::new(16);
        for _ in 0..2 {
            let mut command = watch.bench.command(&options);
            command.env("SPRAG_FAULT_KILL_AT", point.to_string());
            if torn {
                command.env("SPRAG_FAULT_TORN", "1");
            }
            watch.look(command.spawn().unwrap());
        }
        if watch.kills == 0 {
            watch.check_end();
            return kills;
        }
        assert!(watch.look(watch.bench.command(&options).spawn().unwrap()));
        watch.check_end();
        kills += watch.kills;
    }
    unreachable!("a run has an end")
}

#[test]
fn killed_at_every_write_point_before_the_change() {
    assert!(killed_at_every_write_point(STEADY, false) >= 80);
}

#[test]
fn killed_at_every_write_point_in_the_middle_of_the_write() {
    assert!(killed_at_every_write_point(STEADY, true) >= 80);
}

#[test]
fn killed_at_every_write_point_of_grouped_commits() {
    assert!(killed_at_every_write_point(options("batch"), true) >= 20);
}

#[test]
fn a_run_passes_as_many_write_points_as_it_says() {
    let bench = Bench::new(15);
    let mut command = bench.command(&STEADY);
    said(command.env("SPRAG_FAULT_COUNT", bench.path("count")).spawn().unwrap());
    let count: u64 = fs::read_to_string(bench.path("count")).unwrap().parse().unwrap();
    assert!(count >= 40, "the hook is compiled in and every change passes it: {count}");
}
