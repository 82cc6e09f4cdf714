//! Where items come from: stdin or a file, line by line or split at zero bytes, or the words behind
//! `:::`. Nothing is read ahead of what the run asks for but one buffer.
//!
//! A read from a pipe can take for ever, so it is only begun when there is something to read, and
//! waiting for that ends when somebody asks the run to stop.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};

use super::interrupted;

/// The longest item: far beyond what a command line can take, far below what hurts.
const MAX_ITEM_BYTES: usize = 1 << 20;
const BUFFER_BYTES: usize = 64 << 10;
/// How often a reader that waits looks whether the run is to stop.
const LOOK_UP: Duration = Duration::from_millis(50);

/// One item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its place in the input, from 0.
    pub origin: u64,
    /// Its bytes, without the separator.
    pub text: Vec<u8>,
}

/// A sequence of items.
pub enum Items {
    /// The words behind `:::`.
    Words(VecDeque<OsString>),
    /// A stream with separators.
    Stream(Stream),
}

impl Items {
    /// Items from a file.
    pub fn file(path: &Path, separator: u8, stop: Arc<AtomicBool>) -> io::Result<Self> {
        let mut file = File::open(path)?;
        let left =
            if file.metadata()?.is_file() { Some(count(&mut file, separator)?) } else { None };
        Ok(Self::Stream(Stream { left, ..Stream::new(file, separator, stop) }))
    }

    /// Items from standard input.
    pub fn stdin(separator: u8, stop: Arc<AtomicBool>) -> io::Result<Self> {
        let stdin = File::from(io::stdin().as_fd().try_clone_to_owned()?);
        Ok(Self::Stream(Stream::new(stdin, separator, stop)))
    }

    /// The number of items, if it is known before they are read.
    pub fn known(&self) -> Option<u64> {
        match self {
            Self::Words(words) => Some(words.len() as u64),
            Self::Stream(stream) => stream.left,
        }
    }

    /// The next item; none at the end, or when the run is to stop.
    pub fn next_item(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self {
            Self::Words(words) => Ok(words.pop_front().map(OsString::into_vec)),
            Self::Stream(stream) => stream.next_item(),
        }
    }
}

/// The items in a file, which is left at its start.
fn count(file: &mut File, separator: u8) -> io::Result<u64> {
    let (mut items, mut last) = (0, separator);
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let length = file.read(&mut buffer)?;
        let Some(&end) = buffer[..length].last() else { break };
        items += buffer[..length].split(|&byte| byte == separator).skip(1).count() as u64;
        last = end;
    }
    file.rewind()?;
    Ok(items + u64::from(last != separator))
}

/// A stream of items.
pub struct Stream {
    file: File,
    separator: u8,
    /// How many are left, if that was counted before. What is appended meanwhile is not read.
    left: Option<u64>,
    stop: Arc<AtomicBool>,
    buffer: Vec<u8>,
    /// What of the buffer was given out.
    taken: usize,
    /// What of the buffer holds no separator.
    looked: usize,
    ended: bool,
}

impl Stream {
    fn new(file: File, separator: u8, stop: Arc<AtomicBool>) -> Self {
        let buffer = Vec::new();
        Self { file, separator, left: None, stop, buffer, taken: 0, looked: 0, ended: false }
    }

    fn next_item(&mut self) -> io::Result<Option<Vec<u8>>> {
        let item = if self.left == Some(0) { None } else { self.read_item()? };
        self.left = self.left.map(|left| left - u64::from(item.is_some()));
        Ok(item)
    }

    fn read_item(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            let fresh = &self.buffer[self.looked..];
            if let Some(at) = fresh.iter().position(|&byte| byte == self.separator) {
                let end = self.looked + at;
                let item = self.buffer[self.taken..end].to_vec();
                (self.taken, self.looked) = (end + 1, end + 1);
                return Ok(Some(item));
            }
            self.looked = self.buffer.len();
            if self.ended {
                let rest = self.buffer.split_off(self.taken);
                self.buffer.clear();
                (self.taken, self.looked) = (0, 0);
                return Ok((!rest.is_empty()).then_some(rest));
            }
            if !self.fill()? {
                return Ok(None);
            }
        }
    }

    /// Reads more; false if the run is to stop.
    fn fill(&mut self) -> io::Result<bool> {
        self.buffer.drain(..self.taken);
        self.looked -= self.taken;
        self.taken = 0;
        if self.buffer.len() > MAX_ITEM_BYTES {
            return Err(io::Error::other(format!("an item is longer than {MAX_ITEM_BYTES} bytes")));
        }
        if !self.wait_readable()? {
            return Ok(false);
        }
        let length = self.buffer.len();
        self.buffer.resize(length + BUFFER_BYTES, 0);
        let read = loop {
            match self.file.read(&mut self.buffer[length..]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                done => break done,
            }
        };
        self.buffer.truncate(length + *read.as_ref().unwrap_or(&0));
        self.ended = read? == 0;
        Ok(true)
    }

    fn wait_readable(&self) -> io::Result<bool> {
        let patience = LOOK_UP.try_into().expect("a short time");
        loop {
            let mut fds = [PollFd::new(&self.file, PollFlags::IN)];
            match poll(&mut fds, Some(&patience)) {
                Ok(0) if self.stop.load(Ordering::Relaxed) => return Ok(false),
                Ok(0) => {}
                Ok(_) => return Ok(true),
                Err(error) if interrupted(error) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    fn items_of(text: &[u8], separator: u8) -> Vec<Vec<u8>> {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text).unwrap();
        file.rewind().unwrap();
        let mut stream = Stream::new(file, separator, Arc::default());
        std::iter::from_fn(|| stream.next_item().unwrap()).collect()
    }

    #[test]
    fn lines_end_at_newlines_and_the_last_one_needs_none() {
        assert_eq!(items_of(b"a\nb c\n\nd", b'\n'), [&b"a"[..], b"b c", b"", b"d"]);
        assert_eq!(items_of(b"a\n", b'\n'), [b"a"]);
        assert!(items_of(b"", b'\n').is_empty());
        assert_eq!(items_of(b"a\nb\0c\0", 0), [&b"a\nb"[..], b"c"]);
    }

    #[test]
    fn items_across_buffers_come_whole() {
        let long: Vec<Vec<u8>> =
            (0..50).map(|n| vec![b'a' + n % 26; 5_000 + usize::from(n)]).collect();
        assert_eq!(items_of(&long.join(&b'\n'), b'\n'), long);
    }

    #[test]
    fn a_file_is_counted_before_it_is_read() {
        for (text, items) in [(&b""[..], 0), (b"a", 1), (b"a\n", 1), (b"a\n\nb", 3)] {
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(text).unwrap();
            let mut found = Items::file(file.path(), b'\n', Arc::default()).unwrap();
            assert_eq!(found.known(), Some(items));
            file.write_all(b"\nlater\n").unwrap();
            assert_eq!(std::iter::from_fn(|| found.next_item().unwrap()).count() as u64, items);
        }
    }

    #[test]
    fn a_stopped_run_does_not_wait_for_its_input() {
        let (reader, _writer) = io::pipe().unwrap();
        let stop = Arc::new(AtomicBool::new(true));
        let file = File::from(std::os::fd::OwnedFd::from(reader));
        assert_eq!(Stream::new(file, b'\n', stop).next_item().unwrap(), None);
    }
}
