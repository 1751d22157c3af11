//! What a part of the cluster has around it: the time, the network, and those who keep record. The rules of a part use its own state
//! and this, and see no other part.

use std::fmt;
use std::time::{Duration, Instant};

use pmi_core::ids::{JobId, Rank};
use pmi_core::services::{SpawnError, SpawnRequest};

use crate::connection::{ConnectionId, End, Host, Side};
use crate::event::{Call, Event, Message};
use crate::journal::Journal;
use crate::network::Network;
use crate::scenario::Scenario;
use crate::schedule::Schedule;
use crate::time::Time;
use crate::truth::Truth;

/// Lease of the API server, and of sessions without an agent.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// Everything that all parts of a cluster share.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) scenario: Scenario,
    pub(crate) schedule: Schedule,
    pub(crate) network: Network,
    pub(crate) journal: Journal,
    pub(crate) truth: Truth,
    /// New jobs that ranks want, and the answers, in the order in which they came.
    pub(crate) wishes: Vec<SpawnWish>,
    pub(crate) answers: Vec<Result<JobId, SpawnError>>,
}

/// A new job that a rank wants.
#[derive(Clone, Debug)]
pub(crate) struct SpawnWish {
    pub(crate) session: u64,
    /// Number of the call in its session.
    pub(crate) call: u64,
    pub(crate) parent: JobId,
    pub(crate) rank: Rank,
    pub(crate) request: SpawnRequest,
}

impl Surroundings {
    pub(crate) fn new(seed: u64, scenario: Scenario, journal: Journal) -> Self {
        Self {
            schedule: Schedule::new(seed, scenario.paces.clone()),
            network: Network::new(seed),
            journal,
            truth: Truth::new(&scenario),
            scenario,
            wishes: Vec::new(),
            answers: Vec::new(),
        }
    }

    pub(crate) fn now(&self) -> Time {
        self.schedule.now()
    }

    /// What the clock of a machine shows.
    pub(crate) fn shown(&self, host: Host) -> Instant {
        self.schedule.shown(host)
    }

    /// Something happens after this time.
    pub(crate) fn after(&mut self, time: Duration, event: impl Into<Event>) {
        self.schedule.after(time, event.into());
    }

    /// Something happens then.
    pub(crate) fn at(&mut self, at: Time, event: impl Into<Event>) {
        self.schedule.at(at, event.into());
    }

    /// A time between two bounds, in microseconds.
    pub(crate) fn some_time(&mut self, first: u64, last: u64) -> Duration {
        self.schedule.some_time(first, last)
    }

    /// Sends a message to a side of a connection.
    pub(crate) fn send(&mut self, connection: ConnectionId, to: Side, message: Message) {
        self.network.send(&mut self.schedule, connection, to, message);
    }

    /// A process ends its side of a connection.
    pub(crate) fn close(&mut self, connection: ConnectionId, side: Side) {
        self.network.close(&mut self.schedule, connection, side);
    }

    /// A process has ended, and with it its sides of connections.
    pub(crate) fn close_all(&mut self, end: End) {
        self.network.close_all(&mut self.schedule, end);
    }

    /// Makes a call; nobody learns whether it has arrived.
    pub(crate) fn call(&mut self, from: Host, to: Host, call: Call) {
        self.network.call(&mut self.schedule, from, to, call);
    }

    /// Writes a line of the journal.
    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.journal.note(self.schedule.now(), what);
    }
}
