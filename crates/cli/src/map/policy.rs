//! Which failures are tried again, and when a run ends early.

use std::ops::RangeInclusive;
use std::str::FromStr;

use super::command::End;

/// The ends of a command that `--retry-exit` names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitCodes {
    ranges: Vec<RangeInclusive<u8>>,
    timeout: bool,
    signal: bool,
}

impl ExitCodes {
    /// Whether this end is among them.
    pub fn contains(&self, end: End) -> bool {
        match end {
            End::Exit(code) => {
                u8::try_from(code).is_ok_and(|code| self.ranges.iter().any(|r| r.contains(&code)))
            }
            End::Signal(_) => self.signal,
            End::Timeout => self.timeout,
            // The machine was short of something; that says nothing about the item.
            End::NotStarted => true,
            End::Ended => false,
        }
    }
}

impl FromStr for ExitCodes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut codes = Self { ranges: Vec::new(), timeout: false, signal: false };
        for word in text.split(',') {
            match word {
                "timeout" => codes.timeout = true,
                "signal" => codes.signal = true,
                _ => codes.ranges.push(range(word)?),
            }
        }
        Ok(codes)
    }
}

fn range(word: &str) -> Result<RangeInclusive<u8>, String> {
    let code = |text: &str| {
        let code = text.parse::<u8>().ok().filter(|&code| code > 0);
        code.ok_or_else(|| format!("'{text}' is not an exit code from 1 to 255"))
    };
    match word.split_once('-') {
        Some((low, high)) => {
            let range = code(low)?..=code(high)?;
            if range.is_empty() { Err(format!("'{word}' holds no exit code")) } else { Ok(range) }
        }
        None => code(word).map(|only| only..=only),
    }
}

/// When a run ends before its items do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Halt {
    /// Not.
    Never,
    /// Once this happened.
    Once {
        /// End running commands too.
        now: bool,
        /// What is counted.
        what: Counted,
        /// How many of them.
        limit: Limit,
    },
}

/// What `--halt` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Failed items.
    Fail,
    /// Items that succeeded.
    Success,
    /// Items with any outcome.
    Done,
}

/// How many are enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Limit {
    /// This many.
    Number(u64),
    /// This share of the items done so far, judged from the third on.
    Percent(u8),
}

/// Items that share is not judged from.
const MIN_FOR_PERCENT: u64 = 3;

impl Halt {
    /// Whether the run ends now, after this many items of this run ended well and badly.
    pub fn reached(self, succeeded: u64, failed: u64) -> bool {
        let Self::Once { what, limit, .. } = self else { return false };
        let done = succeeded + failed;
        let counted = match what {
            Counted::Fail => failed,
            Counted::Success => succeeded,
            Counted::Done => done,
        };
        match limit {
            Limit::Number(limit) => counted >= limit,
            Limit::Percent(percent) => {
                done >= MIN_FOR_PERCENT && counted * 100 >= done * u64::from(percent)
            }
        }
    }
}

impl FromStr for Halt {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        const FORM: &str = "write never, or soon|now,fail|success|done=N or N%";
        if text == "never" {
            return Ok(Self::Never);
        }
        let (when, why) = text.split_once(',').ok_or(FORM)?;
        let (what, limit) = why.split_once('=').ok_or(FORM)?;
        let now = match when {
            "now" => true,
            "soon" => false,
            _ => return Err(FORM.into()),
        };
        let what = match what {
            "fail" => Counted::Fail,
            "success" => Counted::Success,
            "done" => Counted::Done,
            _ => return Err(FORM.into()),
        };
        let limit = match limit.strip_suffix('%') {
            Some(share) => share.parse().ok().filter(|p| (1..=100).contains(p)).map(Limit::Percent),
            None => limit.parse().ok().filter(|&n| n > 0).map(Limit::Number),
        };
        Ok(Self::Once { now, what, limit: limit.ok_or(FORM)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_are_numbers_ranges_and_two_words() {
        let codes: ExitCodes = "1,70-75,timeout".parse().unwrap();
        for (end, among) in [
            (End::Exit(1), true),
            (End::Exit(2), false),
            (End::Exit(70), true),
            (End::Exit(75), true),
            (End::Exit(76), false),
            (End::Timeout, true),
            (End::Signal(9), false),
        ] {
            assert_eq!(codes.contains(end), among, "{end:?}");
        }
        for text in ["", "0", "256", "x", "1-", "75-70", "1,,2"] {
            assert!(text.parse::<ExitCodes>().is_err(), "{text}");
        }
    }

    #[test]
    fn halt_counts_what_it_was_told_to() {
        let halt = |text: &str| text.parse::<Halt>().unwrap();
        assert!(!halt("never").reached(100, 100));
        assert!(!halt("soon,fail=2").reached(100, 1));
        assert!(halt("soon,fail=2").reached(100, 2));
        assert!(halt("now,success=1").reached(1, 0));
        assert!(halt("now,done=3").reached(1, 2));
        assert!(!halt("soon,fail=50%").reached(0, 2), "two items are too few to judge");
        assert!(halt("soon,fail=50%").reached(1, 2));
        for text in ["", "soon", "later,fail=1", "now,fail=0", "now,fail=0%", "now,fail=101%"] {
            assert!(text.parse::<Halt>().is_err(), "{text}");
        }
    }
}
