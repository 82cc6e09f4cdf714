//! The commits of a batch: each run of outcomes as one write of the store, the last one with the message
//! that ends the attempt. The commit lane waits for the store, so that lanes never run ahead of what is
//! durable by more than their windows.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::json;
use sprag_kernel::decide::batch::{Verdict, verdict};
use sprag_kernel::decide::callback::Report;
use sprag_kernel::{Cause, Code};
use sprag_lanes::{Batch, Control, Sink, SinkError};
use tokio::runtime::Handle;

use super::journal::{self, SeqOutcome};
use super::output::{OutFile, OutputItem};
use super::store::{BatchPoint, BatchWorked, BatchWrite};
use super::{OutputHandler, OutputRun};
use crate::crash::crash_point;
use crate::directive::Failure;
use crate::ids::EngineNo;
use crate::plan;
use crate::store::{Answer, AttemptError, EndWrite, Held, Store, StoreError};
use crate::worker::panicked;

/// How long a store that was away is left alone.
const AWAY: Duration = Duration::from_millis(200);
/// How often it is asked again once the batch is to end. Until then a commit waits for its store.
const LAST_TRIES: u32 = 50;

/// The attempt and its output, once the message that ends it is stored.
pub(super) type Ended = Arc<Mutex<Option<(Held, Option<String>)>>>;

/// Where the failure of an output handler is left.
pub(super) type Refused = Arc<Mutex<Option<Failure>>>;

/// The output handler of a batch, and how long its work may take.
pub(super) struct Output<W> {
    pub(super) handler: OutputHandler<W>,
    pub(super) limit: Duration,
    pub(super) effect_key: String,
    pub(super) refused: Refused,
}

/// Commits what comes out of the lanes.
pub(super) struct LedgerSink<S: Store> {
    pub(super) store: Arc<S>,
    pub(super) engine: EngineNo,
    pub(super) runtime: Handle,
    pub(super) control: Control,
    pub(super) held: Held,
    pub(super) tolerated: u64,
    pub(super) total: Option<u64>,
    pub(super) point: BatchPoint,
    /// The file, and what the output says of it.
    pub(super) file: Option<(OutFile, String)>,
    pub(super) output: Option<Output<S::Work>>,
    pub(super) ended: Ended,
}

impl<S: Store> Sink<String> for LedgerSink<S> {
    fn commit(&mut self, batch: &mut Batch<String>) -> Result<(), SinkError> {
        let (row, to) = journal::row(batch, &self.point);
        // A file must be whole before the batch is over.
        let is_over = batch.is_last() && self.file.is_none();
        let end = if is_over { self.ending(&to)? } else { None };
        let write = self.write(to, end);
        let outputs = BatchWrite { journal: Some(row), ..write };
        crash_point("batch.before_commit");
        let outputs = self.put(outputs)?;
        crash_point("batch.after_commit");
        if let (Some((file, _)), Some(row)) = (&self.file, outputs.journal) {
            file.write(&row.outputs, to.out_bytes - row.outputs.len() as u64)?;
        }
        Ok(())
    }
}

impl<S: Store> LedgerSink<S> {
    /// Ends the attempt of a batch whose every seq is committed, if its last commit did not.
    pub(super) fn close(&mut self) -> Result<(), SinkError> {
        if self.ended.lock().unwrap_or_else(PoisonError::into_inner).is_some() {
            return Ok(());
        }
        if let Some((file, _)) = &self.file {
            file.cut(self.point.out_bytes)?;
            file.sync()?;
        }
        let to = self.point;
        let end = self.ending(&to)?;
        self.put(self.write(to, end)).map(|_| ())
    }

    /// Writes what is committed into the file once more, as a crash may have left anything there. What stands behind
    /// it is left alone until the batch is over: nothing shows whether this attempt has been superseded meanwhile,
    /// and then it is what the next one has written.
    pub(super) fn restore_file(&self) -> Result<(), SinkError> {
        let Some((file, _)) = &self.file else { return Ok(()) };
        let (mut seq, mut at) = (0, 0);
        while seq < self.point.resume.cursor {
            let place = (&self.held.key).into();
            let read = self.store.batch_journal(place, seq, super::output::PAGE_ROWS);
            let rows = self.runtime.block_on(read).map_err(SinkError::transient)?;
            if rows.is_empty() {
                return Err(SinkError::permanent("the journal is shorter than the cursor says"));
            }
            for row in rows {
                at = file.write(&row.outputs, at)?;
                seq = row.first_seq + row.seqs;
            }
        }
        Ok(())
    }

    fn write(&self, to: BatchPoint, end: Option<EndWrite>) -> BatchWrite {
        let lease_id = plan::fence(&self.held.attempt).lease_id;
        let (key, from, total) = (self.held.key, self.point.resume.cursor, self.total);
        BatchWrite { key, lease_id, from, to, total, journal: None, end, repeats: false }
    }

    /// Commits; waits for a store that is away.
    fn put(&mut self, mut write: BatchWrite) -> Result<BatchWrite, SinkError> {
        let mut tries = 0;
        loop {
            match self.commit_once(&write) {
                Ok(BatchWorked::Committed { cancelling }) => {
                    self.committed(&write, cancelling);
                    return Ok(write);
                }
                Ok(BatchWorked::Failed(failure)) => {
                    let error = SinkError::permanent(&failure.message);
                    if let Some(output) = &self.output {
                        let mut refused =
                            output.refused.lock().unwrap_or_else(PoisonError::into_inner);
                        *refused = Some(failure);
                    }
                    return Err(error);
                }
                Ok(BatchWorked::Stale) => {
                    return Err(SinkError::superseded(
                        "the attempt is over, or another has the batch",
                    ));
                }
                Err(StoreError::Fenced) => return Err(SinkError::superseded(StoreError::Fenced)),
                Err(error @ (StoreError::Poison(_) | StoreError::Refused(_))) => {
                    return Err(SinkError::permanent(error));
                }
                Err(error @ StoreError::Unavailable(_)) => {
                    tries += u32::from(self.control.is_ending());
                    if tries > LAST_TRIES {
                        return Err(SinkError::transient(error));
                    }
                    tracing::warn!(code = "STORE_CALL_FAILED", %error, "a batch waits for the store");
                    std::thread::sleep(AWAY);
                    write.repeats = true;
                }
            }
        }
    }

    /// With the work of the output handler, if there is one and something for it to write.
    fn commit_once(&self, write: &BatchWrite) -> Answer<BatchWorked> {
        let (engine, write) = (self.engine, write.clone());
        let Some((output, row)) = self.output.as_ref().zip(write.journal.as_ref()) else {
            let committed = self.runtime.block_on(self.store.commit_batch(engine, write));
            return committed.map(BatchWorked::from);
        };
        let seqs = journal::seqs(row).expect("a row that was just made is whole");
        let item = |(seq, outcome, output): (u64, SeqOutcome, Option<&str>)| OutputItem {
            seq,
            outcome,
            output: output.map(ToOwned::to_owned),
        };
        let items = seqs.into_iter().map(item).collect();
        let run = OutputRun { effect_key: output.effect_key.clone(), items };
        let made = catch_unwind(AssertUnwindSafe(|| (output.handler)(run)));
        let work = match made {
            Ok(work) => work,
            Err(panic) => {
                return Ok(BatchWorked::Failed(panicked(
                    Cause::HandlerPanic.name(),
                    panic.as_ref(),
                )));
            }
        };
        let commit = self.store.commit_batch_with(engine, write, work, output.limit);
        self.runtime.block_on(commit)
    }

    fn committed(&mut self, write: &BatchWrite, cancelling: bool) {
        self.point = write.to;
        if cancelling {
            self.control.cancel();
        }
        if let Some(end) = &write.end {
            let mut held = self.held.clone();
            held.attempt.version = end.version + 1;
            held.attempt.ledger = end.ledger;
            held.attempt.ending = Some(end.ending);
            let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
            *ended = Some((held, end.output.clone()));
        }
    }

    /// The message that ends the attempt, by what came out of all seqs.
    fn ending(&self, to: &BatchPoint) -> Result<Option<EndWrite>, SinkError> {
        let counts = to.resume.counts;
        let verdict = verdict(counts.fail, counts.cancel, self.tolerated);
        let error = match verdict {
            Verdict::Succeeded => None,
            Verdict::ItemsFailed => Some(AttemptError {
                code: Code::BatchItemsFailed.name().to_owned(),
                message: format!(
                    "{} of {} items failed, the first of them seq {}; {} are tolerated",
                    counts.fail,
                    to.resume.cursor,
                    to.first_failed.unwrap_or_default(),
                    self.tolerated
                ),
            }),
            Verdict::Cancelled => Some(AttemptError {
                code: Cause::Cancelled.name().to_owned(),
                message: format!("{} items were cancelled with their job", counts.cancel),
            }),
        };
        let out = match (&self.file, &self.output) {
            (Some((_, path)), _) => json!({"file": path}),
            (None, Some(_)) => json!("handler"),
            (None, None) => json!("table"),
        };
        let output = json!({
            "success": counts.success, "skip": counts.skip, "fail": counts.fail,
            "cancel": counts.cancel, "first_failed": to.first_failed, "out": out,
        });
        let report: Report = verdict.report();
        plan::result(&self.held, report, Some(output.to_string()), error)
            .map_err(SinkError::permanent)
    }
}
