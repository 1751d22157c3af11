//! Routes of frames: the next neighbour of each frame, and the handling of frames without a route.

use std::time::{Duration, Instant};

use bytes::Bytes;

use super::direct;
use super::links::{Queued, Room};
use super::passed::{Gone, Name};
use super::{CallError, CallId, Effect, Frame, Kind, Machine, Membership, Neighbour, milliseconds};
use crate::address::{Process, Uid};
use crate::frame::DETOURS_MAX;
use crate::method::Method;
use crate::strides::{distance, hops_max, towards};

/// Maximum members that a frame may pass in another set of unknown size.
const TTL_ELSEWHERE: u8 = 48;

/// Next hop of a frame.
enum Next {
    Here,
    /// A neighbour, with the number of the frame's detours including this hop.
    Neighbour(Neighbour, u8),
    /// No route, with the reason.
    Nowhere(CallError),
}

impl Machine {
    /// Maximum members that a frame to this process may pass.
    pub(super) fn ttl(&self, to: Uid) -> u8 {
        let Membership { set, members, .. } = self.membership;
        let here = u8::try_from(2 * hops_max(members) + 8).unwrap_or(u8::MAX);
        if to.set() == set { here } else { here.saturating_add(TTL_ELSEWHERE) }
    }

    /// Index of the node of a rank or a guest.
    pub(super) fn home_of(&self, rank: u32) -> Option<u32> {
        if let Some(node) = Process::home_of_guest(rank) {
            return Some(node).filter(|&node| node < self.membership.members);
        }
        self.membership.homes.get(usize::try_from(rank).ok()?).copied()
    }

    /// Returns true if a frame with this source and destination can arrive over this link. Other frames are forged, and are dropped.
    pub(super) fn may_come_from(&self, from: Neighbour, frame: &Frame) -> bool {
        let ours = self.membership.set;
        let (source, destination) = (frame.source.set(), frame.destination.set());
        match from {
            Neighbour::Set(set) => source == set && destination == ours,
            Neighbour::Member(_) => source == ours || destination == ours,
            Neighbour::Rank(rank) => frame.source == Uid::new(ours, Process::Rank(rank)),
            Neighbour::Session => frame.destination == self.me(),
        }
    }

    /// Forwards a frame that arrived over `from` at `since`, or delivers it here.
    pub(super) fn route(&mut self, mut frame: Frame, from: Option<Neighbour>, since: Instant, now: Instant) {
        let here = milliseconds(now.saturating_duration_since(since));
        frame.remaining_ms = frame.remaining_ms.saturating_sub(here);
        if frame.kind != Kind::Request
            && let Some(by) = self.passed.forget((frame.destination, frame.id))
        {
            return self.answer_by(Some(by), frame, now);
        }
        match self.next(&frame, from, now) {
            Next::Here => self.arrived.push_back((frame, from)),
            Next::Neighbour(..) if frame.ttl == 0 => {
                self.turn_back(&frame, from, &CallError::TtlSpent { at: self.me() }, now);
            }
            Next::Neighbour(neighbour, detours) => {
                if frame.source == self.me() && frame.kind == Kind::Request {
                    self.calls.went_by(CallId(frame.id), neighbour);
                }
                self.give(neighbour, frame, detours, from, now);
            }
            Next::Nowhere(error) => self.turn_back(&frame, from, &error, now),
        }
    }

    /// Sends an answer to the neighbour that sent the request, which may wait for it, if the link is still open; otherwise routes it like
    /// any frame.
    pub(super) fn answer_by(&mut self, by: Option<Neighbour>, frame: Frame, now: Instant) {
        match by {
            Some(by) if frame.ttl > 0 && self.links.room(by, frame.kind) == Room::Open => {
                let detours = frame.detours;
                self.give(by, frame, detours, None, now);
            }
            _ => self.route(frame, None, now, now),
        }
    }

    fn give(&mut self, neighbour: Neighbour, frame: Frame, detours: u8, from: Option<Neighbour>, now: Instant) {
        if frame.kind == Kind::Request {
            self.remember(neighbour, &frame, from, now);
        }
        if self.links.room(neighbour, frame.kind) == Room::Open {
            if frame.kind == Kind::Request && !matches!(from, Some(Neighbour::Member(_))) {
                self.consider_direct_link(neighbour, frame.destination, now);
            }
            if frame.kind == Kind::Request && !self.is_end(neighbour, frame.destination) {
                let until = now + Duration::from_millis(frame.remaining_ms.into());
                self.passed.sent(neighbour, Gone { name: (frame.source, frame.id), from, until });
            }
            self.links.sent(neighbour, now);
            let frame = Frame { ttl: frame.ttl - 1, detours, ..frame };
            self.effects.push_back(Effect::Send(neighbour, frame));
        } else {
            // The frame is routed again once the link is open, or has failed.
            self.links.wait(neighbour, Queued { frame, from, since: now });
        }
    }

    /// Records a request if this neighbour is the last one on its route.
    fn remember(&mut self, neighbour: Neighbour, frame: &Frame, from: Option<Neighbour>, now: Instant) {
        let name = (frame.source, frame.id);
        if self.is_end(neighbour, frame.destination) {
            let left = Duration::from_millis(frame.remaining_ms.into());
            self.passed.expire(now);
            self.passed.given(name, from, neighbour, now + left);
        } else {
            self.passed.forget(name);
        }
    }

    /// Opens a link to a member of this set that is some hops away, once enough requests for it have passed here.
    fn consider_direct_link(&mut self, neighbour: Neighbour, to: Uid, now: Instant) {
        let Membership { set, node, members, .. } = self.membership;
        let target = match to.process() {
            _ if to.set() != set => Some(0),
            Process::Node(index) => Some(index),
            Process::Rank(rank) => self.home_of(rank),
        };
        if let (Some(target), Neighbour::Member(by)) = (target, neighbour)
            && let Some(enough) = direct::enough(node, by, target, members)
            && self.direct.count(target, now) >= enough
            && self.links.room(Neighbour::Member(target), Kind::Request) == Room::Closed
        {
            self.open(Neighbour::Member(target), now);
        }
    }

    fn next(&mut self, frame: &Frame, from: Option<Neighbour>, now: Instant) -> Next {
        let Membership { set, node, members, .. } = self.membership;
        let to = frame.destination;
        if self.rank.is_some() {
            return if to == self.me() { Next::Here } else { self.directly(Neighbour::Session, frame, now) };
        }
        let target = if to.set() == set {
            match to.process() {
                Process::Node(index) => Some(index).filter(|&index| index < members),
                Process::Rank(rank) => self.home_of(rank),
            }
        } else {
            Some(0)
        };
        match target {
            None => Next::Nowhere(CallError::NoSuchProcess),
            Some(target) if target != node => self.next_member(frame, target, from, now),
            Some(_) if to.set() != set => self.directly(Neighbour::Set(to.set()), frame, now),
            Some(_) => match to.process() {
                Process::Rank(rank) if self.is_for_process(rank, frame) => {
                    self.directly(Neighbour::Rank(rank), frame, now)
                }
                _ => Next::Here,
            },
        }
    }

    /// Returns true if a frame for a rank of this node is for its process. The session answers our own methods, so that they work while the
    /// process is busy.
    fn is_for_process(&self, rank: u32, frame: &Frame) -> bool {
        let is_ours = frame.kind == Kind::Request && !Method(frame.method).is_of_programs();
        !is_ours && self.links.is_open(Neighbour::Rank(rank))
    }

    fn directly(&mut self, neighbour: Neighbour, frame: &Frame, now: Instant) -> Next {
        match self.usable(neighbour, frame.kind, now) {
            Usable::Yes => Next::Neighbour(neighbour, frame.detours),
            Usable::Full => Next::Nowhere(CallError::Busy { at: self.me() }),
            Usable::No => Next::Nowhere(self.unreachable(neighbour)),
        }
    }

    /// Failure of a frame that only this neighbour could forward.
    pub(super) fn unreachable(&self, neighbour: Neighbour) -> CallError {
        match self.links.refusal(neighbour) {
            Some(why) => CallError::Refused { why: why.to_owned() },
            None => CallError::NoRoute { at: self.me() },
        }
    }

    /// Returns true if this neighbour is the last known one on the route to this process, or if the answer can arrive only through this
    /// neighbour: frames of other sets arrive through the own root.
    fn is_end(&self, neighbour: Neighbour, to: Uid) -> bool {
        let is_ours = to.set() == self.membership.set;
        match (neighbour, to.process()) {
            (Neighbour::Set(set), _) => to.set() == set,
            (Neighbour::Member(node), _) if !is_ours => node == 0,
            (Neighbour::Member(node), Process::Node(index)) => node == index,
            (Neighbour::Member(node), Process::Rank(rank)) => self.home_of(rank) == Some(node),
            (Neighbour::Rank(rank), process) => is_ours && process == Process::Rank(rank),
            (Neighbour::Session, _) => false,
        }
    }

    /// The best usable neighbour on the route to a member of this set.
    fn next_member(&mut self, frame: &Frame, target: u32, from: Option<Neighbour>, now: Instant) -> Next {
        let Membership { node, members, .. } = self.membership;
        let away = distance(node, target, members);
        let directly = Neighbour::Member(target);
        if from != Some(directly) && self.links.room(directly, frame.kind) == Room::Open {
            return Next::Neighbour(directly, frame.detours);
        }
        for index in towards(node, target, members) {
            let neighbour = Neighbour::Member(index);
            let detours = frame.detours + u8::from(distance(index, target, members) >= away);
            if detours > DETOURS_MAX {
                break;
            }
            if from == Some(neighbour) {
                continue;
            }
            match self.usable(neighbour, frame.kind, now) {
                Usable::Yes => return Next::Neighbour(neighbour, detours),
                Usable::Full => return Next::Nowhere(CallError::Busy { at: self.me() }),
                Usable::No => {}
            }
        }
        Next::Nowhere(CallError::NoRoute { at: self.me() })
    }

    /// Returns whether a neighbour accepts a frame of this kind. Starts to open a link if there is none.
    fn usable(&mut self, neighbour: Neighbour, kind: Kind, now: Instant) -> Usable {
        match self.links.room(neighbour, kind) {
            Room::Open | Room::Opening => Usable::Yes,
            Room::Full => Usable::Full,
            Room::Dead => Usable::No,
            // The other end opens the link, or there is none.
            Room::Closed if neighbour.is_lasting() => Usable::No,
            Room::Closed if self.open(neighbour, now) => Usable::Yes,
            Room::Closed => Usable::Full,
        }
    }

    /// Starts to open a link; returns false if there are too many.
    pub(super) fn open(&mut self, neighbour: Neighbour, now: Instant) -> bool {
        let (begun, closed) = self.links.begin(neighbour, &self.passed, now);
        self.effects.extend(closed.map(Effect::Close));
        self.effects.extend(begun.then_some(Effect::Open(neighbour)));
        begun
    }

    /// Reports to the caller that a request does not reach its destination. Answers that cannot be forwarded are dropped: their call
    /// expires.
    fn turn_back(&mut self, frame: &Frame, from: Option<Neighbour>, error: &CallError, now: Instant) {
        if frame.kind != Kind::Request {
            return;
        }
        let name = (frame.source, frame.id);
        self.passed.forget(name);
        let told = self.error_frame(name, frame.remaining_ms, error);
        if told.destination == self.me() {
            self.arrived.push_back((told, None));
        } else {
            self.answer_by(from, told, now);
        }
    }

    /// Frame that reports the failure of a call to its caller.
    pub(super) fn error_frame(&self, (caller, id): Name, remaining_ms: u32, error: &CallError) -> Frame {
        let (code, body) = error.encode();
        Frame {
            kind: Kind::Error,
            ttl: self.ttl(caller),
            detours: 0,
            method: code,
            source: self.me(),
            destination: caller,
            id,
            remaining_ms,
            body,
        }
    }

    /// Sends an echo request to a neighbour, or answers one.
    pub(super) fn echo(&mut self, neighbour: Neighbour, kind: Kind) {
        if self.links.room(neighbour, kind) != Room::Open {
            return;
        }
        self.links.echoed(neighbour);
        let (source, destination) = (self.me(), self.uid_of(neighbour));
        let (ttl, detours, method, id, remaining_ms, body) = (0, 0, 0, 0, 0, Bytes::new());
        let frame = Frame { kind, ttl, detours, method, source, destination, id, remaining_ms, body };
        self.effects.push_back(Effect::Send(neighbour, frame));
    }
}

/// Usability of a neighbour for a frame.
enum Usable {
    Yes,
    No,
    Full,
}
