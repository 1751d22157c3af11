//! Requests that were given to the last neighbour on their way, as far as the way is known here, until their answer comes by; and those that
//! were given to one in between, until it says anything. Where that neighbour is lost, their callers are told, whoever they are.

use std::collections::{BTreeSet, HashMap};
use std::time::Instant;

use super::Neighbour;
use crate::address::Uid;

/// Most requests that are remembered. Callers of further ones wait until their time is over.
const REQUESTS_MAX: usize = 8192;

/// Most of them that one neighbour in between has and has said nothing since.
const UNHEARD_MAX: usize = 1024;

/// Name of a request: its caller, and the caller's number for it.
pub(super) type Name = (Uid, u64);

/// Requests that wait for their answers elsewhere.
#[derive(Debug, Default)]
pub(super) struct Passed {
    requests: HashMap<Name, Given>,
    at: BTreeSet<(Neighbour, Name)>,
    deadlines: BTreeSet<(Instant, Name)>,
    /// By neighbours in between.
    unheard: HashMap<Neighbour, Vec<Gone>>,
}

/// Request whose caller is to be told that it is lost.
#[derive(Debug)]
pub(super) struct Gone {
    pub(super) name: Name,
    /// Neighbour that it came from.
    pub(super) from: Option<Neighbour>,
    pub(super) until: Instant,
}

/// Request that a neighbour has.
#[derive(Debug)]
struct Given {
    to: Neighbour,
    /// Neighbour that it came from, which may wait for the answer as well; `None` for a call of this member's.
    from: Option<Neighbour>,
    /// Time after which nobody waits for the answer.
    until: Instant,
    /// True once the link that it went over was lost.
    is_doubted: bool,
}

impl Passed {
    /// A request was given to this neighbour.
    pub(super) fn given(&mut self, name: Name, from: Option<Neighbour>, to: Neighbour, until: Instant) {
        let is_doubted = self.end(name).is_some_and(|former| former.is_doubted);
        if self.requests.len() < REQUESTS_MAX {
            self.requests.insert(name, Given { to, from, until, is_doubted });
            self.at.insert((to, name));
            self.deadlines.insert((until, name));
        }
    }

    /// An answer has come by, or the request is not with that neighbour any more. Returns the neighbour that it came from.
    pub(super) fn forget(&mut self, name: Name) -> Option<Neighbour> {
        self.end(name)?.from
    }

    fn end(&mut self, name: Name) -> Option<Given> {
        let given = self.requests.remove(&name)?;
        self.at.remove(&(given.to, name));
        self.deadlines.remove(&(given.until, name));
        Some(given)
    }

    /// Forgets the requests whose time is over.
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

    /// Requests that this neighbour has.
    pub(super) fn at(&self, neighbour: Neighbour) -> Vec<Name> {
        self.with(neighbour).collect()
    }

    /// Returns true if this neighbour has any.
    pub(super) fn is_waited_for(&self, neighbour: Neighbour) -> bool {
        self.with(neighbour).next().is_some()
    }

    /// The link that a request went over was lost, and is opened once more; false if that was done for this request before.
    pub(super) fn doubt(&mut self, name: Name) -> bool {
        self.requests.get_mut(&name).is_some_and(|given| !std::mem::replace(&mut given.is_doubted, true))
    }

    /// Takes out a request that is lost.
    pub(super) fn take(&mut self, name: Name) -> Option<Gone> {
        let Given { from, until, .. } = self.end(name)?;
        Some(Gone { name, from, until })
    }

    /// A request was sent to a neighbour that is to pass it on.
    pub(super) fn sent(&mut self, to: Neighbour, request: Gone) {
        let unheard = self.unheard.entry(to).or_default();
        if unheard.len() < UNHEARD_MAX {
            unheard.push(request);
        }
    }

    /// A neighbour has said something: what it was sent before has come there.
    pub(super) fn heard(&mut self, neighbour: Neighbour) {
        self.unheard.remove(&neighbour);
    }

    /// Takes out the requests that a neighbour was sent and may not have passed on.
    pub(super) fn take_unheard(&mut self, neighbour: Neighbour) -> Vec<Gone> {
        self.unheard.remove(&neighbour).unwrap_or_default()
    }
}
