//! Indexes a folder: one line per file, in the order of the paths, computed on all cores.
//!
//! `cargo run --release -p sprag-lanes --example index_folder -- FOLDER INDEX`
//!
//! Each line is digest, size and path. Stop it with a kill at any time and run it again: it goes on
//! behind what its journal, beside the index, holds, and the index is byte for byte that of an
//! undisturbed run. Lines that were written but not yet journalled are cut off before going on.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use sprag_lanes::journal::{Ending, Identity, Journal, JournalSink, MarkedSink, Settings, Syncer};
use sprag_lanes::{
    Batch, Config, Context, Entry, ErrorClass, Items, Lanes, Outcome, SinkError, Verdict, digest,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [folder, index] = &args[..] else {
        return Err("usage: index_folder FOLDER INDEX".into());
    };
    let mut files = Vec::new();
    list(folder, &mut files)?;
    files.sort();
    // With the path in the plan, a resumed run refuses a folder whose earlier paths are not the same.
    let source = Items::of(files)
        .entry(|path| entry_of(path))
        .content(|path| path.as_os_str().as_encoded_bytes());

    let run = Identity::of(folder.as_os_str().as_encoded_bytes());
    let path = index.with_extension("journal");
    let (journal, found) = Journal::open_or_create(&path, &run, Settings::default())?;
    let sink = JournalSink::new(Index::open(index, found.state.last.mark)?, journal)?;
    let config = Config { max_retries: 3, ..Config::default() };
    let report = Lanes::new(config).resume_journal(&found.state).run(source, describe, sink)?;
    report.sink.close(Ending::Complete)?;

    let counts = report.summary.counts;
    println!("{} indexed, {} skipped, {} failed", counts.success, counts.skip, counts.fail);
    Ok(())
}

/// One line for one file.
fn describe(path: &PathBuf, _: &Context) -> Outcome<String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Outcome::Skip("the file is gone".into());
        }
        // Too many open files, a slow mount: worth another try.
        Err(error) => return Outcome::Fail(ErrorClass::RetryableResource, error.to_string()),
    };
    let (hash, size) = (digest(&bytes), bytes.len());
    Outcome::Success(format!("{hash:016x} {size} {}\n", path.display()))
}

/// The larger the file, the more it costs; windows are cut by that.
fn entry_of(path: &Path) -> Entry {
    let size = fs::metadata(path).map_or(0, |meta| meta.len());
    Entry { cost: 1 + size / 4_096, bytes: 100 }
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let (path, kind) = entry.map(|entry| (entry.path(), entry.file_type()))?;
        match kind? {
            kind if kind.is_dir() => list(&path, files)?,
            kind if kind.is_file() => files.push(path),
            _ => {}
        }
    }
    Ok(())
}

/// The index; its mark is its length.
struct Index {
    file: File,
    length: u64,
}

impl Index {
    fn open(path: &Path, length: u64) -> io::Result<Self> {
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.set_len(length)?;
        file.seek(SeekFrom::End(0))?;
        Ok(Self { file, length })
    }
}

impl MarkedSink<String> for Index {
    fn write(&mut self, batch: &mut Batch<String>) -> Result<u64, SinkError> {
        let mut text = String::new();
        for (_, envelope) in batch.drain() {
            if let Verdict::Success(line) = envelope.verdict {
                text.push_str(&line);
            }
        }
        self.file.write_all(text.as_bytes())?;
        self.length += text.len() as u64;
        Ok(self.length)
    }

    fn syncer(&self) -> io::Result<Option<Syncer>> {
        let file = self.file.try_clone()?;
        Ok(Some(Box::new(move || file.sync_data())))
    }
}
