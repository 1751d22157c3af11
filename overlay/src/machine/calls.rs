//! Calls that wait for their answers: numbers, deadlines, limits.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use bytes::Bytes;

use super::serving::Ticket;
use super::{Neighbour, milliseconds};
use crate::address::Uid;
use crate::error::CallError;
use crate::frame::{BODY_MAX, Frame, Kind};
use crate::method::Method;

/// Maximum waiting calls.
const CALLS_MAX: usize = 4096;
/// Maximum bytes in the bodies of waiting calls.
const BYTES_MAX: usize = 16 << 20;

/// Number of a call, unique within a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CallId(pub(super) u64);

/// Options of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallOptions {
    /// Time limit for the answer.
    pub timeout: Duration,
    /// Handler that makes the call. Its slot is free for other requests while it waits for the answer.
    pub within: Option<Ticket>,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self { timeout: Duration::from_secs(30), within: None }
    }
}

/// Waiting calls.
#[derive(Debug, Default)]
pub(super) struct Calls {
    waiting: BTreeMap<CallId, Waiting>,
    deadlines: BTreeSet<(Instant, CallId)>,
    bytes: usize,
    last: u64,
}

/// A waiting call.
#[derive(Debug)]
pub(super) struct Waiting {
    request: Frame,
    until: Instant,
    pub(super) given: Duration,
    /// Neighbour that the request was sent to.
    by: Option<Neighbour>,
    /// True while another route may be tried.
    may_turn: bool,
    pub(super) within: Option<Ticket>,
}

impl Calls {
    /// Makes the request of a new call, or returns the reason why that is impossible.
    #[expect(clippy::too_many_arguments, reason = "the parts of a call, which are nothing together before it")]
    pub(super) fn begin(
        &mut self,
        me: Uid,
        to: Uid,
        method: Method,
        body: Bytes,
        ttl: u8,
        options: &CallOptions,
        now: Instant,
    ) -> (CallId, Result<Frame, CallError>) {
        self.last += 1;
        let id = CallId(self.last);
        if body.len() > BODY_MAX {
            let why = format!("a call has at most {BODY_MAX} bytes, and this one has {}", body.len());
            return (id, Err(CallError::Refused { why }));
        }
        if self.waiting.len() >= CALLS_MAX || self.bytes + body.len() > BYTES_MAX {
            return (id, Err(CallError::Busy { at: me }));
        }
        let given = options.timeout.min(Duration::from_millis(u32::MAX.into()));
        let until = now + given;
        let request = Frame {
            kind: Kind::Request,
            ttl,
            detours: 0,
            method: method.0,
            source: me,
            destination: to,
            id: id.0,
            remaining_ms: milliseconds(given),
            body,
        };
        self.bytes += request.body.len();
        self.deadlines.insert((until, id));
        let (by, within) = (None, options.within);
        let waiting = Waiting { request: request.clone(), until, given, by, may_turn: true, within };
        self.waiting.insert(id, waiting);
        (id, Ok(request))
    }

    /// Records that the request was sent to this neighbour.
    pub(super) fn went_by(&mut self, id: CallId, neighbour: Neighbour) {
        if let Some(call) = self.waiting.get_mut(&id) {
            call.by = Some(neighbour);
        }
    }

    /// Returns the handler that made the call that `frame` answers; `None` if it answers no call. A response must come from the called
    /// process. A failure may come from any member on the route.
    #[expect(clippy::option_option, reason = "the outer option is Some if there is such a call")]
    pub(super) fn answered(&self, frame: &Frame) -> Option<Option<Ticket>> {
        let call = self.waiting.get(&CallId(frame.id))?;
        let (from, asked) = (frame.source, call.request.destination);
        let fits = match frame.kind {
            Kind::Response => from == asked,
            _ => from.is_of_set_of(asked) || from.is_of_set_of(call.request.source),
        };
        fits.then_some(call.within)
    }

    /// Returns the request again, and the neighbour to avoid; at most once for a call.
    pub(super) fn other_way(&mut self, id: CallId, now: Instant) -> Option<(Frame, Neighbour)> {
        let call = self.waiting.get_mut(&id)?;
        let first = call.by.filter(|_| std::mem::take(&mut call.may_turn))?;
        let remaining_ms = milliseconds(call.until.saturating_duration_since(now));
        Some((Frame { remaining_ms, ..call.request.clone() }, first))
    }

    /// Removes a call.
    pub(super) fn end(&mut self, id: CallId) -> Option<Waiting> {
        let call = self.waiting.remove(&id)?;
        self.deadlines.remove(&(call.until, id));
        self.bytes -= call.request.body.len();
        Some(call)
    }

    /// Removes a call that has expired.
    pub(super) fn take_overdue(&mut self, now: Instant) -> Option<(CallId, Waiting)> {
        let &(until, id) = self.deadlines.first()?;
        if until > now {
            return None;
        }
        self.end(id).map(|call| (id, call))
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.first().map(|&(until, _)| until)
    }
}
