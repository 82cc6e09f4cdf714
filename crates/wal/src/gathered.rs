//! Which writes of a commit wait, and for how long.

/// How long the front of a frame is. No page is as short.
const FRONT: usize = 24;
/// Where its front says how many pages the file has if the frame commits; else there are zeros.
const COMMITS: std::ops::Range<usize> = 4..8;
/// How much is written at once. SQLite's own file systems take less than 128 KiB with one call.
const MOST: usize = 120 * 1024;
/// Where nothing has been written yet.
const NOWHERE: i64 = -1;

/// Writes of one commit to a log, which wait until they are a long one.
///
/// A transaction is frames, one behind the other; each is written in two: its front, then its page. The front of the
/// last one says that it commits. From the page behind that on nothing waits any more, since SQLite then tells other
/// connections to read it. What may still follow are repetitions of that frame, up to the end of a sector.
pub(crate) struct Gathered {
    bytes: Vec<u8>,
    /// Where the last write ended, be it a gathered one or not.
    end: i64,
    /// Whether a front has said that its frame commits.
    commits: bool,
}

impl Default for Gathered {
    fn default() -> Self {
        Self { bytes: Vec::new(), end: NOWHERE, commits: false }
    }
}

impl Gathered {
    /// Takes a write. What has waited long enough goes to `file`, in the order it came in.
    pub(crate) fn write<E>(
        &mut self,
        bytes: &[u8],
        at: i64,
        mut file: impl FnMut(&[u8], i64) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_last_front = bytes.len() == FRONT && bytes[COMMITS] != [0; 4];
        if at != self.end || self.bytes.len() + bytes.len() > MOST {
            self.flush(&mut file)?;
        }
        if at == self.end {
            self.bytes.extend_from_slice(bytes);
        } else {
            // The begin of a log, or a change of what is in it.
            file(bytes, at)?;
        }
        self.end = at + bytes.len() as i64;
        if self.commits {
            self.flush(file)?;
        }
        self.commits |= is_last_front;
        Ok(())
    }

    /// Nothing waits any more. What could not be written is forgotten: the commit fails that it is part of.
    pub(crate) fn flush<E>(
        &mut self,
        mut file: impl FnMut(&[u8], i64) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.bytes.is_empty() {
            return Ok(());
        }
        let written = file(&self.bytes, self.end - self.bytes.len() as i64);
        self.bytes.clear();
        written
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::unwrap_used)]

    use super::*;

    const PAGE: usize = 4096;
    const FRAME: i64 = (FRONT + PAGE) as i64;
    const HEAD: i64 = 32;

    /// A file that notes how it is written, and can be full.
    #[derive(Default)]
    struct File {
        content: Vec<u8>,
        /// Where each write began, and how long it was.
        writes: Vec<(i64, usize)>,
        is_full: bool,
    }

    impl File {
        fn write(&mut self, bytes: &[u8], at: i64) -> Result<(), &'static str> {
            if self.is_full {
                return Err("full");
            }
            let (at_byte, end) = (at as usize, at as usize + bytes.len());
            self.content.resize(self.content.len().max(end), 0);
            self.content[at_byte..end].copy_from_slice(bytes);
            self.writes.push((at, bytes.len()));
            Ok(())
        }
    }

    /// A log and the file it is in.
    #[derive(Default)]
    struct Log {
        gathered: Gathered,
        file: File,
    }

    impl Log {
        /// One whose first writes are over.
        fn begun() -> Self {
            let mut log = Self::default();
            log.write(&[7; HEAD as usize], 0).unwrap();
            log.file.writes.clear();
            log
        }

        fn next_commit(&mut self) {
            self.gathered = Gathered::default();
            self.file.writes.clear();
        }

        fn write(&mut self, bytes: &[u8], at: i64) -> Result<(), &'static str> {
            self.gathered.write(bytes, at, |bytes, at| self.file.write(bytes, at))
        }

        /// The frame with this number; `pages` is how many the file has then, if it commits.
        fn frame(&mut self, number: i64, pages: u32) -> Result<(), &'static str> {
            let mut front = [number as u8; FRONT];
            front[4..8].copy_from_slice(&pages.to_be_bytes());
            let at = HEAD + number * FRAME;
            self.write(&front, at)?;
            self.write(&[number as u8; PAGE], at + FRONT as i64)
        }
    }

    #[test]
    fn a_transaction_is_one_write() {
        let mut log = Log::begun();
        for number in 0..9 {
            log.frame(number, 0).unwrap();
        }
        assert_eq!(log.file.writes, []);
        log.frame(9, 30).unwrap();
        assert_eq!(log.file.writes, [(HEAD, 10 * FRAME as usize)]);
        log.next_commit();
        log.frame(10, 31).unwrap();
        // Where a log goes on is only known when it has been written to.
        let at = HEAD + 10 * FRAME;
        assert_eq!(log.file.writes, [(at, FRONT), (at + FRONT as i64, PAGE)]);
        for number in 0..=10 {
            let page = (HEAD + number * FRAME) as usize + FRONT;
            assert_eq!(log.file.content[page..page + PAGE], [number as u8; PAGE]);
        }
    }

    #[test]
    fn a_long_transaction_is_written_as_it_goes() {
        let mut log = Log::begun();
        for number in 0..100 {
            log.frame(number, 0).unwrap();
        }
        let longest = log.file.writes.iter().map(|(_, length)| *length).max().unwrap();
        assert!((MOST - PAGE..=MOST).contains(&longest), "{longest}");
        // SQLite's file system for Unix looks at so many bits of a length.
        assert!(longest < 1 << 17);
    }

    /// As SQLite does with a page that it has written before its time.
    #[test]
    fn what_waits_is_written_before_a_change_of_it() {
        let mut log = Log::begun();
        log.frame(0, 0).unwrap();
        log.frame(1, 0).unwrap();
        log.write(&[99; PAGE], HEAD + FRONT as i64).unwrap();
        assert_eq!(log.file.content[HEAD as usize + FRONT..][..PAGE], [99; PAGE]);
        assert_eq!(log.file.writes.len(), 2);
        log.frame(2, 5).unwrap();
        assert_eq!(log.file.content.len() as i64, HEAD + 3 * FRAME);
    }

    #[test]
    fn a_commit_that_begins_elsewhere_does_not_wait() {
        let mut log = Log::default();
        log.frame(3, 5).unwrap();
        assert_eq!(log.file.content.len() as i64, HEAD + 4 * FRAME);
        // Only its front once more, with another checksum.
        log.write(&[1; FRONT], HEAD + 3 * FRAME).unwrap();
        assert_eq!(log.file.content[(HEAD + 3 * FRAME) as usize..][..FRONT], [1; FRONT]);
    }

    /// As SQLite does where a sector must not be written to twice: however it is cut, nothing of it waits.
    #[test]
    fn nothing_waits_behind_the_frame_that_commits() {
        let mut log = Log::begun();
        log.frame(0, 9).unwrap();
        log.frame(1, 9).unwrap();
        log.write(&[9; FRONT], HEAD + 2 * FRAME).unwrap();
        let mut at = HEAD + 2 * FRAME + FRONT as i64;
        for length in [PAGE - FRONT, FRONT] {
            log.write(&vec![0; length], at).unwrap();
            at += length as i64;
            assert_eq!(log.file.content.len() as i64, at);
        }
    }

    #[test]
    fn what_could_not_be_written_does_not_come_back() {
        let mut log = Log::begun();
        log.frame(0, 0).unwrap();
        log.file.is_full = true;
        assert_eq!(log.frame(1, 5), Err("full"));
        log.file.is_full = false;
        log.gathered.flush(|_, _| -> Result<(), ()> { panic!("it comes back") }).unwrap();
        // The transaction was rolled back, the next one is in its place.
        log.next_commit();
        log.frame(0, 5).unwrap();
        assert_eq!(log.file.content.len() as i64, HEAD + FRAME);
    }
}
