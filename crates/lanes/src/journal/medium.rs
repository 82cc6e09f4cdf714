//! What a journal is written to: four operations, so that a crash is just another medium.

use std::fs::File;
use std::io;

use super::fault;

/// Bytes at offsets that outlive the process once synced.
pub(super) trait Medium {
    /// Writes all of `bytes` at `offset`, inside of what was allocated.
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()>;
    /// Returns once every earlier write, and the length, would survive a loss of power.
    fn sync(&mut self) -> io::Result<()>;
    /// Extends to `length` with zeros, with room on the disk taken.
    fn allocate(&mut self, from: u64, length: u64) -> io::Result<()>;
    /// Cuts back to `length`.
    fn cut(&mut self, length: u64) -> io::Result<()>;
}

/// A journal's file.
#[derive(Debug)]
pub(super) struct DiskFile(pub(super) File);

impl Medium for DiskFile {
    fn write_at(&mut self, bytes: &[u8], offset: u64) -> io::Result<()> {
        fault::write_all_at(&self.0, bytes, offset)
    }

    // sync_data also makes a changed length durable; only times are left out.
    fn sync(&mut self) -> io::Result<()> {
        fault::sync_data(&self.0)
    }

    /// With room taken ahead, a sync writes one page and no metadata, and a full disk shows here,
    /// between records. File systems that cannot reserve are given the length only.
    fn allocate(&mut self, from: u64, length: u64) -> io::Result<()> {
        fault::point();
        let flags = rustix::fs::FallocateFlags::empty();
        match rustix::fs::fallocate(&self.0, flags, from, length - from) {
            Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => self.0.set_len(length),
            done => done.map_err(io::Error::from),
        }
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        fault::set_len(&self.0, length)
    }
}
