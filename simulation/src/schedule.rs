//! All future events in order of time, and the random numbers and times of a seed.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::connection::Host;
use crate::event::Event;
use crate::random::Random;
use crate::time::{Clock, Time};

/// Pace of an exact clock.
const RIGHT: u64 = 1_000_000;

/// Future events, and the present time.
#[derive(Debug)]
pub(crate) struct Schedule {
    now: Time,
    queue: BinaryHeap<Reverse<Scheduled>>,
    /// Number of scheduled events.
    scheduled: u64,
    random: Random,
    /// Number of created processes.
    processes: u64,
    /// Initial reading of each clock.
    base: Instant,
    /// Microseconds that the clocks of the nodes, then the clock of the API server's host, count in a second.
    paces: Vec<u64>,
}

/// A future event. Events with the same time happen in the order in which they were scheduled.
#[derive(Debug)]
struct Scheduled {
    at: Time,
    number: u64,
    event: Event,
}

impl PartialEq for Scheduled {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl Eq for Scheduled {}

impl PartialOrd for Scheduled {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Scheduled {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at, self.number).cmp(&(other.at, other.number))
    }
}

impl Schedule {
    pub(crate) fn new(seed: u64, paces: Vec<u64>) -> Self {
        Self {
            now: Time::default(),
            queue: BinaryHeap::new(),
            scheduled: 0,
            random: Random::new(seed, 4),
            processes: 0,
            base: Instant::now() + Duration::from_secs(1 << 20),
            paces,
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.now
    }

    /// Schedules an event at this time, or now if the time has passed.
    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at: at.max(self.now), number: self.scheduled, event }));
    }

    /// Schedules an event after this time.
    pub(crate) fn after(&mut self, time: Duration, event: Event) {
        self.at(self.now + time, event);
    }

    /// Returns the next event, and advances the time to it; `None` if it is after `end`.
    pub(crate) fn next(&mut self, end: Time) -> Option<Event> {
        let Reverse(next) = self.queue.pop()?;
        if next.at > end {
            return None;
        }
        self.now = next.at;
        Some(next.event)
    }

    /// Returns a random time between two bounds, in microseconds.
    pub(crate) fn some_time(&mut self, first: u64, last: u64) -> Duration {
        Duration::from_micros(self.random.between(first, last))
    }

    /// Returns the number of a new process.
    pub(crate) fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    /// Returns the monotonic clock of a host.
    pub(crate) fn clock(&self, host: Host) -> Clock {
        let index = if host == Host::API { self.paces.len().saturating_sub(1) } else { host.0 as usize };
        Clock::new(self.base, self.paces.get(index).copied().unwrap_or(RIGHT))
    }

    /// Returns the present reading of a host's clock.
    pub(crate) fn shown(&self, host: Host) -> Instant {
        self.clock(host).at(self.now)
    }
}
