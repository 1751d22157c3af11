//! A member of a set as a pure state machine, without I/O or clock. Its input is frames, link events, calls and the time. Its output is
//! effects.
//!
//! ```text
//! call ───────> calls ──request──┐                      ┌──> Effect::Send, Open, Close   links: one for each neighbour
//! handle_frame ──────────────────┼──> route: here? ─────┤
//! answer <───── serving <────────┘    else the best     └──> Effect::Serve, Ended        here
//!    │                                neighbour
//!    └──response──> route
//! ```
//! A frame is sent to the neighbour that is nearest to its destination, if necessary over a new link. If that neighbour is dead, the next best
//! one is used. If no neighbour is nearer, a frame may make two detours. Frames to another set are routed through the own root and the root of
//! the other set. If a request cannot be forwarded, its caller receives an error with the member at which it ended.
//!
//! A call is made at most once: a request that may have reached another process is not sent again. The member that sends a request to the last
//! neighbour on its route remembers it until the answer passes by. If that link is lost, it is opened once more, without the request. If that
//! fails, no process is left to answer, and the caller is notified.

mod calls;
mod direct;
mod links;
mod passed;
mod routing;
mod serving;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use bytes::Bytes;

use self::calls::Calls;
pub use self::calls::{CallId, CallOptions};
use self::direct::Direct;
use self::links::Links;
use self::passed::{Gone, Passed};
use self::serving::Serving;
pub use self::serving::{Request, Ticket};
use crate::address::{Process, SetId, Uid};
use crate::error::{CallError, Fault};
use crate::frame::{BODY_MAX, Frame, Kind};
use crate::method::{Connectivity, Method, SetInfo, document};
use crate::strides::neighbours;

/// Far end of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Neighbour {
    /// A member of the own set, by its node's index.
    Member(u32),
    /// The root of another set. Only roots have such links.
    Set(SetId),
    /// The process of a rank of this node, if it makes and serves calls itself.
    Rank(u32),
    /// The session of a rank: the only neighbour of a [`Machine::of_rank`].
    Session,
}

/// Position of a member, and its information about its set.
#[derive(Clone, Debug)]
pub struct Membership {
    /// The set.
    pub set: SetId,
    /// Index of the member's node.
    pub node: u32,
    /// Number of members; at least one.
    pub members: u32,
    /// Index of each rank's node.
    pub homes: Vec<u32>,
    /// The launch; `None` for a tool.
    pub launch: Option<String>,
}

/// Work for the runner of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Open a link. The runner must call [`Machine::handle_opened`] or [`Machine::handle_lost`] within a time limit.
    Open(Neighbour),
    /// Close a link. The runner reports no further events of it.
    Close(Neighbour),
    /// Send a frame. The runner then calls [`Machine::handle_written`].
    Send(Neighbour, Frame),
    /// Run a handler. The runner then calls [`Machine::answer`].
    Serve(Request),
    /// Report the result of a call to its caller.
    Ended(CallId, Result<Bytes, CallError>),
}

/// End that opened a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opener {
    /// This member.
    Us,
    /// The neighbour.
    Them,
}

/// A member of a set, or the process of one of its ranks.
#[derive(Debug)]
pub struct Machine {
    membership: Membership,
    /// The rank; `None` for a member.
    rank: Option<u32>,
    links: Links,
    calls: Calls,
    passed: Passed,
    direct: Direct,
    serving: Serving,
    /// Frames for this process, with the neighbours that sent them.
    arrived: VecDeque<(Frame, Option<Neighbour>)>,
    effects: VecDeque<Effect>,
}

impl Machine {
    /// Creates a member without links.
    pub fn new(membership: Membership) -> Self {
        Self {
            membership,
            rank: None,
            links: Links::default(),
            calls: Calls::default(),
            passed: Passed::default(),
            direct: Direct::default(),
            serving: Serving::default(),
            arrived: VecDeque::new(),
            effects: VecDeque::new(),
        }
    }

    /// Creates the process of a rank. All its frames are sent to its session, over the link to [`Neighbour::Session`].
    pub fn of_rank(set: SetId, rank: u32) -> Self {
        let membership = Membership { set, node: 0, members: 1, homes: Vec::new(), launch: None };
        Self { rank: Some(rank), ..Self::new(membership) }
    }

    /// Address of this member, or of this rank.
    pub fn me(&self) -> Uid {
        let process = self.rank.map_or(Process::Node(self.membership.node), Process::Rank);
        Uid::new(self.membership.set, process)
    }

    /// Calls a method of a process. [`Effect::Ended`] always reports its end.
    pub fn call(&mut self, to: Uid, method: Method, body: Bytes, options: CallOptions, now: Instant) -> CallId {
        let ttl = self.ttl(to);
        let (id, frame) = self.calls.begin(self.me(), to, method, body, ttl, &options, now);
        match frame {
            Ok(frame) => {
                if let Some(handler) = options.within {
                    self.serving.suspend(handler);
                    self.start_waiting();
                }
                self.route(frame, None, now, now);
            }
            Err(error) => self.effects.push_back(Effect::Ended(id, Err(error))),
        }
        self.settle(now);
        id
    }

    /// Drops a call, because the caller no longer waits.
    pub fn give_up(&mut self, id: CallId) {
        if let Some(call) = self.calls.end(id) {
            self.resume(call.within);
        }
    }

    /// Processes the answer of a handler, of at most [`BODY_MAX`] bytes. For a longer answer the caller receives a handler failure. Unknown
    /// tickets are ignored.
    pub fn answer(&mut self, ticket: Ticket, result: Result<Bytes, CallError>, now: Instant) {
        if let Some(request) = self.serving.end(ticket) {
            self.respond(&request, result, now);
        }
        self.start_waiting();
        self.settle(now);
    }

    /// Processes a frame that arrived over a link.
    pub fn handle_frame(&mut self, from: Neighbour, frame: Frame, now: Instant) {
        self.links.heard(from, now);
        self.passed.heard(from);
        match frame.kind {
            Kind::Echo => self.echo(from, Kind::Echoed),
            Kind::Echoed => {}
            Kind::Request | Kind::Response | Kind::Error => {
                if self.may_come_from(from, &frame) {
                    self.route(frame, Some(from), now, now);
                }
            }
        }
        self.settle(now);
    }

    /// Records that a link is open, after [`Effect::Open`] or because the neighbour opened it.
    pub fn handle_opened(&mut self, neighbour: Neighbour, opener: Opener, now: Instant) {
        for queued in self.links.opened(neighbour, opener, now) {
            self.route(queued.frame, queued.from, queued.since, now);
        }
        self.settle(now);
    }

    /// Records that a link could not be opened, or is lost.
    pub fn handle_lost(&mut self, neighbour: Neighbour, now: Instant) {
        self.lost(neighbour, None, now);
        self.settle(now);
    }

    /// Records that a link could not be opened, with a reason for the callers.
    pub fn handle_refused(&mut self, neighbour: Neighbour, why: String, now: Instant) {
        self.lost(neighbour, Some(why), now);
        self.settle(now);
    }

    /// Records that this many frames were written to the network.
    pub fn handle_written(&mut self, neighbour: Neighbour, frames: u32) {
        self.links.written(neighbour, frames);
    }

    /// Processes expired times: see [`Machine::next_wake`].
    pub fn handle_time(&mut self, now: Instant) {
        while let Some((id, call)) = self.calls.take_overdue(now) {
            self.resume(call.within);
            let ms = u32::try_from(call.given.as_millis()).unwrap_or(u32::MAX);
            self.effects.push_back(Effect::Ended(id, Err(CallError::Timeout { ms })));
        }
        self.passed.expire(now);
        for silent in self.links.silent(now) {
            self.effects.push_back(Effect::Close(silent));
            self.lost(silent, None, now);
        }
        for idle in self.links.take_idle(&self.passed, now) {
            self.effects.push_back(Effect::Close(idle));
        }
        for doubtful in self.links.doubtful(&self.passed, now) {
            self.echo(doubtful, Kind::Echo);
        }
        self.settle(now);
    }

    /// Time of the next necessary call of [`Machine::handle_time`].
    pub fn next_wake(&self) -> Option<Instant> {
        [self.calls.next_deadline(), self.links.next_wake(&self.passed)].into_iter().flatten().min()
    }

    /// The next effect.
    pub fn poll_effect(&mut self) -> Option<Effect> {
        self.effects.pop_front()
    }

    /// Open links.
    pub fn connectivity(&self) -> Connectivity {
        let Membership { node, members, .. } = self.membership;
        let strides = neighbours(node, members);
        let links = self.links.open().map(|(neighbour, link)| {
            let kind = match neighbour {
                Neighbour::Member(index) if !strides.contains(&index) => "direct",
                Neighbour::Member(_) => "stride",
                Neighbour::Set(_) => "root",
                Neighbour::Rank(_) | Neighbour::Session => "rank",
            };
            link.info(self.uid_of(neighbour), kind)
        });
        Connectivity { member: self.me().to_string(), links: links.collect() }
    }

    fn uid_of(&self, neighbour: Neighbour) -> Uid {
        match neighbour {
            Neighbour::Member(node) => Uid::new(self.membership.set, Process::Node(node)),
            Neighbour::Set(set) => set.root(),
            Neighbour::Rank(rank) => Uid::new(self.membership.set, Process::Rank(rank)),
            Neighbour::Session => self.membership.set.root(),
        }
    }

    fn lost(&mut self, neighbour: Neighbour, why: Option<String>, now: Instant) {
        let was_open = self.links.is_open(neighbour);
        let was_idle = self.links.is_idle(neighbour, now);
        let Some(waited) = self.links.lost(neighbour, why, now) else { return };
        for queued in waited {
            self.route(queued.frame, queued.from, queued.since, now);
        }
        self.settle(now);
        let mut gone = self.passed.at(neighbour);
        if was_open && !neighbour.is_lasting() && !gone.is_empty() && self.open(neighbour, now) {
            gone.retain(|&name| !(self.passed.doubt(name) || was_idle));
        }
        let mut lost = self.passed.take_unheard(neighbour);
        lost.extend(gone.into_iter().filter_map(|name| self.passed.take(name)));
        let error = CallError::Lost { at: self.me() };
        for request in lost {
            self.end_lost(&request, &error, now);
        }
    }

    /// Reports to the caller of a request that no process is left to answer it.
    fn end_lost(&mut self, request: &Gone, error: &CallError, now: Instant) {
        let Gone { name: (caller, id), from, until } = *request;
        if caller != self.me() {
            let left = milliseconds(until.saturating_duration_since(now));
            let told = self.error_frame(request.name, left, error);
            self.answer_by(from, told, now);
        } else if let Some(call) = self.calls.end(CallId(id)) {
            self.resume(call.within);
            self.effects.push_back(Effect::Ended(CallId(id), Err(error.clone())));
        }
    }

    /// Processes the frames that have arrived here, with all their consequences here.
    fn settle(&mut self, now: Instant) {
        while let Some((frame, by)) = self.arrived.pop_front() {
            match frame.kind {
                Kind::Request => self.take_request(frame, by, now),
                Kind::Response | Kind::Error => self.take_answer(frame, now),
                Kind::Echo | Kind::Echoed => {}
            }
        }
    }

    fn take_request(&mut self, frame: Frame, by: Option<Neighbour>, now: Instant) {
        let request = Request::of(frame, by, now);
        let is_known = match request.to.process() {
            _ if request.to == self.me() => true,
            Process::Node(_) => false,
            Process::Rank(guest @ Process::FIRST_GUEST..) => self.links.is_open(Neighbour::Rank(guest)),
            Process::Rank(rank) => self.home_of(rank) == Some(self.membership.node),
        };
        let built_in = match request.method {
            _ if !is_known => Some(Err(CallError::NoSuchProcess)),
            Method::PING => Some(Ok(request.body.clone())),
            Method::SET_INFO => Some(Ok(document(&self.set_info()))),
            Method::CONNECTIVITY => Some(Ok(document(&self.connectivity()))),
            _ => None,
        };
        match built_in {
            Some(result) => self.respond(&request, result, now),
            None => match self.serving.admit(request) {
                Ok(()) => self.start_waiting(),
                Err(request) => self.respond(&request, Err(CallError::Busy { at: self.me() }), now),
            },
        }
    }

    fn take_answer(&mut self, frame: Frame, now: Instant) {
        let id = CallId(frame.id);
        // An answer for a rank without a process is dropped.
        if frame.destination != self.me() {
            return;
        }
        let Some(handler) = self.calls.answered(&frame) else { return };
        let result = match frame.kind {
            Kind::Response => Ok(frame.body),
            _ => Err(CallError::decode(frame.method, frame.body)),
        };
        // With this failure the request was not delivered, so another route may be tried.
        if let (Err(CallError::NoRoute { .. }), Some((again, first))) = (&result, self.calls.other_way(id, now)) {
            return self.route(again, Some(first), now, now);
        }
        self.calls.end(id);
        self.resume(handler);
        self.effects.push_back(Effect::Ended(id, result));
    }

    /// Facts about the set, for answers to [`Method::SET_INFO`].
    pub fn set_info(&self) -> SetInfo {
        let Membership { set, members, homes, launch, .. } = &self.membership;
        SetInfo {
            set: set.bits(),
            launch: launch.clone(),
            ranks: homes.len() as u32,
            members: *members,
            root: set.root().to_string(),
        }
    }

    /// Sends the answer. An answer that exceeds a frame is a handler failure: members on the route would refuse it, and end the link.
    fn respond(&mut self, request: &Request, result: Result<Bytes, CallError>, now: Instant) {
        let too_long =
            |body: &Bytes| Fault(format!("an answer has at most {BODY_MAX} bytes, and this one has {}", body.len()));
        let (kind, method, body) = match result {
            Ok(body) if body.len() > BODY_MAX => {
                let (code, body) = CallError::Handler(too_long(&body)).encode();
                (Kind::Error, code, body)
            }
            Ok(body) => (Kind::Response, request.method.0, body),
            Err(error) => {
                let (code, body) = error.encode();
                (Kind::Error, code, body)
            }
        };
        let frame = Frame {
            kind,
            ttl: self.ttl(request.from),
            detours: 0,
            method,
            source: request.to,
            destination: request.from,
            id: request.id,
            remaining_ms: milliseconds(request.until.saturating_duration_since(now)),
            body,
        };
        self.answer_by(request.by, frame, now);
    }

    /// Starts handlers for waiting requests while there are free slots.
    fn start_waiting(&mut self) {
        while let Some(request) = self.serving.start() {
            self.effects.push_back(Effect::Serve(request));
        }
    }

    /// Continues a handler after its call has ended.
    fn resume(&mut self, handler: Option<Ticket>) {
        if let Some(handler) = handler {
            self.serving.resume(handler);
        }
    }
}

fn milliseconds(time: Duration) -> u32 {
    u32::try_from(time.as_millis()).unwrap_or(u32::MAX)
}
