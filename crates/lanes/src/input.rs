//! What dispatch draws its items from: the source itself, or what was read of it.
//!
//! A source that has its items at hand is read under the dispatch lock. A stream may
//! be silent for any time, so it is read by one worker at a time, which takes the source along and holds
//! no lock. Each item lies in the inflow as soon as it is read, where all workers find it: none waits
//! for the one behind it. There is one worker more than lanes, so that a silent stream costs none.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};

use sprag_kernel::planner::{Entry, Planner};

use crate::commit::panic_text;
use crate::source::Source;
use crate::sync::{Arc, Mutex, lock};
use crate::trail::{Fingerprint, fingerprint};

/// An item, and what the plan must know of it.
pub(crate) struct Read<T> {
    pub(crate) item: T,
    pub(crate) entry: Entry,
    pub(crate) content: Option<Fingerprint>,
}

impl<T> Read<T> {
    pub(crate) fn of(source: &impl Source<Item = T>, item: T) -> Self {
        let (entry, content) = (source.entry(&item), source.content(&item).map(fingerprint));
        Self { item, entry, content }
    }
}

/// Appends up to `most` items in one go. How many came is known even if the source then failed, or
/// panicked: the item that it failed at is the one behind them.
pub(crate) fn read_many<S: Source>(
    source: &mut S,
    most: usize,
    items: &mut Vec<S::Item>,
) -> (usize, Result<(), String>) {
    let before = items.len();
    let said = catch_unwind(AssertUnwindSafe(|| source.next_many(most, items)));
    let said = said.unwrap_or_else(|panic| Err(panic_text(&*panic)));
    match items.len().checked_sub(before) {
        Some(came) if came <= most => (came, said),
        // The window may have no room for what is too much, and the claim's own items may be gone.
        Some(_) | None => {
            let now = items.len();
            (0, Err(format!("asked for {most} items, next_many made {before} into {now}")))
        }
    }
}

/// Items that were read and not drawn yet, in order.
type Inflow<T> = Arc<Mutex<VecDeque<Read<T>>>>;

/// Where items come from.
pub(crate) enum Input<S: Source> {
    AtHand(S),
    Stream(Stream<S>),
    /// Nothing follows.
    Cut,
}

/// A source of unknown length.
pub(crate) struct Stream<S: Source> {
    /// None while somebody reads it.
    source: Option<S>,
    inflow: Inflow<S::Item>,
    /// The front of the inflow.
    drawn: VecDeque<Read<S::Item>>,
    /// Nothing follows what was drawn.
    ended: bool,
}

/// The answer to who wants an item.
pub(crate) enum Next<T> {
    Item(Read<T>),
    End,
    /// Somebody must read first.
    Unread,
}

impl<S: Source> Input<S> {
    pub(crate) fn new(source: S) -> Self {
        if source.is_at_hand() {
            return Self::AtHand(source);
        }
        let (inflow, drawn) = (Inflow::default(), VecDeque::new());
        Self::Stream(Stream { source: Some(source), inflow, drawn, ended: false })
    }

    /// How many items there are in all, if that was known at the start.
    pub(crate) fn total(&self) -> Option<u64> {
        match self {
            Self::AtHand(source) => source.total(),
            Self::Stream(_) | Self::Cut => None,
        }
    }

    /// The next item.
    #[inline]
    pub(crate) fn next(&mut self) -> Result<Next<S::Item>, String> {
        match self {
            Self::AtHand(source) => {
                let item = source.next()?;
                Ok(item.map_or(Next::End, |item| Next::Item(Read::of(source, item))))
            }
            Self::Stream(stream) => Ok(stream.next()),
            Self::Cut => Ok(Next::End),
        }
    }

    /// The most items that a claim of this size can have now, behind its first.
    pub(crate) fn limit(&self, size: usize) -> usize {
        match self {
            Self::AtHand(_) | Self::Cut => size,
            Self::Stream(stream) => size.min(1 + stream.drawn.len()),
        }
    }

    /// Whether it may be silent.
    pub(crate) fn is_stream(&self) -> bool {
        matches!(self, Self::Stream(_))
    }

    /// Whether somebody could find an item, or read one.
    pub(crate) fn has_more(&self) -> bool {
        match self {
            Self::AtHand(_) | Self::Cut => false,
            Self::Stream(stream) => {
                !stream.drawn.is_empty() || (stream.source.is_some() && !stream.ended)
            }
        }
    }

    /// Whether something was read that nobody has drawn.
    pub(crate) fn has_inflow(&self) -> bool {
        match self {
            Self::AtHand(_) | Self::Cut => false,
            Self::Stream(stream) => !lock(&stream.inflow).is_empty(),
        }
    }

    /// Whether somebody is reading.
    pub(crate) fn is_lent(&self) -> bool {
        match self {
            Self::AtHand(_) | Self::Cut => false,
            Self::Stream(stream) => stream.source.is_none(),
        }
    }

    /// Gives the source to whoever reads up to `size` items of it; none if somebody does already.
    pub(crate) fn lend(&mut self, size: usize, planner: &Planner) -> Option<Reader<S>> {
        let Self::Stream(stream) = self else { return None };
        let source = stream.source.take()?;
        let (inflow, planner) = (Arc::clone(&stream.inflow), planner.clone());
        Some(Reader { source, inflow, planner, size })
    }

    /// Takes the source back. `over` says that nothing follows.
    pub(crate) fn take_back(&mut self, reader: Reader<S>, over: bool) {
        let Self::Stream(stream) = self else { return };
        stream.source = Some(reader.source);
        if over {
            stream.end();
        }
    }

    /// Ends input of unknown length where it was read. What a reader still brings is no part of the run.
    pub(crate) fn cut(&mut self) {
        match self {
            Self::Stream(stream) => stream.end(),
            Self::AtHand(source) if source.total().is_none() => *self = Self::Cut,
            Self::AtHand(_) | Self::Cut => {}
        }
    }

    /// How many items were read and not drawn; none any more once the stream has ended.
    pub(crate) fn unplanned(&mut self) -> Option<u64> {
        match self {
            Self::Stream(stream) if !stream.ended => {
                stream.draw();
                Some(stream.drawn.len() as u64)
            }
            Self::Stream(_) | Self::AtHand(_) | Self::Cut => None,
        }
    }
}

impl<S: Source> Stream<S> {
    fn next(&mut self) -> Next<S::Item> {
        if self.drawn.is_empty() && !self.ended {
            self.draw();
        }
        match self.drawn.pop_front() {
            Some(read) => Next::Item(read),
            None if self.ended => Next::End,
            None => Next::Unread,
        }
    }

    fn draw(&mut self) {
        self.drawn.append(&mut lock(&self.inflow));
    }

    fn end(&mut self) {
        if !self.ended {
            self.draw();
            self.ended = true;
        }
    }
}

/// A stream in the hands of the worker that reads it.
pub(crate) struct Reader<S: Source> {
    source: S,
    inflow: Inflow<S::Item>,
    /// As it will be when everything in the inflow is planned.
    planner: Planner,
    size: usize,
}

impl<S: Source> Reader<S> {
    /// Reads on while `go_on`, called after each item, says so, at most to the first item of another
    /// window: that one may have to wait, and nothing is to pile up behind it. Whether the source
    /// has ended.
    pub(crate) fn read(&mut self, go_on: impl Fn() -> bool) -> Result<bool, String> {
        for _ in 0..self.size {
            let Some(item) = self.source.next()? else { return Ok(true) };
            let read = Read::of(&self.source, item);
            // One that cannot be planned is refused by dispatch.
            let joins = read.entry.check().is_ok() && self.planner.push(read.entry).is_none();
            lock(&self.inflow).push_back(read);
            if !go_on() || !joins {
                break;
            }
        }
        Ok(false)
    }
}
