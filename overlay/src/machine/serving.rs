//! Requests that handlers work at, and those that wait for a slot.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Neighbour;
use crate::address::Uid;
use crate::frame::Frame;
use crate::method::Method;

/// Handlers that run at a time. One that waits for a call of its own does not count.
const SLOTS: usize = 64;
/// Most requests that wait for a slot.
const WAITING_MAX: usize = 256;
/// Most requests that handlers are at, with those that wait for calls of their own.
const OPEN_MAX: usize = 4096;

/// Name of a request that a handler is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Request for a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Name by which it is answered.
    pub ticket: Ticket,
    /// Caller.
    pub from: Uid,
    /// Process that is called.
    pub to: Uid,
    /// Method that is called.
    pub method: Method,
    /// Arguments.
    pub body: Bytes,
    /// Time after which nobody waits for the answer.
    pub until: Instant,
    pub(super) id: u64,
    /// Neighbour that it came from.
    pub(super) by: Option<Neighbour>,
}

impl Request {
    pub(super) fn of(frame: Frame, by: Option<Neighbour>, now: Instant) -> Self {
        Self {
            ticket: Ticket(0),
            from: frame.source,
            to: frame.destination,
            method: Method(frame.method),
            until: now + Duration::from_millis(frame.remaining_ms.into()),
            body: frame.body,
            id: frame.id,
            by,
        }
    }
}

/// Requests of others.
#[derive(Debug, Default)]
pub(super) struct Serving {
    waiting: VecDeque<Request>,
    open: HashMap<Ticket, Open>,
    /// Handlers that have a slot.
    running: usize,
    last: u64,
}

/// Request that a handler is at.
#[derive(Debug)]
struct Open {
    request: Request,
    /// Calls of its own that it waits for.
    calls: u32,
}

impl Serving {
    /// Takes a request in.
    ///
    /// # Errors
    /// Gives it back where too many wait.
    pub(super) fn admit(&mut self, request: Request) -> Result<(), Request> {
        if self.waiting.len() >= WAITING_MAX || self.open.len() >= OPEN_MAX {
            return Err(request);
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// Gives the next request that waits a slot, if there is one.
    pub(super) fn start(&mut self) -> Option<Request> {
        if self.running >= SLOTS {
            return None;
        }
        let request = self.waiting.pop_front()?;
        self.last += 1;
        let ticket = Ticket(self.last);
        self.running += 1;
        let request = Request { ticket, ..request };
        // The handler has the body.
        let kept = Request { body: Bytes::new(), ..request.clone() };
        self.open.insert(ticket, Open { request: kept, calls: 0 });
        Some(request)
    }

    /// A handler waits for a call of its own.
    pub(super) fn suspend(&mut self, ticket: Ticket) {
        if let Some(open) = self.open.get_mut(&ticket) {
            open.calls += 1;
            self.running -= usize::from(open.calls == 1);
        }
    }

    /// A call of a handler has ended. It goes on at once, also where others have taken its slot.
    pub(super) fn resume(&mut self, ticket: Ticket) {
        if let Some(open) = self.open.get_mut(&ticket) {
            open.calls -= 1;
            self.running += usize::from(open.calls == 0);
        }
    }

    /// A handler has ended; returns its request.
    pub(super) fn end(&mut self, ticket: Ticket) -> Option<Request> {
        let open = self.open.remove(&ticket)?;
        self.running -= usize::from(open.calls == 0);
        Some(open.request)
    }
}
