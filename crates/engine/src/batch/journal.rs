//! A journal row: a run of outcomes as text, one letter per stretch of equal outcomes, one line per output.
//! What is not a plain success at the first try has a line of notes.

use std::fmt::Write as _;

use serde::Serialize;
use sprag_lanes::{Batch, Verdict};

use super::store::{BatchPoint, JournalRow};

/// How a seq ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeqOutcome {
    /// It has an output.
    Success,
    /// Left out.
    Skip,
    /// Failed for good.
    Fail,
    /// Cancelled before it had an outcome.
    Cancel,
}

impl SeqOutcome {
    const ALL: [Self; 4] = [Self::Success, Self::Skip, Self::Fail, Self::Cancel];

    fn letter(self) -> char {
        match self {
            Self::Success => 'S',
            Self::Skip => 'K',
            Self::Fail => 'F',
            Self::Cancel => 'C',
        }
    }

    fn of_letter(letter: char) -> Option<Self> {
        Self::ALL.into_iter().find(|outcome| outcome.letter() == letter)
    }
}

/// A line of notes.
#[derive(Serialize)]
struct Note<'a> {
    seq: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    class: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<&'a str>,
    retries: u16,
}

/// The row of a batch of outcomes, and the point behind it.
pub(super) fn row(batch: &Batch<String>, before: &BatchPoint) -> (JournalRow, BatchPoint) {
    let (first_seq, seqs) = (batch.first(), batch.seqs());
    let room = usize::try_from(batch.bytes() + seqs).unwrap_or(0);
    let mut row = JournalRow {
        first_seq,
        seqs,
        outputs: String::with_capacity(room),
        ..JournalRow::default()
    };
    let mut to = BatchPoint { resume: *batch.resume(), ..*before };
    let mut stretch: Option<(SeqOutcome, u64)> = None;
    for (seq, envelope) in batch.iter() {
        let (outcome, class, reason) = match envelope.verdict {
            Verdict::Success(output) => {
                row.outputs.push_str(output);
                row.outputs.push('\n');
                (SeqOutcome::Success, None, None)
            }
            Verdict::Skip(reason) => (SeqOutcome::Skip, None, Some(reason)),
            Verdict::Fail(class, reason) => (SeqOutcome::Fail, Some(class.name()), Some(reason)),
            Verdict::Cancel => (SeqOutcome::Cancel, None, None),
        };
        if outcome == SeqOutcome::Fail {
            to.first_failed.get_or_insert(seq);
        }
        if reason.is_some() || envelope.attempts > 0 {
            let note = Note { seq, class, reason, retries: envelope.attempts };
            row.notes.push_str(&serde_json::to_string(&note).expect("a note is JSON"));
            row.notes.push('\n');
        }
        stretch = match stretch {
            Some((same, count)) if same == outcome => Some((same, count + 1)),
            ended => {
                close(ended, &mut row.outcomes);
                Some((outcome, 1))
            }
        };
    }
    close(stretch, &mut row.outcomes);
    to.out_bytes += row.outputs.len() as u64;
    (row, to)
}

fn close(stretch: Option<(SeqOutcome, u64)>, outcomes: &mut String) {
    if let Some((outcome, count)) = stretch {
        write!(outcomes, "{count}{}", outcome.letter()).expect("writing to a string");
    }
}

/// The seqs of a row with their outcomes, and the outputs of those that succeeded. Nothing if the row
/// contradicts itself.
pub(super) fn seqs(row: &JournalRow) -> Option<Vec<(u64, SeqOutcome, Option<&str>)>> {
    let mut found = Vec::new();
    let mut outputs = row.outputs.lines();
    let mut rest = row.outcomes.as_str();
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let count: u64 = rest[..digits].parse().ok()?;
        let letter = rest[digits..].chars().next()?;
        let outcome = SeqOutcome::of_letter(letter)?;
        rest = &rest[digits + letter.len_utf8()..];
        for _ in 0..count {
            let seq = row.first_seq + found.len() as u64;
            let output = if outcome == SeqOutcome::Success { Some(outputs.next()?) } else { None };
            found.push((seq, outcome, output));
        }
    }
    (found.len() as u64 == row.seqs && outputs.next().is_none()).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_read_as_seqs_and_one_that_contradicts_itself_is_not() {
        let row = JournalRow {
            first_seq: 7,
            seqs: 4,
            outcomes: "2S1K1F".to_owned(),
            notes: String::new(),
            outputs: "1\n\"two\"\n".to_owned(),
        };
        let read = seqs(&row).unwrap();
        assert_eq!(read[1], (8, SeqOutcome::Success, Some("\"two\"")));
        assert_eq!(read[3], (10, SeqOutcome::Fail, None));
        for outcomes in ["3S1K", "1S1K2F", "2S1K", "2X2S", "S"] {
            assert_eq!(seqs(&JournalRow { outcomes: outcomes.to_owned(), ..row.clone() }), None);
        }
    }
}
