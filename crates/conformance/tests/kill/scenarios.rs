//! What the crash test plays: lives that end at points, one after another. Every point ends a life by itself at its first
//! pass, and those that stand at every statement or transaction at passes all over a life; the rest are pairs.
//!
//! A scenario counts if all of its crashes came about. Which passes a life comes to depends on how its threads run, so a
//! point by itself that was not reached is tried again, somewhat earlier, and pairs are drawn until enough are complete.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard};

use super::killer::Random;
use super::points::is_everywhere;

/// Complete pairs, unless `SPRAG_PAIRS` says how many, or all.
const PAIRS: u32 = 500;
/// How many pairs may be drawn for one that is wanted, and a few more where few are wanted.
const DRAWS: u32 = 4;
const MORE_DRAWS: u32 = 20;
/// How often a point by itself is tried.
const TRIES: u32 = 20;
/// Passes of a point beyond this are like those before, but for points that are everywhere.
const MOST_PASSES: u64 = 24;
/// How many passes of a point that is everywhere are played by themselves.
const SPREAD: u64 = 20;
/// After how many scenarios it says how far it is.
const PROGRESS: u32 = 100;
/// Where the life before a single point ends, so that there is something to take over: in the middle.
pub(crate) const BEFORE: &str = "heart.before_handler:3";

/// A life for each point, given as `name:pass`.
pub(crate) type Scenario = Vec<String>;

/// How often each point is passed by a life that nothing ends, after one that was ended.
pub(crate) type Passes = BTreeMap<String, u64>;

/// One scenario that is played now.
pub(crate) struct Turn {
    pub(crate) scenario: Scenario,
    kind: Kind,
}

enum Kind {
    /// A point by itself, tried so often before.
    Single {
        tries: u32,
    },
    Pair,
}

/// All that are to be played. Lanes take them from here, and say what came of them.
pub(crate) struct Scenarios {
    points: Vec<String>,
    passes: Passes,
    part: Part,
    played: Mutex<Played>,
}

struct Played {
    random: Random,
    singles: VecDeque<(Scenario, u32)>,
    pairs: Pairs,
    turns: u32,
    /// Points by themselves that came about, and those that never did.
    met: u32,
    missed: Vec<Scenario>,
    /// Pairs that were begun, those of them that are not over, and those whose crashes both came about.
    drawn: u32,
    under_way: u32,
    complete: u32,
}

/// Which pairs are played.
enum Pairs {
    /// As many as it takes for so many complete ones.
    Drawn { wanted: u32 },
    /// These, once each.
    Listed(Vec<Scenario>),
}

impl Scenarios {
    /// As the environment says; `passes` is asked if any are to be drawn.
    pub(crate) fn chosen(points: Vec<String>, passes: impl FnOnce() -> Passes) -> Self {
        let (points, part) = (chosen(points), Part::chosen());
        if let Some(scenario) = again() {
            let played = Played::new(Random(0), Vec::new(), Pairs::Listed(vec![scenario]));
            return Self { points, passes: Passes::new(), part, played: Mutex::new(played) };
        }
        let (passes, random) = (passes(), Random(0xc4a5 + part.k as u64 - 1));
        let singles = part.of(singles(&points, &passes));
        let pairs = match std::env::var("SPRAG_PAIRS").as_deref() {
            Ok("all") => Pairs::Listed(part.of(all_pairs(&points, &passes))),
            wanted => {
                let pairs = wanted.map_or(PAIRS, |wanted| wanted.parse().unwrap());
                Pairs::Drawn { wanted: pairs.div_ceil(u32::try_from(part.n).unwrap()) }
            }
        };
        let played = Mutex::new(Played::new(random, singles, pairs));
        Self { points, passes, part, played }
    }

    fn played(&self) -> MutexGuard<'_, Played> {
        self.played.lock().unwrap()
    }

    /// The next one, if there is any that somebody else does not have.
    pub(crate) fn next(&self) -> Option<Turn> {
        let mut played = self.played();
        let turn = played.next(&self.points, &self.passes)?;
        played.turns += 1;
        if played.turns.is_multiple_of(PROGRESS) {
            println!("{} scenarios, {} pairs complete", played.turns, played.complete);
        }
        Some(turn)
    }

    /// A turn is over; `crashes` of its crashes came about.
    pub(crate) fn over(&self, turn: Turn, crashes: usize) {
        let is_complete = crashes == turn.scenario.len();
        self.played().over(turn, is_complete);
    }

    /// All came about that had to.
    pub(crate) fn expect_complete(&self) {
        let Played { missed, pairs, met, drawn, complete, turns, .. } = &*self.played();
        assert!(missed.is_empty(), "the process never ended at the last point of {missed:?}");
        if let Pairs::Drawn { wanted } = pairs {
            assert!(
                complete >= wanted,
                "{complete} of {wanted} pairs complete, {drawn} were drawn"
            );
        }
        println!(
            "{} crash points (part {} of {}), {turns} scenarios, all recovered: {met} of one point, each of which came \
             about, and {complete} pairs of which both did, of {drawn} drawn",
            self.points.len(),
            self.part.k,
            self.part.n,
        );
    }
}

impl Played {
    fn new(random: Random, singles: Vec<Scenario>, pairs: Pairs) -> Self {
        let singles = singles.into_iter().map(|scenario| (scenario, 0)).collect();
        let (missed, met, turns, drawn, under_way, complete) = (Vec::new(), 0, 0, 0, 0, 0);
        Self { random, singles, pairs, turns, met, missed, drawn, under_way, complete }
    }
}

impl Played {
    /// Points by themselves come first: the shortest list of what is wrong.
    fn next(&mut self, points: &[String], passes: &Passes) -> Option<Turn> {
        if let Some((scenario, tries)) = self.singles.pop_front() {
            return Some(Turn { scenario, kind: Kind::Single { tries } });
        }
        let scenario = match &mut self.pairs {
            Pairs::Listed(pairs) => pairs.pop()?,
            Pairs::Drawn { wanted } => {
                let is_enough = self.complete + self.under_way >= *wanted;
                let is_too_much = self.drawn >= DRAWS * *wanted + MORE_DRAWS;
                if is_enough || is_too_much {
                    return None;
                }
                let mut pick = |share| {
                    let n = usize::try_from(self.random.below(points.len() as u64)).unwrap();
                    at(&points[n], passes, &mut self.random, share)
                };
                vec![pick(1), pick(2)]
            }
        };
        (self.drawn, self.under_way) = (self.drawn + 1, self.under_way + 1);
        Some(Turn { scenario, kind: Kind::Pair })
    }

    fn over(&mut self, turn: Turn, is_complete: bool) {
        match turn.kind {
            Kind::Single { .. } if is_complete => self.met += 1,
            Kind::Single { tries } if tries + 1 < TRIES => {
                self.singles.push_back((earlier(turn.scenario), tries + 1));
            }
            Kind::Single { .. } => self.missed.push(turn.scenario),
            Kind::Pair => {
                self.under_way -= 1;
                self.complete += u32::from(is_complete);
            }
        }
    }
}

/// Every point at its first pass, and those that are everywhere at passes spread over a life.
fn singles(points: &[String], passes: &Passes) -> Vec<Scenario> {
    let mut random = Random(0x51e);
    let behind = |point: String| vec![BEFORE.to_owned(), point];
    let mut all: Vec<_> = points.iter().map(|point| behind(format!("{point}:1"))).collect();
    for point in points.iter().filter(|point| is_everywhere(point)) {
        let most = passes.get(point).copied().unwrap_or(1);
        for n in 0..SPREAD.min(most) {
            let (first, end) = (most * n / SPREAD.min(most), most * (n + 1) / SPREAD.min(most));
            all.push(behind(format!("{point}:{}", 1 + first + random.below(end - first))));
        }
    }
    all
}

/// The same with its last point at an earlier pass.
fn earlier(mut scenario: Scenario) -> Scenario {
    let (name, pass) = scenario.pop().and_then(|last| last.split_once(':').map(own)).unwrap();
    scenario.push(format!("{name}:{}", (pass * 4 / 5).max(1)));
    scenario
}

fn own((name, pass): (&str, &str)) -> (String, u64) {
    (name.to_owned(), pass.parse().unwrap())
}

/// Any pass of a point that a life comes to which has an n-th of it all left to do. The second life of a pair has about half.
fn at(point: &String, passes: &Passes, random: &mut Random, share: u64) -> String {
    let most = passes.get(point).map_or(1, |passes| passes.div_ceil(share));
    let most = if is_everywhere(point) { most } else { most.min(MOST_PASSES) };
    format!("{point}:{}", 1 + random.below(most))
}

/// Without order, so that a part of them has something of every point. Drawn alike for all parts of one whole.
fn all_pairs(points: &[String], passes: &Passes) -> Vec<Scenario> {
    let mut random = Random(0xa11);
    let mut all = Vec::new();
    for first in points {
        let mut pair =
            |second| vec![at(first, passes, &mut random, 1), at(second, passes, &mut random, 2)];
        all.extend(points.iter().map(&mut pair));
    }
    for n in (1..all.len()).rev() {
        let other = random.below(n as u64 + 1);
        all.swap(n, usize::try_from(other).unwrap());
    }
    all
}

/// The k-th of n parts of the scenarios, so that a run of many hours can be made in pieces.
struct Part {
    k: usize,
    n: usize,
}

impl Part {
    /// As `SPRAG_PART` says, written `k/n`; else the whole.
    fn chosen() -> Self {
        let Ok(text) = std::env::var("SPRAG_PART") else { return Self { k: 1, n: 1 } };
        let numbers =
            text.split_once('/').and_then(|(k, n)| Some((k.parse().ok()?, n.parse().ok()?)));
        let (k, n) = numbers.filter(|(k, n)| (1..=*n).contains(k)).unwrap_or_else(|| {
            panic!("SPRAG_PART is {text}, and should be like 3/12: the third part of twelve")
        });
        Self { k, n }
    }

    fn of(&self, scenarios: Vec<Scenario>) -> Vec<Scenario> {
        scenarios.into_iter().skip(self.k - 1).step_by(self.n).collect()
    }
}

/// The one scenario that `SPRAG_SCENARIO` names, written as a failure names it: points with their passes and commas between.
/// Which passes are drawn depends on what a life has come by, so that a seed alone does not bring a scenario back.
fn again() -> Option<Scenario> {
    let text = std::env::var("SPRAG_SCENARIO").ok()?;
    Some(text.split(',').map(|point| point.trim().to_owned()).collect())
}

/// Those with a part of their name in `SPRAG_POINTS`, for whoever looks for a fault; all if nothing is said.
fn chosen(mut points: Vec<String>) -> Vec<String> {
    if let Ok(part) = std::env::var("SPRAG_POINTS") {
        points.retain(|point| point.contains(&part));
    }
    points
}
