//! How a record lies in the file, and how it is told from damage.
//!
//! A frame is `length u32 | crc u32 | epoch u32 | number u32 | body`, padded with zeros to
//! [`ALIGNMENT`]; all numbers little-endian. The checksum also covers the run id and the frame's own
//! offset, so a whole frame of another run, or one that slipped to another place, is not whole here.
//! Aligned frames keep the search behind a damaged place short.

use super::RunId;

/// Frames begin at multiples of this.
pub(super) const ALIGNMENT: usize = 8;
/// Bytes of a frame before its body.
pub(super) const FRAME_HEAD: usize = 16;
/// The longest frame. A batch that needs more is split by the writer; a longer length is damage.
pub(super) const MAX_FRAME: usize = 1 << 20;

/// A whole frame, as found in the file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Frame<'a> {
    pub(super) epoch: u32,
    pub(super) number: u32,
    pub(super) body: &'a [u8],
    /// Bytes from its start to the next frame's.
    pub(super) length: usize,
}

/// Where a frame stands: part of what its checksum covers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) run_id: RunId,
    pub(super) offset: u64,
    pub(super) epoch: u32,
    pub(super) number: u32,
}

/// Appends the frame of `body` to `out`; returns its length.
pub(super) fn write(out: &mut Vec<u8>, place: Place, body: &[u8]) -> usize {
    let length = (FRAME_HEAD + body.len()).next_multiple_of(ALIGNMENT);
    assert!(length <= MAX_FRAME, "a record is split before it is this long");
    let start = out.len();
    let stored_length = u32::try_from(length).expect("at most MAX_FRAME");
    out.extend_from_slice(&stored_length.to_le_bytes());
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&place.epoch.to_le_bytes());
    out.extend_from_slice(&place.number.to_le_bytes());
    out.extend_from_slice(body);
    out.resize(start + length, 0);
    let crc = checksum(place.run_id, place.offset, &out[start..]);
    out[start + 4..start + 8].copy_from_slice(&crc.to_le_bytes());
    length
}

/// The frame at `offset`, if a whole one stands there.
pub(super) fn read(file: &[u8], offset: usize, run_id: RunId) -> Option<Frame<'_>> {
    let rest = file.get(offset..)?;
    let head = rest.get(..FRAME_HEAD)?;
    let length = word(head, 0) as usize;
    if !(FRAME_HEAD + ALIGNMENT..=MAX_FRAME).contains(&length) || !length.is_multiple_of(ALIGNMENT)
    {
        return None;
    }
    let frame = rest.get(..length)?;
    if checksum(run_id, offset as u64, frame) != word(head, 4) {
        return None;
    }
    Some(Frame { epoch: word(head, 8), number: word(head, 12), body: &frame[FRAME_HEAD..], length })
}

/// The whole frames behind a damaged place, wherever they begin. `number` is that of the damaged
/// record: no frame behind it has a lower one, nor one higher than the bytes between allow.
pub(super) fn search(
    file: &[u8],
    damaged: usize,
    number: u32,
    run_id: RunId,
) -> impl Iterator<Item = (usize, Frame<'_>)> {
    let mut offset = damaged + ALIGNMENT;
    std::iter::from_fn(move || {
        while let Some(head) = file.get(offset..offset + FRAME_HEAD) {
            let here = offset;
            let most = (here - damaged) / (FRAME_HEAD + ALIGNMENT);
            let ahead = word(head, 12).wrapping_sub(number);
            let found = (ahead as usize <= most).then(|| read(file, here, run_id)).flatten();
            offset += found.map_or(ALIGNMENT, |frame| frame.length);
            if let Some(frame) = found {
                return Some((here, frame));
            }
        }
        None
    })
}

fn checksum(run_id: RunId, offset: u64, frame: &[u8]) -> u32 {
    let mut place = [0; 28];
    place[..16].copy_from_slice(&run_id.0);
    place[16..24].copy_from_slice(&offset.to_le_bytes());
    place[24..].copy_from_slice(&frame[..4]);
    crc32c::crc32c_append(crc32c::crc32c(&place), &frame[8..])
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}
