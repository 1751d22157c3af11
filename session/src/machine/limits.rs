//! Time limits of a launch in one session: its run time, the signal before that limit, and the time of other ranks after the first
//! rank has ended. On a cluster, each session has only its own ranks; the API server has the ranks of the other nodes.

use std::time::{Duration, Instant};

use pmi_core::ids::Rank;

use crate::cause::CauseKind;
use crate::first_exit::FirstExit;
use crate::settings::Timeouts;
use crate::timeouts;

/// A limit that was reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reached {
    /// The time limit is near: the ranks must receive this signal.
    Signal(i32),
    /// The launch has run for its whole time limit.
    TimeLimit { limit: Duration },
    /// Other ranks still run at the end of the time after the first exit, which the cause contains.
    FirstExit(CauseKind),
}

/// Limits that are not reached yet. Each one is reached once.
#[derive(Debug)]
pub(crate) struct Limits {
    signal: Option<(Instant, i32)>,
    time_limit: Option<(Instant, Duration)>,
    first_exit: FirstExit,
}

impl Limits {
    pub(crate) fn new(timeouts: &Timeouts, started: Instant) -> Self {
        let limit = timeouts.time_limit;
        let signal = limit.zip(timeouts.limit_signal);
        Self {
            // If the limit is nearer than the lead time of the signal, the signal is sent at once.
            signal: signal.map(|(limit, asked)| (started + limit.saturating_sub(asked.ahead), asked.signal)),
            time_limit: limit.map(|limit| (started + limit, limit)),
            first_exit: FirstExit::new(timeouts.after_first_exit),
        }
    }

    /// Records the end of a rank of the launched job.
    pub(crate) fn on_exit(&mut self, rank: Rank, now: Instant) {
        self.first_exit.on_exit(rank, now);
    }

    /// Returns the next limit; `None` if none is left.
    pub(crate) fn next(&self) -> Option<Instant> {
        let signal = self.signal.map(|(at, _)| at);
        let limit = self.time_limit.map(|(at, _)| at);
        [signal, limit, self.first_exit.next()].into_iter().flatten().min()
    }

    /// Returns the time until the time limit, zero once it is reached; `None` without a limit.
    pub(crate) fn left(&self, now: Instant) -> Option<Duration> {
        Some(self.time_limit?.0.saturating_duration_since(now))
    }

    /// Returns true if the time limit is reached or about to be reached: sessions of a launch do not start at the same time.
    pub(crate) fn is_at_limit(&self, now: Instant) -> bool {
        self.time_limit.is_some_and(|(at, _)| at <= now + timeouts::LIMIT_SKEW)
    }

    /// Returns a limit that was reached, and removes it. Must be called until it returns `None`.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Reached> {
        if let Some((_, signal)) = self.signal.take_if(|(at, _)| *at <= now) {
            return Some(Reached::Signal(signal));
        }
        if let Some((_, limit)) = self.time_limit.take_if(|(at, _)| *at <= now) {
            return Some(Reached::TimeLimit { limit });
        }
        self.first_exit.due(now).map(|(_, cause)| Reached::FirstExit(cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::LimitSignal;

    /// Returns the limits that are reached within a minute, each with its second, if ranks end at these seconds.
    fn reached(timeouts: Timeouts, ends: &[(u64, u32)]) -> Vec<(u64, Reached)> {
        let start = Instant::now();
        let mut limits = Limits::new(&timeouts, start);
        let mut seen = Vec::new();
        for second in 0..60 {
            let now = start + Duration::from_secs(second);
            ends.iter().filter(|(at, _)| *at == second).for_each(|&(_, rank)| limits.on_exit(Rank(rank), now));
            assert_eq!(limits.next().is_some_and(|at| at <= now), limits.next().is_some_and(|at| at == now));
            while let Some(reached) = limits.due(now) {
                seen.push((second, reached));
            }
        }
        seen
    }

    fn seconds(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_signal_comes_ahead_of_the_limit_and_both_once() {
        let check = |limit: Option<u64>, ahead, expected: &[(u64, Reached)]| {
            let limit_signal = Some(LimitSignal { signal: 10, ahead: seconds(ahead) });
            let timeouts = Timeouts { time_limit: limit.map(seconds), limit_signal, ..Timeouts::default() };
            assert_eq!(reached(timeouts, &[]), expected, "{limit:?} {ahead}");
        };
        let (signal, over) = (Reached::Signal(10), Reached::TimeLimit { limit: seconds(30) });
        check(Some(30), 10, &[(20, signal.clone()), (30, over.clone())]);
        check(Some(30), 30, &[(0, signal.clone()), (30, over.clone())]);
        check(Some(30), 99, &[(0, signal.clone()), (30, over.clone())]);
        check(Some(30), 0, &[(30, signal), (30, over)]);
        check(None, 10, &[]);
    }

    #[test]
    fn the_wait_begins_with_the_first_exit_and_no_other() {
        let check = |wait: Option<u64>, ends: &[(u64, u32)], expected: &[(u64, u32)]| {
            let timeouts = Timeouts { after_first_exit: wait.map(seconds), ..Timeouts::default() };
            let first_exit = |&(second, rank)| {
                let wait = seconds(wait.unwrap_or_default());
                (second, Reached::FirstExit(CauseKind::FirstExit { rank: Rank(rank), wait }))
            };
            let expected: Vec<_> = expected.iter().map(first_exit).collect();
            assert_eq!(reached(timeouts, ends), expected, "{wait:?} {ends:?}");
        };
        check(Some(7), &[], &[]);
        check(Some(7), &[(3, 2), (5, 1)], &[(10, 2)]);
        check(None, &[(3, 2)], &[]);
    }
}
