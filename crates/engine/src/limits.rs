//! What may be stored: how large it may be, and which characters no store has to keep.
//!
//! The same limits hold before either store is asked, so that both refuse the same things with the same
//! codes, and nothing is half done when they do.

use sprag_kernel::{Code, Refusal};

/// The largest envelope, and the largest output of a step, unless configured otherwise.
pub const MAX_BYTES: usize = 1 << 20;
/// The largest list of items, and the largest output that the engine itself puts together from those of branches: an
/// item of 80 bytes for each of 100,000 branches. Postgres takes 1 GiB in one statement, and all that an engine gathers
/// at a time may be in one.
pub const MAX_GATHERED_BYTES: usize = 8 << 20;
/// The most bytes of inputs that a worker outside is handed with a directive, and the largest page of one that it reads.
pub const MAX_HANDED_BYTES: usize = 4 << 20;
/// The longest message of a failure that is kept; the rest is cut off.
pub const MAX_MESSAGE_BYTES: usize = 8 * 1024;
/// The most that a priority may be, on either side of 0: two years of waiting weigh as much. That of a job and
/// that of its step are added up.
pub const MAX_PRIORITY: i32 = 1_000_000;
/// The longest code of a failure that is kept.
pub const MAX_CODE_BYTES: usize = 200;

/// Refuses JSON text that is too large or holds a NUL character, which Postgres cannot keep as text.
pub fn check_json(what: &'static str, text: &str, limit: usize) -> Result<(), Refusal> {
    if text.len() > limit {
        return Err(Refusal::new(Code::InputTooLarge)
            .with("what", what)
            .with("bytes", text.len())
            .with("limit_bytes", limit));
    }
    check_nul(what, text.as_bytes())
}

/// Refuses JSON that holds a NUL character.
pub fn check_nul(what: &'static str, json: &[u8]) -> Result<(), Refusal> {
    match nul_in_json(json) {
        Some(byte) => Err(Refusal::new(Code::NulCharacter).with("what", what).with("byte", byte)),
        None => Ok(()),
    }
}

/// Where JSON text has the escape of a NUL. It cannot hold the character itself.
fn nul_in_json(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    while at < bytes.len() {
        if bytes[at] != b'\\' {
            at += 1;
        } else if bytes[at + 1..].starts_with(b"u0000") {
            return Some(at);
        } else {
            // What is escaped may itself be a backslash.
            at += 2;
        }
    }
    None
}

/// Words of a failure as every store can keep them: without NUL and not too long.
pub fn storable(text: &str, limit: usize) -> String {
    let mut kept = text.replace('\0', "\u{fffd}");
    if kept.len() > limit {
        let cut = (0..=limit).rev().find(|at| kept.is_char_boundary(*at)).unwrap_or(0);
        kept.truncate(cut);
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_is_found_where_it_is_escaped_and_not_where_the_backslash_is() {
        assert_eq!(nul_in_json(br#"{"a":"x\u0000"}"#), Some(7));
        assert_eq!(nul_in_json(br#"{"a":"x\\u0000"}"#), None);
        assert_eq!(nul_in_json(br#"{"a":"x\\\u0000"}"#), Some(9));
        assert_eq!(nul_in_json(br#""\u0001\"""#), None);
    }

    #[test]
    fn words_are_cut_between_characters() {
        assert_eq!(storable("a\0b", 10), "a\u{fffd}b");
        assert_eq!(storable("ää", 3), "ä");
    }
}
