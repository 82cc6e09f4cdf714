//! The part of the audit that needs the graph: every parked row waits for as many others as are not over.
//! A store hands in the rows of graphs that go on; what each waits for is taken from its protocol.

use std::collections::HashMap;

use sprag_engine::graph::{Graph, Kind, ScopeKind, place};
use sprag_engine::ids::{JobId, Place};
use sprag_engine::protocol::Protocol;
use sprag_engine::store::{Check, Violation};

pub(crate) const NAME: &str = "28_countdown_is_not_the_unfinished_predecessors";
pub(crate) const SQL: &str =
    include_str!("../sql/audit/28_countdown_is_not_the_unfinished_predecessors.sql");

/// One place of a graph.
pub(crate) struct Spot {
    pub(crate) job_id: JobId,
    pub(crate) definition: String,
    pub(crate) place: Place,
    pub(crate) countdown: u32,
    pub(crate) is_over: bool,
}

/// The places of one job, and whether each is over.
type Places = HashMap<Place, bool>;

pub(crate) fn check(spots: &[Spot]) -> Check {
    let mut graphs: HashMap<&str, Option<Graph>> = HashMap::new();
    let mut jobs: HashMap<JobId, Places> = HashMap::new();
    for spot in spots {
        let compile = || Protocol::read(&spot.definition).and_then(|read| read.graph()).ok();
        graphs.entry(&spot.definition).or_insert_with(compile);
        jobs.entry(spot.job_id).or_default().insert(spot.place, spot.is_over);
    }
    let wrong = spots.iter().filter_map(|spot| {
        let expected = match &graphs[spot.definition.as_str()] {
            Some(graph) if spot.countdown > 0 => unfinished(graph, spot.place, &jobs[&spot.job_id]),
            // A place that waits for nobody any more was counted down by all of them.
            Some(_) => return None,
            None => return Some(violation(spot, "a protocol that cannot be read")),
        };
        let told = format!("{expected} before it are not over");
        (expected != spot.countdown).then(|| violation(spot, &told))
    });
    Check { name: NAME.to_owned(), violations: wrong.collect() }
}

fn violation(spot: &Spot, why: &str) -> Violation {
    let Place { step_index, branch, .. } = spot.place;
    let (branch, countdown) = (place::show(branch), spot.countdown);
    let detail = format!("step {step_index}, branch {branch:?}, countdown {countdown}: {why}");
    Violation::of_job(spot.job_id, detail)
}

/// How many of those that a parked row waits for are not over.
fn unfinished(graph: &Graph, at: Place, places: &Places) -> u32 {
    let node = graph.node(at.step_index);
    let is_open = |place: Place| u32::from(!is_over(graph, place, places));
    if let Kind::Loop(closer) = &node.kind {
        let ScopeKind::Turns { end, .. } = graph.scopes()[closer.scope].kind else { return 0 };
        return is_open(Place { step_index: end, ..at });
    }
    if let Kind::Gather { fan } = node.kind {
        let (first, end) = ends_of(graph, fan);
        let is_branch = |place: &&Place| {
            let around = place::around(place.branch, 1);
            place.step_index == first && around == at.branch && place.turn == at.turn
        };
        let end = |place: &Place| is_open(Place { step_index: end, ..*place });
        return places.keys().filter(is_branch).map(end).sum();
    }
    if node.needs.is_empty() {
        return ahead_in_line(graph, at).map_or(0, is_open);
    }
    node.needs.iter().map(|need| is_open(Place { step_index: *need, ..at })).sum()
}

/// Whether a place is over; a cycle is if its last turn is.
fn is_over(graph: &Graph, place: Place, places: &Places) -> bool {
    let is_turn =
        |other: &&Place| other.step_index == place.step_index && other.branch == place.branch;
    let seen = match graph.node(place.step_index).kind {
        Kind::Loop(_) => places.keys().filter(is_turn).max_by_key(|other| other.turn),
        _ => Some(&place),
    };
    seen.and_then(|place| places.get(place)).copied().unwrap_or(false)
}

/// The end of the branch whose room the first nodes of this one wait for.
fn ahead_in_line(graph: &Graph, at: Place) -> Option<Place> {
    let ScopeKind::Branches { fan, end, .. } = graph.scope_of(at.step_index).kind else {
        return None;
    };
    let Kind::Fan(opener) = &graph.node(fan).kind else { return None };
    let index = place::index(at.branch)?.checked_sub(opener.max_parallel?)?;
    let branch = place::branch(place::around(at.branch, 1), index);
    Some(Place { step_index: end, branch, turn: at.turn })
}

/// A node that every branch of a fan-out is born with, and the one that ends it, which may come later: the closer
/// of what is opened within.
fn ends_of(graph: &Graph, fan: u32) -> (u32, u32) {
    let Kind::Fan(opener) = &graph.node(fan).kind else { unreachable!("it opens branches") };
    let scope = &graph.scopes()[opener.scope];
    match scope.kind {
        ScopeKind::Branches { end, .. } | ScopeKind::Turns { end, .. } => (scope.nodes[0], end),
        ScopeKind::Job => unreachable!("nobody opens the job"),
    }
}
