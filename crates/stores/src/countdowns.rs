//! The part of the audit that needs the graph: every parked row waits for as many others as are not over, and whoever has
//! begun, or could, for none. A store hands in the rows of graphs that go on, job by job; what each waits for is
//! taken from its protocol.

use std::collections::HashMap;

use sprag_engine::graph::{Graph, Kind, ScopeKind, place};
use sprag_engine::ids::{JobId, Place};
use sprag_engine::store::{Check, Violation};

use crate::protocols::Protocols;

pub(crate) const NAME: &str = "28_countdown_is_not_the_unfinished_predecessors";
pub(crate) const SQL: &str =
    include_str!("../sql/audit/28_countdown_is_not_the_unfinished_predecessors.sql");

/// One place of a graph.
#[derive(Clone, Copy)]
pub(crate) struct Spot {
    pub(crate) place: Place,
    pub(crate) countdown: u32,
    pub(crate) is_over: bool,
    /// It has begun, or is in the queue, or waits for its time.
    pub(crate) has_begun: bool,
}

/// The check, as far as rows were handed in.
pub(crate) struct Countdowns<'a> {
    protocols: &'a mut Protocols,
    /// The job whose rows come, and its protocol.
    job: Option<(JobId, String)>,
    spots: Vec<Spot>,
    violations: Vec<Violation>,
}

impl<'a> Countdowns<'a> {
    pub(crate) fn by(protocols: &'a mut Protocols) -> Self {
        Self { protocols, job: None, spots: Vec::new(), violations: Vec::new() }
    }

    /// The next row; those of a job come one after the other.
    pub(crate) fn take(&mut self, job_id: JobId, protocol_id: &str, spot: Spot) {
        if self.job.as_ref().is_none_or(|(of, _)| *of != job_id) {
            self.settle();
            self.job = Some((job_id, protocol_id.to_owned()));
        }
        self.spots.push(spot);
    }

    pub(crate) fn end(mut self) -> Check {
        self.settle();
        Check { name: NAME.to_owned(), violations: self.violations }
    }

    /// All rows of a job are there.
    fn settle(&mut self) {
        let spots = std::mem::take(&mut self.spots);
        let Some((job_id, protocol_id)) = self.job.take() else { return };
        match self.protocols.graph(&protocol_id) {
            Ok(graph) => {
                let wrong = wrong(graph, &spots).into_iter();
                self.violations.extend(wrong.map(|detail| Violation::of_job(job_id, detail)));
            }
            Err(why) => self.violations.push(Violation::of_job(job_id, why)),
        }
    }
}

/// What is wrong with the rows of a job.
fn wrong(graph: &Graph, spots: &[Spot]) -> Vec<String> {
    let is_known = |spot: &&Spot| (spot.place.step_index as usize) < graph.nodes().len();
    let rows = Rows::of(graph, spots.iter().filter(is_known));
    let tell = |spot: &Spot| {
        let why =
            if is_known(&spot) { rows.wrong(spot)? } else { "no node of its protocol".into() };
        let Place { step_index, branch, turn } = spot.place;
        let (branch, countdown) = (place::show(branch), spot.countdown);
        Some(format!(
            "step {step_index}, branch {branch:?}, turn {turn}, countdown {countdown}: {why}"
        ))
    };
    spots.iter().filter_map(tell).collect()
}

/// The rows of one job, by what is asked of them.
struct Rows<'a> {
    graph: &'a Graph,
    spots: HashMap<Place, Spot>,
    /// The newest turn of each cycle: its closer and its branch.
    last_turns: HashMap<(u32, u64), u32>,
    /// How many branches of a fan-out are not over, by the place of its closer.
    open_branches: HashMap<Place, u32>,
}

impl<'a> Rows<'a> {
    fn of<'s>(graph: &'a Graph, spots: impl Iterator<Item = &'s Spot>) -> Self {
        let spots: HashMap<Place, Spot> = spots.map(|spot| (spot.place, *spot)).collect();
        let (last_turns, open_branches) = (HashMap::new(), HashMap::new());
        let mut this = Self { graph, spots, last_turns, open_branches };
        for place in this.spots.keys() {
            if let Kind::Loop(_) = graph.node(place.step_index).kind {
                let last = this.last_turns.entry((place.step_index, place.branch)).or_default();
                *last = place.turn.max(*last);
            }
        }
        let mut open: HashMap<Place, u32> = HashMap::new();
        for place in this.spots.keys() {
            let scope = graph.scope_of(place.step_index);
            let ScopeKind::Branches { gather, end, .. } = scope.kind else { continue };
            // Every branch is born with this one; the one that ends it may come later: the closer of what is opened
            // within.
            if scope.nodes[0] == place.step_index {
                let branch = place::around(place.branch, 1);
                let closer = Place { step_index: gather, branch, turn: place.turn };
                *open.entry(closer).or_default() +=
                    this.is_open(Place { step_index: end, ..*place });
            }
        }
        this.open_branches = open;
        this
    }

    /// What is wrong with a row, if anything is.
    fn wrong(&self, spot: &Spot) -> Option<String> {
        let unfinished = self.unfinished(spot.place);
        match (spot.countdown, spot.has_begun) {
            (0, true) if unfinished > 0 => {
                Some(format!("it has begun, and {unfinished} before it are not over"))
            }
            (0, false) if unfinished == 0 => Some("all before it are over".to_owned()),
            // Only who waits for one other is born without a countdown and not begun.
            (0, false) if self.graph.node(spot.place.step_index).needs.len() != 1 => {
                Some(format!("nothing counts it down, and {unfinished} before it are not over"))
            }
            (1.., _) if unfinished != spot.countdown => {
                Some(format!("{unfinished} before it are not over"))
            }
            (_, _) => None,
        }
    }

    /// How many of those that a row waits for, or has waited for, are not over.
    fn unfinished(&self, at: Place) -> u32 {
        let node = self.graph.node(at.step_index);
        let opener = self.opener(at).map_or(0, |opener| u32::from(!self.has_ended(opener)));
        let others = if let Kind::Loop(closer) = &node.kind {
            self.end_of_turn(closer.scope, at).map_or(0, |end| self.is_open(end))
        } else if let Kind::Gather { .. } = node.kind {
            self.open_branches.get(&at).copied().unwrap_or_default()
        } else if node.needs.is_empty() {
            self.ahead_in_line(at).map_or(0, |end| self.is_open(end))
        } else {
            node.needs.iter().map(|need| self.is_open(Place { step_index: *need, ..at })).sum()
        };
        opener + others
    }

    /// The end of the turn that a closer is for. A cycle that was skipped, or has failed before its first turn, has none.
    fn end_of_turn(&self, scope: usize, closer: Place) -> Option<Place> {
        let scope = &self.graph.scopes()[scope];
        let ScopeKind::Turns { end, .. } = scope.kind else { return None };
        let is_opened = self.spots.contains_key(&Place { step_index: scope.nodes[0], ..closer });
        is_opened.then_some(Place { step_index: end, ..closer })
    }

    /// Who has brought the row of a closer, or of a node that waits for no other of its scope.
    fn opener(&self, at: Place) -> Option<Place> {
        let node = self.graph.node(at.step_index);
        let of_turn = |begin: u32, closer: u32| match at.turn.checked_sub(1) {
            Some(turn) => Place { step_index: closer, turn, ..at },
            None => Place { step_index: begin, ..at },
        };
        match (&node.kind, self.graph.scope_of(at.step_index).kind) {
            (Kind::Gather { fan }, _) => Some(Place { step_index: *fan, ..at }),
            (Kind::Loop(closer), _) => match self.graph.scopes()[closer.scope].kind {
                ScopeKind::Turns { begin, closer, .. } => Some(of_turn(begin, closer)),
                ScopeKind::Job | ScopeKind::Branches { .. } => None,
            },
            (_, ScopeKind::Branches { fan, .. }) if node.needs.is_empty() => {
                let branch = place::around(at.branch, 1);
                Some(Place { step_index: fan, branch, ..at })
            }
            (_, ScopeKind::Turns { begin, closer, .. }) if node.needs.is_empty() => {
                Some(of_turn(begin, closer))
            }
            (_, ScopeKind::Job | ScopeKind::Branches { .. } | ScopeKind::Turns { .. }) => None,
        }
    }

    /// The end of the branch whose room the first nodes of this one wait for.
    fn ahead_in_line(&self, at: Place) -> Option<Place> {
        let ScopeKind::Branches { fan, end, .. } = self.graph.scope_of(at.step_index).kind else {
            return None;
        };
        let Kind::Fan(opener) = &self.graph.node(fan).kind else { return None };
        let index = place::index(at.branch)?.checked_sub(opener.max_parallel?)?;
        let branch = place::branch(place::around(at.branch, 1), index);
        Some(Place { step_index: end, branch, turn: at.turn })
    }

    /// One if a place is not over; a cycle is if its last turn is.
    fn is_open(&self, place: Place) -> u32 {
        let last = self.last_turns.get(&(place.step_index, place.branch));
        let place = Place { turn: last.copied().unwrap_or(place.turn), ..place };
        u32::from(!self.has_ended(place))
    }

    /// Whether this very row is over.
    fn has_ended(&self, place: Place) -> bool {
        self.spots.get(&place).is_some_and(|spot| spot.is_over)
    }
}
