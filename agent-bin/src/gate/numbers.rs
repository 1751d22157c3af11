//! Numbers of launches that a gate admits: each once, and none that is old.
//!
//! The API server reports the last number that it has signed, in answers that are bound to a challenge of the gate. A relay can delay these
//! answers, and repeat none. So an order is valid for two of these answers at most, and while the last one is no older than five minutes.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use pmi_transport::signature::Serial;

use crate::floor::Floor;

/// Maximum age of a valid answer of the API server.
const COUNTS_FOR: Duration = Duration::from_secs(300);
/// Maximum number of remembered launch numbers.
const SPENT_MAX: usize = 1 << 14;

/// State of the numbers.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    floor: Floor,
    /// Time of the API server's last answer.
    heard: Option<Instant>,
    /// Admitted numbers above the floor, each with its use.
    spent: BTreeSet<(Serial, Use)>,
}

/// Use of a number; each use is admitted once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Use {
    /// The session of the launch.
    Session,
    /// The CXI services of the launch.
    Services,
}

/// Reason why an order is not admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum NotNew {
    #[error("no replay floor from the API server yet: this node's fork server cannot check that the launch is new")]
    Unknown,
    #[error(
        "this node's fork server has had no replay floor from the API server for {} minutes: new launches cannot be checked",
        COUNTS_FOR.as_secs() / 60
    )]
    Unheard,
    #[error("the launch was signed before this agent registered, or long ago")]
    Old,
    #[error(
        "the API server's numbers of launches have gone back, as where it has lost its state and its clock was set back; restart this \
         node's agent"
    )]
    Behind,
    #[error("the launch was started here before")]
    Spent,
}

impl Numbers {
    /// Records that the API server has signed launches up to `last` now.
    pub(super) fn hear(&mut self, last: Serial, now: Instant) {
        self.heard = Some(now);
        match self.floor.least() {
            Some(_) => self.floor.hear(last, now),
            None => self.floor.register(last),
        }
        self.spent = self.floor.least().map_or_else(BTreeSet::new, |least| {
            self.spent.split_off(&(Serial(least.0.saturating_add(1)), Use::Session))
        });
    }

    /// Admits a number, once for each use.
    pub(super) fn spend(&mut self, serial: Serial, what_for: Use, now: Instant) -> Result<(), NotNew> {
        let (Some(heard), Some(least)) = (self.heard, self.floor.least()) else { return Err(NotNew::Unknown) };
        if now.duration_since(heard) > COUNTS_FOR {
            return Err(NotNew::Unheard);
        }
        if serial <= least {
            return Err(if self.floor.is_behind() { NotNew::Behind } else { NotNew::Old });
        }
        if !self.spent.insert((serial, what_for)) {
            return Err(NotNew::Spent);
        }
        if self.spent.len() > SPENT_MAX
            && let Some((forgotten, _)) = self.spent.pop_first()
        {
            self.floor.raise(forgotten);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::UNDER_WAY;

    #[test]
    fn nothing_is_let_in_before_the_api_server_was_heard_nor_long_after() {
        let (mut numbers, now) = (Numbers::default(), Instant::now());
        assert_eq!(numbers.spend(Serial(9), Use::Session, now), Err(NotNew::Unknown));
        numbers.hear(Serial(5), now);
        assert_eq!(numbers.spend(Serial(9), Use::Session, now + COUNTS_FOR), Ok(()));
        let late = now + COUNTS_FOR + Duration::from_secs(1);
        assert_eq!(numbers.spend(Serial(10), Use::Session, late), Err(NotNew::Unheard));
        numbers.hear(Serial(9), late);
        assert_eq!(numbers.spend(Serial(10), Use::Session, late), Ok(()));
    }

    #[test]
    fn a_number_is_let_in_once_and_not_when_it_is_old() {
        let (mut numbers, now) = (Numbers::default(), Instant::now());
        numbers.hear(Serial(5), now);
        assert_eq!(numbers.spend(Serial(5), Use::Session, now), Err(NotNew::Old));
        assert_eq!(numbers.spend(Serial(7), Use::Session, now), Ok(()));
        assert_eq!(numbers.spend(Serial(7), Use::Session, now), Err(NotNew::Spent));
        assert_eq!(numbers.spend(Serial(7), Use::Services, now), Ok(()));
        assert_eq!(numbers.spend(Serial(7), Use::Services, now), Err(NotNew::Spent));
        numbers.hear(Serial(8), now);
        assert_eq!(numbers.spend(Serial(6), Use::Session, now), Ok(()), "it may be under way");
        numbers.hear(Serial(9), now + UNDER_WAY);
        assert_eq!(numbers.spend(Serial(8), Use::Session, now + UNDER_WAY), Err(NotNew::Old));
        assert_eq!(numbers.spend(Serial(9), Use::Session, now + UNDER_WAY), Ok(()));
        assert_eq!(numbers.spent.len(), 1, "old ones need not be remembered");
    }

    /// An attacker that has taken the daemon over has all orders of a server that is gone.
    #[test]
    fn a_server_whose_numbers_went_back_makes_no_order_new_again() {
        let (mut numbers, now) = (Numbers::default(), Instant::now());
        numbers.hear(Serial(100), now);
        assert_eq!(numbers.spend(Serial(101), Use::Session, now), Ok(()));
        numbers.hear(Serial(110), now);
        let later = now + UNDER_WAY;
        numbers.hear(Serial(120), later);
        assert!(numbers.spent.is_empty(), "it is old, and remembered no longer");
        for minutes in 0..3 {
            let now = later + minutes * UNDER_WAY;
            numbers.hear(Serial(50 + u64::from(minutes)), now);
            for serial in [51, 60, 101] {
                assert_eq!(numbers.spend(Serial(serial), Use::Session, now), Err(NotNew::Behind), "{serial}");
            }
        }
        let now = later + 3 * UNDER_WAY;
        numbers.hear(Serial(130), now);
        assert_eq!(numbers.spend(Serial(101), Use::Session, now), Err(NotNew::Old));
        assert_eq!(numbers.spend(Serial(131), Use::Session, now), Ok(()));
    }

    #[test]
    fn what_is_remembered_is_bounded_and_what_is_forgotten_is_old() {
        let (mut numbers, now) = (Numbers::default(), Instant::now());
        numbers.hear(Serial(0), now);
        for number in 1..=SPENT_MAX as u64 + 1 {
            assert_eq!(numbers.spend(Serial(number), Use::Session, now), Ok(()));
        }
        assert_eq!(numbers.spent.len(), SPENT_MAX);
        assert_eq!(numbers.spend(Serial(1), Use::Session, now), Err(NotNew::Old));
        assert_eq!(numbers.spend(Serial(2), Use::Session, now), Err(NotNew::Spent));
        // The maximum number causes no panic.
        numbers.hear(Serial(u64::MAX), now);
        numbers.hear(Serial(u64::MAX), now + UNDER_WAY);
    }
}
