//! Which store a URL names.

use std::path::Path;

use sprag_engine::store::StoreError;
use sprag_kernel::{Code, Refusal};
use sprag_stores::sqlite::SqliteStore;

/// Opens the store of a URL to look at it. It must be there already.
pub fn look(url: &str) -> Result<SqliteStore, Refusal> {
    let path = match url.split_once(':') {
        Some(("sqlite", path)) => Path::new(path),
        Some(_) | None => {
            return Err(Refusal::new(Code::StoreUrlInvalid).with("given", url.to_owned()));
        }
    };
    if !path.is_file() {
        let reason = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(crate::output::unreadable(path.display(), &reason));
    }
    SqliteStore::look(path).map_err(refusal)
}

/// A store's failure as a refusal.
pub fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::Refused(refusal) => refusal,
        StoreError::Fenced => Refusal::new(Code::EngineFenced),
        StoreError::Unavailable(reason) | StoreError::Poison(reason) => {
            Refusal::new(Code::StoreUnavailable).with("reason", reason)
        }
    }
}
