//! The walk: one pass, an explicit stack, output that lags behind the input.
//!
//! `input[kept..at]` is canonical but not copied yet. Whatever must change first flushes that piece,
//! then skips or replaces its own bytes. An object whose members come in order and without nulls needs
//! no more. Any other is put in order when it closes if it is small; of a large one the walk notes the
//! order of its members and one more pass copies them in the end, since a large object that is
//! rewritten at each of its levels would cost as many times its size.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::ops::Range;

use super::{MAX_DEPTH, invalid, number, string};
use crate::error::{Code, Refusal};

/// Up to this many bytes an object is rewritten in its place: they are still in the cache.
const SMALL: usize = 4096;

struct Walk<'a> {
    input: &'a [u8],
    at: usize,
    kept: usize,
    out: Vec<u8>,
    open: Vec<Open>,
    /// The members of the objects that are open.
    members: Vec<Member>,
    /// The members of a small object while they are put in order.
    ordered: Vec<u8>,
    messy: Vec<Messy>,
    /// The members of messy objects, each object's as they belong.
    pieces: Vec<Piece>,
    keep: Option<&'a [&'a str]>,
}

/// An array or object whose end has not come yet.
enum Open {
    Array,
    Object {
        /// Where its text begins in the output, behind the brace.
        start: usize,
        /// Its first member in `members`.
        first: usize,
        /// Whether its members must be put in order.
        messy: bool,
    },
}

struct Member {
    /// The name between its quotes, in the input.
    name: Range<usize>,
    /// Whether the name has escapes.
    is_escaped: bool,
    /// The first eight bytes of what the name says: most names differ there.
    head: u64,
    /// Name and value, in the output.
    piece: Piece,
    is_null: bool,
}

/// A member in the output: its name and value.
#[derive(Clone)]
struct Piece {
    text: Range<usize>,
    /// Whether a messy object is in it.
    is_messy: bool,
}

/// A large object whose members must be put in order once the walk is over.
struct Messy {
    /// All its members, in the output.
    text: Range<usize>,
    /// Those that count, in `pieces`, sorted.
    pieces: Range<usize>,
}

impl Member {
    /// What the name says.
    #[inline]
    fn said<'a>(&self, input: &'a [u8]) -> Cow<'a, [u8]> {
        let spelled = &input[self.name.clone()];
        if self.is_escaped { Cow::Owned(string::decoded(spelled)) } else { Cow::Borrowed(spelled) }
    }

    #[inline]
    fn cmp(&self, other: &Self, input: &[u8]) -> Ordering {
        self.head.cmp(&other.head).then_with(|| self.said(input).cmp(&other.said(input)))
    }
}

/// The first eight bytes in the order of bytes, filled up with zeros.
#[inline]
fn head(said: &[u8]) -> u64 {
    match said.first_chunk() {
        Some(eight) => u64::from_be_bytes(*eight),
        None => (0..8).fold(0, |head, at| head << 8 | u64::from(*said.get(at).unwrap_or(&0))),
    }
}

/// What the walk expects next.
enum Expect {
    Value,
    End,
}

pub(super) fn canonical(input: &[u8], keep: Option<&[&str]>) -> Result<String, Refusal> {
    if let Err(error) = std::str::from_utf8(input) {
        return Err(invalid(error.valid_up_to(), "not UTF-8"));
    }
    let mut walk = Walk {
        input,
        at: 0,
        kept: 0,
        out: Vec::with_capacity(input.len()),
        open: Vec::new(),
        members: Vec::new(),
        ordered: Vec::new(),
        messy: Vec::new(),
        pieces: Vec::new(),
        keep,
    };
    walk.skip_space();
    if keep.is_some() && walk.peek() != Some(b'{') {
        return Err(Refusal::new(Code::EnvelopeInvalid).with("reason", "not a JSON object"));
    }
    walk.document()?;
    walk.skip_space();
    if walk.at < input.len() {
        return Err(invalid(walk.at, "something follows the document"));
    }
    walk.flush(walk.at);
    Ok(String::from_utf8(walk.in_order()).expect("pieces of UTF-8 text"))
}

impl Walk<'_> {
    fn peek(&self) -> Option<u8> {
        self.input.get(self.at).copied()
    }

    /// Copies what is kept up to `end`; the walk goes on behind it.
    fn flush(&mut self, end: usize) {
        self.out.extend_from_slice(&self.input[self.kept..end]);
        self.kept = end;
    }

    /// How long the output will be when all before `at` is copied.
    fn position(&self) -> usize {
        self.out.len() + (self.at - self.kept)
    }

    fn document(&mut self) -> Result<(), Refusal> {
        loop {
            let mut expect = self.value()?;
            while matches!(expect, Expect::End) {
                if self.open.is_empty() {
                    return Ok(());
                }
                expect = self.after_value()?;
            }
        }
    }

    #[inline]
    fn skip_space(&mut self) {
        if self.peek().is_some_and(|byte| byte <= b' ') {
            self.drop_space();
        }
    }

    fn drop_space(&mut self) {
        let start = self.at;
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
        if self.at > start {
            self.flush(start);
            self.kept = self.at;
        }
    }

    #[inline]
    fn value(&mut self) -> Result<Expect, Refusal> {
        match self.peek() {
            Some(b'"') => drop(self.string()?),
            Some(b'-' | b'0'..=b'9') => self.number()?,
            Some(b'{') => return self.open_object(),
            Some(b'[') => return self.open_array(),
            Some(b't') => self.word(b"true")?,
            Some(b'f') => self.word(b"false")?,
            Some(b'n') => self.word(b"null")?,
            Some(_) => return Err(invalid(self.at, "a value is expected")),
            None => return Err(invalid(self.at, "the document ends too early")),
        }
        Ok(Expect::End)
    }

    fn word(&mut self, word: &[u8]) -> Result<(), Refusal> {
        if !self.input[self.at..].starts_with(word) {
            return Err(invalid(self.at, "a value is expected"));
        }
        self.at += word.len();
        Ok(())
    }

    #[inline]
    fn number(&mut self) -> Result<(), Refusal> {
        let start = self.at;
        let token = number::scan(self.input, start)?;
        self.at = token.end;
        match token.plain_end {
            Some(end) if end == token.end => return Ok(()),
            Some(end) => self.flush(end),
            None => {
                let text = number::canonical(&self.input[start..token.end], start)?;
                self.flush(start);
                self.out.extend_from_slice(&text);
            }
        }
        self.kept = token.end;
        Ok(())
    }

    /// Reads a string; returns whether it has escapes.
    #[inline]
    fn string(&mut self) -> Result<bool, Refusal> {
        let mut at = self.at + 1;
        let mut is_escaped = false;
        loop {
            at = string::plain_end(self.input, at);
            match self.input.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
                    is_escaped = true;
                    let escape = string::escape(self.input, at)?;
                    self.flush(at);
                    string::write(escape.character, &mut self.out);
                    at += escape.length;
                    self.kept = at;
                }
                Some(_) => return Err(invalid(at, "a control character in a string")),
                None => return Err(invalid(self.at, "the string does not end")),
            }
        }
        self.at = at + 1;
        Ok(is_escaped)
    }

    fn push(&mut self, open: Open) -> Result<(), Refusal> {
        if self.open.len() == MAX_DEPTH {
            return Err(Refusal::new(Code::JsonTooDeep).with("byte", self.at));
        }
        self.open.push(open);
        Ok(())
    }

    fn open_array(&mut self) -> Result<Expect, Refusal> {
        self.push(Open::Array)?;
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b']') {
            self.at += 1;
            self.open.pop();
            return Ok(Expect::End);
        }
        Ok(Expect::Value)
    }

    fn open_object(&mut self) -> Result<Expect, Refusal> {
        let (start, first) = (self.position() + 1, self.members.len());
        self.push(Open::Object { start, first, messy: false })?;
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            self.open.pop();
            return Ok(Expect::End);
        }
        self.member_name()
    }

    #[inline]
    fn member_name(&mut self) -> Result<Expect, Refusal> {
        if self.peek() != Some(b'"') {
            return Err(invalid(self.at, "a member name is expected"));
        }
        let (place, text) = (self.at, self.position());
        let is_escaped = self.string()?;
        let name = place + 1..self.at - 1;
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(invalid(self.at, "a colon is expected"));
        }
        self.at += 1;
        self.skip_space();
        let is_null = self.peek() == Some(b'n');
        let piece = Piece { text: text..text, is_messy: false };
        let mut member = Member { name, is_escaped, head: 0, piece, is_null };
        member.head = head(&member.said(self.input));
        if is_null || !self.is_in_order(&member) || !self.is_kept(&member) {
            self.mark_messy();
        }
        self.members.push(member);
        Ok(Expect::Value)
    }

    /// Whether the open object stays in order with this member behind the last one.
    #[inline]
    fn is_in_order(&self, member: &Member) -> bool {
        let Some(Open::Object { first, .. }) = self.open.last() else { return true };
        let last = self.members[*first..].last();
        last.is_none_or(|last| last.cmp(member, self.input).is_lt())
    }

    /// Whether this member of the innermost open object belongs to the document.
    #[inline]
    fn is_kept(&self, member: &Member) -> bool {
        let Some(keep) = self.keep.filter(|_| self.open.len() == 1) else { return true };
        let name = member.said(self.input);
        keep.iter().any(|kept| kept.as_bytes() == &*name)
    }

    fn mark_messy(&mut self) {
        if let Some(Open::Object { messy, .. }) = self.open.last_mut() {
            *messy = true;
        }
    }

    #[inline]
    fn after_value(&mut self) -> Result<Expect, Refusal> {
        let in_object = matches!(self.open.last(), Some(Open::Object { .. }));
        if in_object {
            self.end_member();
        }
        self.skip_space();
        match (self.peek(), in_object) {
            (Some(b','), _) => {
                self.at += 1;
                self.skip_space();
                if in_object { self.member_name() } else { Ok(Expect::Value) }
            }
            (Some(b']'), false) => {
                self.open.pop();
                self.at += 1;
                Ok(Expect::End)
            }
            (Some(b'}'), true) => {
                self.close_object();
                Ok(Expect::End)
            }
            (Some(_), _) => Err(invalid(self.at, "a comma or the end is expected")),
            (None, _) => Err(invalid(self.at, "the document ends too early")),
        }
    }

    #[inline]
    fn end_member(&mut self) {
        let end = self.position();
        let member = self.members.last_mut().expect("a value in an object has a member");
        member.piece.text.end = end;
        let latest = self.messy.last();
        member.piece.is_messy = latest.is_some_and(|it| it.text.start > member.piece.text.start);
    }

    fn close_object(&mut self) {
        let Some(Open::Object { start, first, messy }) = self.open.last() else {
            unreachable!("the caller saw an object")
        };
        let (start, first, messy) = (*start, *first, *messy);
        if messy {
            self.put_in_order(start, first);
        }
        self.open.pop();
        self.members.truncate(first);
        self.at += 1;
    }

    /// The sorted members that count: the last of equals, no nulls.
    fn counted(&self, first: usize) -> impl Iterator<Item = &Piece> {
        let members = &self.members[first..];
        let counts = move |(position, member): &(usize, &Member)| {
            let next: Option<&Member> = members.get(position + 1);
            let is_last = next.is_none_or(|next| next.cmp(member, self.input).is_ne());
            is_last && !member.is_null && self.is_kept(member)
        };
        members.iter().enumerate().filter(counts).map(|(_, member)| &member.piece)
    }

    /// Sorts the members of the object that closes.
    fn put_in_order(&mut self, start: usize, first: usize) {
        let input = self.input;
        // Stable, so of equal names the last stays the last.
        self.members[first..].sort_by(|left, right| left.cmp(right, input));
        if self.position() - start <= SMALL {
            self.rewrite(start, first);
        } else {
            self.note_order(start, first);
        }
    }

    /// Rewrites the members of a small object in its place.
    fn rewrite(&mut self, start: usize, first: usize) {
        self.flush(self.at);
        let mut ordered = std::mem::take(&mut self.ordered);
        ordered.clear();
        for piece in self.counted(first) {
            if !ordered.is_empty() {
                ordered.push(b',');
            }
            ordered.extend_from_slice(&self.out[piece.text.clone()]);
        }
        self.out.truncate(start);
        self.out.extend_from_slice(&ordered);
        self.ordered = ordered;
    }

    /// Notes the members of a large object for the end.
    fn note_order(&mut self, start: usize, first: usize) {
        let before = self.pieces.len();
        let pieces: Vec<Piece> = self.counted(first).cloned().collect();
        self.pieces.extend(pieces);
        let text = start..self.position();
        self.messy.push(Messy { text, pieces: before..self.pieces.len() });
    }

    /// The output with every object in order.
    fn in_order(mut self) -> Vec<u8> {
        if self.messy.is_empty() {
            return self.out;
        }
        self.messy.sort_unstable_by_key(|object| object.text.start);
        let mut ordered = Vec::with_capacity(self.out.len());
        self.copy(0..self.out.len(), &mut ordered);
        ordered
    }

    /// Copies a part of the output in order. Calls itself as deep as objects nest, which is limited.
    fn copy(&self, text: Range<usize>, ordered: &mut Vec<u8>) {
        // Behind `at`: an object begins where its first member does, and is not inside of it.
        let from = |at: usize| self.messy.partition_point(|object| object.text.start <= at);
        let mut at = text.start;
        let mut next = from(at);
        while let Some(object) = self.messy.get(next).filter(|it| it.text.start < text.end) {
            ordered.extend_from_slice(&self.out[at..object.text.start]);
            for (position, piece) in self.pieces[object.pieces.clone()].iter().enumerate() {
                if position > 0 {
                    ordered.push(b',');
                }
                if piece.is_messy {
                    self.copy(piece.text.clone(), ordered);
                } else {
                    ordered.extend_from_slice(&self.out[piece.text.clone()]);
                }
            }
            at = object.text.end;
            next += 1;
            // The objects inside of this one are done.
            if self.messy.get(next).is_some_and(|it| it.text.start < at) {
                next = from(at);
            }
        }
        ordered.extend_from_slice(&self.out[at..text.end]);
    }
}
