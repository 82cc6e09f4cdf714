//! From the bytes of a journal to the state of its run, or to the place where it is damaged.
//!
//! The tail begins behind the last byte that a completed sync is known to cover: by the header for
//! the part that was synced before the file got its name, else by a whole record that says so. In
//! the tail pages may have reached the disk in any order, so a damaged place there ends the journal,
//! even if whole records follow. Before the tail nothing may be missing: the file is refused and
//! left as it is.

use sprag_kernel::{Code, Refusal};

use super::Identity;
use super::frame::{self, Frame};
use super::header::Header;
use super::record::{self, Record};
use super::state::{Contradiction, RunState};

/// A journal as it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay {
    /// Whose journal it is.
    pub identity: Identity,
    /// What it says.
    pub state: RunState,
    /// What its end has lost, if the end is not whole.
    pub torn: Option<Torn>,
    /// Bytes from the start to the end of the last record that counts.
    pub length: u64,
    /// Records up to there.
    pub records: u32,
    /// Bytes below this are known to have been synced.
    pub(super) synced_to: u64,
}

/// A tail that was cut back. Seqs whose commit it held run again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Torn {
    /// Where the damage is.
    pub offset: u64,
    /// The number of the record that stands, or should stand, there.
    pub record: u32,
    /// Bytes behind the last record that counts; preallocated space is not among them.
    pub bytes: u64,
}

/// Where the next record stands.
#[derive(Clone, Copy)]
struct Position {
    offset: usize,
    number: u32,
}

/// Replays a whole journal.
pub fn replay(file: &[u8]) -> Result<Replay, Refusal> {
    let (header, header_length) = Header::decode(file)?;
    let mut walk = Walk {
        file,
        state: RunState::new(header.epoch),
        here: Position { offset: header_length, number: 0 },
        whole: Position { offset: header_length, number: 0 },
        synced_to: header.certain_to.max(header_length as u64),
        header: &header,
    };
    while let Some(frame) = walk.next_frame() {
        walk.take(frame)?;
    }
    walk.end()?;
    let (state, whole, synced_to) = (walk.state, walk.whole, walk.synced_to);
    let torn = torn(file, whole, walk.here);
    Ok(Replay {
        identity: header.identity,
        state,
        torn,
        length: whole.offset as u64,
        records: whole.number,
        synced_to,
    })
}

struct Walk<'a> {
    file: &'a [u8],
    header: &'a Header,
    state: RunState,
    here: Position,
    /// Behind the last commit or checkpoint.
    whole: Position,
    synced_to: u64,
}

impl<'a> Walk<'a> {
    /// The next whole frame, if it is the one that belongs here.
    fn next_frame(&self) -> Option<Frame<'a>> {
        let frame = frame::read(self.file, self.here.offset, self.header.identity.run_id)?;
        let belongs = frame.number == self.here.number && frame.epoch >= self.state.epoch;
        belongs.then_some(frame)
    }

    fn take(&mut self, frame: Frame<'a>) -> Result<(), Refusal> {
        let offset = self.here.offset as u64;
        let (record, synced_to) = Record::decode(frame.body, offset)
            .ok_or_else(|| self.refuse("a record of unknown form"))?;
        if frame.epoch > self.state.epoch && !matches!(record, Record::Checkpoint(_)) {
            return Err(self.refuse("an epoch begins without a checkpoint"));
        }
        let whole = !matches!(record, Record::Terminal(_));
        self.state.apply(record, frame.epoch).map_err(|why| self.contradiction(&why))?;
        self.synced_to = self.synced_to.max(synced_to);
        self.here.offset += frame.length;
        self.here.number = self.here.number.wrapping_add(1);
        if whole {
            self.whole = self.here;
        }
        Ok(())
    }

    /// Decides what stands behind the last whole record: nothing, a torn tail, or damage.
    fn end(&mut self) -> Result<(), Refusal> {
        let damaged = self.here.offset;
        let certain = (damaged as u64) < self.header.certain_to || self.synced_behind(damaged);
        if certain {
            return Err(self.refuse("damaged before the tail"));
        }
        self.state.drop_pending();
        Ok(())
    }

    fn synced_behind(&self, damaged: usize) -> bool {
        let run_id = self.header.identity.run_id;
        frame::search(self.file, damaged, self.here.number, run_id).any(|(offset, frame)| {
            let synced_to = record::synced_to(frame.body, offset as u64);
            synced_to.is_some_and(|synced_to| synced_to > damaged as u64)
        })
    }

    fn refuse(&self, reason: &'static str) -> Refusal {
        self.placed(Code::JournalDamaged).with("reason", reason)
    }

    fn contradiction(&self, why: &Contradiction) -> Refusal {
        match why {
            Contradiction::Outcome { seq } => {
                self.placed(Code::SeqOutcomeConflict).with("seq", *seq)
            }
            Contradiction::Order(reason) => self.refuse(reason),
        }
    }

    fn placed(&self, code: Code) -> Refusal {
        Refusal::new(code).with("offset", self.here.offset).with("record", self.here.number)
    }
}

/// What is lost behind `whole`, if the reading ended at `damaged`.
fn torn(file: &[u8], whole: Position, damaged: Position) -> Option<Torn> {
    let rest = &file[whole.offset.min(file.len())..];
    let bytes = rest.iter().rposition(|&byte| byte != 0).map_or(0, |last| last as u64 + 1);
    (bytes > 0).then_some(Torn { offset: damaged.offset as u64, record: damaged.number, bytes })
}
