//! The writer: frames records behind each other, decides when to sync, when to mark a checkpoint.
//!
//! It owns the end of the file and the totals up to there, nothing that grows with the run. After a
//! failed write or sync nothing more is written: what the system did with the pages is unknown, and
//! only a new replay can tell.

use std::io;

use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};

use super::frame::{self, Place};
use super::header::Header;
use super::medium::Medium;
use super::outcome::{self, EqualRun, MAX_RUN_BYTES, Outcomes};
use super::record::{Checkpoint, Record};
use super::replay::Replay;
use super::state::{self, CommitPoint, Counts, Ending, RunState};
use super::{CommitRun, Identity, RunId, Settings, SyncPolicy};

/// Runs of equals in one terminal record, so that no frame is too long.
const MAX_RUNS: usize = (frame::MAX_FRAME - 64) / MAX_RUN_BYTES;

/// What the writer knows of the run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Totals {
    pub(super) last: CommitPoint,
    pub(super) counts: Counts,
    pub(super) retries: u64,
}

impl From<&RunState> for Totals {
    fn from(state: &RunState) -> Self {
        Self { last: state.last, counts: state.counts, retries: state.retries }
    }
}

/// Where a writer begins.
#[derive(Clone, Copy, Debug)]
pub(super) struct Start {
    pub(super) run_id: RunId,
    pub(super) epoch: u32,
    pub(super) owner: u32,
    pub(super) offset: u64,
    pub(super) number: u32,
    pub(super) synced_to: u64,
    /// How far the medium reaches.
    pub(super) allocated: u64,
}

/// The end of a journal, open for writing.
#[derive(Debug)]
pub(super) struct Log<M> {
    pub(super) medium: M,
    pub(super) at: Start,
    pub(super) totals: Totals,
    settings: Settings,
    buffer: Vec<u8>,
    /// When the oldest record that is not yet synced was written.
    waiting_since: Option<Millis>,
    commits_since_checkpoint: u32,
    broken: bool,
}

impl<M: Medium> Log<M> {
    /// Writes a whole journal of `state` to an empty medium, synced.
    pub(super) fn written(
        medium: M,
        identity: &Identity,
        state: &RunState,
        settings: Settings,
    ) -> Result<Self, Refusal> {
        let header_length = Header::length(&identity.note) as u64;
        let start = Start {
            run_id: identity.run_id,
            epoch: state.epoch,
            owner: state.owner,
            offset: header_length,
            number: 0,
            synced_to: header_length,
            allocated: 0,
        };
        let mut log = Self::new(medium, start, Totals::from(&RunState::new(0)), settings);
        log.history(state)?;
        let (identity, certain_to) = (identity.clone(), log.at.offset);
        let header = Header { identity, epoch: state.epoch, certain_to }.encode();
        let written = log.medium.write_at(&header, 0);
        log.note("write", written)?;
        log.sync()?;
        Ok(log)
    }

    /// Goes on behind a replayed journal, in a new epoch.
    pub(super) fn taken_over(
        mut medium: M,
        found: &Replay,
        owner: u32,
        settings: Settings,
    ) -> Result<Self, Refusal> {
        // Cut and synced before anything is written behind it: a leftover record must not come back
        // to life behind a new one, and what this replay saw must be what the next one sees.
        let cut = medium.cut(found.length).and_then(|()| medium.sync());
        let start = Start {
            run_id: found.identity.run_id,
            epoch: found.state.epoch + 1,
            owner,
            offset: found.length,
            number: found.records,
            synced_to: found.length,
            allocated: found.length,
        };
        let mut log = Self::new(medium, start, Totals::from(&found.state), settings);
        log.note("cut", cut)?;
        log.checkpoint(Ending::Open, 0)?;
        Ok(log)
    }

    fn new(medium: M, start: Start, totals: Totals, settings: Settings) -> Self {
        Self {
            medium,
            at: start,
            totals,
            settings,
            buffer: Vec::new(),
            waiting_since: None,
            commits_since_checkpoint: 0,
            broken: false,
        }
    }

    /// Writes the outcomes and the commit of seqs that begin at the cursor.
    pub(super) fn append(&mut self, run: &CommitRun<'_>, now: Millis) -> Result<(), Refusal> {
        let cursor = self.totals.last.end_seq;
        assert_eq!(run.first_seq, cursor, "the caller has cut off what is known");
        assert!(run.mark >= self.totals.last.mark, "a sink only grows");
        let mut runs: Vec<EqualRun> = Vec::new();
        for run in outcome::runs_of(run.first_seq, run.ends) {
            self.totals.counts.add(run.ended.outcome, run.length);
            self.totals.retries += u64::from(run.ended.attempts) * run.length;
            runs.push(run);
        }
        for some in runs.chunks(MAX_RUNS) {
            self.frame(&Record::Terminal(some.to_vec()));
        }
        self.totals.last = run.point();
        self.frame(&Record::Commit(run.point()));
        self.write(now)?;
        self.commits_since_checkpoint += 1;
        self.sync_if_due(now)
    }

    /// Writes a checkpoint and, unless the policy is none, syncs up to it.
    pub(super) fn checkpoint(&mut self, ending: Ending, now: Millis) -> Result<(), Refusal> {
        self.frame_checkpoint(ending, 0);
        self.write(now)?;
        self.commits_since_checkpoint = 0;
        match self.settings.sync {
            SyncPolicy::None => Ok(()),
            SyncPolicy::Batch | SyncPolicy::Always => self.sync(),
        }
    }

    /// Whether enough was committed since the last checkpoint for another one.
    pub(super) fn checkpoint_due(&self) -> bool {
        self.commits_since_checkpoint >= self.settings.checkpoint_every
    }

    /// Syncs everything written so far. The next record will say so.
    pub(super) fn sync(&mut self) -> Result<(), Refusal> {
        self.check_usable()?;
        let synced = self.medium.sync();
        self.note("sync", synced)?;
        self.at.synced_to = self.at.offset;
        self.waiting_since = None;
        Ok(())
    }

    /// When the policy wants the next sync at the latest.
    pub(super) fn sync_due_at(&self) -> Option<Millis> {
        match self.settings.sync {
            SyncPolicy::None => None,
            SyncPolicy::Batch => self.waiting_since.map(|since| since + self.settings.sync_wait_ms),
            SyncPolicy::Always => self.waiting_since,
        }
    }

    /// Syncs if the policy wants it by now.
    pub(super) fn sync_if_due(&mut self, now: Millis) -> Result<(), Refusal> {
        let full = self.settings.sync == SyncPolicy::Batch
            && self.at.offset - self.at.synced_to >= self.settings.sync_bytes;
        if full || self.sync_due_at().is_some_and(|due| now >= due) { self.sync() } else { Ok(()) }
    }

    /// Writes the fewest records that build `state`, for an empty log.
    fn history(&mut self, state: &RunState) -> Result<(), Refusal> {
        let mut from = 0;
        for point in state.points() {
            let runs: Vec<EqualRun> = state.outcomes.within(from, point.end_seq).collect();
            for some in runs.chunks(MAX_RUNS) {
                self.frame(&Record::Terminal(some.to_vec()));
            }
            self.frame(&Record::Commit(*point));
            from = point.end_seq;
        }
        self.totals = Totals::from(state);
        self.frame_checkpoint(state.ending, state.points.spacing);
        self.write(0)
    }

    fn frame_checkpoint(&mut self, ending: Ending, spacing: u8) {
        let Totals { last, counts, retries } = self.totals;
        self.frame(&Record::Checkpoint(Checkpoint {
            ending,
            cursor: last.end_seq,
            counts,
            retries,
            spacing,
            owner: self.at.owner,
        }));
    }

    fn frame(&mut self, record: &Record) {
        let Start { run_id, epoch, number, .. } = self.at;
        let offset = self.at.offset + self.buffer.len() as u64;
        let body = record.encode(offset, self.at.synced_to);
        frame::write(&mut self.buffer, Place { run_id, offset, epoch, number }, &body);
        self.at.number = number.wrapping_add(1);
    }

    /// Writes the framed records with one call.
    fn write(&mut self, now: Millis) -> Result<(), Refusal> {
        self.check_usable()?;
        let end = self.at.offset + self.buffer.len() as u64;
        if end > self.at.allocated {
            let length = end.next_multiple_of(self.settings.segment_bytes);
            let allocated = self.medium.allocate(self.at.allocated, length);
            self.note("allocate", allocated)?;
            self.at.allocated = length;
        }
        let written = self.medium.write_at(&self.buffer, self.at.offset);
        self.note("write", written)?;
        self.buffer.clear();
        self.at.offset = end;
        self.waiting_since.get_or_insert(now);
        Ok(())
    }

    fn check_usable(&self) -> Result<(), Refusal> {
        if self.broken {
            return Err(Refusal::new(Code::JournalUnavailable)
                .with("reason", "an earlier write to it failed"));
        }
        Ok(())
    }

    fn note(&mut self, operation: &'static str, done: io::Result<()>) -> Result<(), Refusal> {
        done.map_err(|error| {
            self.broken = true;
            Refusal::new(Code::JournalUnavailable)
                .with("operation", operation)
                .with("reason", error.to_string())
        })
    }
}

/// Cuts off what the journal already holds of `run`; refuses if it holds something else.
pub(super) fn cut_known(
    run: &CommitRun<'_>,
    cursor: u64,
    known: &Outcomes,
) -> Result<usize, Refusal> {
    for equal in outcome::runs_of(run.first_seq, run.ends) {
        if let Some(seq) = known.conflict(equal) {
            return Err(Refusal::new(Code::SeqOutcomeConflict).with("seq", seq));
        }
        if state::behind(equal, cursor).is_some() {
            break;
        }
    }
    Ok(usize::try_from(cursor - run.first_seq).unwrap_or(usize::MAX).min(run.ends.len()))
}
