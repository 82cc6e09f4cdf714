//! The first bytes of a journal: what file this is, whose run, which plan, how much of it is certain.
//!
//! A journal gets its name only after its header was written and synced, so a short or damaged header
//! is never the work of a crash and is always refused. `certain_to` is the part of the file that was
//! synced before the file got its name: after a compaction that is the whole rewritten history.

use sprag_kernel::{Code, Refusal};

use super::{Identity, RunId};

const MAGIC: [u8; 8] = *b"SPRAGJNL";
/// The format that this code writes and the only one it reads.
pub(super) const VERSION: u32 = 1;
/// The longest note: room for a long command, small beside a segment.
pub const MAX_NOTE: usize = 32 << 10;
const FIXED: usize = 8 + 4 + 4 + 4 + 4 + 8 + 16 + 32;

/// What the header holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) identity: Identity,
    /// The epoch in which the file was written.
    pub(super) epoch: u32,
    /// Damage below this offset is corruption, whatever later records say.
    pub(super) certain_to: u64,
}

impl Header {
    /// The length of the header with this note.
    pub(super) fn length(note: &[u8]) -> usize {
        (FIXED + note.len() + 4).next_multiple_of(super::frame::ALIGNMENT)
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let Identity { run_id, plan_hash, note } = &self.identity;
        assert!(note.len() <= MAX_NOTE, "the identity was checked");
        let length = Self::length(note);
        let short = |length: usize| u32::try_from(length).expect("at most MAX_NOTE and a little");
        let mut out = Vec::with_capacity(length);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&short(length).to_le_bytes());
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&short(note.len()).to_le_bytes());
        out.extend_from_slice(&self.certain_to.to_le_bytes());
        out.extend_from_slice(&run_id.0);
        out.extend_from_slice(plan_hash);
        out.extend_from_slice(note);
        out.resize(length - 4, 0);
        let crc = crc32c::crc32c(&out);
        out.extend_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the header at the start of `file`; returns it and its length.
    pub(super) fn decode(file: &[u8]) -> Result<(Self, usize), Refusal> {
        if file.get(..8) != Some(&MAGIC[..]) {
            return Err(Refusal::new(Code::JournalForeign).with("offset", 0_u64));
        }
        let word = |at: usize| -> Result<u32, Refusal> {
            let bytes = file.get(at..at + 4).ok_or_else(damaged)?;
            Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes")))
        };
        let version = word(8)?;
        if version != VERSION {
            return Err(Refusal::new(Code::JournalVersion)
                .with("offset", 8_u64)
                .with("version", version)
                .with("known", VERSION));
        }
        let (length, note_length) = (word(12)? as usize, word(20)? as usize);
        if note_length > MAX_NOTE || length != (FIXED + note_length + 4).next_multiple_of(8) {
            return Err(damaged());
        }
        let header = file.get(..length).ok_or_else(damaged)?;
        if crc32c::crc32c(&header[..length - 4]) != word(length - 4)? {
            return Err(damaged());
        }
        let bytes = |at: usize| header[at..at + 8].try_into().expect("eight bytes");
        let decoded = Self {
            identity: Identity {
                run_id: RunId(header[32..48].try_into().expect("sixteen bytes")),
                plan_hash: header[48..80].try_into().expect("thirty-two bytes"),
                note: header[FIXED..FIXED + note_length].to_vec(),
            },
            epoch: word(16)?,
            certain_to: u64::from_le_bytes(bytes(24)),
        };
        Ok((decoded, length))
    }
}

fn damaged() -> Refusal {
    Refusal::new(Code::JournalDamaged)
        .with("offset", 0_u64)
        .with("record", 0_u64)
        .with("reason", "the header is damaged or cut short")
}
