//! The bench: activations whose expressions may take a while wait here, and are evaluated one by one, as many at a
//! time as there are cores. Tenants take turns, so that whoever has many, or slow ones, holds up nobody else.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;
use std::sync::LazyLock;

use tokio::sync::Semaphore;

use super::sight::Judging;
use crate::ids::AttemptKey;

/// How many expressions are evaluated at a time: with a core each, how long one takes does not depend on others.
static AT_ONCE: LazyLock<usize> =
    LazyLock::new(|| std::thread::available_parallelism().map_or(2, |cores| cores.get().max(2)));

/// The same, for what is evaluated inside of an attempt.
pub(super) static EVALUATIONS: LazyLock<Semaphore> = LazyLock::new(|| Semaphore::new(*AT_ONCE));

/// Those that wait, by tenant, and how many are being evaluated.
#[derive(Default)]
pub(super) struct Bench {
    waiting: BTreeMap<String, VecDeque<Judging>>,
    /// Whose turn it was last.
    last: String,
    busy: usize,
}

impl Bench {
    pub(super) fn push(&mut self, judging: Judging) {
        let tenant = judging.seeing.held.facts.tenant_id.clone();
        self.waiting.entry(tenant).or_default().push_back(judging);
    }

    /// The next one, if there is a core for it: of the tenant behind the one whose turn it was.
    pub(super) fn next(&mut self) -> Option<Judging> {
        if self.busy >= *AT_ONCE {
            return None;
        }
        let behind = (Bound::Excluded(self.last.as_str()), Bound::Unbounded);
        let mut tenants = self.waiting.range::<str, _>(behind).chain(&self.waiting);
        self.last = tenants.next().map(|(tenant, _)| tenant.clone())?;
        let queue = self.waiting.get_mut(&self.last)?;
        let next = queue.pop_front();
        if queue.is_empty() {
            self.waiting.remove(&self.last);
        }
        self.busy += 1;
        next
    }

    /// One of them is through.
    pub(super) fn done(&mut self) {
        self.busy -= 1;
    }

    /// Those that wait.
    pub(super) fn waiting(&self) -> impl Iterator<Item = AttemptKey> {
        self.waiting.values().flatten().map(|judging| judging.seeing.held.key)
    }
}
