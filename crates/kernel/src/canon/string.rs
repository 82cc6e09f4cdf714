//! Strings: where one ends, what an escape stands for, and how it is written canonically.

use super::invalid;
use crate::error::{Code, Refusal};

/// The first byte at or after `at` that ends plain text: a quote, a backslash or a control.
#[inline]
pub(super) fn plain_end(input: &[u8], mut at: usize) -> usize {
    const ONES: u64 = u64::MAX / 255;
    const HIGHS: u64 = ONES * 0x80;
    // Bytes of `word` that are zero become 0x80 (and maybe others above them, which come later).
    let zeros = |word: u64| word.wrapping_sub(ONES) & !word & HIGHS;
    while let Some(chunk) = input.get(at..at + 8) {
        let word = u64::from_le_bytes(chunk.try_into().expect("eight bytes"));
        let quote = zeros(word ^ (ONES * u64::from(b'"')));
        let backslash = zeros(word ^ (ONES * u64::from(b'\\')));
        let control = word.wrapping_sub(ONES * 0x20) & !word & HIGHS;
        let found = quote | backslash | control;
        if found != 0 {
            return at + found.trailing_zeros() as usize / 8;
        }
        at += 8;
    }
    while at < input.len() && !matches!(input[at], b'"' | b'\\' | 0..=0x1f) {
        at += 1;
    }
    at
}

/// An escape: its length in the input and the character it stands for.
pub(super) struct Escape {
    pub(super) length: usize,
    pub(super) character: char,
}

/// Reads the escape whose backslash is at `at`.
pub(super) fn escape(input: &[u8], at: usize) -> Result<Escape, Refusal> {
    let character = match input.get(at + 1) {
        Some(b'"') => '"',
        Some(b'\\') => '\\',
        Some(b'/') => '/',
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return unicode(input, at),
        Some(_) | None => return Err(invalid(at, "no such escape")),
    };
    Ok(Escape { length: 2, character })
}

fn unicode(input: &[u8], at: usize) -> Result<Escape, Refusal> {
    let first = hex4(input, at + 2)?;
    if let Some(character) = char::from_u32(first) {
        return Ok(Escape { length: 6, character });
    }
    let lone = || Refusal::new(Code::JsonLoneSurrogate).with("byte", at);
    if first >= 0xdc00 || input.get(at + 6..at + 8) != Some(br"\u") {
        return Err(lone());
    }
    let second = hex4(input, at + 8)?;
    if !(0xdc00..0xe000).contains(&second) {
        return Err(lone());
    }
    let code = 0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00);
    let character = char::from_u32(code).expect("a surrogate pair is a character");
    Ok(Escape { length: 12, character })
}

fn hex4(input: &[u8], at: usize) -> Result<u32, Refusal> {
    let digits = input.get(at..at + 4).ok_or_else(|| invalid(at, "four hex digits are missing"))?;
    digits.iter().try_fold(0, |sum, byte| {
        let digit = char::from(*byte).to_digit(16);
        digit.map(|digit| sum * 16 + digit).ok_or_else(|| invalid(at, "not a hex digit"))
    })
}

/// Writes a character as canonical string text.
pub(super) fn write(character: char, out: &mut Vec<u8>) {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    match character {
        '"' => out.extend_from_slice(br#"\""#),
        '\\' => out.extend_from_slice(br"\\"),
        '\u{8}' => out.extend_from_slice(br"\b"),
        '\u{c}' => out.extend_from_slice(br"\f"),
        '\n' => out.extend_from_slice(br"\n"),
        '\r' => out.extend_from_slice(br"\r"),
        '\t' => out.extend_from_slice(br"\t"),
        '\0'..='\u{1f}' => {
            let code = character as usize;
            out.extend_from_slice(br"\u00");
            out.extend_from_slice(&[HEX[code >> 4], HEX[code & 15]]);
        }
        _ => out.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes()),
    }
}

/// What a string that was read before says, without its quotes and escapes.
pub(super) fn decoded(content: &[u8]) -> Vec<u8> {
    let mut text = Vec::with_capacity(content.len());
    let mut at = 0;
    while at < content.len() {
        let end = plain_end(content, at);
        text.extend_from_slice(&content[at..end]);
        at = end;
        if at < content.len() {
            let escape = escape(content, at).expect("the walk accepted this string");
            text.extend_from_slice(escape.character.encode_utf8(&mut [0; 4]).as_bytes());
            at += escape.length;
        }
    }
    text
}
