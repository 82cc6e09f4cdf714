//! The write points: every change that a run makes to a file passes through here.
//!
//! With the feature `fault` a test can have the process killed (SIGKILL, no clean-up) at the n-th
//! point by `SPRAG_FAULT_KILL_AT`: before the change, or for a write after its first half when
//! `SPRAG_FAULT_TORN` is set. `SPRAG_FAULT_COUNT` names a file to which the number of points passed
//! is written at the end. Without the feature the functions are the plain calls.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Writes all of `bytes` at `offset`.
pub fn write_all_at(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    #[cfg(feature = "fault")]
    if hook::fatal() {
        if hook::torn() {
            file.write_all_at(&bytes[..bytes.len() / 2], offset)?;
        }
        hook::kill();
    }
    file.write_all_at(bytes, offset)
}

/// Waits until the contents of the file are on the disk.
pub fn sync_data(file: &File) -> io::Result<()> {
    point();
    file.sync_data()
}

/// Cuts the file or extends it with zeros.
pub fn set_len(file: &File, length: u64) -> io::Result<()> {
    point();
    file.set_len(length)
}

/// Gives `new` the name `path`, replacing what had it.
pub fn rename(new: &Path, path: &Path) -> io::Result<()> {
    point();
    std::fs::rename(new, path)
}

/// Gives the file `new` the further name `path`, which must be free.
pub fn link(new: &Path, path: &Path) -> io::Result<()> {
    point();
    std::fs::hard_link(new, path)
}

/// Takes a name away.
pub fn remove(path: &Path) -> io::Result<()> {
    point();
    std::fs::remove_file(path)
}

/// Waits until the names in the folder of `path` are on the disk.
pub fn sync_folder(path: &Path) -> io::Result<()> {
    point();
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// A place to be killed at that is not a change of its own.
pub fn point() {
    #[cfg(feature = "fault")]
    if hook::fatal() {
        hook::kill();
    }
}

/// Writes down how many points were passed, if a test asked for it.
pub fn report() {
    #[cfg(feature = "fault")]
    hook::report();
}

#[cfg(feature = "fault")]
mod hook {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};

    static PASSED: AtomicU64 = AtomicU64::new(0);

    /// Counts this point; whether it is the one to be killed at.
    pub(super) fn fatal() -> bool {
        static KILL_AT: OnceLock<Option<u64>> = OnceLock::new();
        let kill_at = KILL_AT.get_or_init(|| {
            std::env::var("SPRAG_FAULT_KILL_AT").ok().and_then(|text| text.parse().ok())
        });
        let passed = PASSED.fetch_add(1, Ordering::Relaxed) + 1;
        *kill_at == Some(passed)
    }

    pub(super) fn torn() -> bool {
        std::env::var_os("SPRAG_FAULT_TORN").is_some()
    }

    pub(super) fn kill() -> ! {
        let this = rustix::process::getpid();
        let _ = rustix::process::kill_process(this, rustix::process::Signal::KILL);
        loop {
            std::thread::park();
        }
    }

    pub(super) fn report() {
        if let Some(path) = std::env::var_os("SPRAG_FAULT_COUNT") {
            let _ = std::fs::write(path, PASSED.load(Ordering::Relaxed).to_string());
        }
    }
}
