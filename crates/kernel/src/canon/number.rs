//! Numbers: the exact decimal of a token, in plain notation.

use super::{MAX_NUMBER_CHARS, invalid};
use crate::error::{Code, Refusal};

/// A number token.
pub(super) struct Token {
    /// Where it ends.
    pub(super) end: usize,
    /// Where its canonical text ends, if that is a part of the token: all but an exponent and `-0`.
    pub(super) plain_end: Option<usize>,
}

/// Reads the token that starts at `start`.
#[inline]
pub(super) fn scan(input: &[u8], start: usize) -> Result<Token, Refusal> {
    let first = start + usize::from(input[start] == b'-');
    let whole = digits(input, first)?;
    if input[first] == b'0' && whole > first + 1 {
        return Err(invalid(first, "a number has no leading zeros"));
    }
    let (mut end, mut plain_end) = (whole, whole);
    if input.get(end) == Some(&b'.') {
        end = digits(input, end + 1)?;
        plain_end = end;
        while input[plain_end - 1] == b'0' {
            plain_end -= 1;
        }
        plain_end -= usize::from(input[plain_end - 1] == b'.');
    }
    let mut is_plain = input[start..plain_end] != *b"-0" && plain_end - start <= MAX_NUMBER_CHARS;
    if let Some(b'e' | b'E') = input.get(end) {
        is_plain = false;
        let sign = usize::from(matches!(input.get(end + 1), Some(b'+' | b'-')));
        end = digits(input, end + 1 + sign)?;
    }
    Ok(Token { end, plain_end: is_plain.then_some(plain_end) })
}

/// The end of a run of at least one digit.
#[inline]
fn digits(input: &[u8], start: usize) -> Result<usize, Refusal> {
    let length = input[start.min(input.len())..].iter().take_while(|b| b.is_ascii_digit()).count();
    if length == 0 {
        return Err(invalid(start, "a digit is missing"));
    }
    Ok(start + length)
}

/// The canonical text of a token that [`scan`] accepted. `at` is its place, for the refusal.
pub(super) fn canonical(token: &[u8], at: usize) -> Result<Vec<u8>, Refusal> {
    let (negative, unsigned) = match token {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mark = unsigned.iter().position(|b| matches!(b, b'e' | b'E')).unwrap_or(unsigned.len());
    let (mantissa, exponent) = (&unsigned[..mark], exponent(unsigned.get(mark + 1..)));
    let point = mantissa.iter().position(|b| *b == b'.').unwrap_or(mantissa.len());
    let all: Vec<u8> = mantissa.iter().copied().filter(|b| *b != b'.').collect();

    let Some(first) = all.iter().position(|b| *b != b'0') else { return Ok(b"0".to_vec()) };
    let last = all.iter().rposition(|b| *b != b'0').expect("there is a first non-zero digit");
    let significant = &all[first..=last];
    // The value is 0.significant times ten to the power of `scale`.
    let scale = (point as i64 - first as i64).saturating_add(exponent);
    plain(negative, significant, scale).ok_or_else(|| {
        Refusal::new(Code::NumberRange)
            .with("byte", at)
            .with("limit", format!("{MAX_NUMBER_CHARS} characters in plain notation"))
    })
}

/// The exponent after the `e`, saturated far outside of any accepted range.
fn exponent(text: Option<&[u8]>) -> i64 {
    let Some(text) = text else { return 0 };
    let (negative, digits) = match text {
        [b'-', rest @ ..] => (true, rest),
        rest => (false, rest.strip_prefix(b"+").unwrap_or(rest)),
    };
    let size = digits
        .iter()
        .fold(0_i64, |sum, b| sum.saturating_mul(10).saturating_add(i64::from(b - b'0')));
    if negative { -size } else { size }
}

/// Plain notation, or nothing if it would be too long.
fn plain(negative: bool, significant: &[u8], scale: i64) -> Option<Vec<u8>> {
    let count = significant.len() as i64;
    let length = match scale {
        scale if scale <= 0 => count.saturating_add(2).saturating_sub(scale),
        scale if scale >= count => scale,
        _ => count + 1,
    };
    if length.saturating_add(i64::from(negative)) > MAX_NUMBER_CHARS as i64 {
        return None;
    }
    let mut text = Vec::with_capacity(MAX_NUMBER_CHARS.min(significant.len() + 8));
    if negative {
        text.push(b'-');
    }
    // Within the limit, so `scale` fits.
    let zeros = |text: &mut Vec<u8>, many: i64| text.extend((0..many).map(|_| b'0'));
    if scale <= 0 {
        text.extend_from_slice(b"0.");
        zeros(&mut text, -scale);
        text.extend_from_slice(significant);
    } else if scale >= count {
        text.extend_from_slice(significant);
        zeros(&mut text, scale - count);
    } else {
        let (whole, fraction) = significant.split_at(usize::try_from(scale).ok()?);
        text.extend_from_slice(whole);
        text.push(b'.');
        text.extend_from_slice(fraction);
    }
    Some(text)
}
