//! The end of the commit lane: results to the output, then their commit to the journal.
//!
//! One thread owns both. It takes what the lane has handed over, writes it, makes it durable, and only
//! then appends the commit: the journal never promises what the output might not hold.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use sprag_kernel::{Code, Refusal};
use sprag_lanes::journal::{CommitRun, Ended, Ending, Journal, SyncPolicy, fault};

use super::inbox::{Found, Receiver, Sender, inbox};
use super::outlet::Outlet;
use super::screen::Screen;
use crate::output::unreadable;

/// How long the first result of a group waits for others when each group costs two syncs.
const GATHER: Duration = Duration::from_millis(20);

/// Consecutive results, ready to be written.
#[derive(Debug)]
pub struct Group {
    /// The first seq.
    pub first_seq: u64,
    /// How each ended.
    pub ends: Vec<Ended>,
    /// What goes to the output.
    pub out: Vec<u8>,
    /// What goes to stderr.
    pub err: Vec<u8>,
    /// The rolling hash of the input behind the last seq.
    pub input_hash: [u8; 32],
    /// The rolling hash of the outcomes behind the last seq.
    pub outcome_hash: u64,
}

impl Group {
    /// Bytes it holds.
    pub fn bytes(&self) -> usize {
        self.out.len() + self.err.len() + self.ends.len() * size_of::<Ended>()
    }

    /// Takes the results behind its last one in.
    pub fn join(&mut self, next: Self) {
        debug_assert_eq!(self.first_seq + self.ends.len() as u64, next.first_seq);
        self.ends.extend(next.ends);
        self.out.extend(next.out);
        self.err.extend(next.err);
        (self.input_hash, self.outcome_hash) = (next.input_hash, next.outcome_hash);
    }
}

/// Where results go.
#[derive(Debug)]
pub enum Target {
    /// A file, written at its end.
    File(File),
    /// A device or a named pipe, which has no end that it could be cut back to.
    Stream(File),
    /// Standard output.
    Stdout,
}

impl Target {
    /// Opens the output file and cuts it back to what was committed.
    pub fn file(path: &Path, committed: u64) -> Result<Self, Refusal> {
        let failed = |error: &io::Error| unreadable(path.display(), error);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create(true).truncate(false).open(path);
        let file = file.map_err(|error| failed(&error))?;
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        if !metadata.is_file() {
            return Ok(Self::Stream(file));
        }
        let length = metadata.len();
        if length < committed {
            return Err(Refusal::new(Code::OutputShort)
                .with("path", path.display().to_string())
                .with("bytes", length)
                .with("committed", committed));
        }
        // The name must survive as well, or the journal would speak of a file that is gone.
        fault::set_len(&file, committed)
            .and_then(|()| fault::sync_data(&file))
            .and_then(|()| fault::sync_folder(path))
            .map_err(|error| failed(&error))?;
        Ok(Self::File(file))
    }
}

/// Output and journal, together.
pub struct Writer {
    /// Where results go.
    pub target: Target,
    /// What was committed, if that is kept.
    pub journal: Option<Journal>,
    /// When to sync.
    pub sync: SyncPolicy,
    /// Bytes written to the target, those of earlier processes included.
    pub written: u64,
    /// What is on the terminal.
    pub screen: Screen,
    /// Told of every write that somebody has to read.
    pub outlet: Arc<Outlet>,
    /// The beginning of the run, from which the journal counts its time.
    pub begun: Instant,
}

/// A writer on its own thread.
#[derive(Debug)]
pub struct WriterThread {
    thread: JoinHandle<Result<Writer, WriteFailure>>,
}

/// Why nothing more can be written.
#[derive(Debug)]
pub enum WriteFailure {
    /// Whoever read the results has gone.
    ReaderGone,
    /// Anything else.
    Refused(Refusal),
}

impl From<Refusal> for WriteFailure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl Writer {
    /// Moves the writer to a thread that ends when the sender is dropped, or at the first failure.
    pub fn start(self) -> (Sender, WriterThread) {
        let (sender, receiver) = inbox(self.sync == SyncPolicy::Always);
        let thread = std::thread::Builder::new().name("writer".into());
        let thread = thread.spawn(move || self.serve(&receiver)).expect("a thread for the writer");
        (sender, WriterThread { thread })
    }

    /// Ends the journal in good order.
    pub fn close(self, ending: Ending) -> Result<(), Refusal> {
        let now = self.now();
        let durable = match (&self.target, self.sync) {
            (Target::File(_), SyncPolicy::None) | (Target::Stdout | Target::Stream(_), _) => Ok(()),
            (Target::File(file), _) => file.sync_all(),
        };
        durable.map_err(|error| unreadable("the output", &error))?;
        self.journal.map_or(Ok(()), |journal| journal.close(ending, now))
    }

    fn serve(mut self, inbox: &Receiver) -> Result<Writer, WriteFailure> {
        let gather = match self.sync {
            SyncPolicy::Batch if self.journal.is_some() => GATHER,
            SyncPolicy::Batch | SyncPolicy::None | SyncPolicy::Always => Duration::ZERO,
        };
        loop {
            match inbox.take(self.idle(), gather) {
                Found::Group(group) => self.write(&group)?,
                Found::Nothing => {
                    let now = self.now();
                    if let Some(journal) = &mut self.journal {
                        journal.sync_if_due(now)?;
                    }
                }
                Found::End => return Ok(self),
            }
        }
    }

    fn write(&mut self, group: &Group) -> Result<(), WriteFailure> {
        if !group.err.is_empty() {
            let write = || io::stderr().write_all(&group.err);
            self.outlet.around(|| self.screen.around(write)).ok();
        }
        if !group.out.is_empty() {
            self.write_out(&group.out).map_err(|error| write_failure(&error))?;
            self.written += group.out.len() as u64;
        }
        let now = self.now();
        let Some(journal) = &mut self.journal else { return Ok(()) };
        let run = CommitRun {
            first_seq: group.first_seq,
            ends: &group.ends,
            mark: self.written,
            input_hash: group.input_hash,
            outcome_hash: group.outcome_hash,
        };
        Ok(journal.append(&run, now)?)
    }

    fn write_out(&self, bytes: &[u8]) -> io::Result<()> {
        match &self.target {
            Target::Stdout => self.outlet.around(|| {
                self.screen.around(|| {
                    fault::point();
                    let mut stdout = io::stdout().lock();
                    stdout.write_all(bytes)?;
                    stdout.flush()
                })
            }),
            Target::Stream(stream) => {
                let mut stream = stream;
                self.outlet.around(|| stream.write_all(bytes))
            }
            Target::File(file) => {
                fault::write_all_at(file, bytes, self.written)?;
                // Before the commit, so that a loss of power cannot leave a commit without its result.
                match self.sync {
                    SyncPolicy::Batch | SyncPolicy::Always if self.journal.is_some() => {
                        fault::sync_data(file)
                    }
                    SyncPolicy::Batch | SyncPolicy::Always | SyncPolicy::None => Ok(()),
                }
            }
        }
    }

    fn idle(&self) -> Duration {
        let due = self.journal.as_ref().and_then(Journal::sync_due_at);
        due.map_or(Duration::from_secs(3600), |due| {
            Duration::from_millis(due.saturating_sub(self.now()))
        })
    }

    fn now(&self) -> u64 {
        u64::try_from(self.begun.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}

impl WriterThread {
    /// Waits until everything handed over is written, and gives the writer back.
    pub fn finish(self) -> Result<Writer, WriteFailure> {
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn write_failure(error: &io::Error) -> WriteFailure {
    match error.kind() {
        io::ErrorKind::BrokenPipe => WriteFailure::ReaderGone,
        _ => WriteFailure::Refused(unreadable("the output", error)),
    }
}
