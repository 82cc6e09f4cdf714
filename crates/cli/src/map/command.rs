//! One command: started in its own process group, its output kept whole, ended when its time is up.
//!
//! A command has ended when it has exited and everything that could still write to its stdout or
//! stderr has closed them, so no output is lost; a time limit covers all of that.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStderr, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, pidfd_open, waitid};

use super::args::StderrPolicy;
use super::groups::{Groups, KILL_AFTER, signal};
use super::interrupted;

/// The most that one command may print; more is a runaway and ends it.
const MAX_OUTPUT_BYTES: usize = 256 << 20;
const READ_BYTES: usize = 16 << 10;
/// What a shell answers when there is no such command, and when it cannot be executed.
const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_EXECUTABLE: i32 = 126;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// By itself, with this code.
    Exit(i32),
    /// By this signal, sent by someone else.
    Signal(i32),
    /// Its time was up.
    Timeout,
    /// The system had no room for it.
    NotStarted,
    /// The run ended it.
    Ended,
}

/// What a command left.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// How it ended.
    pub end: End,
    /// What it printed.
    pub stdout: Vec<u8>,
    /// What it complained, if that is kept.
    pub stderr: Vec<u8>,
}

/// What all commands of a run have in common.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The longest that one may take.
    pub timeout: Option<Duration>,
    /// Where its stderr goes.
    pub stderr: StderrPolicy,
}

/// Runs a command to its end.
pub fn run(words: &[OsString], limits: Limits, groups: &Groups) -> Finished {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::piped()).process_group(0);
    command.stderr(match limits.stderr {
        StderrPolicy::Pass => Stdio::inherit(),
        StderrPolicy::Drop => Stdio::null(),
        StderrPolicy::Ordered | StderrPolicy::Failed => Stdio::piped(),
    });
    match command.spawn() {
        Ok(child) => Running::new(child, limits, groups).finish(),
        Err(error) => not_started(&words[0], &error),
    }
}

fn not_started(program: &OsString, error: &io::Error) -> Finished {
    let end = match error.kind() {
        io::ErrorKind::NotFound => End::Exit(EXIT_NOT_FOUND),
        io::ErrorKind::PermissionDenied | io::ErrorKind::InvalidInput => {
            End::Exit(EXIT_NOT_EXECUTABLE)
        }
        io::ErrorKind::ArgumentListTooLong => End::Exit(EXIT_NOT_EXECUTABLE),
        _ => End::NotStarted,
    };
    let stderr = format!("sprag: {}: {error}\n", program.display()).into_bytes();
    Finished { end, stdout: Vec::new(), stderr }
}

/// A command that was started.
struct Running<'a> {
    child: Child,
    leader: Pid,
    groups: &'a Groups,
    stdout: Pipe<ChildStdout>,
    stderr: Pipe<ChildStderr>,
    deadline: Option<Instant>,
    /// What is done about a command that did not end in time.
    ending: Ending,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    No,
    Asked,
    Killed,
}

impl<'a> Running<'a> {
    fn new(mut child: Child, limits: Limits, groups: &'a Groups) -> Self {
        let leader = Pid::from_child(&child);
        groups.enter(leader);
        let (stdout, stderr) = (Pipe::new(child.stdout.take()), Pipe::new(child.stderr.take()));
        let deadline = limits.timeout.map(|timeout| Instant::now() + timeout);
        Self { child, leader, groups, stdout, stderr, deadline, ending: Ending::No }
    }

    fn finish(mut self) -> Finished {
        self.read_output();
        self.await_exit();
        // From here on the number of the group may become someone else's.
        self.groups.leave(self.leader);
        let status = self.child.wait();
        let end = match status {
            _ if self.ending != Ending::No => End::Timeout,
            // Whatever it says: it may have been in the middle of its work.
            _ if self.groups.is_ending() => End::Ended,
            Ok(status) => match (status.code(), status.signal()) {
                (Some(code), _) => End::Exit(code),
                (None, signal) => End::Signal(signal.unwrap_or(0)),
            },
            Err(_) => End::Signal(0),
        };
        Finished { end, stdout: self.stdout.bytes, stderr: self.stderr.bytes }
    }

    fn read_output(&mut self) {
        while self.stdout.source.is_some() || self.stderr.source.is_some() {
            let mut fds = Vec::with_capacity(2);
            fds.extend(self.stdout.source.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            fds.extend(self.stderr.source.as_ref().map(|pipe| PollFd::new(pipe, PollFlags::IN)));
            let patience = self.patience().map(|left| left.try_into().expect("a short time"));
            let ready = poll(&mut fds, patience.as_ref());
            let answers: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            match ready {
                Ok(0) if self.past_deadline() => return,
                Ok(_) => {}
                Err(error) if interrupted(error) => continue,
                Err(_) => return,
            }
            let mut ready = answers.into_iter();
            self.stdout.read_if(&mut ready);
            self.stderr.read_if(&mut ready);
            if self.stdout.bytes.len().max(self.stderr.bytes.len()) > MAX_OUTPUT_BYTES {
                self.deadline = Some(Instant::now());
            }
        }
    }

    /// Waits for the exit without reaping, so that the group keeps its number until it is off the list.
    fn await_exit(&mut self) {
        if self.deadline.is_some()
            && let Ok(pidfd) = pidfd_open(self.leader, PidfdFlags::empty())
        {
            loop {
                let mut fds = [PollFd::new(&pidfd, PollFlags::IN)];
                let patience = self.patience().map(|left| left.try_into().expect("a short time"));
                match poll(&mut fds, patience.as_ref()) {
                    Ok(0) if self.past_deadline() => break,
                    Ok(0) => {}
                    Err(error) if interrupted(error) => {}
                    Ok(_) | Err(_) => break,
                }
            }
        }
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        while waitid(WaitId::Pid(self.leader), options).is_err_and(interrupted) {}
    }

    fn patience(&self) -> Option<Duration> {
        self.deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
    }

    /// Goes one step further in ending a command that is too slow; true when there is none left, and
    /// whoever still holds its pipes is not of its group.
    fn past_deadline(&mut self) -> bool {
        self.deadline = Some(Instant::now() + KILL_AFTER);
        self.ending = match self.ending {
            Ending::No => {
                signal(self.leader, Signal::TERM);
                Ending::Asked
            }
            Ending::Asked => {
                signal(self.leader, Signal::KILL);
                Ending::Killed
            }
            Ending::Killed => return true,
        };
        false
    }
}

/// One end of a pipe and what came out of it.
struct Pipe<R> {
    source: Option<R>,
    bytes: Vec<u8>,
}

impl<R: Read> Pipe<R> {
    fn new(source: Option<R>) -> Self {
        Self { source, bytes: Vec::new() }
    }

    /// Reads what is there, if the next answer of `ready` says so; lets go of a pipe at its end.
    fn read_if(&mut self, ready: &mut impl Iterator<Item = bool>) {
        let Some(source) = &mut self.source else { return };
        if ready.next() != Some(true) {
            return;
        }
        let mut buffer = [0; READ_BYTES];
        match source.read(&mut buffer) {
            Ok(0) => self.source = None,
            Ok(length) => self.bytes.extend_from_slice(&buffer[..length]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => self.source = None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: Limits = Limits { timeout: None, stderr: StderrPolicy::Ordered };

    fn sh(script: &str, limits: Limits) -> Finished {
        let words = ["/bin/sh", "-c", script].map(OsString::from);
        run(&words, limits, &Groups::default())
    }

    #[test]
    fn output_and_exit_code_are_kept() {
        let done = sh("echo out; echo err >&2; exit 3", LIMITS);
        assert_eq!(done.end, End::Exit(3));
        assert_eq!((&done.stdout[..], &done.stderr[..]), (&b"out\n"[..], &b"err\n"[..]));
        assert_eq!(sh("kill -9 $$", LIMITS).end, End::Signal(9));
    }

    #[test]
    fn much_output_on_both_pipes_does_not_block() {
        let done = sh("head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero", LIMITS);
        assert_eq!((done.stdout.len(), done.stderr.len()), (3_000_000, 3_000_000));
    }

    #[test]
    fn a_command_that_does_not_exist_ends_as_in_a_shell() {
        let words = [OsString::from("/does/not/exist")];
        let done = run(&words, LIMITS, &Groups::default());
        assert_eq!(done.end, End::Exit(127));
        assert!(!done.stderr.is_empty());
    }

    #[test]
    fn a_timeout_ends_grandchildren_too() {
        let limits = Limits { timeout: Some(Duration::from_millis(100)), ..LIMITS };
        let begun = Instant::now();
        let done = sh("echo $$; sleep 61 & sleep 61", limits);
        assert_eq!(done.end, End::Timeout);
        assert!(begun.elapsed() < Duration::from_secs(5));
        let group: i32 = String::from_utf8(done.stdout).unwrap().trim().parse().unwrap();
        let group = Pid::from_raw(group).unwrap();
        // The last of the group may take a moment to be reaped by init.
        let gone = (0..200).any(|_| {
            std::thread::sleep(Duration::from_millis(10));
            rustix::process::test_kill_process_group(group).is_err()
        });
        assert!(gone, "group {group:?} lives");
    }

    #[test]
    fn a_timeout_also_ends_what_ignores_the_first_signal_and_what_closed_its_output() {
        let limits = Limits { timeout: Some(Duration::from_millis(50)), ..LIMITS };
        let begun = Instant::now();
        assert_eq!(sh("trap '' TERM; while :; do sleep 1; done", limits).end, End::Timeout);
        assert_eq!(sh("exec >&- 2>&-; sleep 61", limits).end, End::Timeout);
        assert!(begun.elapsed() < Duration::from_secs(8));
    }

    #[test]
    fn ending_all_groups_ends_a_command() {
        let groups = Groups::default();
        let done = std::thread::scope(|scope| {
            let words = ["sleep", "61"].map(OsString::from);
            let groups = &groups;
            let running = scope.spawn(move || run(&words, LIMITS, groups));
            std::thread::sleep(Duration::from_millis(50));
            groups.end_all();
            running.join().unwrap()
        });
        assert_eq!(done.end, End::Ended);
    }
}
