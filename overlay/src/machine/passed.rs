//! Requests that were sent to the last known neighbour on their route, until their answer passes by; and requests that were sent to a
//! neighbour on the way, until it sends any frame. If that neighbour is lost, all callers are notified.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use super::Neighbour;
use crate::address::Uid;

/// Maximum remembered requests. Callers of further requests wait until they expire.
const REQUESTS_MAX: usize = 8192;

/// Maximum remembered requests per neighbour on the way that has sent no frame since.
const UNHEARD_MAX: usize = 1024;

/// Name of a request: its caller, and the caller's number for it.
pub(super) type Name = (Uid, u64);

/// Requests that other members are to answer.
#[derive(Debug, Default)]
pub(super) struct Passed {
    requests: HashMap<Name, Given>,
    at: BTreeSet<(Neighbour, Name)>,
    deadlines: BTreeSet<(Instant, Name)>,
    /// By neighbours on the way.
    unheard: HashMap<Neighbour, Vec<Gone>>,
}

/// Lost request; its caller must be notified.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) name: Name,
    /// Neighbour that sent it.
    pub(super) from: Option<Neighbour>,
    pub(super) until: Instant,
}

/// Request that a neighbour has received.
#[derive(Debug)]
struct Given {
    to: Neighbour,
    /// Neighbour that sent it, which may wait for the answer as well; `None` for a call of this member.
    from: Option<Neighbour>,
    /// Time after which the caller no longer waits for the answer.
    until: Instant,
    /// True once the link to the neighbour was lost.
    is_doubted: bool,
}

impl Passed {
    /// Records that a request was sent to this neighbour.
    pub(super) fn given(&mut self, name: Name, from: Option<Neighbour>, to: Neighbour, until: Instant) {
        let is_doubted = self.end(name).is_some_and(|former| former.is_doubted);
        if self.requests.len() < REQUESTS_MAX {
            self.requests.insert(name, Given { to, from, until, is_doubted });
            self.at.insert((to, name));
            self.deadlines.insert((until, name));
        }
    }

    /// Removes a request, because its answer has passed by or it has moved elsewhere. Returns the neighbour that sent it.
    pub(super) fn forget(&mut self, name: Name) -> Option<Neighbour> {
        self.end(name)?.from
    }

    fn end(&mut self, name: Name) -> Option<Given> {
        let given = self.requests.remove(&name)?;
        self.at.remove(&(given.to, name));
        self.deadlines.remove(&(given.until, name));
        Some(given)
    }

    /// Removes expired requests.
    pub(super) fn expire(&mut self, now: Instant) {
        while let Some(&(until, name)) = self.deadlines.first()
            && until <= now
        {
            self.end(name);
        }
    }

    fn with(&self, neighbour: Neighbour) -> impl Iterator<Item = Name> {
        let first = (neighbour, (Uid::from_bits(0), 0));
        self.at.range(first..).take_while(move |(with, _)| *with == neighbour).map(|&(_, name)| name)
    }

    /// Requests at this neighbour.
    pub(super) fn at(&self, neighbour: Neighbour) -> Vec<Name> {
        self.with(neighbour).collect()
    }

    /// Returns true if this neighbour has any request.
    pub(super) fn is_waited_for(&self, neighbour: Neighbour) -> bool {
        self.with(neighbour).next().is_some()
    }

    /// Records that the link of a request was lost, and is opened once more. Returns false if that happened for this request before.
    pub(super) fn doubt(&mut self, name: Name) -> bool {
        self.requests.get_mut(&name).is_some_and(|given| !std::mem::replace(&mut given.is_doubted, true))
    }

    /// Removes a lost request.
    pub(super) fn take(&mut self, name: Name) -> Option<Gone> {
        let Given { from, until, .. } = self.end(name)?;
        Some(Gone { name, from, until })
    }

    /// Records that a request was sent to a neighbour that must forward it.
    pub(super) fn sent(&mut self, to: Neighbour, request: Gone) {
        let unheard = self.unheard.entry(to).or_default();
        if unheard.len() < UNHEARD_MAX {
            unheard.push(request);
        }
    }

    /// Records that a neighbour has sent a frame: it has received all earlier requests.
    pub(super) fn heard(&mut self, neighbour: Neighbour) {
        self.unheard.remove(&neighbour);
    }

    /// Removes the requests that a neighbour may not have forwarded.
    pub(super) fn take_unheard(&mut self, neighbour: Neighbour) -> Vec<Gone> {
        self.unheard.remove(&neighbour).unwrap_or_default()
    }
}
