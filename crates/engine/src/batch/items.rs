//! Where the items of a batch come from: a list, or a file with one item per line. An item is text until a
//! lane computes it; its bytes go into the hash that tells a changed input.

use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::path::{Component, Path, PathBuf};

use serde_json::Value;
use sprag_kernel::{Code, Refusal};
use sprag_lanes::{Entry, Source};

/// The longest line of a file: an item is in memory as a whole.
const MAX_ITEM_BYTES: u64 = 16 << 20;

/// The items of one batch.
pub(super) enum Texts {
    /// A list, and how many there were in it at the start.
    List(std::vec::IntoIter<Value>, u64),
    /// A file, and whether it is one, and not a pipe.
    Lines(BufReader<File>, bool),
}

impl Texts {
    /// Those of a list.
    pub(super) fn list(values: Vec<Value>) -> Self {
        let total = values.len() as u64;
        Self::List(values.into_iter(), total)
    }

    /// Those of a file.
    pub(super) fn read(path: &Path) -> Result<Self, Refusal> {
        let unreadable = |error: std::io::Error| {
            Refusal::new(Code::InputUnreadable)
                .with("what", path.display().to_string())
                .with("reason", error.to_string())
        };
        let file = File::open(path).map_err(unreadable)?;
        let is_file = file.metadata().map_err(unreadable)?.is_file();
        Ok(Self::Lines(BufReader::new(file), is_file))
    }
}

impl Source for Texts {
    type Item = String;

    fn next(&mut self) -> Result<Option<String>, String> {
        match self {
            Self::List(values, _) => Ok(values.next().map(|value| value.to_string())),
            Self::Lines(file, _) => next_line(file),
        }
    }

    fn total(&self) -> Option<u64> {
        match self {
            Self::List(_, total) => Some(*total),
            // Its end shows when it is there.
            Self::Lines(..) => None,
        }
    }

    fn is_at_hand(&self) -> bool {
        match self {
            Self::List(..) => true,
            Self::Lines(_, is_file) => *is_file,
        }
    }

    fn entry(&self, item: &String) -> Entry {
        Entry { cost: 1, bytes: item.len() as u64 }
    }

    fn content<'a>(&self, item: &'a String) -> Option<&'a [u8]> {
        Some(item.as_bytes())
    }
}

/// The next line that is not blank.
fn next_line(file: &mut BufReader<File>) -> Result<Option<String>, String> {
    loop {
        let mut line = String::new();
        let read = file.by_ref().take(MAX_ITEM_BYTES).read_line(&mut line);
        let bytes = read.map_err(|error| error.to_string())?;
        if bytes as u64 == MAX_ITEM_BYTES && !line.ends_with('\n') {
            return Err(format!("a line is longer than {MAX_ITEM_BYTES} bytes"));
        }
        let text = line.trim();
        match (bytes, text.is_empty()) {
            (0, _) => return Ok(None),
            (_, true) => {}
            (_, false) => return Ok(Some(text.to_owned())),
        }
    }
}

/// A path below the engine's files. What leads out of them is refused.
pub(super) fn below(files: Option<&Path>, given: &Value) -> Result<PathBuf, Refusal> {
    let refused = |reason: &'static str| {
        Refusal::new(Code::InputUnreadable).with("what", given.to_string()).with("reason", reason)
    };
    let files = files.ok_or_else(|| refused("this engine was given no folder for files"))?;
    let path = Path::new(given.as_str().ok_or_else(|| refused("a path is text"))?);
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    if path.as_os_str().is_empty() || !path.components().all(is_plain) {
        return Err(refused("the path leads out of the engine's files"));
    }
    Ok(files.join(path))
}
