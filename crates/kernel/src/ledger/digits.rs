//! Fifteen decimal digits: weights, reading one digit, text in and out.

use crate::error::{Code, Refusal};

/// The largest ledger.
pub const LEDGER_MAX: u64 = 999_999_999_999_999;

/// Digits 1 to 3, counted in trillions.
pub(super) const TRILLION: u64 = 1_000_000_000_000;
/// Digit 4.
pub(super) const DIGIT_4: u64 = 100_000_000_000;
/// Digit 5: work done.
pub(super) const WORK_DONE: u64 = 10_000_000_000;
/// Digit 6: children spawned.
pub(super) const CHILDREN_SPAWNED: u64 = 1_000_000_000;
/// Digit 7: completion tasks done.
pub(super) const COMPLETION_DONE: u64 = 100_000_000;
/// One past the counter of digits 8 to 15.
pub(super) const COUNTER: u64 = 100_000_000;

/// The digit of this weight.
#[inline]
pub(super) fn digit(ledger: u64, weight: u64) -> u64 {
    ledger / weight % 10
}

/// Exactly fifteen decimal digits, as an integer.
pub(super) fn parse(text: &str) -> Result<u64, Refusal> {
    if text.len() != 15 || !text.bytes().all(|byte| byte.is_ascii_digit()) {
        let shown: String = text.chars().take(40).collect();
        return Err(Refusal::new(Code::LedgerDigits).with("given", shown));
    }
    Ok(text.bytes().fold(0, |sum, byte| sum * 10 + u64::from(byte - b'0')))
}

/// The refusal for digits that contradict themselves.
pub(super) fn impossible(ledger: u64, reason: &'static str) -> Refusal {
    Refusal::new(Code::LedgerImpossible)
        .with("digits", format!("{ledger:015}"))
        .with("reason", reason)
}

/// Refuses at the first of these that is true, with its reason.
pub(super) fn refuse_any(ledger: u64, faults: &[(bool, &'static str)]) -> Result<(), Refusal> {
    match faults.iter().find(|(fault, _)| *fault) {
        Some((_, reason)) => Err(impossible(ledger, reason)),
        None => Ok(()),
    }
}
