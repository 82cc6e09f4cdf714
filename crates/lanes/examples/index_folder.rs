//! Indexes a folder: one line per file, in the order of the paths, computed on all cores.
//!
//! `cargo run --release -p sprag-lanes --example index_folder -- FOLDER INDEX`
//!
//! Each line is digest, size and path. Stop it with a kill at any time and run it again: it goes
//! on behind the last batch that was written, and the index is byte for byte that of an undisturbed run.
//! The resume point is kept beside the index, with the length of the index it belongs to; what was
//! written behind that point is cut off before going on.

use std::error::Error;
use std::fs::{self, File, OpenOptions};
use std::io::{Seek as _, SeekFrom, Write as _};
use std::path::{Path, PathBuf};

use sprag_lanes::{
    Batch, Config, Context, Entry, ErrorClass, Items, Lanes, Outcome, Resume, Sink, SinkError,
    Verdict, digest,
};

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [folder, index] = &args[..] else {
        return Err("usage: index_folder FOLDER INDEX".into());
    };
    let mut files = Vec::new();
    list(folder, &mut files)?;
    files.sort();
    let (sink, resume) = Index::open(index)?;
    let config = Config { max_retries: 3, ..Config::default() };
    // With the path in the plan, a resumed run refuses a folder whose earlier paths are not the same.
    let source = Items::of(files)
        .entry(|path| entry_of(path))
        .content(|path| path.as_os_str().as_encoded_bytes());
    let report = Lanes::new(config).resume(resume).run(source, describe, sink)?;
    let counts = report.summary.counts;
    println!("{} indexed, {} skipped, {} failed", counts.success, counts.skip, counts.fail);
    Ok(())
}

/// One line for one file.
fn describe(path: &PathBuf, _: &Context) -> Outcome<String> {
    let bytes = match fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
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

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
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

/// The index and, beside it, the point up to which it is good.
struct Index {
    file: File,
    length: u64,
    point: PathBuf,
}

impl Index {
    fn open(path: &Path) -> Result<(Self, Resume), Box<dyn Error>> {
        let point = path.with_extension("resume");
        let (length, resume): (u64, Resume) = match fs::read(&point) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(_) => (0, Resume::default()),
        };
        let mut file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
        file.set_len(length)?;
        file.seek(SeekFrom::End(0))?;
        Ok((Self { file, length, point }, resume))
    }
}

impl Sink<String> for Index {
    fn commit(&mut self, batch: &mut Batch<String>) -> Result<(), SinkError> {
        let mut text = String::new();
        for (_, envelope) in batch.drain() {
            if let Verdict::Success(line) = envelope.verdict {
                text.push_str(&line);
            }
        }
        self.file.write_all(text.as_bytes())?;
        self.file.sync_data()?;
        self.length += text.len() as u64;
        // Written whole and then renamed: a crash leaves the old point or the new one.
        let next = self.point.with_extension("resume-next");
        let point = serde_json::to_vec(&(self.length, batch.resume()));
        fs::write(&next, point.map_err(SinkError::permanent)?)?;
        Ok(fs::rename(&next, &self.point)?)
    }
}
