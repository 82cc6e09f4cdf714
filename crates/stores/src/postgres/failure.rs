//! What a failed statement means to the engine, by its SQLSTATE.

use std::time::Duration;

use deadpool_postgres::PoolError;
use sprag_engine::store::StoreError;
use tokio_postgres::error::{Error, SqlState};

use crate::moving::closed;

/// How often a statement that lost a race is run again before the store counts as unavailable. Each
/// repetition has seen at least one competitor commit, or hold a row for as long as the pauses before it.
const REPEATS: u32 = 8;
/// The first pause before a repetition; each one is twice as long as the one before it.
const PAUSE: Duration = Duration::from_millis(1);

/// What `expect_open` fails with; its detail says why the store is closed.
const CLOSED: &str = "SP001";

/// Counts the repetitions of one call.
#[derive(Default)]
pub(super) struct Repeats(u32);

impl Repeats {
    /// Whether to run the call again after a pause: it deadlocked, could not be serialised or did not get a lock
    /// at once, and changed nothing.
    pub(super) fn again(&mut self, error: &Error) -> bool {
        self.0 += 1;
        let has_lost =
            class(error) == Some("40") || error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE);
        self.0 <= REPEATS && has_lost
    }

    /// Lets whoever was faster get on.
    pub(super) async fn pause(&self) {
        tokio::time::sleep(PAUSE * 2_u32.pow(self.0.saturating_sub(1))).await;
    }
}

fn class(error: &Error) -> Option<&str> {
    error.code().map(|state| &state.code()[..2])
}

/// Data (22), constraints (23) and sizes (54) are the fault of a row; a value that cannot be decoded
/// has no SQLSTATE and neither an end of the connection. Everything else may pass.
pub(crate) fn failed(error: &Error) -> StoreError {
    if let Some(closing) = error.as_db_error().filter(|error| error.code().code() == CLOSED) {
        return closed(closing.detail().unwrap_or_default().to_owned());
    }
    match class(error) {
        Some("22" | "23" | "54") => StoreError::Poison(told(error)),
        Some(_) | None => StoreError::Unavailable(told(error)),
    }
}

/// What the server or the driver says, with the cause beneath it.
pub(super) fn told(error: &Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(error), _) => describe(error),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

fn describe(error: &tokio_postgres::error::DbError) -> String {
    format!("{} (SQLSTATE {})", error.message(), error.code().code())
}

/// A value that a row should not hold.
pub(super) fn undecodable(error: &Error) -> StoreError {
    StoreError::Poison(error.to_string())
}

/// No connection to be had.
pub(super) fn unreachable(error: &PoolError) -> StoreError {
    match error {
        PoolError::Backend(error) => failed(error),
        PoolError::Timeout(_)
        | PoolError::Closed
        | PoolError::NoRuntimeSpecified
        | PoolError::PostCreateHook(_) => StoreError::Unavailable(error.to_string()),
    }
}
