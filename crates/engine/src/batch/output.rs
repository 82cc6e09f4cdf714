//! The ordered output of a batch: read from its journal page by page, or written to a file.
//!
//! The journal is the truth and the file is made from it: a run is written at its own offset once it is
//! committed, never before. So an attempt that was superseded, and wakes up late, can write nothing but what
//! stands there already. A file that a crash has left short or torn is written again when the batch resumes. What was
//! there before the batch, and reaches further, is cut off when all is committed: only then is the length the same
//! whoever cuts. The file is whole and synced before the message that ends the attempt is stored.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::journal;
use super::store::{BatchPlace, Batches, JournalRow};
use crate::store::{Answer, StoreError};

pub use super::journal::SeqOutcome;

/// Journal rows of one page.
pub(crate) const PAGE_ROWS: u32 = 16;

/// One seq of the output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutputItem {
    /// Its place among the items.
    pub seq: u64,
    /// How it ended.
    pub outcome: SeqOutcome,
    /// JSON text of what came out of it.
    pub output: Option<String>,
}

/// The seqs from `from_seq` on, in order, at most `limit`; fewer only at the end of what is committed.
pub async fn page<S: Batches>(
    store: &S,
    place: BatchPlace,
    from_seq: u64,
    limit: usize,
) -> Answer<Vec<OutputItem>> {
    let mut items: Vec<OutputItem> = Vec::new();
    while items.len() < limit {
        let next = from_seq + items.len() as u64;
        let rows = store.batch_journal(place, next, PAGE_ROWS).await?;
        if rows.is_empty() {
            break;
        }
        for row in &rows {
            let seqs = journal::seqs(row).ok_or_else(|| contradiction(row))?;
            let wanted = seqs.into_iter().filter(|(seq, ..)| *seq >= next);
            items.extend(wanted.map(|(seq, outcome, output)| OutputItem {
                seq,
                outcome,
                output: output.map(ToOwned::to_owned),
            }));
        }
    }
    items.truncate(limit);
    Ok(items)
}

fn contradiction(row: &JournalRow) -> StoreError {
    StoreError::Poison(format!("the journal row of seq {} contradicts itself", row.first_seq))
}

/// The file of a batch.
pub(super) struct OutFile(File);

impl OutFile {
    /// Opens or creates it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        let mut how = OpenOptions::new();
        how.read(true).write(true).create(true).truncate(false).open(path).map(Self)
    }

    /// Writes committed output at its place, and says where that ends.
    pub(super) fn write(&self, outputs: &str, at: u64) -> io::Result<u64> {
        self.0.write_all_at(outputs.as_bytes(), at)?;
        Ok(at + outputs.len() as u64)
    }

    /// Cuts off what reaches further than the output of the whole batch.
    pub(super) fn cut(&self, length: u64) -> io::Result<()> {
        self.0.set_len(length)
    }

    /// Makes it durable.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.0.sync_all()
    }
}
