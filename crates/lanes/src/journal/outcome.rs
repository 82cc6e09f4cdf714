//! Outcomes of a contiguous range of seqs, kept as runs of equals.

use super::varint::{self, Reader};

/// How a seq ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// With a payload.
    Success,
    /// On purpose without one.
    Skip,
    /// For good.
    Fail,
    /// By cancellation.
    Cancel,
}

impl Outcome {
    /// Every outcome, in the order of its number in the file.
    pub const ALL: [Self; 4] = [Self::Success, Self::Skip, Self::Fail, Self::Cancel];

    /// The name in documents and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Success => "success",
            Self::Skip => "skip",
            Self::Fail => "fail",
            Self::Cancel => "cancel",
        }
    }
}

/// How one seq ended, and how often it was retried before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// How.
    pub outcome: Outcome,
    /// Retries: 0 if the first attempt was the last.
    pub attempts: u32,
}

/// Seqs from `first` on that ended alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EqualRun {
    /// The first seq of the run.
    pub first: u64,
    /// How many seqs it holds; never 0.
    pub length: u64,
    /// How each of them ended.
    pub ended: Ended,
}

impl EqualRun {
    /// The seq behind the last one.
    pub fn end(&self) -> u64 {
        self.first + self.length
    }
}

/// The outcomes of all seqs in `start..end`, in order and without a gap.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcomes {
    runs: Vec<EqualRun>,
}

impl Outcomes {
    /// The runs of equals, ascending; neighbours differ.
    pub fn runs(&self) -> &[EqualRun] {
        &self.runs
    }

    /// How `seq` ended, if it is among them.
    pub fn get(&self, seq: u64) -> Option<Ended> {
        let at = self.runs.partition_point(|run| run.end() <= seq);
        self.runs.get(at).filter(|run| run.first <= seq).map(|run| run.ended)
    }

    /// The seqs with this outcome, ascending.
    pub fn seqs(&self, outcome: Outcome) -> impl Iterator<Item = u64> + '_ {
        let alike = self.runs.iter().filter(move |run| run.ended.outcome == outcome);
        alike.flat_map(|run| run.first..run.end())
    }

    /// Adds a run behind the last one.
    pub(super) fn push(&mut self, run: EqualRun) {
        debug_assert!(run.length > 0, "an empty run says nothing");
        if let Some(last) = self.runs.last_mut() {
            assert_eq!(last.end(), run.first, "outcomes have no gap");
            if last.ended == run.ended {
                last.length += run.length;
                return;
            }
        }
        self.runs.push(run);
    }

    /// Takes all runs out, in order.
    pub(super) fn drain(&mut self) -> impl Iterator<Item = EqualRun> + '_ {
        self.runs.drain(..)
    }

    /// The first seq of `run` that is known here with another end.
    pub(super) fn conflict(&self, run: EqualRun) -> Option<u64> {
        let from = self.runs.partition_point(|known| known.end() <= run.first);
        let overlapping = self.runs[from..].iter().take_while(|known| known.first < run.end());
        let mut other = overlapping.filter(|known| known.ended != run.ended);
        other.next().map(|known| known.first.max(run.first))
    }

    /// The runs inside `from..to`, cut at its ends.
    pub(super) fn within(&self, from: u64, to: u64) -> impl Iterator<Item = EqualRun> + '_ {
        let at = self.runs.partition_point(|run| run.end() <= from);
        self.runs[at..].iter().take_while(move |run| run.first < to).map(move |run| {
            let first = run.first.max(from);
            EqualRun { first, length: run.end().min(to) - first, ended: run.ended }
        })
    }
}

/// Joins the ends of single seqs into runs of equals.
pub(super) fn runs_of(first_seq: u64, ends: &[Ended]) -> impl Iterator<Item = EqualRun> + '_ {
    let mut first = first_seq;
    ends.chunk_by(|left, right| left == right).map(move |alike| {
        let run = EqualRun { first, length: alike.len() as u64, ended: alike[0] };
        first = run.end();
        run
    })
}

/// The most bytes that [`put_run`] appends.
pub(super) const MAX_RUN_BYTES: usize = 10 + 5;
const HAS_ATTEMPTS: u64 = 1;

/// Appends a run: its length, outcome and, if there were any, retries.
pub(super) fn put_run(out: &mut Vec<u8>, run: &EqualRun) {
    let code = Outcome::ALL.iter().position(|&known| known == run.ended.outcome);
    let code = code.expect("ALL has every outcome") as u64;
    let has_attempts = u64::from(run.ended.attempts > 0) * HAS_ATTEMPTS;
    assert!(run.length <= MAX_RUN_LENGTH, "a run is split before it is this long");
    varint::put(out, run.length << 3 | code << 1 | has_attempts);
    if run.ended.attempts > 0 {
        varint::put(out, u64::from(run.ended.attempts));
    }
}

/// The longest run that one number in the file can hold.
pub(super) const MAX_RUN_LENGTH: u64 = u64::MAX >> 3;

/// Takes a run that starts at `first`.
pub(super) fn take_run(reader: &mut Reader<'_>, first: u64) -> Option<EqualRun> {
    let packed = reader.number()?;
    let length = packed >> 3;
    let outcome = Outcome::ALL[(packed >> 1 & 3) as usize];
    let attempts = if packed & HAS_ATTEMPTS == 0 { 0 } else { reader.narrow()? };
    first.checked_add(length)?;
    (length > 0).then_some(EqualRun { first, length, ended: Ended { outcome, attempts } })
}
