//! The world of simulated members: links with a latency, dead members, and a few kinds of handlers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap, HashMap};
use std::time::{Duration, Instant};

use bytes::Bytes;
use lattice_overlay::address::{Process, SetId, Uid};
use lattice_overlay::error::CallError;
use lattice_overlay::frame::{Frame, Kind};
use lattice_overlay::machine::{CallId, CallOptions, Effect, Machine, Membership, Neighbour, Opener, Request, Ticket};
use lattice_overlay::method::Method;

/// Transit time of a frame.
const LATENCY: Duration = Duration::from_micros(30);

/// Method with a handler that returns the body of the call.
pub(crate) const MIRROR: Method = Method(256);
/// Method with a handler that never answers.
pub(crate) const SILENCE: Method = Method(257);
/// Method with a handler that calls the same method of its caller, as many times as the body specifies.
pub(crate) const TO_AND_FRO: Method = Method(258);

pub(crate) struct World {
    origin: Instant,
    now: Duration,
    machines: BTreeMap<Uid, Machine>,
    /// Members that are lost without notice: connections to them are refused.
    pub(crate) dead: BTreeSet<Uid>,
    /// Members that are stopped: they accept no frame and no link, but their links stay open.
    pub(crate) stopped: BTreeSet<Uid>,
    /// Reason with which links to missing sets are refused; without it, the sets just do not exist.
    pub(crate) refusing: Option<&'static str>,
    links: BTreeSet<(Uid, Uid)>,
    events: BinaryHeap<Reverse<(Duration, u64, Event)>>,
    sequence: u64,
    ended: HashMap<(Uid, CallId), Result<Bytes, CallError>>,
    /// Handlers that wait for a call of their own.
    awaiting: HashMap<(Uid, CallId), Ticket>,
    /// Requests that handlers received.
    pub(crate) served: Vec<(Uid, Request)>,
    /// Number of sent frames, without echoes.
    pub(crate) sent: u64,
}

#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Open { from: Uid, to: Uid },
    Frame { from: Uid, to: Uid, bytes: Vec<u8> },
    Wake(Uid),
}

impl World {
    pub(crate) fn new() -> Self {
        Self {
            origin: Instant::now(),
            now: Duration::ZERO,
            machines: BTreeMap::new(),
            dead: BTreeSet::new(),
            stopped: BTreeSet::new(),
            refusing: None,
            links: BTreeSet::new(),
            events: BinaryHeap::new(),
            sequence: 0,
            ended: HashMap::new(),
            awaiting: HashMap::new(),
            served: Vec::new(),
            sent: 0,
        }
    }

    /// Adds a set with this many members, and one rank on each.
    pub(crate) fn with_set(mut self, set: SetId, members: u32) -> Self {
        let homes: Vec<u32> = (0..members).collect();
        for node in 0..members {
            // The homes of all ranks at all members would need quadratic memory.
            let homes = if members > 5000 { Vec::new() } else { homes.clone() };
            let membership = Membership { set, node, members, homes, launch: None };
            self.machines.insert(Uid::new(set, Process::Node(node)), Machine::new(membership));
        }
        self
    }

    /// Adds the process of a rank, which makes and serves calls itself; the rank and its node have the same number.
    pub(crate) fn with_process(mut self, set: SetId, rank: u32) -> Self {
        let (session, process) = (Uid::new(set, Process::Node(rank)), Uid::new(set, Process::Rank(rank)));
        self.machines.insert(process, Machine::of_rank(set, rank));
        self.links.extend([(session, process), (process, session)]);
        let now = self.now();
        self.machine(session).handle_opened(Neighbour::Rank(rank), Opener::Them, now);
        self.machine(process).handle_opened(Neighbour::Session, Opener::Us, now);
        self
    }

    /// Ends the process of a rank.
    pub(crate) fn end_process(&mut self, set: SetId, rank: u32) {
        let now = self.now();
        let session = Uid::new(set, Process::Node(rank));
        self.machine(session).handle_lost(Neighbour::Rank(rank), now);
        self.machines.remove(&Uid::new(set, Process::Rank(rank)));
        self.carry_out(session);
    }

    pub(crate) fn machine(&mut self, uid: Uid) -> &mut Machine {
        self.machines.get_mut(&uid).unwrap()
    }

    pub(crate) fn now(&self) -> Instant {
        self.origin + self.now
    }

    pub(crate) fn elapsed(&self) -> Duration {
        self.now
    }

    pub(crate) fn call(&mut self, from: Uid, to: Uid, method: Method, body: &[u8], options: CallOptions) -> CallId {
        let now = self.now();
        let id = self.machine(from).call(to, method, Bytes::copy_from_slice(body), options, now);
        self.carry_out(from);
        id
    }

    /// Makes a call, and runs the world until the call has ended.
    pub(crate) fn ask(&mut self, from: Uid, to: Uid, method: Method, body: &[u8]) -> Result<Bytes, CallError> {
        let id = self.call(from, to, method, body, CallOptions::default());
        self.await_end(from, id)
    }

    pub(crate) fn await_end(&mut self, from: Uid, id: CallId) -> Result<Bytes, CallError> {
        loop {
            if let Some(result) = self.ended.remove(&(from, id)) {
                return result;
            }
            assert!(self.step(), "nothing happens any more, and {from:?} waits for {id:?}");
        }
    }

    /// Lets this much time pass.
    pub(crate) fn run_for(&mut self, time: Duration) {
        let until = self.now + time;
        while self.events.peek().is_some_and(|Reverse((at, ..))| *at <= until) {
            self.step();
        }
        self.now = until;
    }

    /// Kills a member. Its linked members detect the end of their links.
    pub(crate) fn kill(&mut self, uid: Uid) {
        self.dead.insert(uid);
        let linked: Vec<Uid> = self.links.iter().filter(|(from, _)| *from == uid).map(|&(_, to)| to).collect();
        linked.into_iter().for_each(|other| self.cut(other, uid));
    }

    /// Breaks a link. Only the member `sees` detects it.
    pub(crate) fn cut(&mut self, sees: Uid, other: Uid) {
        self.links.remove(&(sees, other));
        self.links.remove(&(other, sees));
        let now = self.now();
        self.machine(sees).handle_lost(neighbour(sees, other), now);
        self.carry_out(sees);
    }

    /// Sends the late answer of a handler.
    pub(crate) fn answer(&mut self, uid: Uid, ticket: Ticket, body: impl Into<Bytes>) {
        let now = self.now();
        self.machine(uid).answer(ticket, Ok(body.into()), now);
        self.carry_out(uid);
    }

    /// Delivers a frame as if `from` had sent it.
    pub(crate) fn inject(&mut self, from: Neighbour, to: Uid, frame: Frame) {
        let now = self.now();
        self.machine(to).handle_frame(from, frame, now);
        self.carry_out(to);
    }

    fn step(&mut self) -> bool {
        let Some(Reverse((at, _, event))) = self.events.pop() else { return false };
        self.now = self.now.max(at);
        match event {
            Event::Open { from, to } => self.open(from, to),
            Event::Frame { from, to, bytes } => self.deliver(from, to, &bytes),
            Event::Wake(uid) => {
                let now = self.now();
                if !self.stopped.contains(&uid) && self.machine(uid).next_wake().is_some_and(|due| due <= now) {
                    self.machine(uid).handle_time(now);
                    self.carry_out(uid);
                }
            }
        }
        true
    }

    fn open(&mut self, from: Uid, to: Uid) {
        let now = self.now();
        let far_end = neighbour(from, to);
        if self.dead.contains(&to) || self.stopped.contains(&to) || !self.machines.contains_key(&to) {
            match self.refusing {
                Some(why) => self.machine(from).handle_refused(far_end, why.to_owned(), now),
                None => self.machine(from).handle_lost(far_end, now),
            }
        } else {
            self.links.extend([(from, to), (to, from)]);
            self.machine(to).handle_opened(neighbour(to, from), Opener::Them, now);
            self.carry_out(to);
            self.machine(from).handle_opened(far_end, Opener::Us, now);
        }
        self.carry_out(from);
    }

    fn deliver(&mut self, from: Uid, to: Uid, bytes: &[u8]) {
        if self.dead.contains(&to) || self.stopped.contains(&to) || !self.links.contains(&(from, to)) {
            return;
        }
        let now = self.now();
        let frame = Frame::take(&mut bytes::BytesMut::from(bytes)).unwrap().unwrap();
        self.machine(to).handle_frame(neighbour(to, from), frame, now);
        self.carry_out(to);
    }

    fn schedule(&mut self, after: Duration, event: Event) {
        self.sequence += 1;
        self.events.push(Reverse((self.now + after, self.sequence, event)));
    }

    fn carry_out(&mut self, uid: Uid) {
        while let Some(effect) = self.machine(uid).poll_effect() {
            match effect {
                Effect::Open(to) => self.schedule(2 * LATENCY, Event::Open { from: uid, to: uid_of(uid, to) }),
                Effect::Close(to) => {
                    let to = uid_of(uid, to);
                    self.links.remove(&(uid, to));
                    self.links.remove(&(to, uid));
                    if let Some(machine) = self.machines.get_mut(&to) {
                        machine.handle_lost(neighbour(to, uid), self.origin + self.now);
                        self.carry_out(to);
                    }
                }
                Effect::Send(to, frame) => {
                    self.sent += u64::from(!matches!(frame.kind, Kind::Echo | Kind::Echoed));
                    let mut bytes = bytes::BytesMut::new();
                    frame.append(&mut bytes);
                    self.machine(uid).handle_written(to, 1);
                    let event = Event::Frame { from: uid, to: uid_of(uid, to), bytes: bytes.to_vec() };
                    self.schedule(LATENCY, event);
                }
                Effect::Serve(request) => self.serve(uid, request),
                Effect::Ended(id, result) => match self.awaiting.remove(&(uid, id)) {
                    Some(ticket) => {
                        let now = self.now();
                        self.machine(uid).answer(ticket, result, now);
                    }
                    None => {
                        self.ended.insert((uid, id), result);
                    }
                },
            }
        }
        if let Some(due) = self.machine(uid).next_wake() {
            let after = due.saturating_duration_since(self.now());
            self.schedule(after, Event::Wake(uid));
        }
    }

    fn serve(&mut self, uid: Uid, request: Request) {
        let (now, ticket) = (self.now(), request.ticket);
        self.served.push((uid, request.clone()));
        match request.method {
            MIRROR => self.machine(uid).answer(ticket, Ok(request.body), now),
            TO_AND_FRO => match request.body[0] {
                0 => self.machine(uid).answer(ticket, Ok(Bytes::from_static(b"the bottom")), now),
                depth => {
                    let options = CallOptions { within: Some(ticket), ..CallOptions::default() };
                    let body = Bytes::copy_from_slice(&[depth - 1]);
                    let id = self.machine(uid).call(request.from, TO_AND_FRO, body, options, now);
                    self.awaiting.insert((uid, id), ticket);
                }
            },
            SILENCE => {}
            _ => self.machine(uid).answer(ticket, Err(CallError::NoSuchMethod), now),
        }
    }
}

/// Name of `to` among the neighbours of `from`.
fn neighbour(from: Uid, to: Uid) -> Neighbour {
    match (from.process(), to.process()) {
        (Process::Rank(_), _) => Neighbour::Session,
        _ if !from.is_of_set_of(to) => Neighbour::Set(to.set()),
        (_, Process::Rank(rank)) => Neighbour::Rank(rank),
        (_, Process::Node(node)) => Neighbour::Member(node),
    }
}

fn uid_of(from: Uid, to: Neighbour) -> Uid {
    match to {
        Neighbour::Member(node) => Uid::new(from.set(), Process::Node(node)),
        Neighbour::Set(set) => set.root(),
        Neighbour::Rank(rank) => Uid::new(from.set(), Process::Rank(rank)),
        Neighbour::Session => match from.process() {
            Process::Rank(rank) => Uid::new(from.set(), Process::Node(rank)),
            Process::Node(_) => unreachable!("a member has no session"),
        },
    }
}

/// Seeded random numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, end: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ mixed >> 31) % u64::from(end)) as u32
    }
}
