//! The walk: one pass, an explicit stack, output that lags behind the input.
//!
//! `input[kept..at]` is canonical but not copied yet. Whatever must change first flushes that piece,
//! then skips or replaces its own bytes. An object whose members come in order and without nulls is
//! never touched again; any other is put in order when it closes.

use std::borrow::Cow;
use std::ops::Range;

use super::{MAX_DEPTH, invalid, number, string};
use crate::error::{Code, Refusal};

struct Walk<'a> {
    input: &'a [u8],
    at: usize,
    kept: usize,
    out: Vec<u8>,
    open: Vec<Open>,
    members: Vec<Member>,
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
        /// Whether its members must be put in order when it closes.
        messy: bool,
    },
}

struct Member {
    /// The name between its quotes, in the input.
    name: Range<usize>,
    /// Name and value, in the output.
    text: Range<usize>,
    is_null: bool,
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
        keep,
    };
    walk.skip_space();
    if keep.is_some() && walk.peek() != Some(b'{') {
        return Err(Refusal::new(Code::EnvelopeInvalid).with("reason", "not a JSON object"));
    }
    let mut expect = Expect::Value;
    while !matches!((&expect, walk.open.len()), (Expect::End, 0)) {
        expect = match expect {
            Expect::Value => walk.value()?,
            Expect::End => walk.after_value()?,
        };
    }
    walk.skip_space();
    if walk.at < input.len() {
        return Err(invalid(walk.at, "something follows the document"));
    }
    walk.flush(walk.at);
    Ok(String::from_utf8(walk.out).expect("pieces of UTF-8 text"))
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

    #[inline]
    fn skip_space(&mut self) {
        let start = self.at;
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.peek() {
            self.at += 1;
        }
        if self.at > start {
            self.flush(start);
            self.kept = self.at;
        }
    }

    fn value(&mut self) -> Result<Expect, Refusal> {
        match self.peek() {
            Some(b'"') => self.string()?,
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

    fn number(&mut self) -> Result<(), Refusal> {
        let start = self.at;
        let token = number::scan(self.input, start)?;
        self.at = token.end;
        if !token.is_plain {
            let text = number::canonical(&self.input[start..token.end], start)?;
            self.flush(start);
            self.out.extend_from_slice(&text);
            self.kept = token.end;
        }
        Ok(())
    }

    #[inline]
    fn string(&mut self) -> Result<(), Refusal> {
        let mut at = self.at + 1;
        loop {
            at = string::plain_end(self.input, at);
            match self.input.get(at) {
                Some(b'"') => break,
                Some(b'\\') => {
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
        Ok(())
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
        let messy = self.keep.is_some() && self.open.is_empty();
        let (start, first) = (self.position() + 1, self.members.len());
        self.push(Open::Object { start, first, messy })?;
        self.at += 1;
        self.skip_space();
        if self.peek() == Some(b'}') {
            self.at += 1;
            self.open.pop();
            return Ok(Expect::End);
        }
        self.member_name()
    }

    fn member_name(&mut self) -> Result<Expect, Refusal> {
        if self.peek() != Some(b'"') {
            return Err(invalid(self.at, "a member name is expected"));
        }
        let (place, text) = (self.at, self.position());
        self.string()?;
        let name = place + 1..self.at - 1;
        self.note_order(&name);
        self.skip_space();
        if self.peek() != Some(b':') {
            return Err(invalid(self.at, "a colon is expected"));
        }
        self.at += 1;
        self.skip_space();
        let is_null = self.input[self.at..].starts_with(b"null");
        self.members.push(Member { name, text: text..text, is_null });
        if is_null {
            self.mark_messy();
        }
        Ok(Expect::Value)
    }

    /// Notes whether the object stays in order with this name behind the last one.
    #[inline]
    fn note_order(&mut self, name: &Range<usize>) {
        let Some(Open::Object { first, .. }) = self.open.last() else { return };
        let Some(last) = self.members[*first..].last() else { return };
        let before = string::decoded(&self.input[last.name.clone()]);
        if before >= string::decoded(&self.input[name.clone()]) {
            self.mark_messy();
        }
    }

    fn mark_messy(&mut self) {
        if let Some(Open::Object { messy, .. }) = self.open.last_mut() {
            *messy = true;
        }
    }

    fn after_value(&mut self) -> Result<Expect, Refusal> {
        let in_object = matches!(self.open.last(), Some(Open::Object { .. }));
        if in_object {
            let end = self.position();
            self.members.last_mut().expect("a value in an object has a member").text.end = end;
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

    fn close_object(&mut self) {
        let Some(Open::Object { start, first, messy }) = self.open.pop() else {
            unreachable!("the caller saw an object")
        };
        if messy {
            self.flush(self.at);
            self.put_in_order(start, first);
        }
        self.members.truncate(first);
        self.at += 1;
    }

    /// Rewrites the members of the object that closes: sorted, the last of equals, no nulls.
    fn put_in_order(&mut self, start: usize, first: usize) {
        let input = self.input;
        let mut order: Vec<(Cow<'_, [u8]>, &Member)> = self.members[first..]
            .iter()
            .map(|member| (string::decoded(&input[member.name.clone()]), member))
            .collect();
        order.sort_by(|left, right| left.0.cmp(&right.0));
        let keep = self.keep.filter(|_| self.open.is_empty());
        let mut text = Vec::with_capacity(self.out.len() - start);
        for (position, (name, member)) in order.iter().enumerate() {
            let is_last = order.get(position + 1).is_none_or(|(next, _)| next != name);
            let is_kept = keep.is_none_or(|keep| keep.iter().any(|k| k.as_bytes() == &**name));
            if is_last && is_kept && !member.is_null {
                if !text.is_empty() {
                    text.push(b',');
                }
                text.extend_from_slice(&self.out[member.text.clone()]);
            }
        }
        self.out.truncate(start);
        self.out.extend_from_slice(&text);
    }
}
