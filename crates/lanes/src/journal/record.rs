//! The three records: how seqs ended, how far the commit is, and where the run stands.
//!
//! A body is `kind u8 | distance | fields`. `distance` is how far below the record's own offset the
//! last completed sync reached when it was written: that is how each sync is marked by the record
//! after it. Terminal records belong to the commit record that follows them; without it they are
//! nothing, for their payloads are nowhere.

use super::outcome::{self, EqualRun};
use super::state::{CommitPoint, Counts, Ending};
use super::varint::{self, Reader};

const TERMINAL: u8 = 1;
const COMMIT: u8 = 2;
const CHECKPOINT: u8 = 3;

/// One record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Record {
    /// Seqs that reached their outcome, ascending and without a gap.
    Terminal(Vec<EqualRun>),
    /// The sink holds everything below `end_seq`.
    Commit(CommitPoint),
    /// Where the run stands: what replay must have counted up to here.
    Checkpoint(Checkpoint),
}

/// What a checkpoint says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checkpoint {
    pub(super) ending: Ending,
    pub(super) cursor: u64,
    pub(super) counts: Counts,
    pub(super) retries: u64,
    /// Points are at least this sparse, see [`super::state::Points`]. Above 0 only after compaction.
    pub(super) spacing: u8,
    /// The process that holds the journal, for the reader of a message.
    pub(super) owner: u32,
}

impl Record {
    /// The body of this record at `offset`, with everything below `synced_to` certain.
    pub(super) fn encode(&self, offset: u64, synced_to: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(96);
        let kind = match self {
            Self::Terminal(_) => TERMINAL,
            Self::Commit(_) => COMMIT,
            Self::Checkpoint(_) => CHECKPOINT,
        };
        out.push(kind);
        varint::put(&mut out, offset - synced_to);
        match self {
            Self::Terminal(runs) => put_terminal(&mut out, runs),
            Self::Commit(point) => put_commit(&mut out, point),
            Self::Checkpoint(checkpoint) => put_checkpoint(&mut out, checkpoint),
        }
        out
    }

    /// The record and the offset below which it says everything was synced.
    pub(super) fn decode(body: &[u8], offset: u64) -> Option<(Self, u64)> {
        let mut reader = Reader::new(body);
        let kind = reader.byte()?;
        let synced_to = offset.checked_sub(reader.number()?)?;
        let record = match kind {
            TERMINAL => Self::Terminal(take_terminal(&mut reader)?),
            COMMIT => Self::Commit(take_commit(&mut reader)?),
            CHECKPOINT => Self::Checkpoint(take_checkpoint(&mut reader)?),
            _ => return None,
        };
        reader.only_padding(super::frame::ALIGNMENT).then_some((record, synced_to))
    }
}

/// Only the mark of the last sync, for the search behind a damaged place.
pub(super) fn synced_to(body: &[u8], offset: u64) -> Option<u64> {
    offset.checked_sub(Reader::new(body.get(1..)?).number()?)
}

fn put_terminal(out: &mut Vec<u8>, runs: &[EqualRun]) {
    varint::put(out, runs[0].first);
    varint::put(out, runs.len() as u64);
    for run in runs {
        outcome::put_run(out, run);
    }
}

fn take_terminal(reader: &mut Reader<'_>) -> Option<Vec<EqualRun>> {
    let mut first = reader.number()?;
    let count = reader.number()?;
    // A run takes at least a byte.
    let mut runs = Vec::with_capacity(usize::try_from(count).ok().filter(|&n| n <= reader.left())?);
    for _ in 0..count {
        let run = outcome::take_run(reader, first)?;
        first = run.end();
        runs.push(run);
    }
    (count > 0).then_some(runs)
}

fn put_commit(out: &mut Vec<u8>, point: &CommitPoint) {
    varint::put(out, point.end_seq);
    varint::put(out, point.mark);
    out.extend_from_slice(&point.input_hash);
    out.extend_from_slice(&point.outcome_hash.to_le_bytes());
}

fn take_commit(reader: &mut Reader<'_>) -> Option<CommitPoint> {
    Some(CommitPoint {
        end_seq: reader.number()?,
        mark: reader.number()?,
        input_hash: reader.array()?,
        outcome_hash: u64::from_le_bytes(reader.array()?),
    })
}

fn put_checkpoint(out: &mut Vec<u8>, checkpoint: &Checkpoint) {
    let Checkpoint { ending, cursor, counts, retries, spacing, owner } = checkpoint;
    out.push(*spacing);
    out.push(match ending {
        Ending::Open => 0,
        Ending::Stopped => 1,
        Ending::Complete => 2,
    });
    let Counts { success, skip, fail, cancel } = counts;
    for number in [cursor, success, skip, fail, cancel, retries, &u64::from(*owner)] {
        varint::put(out, *number);
    }
}

fn take_checkpoint(reader: &mut Reader<'_>) -> Option<Checkpoint> {
    let spacing = reader.byte().filter(|&spacing| spacing < 64)?;
    let ending = match reader.byte()? {
        0 => Ending::Open,
        1 => Ending::Stopped,
        2 => Ending::Complete,
        _ => return None,
    };
    let cursor = reader.number()?;
    let counts = Counts {
        success: reader.number()?,
        skip: reader.number()?,
        fail: reader.number()?,
        cancel: reader.number()?,
    };
    let retries = reader.number()?;
    Some(Checkpoint { ending, cursor, counts, retries, spacing, owner: reader.narrow()? })
}
