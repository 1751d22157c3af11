//! The pace of refused spawns. A refusal costs a rank nothing, so that its answer is delayed after many refusals for a user. The starts of
//! jobs limit the pace of successful spawns.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

/// Refusals of a user that are answered at once.
const AT_ONCE: u32 = 200;
/// Interval between further answers to the user.
const EVERY: Duration = Duration::from_millis(50);

/// Refusals, by user.
#[derive(Debug, Default)]
pub(crate) struct RefusalPace {
    /// Time at which the delays of all refusals of a user have passed. Users with a time in the past are removed.
    paid_at: Mutex<HashMap<u32, Instant>>,
}

impl RefusalPace {
    /// Counts a refusal; returns the time from which it may be answered.
    pub(crate) fn refuse(&self, uid: u32, now: Instant) -> Instant {
        let mut paid_at = self.paid_at.lock();
        paid_at.retain(|_, paid_at| *paid_at > now);
        let own = paid_at.entry(uid).or_insert(now);
        *own += EVERY;
        (*own).checked_sub(EVERY * AT_ONCE).map_or(now, |due| due.max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_whose_spawns_are_refused_without_end_waits_and_no_other_does() {
        let (pace, now) = (RefusalPace::default(), Instant::now() + Duration::from_secs(3600));
        let delays: Vec<Duration> = (0..400).map(|_| pace.refuse(1000, now) - now).collect();
        assert!(delays[..200].iter().all(Duration::is_zero));
        assert_eq!((delays[200], delays[399]), (EVERY, EVERY * 200));
        assert_eq!(pace.refuse(1001, now), now);
        let later = now + EVERY * 400;
        assert_eq!(pace.refuse(1000, later), later);
        assert_eq!(pace.paid_at.lock().len(), 1);
    }
}
