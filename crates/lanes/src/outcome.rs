//! What compute returns, and the envelope that carries it to the commit lane.
//!
//! The outcome hash of a run is a chain over (seq, outcome, digest) in seq order, so it is the same
//! for any number of threads and any batching, and a resumed run goes on from its last value.

use sprag_kernel::State;
use sprag_kernel::machines::SeqState;
use sprag_kernel::retry::ErrorClass;
use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

/// What a compute function makes of an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome<P> {
    /// The result, written by the sink in its turn.
    Success(P),
    /// Nothing to write, for this reason.
    Skip(String),
    /// The attempt failed; the class says whether another one may help.
    Fail(ErrorClass, String),
}

/// What is known of a result besides its type: a digest for the outcome hash and its weight.
pub trait Payload: Send + 'static {
    /// A hash of the content, equal for equal content on every machine. [`digest`] makes one.
    fn digest(&self) -> u64;
    /// Bytes it holds while it waits for its turn; counted against the byte budgets.
    fn weight(&self) -> u64;
}

/// The digest of some bytes.
#[inline]
pub fn digest(bytes: &[u8]) -> u64 {
    xxh3_64(bytes)
}

impl Payload for () {
    fn digest(&self) -> u64 {
        0
    }
    fn weight(&self) -> u64 {
        0
    }
}

impl Payload for u64 {
    #[inline]
    fn digest(&self) -> u64 {
        digest(&self.to_le_bytes())
    }
    #[inline]
    fn weight(&self) -> u64 {
        size_of::<Self>() as u64
    }
}

impl Payload for Vec<u8> {
    fn digest(&self) -> u64 {
        digest(self)
    }
    fn weight(&self) -> u64 {
        self.len() as u64
    }
}

impl Payload for String {
    fn digest(&self) -> u64 {
        digest(self.as_bytes())
    }
    fn weight(&self) -> u64 {
        self.len() as u64
    }
}

/// The final outcome of a seq.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict<P> {
    /// The result to write.
    Success(P),
    /// Left out, for this reason.
    Skip(String),
    /// Failed for good.
    Fail(ErrorClass, String),
    /// Cancelled before it had an outcome.
    Cancel,
}

impl<P> Verdict<P> {
    /// The terminal state that stands for it.
    #[inline]
    pub fn state(&self) -> SeqState {
        match self {
            Self::Success(_) => SeqState::TerminalSuccess,
            Self::Skip(_) => SeqState::TerminalSkip,
            Self::Fail(..) => SeqState::TerminalFail,
            Self::Cancel => SeqState::TerminalCancel,
        }
    }
}

/// A seq's outcome on its way to the sink.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope<P> {
    /// The outcome.
    pub verdict: Verdict<P>,
    /// Retries before it.
    pub attempts: u16,
    digest: u64,
}

impl<P: Payload> Envelope<P> {
    /// Seals an outcome. Done by whoever computed it, so that hashing is parallel too.
    #[inline]
    pub(crate) fn seal(verdict: Verdict<P>, attempts: u16) -> Self {
        // Of a failure the class counts and the message does not: messages name times and addresses.
        let digest = match &verdict {
            Verdict::Success(payload) => payload.digest(),
            Verdict::Skip(reason) => digest(reason.as_bytes()),
            Verdict::Fail(class, _) => digest(class.name().as_bytes()),
            Verdict::Cancel => 0,
        };
        Self { verdict, attempts, digest }
    }

    /// Bytes it holds while it waits.
    #[inline]
    pub fn weight(&self) -> u64 {
        match &self.verdict {
            Verdict::Success(payload) => payload.weight(),
            Verdict::Skip(text) | Verdict::Fail(_, text) => text.len() as u64,
            Verdict::Cancel => 0,
        }
    }
}

impl<P> Envelope<P> {
    /// The outcome hash after this seq.
    #[inline]
    pub(crate) fn chain(&self, seq: u64, before: u64) -> u64 {
        // Two whole words: the state's three bits beside the seq, and the digest.
        let place = seq << 3 | u64::from(self.verdict.state().code());
        let mut record = [0; 16];
        record[..8].copy_from_slice(&place.to_le_bytes());
        record[8..].copy_from_slice(&self.digest.to_le_bytes());
        xxh3_64_with_seed(&record, before)
    }
}
