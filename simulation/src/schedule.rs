//! Everything that is going to happen, in order of time, and the numbers and times that a seed chooses.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use crate::connection::Host;
use crate::event::Event;
use crate::random::Random;
use crate::time::{Clock, Time};

/// Pace of a clock that is right.
const RIGHT: u64 = 1_000_000;

/// What is going to happen, and the time until which everything has.
#[derive(Debug)]
pub(crate) struct Schedule {
    now: Time,
    queue: BinaryHeap<Reverse<Scheduled>>,
    /// Number of events so far.
    scheduled: u64,
    random: Random,
    /// Number of processes so far.
    processes: u64,
    /// What each clock shows at the beginning.
    base: Instant,
    /// Microseconds that the clocks of the nodes, then that of the API server's machine, count in a second.
    paces: Vec<u64>,
}

/// Something that is going to happen; what was scheduled first comes first among what is at the same time.
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

    /// Something happens then, or now if that is past.
    pub(crate) fn at(&mut self, at: Time, event: Event) {
        self.scheduled += 1;
        self.queue.push(Reverse(Scheduled { at: at.max(self.now), number: self.scheduled, event }));
    }

    /// Something happens after this time.
    pub(crate) fn after(&mut self, time: Duration, event: Event) {
        self.at(self.now + time, event);
    }

    /// What happens next, unless that is after the end; it is its time then.
    pub(crate) fn next(&mut self, end: Time) -> Option<Event> {
        let Reverse(next) = self.queue.pop()?;
        if next.at > end {
            return None;
        }
        self.now = next.at;
        Some(next.event)
    }

    /// A time between two bounds, in microseconds.
    pub(crate) fn some_time(&mut self, first: u64, last: u64) -> Duration {
        Duration::from_micros(self.random.between(first, last))
    }

    /// The number of a new process.
    pub(crate) fn next_process(&mut self) -> u64 {
        self.processes += 1;
        self.processes
    }

    /// The monotonic clock of a machine.
    pub(crate) fn clock(&self, host: Host) -> Clock {
        let index = if host == Host::API { self.paces.len().saturating_sub(1) } else { host.0 as usize };
        Clock::new(self.base, self.paces.get(index).copied().unwrap_or(RIGHT))
    }

    /// What the clock of a machine shows.
    pub(crate) fn shown(&self, host: Host) -> Instant {
        self.clock(host).at(self.now)
    }
}
