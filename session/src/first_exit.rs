//! Time limit of the other ranks after the first rank of the launched job has ended. A session applies it to its own ranks, also
//! without an API server. The API server applies it to the ranks of all nodes.
//!
//! ```text
//! Unlimited      Ahead ──a rank has ended──> Running ──its time is over──> Unlimited
//! ```

use std::time::{Duration, Instant};

use pmi_core::ids::Rank;

use crate::cause::CauseKind;

/// State of the time limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstExit(State);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// There is no limit, or it was reached.
    Unlimited,
    /// No rank is known to have ended.
    Ahead { wait: Duration },
    /// `rank` was the first to end.
    Running { until: Instant, rank: Rank, wait: Duration },
}

impl FirstExit {
    /// Creates the state before the end of any rank; `None` sets no limit.
    pub fn new(wait: Option<Duration>) -> Self {
        Self(wait.map_or(State::Unlimited, |wait| State::Ahead { wait }))
    }

    /// Returns true while the end of a rank would start the time limit.
    pub fn is_ahead(&self) -> bool {
        matches!(self.0, State::Ahead { .. })
    }

    /// Records the end of a rank of the launched job. Only the first end counts.
    pub fn on_exit(&mut self, rank: Rank, now: Instant) {
        if let State::Ahead { wait } = self.0 {
            self.0 = State::Running { until: now + wait, rank, wait };
        }
    }

    /// Returns the end of the time limit; `None` if it has not started.
    pub fn next(&self) -> Option<Instant> {
        match self.0 {
            State::Running { until, .. } => Some(until),
            State::Unlimited | State::Ahead { .. } => None,
        }
    }

    /// Returns the rank that ended first and the cause, once the time limit is reached.
    pub fn due(&mut self, now: Instant) -> Option<(Rank, CauseKind)> {
        match self.0 {
            State::Running { until, rank, wait } if until <= now => {
                self.0 = State::Unlimited;
                Some((rank, CauseKind::FirstExit { rank, wait }))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_of_the_others_begins_with_the_first_end_and_is_over_once() {
        let (start, wait) = (Instant::now(), Duration::from_secs(3));
        let after = |seconds| start + Duration::from_secs(seconds);
        let mut first = FirstExit::new(Some(wait));
        assert!(first.is_ahead() && first.next().is_none() && first.due(after(9)).is_none());
        first.on_exit(Rank(5), after(1));
        first.on_exit(Rank(2), after(2));
        assert_eq!((first.is_ahead(), first.next(), first.due(after(3))), (false, Some(after(4)), None));
        assert_eq!(first.due(after(4)), Some((Rank(5), CauseKind::FirstExit { rank: Rank(5), wait })));
        assert_eq!((first.next(), first.due(after(9))), (None, None));
        let mut unlimited = FirstExit::new(None);
        unlimited.on_exit(Rank(0), start);
        assert_eq!((unlimited.is_ahead(), unlimited.due(after(9))), (false, None));
    }
}
