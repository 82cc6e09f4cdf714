//! Where items come from: an iterator with what the planner must know of each.
//!
//! A source is read by one thread at a time, in order, once; on resume it is read again from the
//! start. Its place is its identity: the first item has seq 0. It need not know its length.
//!
//! One that has its items at hand, as one that knows its length is taken to have them, is read while nothing else is
//! given out. Any other, a stream, may be silent for any time; everything else goes on meanwhile, retries,
//! leases, commits, progress and a grace. Nobody can interrupt it: after a stop or a cancel, a thread that
//! is still in [`Source::next`] at the end of the grace is left behind, and ends, and the source with it,
//! when that returns. A source that can be asked to give up should be.
//!
//! Items at hand of which each looks like the other to the planner ([`Source::common_entry`]) are read by
//! the claim ([`Source::next_many`]): asking about each by itself would cost more than reading it.

use sprag_kernel::planner::Entry;

/// A sequence of items.
pub trait Source: Send + 'static {
    /// One item. Shared with the thread that computes it, and kept for a retry.
    type Item: Send + Sync + 'static;

    /// The next item, none at the end, or why it cannot be read.
    fn next(&mut self) -> Result<Option<Self::Item>, String>;

    /// How many items there are in all, if that is known before they are read. A cancelled run of a
    /// known length commits every seq as cancelled; one of unknown length ends where it was read.
    fn total(&self) -> Option<u64> {
        None
    }

    /// Whether the next item is always there at once, as it is in a file: a stream that is read ahead
    /// by a thread of its own costs more.
    fn is_at_hand(&self) -> bool {
        self.total().is_some()
    }

    /// Appends the next items: `most` of them, which is 1 at least, or as many as are left. What was
    /// appended before an error or a panic counts as read: the failure names the item behind it.
    ///
    /// Called in the place of [`next`](Self::next) where a source that has its items at hand has a
    /// [common entry](Self::common_entry), and for some items only, so both go on where the other
    /// ended. To be overridden where many items at once are cheaper.
    fn next_many(&mut self, most: usize, items: &mut Vec<Self::Item>) -> Result<(), String> {
        for _ in 0..most {
            let Some(item) = self.next()? else { break };
            items.push(item);
        }
        Ok(())
    }

    /// The entry of every item, if all have the same and none has content. The answer never changes, and
    /// [`entry`](Self::entry) and [`content`](Self::content) agree with it: whether an item was asked
    /// for its own shows neither in windows nor in the plan hash.
    fn common_entry(&self) -> Option<Entry> {
        None
    }

    /// Estimated cost and bytes of an item; the planner cuts windows by them.
    fn entry(&self, _item: &Self::Item) -> Entry {
        self.common_entry().unwrap_or(UNKNOWN)
    }

    /// What tells this item from another of the same size. It goes into the plan hash, so that a
    /// resumed run refuses an input that was edited.
    fn content<'a>(&self, _item: &'a Self::Item) -> Option<&'a [u8]> {
        None
    }
}

/// The entry of an item of which nothing is known.
const UNKNOWN: Entry = Entry { cost: 1, bytes: 0 };

type Content<T> = fn(&T) -> &[u8];

/// A source made of any iterator.
pub struct Items<I: Iterator> {
    iterator: I,
    total: Option<u64>,
    is_at_hand: bool,
    entry: Option<fn(&I::Item) -> Entry>,
    content: Option<Content<I::Item>>,
}

impl<I: Iterator> Items<I> {
    /// A stream: its length shows when it ends.
    pub fn stream(items: impl IntoIterator<IntoIter = I>) -> Self {
        let iterator = items.into_iter();
        Self { iterator, total: None, is_at_hand: false, entry: None, content: None }
    }

    /// Items of a known number if the iterator knows it, as vectors and ranges do; else a stream.
    pub fn of(items: impl IntoIterator<IntoIter = I>) -> Self {
        let stream = Self::stream(items);
        let (least, most) = stream.iterator.size_hint();
        let total = most.filter(|most| *most == least).map(|exact| exact as u64);
        Self { total, is_at_hand: total.is_some(), ..stream }
    }

    /// Says that every item is there at once, though their number is not known: lines of a file.
    #[must_use]
    pub fn at_hand(self) -> Self {
        Self { is_at_hand: true, ..self }
    }

    /// Says how to estimate an item.
    #[must_use]
    pub fn entry(self, entry: fn(&I::Item) -> Entry) -> Self {
        Self { entry: Some(entry), ..self }
    }

    /// Says what makes an item this item.
    #[must_use]
    pub fn content(self, content: fn(&I::Item) -> &[u8]) -> Self {
        Self { content: Some(content), ..self }
    }
}

impl<I> Source for Items<I>
where
    I: Iterator + Send + 'static,
    I::Item: Send + Sync + 'static,
{
    type Item = I::Item;

    fn next(&mut self) -> Result<Option<I::Item>, String> {
        Ok(self.iterator.next())
    }

    fn total(&self) -> Option<u64> {
        self.total
    }

    fn is_at_hand(&self) -> bool {
        self.is_at_hand
    }

    fn next_many(&mut self, most: usize, items: &mut Vec<I::Item>) -> Result<(), String> {
        items.extend(self.iterator.by_ref().take(most));
        Ok(())
    }

    fn common_entry(&self) -> Option<Entry> {
        (self.entry.is_none() && self.content.is_none()).then_some(UNKNOWN)
    }

    fn entry(&self, item: &I::Item) -> Entry {
        self.entry.map_or(UNKNOWN, |entry| entry(item))
    }

    fn content<'a>(&self, item: &'a I::Item) -> Option<&'a [u8]> {
        self.content.map(|content| content(item))
    }
}
