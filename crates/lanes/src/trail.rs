//! The entries between dispatch and commit, in order: what the plan hash at the cursor is made of.
//!
//! Dispatch reads ahead of the cursor, but the hash that a resumed run checks must end at the cursor.
//! So dispatch leaves a trail of what it read and the commit lane follows it. Equal neighbours are
//! one step, content is reduced to a digest, so the trail of uniform entries has constant size.

use std::collections::VecDeque;

use sprag_kernel::planner::{Entry, PlanHasher};
use xxhash_rust::xxh3::xxh3_128;

use crate::sync::{Mutex, lock};

/// What is left of an item's content.
pub(crate) type Fingerprint = [u8; 16];

/// What the plan hash needs of some equal entries.
#[derive(Clone, Copy)]
struct Step {
    entry: Entry,
    content: Option<Fingerprint>,
    count: u64,
}

/// A queue from dispatch to the commit lane.
#[derive(Default)]
pub(crate) struct Trail(Mutex<VecDeque<Step>>);

/// Steps that one claim adds; kept by dispatch and used again.
#[derive(Default)]
pub(crate) struct Steps(VecDeque<Step>);

impl Steps {
    /// Notes the next entry.
    #[inline]
    pub(crate) fn note(&mut self, entry: Entry, content: Option<Fingerprint>) {
        match content {
            None => self.note_equal(entry, 1),
            content => self.0.push_back(Step { entry, content, count: 1 }),
        }
    }

    /// Notes some entries without content.
    #[inline]
    pub(crate) fn note_equal(&mut self, entry: Entry, count: u64) {
        match self.0.back_mut() {
            Some(last) if last.content.is_none() && last.entry == entry => last.count += count,
            Some(_) | None => self.0.push_back(Step { entry, content: None, count }),
        }
    }
}

impl Trail {
    /// Appends what a claim noted. Called before the claim can be committed.
    pub(crate) fn append(&self, steps: &mut Steps) {
        if !steps.0.is_empty() {
            lock(&self.0).append(&mut steps.0);
        }
    }

    /// Mixes the next `count` entries into the hash.
    pub(crate) fn follow(&self, hasher: &mut PlanHasher, mut count: u64) {
        let mut steps = lock(&self.0);
        while count > 0 {
            let step = steps.front_mut().expect("every committed seq has left its trail");
            let taken = step.count.min(count);
            mix(hasher, *step, taken);
            step.count -= taken;
            count -= taken;
            if step.count == 0 {
                steps.pop_front();
            }
        }
    }
}

/// Mixes one entry into the hash of an input, as a run does that reads it.
pub fn hash_entry(hasher: &mut PlanHasher, entry: Entry, content: Option<&[u8]>) {
    mix(hasher, Step { entry, content: content.map(fingerprint), count: 1 }, 1);
}

fn mix(hasher: &mut PlanHasher, step: Step, count: u64) {
    hasher.entries(step.entry, count);
    if let Some(content) = step.content {
        hasher.content(&content);
    }
}

pub(crate) fn fingerprint(content: &[u8]) -> Fingerprint {
    xxh3_128(content).to_le_bytes()
}
