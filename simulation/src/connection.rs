//! A connection between processes of two hosts: its ends, its two directions, and the waiting messages.

use std::collections::VecDeque;
use std::time::Duration;

use crate::time::Time;

/// Time without acknowledgements after which a connection breaks.
pub(crate) const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// A host: nodes by number, then the hosts of the API server and the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Host(pub(crate) u32);

impl Host {
    pub(crate) const API: Self = Self(1000);
    pub(crate) const CLIENT: Self = Self(1001);
}

/// A process, by a unique number that is never used again.
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

/// End of a connection that receives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    /// The side that opened the connection.
    Opener,
    Accepter,
}

impl Side {
    pub(crate) const BOTH: [Self; 2] = [Self::Opener, Self::Accepter];

    pub(crate) fn other(self) -> Self {
        match self {
            Self::Opener => Self::Accepter,
            Self::Accepter => Self::Opener,
        }
    }
}

/// A connection that carries messages of type `M`.
#[derive(Debug)]
pub(crate) struct Connection<M> {
    pub(crate) purpose: Purpose,
    opener: End,
    accepter: End,
    to_opener: Way<M>,
    to_accepter: Way<M>,
    /// Number of sides that have yet to receive the end of the connection.
    pub(crate) untold: u32,
    /// The connection did not end in order, so that sent messages may be lost.
    pub(crate) is_broken: bool,
}

/// One direction of a connection.
#[derive(Debug)]
pub(crate) struct Way<M> {
    /// A message arrives no earlier than the messages before it.
    pub(crate) last: Time,
    /// Number of messages that were sent and have not arrived.
    pub(crate) in_transit: u32,
    /// No more messages are accepted.
    pub(crate) is_shut: bool,
    /// Messages that wait until the network works again.
    pub(crate) held: VecDeque<M>,
}

impl<M> Default for Way<M> {
    fn default() -> Self {
        Self { last: Time::default(), in_transit: 0, is_shut: false, held: VecDeque::new() }
    }
}

impl<M> Connection<M> {
    pub(crate) fn new(purpose: Purpose, opener: End, accepter: End) -> Self {
        let (to_opener, to_accepter) = Default::default();
        Self { purpose, opener, accepter, to_opener, to_accepter, untold: 0, is_broken: false }
    }

    pub(crate) fn end(&self, side: Side) -> End {
        match side {
            Side::Opener => self.opener,
            Side::Accepter => self.accepter,
        }
    }

    pub(crate) fn side_of(&self, end: End) -> Option<Side> {
        Side::BOTH.into_iter().find(|&side| self.end(side) == end)
    }

    /// The host at the other side.
    pub(crate) fn other_host(&self, host: Host) -> Option<Host> {
        [self.opener.host, self.accepter.host].into_iter().find(|known| *known != host)
    }

    pub(crate) fn is_of_host(&self, host: Host) -> bool {
        self.opener.host == host || self.accepter.host == host
    }

    /// The hosts at both ends of a direction.
    pub(crate) fn hosts_of_way(&self, to: Side) -> (Host, Host) {
        (self.end(to.other()).host, self.end(to).host)
    }

    pub(crate) fn way(&self, to: Side) -> &Way<M> {
        match to {
            Side::Opener => &self.to_opener,
            Side::Accepter => &self.to_accepter,
        }
    }

    pub(crate) fn way_mut(&mut self, to: Side) -> &mut Way<M> {
        match to {
            Side::Opener => &mut self.to_opener,
            Side::Accepter => &mut self.to_accepter,
        }
    }

    /// Returns true if neither side accepts messages any more.
    pub(crate) fn is_shut(&self) -> bool {
        self.to_opener.is_shut && self.to_accepter.is_shut
    }
}
