//! Names that users choose: what may be in them, and how long they may be.

use std::fmt::Write as _;

use sprag_kernel::{Code, Refusal};

/// The longest name, in bytes.
pub const MAX_NAME_BYTES: usize = 200;

/// Refuses an empty or overlong name and one with control characters.
pub fn check_name(field: &'static str, name: &str) -> Result<(), Refusal> {
    let reason = if name.is_empty() {
        "is empty"
    } else if name.len() > MAX_NAME_BYTES {
        "is longer than 200 bytes"
    } else if name.chars().any(char::is_control) {
        "has a control character"
    } else {
        return Ok(());
    };
    let shown: String = name.chars().filter(|c| !c.is_control()).take(64).collect();
    Err(Refusal::new(Code::NameInvalid)
        .with("field", field)
        .with("given", shown)
        .with("reason", reason))
}

/// A name as one part of a path, which it can neither leave nor divide: what is not a letter, a digit or one of
/// `-_~` and what is not a dot behind one of those is written as `%` and two digits per byte.
pub(crate) fn segment(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        let is_plain = byte.is_ascii_alphanumeric() || b"-_~".contains(&byte);
        if is_plain || (byte == b'.' && !text.is_empty()) {
            text.push(char::from(byte));
        } else {
            write!(text, "%{byte:02x}").expect("writing to a string does not fail");
        }
    }
    text
}
