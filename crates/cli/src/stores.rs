//! Which store a URL names, and looking at it: one call at a time, for commands that only read.

use std::future::Future;
use std::path::Path;

use sprag_engine::ids::JobId;
use sprag_engine::store::{
    Answer, AttemptView, Check, EventView, JobFilter, JobView, Store, StoreError,
};
use sprag_kernel::retry::Millis;
use sprag_kernel::{Code, Refusal};
use sprag_stores::postgres::{PostgresOptions, PostgresStore};
use sprag_stores::sqlite::SqliteStore;
use tokio::runtime::{Builder, Runtime};

enum Known {
    Sqlite(SqliteStore),
    Postgres(PostgresStore),
}

/// A store that is looked at.
pub struct Looking {
    runtime: Runtime,
    store: Known,
}

/// Asks whichever store it is.
macro_rules! ask {
    ($looking:expr, $call:ident($($argument:expr),*)) => {
        match &$looking.store {
            Known::Sqlite(store) => $looking.wait(store.$call($($argument),*)),
            Known::Postgres(store) => $looking.wait(store.$call($($argument),*)),
        }
    };
}

impl Looking {
    /// Opens the store of a URL. A file must be there already.
    pub fn open(url: &str) -> Result<Self, Refusal> {
        let runtime = Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| crate::output::unreadable("a thread", &error))?;
        let store = match url.split_once(':') {
            Some(("sqlite", path)) => Known::Sqlite(sqlite(Path::new(path))?),
            Some(("postgres" | "postgresql", _)) => {
                let options = PostgresOptions::new(url);
                let opened = runtime.block_on(PostgresStore::open(&options));
                Known::Postgres(opened.map_err(refusal)?)
            }
            Some(_) | None => {
                return Err(Refusal::new(Code::StoreUrlInvalid).with("given", url.to_owned()));
            }
        };
        Ok(Self { runtime, store })
    }

    fn wait<T>(&self, answer: impl Future<Output = Answer<T>>) -> Result<T, Refusal> {
        self.runtime.block_on(answer).map_err(refusal)
    }

    /// One job.
    pub fn job(&self, job_id: JobId) -> Result<Option<JobView>, Refusal> {
        ask!(self, job(job_id))
    }

    /// All attempts of a job.
    pub fn attempts(&self, job_id: JobId) -> Result<Vec<AttemptView>, Refusal> {
        ask!(self, attempts(job_id))
    }

    /// The history of a job.
    pub fn events(&self, job_id: JobId) -> Result<Vec<EventView>, Refusal> {
        ask!(self, events(job_id))
    }

    /// Jobs, the newest first.
    pub fn jobs(&self, filter: JobFilter) -> Result<Vec<JobView>, Refusal> {
        ask!(self, jobs(filter))
    }

    /// Every invariant.
    pub fn audit(&self) -> Result<Vec<Check>, Refusal> {
        ask!(self, audit())
    }

    /// The store's time.
    pub fn now(&self) -> Result<Millis, Refusal> {
        ask!(self, now())
    }
}

fn sqlite(path: &Path) -> Result<SqliteStore, Refusal> {
    if !path.is_file() {
        let reason = std::io::Error::from(std::io::ErrorKind::NotFound);
        return Err(crate::output::unreadable(path.display(), &reason));
    }
    SqliteStore::look(path).map_err(refusal)
}

/// A store's failure as a refusal.
fn refusal(error: StoreError) -> Refusal {
    match error {
        StoreError::Refused(refusal) => refusal,
        StoreError::Fenced => Refusal::new(Code::EngineFenced),
        StoreError::Unavailable(reason) | StoreError::Poison(reason) => {
            Refusal::new(Code::StoreUnavailable).with("reason", reason)
        }
    }
}
