//! Rest: how long the heart waits between two looks at the store. As long as something goes on, or nobody would
//! tell of work that others leave, it looks as often as configured. After some looks that found nothing each
//! wait is longer than the one before, up to a limit, but never beyond the next timer of the store. Waits differ
//! a little, so that engines do not all ask at once.

use std::sync::atomic::Ordering;
use std::time::Duration;

use sprag_kernel::retry::Millis;
use tokio::time::Instant;

use crate::engine::EngineConfig;
use crate::hints::Hears;

/// How much longer each wait is than the one before, while there is nothing to do.
const SLOWER: u32 = 4;
/// A hint is followed at once, but not more often than this: others may be busy with work that this engine
/// cannot do.
const HINTS: Duration = Duration::from_millis(25);

pub(super) struct Rest {
    poll: Duration,
    idle: Duration,
    /// After something has happened so many looks follow each other as configured: each asks for the suspects
    /// of one service, and all are to be asked for.
    looks: usize,
    looks_left: usize,
    wait: Duration,
    next: Instant,
    hears: Hears,
    /// When a hint was last followed.
    hinted_at: Option<Instant>,
    /// When the next one is to be followed, if there was one since.
    follow_at: Option<Instant>,
}

impl Rest {
    pub(super) fn new(config: &EngineConfig, services: usize, hears: Hears) -> Self {
        let (poll, idle) = (config.poll, config.idle.max(config.poll));
        Self {
            poll,
            idle,
            looks: services + 1,
            looks_left: services + 1,
            wait: poll,
            next: Instant::now(),
            hears,
            hinted_at: None,
            follow_at: None,
        }
    }

    /// Whether waits have become longer: then the beat comes more often than looks.
    pub(super) fn is_long(&self) -> bool {
        self.wait > self.poll
    }

    /// When to look.
    pub(super) fn next(&self) -> Instant {
        self.next
    }

    /// Something has happened that may need a look soon.
    pub(super) fn stir(&mut self) {
        self.looks_left = self.looks;
        self.wait = self.poll;
        self.next = self.next.min(Instant::now() + self.poll);
    }

    /// A look begins; `is_busy` if something is under way that has to be looked after.
    pub(super) fn begin(&mut self, is_busy: bool) {
        if is_busy || !self.hears.load(Ordering::Relaxed) {
            self.looks_left = self.looks;
        }
        if self.looks_left > 0 {
            self.looks_left -= 1;
            self.wait = self.poll;
        } else {
            self.wait = (self.wait * SLOWER).min(self.idle);
        }
        self.next = Instant::now() + jittered(self.wait);
    }

    /// The next timer of the store ends in so long.
    pub(super) fn wake_in(&mut self, ms: Millis) {
        // Clocks differ a little: whoever comes too early does not ask again and again.
        let wait = Duration::from_millis(ms).max(self.poll / 2);
        if let Some(at) = Instant::now().checked_add(wait) {
            self.next = self.next.min(at);
        }
    }

    /// A hint has come: it is to be followed, and a look soon after.
    pub(super) fn hint(&mut self) {
        self.stir();
        let now = Instant::now();
        self.follow_at = Some(self.hinted_at.map_or(now, |at| now.max(at + HINTS)));
    }

    /// When to follow it.
    pub(super) fn follow_at(&self) -> Option<Instant> {
        self.follow_at
    }

    pub(super) fn follow(&mut self) {
        self.hinted_at = Some(Instant::now());
        self.follow_at = None;
    }
}

/// A tenth more or less.
fn jittered(wait: Duration) -> Duration {
    let (_, random) = uuid::Uuid::now_v7().as_u64_pair();
    let percent = u32::try_from(90 + random % 21).expect("below 111");
    wait * percent / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rest(hears: bool) -> Rest {
        let config = EngineConfig {
            poll: Duration::from_secs(1),
            idle: Duration::from_secs(20),
            ..EngineConfig::default()
        };
        Rest::new(&config, 1, Hears::new(hears.into()))
    }

    /// From a look that finds nothing to the next one, in whole seconds.
    fn wait(rest: &mut Rest) -> u64 {
        rest.begin(false);
        (rest.next() - Instant::now() + Duration::from_millis(500)).as_secs()
    }

    #[test]
    fn waits_grow_up_to_the_limit_and_begin_anew_when_something_happens() {
        let mut rest = rest(true);
        let waits: Vec<u64> = (0..6).map(|_| wait(&mut rest)).collect();
        assert_eq!(waits[..2], [1, 1], "one look for each service, and one more");
        assert!((3..=5).contains(&waits[2]) && (14..=18).contains(&waits[3]), "{waits:?}");
        assert!(waits[4..].iter().all(|wait| (18..=22).contains(wait)), "{waits:?}");
        rest.stir();
        assert!(rest.next() <= Instant::now() + Duration::from_secs(1));
        assert_eq!(wait(&mut rest), 1);
    }

    #[test]
    fn whoever_is_busy_or_hears_nothing_looks_as_often_as_configured() {
        let mut deaf = rest(false);
        assert!((0..9).all(|_| wait(&mut deaf) == 1));
        let mut busy = rest(true);
        for _ in 0..9 {
            busy.begin(true);
            assert!(busy.next() <= Instant::now() + Duration::from_millis(1_100));
        }
    }

    #[test]
    fn a_timer_ends_the_longest_wait_to_the_second() {
        let mut rest = rest(true);
        while wait(&mut rest) < 18 {}
        rest.wake_in(7_000);
        let wait = rest.next() - Instant::now();
        assert!(wait > Duration::from_millis(6_900) && wait <= Duration::from_secs(7), "{wait:?}");
        rest.wake_in(9_000);
        assert!(rest.next() <= Instant::now() + Duration::from_secs(7), "the first one counts");
    }

    #[test]
    fn hints_in_quick_succession_are_followed_together_and_none_is_forgotten() {
        let mut rest = rest(true);
        while wait(&mut rest) < 18 {}
        assert_eq!(rest.follow_at(), None);
        rest.hint();
        assert!(rest.follow_at().is_some_and(|at| at <= Instant::now()), "at once");
        assert!(rest.next() <= Instant::now() + Duration::from_secs(1), "and a look soon after");
        rest.follow();
        assert_eq!(rest.follow_at(), None);
        rest.hint();
        rest.hint();
        let at = rest.follow_at().unwrap();
        assert!(at > Instant::now() && at <= Instant::now() + HINTS);
    }
}
