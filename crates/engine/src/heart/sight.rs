//! Sight: an activation of a graph looks at what came before it. What it is handed is found in one read per group.
//! Whether it runs, is skipped or fails is decided beside the heart: with its group if that is quick, else on the
//! bench, so that a group is not held up by one of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use sprag_kernel::Code;

use super::phase::Refused;
use super::{Done, Heart, Seeing};
use crate::engine::Pinned;
use crate::graph::sight::Finding;
use crate::ids::{AttemptKey, JobId, Place};
use crate::plan;
use crate::store::{Answer, AttemptError, Ended, Held, Store, StoreError};

/// How long a group is decided on: what is left then goes on the bench.
const QUICK: Duration = Duration::from_millis(50);

/// What a group has found: each activation with its inputs, and what becomes of it.
pub(super) type Found = Vec<Look>;

/// What an activation has found.
pub(super) enum Look {
    /// What becomes of it.
    Decided(Seeing, Finding),
    /// That may take a while to say.
    Open(Judging),
}

/// An activation that has seen what it wanted to: the ends of other nodes, by their index.
pub(super) struct Judging {
    pub(super) seeing: Seeing,
    ends: BTreeMap<u32, Ended>,
}

impl<S: Store> Heart<S> {
    /// Looks at what the claimed activations of graphs want to see.
    pub(super) fn look_around(&mut self) {
        let Some(group) = self.sights.next_group() else { return };
        let pinned: Vec<Arc<Pinned>> =
            group.iter().map(|seeing| self.pinned(&seeing.held)).collect();
        let store = self.store.clone();
        self.calls.spawn(async move {
            let answer = found(store.as_ref(), group.clone(), pinned).await;
            Done::Seen(group, answer)
        });
    }

    pub(super) fn seen(
        &mut self,
        group: Vec<Seeing>,
        answer: Answer<Found>,
    ) -> Result<(), StoreError> {
        let found = match answer {
            Ok(found) => found,
            Err(StoreError::Fenced) => return Err(StoreError::Fenced),
            Err(error @ StoreError::Unavailable(_)) => {
                self.sights.again(group);
                return self.heard(Err::<(), _>(error)).map(|_| ());
            }
            Err(StoreError::Poison(reason)) => {
                if let Refused::Culprit(Seeing { held, pull }) = self.sights.refused(group) {
                    self.vacate(&held, pull);
                    self.fail_activation(held.key, Code::MessagePoison, reason);
                }
                return Ok(());
            }
            Err(StoreError::Refused(refusal)) => {
                if let Refused::Culprit(Seeing { held, pull }) = self.sights.refused(group) {
                    self.vacate(&held, pull);
                    self.fail_activation(held.key, Code::MessagePoison, refusal.to_string());
                }
                return Ok(());
            }
        };
        self.sights.done();
        for look in found {
            match look {
                Look::Decided(seeing, finding) => self.go_on(seeing, finding),
                Look::Open(judging) => self.bench.push(judging),
            }
        }
        Ok(())
    }

    /// Decides on those that may take a while, as many at a time as there is room for.
    pub(super) fn judge(&mut self) {
        while let Some(Judging { seeing, ends }) = self.bench.next() {
            let (pinned, held) = (self.pinned(&seeing.held), seeing.held.clone());
            let decide = move || pinned.graph.finding(&held, &ends);
            self.calls.spawn(async move {
                let finding = tokio::task::spawn_blocking(decide).await.unwrap_or_else(|error| {
                    let reason = format!("an expression ended its task: {error}");
                    Finding::Fail(Code::MessagePoison, reason)
                });
                Done::Judged(Box::new(seeing), finding)
            });
        }
    }

    pub(super) fn judged(&mut self, seeing: Seeing, finding: Finding) {
        self.bench.done();
        self.go_on(seeing, finding);
    }

    fn go_on(&mut self, Seeing { held, pull }: Seeing, finding: Finding) {
        match finding {
            Finding::Run => self.run_or_wait(held, pull),
            Finding::Child(payload) => self.seed_child(Seeing { held, pull }, payload),
            Finding::Skip(error) => {
                self.vacate(&held, pull);
                self.skip_activation(held.key, error);
            }
            Finding::Fail(code, reason) => {
                self.vacate(&held, pull);
                self.fail_activation(held.key, code, reason);
            }
        }
    }

    /// An activation that is not to run: Leg1 ends it as skipped.
    fn skip_activation(&mut self, key: AttemptKey, error: Option<AttemptError>) {
        let (store, engine) = (self.store.clone(), self.engine);
        self.calls.spawn(async move {
            let decide = Box::new(move |held: &Held, _now| plan::skip_in_leg1(held, error.clone()));
            let answer = store.amend(engine, key.job_id, Some(key.place()), decide).await;
            Done::Entered(answer.map(|found| found.and_then(Result::ok).flatten()))
        });
    }
}

/// Reads what a group wants to see, each row once, and lets each decide.
async fn found<S: Store>(store: &S, group: Vec<Seeing>, pinned: Vec<Arc<Pinned>>) -> Answer<Found> {
    let wanted: Vec<Vec<Place>> = group
        .iter()
        .zip(&pinned)
        .map(|(seeing, pinned)| pinned.graph.wanted(seeing.held.key.place()))
        .collect();
    let rows: BTreeSet<(JobId, Place)> = group
        .iter()
        .zip(&wanted)
        .flat_map(|(seeing, places)| places.iter().map(|place| (seeing.held.key.job_id, *place)))
        .collect();
    let rows: Vec<(JobId, Place)> = rows.into_iter().collect();
    let ends = if rows.is_empty() { Vec::new() } else { store.ends(rows.clone()).await? };
    let ends: BTreeMap<(JobId, Place), Ended> =
        rows.into_iter().zip(ends).filter_map(|(row, end)| Some((row, end?))).collect();
    let decide = move || {
        let begun = Instant::now();
        let each = group.into_iter().zip(wanted).zip(pinned);
        each.map(|((seeing, wanted), pinned)| {
            let judging = seen(seeing, &wanted, &ends);
            let is_quick = pinned.graph.decides_quickly(judging.seeing.held.key.step_index);
            if !is_quick || begun.elapsed() > QUICK {
                return Look::Open(judging);
            }
            let finding = pinned.graph.finding(&judging.seeing.held, &judging.ends);
            Look::Decided(judging.seeing, finding)
        })
        .collect()
    };
    tokio::task::spawn_blocking(decide)
        .await
        .map_err(|error| StoreError::Poison(format!("an expression ended its task: {error}")))
}

fn seen(mut seeing: Seeing, wanted: &[Place], all: &BTreeMap<(JobId, Place), Ended>) -> Judging {
    let mut ends = BTreeMap::new();
    let held = &mut seeing.held;
    for place in wanted {
        if let Some(end) = all.get(&(held.key.job_id, *place)) {
            held.inputs.extend(end.output.clone().map(|output| (place.step_index, output)));
            ends.insert(place.step_index, end.clone());
        }
    }
    Judging { seeing, ends }
}
