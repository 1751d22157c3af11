//! Connections between processes of several machines, and what can happen to them: in order and without loss, as TCP's are, as long
//! as they last. Messages of one connection never overtake each other; those of several do.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use crate::random::Random;
use crate::time::Time;

/// A machine: nodes by number, then the two others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Host(pub(crate) u32);

impl Host {
    pub(crate) const API: Self = Self(1000);
    pub(crate) const CLIENT: Self = Self(1001);
}

/// A process, by a number that no other one has had.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct End {
    pub(crate) host: Host,
    pub(crate) process: u64,
}

/// Number of a connection.
pub(crate) type ConnectionId = u64;

/// Purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// From the agent of a node to the API server.
    Report { node: u32 },
    /// From a client to the API server.
    Attachment,
    /// Between the sessions of two nodes.
    Link,
}

/// End of a connection at which something arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// Who opened it.
    Opener,
    Accepter,
}

impl Side {
    pub(crate) fn other(self) -> Self {
        match self {
            Self::Opener => Self::Accepter,
            Self::Accepter => Self::Opener,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Connection<M> {
    pub(crate) purpose: Purpose,
    opener: End,
    accepter: End,
    to_opener: Way<M>,
    to_accepter: Way<M>,
    /// Sides that are about to learn of its end.
    untold: u32,
}

/// One direction of a connection.
#[derive(Debug)]
struct Way<M> {
    /// Nothing arrives before what was sent before.
    last: Time,
    /// Nothing more is taken.
    is_shut: bool,
    /// Messages that wait for the network to work again.
    held: VecDeque<M>,
}

impl<M> Default for Way<M> {
    fn default() -> Self {
        Self { last: Time::default(), is_shut: false, held: VecDeque::new() }
    }
}

impl<M> Connection<M> {
    pub(crate) fn end(&self, side: Side) -> End {
        match side {
            Side::Opener => self.opener,
            Side::Accepter => self.accepter,
        }
    }

    pub(crate) fn side_of(&self, end: End) -> Option<Side> {
        [Side::Opener, Side::Accepter].into_iter().find(|&side| self.end(side) == end)
    }

    fn way(&mut self, to: Side) -> &mut Way<M> {
        match to {
            Side::Opener => &mut self.to_opener,
            Side::Accepter => &mut self.to_accepter,
        }
    }
}

/// All connections, and the state of the network between machines.
#[derive(Debug)]
pub(crate) struct Network<M> {
    connections: BTreeMap<ConnectionId, Connection<M>>,
    opened: ConnectionId,
    /// Ways on which nothing goes, each as often as it was cut.
    cuts: Vec<(Host, Host)>,
    /// Machines whose messages take longer.
    slow: BTreeMap<Host, u64>,
    random: Random,
}

/// Time after which a connection breaks on which nothing is acknowledged.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

impl<M> Network<M> {
    pub(crate) fn new(seed: u64) -> Self {
        let (connections, cuts, slow) = Default::default();
        Self { connections, opened: 0, cuts, slow, random: Random::new(seed, 3) }
    }

    pub(crate) fn open(&mut self, purpose: Purpose, opener: End, accepter: End) -> ConnectionId {
        self.opened += 1;
        let (to_opener, to_accepter) = Default::default();
        self.connections
            .insert(self.opened, Connection { purpose, opener, accepter, to_opener, to_accepter, untold: 0 });
        self.opened
    }

    pub(crate) fn get(&self, id: ConnectionId) -> Option<&Connection<M>> {
        self.connections.get(&id)
    }

    /// A side is going to learn that the connection is over.
    pub(crate) fn expect_end(&mut self, id: ConnectionId) {
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.untold += 1;
        }
    }

    /// A side has learned that; a connection of which nobody has to learn anything is forgotten.
    pub(crate) fn ended(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        connection.untold = connection.untold.saturating_sub(1);
        if connection.untold == 0 && connection.to_opener.is_shut && connection.to_accepter.is_shut {
            self.connections.remove(&id);
        }
    }

    /// The connections of a process.
    pub(crate) fn of(&self, end: End) -> Vec<ConnectionId> {
        let mine = self.connections.iter().filter(|(_, connection)| connection.side_of(end).is_some());
        mine.map(|(&id, _)| id).collect()
    }

    /// The connections of a machine.
    pub(crate) fn of_host(&self, host: Host) -> Vec<ConnectionId> {
        let mine = self
            .connections
            .iter()
            .filter(|(_, connection)| connection.opener.host == host || connection.accepter.host == host);
        mine.map(|(&id, _)| id).collect()
    }

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

    pub(crate) fn is_cut(&self, from: Host, to: Host) -> bool {
        self.cuts.contains(&(from, to))
    }

    pub(crate) fn cut(&mut self, from: Host, to: Host) {
        self.cuts.push((from, to));
    }

    /// Undoes one cut of this way.
    pub(crate) fn heal(&mut self, from: Host, to: Host) {
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

    /// Takes a message that is sent to a side. Returns the time at which it arrives; `None` if it does not, and then gives it back
    /// unless nobody takes it.
    pub(crate) fn send(&mut self, id: ConnectionId, to: Side, message: M, now: Time) -> Option<(Time, M)> {
        let connection = self.connections.get_mut(&id)?;
        let (from, receiver) = (connection.end(to.other()).host, connection.end(to).host);
        let is_cut = self.cuts.contains(&(from, receiver));
        let way = connection.way(to);
        if way.is_shut {
            return None;
        }
        if is_cut || !way.held.is_empty() {
            way.held.push_back(message);
            return None;
        }
        Some((self.arrival(id, to, now), message))
    }

    /// Time at which what is sent now to a side arrives.
    pub(crate) fn arrival(&mut self, id: ConnectionId, to: Side, now: Time) -> Time {
        let Some(connection) = self.connections.get(&id) else { return now };
        let (from, receiver) = (connection.end(to.other()).host, connection.end(to).host);
        let earliest = now + self.delay(from, receiver);
        let Some(connection) = self.connections.get_mut(&id) else { return now };
        let way = connection.way(to);
        way.last = way.last.max(earliest);
        way.last
    }

    /// Returns true if what arrives for a side is taken.
    pub(crate) fn takes(&self, id: ConnectionId, to: Side) -> bool {
        self.connections.get(&id).is_some_and(|connection| match to {
            Side::Opener => !connection.to_opener.is_shut,
            Side::Accepter => !connection.to_accepter.is_shut,
        })
    }

    /// Returns true if what was sent to a side has not arrived, as nothing goes there at present.
    pub(crate) fn is_held_up(&self, id: ConnectionId, to: Side) -> bool {
        self.connections.get(&id).is_some_and(|connection| {
            let way = match to {
                Side::Opener => &connection.to_opener,
                Side::Accepter => &connection.to_accepter,
            };
            let is_cut = self.cuts.contains(&(connection.end(to.other()).host, connection.end(to).host));
            !way.is_shut && (is_cut || !way.held.is_empty())
        })
    }

    /// Nothing more is taken for a side.
    pub(crate) fn shut(&mut self, id: ConnectionId, to: Side) {
        if let Some(connection) = self.connections.get_mut(&id) {
            let way = connection.way(to);
            way.is_shut = true;
            way.held.clear();
        }
    }

    /// What was held back, now that its way is open again: by connection and side.
    pub(crate) fn take_held(&mut self) -> Vec<(ConnectionId, Side, M)> {
        let mut released = Vec::new();
        let cuts: BTreeSet<(Host, Host)> = self.cuts.iter().copied().collect();
        for (&id, connection) in &mut self.connections {
            for to in [Side::Opener, Side::Accepter] {
                let way = (connection.end(to.other()).host, connection.end(to).host);
                if !cuts.contains(&way) {
                    released.extend(connection.way(to).held.drain(..).map(|message| (id, to, message)));
                }
            }
        }
        released
    }

    /// Returns true if there are connections between sessions.
    pub(crate) fn has_links(&self) -> bool {
        self.connections.values().any(|connection| connection.purpose == Purpose::Link)
    }

    /// The connections on which something was lost on its way for as long as they bear.
    pub(crate) fn all_cut(&self) -> Vec<ConnectionId> {
        let is_cut = |connection: &Connection<M>| {
            let (one, other) = (connection.opener.host, connection.accepter.host);
            self.is_cut(one, other) || self.is_cut(other, one)
        };
        self.connections.iter().filter(|(_, connection)| is_cut(connection)).map(|(&id, _)| id).collect()
    }
}
