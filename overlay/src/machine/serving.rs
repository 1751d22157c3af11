//! Requests that are being handled, and requests that wait for a slot.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::Neighbour;
use crate::address::Uid;
use crate::frame::Frame;
use crate::method::Method;

/// Maximum number of running handlers. A handler that waits for its own call does not count.
const SLOTS: usize = 64;
/// Maximum requests that wait for a slot.
const WAITING_MAX: usize = 256;
/// Maximum requests with a handler, including handlers that wait for their own calls.
const OPEN_MAX: usize = 4096;

/// Identifier of a request that is being handled.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(u64);

/// Request for a handler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Identifier for the answer.
    pub ticket: Ticket,
    /// Caller.
    pub from: Uid,
    /// Called process.
    pub to: Uid,
    /// Called method.
    pub method: Method,
    /// Arguments.
    pub body: Bytes,
    /// Time after which the caller no longer waits for the answer.
    pub until: Instant,
    pub(super) id: u64,
    /// Neighbour that sent it.
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

/// Requests of other processes.
#[derive(Debug, Default)]
pub(super) struct Serving {
    waiting: VecDeque<Request>,
    open: HashMap<Ticket, Open>,
    /// Number of handlers with a slot.
    running: usize,
    last: u64,
}

/// Request that is being handled.
#[derive(Debug)]
struct Open {
    request: Request,
    /// Number of its own calls that the handler waits for.
    calls: u32,
}

impl Serving {
    /// Accepts a request.
    ///
    /// # Errors
    /// Returns it if too many requests wait.
    pub(super) fn admit(&mut self, request: Request) -> Result<(), Request> {
        if self.waiting.len() >= WAITING_MAX || self.open.len() >= OPEN_MAX {
            return Err(request);
        }
        self.waiting.push_back(request);
        Ok(())
    }

    /// Assigns a slot to the next waiting request, if one is free.
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

    /// Records that a handler waits for its own call.
    pub(super) fn suspend(&mut self, ticket: Ticket) {
        if let Some(open) = self.open.get_mut(&ticket) {
            open.calls += 1;
            self.running -= usize::from(open.calls == 1);
        }
    }

    /// Records that a call of a handler has ended. The handler continues at once, even if all slots are in use.
    pub(super) fn resume(&mut self, ticket: Ticket) {
        if let Some(open) = self.open.get_mut(&ticket) {
            open.calls -= 1;
            self.running += usize::from(open.calls == 0);
        }
    }

    /// Ends a handler; returns its request.
    pub(super) fn end(&mut self, ticket: Ticket) -> Option<Request> {
        let open = self.open.remove(&ticket)?;
        self.running -= usize::from(open.calls == 0);
        Some(open.request)
    }
}
