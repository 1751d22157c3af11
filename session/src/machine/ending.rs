//! The steps that end ranks, each with its time: first signal, SIGTERM, SIGKILL.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

/// An end in progress.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    /// Signals that are not sent yet, in order, each with its time.
    steps: VecDeque<(Instant, Signal)>,
    /// The last signal that was sent. Ranks that start late receive it too.
    sent: Option<Signal>,
}

impl Ending {
    /// Sends `first` at once, and SIGKILL after `grace`. If `first` is not SIGTERM, SIGTERM follows after half of the grace.
    /// After a first SIGKILL no signal follows.
    pub(crate) fn begin(first: Signal, grace: Duration, now: Instant) -> Self {
        Self { steps: steps(first, grace, now), sent: None }
    }

    /// Replaces the steps if the new ones finish sooner. An end never becomes slower.
    pub(crate) fn hasten(&mut self, first: Signal, grace: Duration, now: Instant) {
        let steps = steps(first, grace, now);
        if steps.back().map(|&(at, _)| at) < self.steps.back().map(|&(at, _)| at) {
            self.steps = steps;
        }
    }

    /// Returns the time of the next step; `None` after the last one.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.steps.front().map(|&(at, _)| at)
    }

    /// Returns the signal that is due and counts it as sent. Must be called until it returns `None`.
    pub(crate) fn due(&mut self, now: Instant) -> Option<Signal> {
        let (_, signal) = self.steps.pop_front_if(|&mut (at, _)| at <= now)?;
        self.sent = Some(signal);
        Some(signal)
    }

    /// Returns the signal for ranks that were still starting when the other ranks received theirs.
    pub(crate) fn for_late_ranks(&self) -> Signal {
        self.sent.unwrap_or(Signal::SIGTERM)
    }
}

fn steps(first: Signal, grace: Duration, now: Instant) -> VecDeque<(Instant, Signal)> {
    let mut steps = VecDeque::from([(now, first)]);
    if first != Signal::SIGKILL {
        if first != Signal::SIGTERM {
            steps.push_back((now + grace / 2, Signal::SIGTERM));
        }
        steps.push_back((now + grace, Signal::SIGKILL));
    }
    steps
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(4);

    /// Returns the signals that are sent, each with its second, if the time is checked every second.
    fn sent(ending: &mut Ending, start: Instant) -> Vec<(u64, Signal)> {
        let due = |second| ending.due(start + Duration::from_secs(second)).map(|signal| (second, signal));
        (0..10).filter_map(due).collect()
    }

    #[test]
    fn the_first_signal_comes_at_once_and_the_last_is_sigkill() {
        let start = Instant::now();
        let check = |first, expected: &[(u64, Signal)]| {
            assert_eq!(sent(&mut Ending::begin(first, GRACE, start), start), expected, "{first}");
        };
        check(Signal::SIGTERM, &[(0, Signal::SIGTERM), (4, Signal::SIGKILL)]);
        check(Signal::SIGINT, &[(0, Signal::SIGINT), (2, Signal::SIGTERM), (4, Signal::SIGKILL)]);
        check(Signal::SIGHUP, &[(0, Signal::SIGHUP), (2, Signal::SIGTERM), (4, Signal::SIGKILL)]);
        check(Signal::SIGKILL, &[(0, Signal::SIGKILL)]);
    }

    #[test]
    fn an_end_becomes_faster_and_never_slower() {
        let start = Instant::now();
        let check = |first, grace: u64, expected: &[(u64, Signal)]| {
            let mut ending = Ending::begin(Signal::SIGTERM, GRACE, start);
            ending.due(start);
            ending.hasten(first, Duration::from_secs(grace), start + Duration::from_secs(1));
            assert_eq!(sent(&mut ending, start), expected, "{first} {grace}");
        };
        check(Signal::SIGKILL, 0, &[(1, Signal::SIGKILL)]);
        check(Signal::SIGTERM, 1, &[(1, Signal::SIGTERM), (2, Signal::SIGKILL)]);
        check(Signal::SIGTERM, 3, &[(4, Signal::SIGKILL)]);
        check(Signal::SIGTERM, 60, &[(4, Signal::SIGKILL)]);
    }

    #[test]
    fn late_ranks_get_what_the_others_got_last() {
        let start = Instant::now();
        let mut ending = Ending::begin(Signal::SIGINT, GRACE, start);
        assert_eq!(ending.next(), Some(start));
        assert_eq!(ending.for_late_ranks(), Signal::SIGTERM, "nothing was sent");
        ending.due(start);
        assert_eq!(ending.for_late_ranks(), Signal::SIGINT);
        while ending.due(start + GRACE).is_some() {}
        assert_eq!((ending.for_late_ranks(), ending.next()), (Signal::SIGKILL, None));
    }
}
