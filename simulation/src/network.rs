//! The network between the hosts of a cluster, and its faults. As in TCP, connections keep the order of messages, and lose none while
//! they are open. Messages of one connection never overtake each other. Messages of different connections may.

mod delivery;

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use crate::connection::{Connection, ConnectionId, End, Host, Purpose, Side};
use crate::event::{Call, Message};
use crate::random::Random;
use crate::time::Time;

/// All connections, and the state of the network between hosts.
#[derive(Debug)]
pub(crate) struct Network {
    connections: BTreeMap<ConnectionId, Connection<Message>>,
    opened: ConnectionId,
    /// Cut directions, each repeated for every cut.
    cuts: Vec<(Host, Host)>,
    /// Calls on cut directions.
    held_calls: Vec<HeldCall>,
    /// Factors of hosts with slow messages.
    slow: BTreeMap<Host, u64>,
    /// Running hosts.
    up: BTreeSet<Host>,
    /// The listening process of each host.
    listeners: BTreeMap<Host, u64>,
    random: Random,
}

/// A call that waits until its direction works again.
#[derive(Clone, Copy, Debug)]
struct HeldCall {
    from: Host,
    to: Host,
    call: Call,
    /// Time at which its connection breaks.
    until: Time,
}

impl Network {
    pub(crate) fn new(seed: u64) -> Self {
        let (connections, cuts, held_calls, slow, up, listeners) = Default::default();
        Self { connections, opened: 0, cuts, held_calls, slow, up, listeners, random: Random::new(seed, 3) }
    }

    // Hosts.

    pub(crate) fn machine_runs(&mut self, host: Host) {
        self.up.insert(host);
    }

    pub(crate) fn is_up(&self, host: Host) -> bool {
        self.up.contains(&host)
    }

    /// Makes a process listen at the port of its host.
    pub(crate) fn listen(&mut self, end: End) {
        self.listeners.insert(end.host, end.process);
    }

    /// Stops listening at the port of a host.
    pub(crate) fn stop_listening(&mut self, host: Host) {
        self.listeners.remove(&host);
    }

    /// Returns the process that listens at the port of a host.
    pub(crate) fn listener(&self, host: Host) -> Option<End> {
        self.listeners.get(&host).map(|&process| End { host, process })
    }

    // Directions.

    /// Returns the time that a message takes from one host to another.
    pub(crate) fn delay(&mut self, from: Host, to: Host) -> Duration {
        if from == to {
            return Duration::from_micros(self.random.between(1, 60));
        }
        let times = [from, to].iter().filter_map(|host| self.slow.get(host)).max().copied().unwrap_or(1);
        // Mostly the delay of a local network; sometimes the delay of a retransmission.
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

    /// Returns true if two hosts can reach each other.
    pub(crate) fn reaches(&self, one: Host, other: Host) -> bool {
        !self.is_cut(one, other) && !self.is_cut(other, one)
    }

    pub(crate) fn cut(&mut self, from: Host, to: Host) {
        self.cuts.push((from, to));
    }

    /// Removes one cut of this direction.
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

    /// Returns the side of a process on a connection.
    pub(crate) fn side_of(&self, id: ConnectionId, end: End) -> Option<Side> {
        self.get(id)?.side_of(end)
    }

    /// Returns the purposes of the existing connections, including ended ones if a side has yet to receive the end.
    pub(crate) fn left(&self) -> Vec<Purpose> {
        self.connections.values().map(|connection| connection.purpose).collect()
    }

    /// Returns true if a side accepts messages.
    pub(crate) fn takes(&self, id: ConnectionId, to: Side) -> bool {
        self.get(id).is_some_and(|connection| !connection.way(to).is_shut)
    }

    /// Returns true if messages to a side have not arrived because their direction is cut.
    pub(crate) fn is_held_up(&self, id: ConnectionId, to: Side) -> bool {
        self.get(id).is_some_and(|connection| {
            let (from, receiver) = connection.hosts_of_way(to);
            let way = connection.way(to);
            !way.is_shut && (self.is_cut(from, receiver) || !way.held.is_empty())
        })
    }

    /// Makes a side refuse all further messages.
    pub(crate) fn shut(&mut self, id: ConnectionId, to: Side) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let way = connection.way_mut(to);
            way.is_shut = true;
            way.held.clear();
        }
    }

    /// Marks a connection that does not end in order.
    fn break_off(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.is_broken = true;
        }
    }

    /// Records that a side has received the end. A connection is removed when no side has yet to receive it.
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
