//! Kinds of endings as stores keep them: small integers that never change their meaning.

use sprag_kernel::Code;
use sprag_kernel::decide::rows::EndingKind;

/// The stable small integer of an ending's kind.
pub fn ending_code(kind: EndingKind) -> i64 {
    match kind {
        EndingKind::Success => 1,
        EndingKind::Retryable => 2,
        EndingKind::NonRetryable => 3,
        EndingKind::AckTimeout => 4,
        EndingKind::LeaseExpired => 5,
        EndingKind::OwnerLost => 6,
        EndingKind::PublishFailed => 7,
        EndingKind::Leg1Failed(_) => 8,
        EndingKind::Leg2Exhausted => 9,
        EndingKind::Cancel => 10,
        EndingKind::Skip => 11,
    }
}

/// The kind of an ending from its integer and, for a failed Leg1, the error code beside it.
pub fn ending_kind(code: i64, error_code: Option<&str>) -> Option<EndingKind> {
    Some(match code {
        1 => EndingKind::Success,
        2 => EndingKind::Retryable,
        3 => EndingKind::NonRetryable,
        4 => EndingKind::AckTimeout,
        5 => EndingKind::LeaseExpired,
        6 => EndingKind::OwnerLost,
        7 => EndingKind::PublishFailed,
        8 => {
            let named = Code::ALL.iter().find(|code| Some(code.name()) == error_code);
            EndingKind::Leg1Failed(*named.unwrap_or(&Code::Leg1AttemptsExhausted))
        }
        9 => EndingKind::Leg2Exhausted,
        10 => EndingKind::Cancel,
        11 => EndingKind::Skip,
        _ => return None,
    })
}
