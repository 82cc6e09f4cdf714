//! What the sink receives: a contiguous run of envelopes in seq order, and the point behind it.
//!
//! A [`Chunk`] is a piece that one thread hands over; a [`Batch`] is made of as many chunks as follow
//! each other without a gap. A batch knows the [`Resume`] point that holds once it is written, so
//! whoever writes it down with the batch can go on from there after a crash.

use crate::outcome::{Envelope, Payload};
use crate::sealed::Sealed;
use crate::summary::Resume;
use crate::sync::Arc;
use crate::windows::WindowGauge;

/// Contiguous envelopes of one window.
pub(crate) struct Chunk<P> {
    pub(crate) sealed: Sealed<P>,
    pub(crate) window: Arc<WindowGauge>,
}

impl<P: Payload> Chunk<P> {
    /// A chunk of one.
    pub(crate) fn single(seq: u64, envelope: Envelope<P>, window: Arc<WindowGauge>) -> Self {
        Self { sealed: Sealed::single(seq, envelope), window }
    }

    /// Keeps the longest head of at most `bytes`, one envelope at least; returns the tail.
    pub(crate) fn cut(&mut self, bytes: u64) -> Option<Self> {
        let window = Arc::clone(&self.window);
        self.sealed.cut(bytes).map(|sealed| Self { sealed, window })
    }
}

/// A contiguous run of committed outcomes.
pub struct Batch<P> {
    pub(crate) chunks: Vec<Chunk<P>>,
    pub(crate) first: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: u64,
    pub(crate) resume: Resume,
    pub(crate) is_last: bool,
}

impl<P> Batch<P> {
    /// The first seq.
    pub fn first(&self) -> u64 {
        self.first
    }

    /// The last seq.
    pub fn last(&self) -> u64 {
        self.resume.cursor - 1
    }

    /// How many seqs.
    pub fn seqs(&self) -> u64 {
        self.resume.cursor - self.first
    }

    /// Whether the run is complete with this batch, so that the sink can say so in the same write. Always
    /// false for a source that does not know its total: there the end shows only behind the last
    /// batch. A run without items has no batch at all.
    pub fn is_last(&self) -> bool {
        self.is_last
    }

    /// How many of them succeeded: the writes that the sink makes.
    pub fn writes(&self) -> u64 {
        self.writes
    }

    /// Bytes of the results.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The point behind this batch: cursor, counts, outcome hash and input hash once it is written.
    pub fn resume(&self) -> &Resume {
        &self.resume
    }

    /// Seqs and envelopes in order. Empty once drained.
    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = (u64, Envelope<&P, &str>)> {
        let sealed = self.chunks.iter().map(|chunk| &chunk.sealed);
        sealed.flat_map(|sealed| (sealed.first..).zip(sealed.iter()))
    }

    /// Seqs and envelopes in order, by value.
    pub fn drain(&mut self) -> impl Iterator<Item = (u64, Envelope<P>)> + use<'_, P> {
        let sealed = self.chunks.iter_mut().map(|chunk| &mut chunk.sealed);
        sealed.flat_map(|sealed| (sealed.first..).zip(sealed.drain()))
    }
}
