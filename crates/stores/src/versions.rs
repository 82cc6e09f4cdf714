//! Versions of the books. A store holds its version and the oldest binary that may still work on it.
//!
//! A migration expands first: it adds what the new version needs and leaves everything as the one before
//! knows it, so that engines of both versions work side by side while a deployment rolls. Only a later
//! migration takes the old away, and says so by raising the oldest compatible version; it waits until
//! engines of that age have gone, or makes them go: each notices with its next beat and drains.

use sprag_engine::store::{Answer, StoreError};
use sprag_kernel::{Code, Refusal};

/// One step of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Migration {
    /// The version that the store has afterwards.
    pub version: i64,
    /// The oldest version of a binary that may work on the store afterwards.
    pub oldest_compatible: i64,
    /// What it does.
    pub sql: &'static str,
}

/// The schema as a binary knows it: its migrations, in order.
#[derive(Clone, Debug)]
pub struct Schema {
    steps: Vec<Migration>,
    /// Whether a store is made where there is none.
    creates: bool,
}

impl Schema {
    /// The steps of a binary. Versions rise by one from 1, and compatibility never comes back.
    pub fn new(steps: Vec<Migration>) -> Self {
        assert!(!steps.is_empty(), "there is a first version");
        for (n, pair) in steps.iter().zip(steps.iter().skip(1)).enumerate() {
            assert_eq!((pair.0.version, pair.1.version), (n as i64 + 1, n as i64 + 2));
            assert!(pair.0.oldest_compatible <= pair.1.oldest_compatible);
        }
        Self { steps, creates: true }
    }

    /// The same for whoever comes to look: a file or database without a store is refused, and left as it is.
    pub(crate) fn of_a_store(self) -> Self {
        Self { creates: false, ..self }
    }

    /// The newest version that the binary knows.
    pub fn version(&self) -> i64 {
        self.steps.last().expect("there is a first version").version
    }

    /// What a store of this version still lacks; 0 for an empty one.
    pub(crate) fn missing(&self, present: i64) -> impl Iterator<Item = &Migration> {
        self.steps.iter().filter(move |step| step.version > present)
    }

    /// Refuses `place` if there is no store and none is to be made.
    pub(crate) fn expect_store(&self, is_there: bool, place: &str) -> Answer<()> {
        if is_there || self.creates {
            return Ok(());
        }
        Err(StoreError::Refused(
            Refusal::new(Code::InputUnreadable)
                .with("what", place.to_owned())
                .with("reason", "there is no store of sprag in it"),
        ))
    }

    /// Refuses a store whose oldest compatible version is above this binary's.
    pub(crate) fn admit(&self, oldest_compatible: i64) -> Answer<()> {
        admit(self.version(), oldest_compatible)
    }
}

/// Refuses a store whose oldest compatible version is above that of a binary.
pub(crate) fn admit(binary: i64, oldest_compatible: i64) -> Answer<()> {
    if oldest_compatible <= binary {
        return Ok(());
    }
    Err(StoreError::Refused(
        Refusal::new(Code::SchemaTooNew)
            .with("oldest_compatible", oldest_compatible)
            .with("binary", binary),
    ))
}

/// A version as the store keeps it. What is not a number was not written by any version.
pub(crate) fn version_of(text: &str) -> Answer<i64> {
    text.parse().map_err(|_| {
        let shown: String = text.chars().take(64).collect();
        StoreError::Refused(
            Refusal::new(Code::SchemaTooNew).with("version", shown).with("reason", "is no number"),
        )
    })
}
