//! The network between the machines of a cluster, and what can happen to it: connections are in order and without loss, as TCP's are,
//! as long as they last. Messages of one connection never overtake each other; those of several do.

mod delivery;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::connection::{Connection, ConnectionId, End, Host, Purpose, Side};
use crate::event::{Call, Message};
use crate::random::Random;
use crate::time::Time;

/// All connections, and the state of the network between machines.
#[derive(Debug)]
pub(crate) struct Network {
    connections: BTreeMap<ConnectionId, Connection<Message>>,
    opened: ConnectionId,
    /// Ways on which nothing goes, each as often as it was cut.
    cuts: Vec<(Host, Host)>,
    /// Calls on ways that are cut.
    held_calls: Vec<HeldCall>,
    /// Machines whose messages take longer.
    slow: BTreeMap<Host, u64>,
    /// Machines that run.
    up: BTreeSet<Host>,
    /// The process of each machine whose port is known to others.
    listeners: BTreeMap<Host, u64>,
    random: Random,
}

/// A call that waits for its way to work again.
#[derive(Clone, Copy, Debug)]
struct HeldCall {
    from: Host,
    to: Host,
    call: Call,
    /// Its connection breaks then.
    until: Time,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        let (connections, cuts, held_calls, slow, up, listeners) = Default::default();
        Self { connections, opened: 0, cuts, held_calls, slow, up, listeners, random: Random::new(seed, 3) }
    }

    // Machines.

    pub(crate) fn machine_runs(&mut self, host: Host) {
        self.up.insert(host);
    }

    pub(crate) fn is_up(&self, host: Host) -> bool {
        self.up.contains(&host)
    }

    /// A process listens at the port of its machine.
    pub(crate) fn listen(&mut self, end: End) {
        self.listeners.insert(end.host, end.process);
    }

    /// Nobody listens at the port of a machine any more.
    pub(crate) fn stop_listening(&mut self, host: Host) {
        self.listeners.remove(&host);
    }

    /// The process that listens at the port of a machine.
    pub(crate) fn listener(&self, host: Host) -> Option<End> {
        self.listeners.get(&host).map(|&process| End { host, process })
    }

    // Ways.

    /// Time that a message takes from one machine to another.
    pub(crate) fn delay(&mut self, from: Host, to: Host) -> Duration {
        if from == to {
            return Duration::from_micros(self.random.between(1, 60));
        }
        let times = [from, to].iter().filter_map(|host| self.slow.get(host)).max().copied().unwrap_or(1);
        // Mostly a local network; now and then a packet is sent again.
        let micros = match self.random.below(100) {
            0 => self.random.between(2_000, 200_000),
            1..=9 => self.random.between(500, 5_000),
            _ => self.random.between(20, 500),
        };
        Duration::from_micros(micros * times)
    }

    fn is_cut(&self, from: Host, to: Host) -> bool {
        self.cuts.contains(&(from, to))
    }

    /// Returns true if two machines reach each other.
    pub(crate) fn reaches(&self, one: Host, other: Host) -> bool {
        !self.is_cut(one, other) && !self.is_cut(other, one)
    }

    pub(crate) fn cut(&mut self, from: Host, to: Host) {
        self.cuts.push((from, to));
    }

    /// Undoes one cut of this way.
    fn undo_cut(&mut self, from: Host, to: Host) {
        if let Some(at) = self.cuts.iter().position(|&cut| cut == (from, to)) {
            self.cuts.swap_remove(at);
        }
    }

    pub(crate) fn slow_down(&mut self, host: Host, times: u64) {
        self.slow.insert(host, times);
    }

    pub(crate) fn speed_up(&mut self, host: Host) {
        self.slow.remove(&host);
    }

    // Connections.

    pub(crate) fn open(&mut self, purpose: Purpose, opener: End, accepter: End) -> ConnectionId {
        self.opened += 1;
        self.connections.insert(self.opened, Connection::new(purpose, opener, accepter));
        self.opened
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection<Message>> {
        self.connections.get(&id)
    }

    /// The side of a connection that a process has.
    pub(crate) fn side_of(&self, id: ConnectionId, end: End) -> Option<Side> {
        self.get(id)?.side_of(end)
    }

    /// The purposes of the connections that there are, of which somebody has not learned that they are over.
    pub(crate) fn left(&self) -> Vec<Purpose> {
        self.connections.values().map(|connection| connection.purpose).collect()
    }

    /// Returns true if what arrives for a side is taken.
    pub(crate) fn takes(&self, id: ConnectionId, to: Side) -> bool {
        self.get(id).is_some_and(|connection| !connection.way(to).is_shut)
    }

    /// Returns true if what was sent to a side has not arrived, as nothing goes there at present.
    pub(crate) fn is_held_up(&self, id: ConnectionId, to: Side) -> bool {
        self.get(id).is_some_and(|connection| {
            let (from, receiver) = connection.hosts_of_way(to);
            let way = connection.way(to);
            !way.is_shut && (self.is_cut(from, receiver) || !way.held.is_empty())
        })
    }

    /// Nothing more is taken for a side.
    pub(crate) fn shut(&mut self, id: ConnectionId, to: Side) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let way = connection.way_mut(to);
            way.is_shut = true;
            way.held.clear();
        }
    }

    /// The connection does not end in order.
    fn break_off(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_broken = true;
        }
    }

    /// A side is going to learn that the connection is over.
    fn expect_end(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.untold += 1;
        }
    }

    /// A side has learned that; a connection of which nobody has to learn anything is forgotten.
    pub(crate) fn ended(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.untold = connection.untold.saturating_sub(1);
        if connection.untold == 0 && connection.is_shut() {
            self.connections.remove(&id);
        }
    }

    fn those(&self, is_meant: impl Fn(&Connection<Message>) -> bool) -> Vec<ConnectionId> {
        self.connections.iter().filter(|(_, connection)| is_meant(connection)).map(|(&id, _)| id).collect()
    }
}
