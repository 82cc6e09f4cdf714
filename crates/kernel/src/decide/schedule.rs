//! Schedules: which ticks of a rhythm become jobs. A tick is on time if it is the newest one and not long past;
//! all others were missed, by engines that did not run, and the schedule's policy says what becomes of them.

use crate::retry::Millis;

/// How late a tick may be taken and still be on time: engines look more often than that.
pub const ON_TIME_MS: Millis = 60_000;
/// How many ticks one commit takes; if there are more, the next one goes on.
pub const MAX_TICKS: usize = 100;

/// What becomes of ticks that were missed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Missed {
    /// Nothing.
    Skip,
    /// One job for all of them.
    #[default]
    Once,
    /// A job for each.
    All,
}

impl Missed {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Skip, Self::Once, Self::All];

    /// The stable small integer of this policy.
    pub fn code(self) -> i16 {
        match self {
            Self::Skip => 0,
            Self::Once => 1,
            Self::All => 2,
        }
    }

    /// The policy of a stable small integer.
    pub fn from_code(code: i16) -> Option<Self> {
        Self::ALL.into_iter().find(|missed| missed.code() == code)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Skip => "skip",
            Self::Once => "once",
            Self::All => "all",
        }
    }

    /// The policy of a name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|missed| missed.name() == name)
    }
}

/// What a look at a schedule comes to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ticked {
    /// The ticks that become jobs, the oldest first.
    pub jobs: Vec<Millis>,
    /// The newest tick that is done with: the schedule goes on behind it.
    pub last: Millis,
}

/// Decides about the ticks that are due. `due` are the first of them, the oldest first and at most [`MAX_TICKS`];
/// `newest` is the newest.
pub fn tick(missed: Missed, due: &[Millis], newest: Millis, now: Millis) -> Ticked {
    let is_on_time = now.saturating_sub(newest) <= ON_TIME_MS;
    let jobs = match missed {
        Missed::All => due.to_vec(),
        Missed::Once => vec![newest],
        Missed::Skip if is_on_time => vec![newest],
        Missed::Skip => Vec::new(),
    };
    let last = match missed {
        Missed::All => due.last().copied().unwrap_or(newest),
        Missed::Skip | Missed::Once => newest,
    };
    Ticked { jobs, last }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Millis = 86_400_000;

    #[test]
    fn a_policy_says_what_becomes_of_missed_ticks() {
        let due = [DAY, 2 * DAY, 3 * DAY];
        let on_time = 3 * DAY + ON_TIME_MS;
        let late = on_time + 1;
        let jobs = |missed, now| tick(missed, &due, 3 * DAY, now).jobs;
        for now in [on_time, late] {
            assert_eq!(jobs(Missed::All, now), due);
            assert_eq!(jobs(Missed::Once, now), [3 * DAY]);
        }
        assert_eq!(jobs(Missed::Skip, on_time), [3 * DAY]);
        assert!(jobs(Missed::Skip, late).is_empty());
        for missed in Missed::ALL {
            assert_eq!(tick(missed, &due, 3 * DAY, late).last, 3 * DAY);
        }
    }

    #[test]
    fn a_long_absence_is_made_up_for_part_by_part() {
        let due = [DAY, 2 * DAY];
        let ticked = tick(Missed::All, &due, 9 * DAY, 9 * DAY);
        assert_eq!(ticked, Ticked { jobs: due.to_vec(), last: 2 * DAY });
    }

    #[test]
    fn a_policy_has_one_name_and_one_number() {
        for missed in Missed::ALL {
            assert_eq!(Missed::from_code(missed.code()), Some(missed));
            assert_eq!(Missed::from_name(missed.name()), Some(missed));
        }
        assert_eq!((Missed::from_code(3), Missed::from_name("never")), (None, None));
    }
}
