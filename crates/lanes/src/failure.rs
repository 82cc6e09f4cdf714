//! Why a run could not go on, with everything needed to understand it and to go on later.

use std::fmt;

use serde::Serialize;
use sprag_kernel::error::{Code, Refusal};
use sprag_kernel::retry::ErrorClass;

use crate::observe::Observation;
use crate::summary::Resume;

/// A run that ended before its time. The committed prefix stands.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    /// What happened: a code, and the seq and values it happened with.
    pub refusal: Refusal,
    /// The run as it was; none if it never began.
    pub snapshot: Option<Observation>,
    /// The committed prefix, to resume from.
    pub resume: Resume,
}

impl Failure {
    /// The code.
    pub fn code(&self) -> Code {
        self.refusal.code()
    }

    /// What kind of failure the sink reported; none if it was not the sink's.
    pub fn class(&self) -> Option<ErrorClass> {
        let named = self.refusal.field("class").filter(|_| self.code() == Code::SinkFailed)?;
        let named = named.to_string();
        ErrorClass::ALL.into_iter().find(|class| class.name() == named)
    }

    /// Whether the same run, resumed later, may come further. An input that changed, a source or a rule
    /// that is broken, and a writer that was superseded stay what they are.
    pub fn is_retryable(&self) -> bool {
        self.class().is_some_and(ErrorClass::is_retryable)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(f)
    }
}

impl std::error::Error for Failure {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.refusal)
    }
}
