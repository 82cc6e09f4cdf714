//! What compute returns, and the envelope that carries it to the commit lane.
//!
//! The outcome hash of a run is the sum of one mark per seq, and a mark is a hash of (seq, outcome,
//! digest). Each mark names its seq, so the sum says what stands where; it is the same for any number of
//! threads and any batching, a resumed run goes on from its last value, and whoever computes adds up
//! its own marks: the commit lane hashes nothing.

use sprag_kernel::State;
use sprag_kernel::machines::SeqState;
use sprag_kernel::retry::ErrorClass;
use xxhash_rust::xxh3::xxh3_64;

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
    /// A hash of the content, equal for equal content on every machine. [`digest`] makes one; what
    /// fits in a word is its own, since the outcome hash mixes it.
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
        *self
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict<P, T = String> {
    /// The result to write.
    Success(P),
    /// Left out, for this reason.
    Skip(T),
    /// Failed for good.
    Fail(ErrorClass, T),
    /// Cancelled before it had an outcome.
    Cancel,
}

impl<P, T> Verdict<P, T> {
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
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Envelope<P, T = String> {
    /// The outcome.
    pub verdict: Verdict<P, T>,
    /// Retries before it.
    pub attempts: u16,
}

impl<P, T> Envelope<P, T> {
    #[inline]
    pub(crate) fn new(verdict: Verdict<P, T>, attempts: u16) -> Self {
        Self { verdict, attempts }
    }
}

impl<P> Envelope<P> {
    /// The same, lent.
    #[inline]
    pub(crate) fn lend(&self) -> Envelope<&P, &str> {
        let verdict = match &self.verdict {
            Verdict::Success(payload) => Verdict::Success(payload),
            Verdict::Skip(reason) => Verdict::Skip(reason.as_str()),
            Verdict::Fail(class, message) => Verdict::Fail(*class, message.as_str()),
            Verdict::Cancel => Verdict::Cancel,
        };
        Envelope { verdict, attempts: self.attempts }
    }
}

impl<P: Payload> Envelope<P> {
    /// Bytes it holds while it waits.
    #[inline]
    pub fn weight(&self) -> u64 {
        match &self.verdict {
            Verdict::Success(payload) => payload.weight(),
            Verdict::Skip(text) | Verdict::Fail(_, text) => text.len() as u64,
            Verdict::Cancel => 0,
        }
    }

    /// What this seq adds to the outcome hash.
    #[inline]
    pub(crate) fn mark(&self, seq: u64) -> u64 {
        // Of a failure the class counts and the message does not: messages name times and addresses.
        let digest = match &self.verdict {
            Verdict::Success(payload) => payload.digest(),
            Verdict::Skip(reason) => digest(reason.as_bytes()),
            Verdict::Fail(class, _) => digest(class.name().as_bytes()),
            Verdict::Cancel => 0,
        };
        mark(seq, self.verdict.state(), digest)
    }
}

/// What a seq that ended in this state adds to the outcome hash.
#[inline]
pub(crate) fn mark(seq: u64, state: SeqState, digest: u64) -> u64 {
    // Two whole words: the state's three bits beside the seq, and the digest.
    let place = seq << 3 | u64::from(state.code());
    let record = u128::from(place) | u128::from(digest) << 64;
    xxh3_64(&record.to_le_bytes())
}
