//! The surroundings of a part of the cluster: the time, the network, and the records. The rules of a part use its own state and
//! these surroundings, and have no access to other parts.

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

/// The state that all parts of a cluster share.
#[derive(Debug)]
pub(crate) struct Surroundings {
    pub(crate) scenario: Scenario,
    pub(crate) schedule: Schedule,
    pub(crate) network: Network,
    pub(crate) journal: Journal,
    pub(crate) truth: Truth,
    /// Requests of ranks for new jobs, and the answers, in the order of their arrival.
    pub(crate) wishes: Vec<SpawnWish>,
    pub(crate) answers: Vec<Result<JobId, SpawnError>>,
}

/// A request of a rank for a new job.
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

    /// Returns the present reading of a host's clock.
    pub(crate) fn shown(&self, host: Host) -> Instant {
        self.schedule.shown(host)
    }

    /// Schedules an event after this time.
    pub(crate) fn after(&mut self, time: Duration, event: impl Into<Event>) {
        self.schedule.after(time, event.into());
    }

    /// Schedules an event at this time.
    pub(crate) fn at(&mut self, at: Time, event: impl Into<Event>) {
        self.schedule.at(at, event.into());
    }

    /// Returns a random time between two bounds, in microseconds.
    pub(crate) fn some_time(&mut self, first: u64, last: u64) -> Duration {
        self.schedule.some_time(first, last)
    }

    /// Sends a message to a side of a connection.
    pub(crate) fn send(&mut self, connection: ConnectionId, to: Side, message: Message) {
        self.network.send(&mut self.schedule, connection, to, message);
    }

    /// A process closes its side of a connection.
    pub(crate) fn close(&mut self, connection: ConnectionId, side: Side) {
        self.network.close(&mut self.schedule, connection, side);
    }

    /// A process has ended. Closes its sides of connections.
    pub(crate) fn close_all(&mut self, end: End) {
        self.network.close_all(&mut self.schedule, end);
    }

    /// Makes a call. The sender receives no confirmation.
    pub(crate) fn call(&mut self, from: Host, to: Host, call: Call) {
        self.network.call(&mut self.schedule, from, to, call);
    }

    /// Writes a line to the journal.
    pub(crate) fn note(&mut self, what: fmt::Arguments<'_>) {
        self.journal.note(self.schedule.now(), what);
    }
}
