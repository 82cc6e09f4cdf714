//! Gates: who stands in line is let in when a slot may be free. What this engine has made or finished itself
//! is a hint, tried at once; all lines there are, of whomever, are gone through page by page at each look, so
//! that a hint that was lost costs no more than the time to the next look. One call is under way at most.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::Instant;

use super::{Done, Heart};
use crate::gate::MAX_GATES;
use crate::graph::Kind;
use crate::store::{Answer, Held, Store, StoreError};

/// The most hints that are kept; beyond them the lines are gone through.
const MAX_HINTS: usize = 10 * MAX_GATES;
/// How often an engine looks at lines that has never heard of a gate.
const SELDOM: Duration = Duration::from_secs(2);

/// What this engine knows of lines at gates.
#[derive(Default)]
pub(super) struct Watch {
    /// Gates at which somebody may be let in.
    hints: BTreeSet<String>,
    /// Whether the lines are to be gone through.
    looks: bool,
    /// The gate behind which the next page begins.
    after: Option<String>,
    is_under_way: bool,
    /// Whether this engine has ever heard of a gate; if not it looks less often.
    is_used: bool,
    looked_at: Option<Instant>,
}

/// One call for gates.
pub(super) enum Round {
    /// For those that were hinted at.
    Hinted,
    /// For a page of lines.
    Page {
        /// Behind which gate the next one begins, if it was not the last.
        next: Option<String>,
        /// Whether nobody stands in any line of it.
        is_empty: bool,
    },
}

impl Watch {
    /// Somebody may be let in at these.
    pub(super) fn hint(&mut self, gates: impl IntoIterator<Item = String>) {
        self.hints.extend(gates);
        if self.hints.len() > MAX_HINTS {
            self.hints.clear();
            self.looks = true;
        }
    }

    /// Somebody may have come to a line without this engine knowing which.
    pub(super) fn look_again(&mut self) {
        self.looks |= self.is_used;
    }

    /// A look at each time if this engine has ever heard of a gate; else seldom: others may have, and be gone.
    pub(super) fn look_now_and_then(&mut self) {
        let is_long_ago = self.looked_at.is_none_or(|at| at.elapsed() >= SELDOM);
        if self.is_used || is_long_ago {
            self.looks = true;
            self.looked_at = Some(Instant::now());
        }
    }

    /// There are gates.
    pub(super) fn is_used(&mut self, is_used: bool) {
        self.is_used |= is_used;
    }

    fn next_hints(&mut self) -> Vec<String> {
        let count = self.hints.len().min(MAX_GATES);
        std::iter::from_fn(|| self.hints.pop_first()).take(count).collect()
    }
}

impl<S: Store> Heart<S> {
    pub(super) fn admit_at_gates(&mut self) {
        if self.gates.is_under_way {
            return;
        }
        let hints = self.gates.next_hints();
        let (store, engine) = (self.store.clone(), self.engine);
        if !hints.is_empty() {
            self.calls.spawn(async move {
                let answer = store.admit(engine, hints).await;
                Done::Admitted(Round::Hinted, answer)
            });
        } else if std::mem::take(&mut self.gates.looks) {
            let after = self.gates.after.take();
            self.calls.spawn(async move {
                let most = u32::try_from(MAX_GATES).unwrap_or(u32::MAX);
                let page = match store.lines(after, most).await {
                    Ok(page) => page,
                    Err(error) => {
                        let round = Round::Page { next: None, is_empty: true };
                        return Done::Admitted(round, Err(error));
                    }
                };
                let next = page.last().cloned().filter(|_| page.len() == MAX_GATES);
                let is_empty = page.is_empty();
                let answer = if is_empty { Ok(0) } else { store.admit(engine, page).await };
                Done::Admitted(Round::Page { next, is_empty }, answer)
            });
        } else {
            return;
        }
        self.gates.is_under_way = true;
    }

    pub(super) fn admitted(
        &mut self,
        round: Round,
        answer: Answer<usize>,
    ) -> Result<(), StoreError> {
        self.gates.is_under_way = false;
        if let Round::Page { next, is_empty } = round {
            // The rest is gone through at once, one page after the other.
            self.gates.looks |= next.is_some();
            self.gates.after = next;
            self.gates.is_used |= !is_empty;
        }
        // What was lost with a failed call is found by the next look.
        self.may_claim |= self.heard(answer)?.is_some_and(|admitted| admitted > 0);
        Ok(())
    }

    /// Why an attempt of a step with a limit has no gate to wait at, if so: then nothing holds it back, and
    /// it must not run.
    pub(super) fn has_no_gate(&self, held: &Held) -> Option<String> {
        let pinned = &self.protocols[&held.facts.protocol_id];
        let gate = pinned.graph.node(held.key.step_index).gate.as_ref()?;
        let reason = gate.gate(&held.facts, held.item.as_deref()).err()?;
        Some(format!("limit.key: {reason}"))
    }

    /// An attempt is over: its slot is free, and what follows it may stand in line.
    pub(super) fn finished_at_gate(&mut self, held: &Held) {
        let pinned = self.pinned(held);
        if !pinned.has_gates {
            return;
        }
        let step_index = held.key.step_index;
        let gate = |index| pinned.graph.gate(index, &held.facts, held.item.as_deref());
        let followers = pinned.graph.node(step_index).followers.iter().copied();
        let hints: Vec<String> = followers.chain([step_index]).filter_map(gate).collect();
        self.gates.hint(hints);
        // The rows of a scope that is opened, or of another branch that is let in, have gates of their own.
        let kind = &pinned.graph.node(step_index).kind;
        let opens = matches!(kind, Kind::Fan(_) | Kind::Begin { .. } | Kind::Loop(_));
        if opens || pinned.graph.scope_of(step_index).depth > 0 {
            self.gates.look_again();
        }
    }
}
