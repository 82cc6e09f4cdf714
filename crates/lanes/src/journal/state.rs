//! What a journal says of its run, independent of how its bytes lie.
//!
//! Replay builds a [`RunState`] from records; compaction writes the fewest records that build an
//! equal one. Everything here grows with outcomes that differ from their neighbours and with
//! [`MAX_POINTS`], never with the number of records.

use sprag_kernel::planner::PlanHasher;
use sprag_kernel::{Code, Refusal};

use super::outcome::{EqualRun, Outcome, Outcomes};
use super::record::{Checkpoint, Record};

/// Commit points kept for finding where a changed input first differs. At about 80 bytes each they
/// stay below 100 KiB; the range that a message names is then at most 1/512 of the run.
pub const MAX_POINTS: usize = 1024;

/// How the journal was last left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    /// In the middle: the run goes on, or its process was killed.
    Open,
    /// The run was stopped in good order and waits for its resume.
    Stopped,
    /// Every seq of the input is committed.
    Complete,
}

impl Ending {
    /// The name in documents and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Open => "open",
            Self::Stopped => "stopped",
            Self::Complete => "complete",
        }
    }
}

/// Seqs by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Succeeded.
    pub success: u64,
    /// Skipped.
    pub skip: u64,
    /// Failed for good.
    pub fail: u64,
    /// Cancelled.
    pub cancel: u64,
}

impl Counts {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.success + self.skip + self.fail + self.cancel
    }

    pub(super) fn add(&mut self, outcome: Outcome, seqs: u64) {
        *match outcome {
            Outcome::Success => &mut self.success,
            Outcome::Skip => &mut self.skip,
            Outcome::Fail => &mut self.fail,
            Outcome::Cancel => &mut self.cancel,
        } += seqs;
    }
}

/// A place up to which everything is committed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CommitPoint {
    /// The seq behind the last committed one.
    pub end_seq: u64,
    /// What the sink said then; for a file its length.
    pub mark: u64,
    /// The rolling hash of the input below `end_seq`.
    pub input_hash: [u8; 32],
    /// The rolling hash of what became of it.
    pub outcome_hash: u64,
}

/// A bounded choice of commit points. With spacing k, the first point in each range of 2^k seqs is
/// kept; the spacing grows when there are too many. Choosing from a choice gives the same as
/// choosing from all, so a compacted journal ends up with the same points.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Points {
    pub(super) spacing: u8,
    kept: Vec<CommitPoint>,
}

impl Points {
    fn push(&mut self, point: CommitPoint) {
        let bucket = |point: &CommitPoint| point.end_seq >> self.spacing;
        if self.kept.last().is_none_or(|last| bucket(last) != bucket(&point)) {
            self.kept.push(point);
        }
        while self.kept.len() > MAX_POINTS {
            self.widen(self.spacing + 1);
        }
    }

    fn widen(&mut self, spacing: u8) {
        self.spacing = self.spacing.max(spacing);
        self.kept.dedup_by_key(|point| point.end_seq >> self.spacing);
    }
}

/// The run as its journal tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunState {
    /// How often the journal was opened, its creation included.
    pub epoch: u32,
    /// Seqs by outcome; their sum is the cursor.
    pub counts: Counts,
    /// Retries of all committed seqs together.
    pub retries: u64,
    /// The last commit; its `end_seq` is the cursor.
    pub last: CommitPoint,
    /// How each committed seq ended.
    pub outcomes: Outcomes,
    /// How the journal was last left.
    pub ending: Ending,
    /// The process that opened it last.
    pub owner: u32,
    pub(super) points: Points,
    /// Outcomes whose commit record was not seen yet.
    pending: Outcomes,
}

/// Why a whole record cannot follow what came before it.
pub(super) enum Contradiction {
    /// Two outcomes for one seq.
    Outcome { seq: u64 },
    /// Anything else, in words.
    Order(&'static str),
}

impl RunState {
    /// The state before the first record.
    pub(super) fn new(epoch: u32) -> Self {
        Self {
            epoch,
            counts: Counts::default(),
            retries: 0,
            last: CommitPoint::default(),
            outcomes: Outcomes::default(),
            ending: Ending::Open,
            owner: 0,
            points: Points::default(),
            pending: Outcomes::default(),
        }
    }

    /// The next seq to commit.
    pub fn cursor(&self) -> u64 {
        self.last.end_seq
    }

    /// Commit points from the first to the last, the last one always among them.
    pub fn points(&self) -> impl Iterator<Item = &CommitPoint> {
        let covered = self.points.kept.last().map_or(0, |point| point.end_seq);
        self.points.kept.iter().chain((covered < self.cursor()).then_some(&self.last))
    }

    /// Compares a re-read input with the one of the journal.
    pub fn input_check(&self) -> InputCheck {
        InputCheck { points: self.points().copied().collect(), passed: 0 }
    }

    /// Takes the next record. A terminal record waits for its commit and shows only then.
    pub(super) fn apply(&mut self, record: Record, epoch: u32) -> Result<(), Contradiction> {
        match record {
            Record::Terminal(runs) => self.terminal(runs),
            Record::Commit(point) => self.commit(point),
            Record::Checkpoint(checkpoint) => self.checkpoint(&checkpoint, epoch),
        }
    }

    /// Whether a terminal record still waits for its commit.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.runs().is_empty()
    }

    /// Forgets terminal records whose commit never came.
    pub(super) fn drop_pending(&mut self) {
        self.pending = Outcomes::default();
    }

    fn terminal(&mut self, runs: Vec<EqualRun>) -> Result<(), Contradiction> {
        let reached = self.reached();
        if runs.first().is_some_and(|run| run.first > reached) {
            return Err(Contradiction::Order("a terminal record leaves a gap behind the cursor"));
        }
        for run in runs {
            if run.first < reached {
                let conflict = self.outcomes.conflict(run).or_else(|| self.pending.conflict(run));
                conflict.map_or(Ok(()), |seq| Err(Contradiction::Outcome { seq }))?;
            }
            // What is known already is said again and changes nothing.
            if let Some(new) = behind(run, reached) {
                self.pending.push(new);
            }
        }
        Ok(())
    }

    /// The seq behind the last known outcome, committed or not.
    fn reached(&self) -> u64 {
        self.pending.runs().last().map_or(self.cursor(), EqualRun::end)
    }

    fn commit(&mut self, point: CommitPoint) -> Result<(), Contradiction> {
        let said_before =
            !self.is_pending() && (point == self.last || point.end_seq < self.cursor());
        if said_before {
            return Ok(());
        }
        if !self.is_pending() || point.end_seq != self.reached() {
            return Err(Contradiction::Order("a commit record does not match its outcomes"));
        }
        if point.mark < self.last.mark {
            return Err(Contradiction::Order("a commit record moves the mark backwards"));
        }
        for run in self.pending.drain() {
            self.counts.add(run.ended.outcome, run.length);
            self.retries += u64::from(run.ended.attempts) * run.length;
            self.outcomes.push(run);
        }
        self.last = point;
        self.points.push(point);
        self.ending = Ending::Open;
        debug_assert_eq!(self.counts.total(), self.cursor(), "every committed seq is counted once");
        Ok(())
    }

    fn checkpoint(&mut self, checkpoint: &Checkpoint, epoch: u32) -> Result<(), Contradiction> {
        let agrees = checkpoint.cursor == self.cursor()
            && checkpoint.counts == self.counts
            && checkpoint.retries == self.retries;
        if !agrees || self.is_pending() {
            return Err(Contradiction::Order("a checkpoint does not match the records before it"));
        }
        self.epoch = epoch;
        self.ending = checkpoint.ending;
        self.owner = checkpoint.owner;
        self.points.widen(checkpoint.spacing);
        Ok(())
    }
}

/// The part of a run at or behind `from`.
pub(super) fn behind(run: EqualRun, from: u64) -> Option<EqualRun> {
    let first = run.first.max(from);
    (first < run.end()).then(|| EqualRun { first, length: run.end() - first, ended: run.ended })
}

/// Walks a re-read input along the journal's commit points. The caller hashes its entries and shows
/// the digest whenever it has read exactly [`InputCheck::next_end`] of them.
#[derive(Clone, Debug)]
pub struct InputCheck {
    points: Vec<CommitPoint>,
    passed: usize,
}

impl InputCheck {
    /// After how many entries the next digest is wanted; `None` once the cursor is reached.
    pub fn next_end(&self) -> Option<u64> {
        self.points.get(self.passed).map(|point| point.end_seq)
    }

    /// Compares the hash of the first `entries` entries, if the journal has a point there. What
    /// [`Lanes::reread`](crate::Lanes::reread) asks for.
    pub fn at(&mut self, entries: u64, hasher: &PlanHasher) -> Result<(), Refusal> {
        if self.next_end() == Some(entries) { self.check(&hasher.digest()) } else { Ok(()) }
    }

    /// Compares the digest of the first `next_end` entries. Refuses with the range of seqs in which
    /// the first difference lies.
    pub fn check(&mut self, digest: &[u8; 32]) -> Result<(), Refusal> {
        let point = self.points.get(self.passed).expect("asked for by next_end");
        if point.input_hash != *digest {
            return Err(Refusal::new(Code::PlanChanged)
                .with("first_seq", self.checked_to())
                .with("last_seq", point.end_seq - 1));
        }
        self.passed += 1;
        Ok(())
    }

    /// Refuses an input that ended after `entries` entries, before the cursor.
    pub fn finish(&self, entries: u64) -> Result<(), Refusal> {
        match self.points.last() {
            Some(last) if entries < last.end_seq => Err(Refusal::new(Code::PlanChanged)
                .with("entries", entries)
                .with("committed", last.end_seq)),
            _ => Ok(()),
        }
    }

    /// How many entries are known to be the same.
    pub fn checked_to(&self) -> u64 {
        self.passed.checked_sub(1).map_or(0, |last| self.points[last].end_seq)
    }
}
